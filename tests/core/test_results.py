"""The Report: tallies that merge, the command that replays a case, and what a failing test says."""

import shlex
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from verify_norm.core import results, serial
from verify_norm.core.results import CheckResult, FindingsError, Report, Settings, Skip, Tally
from verify_norm.core.spec import CaseSpec, Contract, Expected, Finding, Output

SPEC = CaseSpec((2, 3))
FINDING = Finding("k", "accuracy", "y", "fail", "y[0] is off", SPEC, got=1.5, want=0.1)
CHECKED = CheckResult("accuracy", "right", 4, 0)
REPORT = Report(
    *("mine.py:k", "rmsnorm_fwd", "mine.py:k", "python", Contract(), Settings(), {}, 4, 1.0, 0.5),
    *((), (), (CHECKED,), (), {}),
)


def tally(ratio, spec=SPEC):
    """A tally of y = (1, one ulp above 2, no bound), whose errors are 0, 1 ulp and unknown."""
    want, delta = np.array([1.0, 2.0, 3.0]), np.array([0.0, 0.0, inf])
    output = Output("float16", (3,), np.array([1.0, 2.0 + 2.0**-9, 7.0]), np.array([0.0, ratio, 0.0]))
    return Tally.of("y", output, Expected(want, delta, "float16"), spec)


def test_a_tally_counts_what_has_no_bound_apart():
    one = tally(2.0)
    assert (one.cases, one.elements, one.unjudged) == (1, 3, 1)
    assert (one.ulp.count, one.ulp.maximum, one.ulp.correct) == (2, 1.0, 1)
    assert (one.ratio, one.index, one.worst) == (2.0, (1,), SPEC)
    assert (tally(0.0).index, tally(0.0).worst) == (None, None)  # nothing is off, so no case is the worst


def test_merged_tallies_add_up_and_keep_the_worst_case():
    other = CaseSpec((5, 7))
    for first, second in ((tally(2.0), tally(3.0, other)), (tally(3.0, other), tally(2.0))):
        both = first.merge(second)
        assert (both.cases, both.elements, both.unjudged, both.ulp.count) == (2, 6, 2, 4)
        assert (both.ratio, both.worst) == (3.0, other)


@pytest.mark.parametrize(("name", "op"), [("mine.py:k", "rmsnorm_fwd"), ("it's mine.py:k", None)])
def test_the_command_that_replays_a_case_is_quoted_for_a_shell(name, op):
    line = results.command(name, op or name, SPEC, 'mode="llama" -> y')
    program, verb, text, option, bind = shlex.split(line)
    assert (program, verb, option, bind) == ("verify-norm", "replay", "--bind", 'mode="llama" -> y')
    assert serial.read_spec(text) == (name, op, SPEC)


def test_a_callable_without_a_target_is_replayed_in_python():
    line = results.replay_line(replace(REPORT, target="", kernel="<lambda>"), SPEC)
    assert line.startswith("verify_norm.replay(<the kernel>, ")
    assert "verify-norm replay" not in line


def test_what_a_failing_test_says():
    report = replace(REPORT, findings=(FINDING,), skipped=(Skip("cases", "too long", 3), Skip("output rstd", "no")))
    with pytest.raises(FindingsError) as caught:
        report.raise_for_findings()
    first, message, got, expected, replay = str(caught.value).splitlines()
    assert first == "mine.py:k (rmsnorm_fwd): 1 finding in 4 of 7 cases"
    assert message == "accuracy: y[0] is off"
    assert (got.split(), expected.split()) == (["got", "1.5"], ["expected", "0.1"])
    assert replay.split()[0] == "replay"


def test_a_run_that_checked_nothing_or_was_interrupted_is_no_pass():
    assert REPORT.ok
    REPORT.raise_for_findings()
    nothing = replace(REPORT, checks=(replace(CHECKED, cases=0),), skipped=(Skip("accuracy", "no case fits"),))
    assert not nothing.ok
    assert results.failures(nothing).endswith("nothing was checked. accuracy: no case fits")
    stopped = replace(REPORT, interrupted=True)
    assert not stopped.ok
    assert results.failures(stopped).endswith("the run was interrupted")
    assert results.cases(replace(REPORT, cases=1)) == "1 case"
