"""How far a correct kernel's result may be from the truth: a forward error analysis, stage by stage.

`statistics_rounding` has the mean, the variance and the reciprocal root; here is what follows them.

A kernel computes in an arithmetic with unit roundoff u (`arithmetic`). Each stage takes the exact values of the
operator and the errors of the stages before it. It returns a bound on the error of what the kernel computes, before
the final rounding to the output's type. Products of errors are kept, so the bounds hold where errors are large. An
element whose bound is not finite is not judged: its row has NaN or Inf, or a sum or product may overflow, or underflow
to nothing. γ(k) bounds k roundings in a row, and h stands for the roundings that a sum may feel (`arithmetic`).

Where sums are matrix products, a sum of products errs by γ(h) ∘ `product_u` of Σ|t|, and one of terms alone by
γ(h)·Σ|t| and by what operands miss of the terms (`Arithmetic.summed`, `Arithmetic.missed`); ∘ is one relative change
after another.

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
from dataclasses import dataclass

import numpy as np

from verify_norm.reference.arithmetic import DIVISION, Arithmetic, compound, finite_below
from verify_norm.reference.norm import Norm, Projection
from verify_norm.reference.statistics_rounding import QUOTIENT, Given, StatisticsError, saved_error
from verify_norm.reference.view import Array


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
    if n.first is not None:  # x̂ of the other elements has no bound √N, and may overflow
        magnitude = finite_below(magnitude, magnitude, a.huge)
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
    deviation = math.sqrt(n.view.count) / n.rstd if n.first is None else np.abs(n.x)  # at least |xc|
    delta = delta + a.tiny * (2.0 + deviation)  # w·r may underflow before it is multiplied by xc
    return finite_below(delta, largest, a.huge)


def weight_roundings(n: Norm, a: Arithmetic) -> float:
    """Return the relative change by the product with w, and by the sum weight + offset that made w."""
    roundings = int(n.weight is not None) + int(n.offset)
    offset_u = a.offset_u if n.weight is not None and n.offset else 0.0
    return compound(a.gamma(roundings), offset_u)


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

    Terms of c1 count with the `share` of an element.

    With C1 = |c1| + δc1, what is common to a row is off by

        row = δc2 + 2u(|c2| + δc2) + S·C1 + floors

    and with the roundings of the last differences, products and r/n, last = (1 + ρ)(1 + γ(2 + 4)),

        inner = |g|⁺(ε + 2u(1 + ε)) + |w|·lost + row + |x̂|(ρ·C1 + δc1) + m·(e + 4u(1 + e))·C1
        δdx   = inner·r·last + |dx|(last − 1)
    """
    N, d = n.view.count, means_error(n, p, z, a, lost)
    c2 = 0.0 if p.c2 is None else np.abs(p.c2)
    largest_c1, share = np.abs(p.c1) + d.dc1, n.share
    row = d.dc2 + 2 * a.u * (c2 + d.dc2)
    row = row + share * (z.alone * largest_c1) + d.floor + 3 * a.tiny
    inner = d.size * (d.unit + 2 * a.u * (1.0 + d.unit)) + d.lost + row
    inner = inner + share * (np.abs(n.xhat) * (z.factor * largest_c1 + d.dc1))
    inner = inner + share * (z.magnitude * ((z.unit + 4 * a.u * (1.0 + z.unit)) * largest_c1))
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


def coefficient_error(n: Norm, dy: Array, z: XhatError, a: Arithmetic, *, lost: Array | float = 0.0) -> Array | float:
    """Return what dx = (r·w)·dy − …, or (r·w)·(dy − mean dy − x̂·mean(dy·x̂)), loses if r·w underflows.

    torch's GroupNorm and BatchNorm compute r·w first.
    """
    if n.weight is None:
        return 0.0
    size = np.abs(dy) + lost
    means = n.average(size) + n.share * (z.magnitude * n.average(size * z.magnitude))
    floor: Array = a.tiny * (size + means)
    return floor


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
        projection_error(n, n.gradient(dy), z, a, lost=lost) + coefficient_error(n, dy, z, a, lost=lost),
        None if n.weight is None else weight_error(n, dy, z, a, lost=lost),
        None if n.bias is None else bias_error(n, dy, a, lost=lost),
    )
