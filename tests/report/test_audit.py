"""An audit as text: its tables, what is not explained, and its verdict."""

import io
from dataclasses import replace

from documents import AUDIT, EMPTY, INFINITE, PASSING, ULPS
from rich.console import Console

from verify_norm.auditing.model import Averages
from verify_norm.core.tally import Skip
from verify_norm.report import audit as form


def text(document):
    console = Console(file=io.StringIO(), width=160, highlight=False)
    form.show_audit(document, console)
    return console.file.getvalue()


def test_an_audit_has_all_its_parts():
    shown = text(AUDIT)
    for part in (
        "errors in typical data",
        "worst y: 5e+4 ULP, 1.25 of its bound: verify-norm replay",
        "from 10",
        "any of them",
        "none of them",
        "fingerprint: what 27 crafted runs reveal",
        "folded in halves",
        "contract the contract says variance=centered",
        "not done: hunt: not asked for",
        "FAIL onepass: 2 findings and 1 disagreement with its contract; audit of 61 s",
    ):
        assert part in shown, part
    assert "worst rstd" not in shown, "none of its cases is kept"


def test_the_verdict_is_one_line():
    passes = "PASS[/] twopass: every check passes, and the arithmetic agrees with its contract; audit of 61 s"
    assert passes in form.verdict(PASSING)
    assert "nothing checked" in form.verdict(EMPTY)
    cut = form.verdict(replace(PASSING, report=replace(PASSING.report, interrupted=True, coverage=None)))
    assert "INCOMPLETE[/] twopass: no finding so far; the run was interrupted after 99 cases" in cut
    lost = form.verdict(replace(PASSING, skipped=(Skip("ladders", "the kernel was lost: it hung"),)))
    assert "INCOMPLETE[/] twopass: no finding so far; not done: ladders" in lost
    unprinted = form.verdict(replace(PASSING, fingerprint=None))
    assert "PASS[/] twopass: every check passes; audit" in unprinted, "no fingerprint agrees with nothing"
    assert text(INFINITE)


def test_averages_beyond_what_is_explained_are_named():
    beyond = replace(ULPS[1], averages=Averages(10, 0.2, 0.1, 0.0, 0.1))
    line = "y bfloat16: mean error 0.2 ULP beyond correct rounding (0.1 explained), bias +0 (0.1 explained)"
    assert line in text(replace(AUDIT, ulps=(beyond,)))
    assert "y bfloat16: mean error" not in text(AUDIT)
