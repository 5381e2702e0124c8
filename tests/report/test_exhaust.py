"""What a person reads of an exhaustive run: "all" where all ran, and never else."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from verify_norm.core.contract import Contract
from verify_norm.core.tally import Tally
from verify_norm.core.ulp import UlpStats
from verify_norm.exhaustive.model import Asked, Element, Exhausted, Violation
from verify_norm.report.exhaust import show

ASKED = Asked(
    *("[k]", "rmsnorm_fwd", "f.py:k", "eps=epsilon", Contract(), ("xhat=x", ""), "0", "rows2"),
    *("rows of 2 bfloat16 values", "bfloat16", 1e-5, 0, 1000, 1000),
)
TALLY = Tally("y", "bfloat16", 1, 2000, 400, UlpStats(1600, correct=1600), 0.5, index=(17, 1))
WHOLE = Exhausted(ASKED, {"device": "H200"}, 1000, 4.0, (TALLY,))
WRONG = Violation("accuracy", "y", 3, (Element(17, (1,), "bits 0 1", 1.0, 2.0, 128.0, 0.5),))
FOUND = {  # what is printed, what is not
    "all": (
        WHOLE,
        "PASS [k]: all 1,000 rows of 2 bfloat16 values; in 4 s (250 a second); 1,600 elements judged",
        "FAIL",
    ),
    "a part": (
        replace(WHOLE, asked=replace(ASKED, first=10)),
        "PASS [k]: 990 of 1,000 rows of 2 bfloat16 values (numbers 10 to 999)",
        " all ",
    ),
    "not finished": (
        replace(WHOLE, done=500, ended="the time limit of 2 s was reached"),
        "INCOMPLETE [k]: 500 of 1,000",
        " all ",
    ),
    "wrong": (
        replace(WHOLE, violations=(WRONG,)),
        "y[1] of item 17, bits 0 1: got 1, expected 2, 128 ULP away, 0.5 allowed replay verify-norm exhaust --kernel "
        "'[k]' --op rmsnorm_fwd --bind eps=epsilon --space rows2 --dtype bfloat16 --eps 1e-05 --items 17:18 --contract "
        "xhat=x",
        "PASS",
    ),
    "lost": (replace(WHOLE, done=500, problem="it [hung]"), "FAIL it [hung]", "all 1,000"),
    "nothing": (replace(WHOLE, tallies=(replace(TALLY, unjudged=2000),)), "nothing checked [k]: all 1,000", "PASS"),
}


@pytest.mark.parametrize("name", FOUND)
def test_the_verdict_says_how_much_ran(name):
    found, said, unsaid = FOUND[name]
    out = Console(file=StringIO(), width=120, color_system=None)
    show(found, out)
    text = " ".join(out.file.getvalue().split()).replace(
        "where the declared arithmetic may overflow or lose all to", ""
    )
    assert said in text
    assert unsaid not in text
    assert "y bfloat16 2,000" in text
    assert "no evidence about a GPU" not in text
