"""A campaign on a terminal and as a page: what is somebody else's text stays text."""

from io import StringIO

import campaigns
import pytest
from campaigns import FACTS, outcome
from rich.console import Console

from verify_norm.campaign.store import Store
from verify_norm.campaign.summary import summarize
from verify_norm.report import campaign
from verify_norm.report.html.campaign import page

HOSTILE = "[red]<script>alert(1)</script>\x1b[2J"


@pytest.fixture
def found(tmp_path):
    units = campaigns.units(2, kernels=(HOSTILE, "wrong"))
    with Store.writing(str(tmp_path / "s"), units, FACTS) as store:
        store.enter(units[0], outcome(units[0]))
        store.enter(units[1], outcome(units[1], wrong=True))
        store.enter(units[2], outcome(units[2], problem=f"no {HOSTILE}"))
    with Store.reading(str(tmp_path / "s")) as store:
        return summarize(store)


def printed(show, found):
    out = Console(file=StringIO(), width=160, color_system=None)
    show(found, out)
    return out.file.getvalue()


def test_the_terminal_shows_kernels_findings_problems_and_what_is_missing(found):
    text = printed(campaign.show, found)
    assert "[red]<script>" in text
    assert "\x1b" not in text
    assert "FAIL accuracy wrong (layernorm_fwd): y" in text
    assert "replay    verify_norm.replay(" in text
    assert "nothing checked [red]<script>" in text
    assert "INCOMPLETE 1 of 4 units are missing: wrong (layernorm_fwd), bfloat16, block 0" in text
    assert text.rstrip().endswith("1 finding; 2 kernels, 2 of 4 units, 2 cases")


def test_the_status_says_how_far_it_is(found):
    text = printed(campaign.show_status, found)
    assert "not running; 2 of 4 units, 2 cases" in text
    assert "a second, 1 finding, 4 s left" in text


def test_the_page_has_a_row_for_each_kernel_and_no_script(found):
    text = page(found)
    assert text.count('<tr><th scope="row">') == 2
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "default-src &#39;none&#39;" in text
    for said in ("accuracy: wrong (layernorm_fwd)", "verify_norm.replay(", "no [red]", "1 of 4 units are missing"):
        assert said in text
