"""Whether two kernels return the same bits: the cases, then the sizes, the smallest cases and the arithmetic."""

import time
from collections.abc import Callable

from verify_norm.core.errors import UsageError
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.equality.arithmetic import arithmetic
from verify_norm.equality.model import Arithmetic, Difference, Equality, Onset, Subject
from verify_norm.equality.narrowing import differences, onsets, shown
from verify_norm.equality.walk import SIDES, Walk
from verify_norm.running.environment import environment
from verify_norm.running.runners import runner
from verify_norm.search import PRELOAD
from verify_norm.search.interruption import interruptible
from verify_norm.search.left_out import skips
from verify_norm.search.search import fitting
from verify_norm.search.sweep import Progress


def compare(
    a: Kernel,
    b: Kernel,
    settings: Settings,
    progress: Progress = lambda done, planned, found: None,
    announce: Callable[[str], None] = lambda part: None,
) -> Equality:
    """Return whether two kernels of one operator return the same bits over the corner table and random cases.

    `settings.seconds` are for the cases, the scan of sizes and the reduction; the fingerprints come after them, where
    something differs. Interrupted (Ctrl-C), it returns what it has.
    """
    walk = _walk(a, b, settings, progress)
    found: list[Difference] = []
    sizes: list[Onset] = []
    how: Arithmetic | None = None
    try:
        with interruptible(walk):
            walk.run()
            announce("sizes")
            sizes += onsets(walk)
            found += differences(walk)
            if found:
                announce("fingerprints")
                how = arithmetic(walk, tuple(found))
    except KeyboardInterrupt:
        walk.interrupted = True
        walk.end("the run was interrupted")
        reduced = {one.output for one in found}
        found += [one for one in shown(walk) if one.output not in reduced]
    finally:
        for one in walk.runners:
            one.close()
    return _equality(walk, found, sizes, how)


def replay(a: Kernel, b: Kernel, spec: CaseSpec, settings: Settings) -> Equality:
    """Return the same for one case, and reduce nothing.

    Raises UsageError if the spec does not fit the operator.
    """
    walk = _walk(a, b, settings)
    walk.planned = walk.corners = walk.corners_done = 1
    try:
        with fitting(spec, a.op):
            walk.one(spec)
            found = list(shown(walk))
    finally:
        for one in walk.runners:
            one.close()
    return _equality(walk, found, [], None)


def pair(first: tuple[Kernel, ...], second: tuple[Kernel, ...], *, single: bool = False) -> list[tuple[Kernel, Kernel]]:
    """Return the kernels of each operator that both have.

    Raises UsageError if there is none, or several where a `single` one is needed.
    """
    by_op = {kernel.op: kernel for kernel in second}
    both = [(kernel, by_op[kernel.op]) for kernel in first if kernel.op in by_op]
    if not both:
        one, other = (" and ".join(kernel.op for kernel in some) for some in (first, second))
        got = f"{first[0].name} for {one} and {second[0].name} for {other}"
        raise UsageError(f"expected two kernels of one operator, got {got}")
    if single and len(both) > 1:
        raise UsageError(f"both have two directions: choose the op {' or '.join(one.op for one, _ in both)}")
    return both


def _walk(a: Kernel, b: Kernel, settings: Settings, progress: Progress = lambda done, planned, found: None) -> Walk:
    """Return a walk that has not begun, with a process for each kernel."""
    first, second = (runner(one, settings.device, isolate=settings.isolate, preload=PRELOAD) for one in (a, b))
    return Walk(OPS[a.op], settings, (first, second), progress)


def _equality(walk: Walk, found: list[Difference], sizes: list[Onset], how: Arithmetic | None) -> Equality:
    """Return the result; outputs in which a kernel differs from itself are among its differences no more."""
    a, b = (Subject(one.name, one.target, one.backend, one.contract, one.bind) for one in walk.kernels)
    notes = {f"isolation of {side}": runner.note for side, runner in zip(SIDES, walk.runners, strict=True)}
    moving = {one.gap.output for one in walk.unstable.values()}
    return Equality(
        a,
        b,
        walk.op.name,
        walk.settings,
        environment(walk.settings.device) | notes,
        cases=walk.cases,
        seconds=time.perf_counter() - walk.started,
        tallies=walk.tallies(),
        differences=tuple(one for one in found if one.output not in moving),
        unstable=tuple(walk.unstable.values()),
        onsets=tuple(one for one in sizes if one.output not in moving),
        arithmetic=how,
        skipped=tuple(skips(walk.skipped, walk.too_slow)),
        coverage=walk.coverage(),
        interrupted=walk.interrupted,
    )
