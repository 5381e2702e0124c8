"""Names, paths and error texts are printed as they are: no markup, no emoji, nothing that changes a terminal."""

import doctest
import io
from dataclasses import replace

import pytest
from rich.console import Console

from verify_norm.core.contract import Contract
from verify_norm.core.finding import Finding
from verify_norm.core.results import Report
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import CheckResult, Skip
from verify_norm.report import markup, terminal

HOSTILE = ["k.py:printer:smile:", "[red]x[/red]", "[/]", "a\\", "a\\\\", "\\[red]", "[link=http://x]y[/link]"]
HOSTILE += ["a\x1b[2J\x07b", "\u202egnp", "a\rb"]


def test_doctests():
    assert doctest.testmod(markup).failed == 0


@pytest.mark.parametrize("text", HOSTILE)
def test_a_report_shows_the_text_of_others_as_it_is(text):
    out = io.StringIO()
    console = Console(file=out, width=400, highlight=False, emoji=False, force_terminal=True, color_system=None)
    finding = Finding(text, "accuracy", "y", "fail", f"raised {text}", CaseSpec((4, 8)))
    report = Report(
        kernel=text,
        op="rmsnorm_fwd",
        target=text,
        backend="torch",
        contract=Contract(),
        settings=Settings(),
        environment={"device": text},
        cases=9,
        seconds=1.5,
        seconds_in_kernel=0.5,
        findings=(finding,),
        tallies=(),
        checks=(CheckResult("accuracy", "a", 9, 1),),
        skipped=(Skip("cases", text, 1),),
        layouts={},
    )
    for one in (report, replace(report, findings=())):
        terminal.show_report(one, console)
    shown = text.replace("\x1b", r"\u001b").replace("\x07", r"\u0007").replace("\u202e", r"\u202e").replace("\r", r"\r")
    said = out.getvalue()
    for line in (f"raised {shown}", f"not checked: cases: {shown}", f"device {shown}", f"FAIL {shown}: 1 finding"):
        assert line in said
    assert all(line.isprintable() for line in said.split("\n"))
