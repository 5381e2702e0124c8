"""How far the sums of a correct kernel are from the truth by chance, where the worst case is much farther.

`rounding` bounds every error in the worst case, in which all roundings have one sign: the bound of a sum of n terms
grows like n, its error in random data like √n. Here each rounding counts as a random number of mean 0 within ±u of its
result, independent of the others. A sum of such errors within ±c_i exceeds λ·√Σc_i² with a probability below
2·exp(−λ²/2) (Hoeffding, J. Am. Stat. Assoc. 58, 1963). That is a model for round to nearest, and a theorem for
stochastic rounding (Higham & Mary, SIAM J. Sci. Comput. 41, 2019; Connolly, Higham & Mary, SIAM J. Sci. Comput. 43,
2021). So it serves random data alone, and stands beside `rounding`, never in its place. It does not hold for a sum of
one sign in which few terms are large: beside them all others are rounded to one side.

**A sum** of n terms t, in runs of L terms and a tree over them, rounds each of its partial sums s. In random order the
mean of s² after k terms is k/n·Σt² + (k/n)²·(Σt)². Over all runs, and the log2(n/L) + 1 levels of the tree,

    V = Σt²·((L + 1)/2 + log2(n/L) + 1) + (Σt)²·((L + 1)(2L + 1)/(6n) + 2)

bounds the sum of these means, and λ·u·√V the error. L is n over the contract's lanes. A program may add up to RUN
terms in one run, so L is at least that; a kernel with one running sum of more has to say so.

**Matrix products** (`arithmetic`) may cut off their operands and their sums, which then err towards 0: the errors have
the signs of the terms, and only these are random. So each term counts as off by a factor e_i within ±m of its own. m is
`product_u`, or what the operand misses of a term alone, and 2u for each addition that a term goes through: in random
order √((L + 1)(2L + 1)/6) in a run, as a quadratic mean, and log2(n/L) + 1 in the tree. What the e_i share adds
at most m·|Σt|, and the rest at most λ·m·√Σt². Together this is at most λ·m·√(Σt² + (Σt)²), to a hundredth. The variance
is a sum of one sign, in which nothing cancels: its worst case stays. All rows have its error alike, so a factor and a
shift of x̂ count in full where they meet Σdy·x̂ and Σdy.

**What is not random** counts in full: the division by n and the reciprocal root err alike in all rows. Nor are the
roundings of a sum of squares in a long run. Squares of normal numbers of variance v have the density (2πvt)^−½ near
t = 0, so that more of them lie just above a multiple of the partial sum's ulp h than just below it. An addition of one
then errs by −η(3/2)/(2π)^(3/2)·h^(3/2)/√v = −0.049·h^(3/2)/√v in the mean, η being Dirichlet's function (the Fourier
series of the rounding error, integrated over that density), and a run of L of them by 0.04·(uL)^(3/2) of its sum, as
h is 1.5·u times the partial sum in the mean. It counts as 1/16. Of 16-bit numbers the squares lie on a grid; what
that adds is not derived here.
"""

from __future__ import annotations

import math

import numpy as np

from verify_norm.reference import rounding, statistics_rounding
from verify_norm.reference.arithmetic import DIVISION, ROOT, RUN, Arithmetic
from verify_norm.reference.norm import Norm
from verify_norm.reference.rounding import XhatError
from verify_norm.reference.statistics_rounding import QUOTIENT, StatisticsError
from verify_norm.reference.view import Array

ALIKE = ROOT + DIVISION + 4  # roundings that may err alike in all rows: of the reciprocal root, x̂ and the product


def spread(terms: Array, axes: tuple[int, ...], a: Arithmetic, *, products: bool) -> Array:
    """Return u·√V of the sum of `terms` over `axes`, which are kept; `products` says whether these are products.

    >>> single = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4e38)
    >>> bool(spread(np.ones((4, 1)), (0,), single, products=False)[0, 0] < 2**-20)
    True
    """
    n = max(math.prod(terms.shape[axis] for axis in axes), 1)
    run = _run(n, a)
    levels = math.log2(n / run) + 1
    if a.operand_u:
        lost = a.product_u * terms if products else np.copysign(a.missed(terms), terms)
        lost = lost + 2 * a.u * (math.sqrt((run + 1) * (2 * run + 1) / 6) + levels) * terms
        drift = lost.sum(axes, keepdims=True)
        return _root((lost * lost).sum(axes, keepdims=True) + drift * drift)
    squares, total = (t.sum(axes, keepdims=True) for t in (terms * terms, terms))
    variance = squares * ((run + 1) / 2 + levels) + total * total * ((run + 1) * (2 * run + 1) / (6 * n) + 2)
    return a.u * _root(variance)


def _run(n: int, a: Arithmetic) -> float:
    """Return how many of n terms a program may add up in one run."""
    return n if a.summation == "sequential" else max(n / a.lanes, min(n, RUN))


def statistics_error(n: Norm, a: Arithmetic, lam: float) -> StatisticsError:
    """Return the errors of the statistics of x that a kernel makes by chance, not more often than λ says.

    Welford's updates round a running mean of which each deviation feels another part: of random sign, so that one
    rounding of the mean is left of them.
    """
    N, mean = n.view.count, np.zeros_like(n.rstd)
    if n.centred:
        mean = lam * spread(n.x, n.view.axes, a, products=False) / N + QUOTIENT * a.u * np.abs(n.mean) + 4 * a.tiny
    if a.operand_u:
        size = n.average(np.abs(n.x))
        low, high = (
            statistics_rounding.variance_error(n, mean, size, a)
            if n.centred
            else statistics_rounding.mean_square_error(n, a)
        )
        return StatisticsError(mean, low, high, statistics_rounding.rstd_error(low, high, n.rstd, a))
    lost = lam * spread(n.xc * n.xc, n.view.axes, a, products=True) / N + (QUOTIENT + 2) * a.u * n.var + 4 * a.tiny
    lost = lost + (a.u * _run(N, a)) ** 1.5 / 16 * n.var
    if n.centred and a.variance == "centered":
        lost = lost + 2 * lam * a.u * n.average(np.abs(n.x)) * n.average(np.abs(n.xc))
    high = lost + mean * mean
    return StatisticsError(mean, lost, high, statistics_rounding.rstd_error(lost, high, n.rstd, a))


def weight_error(n: Norm, dy: Array, z: XhatError, a: Arithmetic, lam: float) -> Array:
    """Return the error of dweight = Σ dy·x̂, over all that one weight serves, by chance; `z` is x̂'s."""
    terms = dy * n.xhat
    each = dy * dy * ((z.magnitude * (z.unit + a.u)) ** 2 + (z.factor * n.xhat) ** 2 + (z.shift + z.floor) ** 2)
    by_chance = np.hypot(spread(terms, n.view.shared, a.over_rows, products=True), np.sqrt(n.total(each)))
    alike = ALIKE * a.u * np.abs(n.total(terms))
    if a.operand_u:
        alike = alike + np.abs(n.total(z.factor * terms)) + np.abs(n.total(z.shift * dy))
    error: Array = lam * by_chance + alike + n.view.repeats * a.tiny
    return error


def bias_error(n: Norm, dy: Array, a: Arithmetic, lam: float) -> Array:
    """Return the error of dbias = Σ dy, over all that one bias serves, by chance."""
    return lam * spread(dy, n.view.shared, a.over_rows, products=False) + n.view.repeats * a.tiny


def row_sum_error(n: Norm, dy: Array, z: XhatError, a: Arithmetic, lam: float, phi: Array) -> Array:
    """Return the error of Σφ·dx over each row or group by chance, before dx is rounded into its type.

    It is `stages.sum_error` with errors of chance in the means c1 = mean(g·x̂) and c2 = mean g, g = w·dy, and with
    √Σ(φe)² in place of Σ|φ|e for what each element is rounded by.
    """
    p, N, u = n.gradient(dy), n.view.count, a.u

    def total(values: Array) -> Array:
        summed: Array = np.broadcast_to(values, n.view.shape).sum(n.view.axes, keepdims=True)
        return summed

    def root(values: Array) -> Array:
        return np.sqrt(total(values * values))

    weights = rounding.weight_roundings(n, a)
    c1, c2 = np.abs(p.c1), np.zeros_like(p.c1) if p.c2 is None else np.abs(p.c2)
    dc1 = (
        lam
        * (spread(p.g * n.xhat, n.view.axes, a, products=True) + root(p.g * z.magnitude * (z.unit + weights + u)))
        / N
    )
    dc1 = dc1 + (QUOTIENT * u + z.factor) * c1 + z.shift * c2
    dc2 = lam * (spread(p.g, n.view.axes, a, products=False) + weights * root(p.g)) / N + QUOTIENT * u * c2
    dc2 = np.zeros_like(c2) if p.c2 is None else dc2
    most = c1 + dc1
    each = np.abs(p.g) * (weights + 2 * u) + 2 * u * (c2 + dc2) + (z.unit + 4 * u) * z.magnitude * most
    each = n.rstd * (each + z.floor * most) + (DIVISION + 2) * u * np.abs(p.dx)
    shared = np.abs(total(phi)) * (dc2 + z.shift * most) + np.abs(total(phi * n.xhat)) * (dc1 + z.factor * most)
    row = (z.factor + (DIVISION + 2) * u) * np.abs(total(phi * p.dx)) + n.rstd * shared
    error: Array = row + lam * root(phi * each) + 2 * N * a.tiny
    return error


def _root(variance: Array) -> Array:
    root: Array = np.sqrt(variance)
    return root
