"""What a kernel's results have to do when its inputs change in a way whose effect is known, and how exactly.

Each identity runs the kernel again near a case and compares results with results, never with the truth, so that two
runs may share their errors: what they share is no excuse. An identity returns None where it cannot say anything.

**Scale.** x·2^k and eps·4^k, and all that is saved accordingly. Sums, differences, products, quotients, square roots
and conversions are exactly homogeneous in powers of two while nothing overflows or underflows, so every bit up to
var + eps is the same, whatever the algorithm (two passes, Welford, shifted, x·a + b, float64 inside). Only a reciprocal
root by a power or by Newton's method may depend on the exponent, by γ(5) each time. So mean, residual_out and dbias
scale exactly, and the others within `stages.*_apart` of that root, twice.

An activation moves with what it is applied to, and dbias with it then.

**Scale of dy.** −2^k·dy scales every gradient exactly, bit by bit: they are linear, and rounding is symmetric.

**Linearity.** dy = dy∘m + dy∘(1 − m), without a rounding. mean, rstd and x̂' are the same bits in all three runs, so
the gradients add up within the roundings that follow them: three times `stages.*_apart` with nothing off in the root.

**Shift.** x' = round(x + c), with c a power of two beyond x, and x'' = x' − c, which is exact, have the same y, rstd
and gradients, and means c apart. The runs share nothing, so either is allowed its own bound.

**Permutation.** With its rows in another order, a row's results are the same bits where the contract says so
(`batch_invariant`), else both within their bound; dweight and dbias are sums in another order.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from verify_norm import cases, data, judge
from verify_norm.adjoint import reference_at
from verify_norm.dtypes import FORMATS, Array
from verify_norm.nearby import Equation, Equations, format_of, half_ulps, judged, pairs, rerun
from verify_norm.spec import Run
from verify_norm.stages import (
    Stages,
    cotangent,
    dbias_apart,
    dweight_apart,
    dx_apart,
    has_mean,
    stages,
    y_apart,
    z_apart,
)

POWERS = {  # of 2^k, where x is scaled by 2^k
    "x": 1, "residual": 1, "residual_out": 1, "mean": 1, "rstd": -1, "running_mean": 1, "running_var": 2, "y": 0,
    "amax": 0, "dx": -1, "dresidual_out": -1, "dweight": 0, "dbias": 0,
}  # fmt: skip
MODERATE = 24  # log2 |x| and log2 |dy| at most: far from where a square, a product of three or r³ leaves float32


def _subnormal(run: Run, name: str, left: Array, right: Array, power: int) -> Array:
    """What the roundings of subnormal numbers may add: nothing for normal ones. `right` has been scaled back."""
    form = format_of(run, name)
    there = right * 2.0**power
    low = np.minimum(np.abs(left), np.abs(there)) < 2 * form.smallest_normal
    return np.where(low, 0.5 * form.ulp(left) + 0.5 * form.ulp(there) * 2.0**-power, 0.0)


def _moderate(values: Array | None) -> bool:
    if values is None:
        return True
    most = np.abs(values).max(initial=0.0)
    return bool(most == 0.0 or 2.0**-MODERATE <= most <= 2.0**MODERATE)


def _exponent(run: Run, names: tuple[str, ...], reach: tuple[int, ...]) -> int | None:
    """The first exponent of `reach`, from a place that the seed names, by which these inputs can be multiplied."""
    spec, op = run.case.spec, run.case.op
    turn = spec.seed // 4 % len(reach)
    for k in (*reach[turn:], *reach[:turn]):
        fits = True
        for tensor in op.inputs:
            values = run.case.exact[tensor.name]
            if tensor.name in names and values is not None:
                form, scaled = FORMATS[data.input_dtype(tensor, spec)], values * 2.0 ** (k * POWERS.get(tensor.name, 1))
                fits = fits and _moderate(scaled) and bool((form.round(scaled) == scaled).all())
        if fits:
            return k
    return None


def _homogeneous(run: Run) -> bool:
    """Whether the arithmetic is wide, and its values far from the ends of its range."""
    exact = run.case.exact
    data_names = [t.name for t in run.case.op.inputs if t.extent == "data"]
    wide = run.kernel.contract.accumulate in ("float32", "float64")
    return wide and all(_moderate(exact[name]) for name in (*data_names, "weight", "bias") if name in exact)


def scale(run: Run) -> Equations:
    """The kernel at 2^k times x and 4^k times eps."""
    case, contract = run.case, run.kernel.contract
    names = tuple(t.name for t in case.op.inputs if t.name in POWERS)
    k = _exponent(run, names, (-8, 8, -5, 5, -2, 2, -1, 1))
    x = case.exact.get("residual_out", case.exact.get("x"))
    if k is None or x is None or not x.any() or not _homogeneous(run):
        return None
    if case.op.view == "channels" and not contract.deterministic:
        return None  # its statistics are sums over rows
    s = stages(run)
    scaled = {name: None if (v := case.exact[name]) is None else v * 2.0 ** (k * POWERS[name]) for name in names}
    other = rerun(run, scaled, replace(case.spec, eps=case.spec.eps * 4.0**k))
    found = []
    for name, left, right in pairs(run, other):
        power = k * POWERS[name]
        right = right * 2.0**-power
        apart = 2 * np.broadcast_to(_root_apart(run, s, name, left), left.size).reshape(left.shape)
        rounded = np.where(apart > 0, half_ulps(run, name, np.abs(left) + apart, np.abs(right) + apart), 0.0)
        tolerance = apart + rounded + _subnormal(run, name, left, right, power)
        words = f"x·2^{k} and eps·4^{k} are to give it times 2^{power}"
        found.append(Equation(words, name, left, right, judged(run, name, tolerance, power)))
    return found


def _root_apart(run: Run, s: Stages, name: str, got: Array) -> Array:
    """What an output may be off by, once every bit up to the reciprocal root is settled; flat."""
    dy, passed = run.case.exact.get("dy"), run.case.exact.get("dresidual_out")
    if name == "rstd":
        u = s.arithmetic.stats_u
        return ((s.root + u) * (1 + s.root) * np.abs(got)).ravel()
    if name == "y":
        return y_apart(s, s.root).ravel()
    if name == "amax":
        return np.asarray(z_apart(s, s.root).max()).reshape(1)
    if dy is None:
        return np.zeros(1)
    settled = name == "dbias" and run.kernel.contract.deterministic and s.activation is None
    if name not in ("dx", "dweight", "dbias") or settled:
        return np.zeros(1)
    return gradient_apart(s, name, *cotangent(s, dy), passed, s.root).ravel()


def scale_dy(run: Run) -> Equations:
    """The kernel at −2^k times dy."""
    case, contract = run.case, run.kernel.contract
    names = ("dy", "dresidual_out")
    reach = (10, -3, 1, -10, 3, -1)
    k = next((k for k in reach[case.spec.seed % 6 :] + reach if _dy_fits(run, names, k)), None)
    narrow = {contract.xhat, contract.partials, contract.stats} - {None, "float32"}
    if k is None or narrow or not _homogeneous(run):  # a narrow intermediate may underflow
        return None
    s, dy = stages(run), case.exact["dy"]
    assert dy is not None
    other = rerun(run, {name: -v * 2.0**k for name in names if (v := case.exact.get(name)) is not None})
    found = []
    for name, left, right in pairs(run, other):
        right = -right * 2.0**-k
        tolerance = _subnormal(run, name, left, right, k)
        if not contract.deterministic and name != "dx":
            apart = gradient_apart(s, name, *cotangent(s, dy), None).reshape(left.shape)
            tolerance = tolerance + 2 * apart + half_ulps(run, name, left, right)
        words = f"−2^{k}·dy is to give exactly −2^{k} times it"
        found.append(Equation(words, name, left, right, judged(run, name, tolerance, k)))
    return found


def _dy_fits(run: Run, names: tuple[str, ...], k: int) -> bool:
    form = FORMATS[run.case.spec.dtype]
    values = [v * 2.0**k for name in names if (v := run.case.exact.get(name)) is not None]
    return all(_moderate(v) and bool((form.round(v) == v).all()) for v in values)


def linearity(run: Run) -> Equations:
    """The kernel at either half of dy."""
    case = run.case
    dy, passed = case.exact["dy"], case.exact.get("dresidual_out")
    assert dy is not None
    if case.spec.dy_layout in ("expanded", "scalar") or case.spec.dresidual_out_layout in ("expanded", "scalar"):
        return None  # halves of dy do not fit into one shared element
    if not _homogeneous(run) or (case.op.view == "channels" and not run.kernel.contract.deterministic):
        return None
    rng = np.random.Generator(np.random.Philox(key=[case.spec.seed, 0xA5A5A5A5]))
    mask = rng.integers(0, 2, dy.shape).astype(np.float64)
    halves = [(dy * m, None if passed is None else passed * m) for m in (mask, 1.0 - mask)]
    changed = [{"dy": d} if p is None else {"dy": d, "dresidual_out": p} for d, p in halves]
    runs, values = [rerun(run, half) for half in changed], [reference_at(case.op, case, half) for half in changed]
    s, found = stages(run), []
    parts = [(*cotangent(s, d), p) for d, p in ((dy, passed), *halves)]
    for (name, whole, one), (_, _, two) in zip(*(pairs(run, r) for r in runs), strict=True):
        apart = sum((gradient_apart(s, name, *part) for part in parts), np.zeros(())).reshape(whole.shape)
        tolerance = apart + half_ulps(run, name, *(np.abs(v) + apart for v in (whole, one, two)))
        most = np.maximum(*(np.abs(getattr(v, name)) for v in values)) + apart
        known = most < format_of(run, name).largest / 2  # a half may overflow where the whole does not
        words = "it is to be the sum of what two halves of dy give"
        found.append(Equation(words, name, whole, one + two, np.where(known, judged(run, name, tolerance), np.inf)))
    return found


def gradient_apart(
    s: Stages, name: str, dy: Array, lost: Array | float, passed: Array | None, factor: float = 0.0
) -> Array:
    """What the roundings after x̂' may come to, in one gradient."""
    if name == "dx":
        return dx_apart(s, dy, passed, factor, lost=lost)
    return dweight_apart(s, dy, factor, lost=lost) if name == "dweight" else dbias_apart(s, dy, lost=lost)


def shift(run: Run) -> Equations:
    """The kernel at x + c and at x."""
    case, spec = run.case, run.case.spec
    name = "residual_out" if "residual_out" in case.exact else "x"
    x, form = case.exact[name], FORMATS[spec.dtype]
    assert x is not None
    most = float(np.abs(x).max(initial=0.0))
    if not has_mean(case) or not spec.eps > 0 or not 0.0 < most < form.largest / 2**12 or most < form.smallest_normal:
        return None
    c = 2.0 ** (math.ceil(math.log2(most)) + (1, 4, 9)[spec.seed // 4 % 3])
    far = form.round(x + c)
    near = far - c
    if not (np.isfinite(far).all() and (form.round(near) == near).all()):
        return None
    runs = []
    for values in (far, near):
        moved = {**case.exact, name: values}
        runs.append(rerun(run, moved | cases.saved(spec, case.op, moved), truth=True))
    found = []
    for output in run.outputs:
        sides = [r.outputs.get(output) for r in runs]
        expected = [r.case.expected[output] for r in runs]
        kept = format_of(run, output).name if run.case.expected[output] is not None else None
        if output.startswith("running_") or any(v is None or v.ratio is None or v.dtype != kept for v in sides):
            continue
        (left, right), (a, b) = (v.got for v in sides if v), (e for e in expected if e)
        known = judge.judged(a) & judge.judged(b)
        known = known & (np.maximum(np.abs(a.value), np.abs(b.value)) + a.delta + b.delta < form.largest / 2)
        tolerance = np.where(known, judge.allowed(a) + judge.allowed(b), np.inf)
        moves = c if output in ("mean", "residual_out") else 0.0
        words = f"x + {c:g} is to give it at x" + (f" plus {c:g}" if moves else "")
        found.append(Equation(words, output, left - moves, right, tolerance))
    return found
