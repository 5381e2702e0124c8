"""A worker's calls of its kernel: with the arguments, the state and the instance that the judge asks for."""

import ctypes
import json
import threading
import warnings
from contextlib import closing
from dataclasses import asdict

import pytest
import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from verify_norm.core.kernel import Kernel
from verify_norm.loading import module_calls
from verify_norm.running.untrusted import worker
from verify_norm.running.untrusted.arena import Arena

STATE = {"inference": False, "grad": True, "autocast": {}, "evaluating": False}


@pytest.fixture
def server():
    """A worker's server, as of a judge; its arena is empty."""
    with closing(Arena()) as arena:
        yield worker._Server(None, arena)


def calling(server, run, given, *, op="rmsnorm_fwd", kernel=None, number=1, **more):
    """Return the outputs and the notes of one call."""
    server.kernels = [None, kernel or Kernel("k", op, run=run)]
    slots = server.arena.slots(given)
    server.arena.write(slots, given)
    values = {name: value for name, value in given.items() if name not in slots}
    asked = {"kernel": 1, "slots": {name: asdict(slot) for name, slot in slots.items()}, "values": values}
    asked |= {"poison": None, "new_case": False, "live": [], "instance": None, "turn": 0, "number": number}
    return server._call(json.loads(json.dumps({**asked, **STATE, **more})))


def test_a_call_gets_the_arguments_as_the_judge_has_them(server):
    """Also on a device with memory of its own, as "cpu:0" counts here: what the kernel writes is copied back."""
    got = {}

    def run(**given):
        got.update(given)
        given["x"].mul_(2)
        return given["x"] + 1

    base = torch.arange(8.0)
    given = {"x": base.as_strided((2, 2), (4, 1), 1), "weight": torch.ones(2, requires_grad=True)}
    for device in ("cpu", "cpu:0"):
        server.device = device
        outputs, notes = calling(server, run, {**given, "bias": None, "normalized_shape": (2,)})
        assert notes["problem"] is None
        assert torch.equal(outputs[0], given["x"] * 2 + 1)
        assert (got["x"].stride(), got["x"].storage_offset(), got["x"].untyped_storage().nbytes()) == ((4, 1), 1, 32)
        assert (got["weight"].requires_grad, got["x"].requires_grad) == (True, False)
        assert server.arena.holds(got["x"].detach()) == (device == "cpu")
        now = server.arena.tensor(server.arena.slots(given)["x"])
        assert torch.equal(now, given["x"] * 2)


def test_an_argument_of_a_device_with_memory_of_its_own_lies_there(server):
    slot = server.arena.slots({"x": torch.ones(4, 3, dtype=torch.float16).t()[1:]})["x"]
    placed = worker._placed(server.arena, slot, "meta")
    assert (placed.is_meta, placed.dtype, placed.shape, placed.stride()) == (True, torch.float16, (2, 4), (1, 3))
    assert (placed.storage_offset(), placed.untyped_storage().nbytes()) == (1, 24)


def test_frozen_inputs_are_told_to_a_kernel_whose_gradients_are_torchs(server):
    got = []
    kernel = Kernel("k", "rmsnorm_bwd", run=lambda dy, frozen: (got.append(frozen), dy)[1], autograd=True)
    calling(server, None, {"dy": torch.ones(2, 4), "frozen": ("x", "weight")}, kernel=kernel)
    calling(server, None, {"dy": torch.ones(2, 4)}, kernel=kernel)
    assert got == [("x", "weight"), ()]


def test_what_the_kernel_allocates_is_poisoned_and_guarded_or_it_runs_as_in_use(server):
    seen = []

    def run(x):
        warnings.warn("no failure", stacklevel=1)
        seen.append((threading.current_thread() is threading.main_thread(), is_in_torch_dispatch_mode()))
        y = torch.empty(2, 4)
        seen.append((y == 4096.0).all().item())
        ctypes.memset(y.data_ptr() + y.nbytes, 1, 4)
        return y

    _, notes = calling(server, run, {"x": torch.ones(2, 4)}, poison=4096.0)
    assert [damage[1] for damage in notes["damage"]] == ["after"], notes
    assert seen == [(True, True), True]
    seen.clear()

    def plain(x):
        seen.append((threading.current_thread() is threading.main_thread(), is_in_torch_dispatch_mode()))
        return x

    _, notes = calling(server, plain, {"x": torch.ones(2, 4)})
    assert seen == [(False, False)]
    assert (notes["damage"], notes["overlaps"]) == ((), (("y", "x"),))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, (True, False, None, False)),
        ({"grad": False}, (False, False, None, False)),
        ({"inference": True, "grad": False}, (False, True, None, False)),
        ({"autocast": {"cpu": "bfloat16"}}, (True, False, torch.bfloat16, False)),
        ({"evaluating": True}, (True, False, None, True)),
    ],
)
@pytest.mark.parametrize("outside", [True, False])
def test_a_call_is_made_in_the_state_that_is_asked_for(changed, expected, outside):
    def state(given):
        used = module_calls.evaluated()
        if used is not None:
            used.append(given)
        cast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), cast, used is not None

    evaluated = []
    with torch.set_grad_enabled(outside):
        assert worker._in_state(state, {**STATE, **changed}, evaluated)(given=1) == expected
        assert torch.is_grad_enabled() == outside
    assert evaluated == [1] * expected[3]
    assert module_calls.evaluated() is None


def test_calls_of_one_case_share_the_instances_that_they_name(server):
    seen = []

    def run(x):
        seen.append(module_calls.current())
        if module_calls.evaluated() is not None:
            module_calls.evaluated().append(None)
        return x * 2

    said = []
    for more in ({}, {"instance": 0, "turn": 2}, {"instance": 0}, {"instance": 1}, {"instance": 0, "new_case": True}):
        _, notes = calling(server, run, {"x": torch.ones(2, 4)}, poison=1.0, evaluating=bool(more), **more)
        said.append(notes["evaluated"])
    assert said == [False] + [True] * 4
    assert [one and one.turn for one in seen] == [None, 2, 2, 0, 0]
    assert seen[1] is seen[2]
    assert len({id(one) for one in seen}) == 4


def test_a_worker_keeps_the_outputs_that_the_judge_still_holds(server):
    """Of one case: those of earlier calls that the judge has released, and of other cases, go; so do arguments."""
    kept = []
    for number, live, new_case in ((1, [], True), (2, [1], False), (3, [2], False), (4, [3], True)):
        calling(server, lambda x: (x * 2, None), {"x": torch.ones(2, 4)}, number=number, live=live, new_case=new_case)
        kept.append(set(server.held))
    assert kept == [{1}, {1, 2}, {2, 3}, {4}]
    outputs, notes = server._again({"call": 4, "outputs": ["rstd", "y"]})
    assert (outputs.keys(), notes) == ({1}, {})
    assert server._again({"call": 1, "outputs": ["y"]}) == ({}, {})
    calling(server, lambda x: x, {"x": torch.ones(2, 4)}, number=5)
    assert server.held[5] == {}
