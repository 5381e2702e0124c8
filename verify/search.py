"""One kernel against its checks: the corner table, the models' shapes, then Hypothesis; what fails is reduced."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

import hypothesis
import torch

from verify_norm import corners, shapes, strategies
from verify_norm.checks import CHECKS
from verify_norm.examine import Examined
from verify_norm.gather import NO_JOURNAL, Gathered
from verify_norm.isolate import runner
from verify_norm.journal import Journal
from verify_norm.ops import OPS
from verify_norm.reduce import reduce
from verify_norm.report.model import Report, Settings
from verify_norm.spec import CaseSpec, Finding, Kernel

Progress = Callable[[int, int, int], None]  # cases done, cases planned, findings so far
ELEMENTS = {"cpu": 2**14, "cuda": 2**19}  # of x: Triton's interpreter takes 5 ms a program, a GPU is seldom the limit
REDUCING = 0.2  # share of the time that is kept for making failures small, once there is one
TIMEOUT = {"cpu": 20.0, "cuda": 90.0}  # seconds for one case: on a GPU a first one compiles, among other work
HANGS = 4  # so many, and the run ends
PATIENCE = 10.0  # how many times longer than the slowest case so far one may take, once the kernel has hung
ALONE = "alone, in a new process, the case does not show it: a race, or what the kernel keeps from earlier calls"


class _Over(BaseException):
    """Ends Hypothesis's run, for a reason: not an Exception, so that nothing takes it for a failure."""


def search(
    kernel: Kernel,
    settings: Settings,
    progress: Progress = lambda done, planned, found: None,
    journal: Journal = NO_JOURNAL,
    until: Callable[[Finding], bool] = lambda finding: False,
    first: Iterable[CaseSpec] = (),
) -> Report:
    """Run the checks that `settings` names (all that apply, if none) over corners and random cases; reduce failures.

    The same kernel, settings and versions give the same cases. Ends by itself after `settings.seconds`, or once the
    kernel has hung four times, and reports what there is so far when it is interrupted (Ctrl-C). What `journal` holds
    is not run again. `until` ends the search at the first finding for which it is true, and only such are reported.
    The cases of `first`, a corpus, are run before all others.
    """
    started = time.perf_counter()
    op = OPS[kernel.op]
    state = Gathered(kernel, settings, runner(kernel, settings.device, isolate=settings.isolate), journal)
    for name in settings.checks or CHECKS:
        if not CHECKS[name].applies(op):
            state.skipped[f"check {name}", f"does not apply to {op.name}"] += 1
    dtypes = tuple(dtype for dtype in settings.dtypes if dtype in kernel.dtypes)
    for dtype in set(settings.dtypes) - set(dtypes):
        state.skipped[f"dtype {dtype}", f"{kernel.name} offers {', '.join(kernel.dtypes)}"] += 1

    table = [*(spec for spec in first if spec.dtype in dtypes), *_table(state, dtypes)]
    planned = len(table) + settings.examples
    deadline = started + settings.seconds

    def one(spec: CaseSpec) -> float:
        if state.interrupted:  # and what was raised then was lost on its way
            raise KeyboardInterrupt
        if time.perf_counter() > deadline - settings.seconds * REDUCING * bool(state.findings):
            raise _Over(f"the {settings.seconds:g} s were over")
        if state.hangs >= HANGS:
            raise _Over(f"the kernel had hung {state.hangs} times")
        largest = _try(state, spec if kernel.fit is None else kernel.fit(spec))
        if any(until(finding) for finding in state.findings.values()):
            raise _Over("what was looked for was found")
        progress(state.cases, planned, len(state.findings))
        return largest

    reduced: list[Finding] = []
    try:
        with _interruptible(state):
            try:
                for spec in table:
                    one(spec)
                if dtypes and settings.examples and state.checks:
                    elements = _elements(settings.device)
                    _explore(strategies.specs(op, dtypes, elements, frozen=kernel.autograd), one, settings)
            except _Over as over:
                state.skipped["cases", str(over)] += planned - state.cases
            sought = [finding for finding in state.findings.values() if until(finding)]
            for finding in sought or state.findings.values():
                reduced.append(_reduced(state, finding, deadline, [other.spec for other in reduced]))
    except KeyboardInterrupt:
        state.interrupted = True
        state.skipped["cases", "the run was interrupted"] += planned - state.cases
        reduced += [state.counted(f) for f in list(state.findings.values())[len(reduced) :]]
    finally:
        state.runner.close()
        journal.close(complete=not state.interrupted)
    return state.report(reduced, time.perf_counter() - started)


@contextmanager
def _interruptible(state: Gathered) -> Iterator[None]:
    """Let Ctrl-C be remembered, since code that swallows every exception may run when it comes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def remember(number: int, frame: Any) -> None:
        state.interrupted = True
        if frame is None or frame.f_code.co_name != "gc_callback":  # Hypothesis's: Python prints what such a one raises
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def replay(kernel: Kernel, spec: CaseSpec, settings: Settings) -> Report:
    """Run the checks on one case, and reduce nothing. Raises ValueError where the spec is not one of the operator."""
    started = time.perf_counter()
    state = Gathered(kernel, settings, runner(kernel, settings.device, isolate=settings.isolate))
    try:
        _try(state, spec)
    finally:
        state.runner.close()
    return state.report(state.findings.values(), time.perf_counter() - started)


def _table(state: Gathered, dtypes: tuple[str, ...]) -> list[CaseSpec]:
    """What is run before anything is drawn."""
    op, settings = OPS[state.kernel.op], state.settings
    gpu = settings.device != "cpu"
    corner = corners.corners(op, dtypes, frozen=state.kernel.autograd, gpu=gpu) if dtypes else []
    table = corner if settings.shapes != "models" else []
    if settings.shapes != "fuzz":
        models, left_out = shapes.model_cases(op, full=gpu, dtypes=dtypes)
        table += models
        for name in left_out:
            state.skipped[f"model {name}", "one of its groups is too large for a CPU"] += 1
    return table


def _timeout(settings: Settings) -> float:
    return settings.timeout or TIMEOUT[torch.device(settings.device).type]


def _elements(device: str) -> int:
    return ELEMENTS[torch.device(device).type]


def _explore(strategy: Any, one: Callable[[CaseSpec], float], settings: Settings) -> None:
    """Let Hypothesis draw cases and steer towards the largest error/bound; `one` raises when the time is over."""

    @hypothesis.seed(settings.seed)
    @hypothesis.settings(
        max_examples=settings.examples,
        database=None,
        deadline=None,
        derandomize=False,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.target),
        suppress_health_check=list(hypothesis.HealthCheck),
        verbosity=hypothesis.Verbosity.quiet,
    )
    @hypothesis.given(strategy)
    def attempt(spec: CaseSpec) -> None:
        hypothesis.target(min(one(spec), 1e6), label="error/bound")

    with strategies.whatever_is_imported():
        attempt()


def _try(state: Gathered, spec: CaseSpec) -> float:
    """Run one case, enter what it gives, and return its largest error/bound."""
    if spec in state.seen:
        return 0.0
    state.seen.add(spec)
    examined = state.journal.done.get(spec)
    if examined is None:
        examined = _examine(state, spec, state.names(), _timeout(state.settings))
        state.journal.enter(examined)
    state.enter(examined)
    return examined.ratio


def _examine(state: Gathered, spec: CaseSpec, checks: tuple[str, ...], timeout: float) -> Examined:
    longer = max(1.0, prod(spec.shape) / _elements(state.settings.device) / 8)  # models' shapes are far larger
    patience = PATIENCE * state.slowest if state.hangs else timeout
    started = time.perf_counter()
    examined = state.runner.examine(spec, checks, min(timeout, patience) * longer)
    if not examined.hung:
        state.slowest = max(state.slowest, time.perf_counter() - started)
    return examined


def _reduced(state: Gathered, finding: Finding, deadline: float, small: list[CaseSpec]) -> Finding:
    """The same finding on the smallest case that still shows it, in a process that has run nothing else if it can.

    What was small enough for other findings is tried first: one mistake has many faces.
    """
    key = (finding.check, finding.output)
    shown = {finding.spec: finding}

    def fails(spec: CaseSpec) -> bool:
        if time.perf_counter() > deadline:
            return False
        left = max(deadline - time.perf_counter(), 1.0)
        said = _examine(state, spec, (finding.during or finding.check,), min(_timeout(state.settings), left)).findings
        same = [f for f in said if (f.check, f.output) == key]
        shown[spec] = same[0] if same else finding
        return bool(same)

    start = next((spec for spec in dict.fromkeys(small) if fails(spec)), finding.spec)
    smallest = reduce(start, OPS[state.kernel.op], fails)
    for spec in dict.fromkeys((smallest, finding.spec)):
        if not state.runner.fresh() or fails(spec) or time.perf_counter() > deadline:
            return state.counted(shown[spec])
    return state.counted(replace(finding, message=f"{finding.message}; {ALONE}"))
