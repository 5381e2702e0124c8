"""The results of the zoo for people: the matrix, false alarms with their replay, and the score of every class."""

import io
from dataclasses import replace

from rich.console import Console

from verify_norm.core.finding import Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.spec import CaseSpec
from verify_norm.kernels.zoo.example import Example
from verify_norm.report.zoo import detecting, show_zoo
from verify_norm.validation.policies import Verdict
from verify_norm.validation.zoo import Outcome

FINDING = Finding("w", "accuracy", "y", "fail", "y[0] is [far] off", CaseSpec((2, 64), "float16"), after=3)
WRONG = Example(Kernel("w", "rmsnorm_fwd"), "eps", "issue 1", outputs=("y",))
RIGHT = replace(WRONG, kernel=Kernel("r", "rmsnorm_fwd"), wrong=False, kind="unusual", outputs=())


def outcome(example, *findings, caught=None):
    policies = {"Liger": Verdict(caught, "", 1, 0.1)}
    return Outcome(example, findings, 40, 1.25, policies)


def shown(outcomes, left_out=()):
    console = Console(width=140, record=True, file=io.StringIO())
    show_zoo(outcomes, left_out, console)
    return " ".join(console.export_text().split())


def test_a_wrong_kernel_is_detected_only_by_an_output_that_is_wrong():
    assert detecting(outcome(WRONG, FINDING)) is FINDING
    elsewhere = replace(FINDING, output="rstd")
    assert detecting(outcome(WRONG, elsewhere)) is None
    assert detecting(outcome(RIGHT, elsewhere)) is elsewhere
    text = shown([outcome(WRONG, elsewhere)])
    assert "MISSED" in text
    assert "0 of 1 wrong kernels detected, 0 of 0 correct kernels falsely flagged" in text


def test_the_smallest_case_and_how_many_ran_before_it():
    text = shown([outcome(WRONG, FINDING), outcome(RIGHT)])
    assert "accuracy y 3 1.2 2×64 float16" in text
    assert "passes 40 1.2" in text
    assert "1 of 1 wrong kernels detected, 0 of 1 correct kernels falsely flagged" in text
    assert "eps 1 of 1" in text


def test_a_false_alarm_is_told_with_its_replay_and_its_message_is_no_markup():
    text = shown([outcome(RIGHT, replace(FINDING, kernel="r"))])
    assert "false alarm: r: accuracy y[0] is [far] off" in text
    assert """replay: verify-norm replay '{"kernel": "r", "shape": [2, 64], "dtype": "float16"}'""" in text


def test_a_policy_is_scored_on_the_kernels_to_which_it_applies():
    wrong = [outcome(WRONG, FINDING, caught=caught) for caught in (True, False, None)]
    text = shown([*wrong, outcome(RIGHT, caught=True)])
    assert (
        "under Liger's policy: 1 of 2 wrong kernels detected (1 not applicable), 1 of 1 correct kernels falsely flagged"
    ) in text
    assert "not run: w: it needs a GPU" in shown([], [WRONG])
