"""A call as in use sees no judge on its stack, among the modules, in the command and in the environment."""

import contextlib
import contextvars
import os
import sys
import threading
import time

import pytest
import torch

from verify_norm.loading import nested
from verify_norm.running import in_use

SET = contextvars.ContextVar("SET")
SET.set("by the module")


def seen():
    """What a kernel may look at."""
    frame, stack = sys._getframe(1), set()
    while frame is not None:
        stack.add(frame.f_globals.get("__name__", "").partition(".")[0])
        frame = frame.f_back
    modules = {name.partition(".")[0] for name in sys.modules}
    return stack, modules, sys.argv[:], {name for name in os.environ if name.startswith("PYTEST")}


def test_it_sees_no_judge_and_all_is_back_afterwards():
    before = seen()
    stack, modules, arguments, variables = in_use.alone(seen)()
    assert {"verify_norm", "pytest"} <= before[1]
    assert not {"verify_norm", "pytest", "_pytest", "hypothesis"} & (stack | modules - {"verify_norm"})
    assert (arguments, variables) == (["python"], set())
    assert seen() == before


def test_its_thread_may_start_inside_a_run():
    in_use._thread.cache_clear()
    with nested.inside("a test"):
        stack, *_ = in_use.alone(seen)()
    assert "verify_norm" not in stack


def test_what_is_imported_stays_and_what_is_raised_is_raised():
    sys.modules.pop("this_is_new", None)
    in_use.alone(sys.modules.__setitem__)("this_is_new", sys)
    assert sys.modules.pop("this_is_new") is sys
    with pytest.raises(ZeroDivisionError):
        in_use.alone(lambda x: x / 0)(1)
    assert "verify_norm.running.in_use" in sys.modules


@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_torchs_state_and_the_context_are_those_of_the_caller(inference, grad):
    with torch.inference_mode(inference), torch.set_grad_enabled(grad):
        state = in_use.alone(lambda: (torch.is_inference_mode_enabled(), torch.is_grad_enabled(), SET.get()))()
    assert state == (inference, grad, "by the module")


def test_a_clock_sees_the_call_alone():
    seen_by_clock = []

    def timed(function):
        def run(*args):
            assert "verify_norm.running.in_use" not in sys.modules, "what hides the judge is done before"
            seen_by_clock.append(function(*args))
            return seen_by_clock[0]

        return run

    assert in_use.alone(max, timed)(3, 5) == 5
    assert seen_by_clock == [5]


@pytest.mark.parametrize(
    ("name", "judges"),
    [
        ("verify_norm", True),
        ("verify_norm.running.in_use", True),
        ("verify_norm.kernels.layernorm", False),  # it is in use too
        ("_pytest.python", True),
        ("pytest_of_mine", False),
        ("torch.nn", False),
    ],
)
def test_which_modules_are_those_of_a_judge(name, judges):
    assert in_use._of_judge(name) is judges


def test_calls_of_several_threads_are_made_one_after_another():
    """The state of torch that a call finds is its caller's."""
    begun, end, other = threading.Event(), threading.Event(), threading.Event()
    calls = [(begun.set, lambda: end.wait(10.0)), (other.set,)]
    threads = [
        threading.Thread(target=in_use.alone(lambda steps: [step() for step in steps]), args=(steps,))
        for steps in calls
    ]
    threads[0].start()
    begun.wait(10.0)
    threads[1].start()
    beside = other.wait(0.05)
    end.set()
    for thread in threads:
        thread.join(10.0)
    assert not beside
    assert other.is_set()


def test_a_call_begins_to_hide_the_judge_when_the_one_before_has_it_back(monkeypatch):
    steps = []

    @contextlib.contextmanager
    def hidden():
        steps.append("hide")
        yield
        time.sleep(0.05)
        steps.append("show")

    monkeypatch.setattr(in_use, "hidden", hidden)
    threads = [threading.Thread(target=in_use.alone(int)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)
    assert steps == ["hide", "show"] * 3


def test_the_gpu_of_a_call_is_that_of_its_caller(monkeypatch):
    devices = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    in_use.alone(int)()
    assert devices == [], "CUDA is not begun here"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    in_use.alone(int)()
    assert devices == [3]
