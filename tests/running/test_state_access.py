"""Each part of a process's state is read as it is, and put back as it was."""

import ctypes
import decimal
import os
import platform
import signal
import threading
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import BaseTorchFunctionMode

from verify_norm.running import state_access as access

UPWARD = 0x800 if platform.machine() == "x86_64" else 0x400000  # of fenv.h


def test_an_attribute():
    owner = SimpleNamespace(level=3)
    read, restore = access.attribute(owner, "level")
    assert read() == 3
    restore(5)
    assert owner.level == 5


def test_a_list_or_mapping_gets_its_values_back_in_place():
    listed, mapped = [1, 2], {"a": 1}
    owner = SimpleNamespace(listed=listed)
    read, restore = access.list_contents(owner, "listed")
    before = read()
    listed += [3]
    assert before == [1, 2], "a copy"
    restore(before)
    access.refill(mapped, {"b": 2})
    assert (listed, mapped) == ([1, 2], {"b": 2})
    assert owner.listed is listed


def test_filters_of_warnings_are_heard_of_at_once(monkeypatch):
    told = []
    monkeypatch.setattr(warnings, "_filters_mutated", lambda: told.append(warnings.filters[:]))
    monkeypatch.setattr(warnings, "filters", [1])
    access.set_warning_filters([2, 3])
    assert told == [[2, 3]]


def test_the_default_device_is_the_cpu_where_torch_cannot_tell(monkeypatch):
    def unknown():
        raise AttributeError("'NoneType' object has no attribute 'device'")

    monkeypatch.setattr(torch, "get_default_device", lambda: torch.device("meta"))
    assert access.default_device() == torch.device("meta")
    monkeypatch.setattr(torch, "get_default_device", unknown)
    assert access.default_device() == torch.device("cpu")


def test_variables_are_read_anew_where_they_change(monkeypatch):
    monkeypatch.setenv("VERIFY_NORM_STATE", "1")
    before = access.environment_variables()
    assert before == dict(os.environ)
    assert access.environment_variables() is before
    monkeypatch.setenv("VERIFY_NORM_STATE", "2")
    assert access.environment_variables() == dict(os.environ)
    assert before["VERIFY_NORM_STATE"] == "1"
    monkeypatch.setattr(os, "environ", {"A": "1"})  # put in its place by a test of the user
    assert access.environment_variables() == {"A": "1"}


@pytest.fixture
def handled():
    """A signal that has a handler of its own for a while."""
    before = signal.signal(signal.SIGUSR2, print)
    yield signal.SIGUSR2
    signal.signal(signal.SIGUSR2, before)


def test_handlers_of_signals_are_read_and_set(handled):
    before = access.signal_handlers()
    assert before["SIGUSR2"] is print
    assert before == {access.SIGNALS[number]: signal.getsignal(number) for number in signal.valid_signals()}
    assert before["SIGKILL"] is signal.SIG_DFL, "as signal.getsignal tells it"
    for other in (max, signal.SIG_IGN):
        signal.signal(handled, other)
        access.set_signal_handlers(before)
        assert signal.getsignal(handled) is print


def test_handlers_that_cannot_be_set_stay(handled):
    access.set_signal_handlers(
        {**access.signal_handlers(), "SIGUSR2": None, "SIGKILL": max}
    )  # set by another language, and by nobody
    assert signal.getsignal(handled) is print
    problems = []

    def elsewhere():
        try:
            access.set_signal_handlers({**access.signal_handlers(), "SIGUSR2": max})
        except ValueError as error:
            problems.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert problems == []
    assert signal.getsignal(handled) is print


def test_a_handler_that_is_the_same_is_not_set(handled, monkeypatch):
    set_to = []
    before = access.signal_handlers()
    monkeypatch.setattr(signal, "signal", lambda number, handler: set_to.append((number, handler)))
    access.set_signal_handlers(before)
    access.set_signal_handlers({**before, "SIGUSR2": max})
    assert set_to == [(signal.SIGUSR2, max)]


def test_timers_that_were_not_set_are_stopped():
    signal.setitimer(signal.ITIMER_PROF, 0.9)  # of the processor's time
    try:
        assert access.running_timers() == ("ITIMER_PROF",)
        access.stop_other_timers(("ITIMER_PROF",))
        assert access.running_timers() == ("ITIMER_PROF",)
        signal.setitimer(signal.ITIMER_VIRTUAL, 1000.0)
        access.stop_other_timers(("ITIMER_PROF",))
        assert access.running_timers() == ("ITIMER_PROF",)
        access.stop_other_timers(())
        assert access.running_timers() == ()
    finally:
        for timer in access.TIMERS.values():
            signal.setitimer(timer, 0)


def test_the_processors_of_this_thread(monkeypatch):
    allowed, given = {7, 3}, []
    monkeypatch.setattr(os, "sched_getaffinity", {0: allowed}.__getitem__, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *these: given.append(these), raising=False)
    ((name, (read, restore)),) = access.affinity().items()
    assert name == "os.sched_getaffinity(0)"
    assert read() == [3, 7]
    restore([3])
    assert given == [(0, [3])]
    monkeypatch.delattr(os, "sched_setaffinity")
    assert access.affinity() == {}


def test_the_context_of_decimal_numbers():
    with decimal.localcontext(decimal.Context(7, decimal.ROUND_UP, -5, 50, 0, 1)):
        found = access.decimal_context()
    assert found == {"prec": 7, "rounding": decimal.ROUND_UP, "Emin": -5, "Emax": 50, "capitals": 0, "clamp": 1}
    with decimal.localcontext():
        decimal.setcontext(decimal.Context(**found))
        assert access.decimal_context() == found


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the number of a direction is another")
def test_rounding_to_nearest(monkeypatch):
    library = ctypes.CDLL(None)
    if library.fesetround(UPWARD):
        pytest.skip("this processor has no other rounding")
    upward = access.rounds_to_nearest()
    library.fesetround(0)
    assert upward is False
    assert access.rounds_to_nearest() is True
    set_to = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(fesetround=set_to.append))
    access.round_to_nearest(True)
    assert set_to == [0]
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())  # it stays as it is
    access.round_to_nearest(True)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: os.stat("/none/such"))  # there is no library
    access.round_to_nearest(True)


def test_each_rounding_of_a_processor_is_told_from_the_one_to_nearest(monkeypatch):
    """Up, 1 + 2⁻⁶⁰ is not 1; down and to zero, 1 − 2⁻⁶⁰ is not."""

    class Rounded(float):
        def __add__(self, other):
            return 1 + (way[0] == "up")

        def __sub__(self, other):
            return 1 - (way[0] == "down")

    way = [""]
    monkeypatch.setattr(access, "ONE", Rounded(1))
    for way[0], nearest in (("nearest", True), ("up", False), ("down", False)):
        assert access.rounds_to_nearest() is nearest


def test_hooks_of_saved_tensors_are_taken_away(monkeypatch):
    if not access.saved_tensor_hooks():
        pytest.skip("this torch does not tell them")
    ((read, unhook),) = access.saved_tensor_hooks().values()
    assert read() is None
    with saved_tensors_hooks(abs, abs):
        before = read()
        for _ in range(2):
            torch._C._autograd._push_saved_tensors_default_hooks(repr, repr)
        unhook(before)
        assert read() == before == (abs, abs)
    torch._C._autograd._push_saved_tensors_default_hooks(repr, repr)
    unhook(None)
    assert read() is None


def test_hooks_of_saved_tensors_are_read_even_where_they_are_off(monkeypatch):
    """As of a torch that tells them: each is a pair on a stack, and without True it tells none that are off."""
    stack = [(abs, abs), (repr, repr), (repr, repr)]
    told = SimpleNamespace(
        _top_saved_tensors_default_hooks=lambda off: stack[-1] if off and stack else None,
        _pop_saved_tensors_default_hooks=stack.pop,
    )
    monkeypatch.setattr(torch._C, "_autograd", told)
    ((name, (read, unhook)),) = access.saved_tensor_hooks().items()
    assert "saved tensors" in name
    assert read() == (repr, repr)
    unhook((abs, abs))
    assert stack == [(abs, abs)]
    unhook(None)
    assert read() is None
    monkeypatch.setattr(torch._C, "_autograd", SimpleNamespace())
    assert access.saved_tensor_hooks() == {}


def test_inference_mode_is_that_of_a_thread():
    found = []

    def inside():
        for on in (True, False):
            access.set_inference_mode(on)
            found.append(torch.is_inference_mode_enabled())

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert found == [True, False]
    assert not torch.is_inference_mode_enabled()


def test_switches_are_the_flags_that_are_true_or_false(monkeypatch):
    def refused():
        raise RuntimeError("no such device")

    reads = {"takes_one": lambda one: True, "refused": refused, "number": lambda: 3, "on": lambda: True}
    for name, read in reads.items():
        monkeypatch.setattr(torch._C, f"_get_{name}", read, raising=False)
        monkeypatch.setattr(torch._C, f"_set_{name}", name, raising=False)
    monkeypatch.setattr(access, "UNNAMED_FLAGS", list(reads))
    assert access.boolean_flags() == {"torch._C._get_on()": (reads["on"], "on")}


def test_global_hooks_of_modules_are_put_back():
    before = access.module_hooks()
    assert before.keys() == set(access.MODULE_HOOKS)
    handle = register_module_forward_hook(lambda *_: None)
    now = access.module_hooks()
    assert now != before
    access.set_module_hooks(before)
    assert access.module_hooks() == before
    handle.remove()
    assert now != before, "copies"


def test_a_default_device_is_no_function_mode():
    with BaseTorchFunctionMode(), torch.device("cpu"), BaseTorchFunctionMode():
        assert access.function_modes() == 2
    assert access.function_modes() == 0


def test_what_is_on_a_stack_is_taken_away_down_to_what_was_there():
    stack = [1, 2, 3, 4]
    depth, restore = access.stack_depth(stack.__len__, stack.pop)
    assert depth() == 4
    restore(2)
    restore(2)
    assert stack == [1, 2]
