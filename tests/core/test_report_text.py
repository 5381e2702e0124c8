"""The command that replays a case, what a failing test says, and why nothing was checked."""

import shlex
from dataclasses import replace

import pytest
from reported import FINDING, IDLE, WHOLE, report

from verify_norm.core import report_text, serial
from verify_norm.core.case_words import case
from verify_norm.core.coverage import UNTIMED, Seen, out_of_time
from verify_norm.core.diagnosis import Diagnosis
from verify_norm.core.errors import Exit
from verify_norm.core.report_text import unchecked
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import Skip

SPEC = CaseSpec((2, 3))


@pytest.mark.parametrize(("name", "op"), [("mine.py:k", "rmsnorm_fwd"), ("it's mine.py:k", None)])
def test_the_command_that_replays_a_case_is_quoted_for_a_shell(name, op):
    line = report_text.command(name, op or name, SPEC, 'mode="llama" -> y')
    program, verb, text, option, bind = shlex.split(line)
    assert (program, verb, option, bind) == ("verify-norm", "replay", "--bind", 'mode="llama" -> y')
    assert serial.read_spec(text) == (name, op, SPEC)


def test_a_replay_line_has_the_contract_of_the_run():
    settings = Settings(contract="llama,inplace=y:x")
    line = report_text.replay_line(report(settings=settings), SPEC)
    assert shlex.split(line)[-2:] == ["--contract", "llama,inplace=y:x"]


def test_what_explains_a_finding_is_in_its_text_and_all_of_it_in_one_option():
    dx = replace(FINDING, output="dx", message="dx is wrong")
    explained = tuple(Diagnosis(name, text) for name, text in (("y", "xhat=x"), ("dx", "inplace=dx:dy")))
    made = report(findings=(FINDING, dx), diagnoses=explained)
    assert "  contract  explained by xhat=x" in report_text.failures(made)
    assert report_text.declaration(made) == "xhat=x,inplace=dx:dy"
    partly = replace(made, diagnoses=(explained[0], Diagnosis("dx")))
    assert report_text.declaration(partly) == ""
    assert report_text.explanation(partly, dx).startswith("no contract that verify-norm knows explains it")
    assert report_text.explanation(report(), dx) == ""
    assert made.verdict is Exit.FINDINGS, "until it is declared"


def test_a_callable_without_a_target_is_replayed_in_python():
    line = report_text.replay_line(report(target="", kernel="<lambda>"), SPEC)
    assert line.startswith("verify_norm.replay(<the kernel>, ")
    assert "verify-norm replay" not in line


def test_what_was_not_checked_has_its_reasons():
    skips = (Skip("cases", "it takes no NaN", 361), Skip("output rstd", "k does not return it", 39))
    few = report(replace(WHOLE, refused=361, compared=39), cases=39, skipped=skips)
    assert (
        unchecked(few) == "almost nothing was checked: outputs were compared in 39 of 400 cases. cases: it takes no NaN"
    )
    assert unchecked(report(checks=IDLE, skipped=skips[1:])) == (
        "nothing was checked. output rstd: k does not return it; it raised"
    )


def test_cases_without_elements_are_no_evidence_where_the_others_are_refused():
    skips = (Skip("cases", "it does not take CPU tensors", 9), Skip("output rstd", "k does not return it", 3))
    made = report(replace(WHOLE, refused=9), seen=Seen(), skipped=skips)
    assert unchecked(made) == (
        "nothing was checked: x has no element in all cases that ran. cases: it does not take CPU tensors"
    )
    none = report(replace(WHOLE, refused=9, compared=0), cases=0, seen=Seen(), skipped=skips[:1])
    assert unchecked(none) == "nothing was checked. cases: it does not take CPU tensors"


def test_nothing_is_checked_if_no_check_that_was_asked_for_applies():
    skips = (Skip("output rstd", "k does not return it", 1), Skip("check gradient", "does not apply to rmsnorm_fwd", 1))
    asked = report(checks=(), skipped=skips, settings=Settings(checks=("gradient",)))
    assert unchecked(asked) == "nothing was checked. check gradient: does not apply to rmsnorm_fwd"
    every = report(checks=(), skipped=skips)
    assert unchecked(every) == "nothing was checked. output rstd: k does not return it"
    late = report(checks=(), skipped=(skips[1], Skip("cases", out_of_time(3.0), 200)))
    assert unchecked(late) == "nothing was checked. cases: the time limit of 3 s was reached"


RUN = Settings(dtypes=("float16",), checks=("accuracy", "sums"), contract="lanes=8", only="N%8=0")
CHOSEN = report(kernel="k's", op="rmsnorm_fwd", target="m.py:k", bind='mode="a b"', settings=RUN)


def test_the_command_that_checks_again_has_what_the_run_was_given():
    assert report_text.run_line(CHOSEN, "llama", "M>=1") == (
        "verify-norm --kernel 'k'\"'\"'s' --op rmsnorm_fwd --bind 'mode=\"a b\"' --dtype float16 "
        "--checks accuracy,sums --contract llama --only 'M>=1'"
    )
    assert shlex.split(report_text.run_line(CHOSEN, "", ""))[2:5] == ["k's", "--op", "rmsnorm_fwd"]
    usual = report(kernel="rmsnorm_fwd", op="rmsnorm_fwd", target="rmsnorm_fwd")
    assert report_text.run_line(usual, "", "") == "verify-norm --kernel rmsnorm_fwd"
    here = report(kernel="<lambda>", target="")
    assert report_text.run_line(here, "llama", "") == "verify_norm.verify(<the kernel>, contract='llama')"
    assert report_text.run_line(here, "llama", "M>=1").endswith("contract='llama', only='M>=1')")


def test_the_next_step_is_a_contract_or_the_cases_that_fail_no_more():
    explained = replace(CHOSEN, findings=(FINDING,), diagnoses=(Diagnosis("y", "xhat=x"),), outside="M>=1")
    assert report_text.next_step(explained) == (
        "a weaker contract explains all findings: "
        "if the kernel is meant to do so, --contract lanes=8,xhat=x declares it",
        report_text.run_line(CHOSEN, "lanes=8,xhat=x", "N%8=0"),
    )
    assert report_text.explanation(explained, FINDING).endswith(
        "--contract lanes=8,xhat=x declares it. It allows no larger errors"
    )
    outside = replace(explained, diagnoses=())
    settled = "no case within --only M>=1 fails, and most others do; if the kernel takes no others, declare it"
    assert report_text.next_step(outside) == (settled, report_text.run_line(CHOSEN, "lanes=8", "N%8=0,M>=1"))
    assert report_text.next_step(replace(outside, findings=())) == report_text.next_step(CHOSEN) == ("", "")
    assert report_text.failures(outside).endswith(f"{settled}:\n  {report_text.next_step(outside)[1]}")
    assert report_text.failures(replace(outside, outside="")).splitlines()[-1].startswith("  replay ")


def test_a_replay_has_the_binding_the_contract_and_the_cases_of_the_run():
    line = shlex.split(report_text.replay_line(CHOSEN, SPEC))
    assert line[:2] == ["verify-norm", "replay"]
    assert serial.read_spec(line[2]) == ("k's", "rmsnorm_fwd", SPEC)
    assert line[3:] == ["--bind", 'mode="a b"', "--contract", "lanes=8", "--only", "N%8=0"]
    assert report_text.command("k", "k", SPEC) == """verify-norm replay '{"kernel": "k", "shape": [2, 3]}'"""
    here = report_text.replay_line(replace(CHOSEN, target=""), SPEC)
    assert here == f"verify_norm.replay(<the kernel>, {serial.spec_text(CHOSEN.kernel, SPEC, CHOSEN.op)!r})"


def test_numbers_of_cases_and_findings_are_counted_in_words():
    two = report(kernel="rmsnorm_fwd", findings=(FINDING, replace(FINDING, got=1.0)), cases=1)
    assert report_text.failures(two).startswith("rmsnorm_fwd: 2 findings in 1 case\n")
    assert "got" not in report_text.failures(two), "without what was expected there is nothing to compare"


def test_what_the_kernel_says_comes_first_and_time_is_no_reason_beside_another():
    slow = Skip("cases", "over 0.5 s, its share of the 20 s of the run (--seconds)")
    late, untimed = (Skip("cases", reason) for reason in (out_of_time(5), UNTIMED))
    other, limit = Skip("cases", "it takes no NaN"), Skip("cases", "it takes x of 2 dimensions only", limit=True)
    said = unchecked(report(checks=(), skipped=(slow, other, untimed, late, limit)))
    assert said == "nothing was checked. cases: it takes x of 2 dimensions only; cases: it takes no NaN"
    assert unchecked(report(checks=(), skipped=(late,))) == f"nothing was checked. cases: {late.reason}"


def test_what_says_why_nothing_was_checked():
    skips = (Skip("outputs", "none has a truth", 2), Skip("outputs", "none has a truth", 1), Skip("output y", "no"))
    few = report(replace(WHOLE, compared=1), skipped=skips, checks=IDLE)
    assert unchecked(few, "layernorm") == (
        "almost nothing was checked of layernorm: outputs were compared in 1 of 400 cases. outputs: none has a truth"
    )
    assert unchecked(report(replace(WHOLE, compared=0), skipped=skips[:1], checks=IDLE)) == (
        "nothing was checked. outputs: none has a truth; it raised"
    )
    assert unchecked(report(replace(WHOLE, compared=0), cases=0, checks=IDLE)) == "nothing was checked. "


def test_all_that_there_is_to_say_of_a_finding():
    shown = replace(FINDING, index=(0, 3), got=1.5, want=1.0, ulp=4.0, allowed=0.5123, during="modes")
    facts = report_text.facts(report(), shown)
    assert facts.pop("replay").startswith("verify-norm replay ")
    assert facts == {
        "case": case(FINDING.spec),
        "element": "y[0, 3]",
        "got": "1.5",
        "expected": "1.0   4 ULP away, 0.512 allowed",
        "seen in": "1 case",
        "during": "modes",
    }
    assert list(report_text.facts(report(), FINDING)) == ["case", "seen in", "replay"]
    assert report_text.facts(report(), replace(shown, output=None))["element"] == "[0, 3]"
    close = report_text.facts(report(), replace(shown, ulp=0.5001, allowed=0.5))
    assert close["expected"] == "1.0   0.5001 ULP away, 0.5 allowed", "as many digits as tell them apart"
    assert report_text.facts(report(), replace(shown, ulp=None))["expected"] == "1.0   0.512 allowed"


@pytest.mark.parametrize(
    ("check", "output", "index", "ulp", "named"),
    [
        ("gradient", "dx", (3,), None, {"sum over": "dx of row 3"}),
        ("identities", "dresidual", (3,), None, {"sum over": "dresidual of row 3"}),
        ("sums", "dx", (3,), None, {"sum over": "dx of row 3"}),
        ("gradient", "dweight", (3,), None, {"element": "dweight[3]"}),
        ("sums", "mean", (3,), 2.0, {"element": "mean[3]"}),
        ("identities", "dx", (3, 1), None, {"element": "dx[3, 1]"}),
        ("accuracy", "dx", (3,), None, {"element": "dx[3]"}),
        ("sums", "dx", (3,), 2.0, {"element": "dx[3]"}),
        ("sums", "dx", None, None, {}),
    ],
)
def test_a_sum_over_a_row_is_not_shown_as_an_element(check, output, index, ulp, named):
    found = replace(FINDING, check=check, output=output, index=index, ulp=ulp)
    facts = report_text.facts(report(), found)
    assert {name: text for name, text in facts.items() if name in ("element", "sum over")} == named
    assert found.row == (3 if "sum over" in named else None)


def test_what_a_run_required_is_required_again():
    strict = replace(CHOSEN, settings=Settings(dtypes=("float16", "float32"), require_own=True, untrusted=True))
    assert shlex.split(report_text.replay_line(strict, SPEC))[-2:] == ["--require-own", "--untrusted"]
    assert report_text.run_line(strict, "", "").endswith(" --dtype float16,float32 --require-own --untrusted")
    here = replace(strict, target="")
    assert report_text.replay_line(here, SPEC).endswith(", require_own=True)")
    assert report_text.run_line(here, "", "") == "verify_norm.verify(<the kernel>, require_own=True)"


def test_checks_that_do_not_apply_are_a_reason_only_where_there_is_no_other():
    law, other = Skip("check shift", "it has no mean"), Skip("output rstd", "k does not return it")
    assert (
        unchecked(report(checks=(), skipped=(law, other))) == "nothing was checked. output rstd: k does not return it"
    )
    assert unchecked(report(checks=(), skipped=(law,))) == "nothing was checked. check shift: it has no mean"


def test_the_element_of_a_single_row_is_an_element():
    found = replace(FINDING, check="identities", output="dx", index=(3,), spec=replace(FINDING.spec, shape=(8,)))
    assert found.row is None
