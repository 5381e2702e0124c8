"""Which of torch's own norm operators run inside a kernel, which may fall back to them without saying so."""

import re
import sys
from functools import cache
from traceback import walk_stack
from typing import Any

# aten::native_layer_norm, cudnn_batch_norm_backward, …; weight norms and vector norms are something else
NORM = re.compile(r"aten\.(\w*(?:layer|rms|group|batch|instance)_norm\w*)\.")
# aten::rms_norm where torch has no kernel for it, for example on a CPU: above autograd, out of sight, it becomes these
RMS_NORM = ["aten.pow.Tensor_Scalar", "aten.mean.dim", "aten.add_.Scalar", "aten.rsqrt.default"]


class Operators:
    """Collects the norm operators of torch among those that a TorchDispatchMode sees, which are below autograd.

    The operators of gradients are among them, in whatever thread autograd runs them. It does not see threads and
    processes of the kernel, code by torch.compile, replays of a CUDA graph, and what an operator calls that is not
    torch's own. The four operators in a row that make up aten::rms_norm count as rms_norm where one Python instruction
    runs all of them. Only code in C++ or TorchScript that runs the same four is mistaken for it.
    """

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._places: list[object] = []  # where in Python each step of an rms_norm ran, as far as it has come

    def enter(self, operator: Any) -> None:
        """Enter an operator that has run."""
        name = _norm_or_step(operator)
        if name in RMS_NORM:
            self._step(RMS_NORM.index(name))
        elif name:
            self._names.add(name)

    def _step(self, number: int) -> None:
        """Enter a step of rms_norm; its place in Python is looked up only if the step before it ran last."""
        if number and number != len(self._places):
            self._places = []
            return
        place = [(id(frame.f_code), frame.f_lasti) for frame, _ in walk_stack(sys._getframe(2))]
        self._places = [*self._places[:number], place]
        if self._places == [place] * len(RMS_NORM):
            self._names.add("aten::rms_norm")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the norm operators that ran, sorted."""
        return tuple(sorted(self._names))


@cache
def _norm_or_step(operator: Any) -> str:
    """Return the name of a norm operator, such as aten::native_layer_norm, or of a step of rms_norm; "" for others."""
    name = str(operator)
    norm = NORM.match(name)
    if norm:
        return f"aten::{norm[1]}"
    return name if name in RMS_NORM else ""
