"""How far the mean and rstd of a correct kernel may be from the truth: the first stages of `rounding`.

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

    k = min(n, log2 n + 2n/(3·lanes) + 6)

since one run of L updates lost up to 0.66L·u in measurements (ramps and steps, offset by up to 10⁴σ), and a run has
L = n/lanes updates; the tree of merges needs no more than that of a sum. If the means of tiles t are matrix
products, δ_t ≤ v·mean_t|x| with v = `operand_u`, and as |μ_t − μ| ≤ mean_t|xc|, the merge is off by a weighted mean of
2|μ_t − μ|δ_t, at most 2v(|μ|·mean|xc| + var). A merge multiplies the square of the difference of two means by a count,
and the mean of an empty part is 0 (torch's LayerNorm starts so). So where n·max x² may overflow, 0·inf = NaN is right,
and nothing is judged.
shifted: E[d²] − E[d]² with d = x − x0 and s = |μ − x0| subtracts numbers of size s² + var:
γ(h + q + 2)·(var + s² + 2s·mean|d|) to either side.

**A computed x.** Where a stage comes before the norm, a kernel's own x is off by up to d in each element. √(var + eps)
is the length of the vector (xc/√n, √eps), and xc moves by no more than x, so it moves by at most D = √(mean d²), and r
by the factor 1/(1 − r·D). The mean moves by mean d, and each x̂' by r(1 + ρ)d beside S. Roundings that are relative to
x' and not to x count as much more, 1 + 4rD/(1 − rD) times.

**Reciprocal root.** With low ≤ var' − var ≤ high, r' = r(1 + ρ') where |ρ'| ≤ ρ, the larger of
1/√(1 − low/(var + eps)) − 1 and 1 − 1/√(1 + high/(var + eps)), and 7u: a root, a division (`arithmetic`), and half of
the roundings of eps and of the addition.

**Given statistics.** A backward that uses the mean μ' and rstd r' that it is given computes none of this. Its δμ and ρ
are the distances |μ' − μ| and |r'/r − 1|, which are known: one rounding of each, to the type that they are saved in.
Since Σ(x − μ') is not 0, forms of dx that are equal otherwise differ, as c1 = mean(g·x̂') and mean((g − c2)·x̂') by
S·c2, with the S of `rounding`. The bound is one around the exact gradient, not around that of μ' and r', so it holds
for each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from verify_norm.reference.arithmetic import DIVISION, ROOT, Arithmetic, compound, finite_below, nearest
from verify_norm.reference.norm import Norm
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
    D = n.rstd * np.sqrt(n.average(n.share * off * off))
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
    return n.xc[tuple(slice(1) if axis in n.view.axes else slice(None) for axis in range(n.xc.ndim))]


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
    N = n.count
    low = a.summed(N, QUOTIENT) * n.var + 4 * a.tiny
    return low, finite_below(low, N * n.var, a.huge)


def rstd_error(low: Array, high: Array, rstd: Array, a: Arithmetic) -> Array:
    """Return ρ, the relative error of 1/√(var + eps); inf where var + eps may come out as zero.

    >>> exact = Arithmetic(u=0.0, tiny=0.0, huge=1e300)
    >>> rstd_error(np.array([0.75, 0.0]), np.zeros(2), np.ones(2), exact).tolist()
    [1.0, 0.0]
    """
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
