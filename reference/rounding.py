"""How far a correct kernel's result may be from the truth: a forward error analysis, stage by stage.

A kernel computes in an arithmetic with unit roundoff u. Each stage below takes the exact values of the operator and the
errors of the stages before it, and returns a bound on the error of what it computes, before the final rounding into the
output's type. Products of errors are kept, so that the bounds hold where errors are large. An element whose bound is
not finite is not judged: NaN or Inf in its row, or a sum or product that may overflow, or underflow to nothing.

**Sums.** k roundings in a row change a value by at most γ(k) = ku/(1 − ku) of itself (Higham, Accuracy and Stability of
Numerical Algorithms, 2nd ed., lemma 3.1). A sum of n terms, in any order, errs by at most γ(n − 1)·Σ|t|, a sum of n
products by γ(n)·Σ|t| (Higham, section 4.2); a sequential one may reach it. A blocked sum is a tree over runs, and errs
by at most h·u·Σ|t| with

    h = min(n, log2 n + n/384 + 6)

where log2 n is the tree (Higham, eq. 4.6); n/384 is what runs lose in the worst data that is not made against one order
of summation, n equal terms (rows repeated, a constant row): while a running sum of L equal terms stays in one binade,
each addition rounds the same way by at most half an ulp, so the last binade loses L/4·u, the one before L/16·u, and all
of them L/3·u, for runs of n/128 terms (128 lanes, the fewest of a usual block; a kernel that sums in fewer counts as
sequential once its runs are long); 6 stands for the few roundings at each end of the tree (vector load, warp, block).
benchmarks/bounds.py measures how closely all this is met.

**Mean.** δμ = γ(h + 2)·mean|x|: the sum, and a division or a product with a rounded 1/n. The mean of one element is
exact. A mean relative to the first element x0 adds u|μ| + γ(h + 3)·mean|x − x0|.

**Variance.** All n deviations share the error e of the mean, and Σ(x − μ) = 0, so mean (xc − e)² = var + e²: e enters
at second order, and never lessens the variance. With 2 roundings of x − μ squared, the sum and the division,
two_pass:  −γ(h + 4)·var ≤ var' − var ≤ δμ² + γ(h + 4)·(var + δμ²).
centered (Welford's updates, or the merging of Chan, Golub & LeVeque, The American Statistician 37, 1983): each
deviation is from a running mean of its own, which is off by u·mean|x| for each update before it, and which Σ(x − mean)
does not cancel: k·u·mean|x|·mean|xc| more to either side, with

    k = min(n, log2 n + n/192 + 6)

since one run of L updates was measured to lose up to 0.66L·u (ramps and steps, offset by up to 10⁴σ), and the runs of
128 lanes have n/128 updates; the tree of merges needs no more than a sum's does. A merge multiplies the square of the
difference of two means by a count, and the mean of a part that is still empty is 0 (torch's LayerNorm starts so), hence
where n·max x² may overflow, 0·inf = NaN is right, and nothing is judged.
shifted: E[d²] − E[d]² with d = x − x0 and s = |μ − x0| subtracts numbers of size s² + var:
γ(h + 4)·(var + s² + 2s·mean|d|) to either side.

**Reciprocal root.** With low ≤ var' − var ≤ high, r' = r(1 + ρ') where |ρ'| ≤ ρ, the larger of
1/√(1 − low/(var + eps)) − 1 and 1 − 1/√(1 + high/(var + eps)), and 5u: 4u for an approximate rsqrt (2 ulp), and half of
the roundings of eps and of the addition.

**x̂.** x̂' = r'(x − μ') has one shift S = r(1 + ρ)δμ for its row, one factor 1 + ρ' for its row, and roundings of each
element, e = 2u of a magnitude m = (1 + ρ)(|x̂| + rδμ); for x·a + b, m = (1 + ρ)r(|x| + |μ| + δμ) and e = 3u.
Hence |x̂' − x̂| ≤ S + ρ|x̂| + e·m.

**Gradients.** g itself may be off, by δg of each element, where an activation's derivative is in it (`activation`):
`lost` below. S and ρ belong to the row, so in c1 = mean(g·x̂) they meet |c2| and |c1|, not the far larger means of
absolute values: δc1 = ρ|c1| + S|c2| + γ(h + 2)·mean|g|m + …, which is what makes the bound of dx tight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from verify_norm.reference.view import Array, View

LANES = 128
TREE_ENDS = 6


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What a kernel's arithmetic is, in numbers.

    Parameters
    ----------
    u : unit roundoff of the accumulation type (float32: 2**-24).
    tiny : its smallest normal number: what an underflow may lose, subnormals being flushed to zero.
    huge : its largest finite number: a sum that may exceed it is not judged.
    summation : "blocked" (runs, then a tree; in whatever order) or "sequential" (one running sum).
    variance : "two_pass", "centered" (Welford, Chan), "shifted" (by the row's first element).
    expanded : x·a + b instead of (x − mean)·a.
    stats_u : unit roundoff of a narrower type in which mean and rstd are saved; 0 if they are not.
    xhat_u : unit roundoff of a narrower type x̂ is rounded to before it meets the weight (and g before it meets x̂).
    partials_u : unit roundoff of a narrower type in which partial sums of dweight and dbias are kept.
    narrow_tiny : what an underflow may lose in those narrower types (float16: 2**-25).
    narrow_huge : their largest finite number: what may exceed it is not judged (float16: 65504).

    >>> Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38).variance
    'centered'
    """

    u: float
    tiny: float
    huge: float
    summation: Literal["blocked", "sequential"] = "blocked"
    variance: Literal["two_pass", "centered", "shifted"] = "centered"
    expanded: bool = False
    stats_u: float = 0.0
    xhat_u: float = 0.0
    partials_u: float = 0.0
    narrow_tiny: float = 0.0
    narrow_huge: float = math.inf

    def gamma(self, roundings: float) -> float:
        """Bound on the relative change that so many roundings in a row make; inf where they may make any.

        >>> Arithmetic(u=0.25, tiny=0.0, huge=1.0).gamma(2)
        1.0
        """
        lost = roundings * self.u
        return lost / (1.0 - lost) if lost < 1.0 else math.inf

    def terms(self, n: int, *, products: bool) -> float:
        """The h of a sum of n terms, or of n products: its error is at most γ(h)·Σ|t|.

        >>> float32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38)
        >>> [float32.terms(n, products=True) for n in (1, 2, 384, 16384)]
        [1, 2, 15.584962500721156, 62.666666666666664]
        """
        most = max(n if products else n - 1, 0)
        if self.summation == "sequential" or n < 2:
            return most
        return min(most, math.log2(n) + n / (3 * LANES) + TREE_ENDS)

    def updates(self, n: int) -> float:
        """The k of a running mean of n terms: how many of its roundings the variance may feel.

        >>> Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38).updates(1024)
        21.333333333333332
        """
        return n if self.summation == "sequential" else min(n, math.log2(n) + 2 * n / (3 * LANES) + TREE_ENDS)


@dataclass(frozen=True, slots=True)
class XhatError:
    """|x̂' − x̂| ≤ shift + factor·|x̂| + unit·magnitude + floor; `magnitude` bounds |x̂'| or the terms it consists of."""

    shift: Array
    factor: Array
    magnitude: Array
    unit: float
    floor: Array


def compound(*relative: float) -> float:
    """One relative change after another.

    >>> compound(0.5, 0.5)
    1.25
    """
    return math.prod(1.0 + change for change in relative) - 1.0


def finite_below(bound: Array, magnitude: Array, huge: float) -> Array:
    """The bound where `magnitude` cannot overflow, inf where it can, or is NaN.

    A bound that is as large itself is that of a difference whose terms overflow, and inf − inf = NaN is right.
    """
    return np.where((magnitude < huge) & (bound < huge), bound, np.inf)


def mean_error(x: Array, xc: Array, mean: Array, view: View, a: Arithmetic) -> tuple[Array, Array]:
    """δμ, and the mean of |x| that it is made of, of one value a row."""
    n = view.count
    size = np.abs(x).mean(view.axes, keepdims=True)
    delta = (a.gamma(a.terms(n, products=False) + 2) if n > 1 else 0.0) * size + 4 * a.tiny
    if a.variance == "shifted":
        from_first = np.abs(first(xc, view)) + np.abs(xc).mean(view.axes, keepdims=True)
        delta = delta + a.u * np.abs(mean) + a.gamma(a.terms(n, products=False) + 3) * from_first
    return finite_below(delta, n * size, a.huge), size


def first(xc: Array, view: View) -> Array:
    """The first element of every row, of size 1 along the axes that are normalized."""
    return xc[tuple(slice(0, 1) if axis in view.axes else slice(None) for axis in range(xc.ndim))]


def variance_error(var: Array, xc: Array, dmean: Array, size: Array, view: View, a: Arithmetic) -> tuple[Array, Array]:
    """How much too small and how much too large the variance of a row may be: (low, high), both positive."""
    n = view.count
    lost = a.gamma(a.terms(n, products=True) + 4)
    low = lost * var + 4 * a.tiny
    deviation = 0.0 if a.variance == "two_pass" else np.abs(xc).mean(view.axes, keepdims=True)
    magnitude = var + dmean * dmean
    if a.variance == "centered":
        low = low + a.gamma(a.updates(n)) * size * deviation
        largest = np.abs(xc).max(view.axes, keepdims=True, initial=0.0) + size  # at least max |x|
        magnitude = n * magnitude + largest * largest
    if a.variance == "shifted":
        s = np.abs(first(xc, view))
        low = low + lost * (s * s + 2 * s * (s + deviation))
        magnitude = magnitude + s * s
    return low, finite_below(low + (1 + lost) * dmean * dmean, n * magnitude, a.huge)


def mean_square_error(square: Array, view: View, a: Arithmetic) -> tuple[Array, Array]:
    """The same for a mean of squares: a sum of products and a division."""
    low = a.gamma(a.terms(view.count, products=True) + 2) * square + 4 * a.tiny
    return low, finite_below(low, view.count * square, a.huge)


def rstd_error(low: Array, high: Array, rstd: Array, a: Arithmetic) -> Array:
    """ρ: the relative error of 1/√(var + eps), inf where var + eps may come out as zero."""
    precision = rstd * rstd
    below = low * precision
    up = np.where(below < 1.0, 1.0 / np.sqrt(np.maximum(1.0 - below, 0.0)) - 1.0, np.inf)
    down = 1.0 - 1.0 / np.sqrt(1.0 + high * precision)
    down = np.where(high < np.inf, down, np.inf)
    return (1.0 + np.maximum(up, down)) * (1.0 + a.gamma(5)) - 1.0


def saved(value: Array, delta: Array, a: Arithmetic) -> Array:
    """The error of a statistic once it is saved in the type that statistics are saved in."""
    if not a.stats_u:
        return delta
    largest = np.abs(value) + delta
    return finite_below(delta + a.stats_u * largest + a.narrow_tiny, largest, a.narrow_huge)


def xhat_error(x: Array, mean: Array | None, dmean: Array | float, xhat: Array, rstd: Array, rho: Array,
               a: Arithmetic) -> XhatError:  # fmt: skip
    """The error of x̂' = r'(x − μ'), or of r'x where there is no mean."""
    shift = rstd * (1.0 + rho) * dmean
    if a.expanded and mean is not None:
        magnitude, roundings = (np.abs(x) + (np.abs(mean) + dmean)) * (rstd * (1.0 + rho)), 3
    else:
        magnitude, roundings = np.abs(xhat) * (1.0 + rho) + shift, 1 if mean is None else 2
    floor = a.tiny * (2.0 * rstd * (1.0 + rho) + 1.0) + (a.narrow_tiny if a.xhat_u else 0.0)
    return XhatError(shift, rho, magnitude, compound(a.gamma(roundings), a.xhat_u), floor)


def affine_error(y: Array, xhat: Array, rstd: Array, weight: Array | None, bias: Array | None, z: XhatError,
                 view: View, a: Arithmetic, *, offset: bool = False) -> Array:  # fmt: skip
    """δy of y = w·x̂ + b, where `weight` is what x̂ is multiplied by, and `offset` says that a sum w + offset gave it."""
    kappa = compound(z.unit, a.gamma((weight is not None) + offset))
    delta = np.abs(xhat) * z.factor + z.magnitude * kappa + (z.shift + z.floor)
    largest = z.magnitude
    if weight is not None:
        size = np.abs(weight)
        delta, largest = size * delta, size * largest
    if bias is not None:
        delta = (1.0 + a.u) * delta + a.u * (np.abs(y) + np.abs(bias) if a.expanded else np.abs(y))
    delta = delta + a.tiny * (2.0 + math.sqrt(view.count) / rstd)  # the last: w·r may underflow before it meets xc
    return finite_below(delta, largest, a.huge)


def projection_error(g: Array, c1: Array, c2: Array | None, dx: Array, xhat: Array, rstd: Array,
                     weight: Array | None, z: XhatError, view: View, a: Arithmetic, *,
                     offset: bool = False, lost: Array | float = 0.0) -> Array:  # fmt: skip
    """δdx of dx = r(g − c2 − x̂·c1), in that form or as r/n·(n·g − Σg − x̂·Σgx̂); c2 is None where there is no mean.

    `lost` is what g is off by before it is rounded here.
    """
    n, axes = view.count, view.axes
    eg = compound(a.gamma((weight is not None) + offset), a.xhat_u)
    lost_g = a.tiny + (a.narrow_tiny if a.xhat_u else 0.0)
    lost = np.broadcast_to(lost, g.shape)
    size = np.abs(g) + lost
    mean_g = size.mean(axes, keepdims=True)
    mean_gm = (size * z.magnitude).mean(axes, keepdims=True)
    per_term = (1.0 + eg) * (z.floor * mean_g + lost_g * (1.0 + z.shift + z.factor) + 3 * a.tiny)
    per_term = per_term + (lost * z.magnitude).mean(axes, keepdims=True)
    dc1 = compound(a.gamma(a.terms(n, products=True) + 2), z.unit, eg) * mean_gm + z.factor * np.abs(c1) + per_term
    row = np.zeros_like(c1)
    if c2 is not None:
        dc1 = dc1 + z.shift * np.abs(c2)
        dc2 = compound(a.gamma(a.terms(n, products=False) + 2), eg) * mean_g + lost_g + 3 * a.tiny
        dc2 = dc2 + lost.mean(axes, keepdims=True)
        row = dc2 + 2 * a.u * (np.abs(c2) + dc2)
    c1_most = np.abs(c1) + dc1
    row = row + (z.shift + z.floor) * c1_most + lost_g + 3 * a.tiny
    inner = size * (eg + 2 * a.u * (1.0 + eg)) + lost + row
    inner += np.abs(xhat) * (z.factor * c1_most + dc1)
    inner += z.magnitude * ((z.unit + 4 * a.u * (1.0 + z.unit)) * c1_most)
    last = (1.0 + z.factor) * (1.0 + a.gamma(3))  # r', and the roundings of the last differences and products
    delta = inner * (rstd * last) + np.abs(dx) * (last - 1.0) + 2 * a.tiny
    cube = rstd * rstd * rstd  # r·g − x·Σ(g·x)·r³/n is usual too: where r³/n underflows or overflows, nothing is judged
    delta = np.where((cube > n * a.tiny) & (cube < a.huge), delta, np.inf)
    if a.xhat_u:
        delta = finite_below(delta, size.max(axes, keepdims=True), a.narrow_huge)
    if a.expanded:  # x·c + d with c = (Σg·μ − Σgx)·r³/n: products that may overflow before they cancel
        delta = finite_below(delta, z.magnitude * mean_gm * rstd, a.huge)
    return finite_below(delta, (n * n) * (mean_g + mean_gm) * (1.0 + rstd), a.huge)


def weight_error(dy: Array, xhat: Array, z: XhatError, view: View, a: Arithmetic, *,
                 lost: Array | float = 0.0) -> Array:  # fmt: skip
    """δ of dweight = Σ dy·x̂ over all that one weight serves; `lost` is what dy is off by."""
    R, h = view.repeats, a.gamma(a.terms(view.repeats, products=True))
    size = np.abs(dy) + lost
    kappa = compound(h, z.unit) + R * a.partials_u
    spread = np.abs(xhat) * z.factor + z.magnitude * kappa + (z.shift + z.floor) * (1.0 + kappa)
    delta = (size * spread + lost * z.magnitude).sum(view.shared, keepdims=True) + R * (2 * a.tiny + a.narrow_tiny)
    largest = (size * z.magnitude).sum(view.shared, keepdims=True)
    return finite_below(delta, largest, a.narrow_huge if a.partials_u else a.huge)


def bias_error(dy: Array, view: View, a: Arithmetic, *, lost: Array | float = 0.0) -> Array:
    """δ of dbias = Σ dy over all that one bias serves; `lost` is what dy is off by."""
    R, h = view.repeats, a.gamma(a.terms(view.repeats, products=False))
    lost = np.broadcast_to(lost, dy.shape)
    total = (np.abs(dy) + lost).sum(view.shared, keepdims=True)
    delta = lost.sum(view.shared, keepdims=True) + (h + R * a.partials_u) * total + R * (a.tiny + a.narrow_tiny)
    return finite_below(delta, total, a.narrow_huge if a.partials_u else a.huge)
