"""A kernel's gradients against its own forward, in the type it ships in: the adjoint identity, row by row.

With the truth known, the identity can be held far tighter than differences alone allow. Let f be the reference, F the
kernel's forward, p± the inputs moved along ±v and rounded to their type, d = p+ − p−. The reference tells exactly, in
float64, how far a difference is from a derivative, T = ⟨dy, f(p+) − f(p−)⟩ − ⟨∇f, d⟩ (third order, and what the
rounding of p± made asymmetric), and how far F may be from f, a = δ + ½ulp. So

    |⟨dy, F(p+) − F(p−)⟩ − T − ⟨dx, d⟩| ≤ κ|T| + Σ|dy|(a+ + a−) + Σ|d|·b

with b what the backward may be off by. Sums of roundings are bounded by chance where signs are random
(`verify_norm.gradient`), by the worst case where not. κ leaves room for a forward whose third derivative differs from
the reference's, that it differs being for `accuracy` to tell, and the step balances κ|T| against the forward's
rounding. Every row is an experiment of its own with its own direction, every column one for its weight or bias, so the
cost is linear, and a local error is not averaged away. y is linear in weight and bias, which need no small step, but
for an activation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from verify_norm import data, judge, ops
from verify_norm.adjoint import ForwardError, Moved, expected_at, move, reference_at
from verify_norm.checks import check, finding
from verify_norm.dtypes import FORMATS, Array
from verify_norm.gradient import Comparison, confidence
from verify_norm.spec import Expected, Finding, Op, Power, Run

ELEMENTS = 2048  # of x, at most: four calls of the forward are then a small part of a search
EVERY = 3  # one case of so many, by its seed: the corners' seeds are 0, 1, 2, …, and a reduced case's is 0
KAPPA = 1 / 8
STRUCTURED = ("one coordinate", "the row mean", "x̂", "signs of w·dy", "half the row")


def _looks(run: Run) -> bool:
    spec = run.case.spec
    if run.kernel.forward_run is None or run.problem is not None or spec.special is not None:
        return False
    return 0 < prod(spec.shape) <= ELEMENTS and spec.seed % EVERY == 0 and spec.eps > 0


def _applies(op: Op) -> bool:
    """Rows or groups that are independent of each other, of x alone."""
    known = {"dy", "x", "weight", "bias", "mean", "rstd"}
    return op.forward is not None and op.view != "channels" and {tensor.name for tensor in op.inputs} <= known


@check(applies=_applies, looks=_looks)
def gradient(run: Run) -> Iterable[Finding | Power]:
    """The kernel's own forward changes along every direction as its gradients say.

    ⟨dy, J v⟩ = ⟨dx, v⟩ row by row, and for the weight and bias of every column, with J v by differences of the
    kernel's forward in the type of the case. Needs `Kernel.forward`, the name of that forward. A finding tells the
    resolving power: the smallest relative error of the gradient that this comparison would have caught.
    """
    try:
        compared = comparisons(run)
    except ForwardError as error:
        yield finding(run, "gradient", None, f"its forward fails at a point near by: {error}", status="error")
        return
    yield from (Power(c.output, c.power) for c in compared if c.judged)
    for output in ("dx", "dweight", "dbias"):
        of_output = [c for c in compared if c.output == output and c.ratio.max(initial=0.0) > 1]
        if of_output:
            yield _found(run, max(of_output, key=lambda c: float(c.ratio.max())))


def _found(run: Run, c: Comparison) -> Finding:
    unit, count = c.worst, int((c.ratio > 1).sum())
    off = abs(c.left[unit] - c.right[unit])
    power = c.tolerance[unit] / max(abs(c.left[unit]), 1e-300)
    message = (
        f"{c.output} of {c.unit} {unit} is not the derivative of its own forward: along {c.direction}, ⟨dy, y⟩ changes "
        f"by {c.left[unit]:.6g} and {c.output} says {c.right[unit]:.6g}; {off:.3g} apart, {c.tolerance[unit]:.3g} "
        f"allowed (a relative error of {power:.2g} shows here); {count} of {c.judged} {c.unit}s are off"
    )
    return replace(
        finding(run, "gradient", c.output, message),
        index=(unit,),
        got=float(c.right[unit]),
        want=float(c.left[unit]),
        allowed=float(c.tolerance[unit]),
    )


def comparisons(run: Run) -> list[Comparison]:
    """Every comparison of one run: of dx a row or group each, of dweight and dbias a column each."""
    with np.errstate(all="ignore"):
        compared = [_rows(run), *_columns(run)]
    return [c for c in compared if c is not None]


def _rows(run: Run) -> Comparison | None:
    case, output = run.case, run.outputs.get("dx")
    expected = case.expected["dx"]
    if output is None or output.ratio is None or expected is None:
        return None
    x = case.exact["x"]
    assert x is not None
    n = data.row_length(case.spec, case.op)
    units = x.size // n
    lam = confidence(units + n)
    forward = ops.OPS[str(case.op.forward)]
    rstd = reference_at(forward, case).rstd.reshape(units, 1)
    v, structured, aligned = _directions(run, units, n, rstd)
    h = _step(run, forward, v, units, lam)
    form, rows = FORMATS[case.spec.dtype], x.reshape(units, n)
    plus, minus = (form.round(rows + sign * h * v).reshape(x.shape) for sign in (1, -1))
    moved = move(run, forward, {"x": plus}, {"x": minus})
    worst = np.logical_or(aligned, case.spec.dy_layout == "scalar")
    left, tolerance = _identity(run, expected, (plus - minus).reshape(units, n), moved, (structured, worst), lam)
    terms = output.got.reshape(units, n) * (plus - minus).reshape(units, n)
    element = np.sqrt((terms * terms).sum(1) / np.maximum((terms != 0).sum(1), 1))
    found = Comparison("random signs or a structure, by row", "dx", "row", left, terms.sum(1), tolerance, element)
    kind = STRUCTURED[_kind(run, found.worst)] if structured[found.worst] else "random signs"
    return replace(found, direction=kind) if found.ratio.max(initial=0.0) > 1 else found


def _identity(run: Run, expected: Expected, d: Array, moved: Moved, worst: tuple[Any, Any],
              lam: float) -> tuple[Array, Array]:  # fmt: skip
    """⟨dy, ΔF⟩ − T of every row, and how far ⟨dx, d⟩ may be off; `worst`: whether d, and dy, have no random signs."""
    dy = run.case.exact["dy"]
    assert dy is not None
    dy, value, own = (a.reshape(d.shape) for a in (dy, expected.value, judge.allowed(expected)))
    change, reference, allowed, most = (
        a.reshape(d.shape) for a in (moved.kernel, moved.reference, moved.allowed, moved.most)
    )
    T = (dy * reference).sum(1) - (value * d).sum(1)
    tolerance = KAPPA * np.abs(T)
    for size, together, structured in (
        (own * d, own * np.abs(d), worst[0]),
        (dy * allowed, np.abs(dy) * most, worst[1]),
    ):
        by_chance = np.where(structured, np.inf, lam * np.sqrt((size * size).sum(1)))
        tolerance = tolerance + np.minimum(together.sum(1), by_chance)
    lost = np.abs(dy * reference).sum(1) + np.abs(value * d).sum(1)  # by float64, in the sums themselves
    tolerance = tolerance + 4 * d.shape[1] * FORMATS["float64"].u * lost
    unknown = _overflows(expected).reshape(d.shape).any(1) | ~np.isfinite(tolerance)
    return (dy * change).sum(1) - T, np.where(unknown, np.inf, tolerance)


def _overflows(expected: Expected) -> Any:
    """Where an infinity may be right, or nothing is known."""
    return ~np.isfinite(FORMATS[expected.dtype].round(np.abs(expected.value) + expected.delta))


def _kind(run: Run, row: int) -> int:
    return (row // 2 + run.case.spec.seed // EVERY) % len(STRUCTURED)


def _directions(run: Run, units: int, n: int, rstd: Array) -> tuple[Array, Array, Array]:
    """A direction a row, of the row's own scale; which rows have a structured one, and which one that depends on dy."""
    case = run.case
    rng = np.random.Generator(np.random.Philox(key=[case.spec.seed, 0x9E3779B9]))
    v = rng.choice((-1.0, 1.0), (units, n))
    structured = (np.arange(units) + case.spec.seed // EVERY) % 2 == 1
    aligned = np.zeros(units, dtype=bool)
    x, dy, weight = (case.exact.get(name) for name in ("x", "dy", "weight"))
    assert x is not None
    assert dy is not None
    rows, g = x.reshape(units, n), dy.reshape(units, n)
    if weight is not None and case.op.view == "rows":
        g = g * (weight.reshape(1, n) + case.arguments.get("weight_offset", 0.0))
    for row in np.flatnonzero(structured):
        kind = STRUCTURED[_kind(run, int(row))]
        if kind == "one coordinate":
            v[row] = np.where(np.arange(n) == rng.integers(n), np.sqrt(n), 0.0)
        elif kind == "the row mean":
            v[row] = 1.0
        elif kind == "x̂":
            v[row] = (rows[row] - rows[row].mean()) * rstd[row]
        elif kind == "half the row":
            v[row, n // 2 :] = 0.0
        else:
            v[row] = np.where(g[row] < 0, -1.0, 1.0)
            aligned[row] = True
    return v / rstd, structured, aligned


def _step(run: Run, forward: Op, v: Array, units: int, lam: float) -> Array:
    """h, a row: the rounding of the forward R and κ times its third difference T(h) ~ h³ cost (R + κT)/h; least there.

    T is measured on the reference, element by element and without regard to dy's signs, which have to stay random.
    """
    case, start = run.case, 1 / 8
    x, dy = case.exact["x"], case.exact["dy"]
    assert x is not None
    assert dy is not None
    shift = v.reshape(x.shape) * start

    def change(size: float) -> Array:
        ends = [reference_at(forward, case, {"x": x + sign * size * shift}).y for sign in (1, -1)]
        return np.asarray(ends[0] - ends[1])

    third = (change(1.0) - 2 * change(0.5)).reshape(units, -1) * (4 / 3)  # T(h) − 2·T(h/2) = ¾·T(h)
    off = judge.allowed(expected_at(run, forward, {})).reshape(units, -1)
    dy = dy.reshape(units, -1)
    R = lam * np.sqrt(2 * (dy * dy * off * off).sum(1))
    T = KAPPA * np.sqrt((dy * dy * third * third).sum(1))
    h = start * np.cbrt(R / np.maximum(2 * T, 1e-300))
    return np.clip(np.where(np.isfinite(h), h, start), 2.0**-12, 0.5)[:, None]  # beyond ½ it is no derivative


def _columns(run: Run) -> Iterable[Comparison | None]:
    """Every column's weight, or its bias: weights in the even columns and biases in the odd ones, or inversely."""
    case = run.case
    turn = case.spec.seed // EVERY
    names = [name for name in ("weight", "bias") if case.exact.get(name) is not None and _returned(run, f"d{name}")]
    if not names:
        return
    size = prod(data.affine_shape(case.spec, case.op))
    forward = ops.OPS[str(case.op.forward)]
    plus, minus, whose = {}, {}, (np.arange(size) + turn) % len(names)
    rng = np.random.Generator(np.random.Philox(key=[case.spec.seed, 0x85EBCA6B]))
    step = 1 / 2 if case.op.activation is None else 1 / 16
    for number, name in enumerate(names):
        value = case.exact[name]
        assert value is not None
        form = FORMATS[case.spec.weight_dtype or case.spec.dtype]
        v = np.where(whose == number, rng.choice((-1.0, 1.0), size), 0.0).reshape(value.shape) * (1 + np.abs(value))
        v = v * step
        plus[name], minus[name] = form.round(value + v), form.round(value - v)
    moved = move(run, forward, plus, minus)
    for number, name in enumerate(names):
        yield _column(run, name, plus[name] - minus[name], moved, whose == number)


def _column(run: Run, name: str, d: Array, moved: Moved, mine: np.ndarray[Any, Any]) -> Comparison | None:
    case = run.case
    output, expected, dy = run.outputs[f"d{name}"], case.expected[f"d{name}"], case.exact["dy"]
    assert output is not None
    assert expected is not None
    assert dy is not None
    lam = confidence(d.size + 1)

    def sums(values: Array) -> Array:
        groups = case.op.view != "rows"
        parts = values.reshape(*values.shape[:2], -1).sum((0, 2)) if groups else values.reshape(-1, mine.size).sum(0)
        return np.asarray(parts[mine])

    d = d.reshape(-1)[mine]
    tangent = expected.value.reshape(-1)[mine] * d
    T = sums(dy * moved.reference) - tangent if case.op.activation is not None else np.zeros(d.shape)  # 0: it is linear
    left, right = sums(dy * moved.kernel) - T, output.got.reshape(-1)[mine] * d
    most = sums(np.abs(dy) * moved.most)
    random = case.spec.dy_layout not in ("expanded", "scalar")
    by_chance = lam * np.sqrt(sums((dy * moved.allowed) ** 2)) if random else most
    off = judge.allowed(expected).reshape(-1)[mine] * np.abs(d)
    crumbs = 4 * dy.size * FORMATS["float64"].u * (sums(np.abs(dy * moved.reference)) + np.abs(tangent))
    tolerance = np.minimum(most, by_chance) + off + crumbs + KAPPA * np.abs(T)
    unknown = _overflows(expected).reshape(-1)[mine] | ~np.isfinite(tolerance)
    tolerance = np.where(unknown, np.inf, tolerance)
    return Comparison("its own axis", f"d{name}", "column", left, right, tolerance, np.abs(right))


def _returned(run: Run, name: str) -> bool:
    output = run.outputs.get(name)
    return output is not None and output.ratio is not None and run.case.expected[name] is not None
