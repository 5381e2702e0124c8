"""A slow build and a hang are told apart by what calls have taken so far."""

import pytest

from verify_norm.running.patience import BUILD, TIMEOUT, Patience, Time, of_case

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
