"""What reports say of each check."""

from dataclasses import replace

from verify_norm.core.results import CheckResult, Report, Settings, Skip, Tally
from verify_norm.core.spec import CaseSpec, Contract, Finding
from verify_norm.core.ulp import UlpStats
from verify_norm.pytest_plugin.verdicts import answer, line, summary
from verify_norm.report import documents


def report(**changes):
    """A report on a kernel that two checks looked at."""
    spec = CaseSpec((4, 8))
    tally = Tally("y", "float16", 1, 32, ulp=UlpStats(count=32, maximum=0.75), worst=spec)
    made = Report(
        kernel="norms:k",
        op="rmsnorm_fwd",
        target="norms:k",
        backend="torch",
        contract=Contract(),
        settings=Settings(checks=("signature", "accuracy"), device="cpu"),
        environment={},
        cases=9,
        seconds=1.5,
        seconds_in_kernel=0.5,
        findings=(),
        tallies=(tally,),
        checks=(CheckResult("signature", "s", 9, 0), CheckResult("accuracy", "a", 4, 0)),
        skipped=(),
        layouts={},
    )
    return replace(made, **changes)


def test_both_directions_of_a_kernel_are_one_verdict():
    finding = Finding("norms:k", "accuracy", "dx", "fail", "dx is wrong", CaseSpec((4, 8)))
    found = summary([report(), report(op="rmsnorm_bwd", findings=(finding,))])
    assert found["verdicts"]["signature"] == {"outcome": "passed", "reason": "nothing found in 18 cases", "replays": []}
    assert found["verdicts"]["accuracy"]["outcome"] == "failed"
    assert '"op": "rmsnorm_bwd"' in found["verdicts"]["accuracy"]["replays"][0]
    assert found["max_ulp"] == {"y.float16": 0.75}


def test_a_check_that_never_looked_says_why():
    idle = (CheckResult("signature", "s", 9, 0), CheckResult("accuracy", "a", 0, 0))
    assert summary([report(checks=idle)])["verdicts"]["accuracy"]["reason"] == (
        "accuracy had nothing to check in 9 cases"
    )
    alone = report(checks=idle[1:], settings=Settings(checks=("accuracy",)))
    assert summary([alone])["verdicts"]["accuracy"]["reason"] == (
        "accuracy had nothing to check in 9 cases; the check signature tells whether the kernel runs at all"
    )
    skips = (Skip("dtype float16", "k offers float32"), Skip("cases", "too small", 3))
    nothing = report(cases=0, checks=(), skipped=skips)
    assert summary([nothing])["verdicts"]["accuracy"]["reason"] == (
        "accuracy had no case to check; not checked: dtype float16: k offers float32; "
        "not checked: cases (3 cases): too small"
    )


def test_an_answer_is_plain_data_with_the_reports_as_written():
    text = documents.dump(report(), report(op="rmsnorm_bwd"))
    found = answer(text)
    assert found["reports"] == [documents.dump(report()), documents.dump(report(op="rmsnorm_bwd"))]
    assert set(found["verdicts"]) == {"signature", "accuracy"}


def test_the_line_of_a_kernel_names_what_is_expected_and_what_is_not():
    finding = Finding("norms:k", "accuracy", "y", "fail", "y is wrong", CaseSpec((4, 8)))
    record = {"target": "norms:k", "expected": {}} | summary([report(findings=(finding,))])
    assert line(record)[0] == "FAIL"
    assert line(record)[1].startswith("accuracy; 2 checks; 9 cases in 1.5 s on cpu")
    known = record | {"expected": {"accuracy": "a factor", "signature": "an old one"}}
    assert line(known)[1].startswith(
        "accuracy failed as expected (a factor); signature was expected to fail and passes"
    )
    assert line({"target": "norms:k", "error": "norms has no 'k'"}) == ("ERROR", "norms has no 'k'")
