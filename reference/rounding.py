"""How far a correct kernel's result may be from the truth: a forward error analysis, stage by stage.

A kernel computes in an arithmetic with unit roundoff u (`arithmetic`). Each stage below takes the exact values of the
operator and the errors of the stages before it. It returns a bound on the error of what the kernel computes, before
the final rounding to the output's type. Products of errors are kept, so the bounds hold where errors are large. An
element whose bound is not finite is not judged: its row has NaN or Inf, or a sum or product may overflow, or underflow
to nothing. γ(k) bounds k roundings in a row, and h stands for the roundings that a sum may feel (`arithmetic`).

Where sums are matrix products, a sum of products errs by γ(h) ∘ `product_u` of Σ|t|, and one of terms alone by
γ(h)·Σ|t| and by what operands miss of the terms (`Arithmetic.summed`, `Arithmetic.missed`); ∘ is one relative change
after another.

**Mean.** δμ = γ(h + q)·mean|x|, q = 5: the sum, and a division, or a product with a 1/n that a division made
(`arithmetic`). The mean of one element is exact. Where the variance is centered, the mean may be Welford's, and h is
the larger of h and k below: each update rounds the mean itself. A mean relative to the first element x0 adds
u|μ| + γ(h + q + 1)·mean|x − x0|.

**Variance.** All n deviations share the error e of the mean, and Σ(x − μ) = 0, so mean (xc − e)² = var + e²: e enters
at second order, and never lessens the variance. With 2 roundings of x − μ squared, the sum and the division,
two_pass:  −γ(h + q + 2)·var ≤ var' − var ≤ δμ² + γ(h + q + 2)·(var + δμ²).
centered (Welford's updates, or the merging of Chan, Golub & LeVeque, The American Statistician 37, 1983): each
deviation is from its own running mean, which is off by u·mean|x| for each update before it, and which Σ(x − mean) does
not cancel. This adds k·u·mean|x|·mean|xc| to either side, with

    k = min(n, log2 n + n/192 + 6)

since one run of L updates lost up to 0.66L·u in measurements (ramps and steps, offset by up to 10⁴σ), and the runs of
128 lanes have n/128 updates; the tree of merges needs no more than that of a sum. If the means of tiles t are matrix
products, δ_t ≤ v·mean_t|x| with v = `operand_u`, and as |μ_t − μ| ≤ mean_t|xc|, the merge is off by a weighted mean of
2|μ_t − μ|δ_t, at most 2v(|μ|·mean|xc| + var). A merge multiplies the square of the difference of two means by a count,
and the mean of an empty part is 0 (torch's LayerNorm starts so). So where n·max x² may overflow, 0·inf = NaN is right,
and nothing is judged.
shifted: E[d²] − E[d]² with d = x − x0 and s = |μ − x0| subtracts numbers of size s² + var:
γ(h + q + 2)·(var + s² + 2s·mean|d|) to either side.

**A computed x.** Where a stage comes before the norm, a kernel's own x is off by up to d in each element. √(var + eps)
is the length of the vector (xc/√n, √eps), and xc moves by no more than x, so it moves by at most D = √(mean d²), and r
by the factor 1/(1 − r·D). The mean moves by mean d, and each x̂' by r(1 + ρ)d beside S. Roundings that are relative to
x' and not to x count as much more, 1 + 4rD times.

**Reciprocal root.** With low ≤ var' − var ≤ high, r' = r(1 + ρ') where |ρ'| ≤ ρ, the larger of
1/√(1 − low/(var + eps)) − 1 and 1 − 1/√(1 + high/(var + eps)), and 7u: a root, a division (`arithmetic`), and half of
the roundings of eps and of the addition.

**Given statistics.** A backward that uses the mean μ' and rstd r' that it is given computes none of this. Its δμ and ρ
are the distances |μ' − μ| and |r'/r − 1|, which are known: one rounding of each, to the type that they are saved in.
Since Σ(x − μ') is not 0, forms of dx that are equal otherwise differ, as c1 = mean(g·x̂') and mean((g − c2)·x̂') by
S·c2, with S as below. The bound is one around the exact gradient, not around that of μ' and r', so it holds for each.

**x̂.** x̂' = r'(x − μ') has one shift S = r(1 + ρ)δμ for its row, one factor 1 + ρ' for its row, and roundings of each
element, e = 2u of a magnitude m = (1 + ρ)(|x̂| + rδμ); for x·a + b, m = (1 + ρ)r(|x| + |μ| + δμ) and e = 3u. A kernel
that divides by √(var + eps) saves a division in r, and pays it here: 7u + 2u cover both.
Hence |x̂' − x̂| ≤ S + ρ|x̂| + e·m.

**Gradients.** dy itself may be off, by `lost` of each element, where it holds an activation's derivative
(`activation`). S and ρ belong to the row, so in c1 = mean(g·x̂) they meet |c2| and |c1|, not the far larger means of
absolute values: δc1 = ρ|c1| + S|c2| + γ(h + q)·mean|g|m + …. This makes the bound of dx tight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from verify_norm.reference.arithmetic import DIVISION, ROOT, Arithmetic, compound, finite_below, nearest
from verify_norm.reference.norm import Norm, Projection
from verify_norm.reference.view import Array

QUOTIENT = DIVISION + 1  # roundings of a division by n, or of 1/n and a product


@dataclass(frozen=True, slots=True)
class StatisticsError:
    """|μ' − μ| ≤ `mean`, −`low` ≤ var' − var ≤ `high` and |r'/r − 1| ≤ `rho`, of every row."""

    mean: Array
    low: Array
    high: Array
    rho: Array


class Given(NamedTuple):
    """The statistics that a backward is given, in the operator's shapes; the mean is None in RMSNorm."""

    mean: Array | None
    rstd: Array


@dataclass(frozen=True, slots=True)
class XhatError:
    """|x̂' − x̂| ≤ shift + factor·|x̂| + unit·magnitude + floor + off; `magnitude` bounds |x̂'|, or the terms of its sum.

    `off` is what each element of x is off by on its own; None where x is given.
    """

    shift: Array
    factor: Array
    magnitude: Array
    unit: float
    floor: Array
    off: Array | None = None

    @property
    def alone(self) -> Array:
        """What an element is off by beside its roundings, not in proportion to x̂: shift, floor, and off."""
        return self.shift + self.floor if self.off is None else self.shift + self.floor + self.off


@dataclass(frozen=True, slots=True)
class MeansError:
    """The errors of g = w·dy, c1 = mean(g·x̂) and c2 = mean g.

    Parameters
    ----------
    lost : what each element of g is off by before it is rounded.
    size : |g| + lost.
    unit : ε, the relative change by the roundings of g.
    floor : what an underflow of g loses.
    mean_g, mean_gm : the means of `size`, and of `size` times the magnitude m of x̂'.
    dc1, dc2 : δc1 and δc2; δc2 is 0 in RMSNorm.
    """

    lost: Array
    size: Array
    unit: float
    floor: float
    mean_g: Array
    mean_gm: Array
    dc1: Array
    dc2: Array


def statistics_error(n: Norm, a: Arithmetic) -> StatisticsError:
    """Return the errors of the statistics of x, as a kernel computes them, before it saves them."""
    if n.centred:
        mean, size = mean_error(n, a)
        low, high = variance_error(n, mean, size, a)
    else:
        mean = np.zeros_like(n.rstd)
        low, high = mean_square_error(n, a)
    error = StatisticsError(mean, low, high, rstd_error(low, high, n.rstd, a))
    return error if n.off is None else _of_computed(n, n.off, error)


def _of_computed(n: Norm, off: Array, e: StatisticsError) -> StatisticsError:
    """Return the errors of the statistics where x itself is off."""
    D = n.rstd * np.sqrt(n.average(off * off))
    D = np.zeros_like(D) if n.centred and n.view.count == 1 else D  # x − mean is 0 in any case
    moved = np.where(D < 1.0, D / np.maximum(1.0 - D, 0.0), np.inf)
    more = 1.0 + 4.0 * moved
    mean = e.mean * more + n.average(off) if n.centred else e.mean
    return replace(e, mean=mean, rho=(1.0 + e.rho * more) * (1.0 + moved) - 1.0)


def mean_error(n: Norm, a: Arithmetic) -> tuple[Array, Array]:
    """Return δμ of every row, and the mean of |x| in it."""
    N = n.view.count
    size = n.average(np.abs(n.x))
    terms = a.terms(N, products=False)
    if a.variance == "centered":
        terms = max(terms, a.updates(N))
    missed = n.average(a.missed(n.x))
    delta = (a.gamma(terms + QUOTIENT) if N > 1 else 0.0) * (size + missed) + missed + 4 * a.tiny
    if a.variance == "shifted":
        relative = compound(a.gamma(terms + QUOTIENT + 1), a.operand_u)
        delta = delta + a.u * np.abs(n.mean) + relative * n.average(np.abs(n.xc - first(n)))
    return finite_below(delta, N * size, a.huge), size


def first(n: Norm) -> Array:
    """Return x0 − μ of every row, x0 its first element, on axes of size 1."""
    return n.xc[tuple(slice(0, 1) if axis in n.view.axes else slice(None) for axis in range(n.xc.ndim))]


def variance_error(n: Norm, dmean: Array, size: Array, a: Arithmetic) -> tuple[Array, Array]:
    """Return how much too small and how much too large var may be: (low, high), both positive; `size` is mean|x|."""
    N = n.view.count
    lost = a.summed(N, QUOTIENT + 2)
    low = lost * n.var + 4 * a.tiny
    magnitude = n.var + dmean * dmean
    if a.variance == "centered":
        deviation = n.average(np.abs(n.xc))
        low = low + a.gamma(a.updates(N)) * size * deviation
        tiles = n.average(a.missed(n.x)) > 0
        low = low + 2 * a.operand_u * tiles * (np.abs(n.mean) * deviation + n.var)
        largest = np.abs(n.xc).max(n.view.axes, keepdims=True, initial=0.0) + size  # at least max |x|
        magnitude = N * magnitude + largest * largest
    if a.variance == "shifted":
        s = np.abs(first(n))
        low = low + lost * (s * s + 2 * s * n.average(np.abs(n.xc - first(n))))
        magnitude = magnitude + s * s
    return low, finite_below(low + (1 + lost) * dmean * dmean, N * magnitude, a.huge)


def mean_square_error(n: Norm, a: Arithmetic) -> tuple[Array, Array]:
    """Return (low, high) of a mean of squares: a sum of products and a division."""
    N = n.view.count
    low = a.summed(N, QUOTIENT) * n.var + 4 * a.tiny
    return low, finite_below(low, N * n.var, a.huge)


def rstd_error(low: Array, high: Array, rstd: Array, a: Arithmetic) -> Array:
    """Return ρ, the relative error of 1/√(var + eps); inf where var + eps may come out as zero."""
    precision = rstd * rstd
    below = low * precision
    up = np.where(below < 1.0, 1.0 / np.sqrt(np.maximum(1.0 - below, 0.0)) - 1.0, np.inf)
    down = 1.0 - 1.0 / np.sqrt(1.0 + high * precision)
    down = np.where(high < np.inf, down, np.inf)
    return (1.0 + np.maximum(up, down)) * (1.0 + a.gamma(ROOT + DIVISION + 1)) - 1.0


def saved(value: Array, delta: Array, a: Arithmetic) -> Array:
    """Return the error of a statistic after it is saved in the type that statistics are saved in."""
    if not a.stats_u:
        return delta
    largest = np.abs(value) + delta
    return finite_below(delta + a.stats_u * largest + a.narrow_tiny, largest, a.narrow_huge)


def given_error(n: Norm, given: Given, a: Arithmetic) -> StatisticsError:
    """Return how far given statistics are from the exact ones, in the accumulation type and with one underflow.

    Rows in which sums of x may overflow are not judged here either: a kernel may still compute Σg·x.
    """
    computed = statistics_error(n, a)

    def off(exact: Array, value: Array, wide: Array) -> Array:
        value = value.reshape(exact.shape)
        known = np.abs(value - exact) + np.abs(nearest(value, a) - value) + a.tiny
        return np.where(np.isfinite(wide), known, np.inf)

    mean = computed.mean if given.mean is None else off(n.mean, given.mean, computed.mean)
    return replace(computed, mean=mean, rho=off(n.saved_rstd, given.rstd, computed.rho) / n.saved_rstd)


def saved_error(n: Norm, a: Arithmetic, given: Given | None = None) -> StatisticsError:
    """Return the errors of the mean and rstd of a backward: those it is `given`, or by default any right ones."""
    e = statistics_error(n, a) if given is None else given_error(n, given, a)
    mean = saved(n.mean, e.mean, a) if n.centred else e.mean
    return replace(e, mean=mean, rho=saved(n.saved_rstd, n.saved_rstd * e.rho, a) / n.saved_rstd)


def xhat_error(n: Norm, e: StatisticsError, a: Arithmetic) -> XhatError:
    """Return the error of x̂' = r'(x − μ'), or of r'x in RMSNorm."""
    shift = n.rstd * (1.0 + e.rho) * e.mean
    if a.expanded and n.centred:
        magnitude, roundings = (np.abs(n.x) + (np.abs(n.mean) + e.mean)) * (n.rstd * (1.0 + e.rho)), 3
    else:
        magnitude, roundings = np.abs(n.xhat) * (1.0 + e.rho) + shift, 2 if n.centred else 1
    least = a.tiny + (a.narrow_tiny if a.xhat_u else 0.0)  # of the x̂ that a kernel has
    floor = a.tiny * (2.0 * n.rstd * (1.0 + e.rho)) + least / n.rstd_scale
    unit = compound(a.gamma(roundings), a.xhat_u)
    if n.off is None:
        return XhatError(shift, e.rho, magnitude, unit, floor)
    off = n.rstd * (1.0 + e.rho) * n.off
    return XhatError(shift, e.rho, magnitude + off, unit, floor, off)


def affine_error(n: Norm, z: XhatError, a: Arithmetic) -> Array:
    """Return δy of y = w·x̂ + b."""
    kappa = compound(z.unit, weight_roundings(n, a))
    delta = np.abs(n.xhat) * z.factor + z.magnitude * kappa + z.alone
    largest = z.magnitude
    if n.weight is not None:
        size = np.abs(n.weight)
        delta, largest = size * delta, size * largest
    if n.bias is not None:
        terms = np.abs(n.y) + np.abs(n.bias) if a.expanded else np.abs(n.y)
        delta = (1.0 + a.u) * delta + a.u * terms
    delta = delta + a.tiny * (2.0 + math.sqrt(n.view.count) / n.rstd)  # the last: w·r may underflow before it meets xc
    return finite_below(delta, largest, a.huge)


def weight_roundings(n: Norm, a: Arithmetic) -> float:
    """Return the relative change by the product with w, and by the sum weight + offset that made w."""
    return compound(a.gamma((n.weight is not None) + n.offset), a.offset_u * (n.weight is not None and n.offset))


def means_error(n: Norm, p: Projection, z: XhatError, a: Arithmetic, lost: Array | float = 0.0) -> MeansError:
    """Return the errors of g and of its two means; `lost` is what dy is off by.

    With |g|⁺ = |g| + |w|·lost, and the floors of what underflows,

        δc1 = (γ(h + q) ∘ e ∘ ε)·mean(|g|⁺m) + ρ|c1| + mean(|w|·lost·m) + S|c2| + floors
        δc2 = (γ(h + q) ∘ ε)·mean|g|⁺ + mean(|w|·lost) + floors

    and what matrix products miss.
    """
    N = n.view.count
    unit = compound(weight_roundings(n, a), a.xhat_u)
    floor = a.tiny + (a.narrow_tiny if a.xhat_u else 0.0)
    lost = np.broadcast_to(lost if n.weight is None else np.abs(n.weight) * lost, p.g.shape)
    size = np.abs(p.g) + lost
    mean_g, mean_gm = n.average(size), n.average(size * z.magnitude)
    floors = (1.0 + unit) * (z.floor * mean_g + floor * (1.0 + z.shift + z.factor) + 3 * a.tiny)
    per_term = floors + n.average(lost * z.magnitude)
    if z.off is not None:
        per_term = per_term + (1.0 + unit) * n.average(size * z.off)
    dc1 = compound(a.summed(N, QUOTIENT), z.unit, unit) * mean_gm + z.factor * np.abs(p.c1) + per_term
    if p.c2 is None:
        dc2 = np.zeros_like(dc1)
    else:
        dc1 = dc1 + z.shift * np.abs(p.c2)
        dc2 = compound(a.gamma(a.terms(N, products=False) + QUOTIENT), unit) * mean_g + floor + 3 * a.tiny
        dc2 = dc2 + n.average(lost) + (1.0 + unit) * n.average(a.missed(p.g, lost))
    return MeansError(lost, size, unit, floor, mean_g, mean_gm, dc1, dc2)


def projection_error(n: Norm, p: Projection, z: XhatError, a: Arithmetic, *, lost: Array | float = 0.0) -> Array:
    """Return δdx of dx = r(g − c2 − x̂·c1), in that form or as r/n·(n·g − Σg − x̂·Σgx̂); `lost` is what dy is off by.

    With C1 = |c1| + δc1, what is common to a row is off by

        row = δc2 + 2u(|c2| + δc2) + S·C1 + floors

    and with the roundings of the last differences, products and r/n, last = (1 + ρ)(1 + γ(2 + 4)),

        inner = |g|⁺(ε + 2u(1 + ε)) + |w|·lost + row + |x̂|(ρ·C1 + δc1) + m·(e + 4u(1 + e))·C1
        δdx   = inner·r·last + |dx|(last − 1)
    """
    N, d = n.view.count, means_error(n, p, z, a, lost)
    c2 = 0.0 if p.c2 is None else np.abs(p.c2)
    largest_c1 = np.abs(p.c1) + d.dc1
    row = d.dc2 + 2 * a.u * (c2 + d.dc2)
    row = row + z.alone * largest_c1 + d.floor + 3 * a.tiny
    inner = d.size * (d.unit + 2 * a.u * (1.0 + d.unit)) + d.lost + row
    inner = inner + np.abs(n.xhat) * (z.factor * largest_c1 + d.dc1)
    inner = inner + z.magnitude * ((z.unit + 4 * a.u * (1.0 + z.unit)) * largest_c1)
    last = (1.0 + z.factor) * (1.0 + a.gamma(2 + DIVISION))
    delta = inner * (n.rstd * last) + np.abs(p.dx) * (last - 1.0) + 2 * a.tiny
    cube = n.rstd * n.rstd * n.rstd  # r·g − x·Σ(g·x)·r³/n is usual too: r³/n must neither underflow nor overflow
    own = n.saved_rstd * n.saved_rstd * n.saved_rstd  # of L2Norm, where it is smaller and meets no 1/n
    delta = np.where((cube > N * a.tiny) & (own > a.tiny) & (cube < a.huge), delta, np.inf)
    if a.xhat_u:
        delta = finite_below(delta, d.size.max(n.view.axes, keepdims=True), a.narrow_huge)
    if a.expanded:  # x·c + d with c = (Σg·μ − Σgx)·r³/n: products that may overflow before they cancel
        delta = finite_below(delta, z.magnitude * d.mean_gm * n.rstd, a.huge)
    return finite_below(delta, (N * N) * (d.mean_g + d.mean_gm) * (1.0 + n.rstd), a.huge)


def weight_error(n: Norm, dy: Array, z: XhatError, a: Arithmetic, *, lost: Array | float = 0.0) -> Array:
    """Return δ of dweight = Σ dy·x̂ over all that one weight serves; `lost` is what dy is off by."""
    R = n.view.repeats
    size = np.abs(dy) + lost
    kappa = compound(a.over_rows.summed(R), z.unit) + R * a.partials_u
    spread = np.abs(n.xhat) * z.factor + z.magnitude * kappa + z.alone * (1.0 + kappa)
    delta = n.total(size * spread + lost * z.magnitude) + R * (2 * a.tiny + a.narrow_tiny)
    return finite_below(delta, n.total(size * z.magnitude), a.narrow_huge if a.partials_u else a.huge)


def bias_error(n: Norm, dy: Array, a: Arithmetic, *, lost: Array | float = 0.0) -> Array:
    """Return δ of dbias = Σ dy over all that one bias serves; `lost` is what dy is off by."""
    R = n.view.repeats
    lost = np.broadcast_to(lost, dy.shape)
    largest = n.total(np.abs(dy) + lost)
    unit = a.gamma(a.over_rows.terms(R, products=False)) + R * a.partials_u
    delta = n.total(lost) + unit * largest + (1.0 + unit) * n.total(a.missed(dy, lost)) + R * (a.tiny + a.narrow_tiny)
    return finite_below(delta, largest, a.narrow_huge if a.partials_u else a.huge)


@np.errstate(all="ignore")
def gradients_error(
    n: Norm, dy: Array, a: Arithmetic, *, lost: Array | float = 0.0, given: Given | None = None
) -> tuple[Array, Array | None, Array | None]:
    """Return the errors of `Norm.gradients`: of a kernel that computes the statistics, or uses the saved ones.

    `lost` is what dy is off by, in the shape of the view. With `given` the kernel uses these very statistics.
    """
    dy = dy.reshape(n.view.shape)
    z = xhat_error(n, saved_error(n, a, given), a)
    return n.outside(
        projection_error(n, n.gradient(dy), z, a, lost=lost),
        None if n.weight is None else weight_error(n, dy, z, a, lost=lost),
        None if n.bias is None else bias_error(n, dy, a, lost=lost),
    )
