"""A report of 400 cases, whole or cut short, to which a test adds what it is about."""

from dataclasses import replace

from documents import PLAIN

from verify_norm.core.coverage import Coverage
from verify_norm.core.finding import Finding
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import CheckResult

WHOLE = Coverage(planned=475, corners=75, corners_done=75, refused=0, compared=400, outputs={"y": 400})
CUT = replace(WHOLE, corners_done=3, compared=3, ended="the time limit of 1 s was reached")
IDLE = (CheckResult("accuracy", "a", 0, 0, no_data="it raised"),)
FINDING = Finding("k", "accuracy", "y", "fail", "y is wrong", CaseSpec((4, 8)))


def report(coverage=WHOLE, **changes):
    return replace(PLAIN, **{"cases": 400, "coverage": coverage, **changes})
