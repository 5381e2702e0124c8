"""One kernel against its checks: the corner table, the models' shapes, then Hypothesis; what fails is reduced."""

from __future__ import annotations

import platform
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import hypothesis
import numpy as np
import torch

from verify_norm import cases, corners, data, judge, shapes, strategies
from verify_norm.checks import CHECKS, Check
from verify_norm.dtypes import FORMATS
from verify_norm.execute import Clock, execute, worst
from verify_norm.ops import OPS
from verify_norm.reduce import reduce
from verify_norm.report.model import CheckResult, Report, Settings, Skip, Tally
from verify_norm.spec import CaseSpec, Finding, Kernel, Power, Run
from verify_norm.ulp import UlpStats

Progress = Callable[[int, int, int], None]  # cases done, cases planned, findings so far
ELEMENTS = {"cpu": 2**14, "cuda": 2**19}  # of x: Triton's interpreter takes 5 ms a program, a GPU is seldom the limit
REDUCING = 0.2  # share of the time that is kept for making failures small, once there is one


class _OutOfTime(BaseException):
    """Ends Hypothesis's run: not an Exception, so that nothing takes it for a failure."""


@dataclass(slots=True)
class _State:
    """What a run has gathered so far."""

    kernel: Kernel
    settings: Settings
    checks: tuple[Check, ...] = ()
    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)
    findings: dict[tuple[str, str | None], Finding] = field(default_factory=dict)
    looked: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    powers: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failing: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    layouts: Counter[str] = field(default_factory=Counter)
    skipped: Counter[tuple[str, str]] = field(default_factory=Counter)
    seen: set[CaseSpec] = field(default_factory=set)
    cases: int = 0
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        """Choose the checks that apply, and tell the kernel's own time by a clock around every call of it."""
        wanted = self.settings.checks or CHECKS
        self.checks = tuple(c for name, c in CHECKS.items() if name in wanted and c.applies(OPS[self.kernel.op]))
        run, forward_run = (
            self.clock.around(function, self.settings.device) for function in (self.kernel.run, self.kernel.forward_run)
        )
        self.kernel = replace(self.kernel, run=run, forward_run=forward_run)


def search(kernel: Kernel, settings: Settings, progress: Progress = lambda done, planned, found: None) -> Report:
    """Run the checks that `settings` names (all that apply, if none) over corners and random cases; reduce failures.

    The same kernel, settings and versions give the same cases. Ends by itself after `settings.seconds`.
    """
    started = time.perf_counter()
    op = OPS[kernel.op]
    state = _State(kernel, settings)
    for name in settings.checks or CHECKS:
        if not CHECKS[name].applies(op):
            state.skipped[f"check {name}", f"does not apply to {op.name}"] += 1
    dtypes = tuple(dtype for dtype in settings.dtypes if dtype in kernel.dtypes)
    for dtype in set(settings.dtypes) - set(dtypes):
        state.skipped[f"dtype {dtype}", f"{kernel.name} offers {', '.join(kernel.dtypes)}"] += 1

    table = _table(state, dtypes)
    planned = len(table) + settings.examples

    def one(spec: CaseSpec) -> float:
        spent = time.perf_counter() - started
        if spent > settings.seconds * (1 - REDUCING * bool(state.findings)):
            raise _OutOfTime
        largest = _try(state, spec)
        progress(state.cases, planned, len(state.findings))
        return largest

    try:
        for spec in table:
            one(spec)
        if dtypes and settings.examples and state.checks:
            _explore(strategies.specs(op, dtypes, _elements(settings.device)), one, settings)
    except _OutOfTime:
        missing = planned - state.cases
        state.skipped["cases", f"the {settings.seconds:g} s were over"] += missing
    deadline = started + settings.seconds
    reduced = tuple(_reduced(state, finding, deadline) for finding in state.findings.values())
    return _report(state, reduced, time.perf_counter() - started)


def examine(kernel: Kernel, spec: CaseSpec, settings: Settings) -> Report:
    """Run the checks on one case, and reduce nothing: what `replay` does."""
    started = time.perf_counter()
    state = _State(kernel, settings)
    _try(state, spec)
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
    reason = state.kernel.unsupported(spec) if state.kernel.unsupported else None
    if reason is not None:
        state.skipped["cases", reason] += 1
        return 0.0
    run = _run(state, spec)
    state.cases += 1
    for tensor in run.case.op.inputs:
        if tensor.role != "saved":
            state.layouts[f"{tensor.name} {data.layout_of(spec, tensor.name)}"] += 1
    for tensor in run.case.op.outputs:
        if run.problem is None and tensor.name not in run.outputs:
            state.skipped[f"output {tensor.name}", f"{state.kernel.name} does not return it"] += 1
    for check in state.checks:
        if not check.looks(run):
            continue
        state.looked[check.name] += 1
        said = list(check.function(run))
        state.powers[check.name] += [power.smallest for power in said if isinstance(power, Power)]
        found = [finding for finding in said if isinstance(finding, Finding)]
        state.failed[check.name] += bool(found)
        for finding in found:
            key = (finding.check, finding.output)
            state.failing[key] += 1
            state.findings.setdefault(key, finding)
    return max((_enter(state, run, name) for name in run.outputs), default=0.0)


def _run(state: _State, spec: CaseSpec) -> Run:
    case = cases.make(spec, OPS[state.kernel.op], state.kernel.contract, state.settings.device)
    return execute(state.kernel, case)


def _enter(state: _State, run: Run, name: str) -> float:
    """Add one output to its tally."""
    output, expected = run.outputs[name], run.case.expected[name]
    if output is None or expected is None or output.ratio is None:
        return 0.0
    judged = judge.judged(expected)
    stats = UlpStats.of(output.got[judged], expected.value[judged], FORMATS[expected.dtype])
    key = (name, expected.dtype)
    old = state.tallies.get(key, Tally(name, expected.dtype))
    largest = float(output.ratio.max(initial=0.0))
    new = replace(
        old,
        cases=old.cases + 1,
        elements=old.elements + output.got.size,
        unjudged=old.unjudged + int(output.got.size - np.count_nonzero(judged)),
        ulp=old.ulp.merge(stats),
    )
    if largest > old.ratio:
        new = replace(new, ratio=largest, worst=run.case.spec, index=worst(output.ratio))
    state.tallies[key] = new
    return largest


def _reduced(state: _State, finding: Finding, deadline: float) -> Finding:
    """The same finding on the smallest case that still shows it."""
    check, key = CHECKS[finding.check], (finding.check, finding.output)

    def show(spec: CaseSpec) -> Finding | None:
        if time.perf_counter() > deadline:
            return None
        if state.kernel.unsupported and state.kernel.unsupported(spec):
            return None
        run = _run(state, spec)
        said = check.function(run) if check.looks(run) else ()
        return next((f for f in said if isinstance(f, Finding) and (f.check, f.output) == key), None)

    smallest = reduce(finding.spec, OPS[state.kernel.op], lambda spec: show(spec) is not None)
    return replace((show(smallest) or finding) if smallest != finding.spec else finding, cases=state.failing[key])


def _report(state: _State, findings: tuple[Finding, ...], seconds: float) -> Report:
    kernel = state.kernel
    return Report(
        kernel=kernel.name,
        op=kernel.op,
        target=kernel.target,
        backend=kernel.backend,
        contract=kernel.contract,
        settings=state.settings,
        environment=environment(state.settings.device),
        cases=state.cases,
        seconds=seconds,
        seconds_in_kernel=state.clock.seconds,
        findings=findings,
        tallies=tuple(sorted(state.tallies.values(), key=lambda t: _position(state, t))),
        checks=tuple(_result(state, check) for check in state.checks),
        skipped=tuple(Skip(what, reason, count) for (what, reason), count in state.skipped.items()),
        layouts=dict(sorted(state.layouts.items())),
    )


def _result(state: _State, check: Check) -> CheckResult:
    powers = state.powers[check.name]
    power = float(np.median(powers)) if powers else None
    return CheckResult(check.name, check.summary, state.looked[check.name], state.failed[check.name], power)


def _position(state: _State, tally: Tally) -> tuple[int, int]:
    names = [tensor.name for tensor in OPS[state.kernel.op].outputs]
    return names.index(tally.output), list(FORMATS).index(tally.dtype)


def environment(device: str) -> dict[str, str]:
    """What the numbers depend on besides the kernel."""
    import triton

    from verify_norm import __version__, interpreter

    on_gpu = torch.device(device).type == "cuda"
    facts = {
        "verify-norm": __version__,
        "date": datetime.now(UTC).date().isoformat(),
        "device": torch.cuda.get_device_name(torch.device(device)) if on_gpu else f"CPU ({platform.machine()})",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "hypothesis": hypothesis.__version__,
    }
    return facts if on_gpu else facts | {"interpreter": interpreter.enable()}
