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

    So it has also those that a gradient takes, in whatever thread autograd runs it. Out of sight are threads and
    processes of the kernel, code by torch.compile, replays of a CUDA graph, and what an operator calls that is not
    torch's own. Four operators in a row that make up aten::rms_norm count as it where one Python instruction runs all
    of them: only code in C++ or TorchScript with the same four is mistaken for it.
    """

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._places: list[object] = []  # of the steps of rms_norm so far

    def enter(self, operator: Any) -> None:
        """Enter an operator that has run."""
        name = _told(operator)
        if name in RMS_NORM:
            self._step(RMS_NORM.index(name))
        elif name:
            self._names.add(name)

    def _step(self, number: int) -> None:
        """Enter a step of rms_norm; the place in Python is looked up only where it follows the step before."""
        if number and number != len(self._places):
            self._places = []
            return
        place = [(id(frame.f_code), frame.f_lasti) for frame, _ in walk_stack(sys._getframe(2))]
        self._places = [*self._places[:number], place]
        if self._places == [place] * len(RMS_NORM):
            self._names.add("aten::rms_norm")

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of those that ran, in order of the alphabet."""
        return tuple(sorted(self._names))


@cache
def _told(operator: Any) -> str:
    """Return an operator's name, such as aten::native_layer_norm; that of a step of rms_norm; "" of any other."""
    name = str(operator)
    norm = NORM.match(name)
    return f"aten::{norm[1]}" if norm else name * (name in RMS_NORM)
