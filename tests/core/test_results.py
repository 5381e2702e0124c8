"""The command that replays a case, what a failing test says, and the verdict of a report."""

import shlex
from dataclasses import replace

import pytest
from documents import PLAIN

from verify_norm.core import results, serial
from verify_norm.core.coverage import Coverage
from verify_norm.core.diagnosis import Diagnosis
from verify_norm.core.errors import Exit
from verify_norm.core.finding import Condition, Finding
from verify_norm.core.results import FindingsError, unchecked, worst_of
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import CheckResult, Skip

SPEC = CaseSpec((2, 3))
WHOLE = Coverage(planned=475, corners=75, corners_done=75, refused=0, compared=400, outputs={"y": 400})
CUT = replace(WHOLE, corners_done=3, compared=3, ended="the 1 s were over")
IDLE = (CheckResult("accuracy", "a", 0, 0, no_data="it raised"),)
FINDING = Finding("k", "accuracy", "y", "fail", "y is wrong", CaseSpec((4, 8)))


def report(coverage=WHOLE, **changes):
    return replace(PLAIN, **{"cases": 400, "coverage": coverage, **changes})


@pytest.mark.parametrize(("name", "op"), [("mine.py:k", "rmsnorm_fwd"), ("it's mine.py:k", None)])
def test_the_command_that_replays_a_case_is_quoted_for_a_shell(name, op):
    line = results.command(name, op or name, SPEC, 'mode="llama" -> y')
    program, verb, text, option, bind = shlex.split(line)
    assert (program, verb, option, bind) == ("verify-norm", "replay", "--bind", 'mode="llama" -> y')
    assert serial.read_spec(text) == (name, op, SPEC)


def test_a_replay_line_has_the_contract_of_the_run():
    settings = Settings(contract="llama,inplace=y:x")
    line = results.replay_line(report(settings=settings), SPEC)
    assert shlex.split(line)[-2:] == ["--contract", "llama,inplace=y:x"]


def test_what_explains_a_finding_is_in_its_text_and_all_of_it_in_one_option():
    dx = replace(FINDING, output="dx", message="dx is wrong")
    explained = tuple(Diagnosis(name, text) for name, text in (("y", "xhat=x"), ("dx", "inplace=dx:dy")))
    made = report(findings=(FINDING, dx), diagnoses=explained)
    assert "  contract  explained by xhat=x" in results.failures(made)
    assert results.declaration(made) == "xhat=x,inplace=dx:dy"
    partly = replace(made, diagnoses=(explained[0], Diagnosis("dx")))
    assert results.declaration(partly) == ""
    assert results.explanation(partly, dx).startswith("no contract that verify-norm knows explains it")
    assert results.explanation(report(), dx) == ""
    assert made.verdict is Exit.FINDINGS, "until it is declared"


def test_a_callable_without_a_target_is_replayed_in_python():
    line = results.replay_line(report(target="", kernel="<lambda>"), SPEC)
    assert line.startswith("verify_norm.replay(<the kernel>, ")
    assert "verify-norm replay" not in line


def test_what_a_failing_test_says():
    finding = replace(FINDING, got=1.5, want=0.1, condition=Condition(3e4, None, 1.0))
    made = report(findings=(finding,), skipped=(Skip("cases", "too long", 3), Skip("output rstd", "no")), cases=4)
    with pytest.raises(FindingsError) as caught:
        made.raise_for_findings()
    first, message, got, expected, data, replay = str(caught.value).splitlines()
    assert first == "k (rmsnorm_fwd): 1 finding in 4 of 7 cases"
    assert message == "accuracy: y is wrong"
    assert (got.split(), expected.split()) == (["got", "1.5"], ["expected", "0.1"])
    assert data == "  data      Σ|t|/|Σt| 3e+04, var/(var + eps) 1"
    assert replay.split()[0] == "replay"


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


def test_what_was_not_checked_has_its_reasons():
    skips = (Skip("cases", "it takes no NaN", 361), Skip("output rstd", "k does not return it", 39))
    few = report(replace(WHOLE, refused=361, compared=39), cases=39, skipped=skips)
    assert (
        unchecked(few) == "almost nothing was checked: outputs were compared in 39 of 400 cases. cases: it takes no NaN"
    )
    assert unchecked(report(checks=IDLE, skipped=skips[1:])) == (
        "nothing was checked. output rstd: k does not return it; it raised"
    )
