"""The adjoint identity: ⟨dy, J v⟩ = ⟨gradient, v⟩, with J v by differences of the function's own forward.

A gradient checker compares two numbers a direction. What decides its worth is how far apart they may be, and that is
derived here, never typed in. Each comparison carries its **resolving power**: the smallest relative error of the
gradient that it would have caught.

**Steps.** A point is moved to numbers of its own format, p + k·δ with whole k and one and the same δ for every k, so
that no step is rounded: `settle` rounds the point to a grid on which all of them lie.

**Seven points** p + k·δ, k = −3 … 3, tell three things at once (`difference`):

* the derivative, D6 = (45 d1 − 9 d2 + d3)/60 with dk = ⟨dy, y(k) − y(−k)⟩, whose truncation error is O(h⁶);
* its truncation: |D6 − D4|, D4 = (8 d1 − d2)/12 being one order worse. Where the orders do not converge
  (|D6 − D4| > |D4 − D2|/8, beyond rounding), the step is too long for the function and nothing is judged;
* the forward's rounding: a sixth difference of a smooth function is O(h⁶), so what is left of it is noise, of √924
  times the size of one value's (Moré & Wild, SIAM J. Sci. Comput. 33, 2011). It is not taken to be less than the
  output's own rounding. A size that is estimated from n errors is uncertain: Student's t with n degrees of freedom
  takes λ's place.

Seven points of one line may say too little: all errors of a row are one number where they come from its mean, and one
number may be small by chance. So the noise is also measured along several lines, the backward's too, and counts as
many degrees of freedom as its variation from line to line shows (`gradnoise`).

The step balances the two: h = u^(1/5) standard deviations, for a truncation of O(h⁴) and a rounding of O(u/h); it is
made shorter while truncation is still the larger.

**Rounding, summed.** dy is drawn with independent signs, and the forward never sees dy. Given the forward's errors e,
therefore, Σ dy·e is a sum of independent terms that are symmetric about 0, and Hoeffding's inequality bounds it:
|Σ dy·e| ≤ λ·√(Σ dy²·e²) but with probability 2·exp(−λ²/2) (J. Am. Stat. Assoc. 58, 1963). Where a reference bounds e,
that takes no assumption about roundings, as their independence does in Higham & Mary (SIAM J. Sci. Comput. 41, 2019):
the chance is in dy, which is ours. Likewise for the backward's errors, where the signs of v are random. The worst case,
Σ|dy|·|e|, is √n times larger, and is taken where the signs are not random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import stdtrit
from torch import Tensor

from verify_norm.dtypes import FORMATS, Array

UNLUCKY = 1e-9  # how often one call may accuse what is right, by chance
DERIVATIVE = {1: 45 / 60, 2: -9 / 60, 3: 1 / 60}
FOURTH_ORDER = {1: 8 / 12, 2: -1 / 12}
SIXTH = {0: -20.0, 1: 15.0, 2: -6.0, 3: 1.0}
SPREAD = math.sqrt(924.0)  # Σ of the squares of the sixth difference's coefficients, 1, −6, 15, −20, 15, −6, 1
AMPLIFIED = math.sqrt(2 * sum(c * c for c in DERIVATIVE.values()))  # of rounding, in D6
UNIFORM = 1 / math.sqrt(3)  # the RMS of an error that is uniform, in half ulps
CONVERGING = 8  # how much better each order must be than the one before: beyond it, a series is no longer one
LONGEST = 1 / 8  # of a standard deviation: three steps stay well inside the data's own scale

Forward = Callable[[Tensor], list[Tensor]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One direction in every unit: what the forward says (`left`), what the gradient says (`right`), and how far apart.

    A unit is what can be told apart: a row, a group, a column, or the whole tensor. A unit whose tolerance
    is not finite is not judged. `element` is |g·v| of a typical element.
    """

    direction: str
    output: str
    unit: str
    left: Array
    right: Array
    tolerance: Array
    element: Array

    @property
    def judged(self) -> int:
        """How many units could be judged."""
        return int(np.isfinite(self.tolerance).sum())

    @property
    def ratio(self) -> Array:
        """|left − right| / tolerance: above 1, the gradient is not the forward's."""
        with np.errstate(invalid="ignore", divide="ignore"):
            off = np.abs(self.left - self.right)
            ratio = np.where(off == 0, 0.0, off / self.tolerance)
        ratio = np.where(np.isnan(ratio), np.inf, ratio)  # a gradient of NaN is never right
        return np.where(np.isfinite(self.tolerance), ratio, 0.0)

    @property
    def worst(self) -> int:
        """The unit that is farthest off."""
        return int(np.argmax(self.ratio))

    @property
    def power(self) -> float:
        """The smallest error of the whole gradient, relative to it, that would have been caught; inf if none."""
        return _smallest(self.tolerance, np.abs(self.left))

    @property
    def local(self) -> float:
        """The smallest relative error of one typical element that would have been caught; inf if none."""
        return _smallest(self.tolerance, self.element)


def _smallest(tolerance: Array, scale: Array) -> float:
    seen = np.isfinite(tolerance) & (scale > 0)
    return float(np.median(tolerance[seen] / scale[seen])) if seen.any() else math.inf


def confidence(comparisons: int) -> float:
    """Hoeffding's λ: so many comparisons together exceed it by chance in one of 10⁹ calls.

    >>> round(confidence(1), 2), round(confidence(1000), 2)
    (6.54, 7.53)
    """
    return math.sqrt(2 * math.log(2 * max(comparisons, 1) / UNLUCKY))


def student(values: float, comparisons: int) -> float:
    """The same where the size of the errors was estimated from so many values.

    >>> round(student(2, 1)), round(student(8, 1), 1), round(student(10**6, 1), 2)
    (31623, 32.0, 6.11)
    """
    return float(-stdtrit(max(values, 1), UNLUCKY / (2 * max(comparisons, 1))))


def settle(point: Array, reach: float, dtype: str) -> tuple[Array, Array]:
    """The point rounded to a grid, and that grid's spacing: point + whole multiples of it, up to `reach`, are exact.

    >>> point, grid = settle(np.array([0.3, 3.9]), 0.5, "bfloat16")
    >>> point.tolist(), grid.tolist()
    ([0.30078125, 3.90625], [0.00390625, 0.03125])
    """
    form = FORMATS[dtype]
    grid = form.ulp(np.abs(point) + reach)
    return np.rint(point / grid) * grid, grid


@dataclass(frozen=True, slots=True)
class Differences:
    """What the seven points tell, a unit each: the derivative of ⟨dy, y⟩ along δ, its truncation, its rounding."""

    derivative: Tensor
    truncation: Tensor
    rounding: Tensor


def difference(forward: Forward, point: Tensor, step: Tensor, dy: list[Tensor], base: list[Tensor], units: int,
               *, signs: bool, dtype: str, least: Sequence[Tensor] = ()) -> Differences:  # fmt: skip
    """The derivative of ⟨dy, forward(point)⟩ along `step`, by seven points; `base` is forward(point).

    `least` bounds each output's noise from other lines, a unit each, and here it is not taken to be less.

    `signs`: the step moves every element, so that all values are rounded anew at each point, and their rounding is as
    good as uniform. Where most stay where they are, the rounding may hide up to half an ulp of each.
    """
    sixth = [b * SIXTH[0] for b in base]
    slopes = []
    for k in (1, 2, 3):
        plus, minus = forward(point + k * step), forward(point - k * step)
        total = torch.zeros(units, dtype=torch.float64)
        for i, (up, down) in enumerate(zip(plus, minus, strict=True)):
            total += _inner(dy[i], up - down, units)
            sixth[i].add_(up, alpha=SIXTH[k]).add_(down, alpha=SIXTH[k])
        slopes.append(total)
    d6 = sum((slopes[k - 1] * c for k, c in DERIVATIVE.items()), torch.zeros(units))
    d4 = sum((slopes[k - 1] * c for k, c in FOURTH_ORDER.items()), torch.zeros(units))
    rounding = torch.zeros(units, dtype=torch.float64)
    for i, array in enumerate(sixth):
        size = torch.maximum(_mean_square(base[i], units), _mean_square(plus[i], units))  # plus: the farthest point
        own = confidence(units) * _half_ulp(dtype, size) * (UNIFORM if signs else 1.0)
        bound = torch.maximum(torch.maximum(own, least[i]) if least else own, scatter(array, units) / SPREAD) ** 2
        rounding += AMPLIFIED * (bound * _inner(dy[i], dy[i], units)).sqrt()
    gap, before = (d6 - d4).abs(), (d4 - slopes[0] / 2).abs()
    truncation = torch.where(gap <= before / CONVERGING + 2 * rounding, gap, math.inf)
    return Differences(d6, torch.where(torch.isfinite(d6), truncation, math.inf), rounding)


def scatter(errors: Tensor, units: int) -> Tensor:
    """How large a sum of n such errors with random signs may be, over √n, in each unit: λ times their RMS.

    The larger of what the unit's own errors say, of which there may be few, and what those of all units say together.
    """
    if not errors.numel():
        return torch.zeros(units, dtype=torch.float64)
    square = _mean_square(errors, units)
    return uncertain(square, square.mean(), errors.numel() // units)


def uncertain(square: Tensor, mean: Tensor, values: float) -> Tensor:
    """λ times the RMS of each unit, whose square this is, or of all, `mean`: a unit's is told by so many values."""
    units = square.numel()
    return torch.maximum(square.sqrt() * student(values, units), mean.sqrt() * student(values * units, units))


def step_length(dtype: str) -> float:
    """In standard deviations: u^(1/5), and no longer than an eighth.

    >>> [round(step_length(t), 4) for t in ("float64", "float32", "bfloat16")]
    [0.0006, 0.0359, 0.125]
    """
    return float(min(FORMATS[dtype].u ** 0.2, LONGEST))


def compare(name: str, output: str, unit: str, found: Differences, gradient: Tensor, noise: Tensor, step: Tensor, *,
            signs: bool, dtype: str) -> Comparison:  # fmt: skip
    """The identity along `step`. `signs`: those of the step are random, so that the backward's roundings average out.

    `noise` bounds the gradient's own errors, a unit each, and is not taken to be less than half an ulp, its final
    rounding.
    """
    units = found.derivative.numel()
    terms, lam = gradient * step, confidence(units)
    own = lam * _half_ulp(dtype, _mean_square(gradient, units))
    each = torch.maximum(own, noise)
    n = max(step.numel() // units, 1)
    together = 1.0 if signs else max(math.sqrt(n) / lam, 1.0)  # the worst case is √n, by Cauchy and Schwarz
    backward = together * each * _inner(step, step, units).sqrt()
    tolerance = found.truncation + found.rounding
    tolerance = tolerance + torch.where(torch.isfinite(backward), backward, 0.0)  # a gradient of NaN is wrong at once
    moved = (terms != 0).reshape(units, -1).sum(1).clamp(min=1)
    element = (_inner(terms, terms, units) / moved).sqrt()
    numpy = [t.numpy() for t in (found.derivative, terms.reshape(units, -1).sum(1), tolerance, element)]
    return Comparison(name, output, unit, *numpy)


def _inner(a: Tensor, b: Tensor, units: int) -> Tensor:
    product: Tensor = torch.linalg.vecdot(a.reshape(units, -1), b.reshape(units, -1))
    return product


def _mean_square(a: Tensor, units: int) -> Tensor:
    return a.reshape(units, -1).square().mean(1)


def _half_ulp(dtype: str, mean_square: Tensor) -> Tensor:
    """A bound on the RMS of half an ulp: u·|y|, and half of the smallest step there is."""
    form = FORMATS[dtype]
    return form.u * (mean_square.sqrt() + form.smallest_normal)
