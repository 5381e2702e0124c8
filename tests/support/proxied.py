"""A runner of an untrusted kernel, with a scripted worker."""

import torch

from verify_norm.core.kernel import Kernel
from verify_norm.running.patience import LostError
from verify_norm.running.untrusted import runner, wire
from verify_norm.running.untrusted.arena import Arena, Slot
from verify_norm.running.untrusted.runner import RemoteFunction, Untrusted

SAID = wire.Notes(
    effects=("it seeds",),
    differs_on_gpu=("tl.dot",),
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

    lacking = ("no Landlock\n",)

    def __init__(self):
        self.arena, self.asked, self.notes, self.now, self.seconds, self.ended = Arena(), [], SAID, 0.0, 1.0, 0
        self.number = 6

    def ask(self, what, left, *, most, names, **asked):
        self.asked.append({"what": what, "left": left, "most": most, "names": names, **asked})
        self.now += self.seconds
        self.number += 1
        if self.now > 3.5:
            raise LostError("it did not answer", hung=True)
        if what == "again":
            return wire.Answer({code: wire.Raw("float32", (2, 4), bytearray(32)) for code in range(len(names))})
        x = self.arena.tensor(Slot(**asked["slots"]["x"]))
        x.mul_(2)
        return wire.Answer({0: wire.Raw("float32", (2, 4), bytearray(x.numpy().tobytes()))}, self.notes)

    def end(self):
        self.ended += 1


def call(kernel, *, x=None):
    return kernel.run(x=torch.ones(2, 4) if x is None else x, eps=1e-5)


def proxied(monkeypatch):
    """Return a runner whose worker is scripted, and the worker."""
    worker = Worker()
    monkeypatch.setattr(runner.sandbox, "undumpable", lambda: lambda: None)
    monkeypatch.setattr(runner.time, "monotonic", lambda: worker.now)
    kernel = Kernel("k", "rmsnorm_fwd", bind="x=a", run=RemoteFunction(0, "rmsnorm_fwd", ("x", "eps"), {"target": "k"}))
    made = Untrusted(kernel, "cpu")
    made._worker = worker
    return made, worker
