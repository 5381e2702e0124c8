"""Ladders: how an error grows as one thing about the data does, beside what textbook algorithms do on the same data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf, isfinite, log2

import numpy as np

from verify_norm import cases, data
from verify_norm.auditing import textbook
from verify_norm.auditing.model import Ladder, Rung
from verify_norm.dtypes import FORMATS, Array
from verify_norm.execute import execute
from verify_norm.ops import OPS
from verify_norm.spec import Case, CaseSpec, Kernel, Op, Run

SECONDS = 2.0  # a rung, of the kernel's: the next one is not tried
FLOOR, CEILING = 2.0**-4, 2.0**24  # ulp: below the first all are as good, above the last as bad
NEAR = 1.0  # in powers of 2, on average: so near is a likeness
APART = 1.0  # and so much farther is no likeness
LENGTH = 256  # of a row, where that is not what changes


@dataclass(frozen=True, slots=True)
class _Plan:
    """A ladder to be climbed: the case of every value, and what is changed about its data that no spec says."""

    name: str
    unit: str
    values: tuple[float, ...]
    spec: Callable[[float], CaseSpec]
    change: Callable[[float, dict[str, Array | None]], dict[str, Array | None]] | None = None
    outputs: tuple[str, ...] = ()  # all that are not named otherwise
    sums: bool = False


def ladders(
    kernel: Kernel, device: str = "cpu", dtype: str | None = None, *, seed: int = 0, seconds: float = SECONDS,
    names: tuple[str, ...] = (),
) -> tuple[Ladder, ...]:  # fmt: skip
    """Climb all ladders of `kernel`, or those that `names` has: one for each output of each.

    Parameters
    ----------
    kernel
        ready to run, as `registry.load` returns it; it runs in this process.
    device
        where it runs; in Triton's interpreter ("cpu") rows are few.
    dtype
        of x; float32 if the kernel offers it, for narrow results hide what is lost.
    seed
        of the data.
    seconds
        what a rung may take; a ladder stops where one takes longer.
    names
        of the ladders; all, if none is named.

    Raises
    ------
    ValueError : no ladder has that name.
    """
    op = OPS[kernel.op]
    dtype = dtype or ("float32" if "float32" in kernel.dtypes else kernel.dtypes[0])
    plans = {plan.name: plan for plan in _plans(op, dtype, device, seed)}
    unknown = [name for name in names if name not in plans]
    if unknown:
        raise ValueError(f"no ladder {unknown[0]!r} for {op.name}; there are: {', '.join(plans)}")
    execute(kernel, cases.make(plans["offset"].spec(0.0), op, kernel.contract, device))  # what is compiled once
    return tuple(ladder for name in names or plans for ladder in _climbed(kernel, plans[name], device, seconds))


def _powers(low: float, high: float, step: float) -> tuple[float, ...]:
    """10**low, 10**(low + step), … 10**high."""
    return tuple(float(10.0 ** (low + i * step)) for i in range(round((high - low) / step) + 1))


def _plans(op: Op, dtype: str, device: str, seed: int) -> Iterator[_Plan]:
    plain = op.forward is None and any(tensor.name == "bias" for tensor in op.inputs)  # a bias only hides what y loses
    base = replace(_shape(op, 4, LENGTH), dtype=dtype, bias=not plain, seed=seed)
    largest = FORMATS[dtype].largest
    yield _Plan("offset", "offset/scale", _powers(0, 6, 0.5), lambda v: replace(base, offset=v))
    scales = tuple(v for v in _powers(-30, 30, 5) if v * 8 < largest)
    yield _Plan("scale", "scale of x", scales, lambda v: replace(base, log2_scale=round(log2(v))))
    yield _Plan("eps", "eps/scale²", _powers(-12, 6, 2), lambda v: replace(base, eps=v))
    lengths = tuple(float(4**k) for k in range(2 if op.view == "channels" else 0, 10))
    yield _Plan("length", "N", lengths, lambda n: _sized(base, _shape(op, 2, int(n))), sums=True)
    if any(t.extent == "affine" and t.role == "output" and t.name.startswith("d") for t in op.outputs):
        rows = tuple(float(4**k) for k in range(2 if op.view == "channels" else 0, 9))
        yield _Plan("rows", "M", rows, lambda m: _sized(base, _shape(op, int(m), 32)), outputs=("dweight", "dbias"))
    yield _Plan("channel", "largest channel/others", _powers(0, 6, 1), lambda _: base,
                lambda v, exact: _largest(v, exact, base, op))  # fmt: skip


def _shape(op: Op, m: int, n: int) -> CaseSpec:
    """A case of m rows of n elements: rows, groups (all of one sample's in one, or two channels each), or channels."""
    if op.view == "rows":
        return CaseSpec((m, n))
    if op.view == "channels":
        return CaseSpec((m, 4, max(n // 4, 1)))
    grouped = "num_groups" in op.attrs
    return CaseSpec((m, 2, max(n // 2, 1)) if grouped else (m, 2, n), num_groups=1 if grouped else None)


def _sized(spec: CaseSpec, other: CaseSpec) -> CaseSpec:
    return replace(spec, shape=other.shape, num_groups=other.num_groups)


def _largest(v: float, exact: dict[str, Array | None], spec: CaseSpec, op: Op) -> dict[str, Array | None]:
    """The first channel (of BatchNorm, the first sample) so many times the others."""
    changed = dict(exact)
    for name in ("x", "residual_out"):
        x = exact.get(name)
        if x is not None:
            x = x.copy()
            where = (..., 0) if op.view == "rows" else (0,) if op.view == "channels" else (slice(None), slice(None), 0)
            x[where] *= v
            form = FORMATS[spec.dtype]
            changed[name] = form.round(np.clip(x, -form.largest, form.largest))
    return changed | cases.saved(spec, op, changed)


def _climbed(kernel: Kernel, plan: _Plan, device: str, seconds: float) -> Iterator[Ladder]:
    op = OPS[kernel.op]
    climbed: dict[str, list[Rung]] = {}
    dtypes: dict[str, str] = {}
    stopped = ""
    grows = plan.name in ("length", "rows")
    took, before = 0.0, inf
    for value in plan.values:
        if grows and took * value / before > seconds:
            stopped = f"the rung at {value:g} would take about {took * value / before:.0f} s"
            break
        spec = plan.spec(value)
        refused = data.refusal(spec, op) or (kernel.unsupported(spec) if kernel.unsupported else None)
        if refused:
            stopped = refused
            continue
        exact = cases.draw(spec, op)
        exact = plan.change(value, exact) if plan.change else exact
        case = cases.build(spec, op, kernel.contract, device, exact, truth=True)
        started = time.perf_counter()
        run = execute(kernel, case)
        took, before = time.perf_counter() - started, value
        if run.refused:
            stopped = run.problem or ""
            continue
        for name, rung in _rungs(run, plan, value, None if plan.change else spec):
            climbed.setdefault(name, []).append(rung)
            dtypes[name] = _dtype(case, name)
        if took > seconds and value != plan.values[-1]:
            stopped = f"the rung at {value:g} took {took:.1f} s"
            break
    for name, rungs in climbed.items():
        over = next((rung.value for rung in rungs if rung.ratio > 1), None)
        yield Ladder(plan.name, plan.unit, name, dtypes[name], tuple(rungs), over, _like(rungs), stopped)


def _dtype(case: Case, name: str) -> str:
    expected = case.expected[name]
    assert expected is not None
    return expected.dtype


def _rungs(run: Run, plan: _Plan, value: float, spec: CaseSpec | None) -> Iterator[tuple[str, Rung]]:
    """One rung for every output that is looked at."""
    case, computed = run.case, {}
    for tensor in case.op.outputs:
        output, expected = run.outputs.get(tensor.name), case.expected.get(tensor.name)
        if expected is None or tensor.name.startswith("running_") or tensor.name in ("mean", "residual_out"):
            continue
        if plan.outputs and tensor.name not in plan.outputs:
            continue
        if run.problem is None and (output is None or output.ratio is None):
            continue  # not returned
        beside = {}
        for how in textbook.algorithms(case, tensor.name, sums=plan.sums):
            if how not in computed:
                computed[how] = textbook.compute(case, how)
            values = computed[how]
            if values is not None:
                beside[how.name] = error(case, tensor.name, values[tensor.name])
        wrong = output is None or output.ratio is None
        mine = inf if output is None or wrong else error(case, tensor.name, output.got)
        ratio = inf if output is None or output.ratio is None else float(output.ratio.max(initial=0.0))
        yield tensor.name, Rung(value, mine, ratio, beside, spec)


def error(case: Case, name: str, got: Array) -> float:
    """The error of the worst row, in ulps of its root mean square; inf where the truth is a number and it is none."""
    expected, view = case.expected[name], textbook.viewed(case)
    assert expected is not None
    want, form = expected.value, FORMATS[expected.dtype]
    known = np.isfinite(want) & (np.abs(want) <= form.largest)
    if not known.any():
        return 0.0
    size = want.size == np.prod(view.shape)
    shape, axes = (view.shape, view.axes) if size else ((1, want.size), (1,))
    if name in ("mean", "rstd"):
        shape, axes = (want.size, 1), (1,)
    with np.errstate(all="ignore"):
        off = np.where(known, got - want, 0.0).reshape(shape)
        most = np.abs(want[known]).max()  # squares of the largest and smallest numbers stay within float64
        unit = form.ulp(np.sqrt(np.where(known, np.square(want / (most or 1.0)), 0.0).reshape(shape).mean(axes)) * most)
        rms = np.sqrt(np.square(off / (most or 1.0)).mean(axes)) * (most or 1.0)
        largest = float((rms / unit).max())
    return largest if isfinite(largest) else inf


def _like(rungs: list[Rung]) -> tuple[str, ...]:
    """The algorithms whose errors are nearest in the mean square of their logarithms, where one is near at all."""
    names = [name for name in rungs[0].textbook if sum(name in r.textbook for r in rungs) >= max(2, len(rungs) // 2)]
    apart = {name: _apart(rungs, name) for name in names}
    if not apart or min(apart.values()) > NEAR:
        return ()
    best = min(apart.values())
    return tuple(sorted((name for name in names if apart[name] < best + APART), key=apart.__getitem__))


def _apart(rungs: list[Rung], name: str) -> float:
    def clipped(v: float) -> float:
        return log2(min(max(v, FLOOR), CEILING))

    both = [(clipped(r.error_ulp) - clipped(r.textbook[name])) ** 2 for r in rungs if name in r.textbook]
    return float(np.sqrt(np.mean(both)))
