"""A judge's side of a call by proxy, with a scripted worker: what it asks, what it believes, and how long it waits."""

from dataclasses import replace

import pytest
import torch

from verify_norm.core.run import Damage
from verify_norm.core.spec import CaseSpec, Kernel
from verify_norm.loading import modules
from verify_norm.running.execute import POISON
from verify_norm.running.patience import LostError, Time
from verify_norm.running.untrusted import runner as module
from verify_norm.running.untrusted import wire
from verify_norm.running.untrusted.arena import Arena, Slot
from verify_norm.running.untrusted.runner import Stand, Untrusted

SPEC = CaseSpec((2, 4))
SAID = wire.Notes(
    effects=("it seeds",),
    otherwise=("tl.dot",),
    operators=("aten::rms_norm",),
    limits=("size", "a lie"),
    overlaps=(("y", "x"), ("a lie", "x")),
    damage=(
        ("x", "in", 4, 0, None),
        ("y", "after", 2, 0, "y"),
        ("y", "a lie", 2, 0, "y"),
        ("z", "between", 1, 1, "lie"),
    ),
)


class Worker:
    """Answers with y = x, which it doubles in place, and notes what it is asked."""

    number = 7

    def __init__(self, notes=SAID, seconds=1.0):
        self.arena, self.asked, self.notes, self.now, self.seconds, self.ended = Arena(), [], notes, 0.0, seconds, 0

    def ask(self, what, left, *, most, names, **asked):
        self.asked.append({"what": what, "left": left, "most": most, "names": names, **asked})
        self.now += self.seconds
        if self.now > 3.5:
            raise LostError("it did not answer", hung=True)
        if what == "again":
            return wire.Answer({code: wire.Raw("float32", (2, 4), bytearray(32)) for code in range(len(names))})
        x = self.arena.tensor(Slot(**asked["slots"]["x"]))
        x.mul_(2)
        return wire.Answer({0: wire.Raw("float32", (2, 4), bytearray(x.numpy().tobytes()))}, self.notes)

    def end(self):
        self.ended += 1


@pytest.fixture
def judge(monkeypatch):
    """A runner whose worker is scripted, and the worker."""
    worker = Worker()
    monkeypatch.setattr(module.sandbox, "undumpable", lambda: lambda: None)
    monkeypatch.setattr(module.time, "monotonic", lambda: worker.now)
    kernel = Kernel("k", "rmsnorm_fwd", run=Stand(0, "rmsnorm_fwd", ("x", "eps"), {}))
    made = Untrusted(kernel, "cpu")
    made._worker = worker
    return made, worker


def call(kernel, *, x=None):
    return kernel.run(x=torch.ones(2, 4) if x is None else x, eps=1e-5)


def test_a_call_comes_back_with_what_is_believed_of_it(judge):
    """The arguments as the kernel has left them; of what it says, only what a call can have."""
    made, worker = judge
    x = torch.ones(2, 4)
    token = POISON.set(4096.0)
    try:
        called = made.call(lambda kernel: call(kernel, x=x), Time(10.0))
    finally:
        POISON.reset(token)
    assert (x == 2).all()
    assert called.outputs.keys() == {"y"}
    assert (called.outputs["y"] == 2).all()
    assert (called.effects, called.otherwise, called.operators) == (SAID.effects, SAID.otherwise, SAID.operators)
    assert (called.limits, called.overlaps) == (("size",), (("y", "x"),))
    assert called.damage == (Damage("x", "in", 4, 0), Damage("y", "after", 2, 0, "y"), Damage("z", "between", 1, 1))
    (asked,) = worker.asked
    assert (asked["kernel"], asked["values"], asked["poison"], asked["new_case"]) == (0, {"eps": 1e-5}, 4096.0, True)
    assert asked["names"] == ["y", "rstd"]
    assert asked["most"] == wire.allowed(32)


def test_the_state_of_torch_goes_along(judge):
    made, worker = judge
    states = {
        "grad": torch.no_grad(),
        "inference": torch.inference_mode(),
        "autocast": torch.autocast("cpu", torch.bfloat16),
        "evaluating": modules.evaluating(),
    }
    usual = {"grad": True, "inference": False, "autocast": {}, "evaluating": False}
    there = {"grad": False, "inference": True, "autocast": {"cpu": "bfloat16"}, "evaluating": True}
    for name, state in states.items():
        worker.now, worker.asked = 0.0, []
        with state:
            made.call(call, Time(10.0))
        (asked,) = worker.asked
        also = {"grad": False} if name == "inference" else {}
        assert {key: asked[key] for key in usual} == usual | {name: there[name]} | also


def test_calls_of_one_case_share_its_time(judge):
    made, worker = judge
    limit = made._patience.limit(Time(10.0))

    def thrice(kernel):
        return [call(kernel) for _ in range(3)]

    made.call(thrice, Time(10.0))
    assert [asked["left"] for asked in worker.asked] == [limit, limit - 1, limit - 2]
    assert [asked["new_case"] for asked in worker.asked] == [True, False, False]
    with pytest.raises(LostError, match="it did not return after") as lost:
        made.call(call, Time(10.0))
    assert lost.value.hung
    assert worker.ended == 1


def test_a_refusal_is_a_problem_where_the_kernel_makes_no_gradients_by_autograd():
    for autograd in (True, False):
        called = module._called(replace(SAID, problem="no", refused=True), {}, ("y",), autograd=autograd)
        assert (called.problem, called.refused) == ("no", autograd)


def test_outputs_are_read_again_from_the_call_that_made_them(judge):
    made, worker = judge

    def later(kernel):
        returned = call(kernel).outputs
        return returned, kernel.later(returned), kernel.later({"y": torch.ones(2, 4)})

    returned, now, others = made.call(later, Time(10.0))
    assert (returned["y"] == 2).all()
    assert (now["y"] == 0).all()
    assert (others["y"] == 1).all(), "no call has returned it"
    assert [asked["what"] for asked in worker.asked] == ["call", "again"]
    assert worker.asked[1]["call"] == Worker.number
