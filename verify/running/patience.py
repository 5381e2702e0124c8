"""How long a call of a kernel may take before it counts as hung, from how long its calls have taken so far.

The first call of a process, and of each type in it, may build: nvcc, torch.utils.cpp_extension and autotuning take
minutes, and no earlier call tells how many. So a run starts with the smallest case of each type. Once these have
returned, later builds, also for other shapes, are expected to take about as long: a call that takes much longer has
hung. A call in which a known compiler still runs has not hung: it gets BUILD seconds more.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any

from verify_norm.core.spec import CaseSpec
from verify_norm.running.stacks import NOWHERE, Stack

TIMEOUT = {"cpu": 20.0, "cuda": 90.0}  # seconds for one case: on a GPU most new shapes compile
USUAL = {"cpu": 2**17, "cuda": 2**22}  # elements of x: a case with more of them has proportionally more time
BUILD = {"cpu": 120.0, "cuda": 300.0}  # seconds more for a call that may build, before one has shown how long it takes
LIKE = 3.0  # a build may take this many times as long as the slowest one so far
# Once the kernel has hung, a call may take AFTER times as long as the slowest one so far, counted as at least QUICK
# seconds, and in any case the share PART of its time limit.
AFTER, QUICK, PART = 10.0, 0.2, 0.2
MORE = 3.0  # a message proposes a time limit longer by this factor


def kind(device: str) -> str:
    """Return the kind of a device, as it is named in tables of limits.

    >>> kind("cuda:0")
    'cuda'
    """
    return device.partition(":")[0]


def of_case(timeout: float | None, device: str, elements: int) -> float:
    """Return the seconds that a case with `elements` elements may take; `timeout` is the limit of the user, if any."""
    usual = timeout or TIMEOUT[kind(device)]
    return usual * max(1.0, elements / USUAL[kind(device)])


def types(spec: CaseSpec) -> str:
    """Return the types for which a kernel is compiled in a case."""
    others = [spec.other_dtype] if spec.other_dtype else []
    residual = [f"residual {spec.residual_dtype}"] if spec.residual_dtype else []
    return ", ".join([spec.dtype, spec.weight_dtype or spec.dtype, *others, *residual])


class LostError(Exception):
    """The process of a kernel ended, or did not return in time (`hung`); the message says how.

    `measured` says how long the calls took that did return. Two kinds say nothing about the kernel: `late`, the call
    had less time than it may take, because no more was left; `compiling`, a compiler was still running.
    """

    def __init__(
        self, message: str, *, hung: bool = False, measured: str = "", late: bool = False, compiling: bool = False
    ) -> None:
        super().__init__(message)
        self.hung, self.measured, self.late, self.compiling = hung, measured, late, compiling


@dataclass(frozen=True, slots=True)
class Time:
    """The time of a call: the seconds that it may take without a build, and those that are `left` in any case.

    A call may build as long as none of the same `types` in its process has returned a result for which `ran` is true.
    After Ctrl-C one that `ends` returns what it has by then; any other is lost.
    """

    seconds: float
    types: str = ""
    ran: Callable[[Any], bool] = bool
    left: float = inf
    ends: bool = False


@dataclass(slots=True)
class Known:
    """What the calls of a kernel have taken, in any process.

    `built` has for each type the seconds of the slowest first call in a process, `slowest` is the time of the slowest
    other call. `hung` says whether one has hung.
    """

    built: dict[str, float] = field(default_factory=dict)
    slowest: float = 0.0
    hung: bool = False


@dataclass(slots=True)
class Patience:
    """How long the next call of a kernel may take in one place, where processes come and go, one at a time.

    `met` names the types that have been called in its process; what is `known` of calls, several places may share.
    """

    device: str
    known: Known = field(default_factory=Known)
    met: set[str] = field(default_factory=set)

    def limit(self, time: Time) -> float:
        """Return the seconds that the next call may take.

        >>> patience, time = Patience("cpu"), Time(20.0, "float32")
        >>> patience.limit(time)  # nothing is known
        140.0
        >>> patience.returned(time, 25.0, "a result")
        >>> patience.limit(time)  # another shape
        75.0
        """
        return min(self._allowed(time), time.left)

    def _allowed(self, time: Time) -> float:
        known, usual = self.known, time.seconds
        if known.hung:
            usual = min(usual, max(PART * usual, AFTER * max(known.slowest, QUICK)))
        build = LIKE * max(known.built.values(), default=0.0)
        if time.types in self.met:
            return max(usual, build)
        if time.types not in known.built:
            build = max(build, BUILD[kind(self.device)])
        return usual + build

    def returned(self, time: Time, seconds: float, result: object) -> None:
        """Note that a call returned after so many seconds, if the result says that the kernel ran."""
        if not time.ran(result):
            return
        if time.types in self.met:
            self.known.slowest = max(self.known.slowest, seconds)
        else:
            self.met.add(time.types)
            self.known.built[time.types] = max(self.known.built.get(time.types, 0.0), seconds)

    def restart(self, *, hung: bool = False) -> None:
        """Note that the next call is the first one of another process, perhaps because the last one has hung."""
        self.met.clear()
        self.known.hung = self.known.hung or hung

    def longest(self, time: Time) -> float:
        """Return the seconds that the next call may take if it compiles, which is no hang."""
        return min(self._allowed(time) + BUILD[kind(self.device)], time.left)

    def lost(self, time: Time, stack: Stack = NOWHERE) -> LostError:
        """Return the error of a call that did not return in its time; `stack` says where it was then."""
        limit, late = self.limit(time), time.left < self._allowed(time)
        if stack.compiles:
            message = f"it was still compiling after {self.longest(time):.3g} s"
            return LostError(message, hung=True, late=late, compiling=True)
        took = max((self.known.slowest, *self.known.built.values()))
        so_far = f"the slowest case so far took {took:.2g} s" if took else "no case has returned so far"
        first = ""
        if time.types not in self.met:
            first = f", the first of {time.types} in its process, which may build"
        measured = f"{first}; {so_far}; --timeout {MORE * limit:.0f} allows more"
        message = f"it did not return after {limit:.3g} s{stack.words}"
        return LostError(message, hung=True, measured=measured, late=late)
