"""The verdict of a report."""

from dataclasses import replace

import pytest
from reported import CUT, FINDING, IDLE, WHOLE, report

from verify_norm.core.case_words import case
from verify_norm.core.coverage import Seen
from verify_norm.core.errors import Exit, FindingsError
from verify_norm.core.finding import Condition
from verify_norm.core.results import worst_of
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import Skip

SPEC = CaseSpec((2, 3))


def test_what_a_failing_test_says():
    finding = replace(FINDING, got=1.5, want=0.1, condition=Condition(3e4, None, 1.0), cases=1200, after=2)
    made = report(findings=(finding,), skipped=(Skip("cases", "too long", 3), Skip("output rstd", "no")), cases=4)
    with pytest.raises(FindingsError) as caught:
        made.raise_for_findings()
    first, message, *facts = str(caught.value).splitlines()
    rows = {line[2:12].strip(): line[12:] for line in facts}
    assert first == "k (rmsnorm_fwd): 1 finding in 4 of 7 cases"
    assert message == "accuracy: y is wrong"
    assert (rows["got"], rows["expected"]) == ("1.5", "0.1")
    assert rows["data"] == "Σ|t|/|Σt| 3e+04, var/(var + eps) 1"
    assert rows["case"] == case(FINDING.spec)
    assert rows["seen in"] == "1,200 cases, first in case 2"
    assert list(rows)[-1] == "replay"


@pytest.mark.parametrize(
    ("made", "verdict", "accepted"),
    [
        (report(), Exit.PASS, Exit.PASS),
        (report(findings=(FINDING,)), Exit.FINDINGS, Exit.FINDINGS),
        (report(CUT, findings=(FINDING,), cases=3), Exit.FINDINGS, Exit.FINDINGS),
        (report(CUT, cases=3), Exit.INCOMPLETE, Exit.PASS),
        (report(CUT, cases=3, checks=IDLE), Exit.INCOMPLETE, Exit.NOTHING),
        (report(replace(CUT, compared=0, corners_done=0), cases=0, checks=IDLE), Exit.INCOMPLETE, Exit.NOTHING),
        (report(interrupted=True), Exit.INCOMPLETE, Exit.PASS),
        (report(checks=IDLE), Exit.NOTHING, Exit.NOTHING),
        (report(replace(WHOLE, compared=40)), Exit.PASS, Exit.PASS),
        (report(replace(WHOLE, compared=39)), Exit.NOTHING, Exit.NOTHING),
        (report(replace(WHOLE, compared=39), findings=(FINDING,)), Exit.FINDINGS, Exit.FINDINGS),
        (report(replace(WHOLE, refused=361, compared=39), cases=39), Exit.NOTHING, Exit.NOTHING),
        (report(replace(CUT, compared=0), cases=3), Exit.NOTHING, Exit.NOTHING),
        (report(replace(WHOLE, refused=9), seen=Seen()), Exit.NOTHING, Exit.NOTHING),  # cases without elements alone
        (report(replace(WHOLE, refused=9), seen=Seen(elements=1)), Exit.PASS, Exit.PASS),
        (report(replace(WHOLE, refused=0), seen=Seen()), Exit.PASS, Exit.PASS),
        (report(replace(WHOLE, corners=0, corners_done=0)), Exit.PASS, Exit.PASS),
        (report(None), Exit.PASS, Exit.PASS),  # of an older verify-norm
        (report(None, interrupted=True), Exit.INCOMPLETE, Exit.PASS),
        (report(None, checks=IDLE), Exit.NOTHING, Exit.NOTHING),
    ],
)
def test_a_verdict_follows_from_what_ran_and_what_was_found(made, verdict, accepted):
    assert made.verdict is verdict
    assert made.ok is (verdict is Exit.PASS)
    if verdict is Exit.PASS:
        made.raise_for_findings()
    else:
        with pytest.raises(FindingsError):
            made.raise_for_findings()
    assert replace(made, settings=Settings(allow_incomplete=True)).verdict is accepted


def test_of_several_verdicts_a_finding_counts_most():
    found, nothing, cut, fine = Exit.FINDINGS, Exit.NOTHING, Exit.INCOMPLETE, Exit.PASS
    assert worst_of((fine, cut, nothing, found)) is found
    assert worst_of((cut, nothing)) is nothing
    assert worst_of((fine, cut)) is cut
    assert worst_of((fine, fine)) is fine
    assert worst_of((fine, nothing), every=False) is fine
    assert worst_of((cut, nothing), every=False) is cut
    assert worst_of((nothing, nothing), every=False) is nothing
