"""A kernel's gradients against its own forward, in the type it ships in: the adjoint identity, row by row.

With the truth known, the identity holds far tighter than differences alone allow. Let f be the reference, F the
kernel's forward, p± the inputs moved along ±v and rounded to their type, d = p+ − p−. The reference tells exactly, in
float64, how far a difference is from a derivative, T = ⟨dy, f(p+) − f(p−)⟩ − ⟨∇f, d⟩ (third order, and what the
rounding of p± made asymmetric), and how far F may be from f, a = δ + ½ulp. So

    |⟨dy, F(p+) − F(p−)⟩ − T − ⟨dx, d⟩| ≤ κ|T| + Σ|dy|(a+ + a−) + Σ|d|·b

with b what the backward may be off by. Sums of roundings are bounded by chance where signs are random
(Hoeffding), by the worst case where not. κ leaves room for a forward whose third derivative differs from the
reference's, which `accuracy` judges, and the step balances κ|T| against the forward's rounding. Every row is an
experiment of its own with its own direction, every column one for its weight or bias, so the cost is linear, and a
local error is not averaged away. y is linear in weight and bias, which need no small step without an activation.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from verify_norm.cases.random import generator
from verify_norm.checks.check import check, finding
from verify_norm.checks.relations.equations import Comparison, compared, confidence, truth
from verify_norm.checks.relations.forward import Moved, expected_at, move, overflows, reference_at
from verify_norm.checks.relations.rerun import NearbyError, small
from verify_norm.checks.relations.stages import exact_input, norm
from verify_norm.core import geometry, judge, ops
from verify_norm.core.case_words import told_apart
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.finding import Finding, NoData, SmallestError
from verify_norm.core.kernel import Kernel
from verify_norm.core.op import Op
from verify_norm.core.run import Run
from verify_norm.core.spec import SHARED
from verify_norm.reference.stages.stage import Elementwise

ELEMENTS = 2048  # of x, at most: four calls of the forward are then a small part of a search
KAPPA = 1 / 8
SIGNS, ALIGNED = "random signs", "signs of w·dy"  # of these, the second depends on dy
ALIKE = ("one", "ramp", "uneven")  # dy of these families has one sign along a row or a column: roundings may add up
STRUCTURED = ("one coordinate", "the row mean", "x̂", ALIGNED, "half the row")


def _looks(run: Run) -> bool:
    spec = run.case.spec
    wanted = run.kernel.forward_run is not None and "gradient" in spec.further
    return wanted and small(run, ELEMENTS) and spec.eps > 0


def _applies(op: Op) -> bool:
    """To rows or groups that are independent of each other, of x alone."""
    known = {"dy", "x", "weight", "bias", "mean", "rstd", *op.stage_inputs}  # not BatchNorm's running statistics
    return op.forward is not None and not op.user_defined and {tensor.name for tensor in op.inputs} <= known


def _no_forward(kernel: Kernel, _: Collection[str]) -> str:
    return "the kernel names no forward" if kernel.forward_run is None else ""


@check(applies=_applies, looks=_looks, lacks=_no_forward)
def gradient(run: Run) -> Iterable[Finding | SmallestError | NoData]:
    """The kernel's own forward changes along every direction as its gradients say.

    ⟨dy, J v⟩ = ⟨dx, v⟩ row by row, and for the weight and bias of every column, with J v by differences of the
    kernel's forward in the type of the case. A backward needs its forward: `forward=` of `verify_norm.kernel` names it,
    or it stands in the same module under the operator's name, such as `layernorm_fwd`. A finding states the smallest
    relative error of that row, or that column, that shows there.
    """
    try:
        found = comparisons(run)
    except NearbyError as error:
        failed = finding(run, "gradient", None, f"its forward fails near this case: {error}", status="error")
        yield failed if str(error) else NoData()
        return
    if not any(c.judged for c in found):
        yield NoData()
    for c in found:
        if not c.judged:
            continue
        u = FORMATS[truth(run, c.output).dtype].u  # what the last rounding may take back
        if c.ratio.max() > 1:
            yield _found(run, c)
        else:
            yield from (SmallestError(c.output, sign, c.smallest(sign) + u) for sign in (1, -1))


def _found(run: Run, c: Comparison) -> Finding:
    unit, count = c.worst, int((c.ratio > 1).sum())
    got, want, allowed = float(c.right[unit]), float(c.left[unit]), float(c.tolerance[unit])
    off, most = told_apart(abs(want - got), allowed)
    message = (
        f"{c.output} of {c.unit} {unit} is not the derivative of its own forward: along {c.name}, ⟨dy, y⟩ changes "
        f"by {want:.6g} and {c.output} says {got:.6g}; {off} apart, {most} allowed (a relative "
        f"error of {allowed / max(abs(want), 1e-300):.2g} shows here); {count} of {c.judged} {c.unit}s are off"
    )
    return finding(run, "gradient", c.output, message, index=(unit,), got=got, want=want, allowed=allowed)


@np.errstate(all="ignore")
def comparisons(run: Run) -> list[Comparison]:
    """Return every comparison of one run: of dx a row or group each, of dweight and dbias a column each."""
    rows = [_rows(run)] if "dx" in compared(run) else []
    return [*rows, *_columns(run)]


def _rows(run: Run) -> Comparison:
    case, x = run.case, exact_input(run.case, "x")
    n = geometry.row_length(case.spec, case.op)
    units = x.size // n
    lam = confidence(units + n)
    rstd = norm(run).rstd.reshape(units, 1)
    v, names = _directions(run, units, n, rstd)
    h = _step(run, v, lam)
    form, rows = FORMATS[case.spec.dtype], x.reshape(units, n)
    plus, minus = (form.round(rows + sign * h * v).reshape(x.shape) for sign in (1, -1))
    moved, d = move(run, {"x": plus}, {"x": minus}), (plus - minus).reshape(units, n)
    left, tolerance = _identity(run, d, moved, names, lam)
    terms = compared(run)["dx"][0].got.reshape(units, n) * d
    typical = np.sqrt((terms * terms).sum(1) / np.maximum((terms != 0).sum(1), 1))
    comparison = Comparison("", "dx", left, terms.sum(1), tolerance, typical, "row")
    return replace(comparison, name=str(names[comparison.worst]))


def _identity(run: Run, d: Array, moved: Moved, names: Any, lam: float) -> tuple[Array, Array]:
    """Return ⟨dy, ΔF⟩ − T of every row, and how far ⟨dx, d⟩ may be off."""
    expected, spec = truth(run, "dx"), run.case.spec
    alike = spec.dy_layout in SHARED - {"expanded"} or spec.dy_data in ALIKE
    arrays = (exact_input(run.case, "dy"), expected.value, judge.allowed(expected))
    dy, value, own = (array.reshape(d.shape) for array in arrays)
    change, reference = moved.kernel.reshape(d.shape), moved.reference.reshape(d.shape)
    allowed, most = moved.allowed.reshape(d.shape), moved.most.reshape(d.shape)
    T = (dy * reference).sum(1) - (value * d).sum(1)
    tolerance = KAPPA * np.abs(T)
    for size, together, structured in (
        (own * d, own * np.abs(d), names != SIGNS),
        (dy * allowed, np.abs(dy) * most, (names == ALIGNED) | alike),
    ):
        by_chance = np.where(structured, np.inf, lam * np.sqrt((size * size).sum(1)))
        tolerance = tolerance + np.minimum(together.sum(1), by_chance)
    lost = np.abs(dy * reference).sum(1) + np.abs(value * d).sum(1)  # by float64, in the sums themselves
    tolerance = tolerance + 4 * d.shape[1] * FORMATS["float64"].u * lost
    unknown = overflows(expected).reshape(d.shape).any(1) | ~np.isfinite(tolerance)
    return (dy * change).sum(1) - T, np.where(unknown, np.inf, tolerance)


def _directions(run: Run, units: int, n: int, rstd: Array) -> tuple[Array, Any]:
    """Return the rows' directions, each of its row's own scale, and their names.

    Every other row has random signs, and those between them each structure in turn.
    """
    case, turn = run.case, run.case.spec.variant
    rng = generator(case.spec.seed, 0x9E3779B9)
    v, names = rng.choice((-1.0, 1.0), (units, n)), [SIGNS] * units
    rows, g = exact_input(case, "x").reshape(units, n), exact_input(case, "dy").reshape(units, n)
    weight = case.exact.get("weight")
    if weight is not None and case.op.view == "rows":
        g = g * (weight.ravel() + case.arguments.get("weight_offset", 0.0))
    for row in range((turn + 1) % 2, units, 2):
        names[row] = STRUCTURED[(row // 2 + turn) % len(STRUCTURED)]
        if names[row] == "one coordinate":
            v[row] = np.where(np.arange(n) == rng.integers(n), np.sqrt(n), 0.0)
        elif names[row] == "the row mean":
            v[row] = 1.0
        elif names[row] == "x̂":
            v[row] = (rows[row] - rows[row].mean()) * rstd[row]
        elif names[row] == "half the row":
            v[row, n // 2 :] = 0.0
        else:
            v[row] = np.where(g[row] < 0, -1.0, 1.0)
    return v / rstd, np.array(names)


def _step(run: Run, v: Array, lam: float) -> Array:
    """Return h, a row: the forward's rounding R and κ times its third difference T(h) ~ h³ cost (R + κT)/h, least at h.

    T is measured on the reference, element by element and without regard to dy's signs, which have to stay random.
    """
    case, start = run.case, 1 / 8
    x, dy = exact_input(case, "x"), exact_input(case, "dy").reshape(v.shape)
    shift = v.reshape(x.shape) * start

    def change(size: float) -> Array:
        ends = [reference_at(ops.forward_of(case.op), case, {"x": x + sign * size * shift}).y for sign in (1, -1)]
        return np.asarray(ends[0] - ends[1])

    third = (change(1.0) - 2 * change(0.5)).reshape(v.shape) * (4 / 3)  # T(h) − 2·T(h/2) = ¾·T(h)
    off = judge.allowed(expected_at(run, {})).reshape(v.shape)
    R = lam * np.sqrt(2 * (dy * dy * off * off).sum(1))
    T = KAPPA * np.sqrt((dy * dy * third * third).sum(1))
    h = start * np.cbrt(R / np.maximum(2 * T, 1e-300))
    return np.clip(np.where(np.isfinite(h), h, start), 2.0**-12, 0.5)[:, None]  # beyond ½ it is no derivative


def _columns(run: Run) -> Iterable[Comparison]:
    """Yield the comparisons of weights and of biases: one kind in the even columns, the other in the odd ones."""
    case = run.case
    if not all(isinstance(stage, Elementwise) for stage in case.op.stages):
        return  # a weight meets several columns
    names = [name for name in ("weight", "bias") if case.exact.get(name) is not None and f"d{name}" in compared(run)]
    if not names:
        return
    size = prod(geometry.affine_shape(case.spec, case.op))
    plus, minus, whose = {}, {}, (np.arange(size) + case.spec.variant) % len(names)
    rng = generator(case.spec.seed, 0x85EBCA6B)
    step, form = 1 / 2 if case.op.linear else 1 / 16, FORMATS[case.spec.weight_dtype or case.spec.dtype]
    for number, name in enumerate(names):
        value = exact_input(case, name)
        v = np.where(whose == number, rng.choice((-1.0, 1.0), size), 0.0).reshape(value.shape) * (1 + np.abs(value))
        plus[name], minus[name] = form.round(value + v * step), form.round(value - v * step)
    moved = move(run, plus, minus)
    for number, name in enumerate(names):
        yield _column(run, name, plus[name] - minus[name], moved, whose == number)


def _column(run: Run, name: str, d: Array, moved: Moved, mine: np.ndarray[Any, Any]) -> Comparison:
    case, expected, dy = run.case, truth(run, f"d{name}"), exact_input(run.case, "dy")
    lam = confidence(d.size + 1)

    def sums(values: Array) -> Array:
        groups = case.op.view != "rows"
        parts = values.reshape(*values.shape[:2], -1).sum((0, 2)) if groups else values.reshape(-1, mine.size).sum(0)
        return np.asarray(parts[mine])

    d = d.ravel()[mine]
    tangent = expected.value.ravel()[mine] * d
    T = sums(dy * moved.reference) - tangent if not case.op.linear else np.zeros(d.shape)  # 0: it is linear
    left, right = sums(dy * moved.kernel) - T, compared(run)[f"d{name}"][0].got.ravel()[mine] * d
    most = sums(np.abs(dy) * moved.most)
    random = case.spec.dy_layout not in SHARED and case.spec.dy_data not in ALIKE and not case.spec.alias
    by_chance = lam * np.sqrt(sums((dy * moved.allowed) ** 2)) if random else most
    off = judge.allowed(expected).ravel()[mine] * np.abs(d)
    float64_error = 4 * dy.size * FORMATS["float64"].u * (sums(np.abs(dy * moved.reference)) + np.abs(tangent))
    tolerance = np.minimum(most, by_chance) + off + float64_error + KAPPA * np.abs(T)
    unknown = overflows(expected).ravel()[mine] | ~np.isfinite(tolerance)
    tolerance = np.where(unknown, np.inf, tolerance)
    return Comparison("its own axis", f"d{name}", left, right, tolerance, np.abs(right), "column")
