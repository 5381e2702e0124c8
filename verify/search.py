"""One kernel against its checks: the corner table, the models' shapes, then Hypothesis; what fails is reduced."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import hypothesis
import numpy as np
import torch

from verify_norm import corners, shapes, strategies
from verify_norm.checks import CHECKS, Check
from verify_norm.dtypes import FORMATS
from verify_norm.environment import environment
from verify_norm.examine import Examined
from verify_norm.isolate import InProcess, Isolated, runner
from verify_norm.journal import Journal
from verify_norm.ops import OPS
from verify_norm.reduce import reduce
from verify_norm.report.model import CheckResult, Report, Settings, Skip, Tally
from verify_norm.spec import CaseSpec, Finding, Kernel

Progress = Callable[[int, int, int], None]  # cases done, cases planned, findings so far
ELEMENTS = {"cpu": 2**14, "cuda": 2**19}  # of x: Triton's interpreter takes 5 ms a program, a GPU is seldom the limit
REDUCING = 0.2  # share of the time that is kept for making failures small, once there is one
HANGS = 4  # so many, and the run ends
PATIENCE = 10.0  # how many times longer than the slowest case so far one may take, once the kernel has hung
ALONE = "alone, in a new process, the case does not show it: what the kernel keeps from earlier calls matters"
_NO_JOURNAL = Journal(None, resume=False)


class _Over(BaseException):
    """Ends Hypothesis's run, for a reason: not an Exception, so that nothing takes it for a failure."""


@dataclass(slots=True)
class _State:
    """What a run has gathered so far."""

    kernel: Kernel
    settings: Settings
    runner: InProcess | Isolated
    journal: Journal = _NO_JOURNAL
    checks: tuple[Check, ...] = ()
    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)
    findings: dict[tuple[str, str | None], Finding] = field(default_factory=dict)
    looked: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    held: Counter[tuple[str, bool]] = field(default_factory=Counter)
    powers: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failing: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    layouts: Counter[str] = field(default_factory=Counter)
    skipped: Counter[tuple[str, str]] = field(default_factory=Counter)
    seen: set[CaseSpec] = field(default_factory=set)
    cases: int = 0
    hangs: int = 0
    slowest: float = 0.2  # seconds for one case
    seconds: float = 0.0  # inside the kernel
    interrupted: bool = False

    def __post_init__(self) -> None:
        """Choose the checks that apply."""
        wanted = self.settings.checks or CHECKS
        self.checks = tuple(c for name, c in CHECKS.items() if name in wanted and c.applies(OPS[self.kernel.op]))

    def names(self) -> tuple[str, ...]:
        """Of the checks."""
        return tuple(check.name for check in self.checks)


def search(
    kernel: Kernel,
    settings: Settings,
    progress: Progress = lambda done, planned, found: None,
    journal: Journal = _NO_JOURNAL,
) -> Report:
    """Run the checks that `settings` names (all that apply, if none) over corners and random cases; reduce failures.

    The same kernel, settings and versions give the same cases. Ends by itself after `settings.seconds`, or once the
    kernel has hung four times, and reports what there is so far when it is interrupted (Ctrl-C). What `journal` holds
    is not run again.
    """
    started = time.perf_counter()
    op = OPS[kernel.op]
    state = _State(kernel, settings, runner(kernel, settings.device, isolate=settings.isolate), journal)
    for name in settings.checks or CHECKS:
        if not CHECKS[name].applies(op):
            state.skipped[f"check {name}", f"does not apply to {op.name}"] += 1
    dtypes = tuple(dtype for dtype in settings.dtypes if dtype in kernel.dtypes)
    for dtype in set(settings.dtypes) - set(dtypes):
        state.skipped[f"dtype {dtype}", f"{kernel.name} offers {', '.join(kernel.dtypes)}"] += 1

    table = _table(state, dtypes)
    planned = len(table) + settings.examples
    deadline = started + settings.seconds

    def one(spec: CaseSpec) -> float:
        if time.perf_counter() > deadline - settings.seconds * REDUCING * bool(state.findings):
            raise _Over(f"the {settings.seconds:g} s were over")
        if state.hangs >= HANGS:
            raise _Over(f"the kernel had hung {state.hangs} times")
        largest = _try(state, spec)
        progress(state.cases, planned, len(state.findings))
        return largest

    reduced: list[Finding] = []
    try:
        try:
            for spec in table:
                one(spec)
            if dtypes and settings.examples and state.checks:
                _explore(strategies.specs(op, dtypes, _elements(settings.device)), one, settings)
        except _Over as over:
            state.skipped["cases", str(over)] += planned - state.cases
        for finding in state.findings.values():
            reduced.append(_reduced(state, finding, deadline))  # noqa: PERF401 — what is done stays if interrupted
    except KeyboardInterrupt:
        state.interrupted = True
        state.skipped["cases", "the run was interrupted"] += planned - state.cases
        reduced += [_counted(state, f) for f in list(state.findings.values())[len(reduced) :]]
    finally:
        state.runner.close()
        journal.close(complete=not state.interrupted)
    return _report(state, tuple(reduced), time.perf_counter() - started)


def replay(kernel: Kernel, spec: CaseSpec, settings: Settings) -> Report:
    """Run the checks on one case, and reduce nothing. Raises ValueError where the spec is not one of the operator."""
    started = time.perf_counter()
    state = _State(kernel, settings, runner(kernel, settings.device, isolate=settings.isolate))
    try:
        _try(state, spec)
    finally:
        state.runner.close()
    return _report(state, tuple(state.findings.values()), time.perf_counter() - started)


def _table(state: _State, dtypes: tuple[str, ...]) -> list[CaseSpec]:
    """What is run before anything is drawn."""
    op, settings = OPS[state.kernel.op], state.settings
    table = corners.corners(op, dtypes) if dtypes and settings.shapes != "models" else []
    if settings.shapes != "fuzz":
        models, left_out = shapes.model_cases(op, full=settings.device != "cpu", dtypes=dtypes)
        table += models
        for name in left_out:
            state.skipped[f"model {name}", "one of its groups is too large for a CPU"] += 1
    return table


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

    attempt()


def _try(state: _State, spec: CaseSpec) -> float:
    """Run one case, enter what it gives, and return its largest error/bound."""
    if spec in state.seen:
        return 0.0
    state.seen.add(spec)
    examined = state.journal.done.get(spec)
    if examined is None:
        examined = _examine(state, spec, state.names(), state.settings.timeout)
        state.journal.enter(examined)
    _enter(state, examined)
    return examined.ratio


def _examine(state: _State, spec: CaseSpec, checks: tuple[str, ...], timeout: float) -> Examined:
    longer = max(1.0, prod(spec.shape) / _elements(state.settings.device) / 8)  # models' shapes are far larger
    patience = PATIENCE * state.slowest if state.hangs else timeout
    started = time.perf_counter()
    examined = state.runner.examine(spec, checks, min(timeout, patience) * longer)
    if not examined.hung:
        state.slowest = max(state.slowest, time.perf_counter() - started)
    return examined


def _enter(state: _State, examined: Examined) -> None:
    """Add what one case gave."""
    if examined.unsupported is not None:
        state.skipped["cases", examined.unsupported] += 1
        return
    state.cases += 1
    state.hangs += examined.hung
    state.seconds += examined.seconds
    state.looked.update(examined.looked)
    state.layouts.update(examined.layouts)
    state.held.update(examined.observed)
    state.failed.update({finding.check for finding in examined.findings})
    for name in examined.missing:
        state.skipped[f"output {name}", f"{state.kernel.name} does not return it"] += 1
    for name, power in examined.powers:
        state.powers[name].append(power)
    for finding in examined.findings:
        key = (finding.check, finding.output)
        state.failing[key] += 1
        if key not in state.findings or (state.findings[key].during and not finding.during):  # the plainer of two
            state.findings[key] = finding
    for tally in examined.tallies:
        where = (tally.output, tally.dtype)
        old = state.tallies.get(where)
        state.tallies[where] = old.merge(tally) if old else tally


def _reduced(state: _State, finding: Finding, deadline: float) -> Finding:
    """The same finding on the smallest case that still shows it, in a process that has run nothing else if it can."""
    key = (finding.check, finding.output)
    shown = {finding.spec: finding}

    def fails(spec: CaseSpec) -> bool:
        if time.perf_counter() > deadline:
            return False
        left = max(deadline - time.perf_counter(), 1.0)
        said = _examine(state, spec, (finding.during or finding.check,), min(state.settings.timeout, left)).findings
        same = [f for f in said if (f.check, f.output) == key]
        shown[spec] = same[0] if same else finding
        return bool(same)

    smallest = reduce(finding.spec, OPS[state.kernel.op], fails)
    for spec in dict.fromkeys((smallest, finding.spec)):
        if not state.runner.fresh() or fails(spec) or time.perf_counter() > deadline:
            return _counted(state, shown[spec])
    return _counted(state, replace(finding, message=f"{finding.message}; {ALONE}"))


def _counted(state: _State, finding: Finding) -> Finding:
    return replace(finding, cases=state.failing[finding.check, finding.output])


def _report(state: _State, findings: tuple[Finding, ...], seconds: float) -> Report:
    kernel, settings = state.kernel, state.settings
    return Report(
        kernel=kernel.name,
        op=kernel.op,
        target=kernel.target,
        backend=kernel.backend,
        contract=kernel.contract,
        settings=settings,
        environment=environment(settings.device) | {"isolation": state.runner.note},
        cases=state.cases,
        seconds=seconds,
        seconds_in_kernel=state.seconds,
        findings=findings,
        tallies=tuple(sorted(state.tallies.values(), key=lambda t: _position(state, t))),
        checks=tuple(_result(state, check) for check in state.checks),
        skipped=tuple(Skip(what, reason, count) for (what, reason), count in state.skipped.items()),
        layouts=dict(sorted(state.layouts.items())),
        interrupted=state.interrupted,
    )


def _result(state: _State, check: Check) -> CheckResult:
    powers, name = state.powers[check.name], check.name
    power = float(np.median(powers)) if powers else None
    held, broken = state.held[name, True], state.held[name, False]
    return CheckResult(name, check.summary, state.looked[name], state.failed[name], power, held, held + broken)


def _position(state: _State, tally: Tally) -> tuple[int, int]:
    names = [tensor.name for tensor in OPS[state.kernel.op].outputs]
    return names.index(tally.output), list(FORMATS).index(tally.dtype)
