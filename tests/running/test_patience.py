"""A slow build and a hang are told apart by what calls have taken so far."""

import pytest

from verify_norm.core.spec import CaseSpec
from verify_norm.running.patience import BUILD, TIMEOUT, LostError, Patience, Time, of_case, types
from verify_norm.running.stacks import Stack

FP32, BF16 = "float32, float32", "bfloat16, bfloat16"


def after(*calls, device="cpu"):
    """What has been: (types, seconds) of a call that returned, "process" for a new one, "hang" for one that hung."""
    patience = Patience(device)
    for call in calls:
        if isinstance(call, str):
            patience.restart(hung=call == "hang")
        else:
            types, taken = call
            patience.returned(Time(20.0, types), taken, "a result")
    return patience


@pytest.mark.parametrize(
    ("calls", "types", "seconds"),
    [
        ((), FP32, 20 + BUILD["cpu"]),
        (((FP32, 0.1),), FP32, 20),
        (((FP32, 0.1),), BF16, 20 + BUILD["cpu"]),  # of another type: it may build for the first time
        (((FP32, 25.0),), FP32, 75),  # another shape may build as long
        (((FP32, 25.0), "process"), FP32, 20 + 75),  # built anew in every process
        (((FP32, 200.0), "process"), BF16, 20 + 600),
        (((FP32, 25.0), "process", (FP32, 0.1)), FP32, 75),  # the slowest build counts
        (((FP32, 0.1), (FP32, 0.3), "hang"), FP32, 4 + 0.3),  # what follows a hang may be shorter
        (((FP32, 0.1), "hang", (FP32, 0.1)), FP32, 4),
        (((FP32, 0.1), (FP32, 1.5), "hang", (FP32, 0.1)), FP32, 15),  # cases that take 1.5 s
        (((FP32, 0.1), (FP32, 9.0), "hang", (FP32, 0.1)), FP32, 20),
        (((FP32, 25.0), "hang", (FP32, 25.0)), FP32, 75),  # … never than a build
        (("hang",), FP32, 4 + BUILD["cpu"]),  # nothing has returned: it still may build
    ],
)
def test_the_seconds_of_the_next_call(calls, types, seconds):
    assert after(*calls).limit(Time(20.0, types)) == pytest.approx(seconds)


def test_a_case_has_the_users_time_limit_or_that_of_the_device_and_more_if_it_is_large():
    assert of_case(None, "cuda:1", 10) == TIMEOUT["cuda"]
    assert of_case(5.0, "cpu", 10) == 5.0
    assert of_case(5.0, "cpu", 2**20) == 40.0


def test_a_message_says_what_was_measured_and_what_allows_more():
    known = after((FP32, 0.1), (FP32, 0.3))
    lost = known.lost(Time(20.0, FP32))
    assert (str(lost), lost.hung, lost.late) == ("it did not return after 20 s", True, False)
    assert lost.measured == "; the slowest case so far took 0.3 s; --timeout 60 allows more"
    first = "the first of float32, float32 in its process, which may build; no case has returned so far"
    assert after().lost(Time(20.0, FP32)).measured == f", {first}; --timeout 420 allows more"


def test_a_call_may_not_take_more_than_is_left_nor_does_its_end_say_anything():
    time = Time(20.0, FP32, left=3.0)
    assert after().limit(time) == 3.0
    assert after().lost(time).late


def test_a_result_of_a_kernel_that_did_not_run_says_nothing_of_a_build():
    patience = after()
    patience.returned(Time(20.0, FP32, ran=bool), 0.1, ())
    assert not patience.met


@pytest.mark.parametrize(("weight", "compiled_for"), [(None, BF16), ("float32", "bfloat16, float32")])
def test_the_types_of_a_case_are_those_of_x_and_of_the_weight(weight, compiled_for):
    assert types(CaseSpec((2, 3), dtype="bfloat16", weight_dtype=weight)) == compiled_for
    spec = CaseSpec((2, 3), dtype="bfloat16", weight_dtype=weight, other_dtype="float32")
    assert types(spec) == f"{compiled_for}, float32"
    spec = CaseSpec((2, 3), dtype="bfloat16", weight_dtype=weight, residual_dtype="float32")
    assert types(spec) == f"{compiled_for}, residual float32"


def test_a_process_that_ended_has_not_hung():
    lost = LostError("it ended")
    assert (str(lost), lost.hung, lost.measured, lost.late, lost.compiling) == ("it ended", False, "", False, False)
    patience = after((FP32, 0.1))
    patience.restart()
    assert not patience.known.hung


def test_before_any_build_there_is_the_time_of_a_build_alone(monkeypatch):
    monkeypatch.setitem(BUILD, "cpu", 1.0)
    assert after().limit(Time(20.0, FP32)) == 21.0


@pytest.mark.parametrize(
    ("patience", "left", "seconds"),
    [
        (after(), 1000.0, 20 + 2 * BUILD["cpu"]),
        (after((FP32, 0.1)), 1000.0, 20 + BUILD["cpu"]),
        (after((FP32, 0.1), device="cuda:1"), 1000.0, 20 + BUILD["cuda"]),
        (after((FP32, 0.1)), 30.0, 30),
    ],
)
def test_a_call_that_compiles_has_the_time_of_a_build_more(patience, left, seconds):
    assert patience.longest(Time(20.0, FP32, left=left)) == seconds


@pytest.mark.parametrize(("left", "late"), [(20.0, False), (19.0, True)])
@pytest.mark.parametrize("compiling", [True, False])
def test_a_call_is_late_that_had_less_time_than_it_may_take(left, late, compiling):
    stack = Stack((("/site-packages/triton/compiler/compiler.py", 1, "compile"),) * compiling)
    lost = after((FP32, 0.1)).lost(Time(20.0, FP32, left=left), stack)
    assert (lost.hung, lost.late, lost.compiling) == (True, late, compiling)
    assert f"after {left:.3g} s" in str(lost)
    assert ("--timeout" in lost.measured) != compiling


def test_a_compiler_that_does_not_end_is_told_with_all_the_time_it_had():
    stack = Stack((("/site-packages/triton/compiler/compiler.py", 1, "compile"),))
    assert "140 s" in str(after((FP32, 0.1)).lost(Time(20.0, FP32), stack))
