"""What a kernel's results do when its inputs change in a way whose effect is known, and how exactly.

Each law runs the kernel again near a case and compares results with results, never with the truth: errors that two
runs share drop out, so the tolerance holds none of them. A law returns None where it says nothing of a case.

**Scale.** x·2^k and eps·4^k, and all that is saved accordingly. Sums, differences, products, quotients, square roots
and conversions are exactly homogeneous in powers of two while nothing overflows or underflows, so every bit up to
var + eps is the same, whatever the algorithm (two passes, Welford, shifted, x·a + b, float64 inside). Only a reciprocal
root by a power or by Newton's method may depend on the exponent, by γ(7) each time. So mean, residual_out and dbias
scale exactly, and the others within `stages.*_apart` of that root, twice.

An activation moves with what it is applied to, and dbias with it then. For another eps torch.compile makes another
program, whose sums may be in another order: where it is in use, this law says nothing.

**Scale of dy.** −2^k·dy scales every gradient exactly, bit by bit: they are linear, and rounding is symmetric.

**Linearity.** dy = dy∘m + dy∘(1 − m), without a rounding. mean, rstd and x̂' are the same bits in all three runs, so
the gradients add up within the roundings that follow them: three times `stages.*_apart` with nothing off in the root.

**Shift.** x' = round(x + c), with c a power of two beyond x, and x'' = x' − c, which is exact, have the same y, rstd
and gradients, and means c apart. The runs share nothing, so either is allowed its own bound.

**Permutation.** With its rows in another order, a row's results are the same bits where the contract says so
(`batch_invariant`), else both within their bound; dweight and dbias are sums in another order.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from verify_norm.cases import further_runs, make
from verify_norm.cases.random import generator
from verify_norm.checks.relations import equations, stages
from verify_norm.checks.relations.equations import Equation, Equations
from verify_norm.checks.relations.forward import reference_at
from verify_norm.checks.relations.rerun import has_rows, nearby, rows_of
from verify_norm.core import geometry, judge
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.run import Run
from verify_norm.core.spec import SHARED
from verify_norm.reference.arithmetic import DIVISION, ROOT
from verify_norm.running import captures

# Of 2^k, where x is scaled by 2^k.
POWERS = {"x": 1, "residual": 1, "residual_out": 1, "mean": 1, "rstd": -1, "running_mean": 1, "running_var": 2}
POWERS |= {"y": 0, "amax": 0, "dx": -1, "dresidual": -1, "dresidual_out": -1, "dweight": 0, "dbias": 0}
POWERS |= dict.fromkeys(("gate", "scale", "shift", "dgate", "dscale", "dshift", "cos", "sin", "y_scale"), 0)
MODERATE = 24  # log2 |x| and log2 |dy| at most: far from where a square, a product of three or r³ leaves float32
UNDERFLOWS = 2.0 ** (FORMATS["float32"].emin + 2 * MODERATE)  # below it, a moderate product may have a subnormal factor


def _rounded(run: Run, name: str, left: Array, right: Array, power: int, apart: Array) -> Array:
    """Return half an ulp of each side where they may differ: by `apart`, or as subnormals; `right` is scaled back.

    Where a factor of either may be subnormal, later factors may multiply its rounding: there, both have their bounds.
    """
    form, delta = equations.format_of(run, name), equations.truth(run, name).delta
    left, there = np.abs(left) + apart, (np.abs(right) + apart) * 2.0**power
    low = np.minimum(left, there) < 2 * form.smallest_normal
    rounded = np.where((apart > 0) | low, 0.5 * form.ulp(left) + 0.5 * form.ulp(there) * 2.0**-power, 0.0)
    return rounded + np.where(np.maximum(left, there) < UNDERFLOWS, delta * (1.0 + max(1.0, 2.0**-power)), 0.0)


def _moderate(values: Array | None) -> bool:
    most = 0.0 if values is None else np.abs(values).max(initial=0.0)
    return bool(most == 0.0 or 2.0**-MODERATE <= most <= 2.0**MODERATE)


def _fits(run: Run, powers: dict[str, int]) -> bool:
    """Return whether these inputs, each multiplied by its power of two, are exact in their types, and moderate."""
    for tensor in run.case.op.inputs:
        values = run.case.exact[tensor.name]
        if tensor.name in powers and values is not None:
            scaled = values * 2.0 ** powers[tensor.name]
            form = FORMATS[geometry.input_dtype(tensor, run.case.spec)]
            if not _moderate(scaled) or not (form.round(scaled) == scaled).all():
                return False
    return True


def _homogeneous(run: Run) -> bool:
    """Return whether the arithmetic is wide, its values far from the ends of its range, and statistics always the same.

    BatchNorm's statistics are sums over rows.
    """
    op, contract, exact = run.case.op, run.kernel.contract, run.case.exact
    data = [t.name for t in op.inputs if t.extent in ("data", "sample")]
    wide = contract.accumulate in ("float32", "float64") and (op.view != "channels" or contract.deterministic)
    return wide and all(_moderate(exact[name]) for name in (*data, "weight", "bias") if name in exact)


def scale(run: Run) -> Equations:
    """Compare the kernel at 2^k times x and 4^k times eps."""
    case, contract = run.case, run.kernel.contract
    names = [t.name for t in case.op.inputs if t.name in POWERS]
    reach = further_runs.from_variant(case.spec, (-8, 8, -5, 5, -2, 2, -1, 1))
    k = next((k for k in reach if _fits(run, {name: k * POWERS[name] for name in names})), None)
    x = case.exact.get("residual_out", case.exact.get("x"))
    types = (contract.stats, contract.partials, contract.z or "float32")
    kept = (FORMATS[case.spec.dtype if t == "x" else t] for t in types)
    short = any(form.emin > FORMATS["float32"].emin for form in kept)  # a mean or Σdy·(x − μ) leaves float16's range
    if k is None or x is None or not x.any() or not _homogeneous(run) or short or captures.in_use():
        return None
    s = stages.stages(run)
    scaled: dict[str, Array] = {}
    for name in names:
        values = case.exact[name]
        if values is not None:
            scaled[name] = values * 2.0 ** (k * POWERS[name])
    other = nearby(run, scaled, replace(case.spec, eps=case.spec.eps * 4.0**k))
    found = []
    for name, left, right in equations.pairs(run, other):
        power = k * POWERS[name]
        right = right * 2.0**-power
        apart = 2 * np.broadcast_to(_root_apart(run, s, name, left), left.size).reshape(left.shape)
        tolerance = apart + _rounded(run, name, left, right, power, apart)
        change = f"scale by 2^{power}" if power else "not change"
        words = f"{name} must {change} when x is scaled by 2^{k} and eps by 4^{k}"
        found.append(Equation(words, name, left, right, equations.judged(run, name, tolerance, power)))
    return found


def _root_apart(run: Run, s: stages.Stages, name: str, got: Array) -> Array:
    """Return what an output may be off by, once every bit up to the reciprocal root is settled; flat.

    The root is off by what `statistics_rounding.rstd_error` adds: the roundings of eps and of the addition, a root and
    a division.
    """
    root, dy = s.arithmetic.gamma(ROOT + DIVISION + 1), run.case.exact.get("dy")
    if name == "rstd":
        return (root * (1 + root) * np.abs(got)).ravel()
    if name == "y":
        return stages.y_apart(s, root).ravel()
    if name == "y_scale":
        return equations.truth(run, name).delta.ravel()
    if name == "amax":
        return np.reshape(stages.z_apart(s, root).max(), 1)
    settled = name in ("dbias", "dshift") and run.kernel.contract.deterministic and run.case.op.linear
    if dy is None or settled:
        return np.zeros(1)
    return stages.apart_of(s, name, dy, run.case.exact.get("dresidual_out"), root).ravel()


def scale_dy(run: Run) -> Equations:
    """Compare the kernel at −2^k times dy."""
    case, contract = run.case, run.kernel.contract
    reach = further_runs.from_variant(case.spec, (10, -3, 1, -10, 3, -1))
    k = next((k for k in reach if _fits(run, {"dy": k, "dresidual_out": k})), None)
    narrow = {contract.xhat, contract.partials, contract.stats, contract.z} - {None, "float32"}
    if k is None or narrow or not _homogeneous(run):  # a narrow intermediate may underflow
        return None
    s = stages.stages(run)
    changed = {"dy": stages.exact_input(case, "dy"), "dresidual_out": case.exact.get("dresidual_out")}
    other = nearby(run, {name: -v * 2.0**k for name, v in changed.items() if v is not None})
    found = []
    for name, left, right in equations.pairs(run, other):
        right = -right * 2.0**-k
        apart = np.zeros(left.shape)
        if not contract.deterministic and name not in ("dx", "dresidual"):
            once = stages.apart_of(s, name, stages.exact_input(case, "dy"), None)
            apart = 2 * once.reshape(left.shape)
        tolerance = apart + _rounded(run, name, left, right, k, apart)
        words = f"{name} must scale by −2^{k} when dy is scaled by −2^{k}"
        found.append(Equation(words, name, left, right, equations.judged(run, name, tolerance, k)))
    return found


def linearity(run: Run) -> Equations:
    """Compare the kernel at either half of dy."""
    case, spec = run.case, run.case.spec
    dy, passed = stages.exact_input(case, "dy"), case.exact.get("dresidual_out")
    if {spec.dy_layout, spec.dresidual_out_layout} & SHARED or not _homogeneous(run):
        return None  # halves of dy do not fit into one shared element
    rng = generator(spec.seed, 0xA5A5A5A5)
    mask = rng.integers(0, 2, dy.shape).astype(np.float64)
    halves = [(dy * m, None if passed is None else passed * m) for m in (mask, 1.0 - mask)]
    changed = [{"dy": d, "dresidual_out": p} for d, p in halves]
    runs, values = [nearby(run, half) for half in changed], [reference_at(case.op, case, half) for half in changed]
    s, found = stages.stages(run), []
    parts = ((dy, passed), *halves)
    for (name, whole, one), (_, _, two) in zip(*(equations.pairs(run, r) for r in runs), strict=True):
        apart = sum((stages.apart_of(s, name, *part) for part in parts), np.zeros(())).reshape(whole.shape)
        tolerance = apart + equations.half_ulps(run, name, *(np.abs(v) + apart for v in (whole, one, two)))
        most = np.maximum(*(np.abs(getattr(v, name)) for v in values)) + apart
        known = most < equations.format_of(run, name).largest / 2  # a half may overflow where the whole does not
        tolerance = np.where(known, equations.judged(run, name, tolerance), np.inf)
        words = f"{name} must be the sum of its values for two halves of dy"
        found.append(Equation(words, name, whole, one + two, tolerance))
    return found


def shift(run: Run) -> Equations:
    """Compare the kernel at x + c and at x."""
    case, spec = run.case, run.case.spec
    name = "residual_out" if "residual_out" in case.exact else "x"
    x, form = stages.exact_input(case, name), FORMATS[spec.dtype]
    most = float(np.abs(x).max())
    if (
        not stages.has_mean(case)
        or not case.op.direct
        or not spec.eps > 0
        or not form.smallest_normal <= most < form.largest / 2**12
    ):
        return None
    c = 2.0 ** (math.ceil(math.log2(most)) + further_runs.variant(spec, (1, 4, 9)))
    far = form.round(x + c)
    near = far - c  # exact, since c is at least twice the largest x (Sterbenz)
    moved = [{**case.exact, name: values} for values in (far, near)]
    runs = [nearby(run, values | make.saved(spec, case.op, values), truth=True) for values in moved]
    one, two = (equations.compared(r) for r in runs)
    found = []
    for output in (name for name in one if name in two and not name.startswith("running_")):
        (left, a), (right, b) = one[output], two[output]
        if not left.dtype == right.dtype == a.dtype:
            continue
        most = FORMATS[a.dtype].largest / 2  # an output of weight's type may overflow where x's does not
        known = np.maximum(np.abs(a.value), np.abs(b.value)) + a.delta + b.delta < most
        tolerance = np.where(known, judge.allowed(a) + judge.allowed(b), np.inf)
        moves = c if output in ("mean", "residual_out") else 0.0
        words = f"{output} must {f'move by {c:g}' if moves else 'not change'} when x moves by {c:g}"
        found.append(Equation(words, output, left.got - moves, right.got, tolerance))
    return found


def permutation(run: Run) -> Equations:
    """Compare the kernel on the same rows in another order."""
    case = run.case
    if not has_rows(case):
        return None
    count = case.spec.shape[0]
    order = generator(case.spec.seed, 0xC0FFEE).permutation(count)
    other, found = nearby(run, rows_of(case, order)), []
    extents = {tensor.name: tensor.extent for tensor in case.op.outputs}
    by_row = run.kernel.contract.batch_invariant and case.op.view != "channels"

    def moved(values: Array) -> Array:
        return values.reshape(count, -1)[order].reshape(values.shape)

    for name, left, right in equations.pairs(run, other):
        dy, tolerance = case.exact.get("dy"), 2 * judge.allowed(equations.truth(run, name))
        of_rows = extents[name] in ("data", "sample", "block")
        if of_rows or (extents[name] == "statistic" and case.op.view != "channels"):
            known = np.isfinite(equations.judged(run, name, np.zeros(left.shape)))
            tolerance = np.where(moved(known), 0.0 if by_row else moved(tolerance), np.inf)
            left, words = moved(left), f"{name} must have the same rows in another order"
        else:
            words = f"{name} must not change"
            if by_row and extents[name] == "one":
                tolerance = np.zeros(left.shape)  # a maximum rounds nothing
            elif by_row and dy is not None:  # the terms are the same bits, in another order
                s = stages.stages(run)
                apart = stages.apart_of(s, name, dy, None).reshape(left.shape)
                tolerance = 2 * apart + equations.half_ulps(run, name, np.abs(left) + apart, np.abs(right) + apart)
            tolerance = equations.judged(run, name, tolerance)
        words += " when the rows of x have another order"
        found.append(Equation(words, name, left, right, tolerance))
    return found


LAWS: dict[str, Callable[[Run], Equations]] = {
    law.__name__: law for law in (scale, scale_dy, linearity, shift, permutation)
}
