"""What reports say of each check."""

from dataclasses import replace

import pytest
from runs import tally

from verify_norm.core.contract import Contract
from verify_norm.core.coverage import Coverage
from verify_norm.core.errors import UsageError
from verify_norm.core.finding import Finding
from verify_norm.core.results import Report
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import CheckResult, Skip, Tally
from verify_norm.core.ulp import UlpStats
from verify_norm.pytest_plugin.verdicts import MORE, answer, line, regressions, summary
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


def test_a_note_names_the_option_that_settles_all_findings():
    finding = Finding("norms:k", "accuracy", "y", "fail", "y is wrong", CaseSpec((4, 8)))
    notes = summary([report(findings=(finding,), outside="ndim=2")])["notes"]
    assert notes[0].startswith("rmsnorm_fwd: no case within --only ndim=2 fails, and most others do")
    assert not any("--only" in note for note in summary([report(outside="ndim=2")])["notes"])


def test_a_check_that_never_looked_says_why():
    idle = (CheckResult("signature", "s", 9, 0), CheckResult("accuracy", "a", 0, 0, no_data="it raised"))
    empty = {"outcome": "unchecked", "reason": "accuracy: no data: it raised", "replays": []}
    assert summary([report(checks=idle)])["verdicts"]["accuracy"] == empty
    accepted = Settings(checks=("signature", "accuracy"), allow_incomplete=True)
    skipped = empty | {"outcome": "skipped"}
    assert summary([report(checks=idle, settings=accepted)])["verdicts"]["accuracy"] == skipped
    lacking = (idle[0], replace(idle[1], offered=False))
    assert summary([report(checks=lacking)])["verdicts"]["accuracy"] == skipped
    assert summary([report(), report(checks=idle)])["verdicts"]["accuracy"] == empty, "one direction has no data"
    assert summary([report(), report(checks=lacking)])["verdicts"]["accuracy"]["outcome"] == "passed"

    skips = (Skip("dtype float16", "k offers float32"), Skip("cases", "too small", 3))
    nothing = report(cases=0, checks=idle[1:], skipped=skips)
    reason = summary([nothing])["verdicts"]["accuracy"]["reason"]
    assert reason.startswith("accuracy: nothing was checked. dtype float16: k offers float32; cases: too small")
    alone = summary([report(), nothing], every=False)["verdicts"]["accuracy"]
    assert alone["outcome"] == "passed", "a direction that nobody asked for"
    inapplicable = report(checks=idle[:1], skipped=(Skip("check accuracy", "does not apply to k"),))
    found = summary([inapplicable])["verdicts"]["accuracy"]
    assert (found["outcome"], found["reason"]) == ("skipped", "accuracy does not apply to k")


def test_no_check_passes_in_a_run_that_is_incomplete():
    cut = report(coverage=Coverage(475, 75, 3, 0, 3, {"y": 3}, "the time limit of 1 s was reached"), cases=3)
    found = summary([cut])
    assert {verdict["outcome"] for verdict in found["verdicts"].values()} == {"unchecked"}
    said = "incomplete: 3 of 75 corner cases ran: the time limit of 1 s was reached"
    assert found["verdicts"]["signature"]["reason"] == f"signature: {said}; {MORE}"
    assert line({"target": "norms:k", "expected": {}} | found)[1].startswith(said)
    accepted = summary([replace(cut, settings=replace(cut.settings, allow_incomplete=True))])
    assert {verdict["outcome"] for verdict in accepted["verdicts"].values()} == {"passed"}


def test_an_answer_is_plain_data_with_the_reports_as_written():
    text = documents.dump(report(), report(op="rmsnorm_bwd"))
    found = answer(text)
    assert found["reports"] == [documents.dump(report()), documents.dump(report(op="rmsnorm_bwd"))]
    assert set(found["verdicts"]) == {"signature", "accuracy"}


def test_what_a_baseline_says_of_a_kernel(tmp_path):
    """It is held to its errors, also where its accuracy is expected to fail; a finding stays one."""
    path = tmp_path / "baseline.json"

    def of(*errors, corners=9, **changes):
        """A report with these errors of y, in ULP, by type."""
        settings = Settings(checks=("signature", "accuracy"), device="cpu", examples=0)
        types = zip(("float16", "bfloat16"), errors, strict=False)
        tallies = tuple(tally([ulp] * 64, dtype, ratio=ulp, cases=corners) for dtype, ulp in types)
        return report(tallies=tallies, settings=settings, cases=corners * len(errors), **changes)

    def compared(old, new):
        path.write_text(documents.dump(old))
        found = answer(documents.dump(new))
        told = regressions(found, str(path), ("signature", "accuracy"), None)
        return told.get("worse", "").partition("\n")[2], [note.replace(str(path), "FILE") for note in told["notes"]]

    finding = Finding("norms:k", "accuracy", "y", "fail", "y is wrong", CaseSpec((4, 8)))
    assert compared(of(0.5, 0.5), of(0.5, 0.5)) == ("", ["compared with FILE: 18 of 18 cases, no worse"])
    left = "y bfloat16: compared in 9 → 8 cases; only equal cases count"
    fewer = replace(of(0.5, 3.0), tallies=(of(0.5).tallies[0], of(0.5, 3.0, corners=8).tallies[1]), cases=17)
    assert compared(of(0.5, 0.5), fewer) == ("", ["compared with FILE: 17 of 18 cases, no worse", left])
    worse, notes = compared(of(2.0, 2.0, findings=(finding,)), of(2.0, 9.0, findings=(finding,)))
    assert "y bfloat16 error/bound: 2 → 9" in worse
    assert "y float16" not in worse
    assert not any("no worse" in note for note in notes)
    assert compared(of(2.0, findings=(finding,)), of(2.0, findings=(finding,)))[0] == "", "a finding as before"
    assert "accuracy y: not found → y is wrong" in compared(of(2.0), of(2.0, findings=(finding,)))[0]
    assert (
        "the baseline FILE has no norms:k (rmsnorm_fwd)"
        in compared(of(0.5, kernel="a", op="layernorm_fwd"), of(0.5))[1]
    )
    cut = of(0.5, coverage=Coverage(475, 75, 3, 0, 3, {"y": 3}, "the time limit of 1 s was reached"))
    assert compared(of(0.5), cut)[1] == [
        "not compared with FILE: incomplete: 3 of 75 corner cases ran: the time limit of 1 s was reached"
    ]
    late = Skip("cases", "the time limit of 1 s was reached", 6)
    with pytest.raises(UsageError, match="the old run ran out of time after 9 cases; run it again with more --seconds"):
        compared(of(0.5, skipped=(late,)), of(0.5))


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
