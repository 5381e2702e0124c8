"""How fast a kernel is, by the clock of the judge, in calls whose outputs it judges.

Each call has inputs of its own, which the kernel has not seen. Kernel, baseline and an echo take turns: the echo
computes nothing, and shows how long the way to another process and back takes.
"""

import time
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any

from verify_norm.cases import make
from verify_norm.core import geometry
from verify_norm.core.errors import UsageError
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.running.clock import Clock
from verify_norm.running.execute import execute
from verify_norm.running.patience import LostError, Time
from verify_norm.running.runners import Runner, runner
from verify_norm.search.request import request

CALLS, FEWEST = 9, 3  # timed calls of each kernel, at most and at least
GROUPS = 8  # of a timed GroupNorm
SHAPES = {
    "cpu": {"rows": (256, 1024), "groups": (16, 64, 256), "channels": (16, 64, 16, 16)},
    "cuda": {"rows": (4096, 4096), "groups": (64, 256, 1024), "channels": (64, 256, 32, 32)},
}
ECHO = f"{__package__}.shims:echo"


class TimedWrongError(Exception):
    """An output of a timed call of the kernel is wrong; the message says which."""


def speedup(kernel: Kernel, against: str, settings: Settings, shape: Any, seconds: float) -> float | None:
    """Return the time of the baseline over that of the kernel; None where either is lost in the noise of the channel.

    Raises TimedWrongError where an output of a timed call is wrong, and UsageError where one of the baseline is.
    """
    spec = _timed_case(kernel, settings, shape)
    given = {"device": settings.device, "untrusted": settings.untrusted, "dtypes": (spec.dtype,)}
    kernels = [kernel, *(request(name, given, op=kernel.op).only() for name in (against, ECHO))]
    took: list[list[float]] = [[] for _ in kernels]
    deadline = time.monotonic() + seconds
    with ExitStack() as stack:
        places = [runner(k, settings.device, isolate=True, untrusted=settings.untrusted) for k in kernels]
        for place in places:
            stack.callback(place.close)
        for number in range(CALLS + 1):
            if number > FEWEST and time.monotonic() > deadline:
                break
            fresh = replace(spec, seed=(settings.seed + number + 1) % 2**64)
            calls = [_call(place, fresh, seconds) for place in places]
            (_, wrong), (_, baseline_wrong), _ = calls
            if wrong:
                raise TimedWrongError(wrong)
            if baseline_wrong:
                raise UsageError(f"baseline: {against} is wrong: {baseline_wrong}")
            if number == 0:  # the first call builds
                continue
            for times, (taken, _) in zip(took, calls, strict=True):
                times.append(taken)
    return _ratio(*took)


def _timed_case(kernel: Kernel, settings: Settings, shape: Any) -> CaseSpec:
    """Return the case of the timed calls; raises UsageError if the kernel does not take it."""
    op = OPS[kernel.op]
    usual = tuple(shape or SHAPES[settings.device.partition(":")[0]][op.view])
    groups = GROUPS if "num_groups" in op.attrs else None
    spec = CaseSpec(usual, settings.dtypes[-1], num_groups=groups, x_layout="own", further=())
    refused = geometry.refusal(spec, op)
    if refused is None:
        spec = kernel.fitted(spec)
        refused = kernel.refuses(spec)
    if refused is not None:
        raise UsageError(f"shape: {usual} is no case of the kernel: {refused}")
    return spec


def _call(place: Runner, spec: CaseSpec, seconds: float) -> tuple[float, str]:
    """Return `timed_call` in the place of a kernel; a call that is lost is wrong."""
    try:
        return place.call(timed_call, Time(seconds), spec, place.device)
    except LostError as error:
        return 0.0, str(error)


def timed_call(kernel: Kernel, spec: CaseSpec, device: str) -> tuple[float, str]:
    """Return the seconds of one call, by the clock of this process, and what is wrong with its outputs, or ""."""
    clock, case = Clock(), make.case(spec, OPS[kernel.op], kernel.contract, device)
    ran = execute(replace(kernel, run=clock.around(kernel.run, device)), case, nullcontext())
    if ran.problem is not None:
        return clock.seconds, ran.problem
    for name, output in ran.outputs.items():
        if case.expected[name] is None or output is None:
            continue
        if output.ratio is None or output.ratio.max(initial=0.0) > 1:
            return clock.seconds, f"{name} is beyond its error bound, or of another shape"
    return clock.seconds, ""


def _ratio(kernel: list[float], baseline: list[float], way: list[float]) -> float | None:
    """Return the ratio of the least times, without the way; None where one is lost in how much that varies.

    All times are in seconds; `way` has those of the echo.
    """
    shortest, second, *_ = sorted(way)
    noise = second - shortest
    of_kernel, of_baseline = min(kernel) - shortest, min(baseline) - shortest
    return of_baseline / of_kernel if min(of_kernel, of_baseline) > noise else None
