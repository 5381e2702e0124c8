"""Ladders: how an error grows with one property of the data, next to textbook algorithms on the same data."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import inf, isfinite, log2

import numpy as np

from verify_norm.auditing import textbook
from verify_norm.auditing.model import Ladder, Rung
from verify_norm.cases import make
from verify_norm.core import geometry
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.kernel import Kernel
from verify_norm.core.op import Op
from verify_norm.core.ops import OPS
from verify_norm.core.run import Case, Expected, Run
from verify_norm.core.spec import CaseSpec
from verify_norm.running.execute import execute

SECONDS = 2.0  # in the kernel: a ladder ends with the step that takes longer
FLOOR, CEILING = 2.0**-4, 2.0**24  # ulp: errors below the first are equally good, above the last equally bad
NEAR = 1.0  # powers of 2, on average: the largest distance from an algorithm that the kernel is like
APART = 1.0  # powers of 2: an algorithm this much farther than the nearest one is not like the kernel
LENGTH = 256  # of a row, if the ladder does not change it


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a ladder changes: the spec of each value, and a change of its data if no spec expresses it."""

    name: str
    unit: str
    values: tuple[float, ...]
    spec: Callable[[float], CaseSpec]
    change: Callable[[float, dict[str, Array | None]], dict[str, Array | None]] | None = None
    outputs: tuple[str, ...] = ()  # empty: all
    sums: bool = False  # compare orders of sums rather than variances
    grows: bool = False  # the time of a step grows with its value

    def case(self, value: float, kernel: Kernel, device: str) -> Case | str:
        """Return the case of one step, or why there is none."""
        op, spec = OPS[kernel.op], self.spec(value)
        refused = geometry.refusal(spec, op) or kernel.refuses(spec)
        if refused:
            return refused
        exact = make.exact_inputs(spec, op)
        if self.change is not None:
            exact = self.change(value, exact)
        return make.build(spec, op, kernel.contract, device, exact, truth=True)


def ladders(
    kernel: Kernel, device: str = "cpu", *, seed: int = 0, seconds: float = SECONDS, names: Sequence[str] = ()
) -> tuple[Ladder, ...]:
    """Return all ladders of `kernel`, or those of these names, one per output; the kernel runs in this process.

    A ladder ends with a step that takes longer than `seconds`. x is float32 if the kernel takes it, because narrow
    results hide errors.

    Raises ValueError: the operator has no ladder of that name.
    """
    op = OPS[kernel.op]
    dtype = "float32" if "float32" in kernel.dtypes else kernel.dtypes[0]
    plans = {plan.name: plan for plan in _plans(op, dtype, seed)}
    unknown = [name for name in names if name not in plans]
    if unknown:
        raise ValueError(f"no ladder {unknown[0]!r} for {op.name}; there are: {', '.join(plans)}")
    execute(kernel, make.case(plans["offset"].spec(0.0), op, kernel.contract, device))  # compiles the kernel
    return tuple(ladder for name in names or plans for ladder in _run_ladder(kernel, plans[name], device, seconds))


def _plans(op: Op, dtype: str, seed: int) -> Iterator[_Plan]:
    """Yield the ladders of an operator, for x of one type."""
    biased = op.forward is None and any(tensor.name == "bias" for tensor in op.inputs)  # a bias hides errors of y

    def sized(m: int, n: int) -> CaseSpec:
        return replace(_shape(op, m, n), dtype=dtype, bias=not biased, seed=seed)

    base = sized(4, LENGTH)
    yield _Plan("offset", "offset/scale", tuple(10.0 ** (k / 2) for k in range(13)), lambda v: replace(base, offset=v))
    scales = tuple(10.0**k for k in range(-30, 31, 5) if 10.0**k * 8 < FORMATS[dtype].largest)
    yield _Plan("scale", "scale of x", scales, lambda v: replace(base, log2_scale=round(log2(v))))
    yield _Plan("eps", "eps/scale²", tuple(10.0**k for k in range(-12, 7, 2)), lambda v: replace(base, eps=v))
    shortest = 2 if op.view == "channels" else 0
    lengths = tuple(float(4**k) for k in range(shortest, 10))
    yield _Plan("length", "N", lengths, lambda n: sized(2, int(n)), sums=True, grows=True)
    if any(t.extent == "affine" and t.role == "output" and t.name.startswith("d") for t in op.outputs):
        rows = tuple(float(4**k) for k in range(shortest, 9))
        yield _Plan("rows", "M", rows, lambda m: sized(int(m), 32), outputs=("dweight", "dbias"), grows=True)
    factors = tuple(10.0**k for k in range(7))
    yield _Plan("channel", "largest channel/others", factors, lambda v: base, partial(_enlarge, base, op))


def _shape(op: Op, m: int, n: int) -> CaseSpec:
    """Return a case of m rows (or samples with one group, or positions of a channel) of n elements."""
    if op.view == "rows":
        return CaseSpec((m, n))
    if op.view == "channels":
        return CaseSpec((m, 4, max(n // 4, 1)))
    if "num_groups" in op.attrs:
        return CaseSpec((m, 2, max(n // 2, 1)), num_groups=1)
    return CaseSpec((m, 2, n))


def _enlarge(spec: CaseSpec, op: Op, v: float, exact: dict[str, Array | None]) -> dict[str, Array | None]:
    """Return the inputs with the first channel (for BatchNorm, the first sample) times v."""
    changed, form = dict(exact), FORMATS[spec.dtype]
    first = {"rows": (..., 0), "groups": (slice(None), slice(None), 0), "channels": (0,)}[op.view]
    for name in ("x", "residual_out"):
        x = exact.get(name)
        if x is not None:
            x = x.copy()
            x[first] *= v
            changed[name] = form.round(np.clip(x, -form.largest, form.largest))
    return changed | make.saved(spec, op, changed)


def _run_ladder(kernel: Kernel, plan: _Plan, device: str, seconds: float) -> Iterator[Ladder]:
    """Run the steps of one ladder until one is too slow, and yield the ladder of each output."""
    steps: dict[tuple[str, str], list[Rung]] = {}  # by output and its dtype
    stopped, took, before = "", 0.0, inf
    for value in plan.values:
        if plan.grows and took * value / before > seconds:
            stopped = f"the step at {value:g} would take about {took * value / before:.0f} s"
            break
        case = plan.case(value, kernel, device)
        if isinstance(case, str):
            stopped = case
            continue
        started = time.perf_counter()
        run = execute(kernel, case)
        took, before = time.perf_counter() - started, value
        if run.refused or run.limits:
            stopped = run.problem or ""
            continue
        for key, step in _steps(run, plan, value):
            steps.setdefault(key, []).append(step)
        if took > seconds and value != plan.values[-1]:
            stopped = f"the step at {value:g} took {took:.1f} s"
            break
    for (name, dtype), found in steps.items():
        over = next((step.value for step in found if step.ratio > 1), None)
        yield Ladder(plan.name, plan.unit, name, dtype, tuple(found), over, _like(found), stopped)


def _steps(run: Run, plan: _Plan, value: float) -> Iterator[tuple[tuple[str, str], Rung]]:
    """Yield the step of every output of the ladder, by name and dtype."""
    case = run.case
    compute = cache(partial(textbook.compute, case))
    for name, expected in case.expected.items():
        output = run.outputs.get(name)
        left_out = name.startswith("running_") or name in ("mean", "residual_out")
        if expected is None or left_out or (plan.outputs and name not in plan.outputs):
            continue
        size, ratio = inf, inf
        if output is not None and output.ratio is not None:
            size, ratio = _error(case, name, expected, output.got), float(output.ratio.max(initial=0.0))
        elif run.problem is None:
            continue  # the kernel does not return it
        beside = {}
        for how in textbook.algorithms(case, name, sums=plan.sums):
            values = compute(how)
            if values is not None:
                beside[how.name] = _error(case, name, expected, values[name])
        yield (name, expected.dtype), Rung(value, size, ratio, beside, None if plan.change else case.spec)


def _error(case: Case, name: str, expected: Expected, got: Array) -> float:
    """Return the largest error of a row, in ulps of its root mean square; inf if a value is not a number."""
    view = textbook.view_of(case)
    want, form = expected.value, FORMATS[expected.dtype]
    known = np.isfinite(want) & (np.abs(want) <= form.largest)
    if not known.any():
        return 0.0
    largest = float(np.abs(want[known]).max()) or 1.0  # divided by it, squares stay within float64

    def rms(values: Array) -> Array:
        squares = np.square(values / largest)
        if values.size == np.prod(view.shape) and name != "rstd":
            squares = squares.reshape(view.shape).mean(view.axes)
        elif name != "rstd":
            squares = np.asarray(squares.mean())
        return np.asarray(np.sqrt(squares) * largest)

    with np.errstate(all="ignore"):
        size = rms(np.where(known, want, 0.0))
        worst = float((rms(np.where(known, got - want, 0.0)) / form.ulp(size)).max())
    return worst if isfinite(worst) else inf


def _like(steps: list[Rung]) -> tuple[str, ...]:
    """Return the algorithms with the nearest errors, nearest first; none if no algorithm is near."""
    apart = {}
    for name in steps[0].textbook:
        both = np.array([(s.error_ulp, s.textbook[name]) for s in steps if name in s.textbook])
        if len(both) >= max(2, len(steps) // 2):
            apart[name] = float(np.sqrt(np.mean(np.square(np.diff(np.log2(np.clip(both, FLOOR, CEILING)))))))
    nearest = min(apart.values(), default=inf)
    if nearest > NEAR:
        return ()
    return tuple(sorted((name for name in apart if apart[name] < nearest + APART), key=apart.__getitem__))
