"""The adjoint identity: ⟨dy, J v⟩ = ⟨gradient, v⟩, with J v by differences of the function's own forward.

A gradient checker compares two numbers a direction, and is as good as its tolerance, which is derived here. Each
comparison carries its **resolving power**: the smallest relative error of the gradient that it can detect.

**Seven points** p + k·δ, k = −3 … 3, on a grid of the format's own numbers (`settle`), so that no step is rounded,
measure three quantities (`difference`):

* the derivative, D6 = (45 d1 − 9 d2 + d3)/60 with dk = ⟨dy, y(k) − y(−k)⟩, whose truncation error is O(h⁶);
* its truncation: |D6 − D4|, D4 = (8 d1 − d2)/12 being one order worse. Where the orders do not converge
  (|D6 − D4| > |D4 − D2|/8, beyond rounding), the step is too long for the function and nothing is judged;
* the forward's rounding: a sixth difference of a smooth function is O(h⁶), so the rest is noise, √924 times that of one
  value (Moré & Wild, SIAM J. Sci. Comput. 33, 2011), and at least the output's own rounding. n errors estimate its
  size: Student's t with n degrees of freedom replaces λ. All errors of a row are one number where they come from its
  mean, which may be small by chance on one line: `noise` measures along several, the backward's noise too.

The step balances truncation O(h⁴) against rounding O(u/h): h = u^(1/5) standard deviations; shorter where truncation is
the larger.

**Rounding, summed.** dy is drawn with independent signs, and the forward never sees dy. Given the forward's errors e,
Hoeffding's inequality bounds the sum: |Σ dy·e| ≤ λ·√(Σ dy²·e²) but with probability 2·exp(−λ²/2) (J. Am. Stat. Assoc.
58, 1963). Roundings need not be independent, as Higham & Mary assume (SIAM J. Sci. Comput. 41, 2019): the randomness is
in dy. The same holds for the backward's errors where the signs of v are random; else the worst case Σ|dy|·|e| is used,
√n times larger.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import stdtrit
from torch import Tensor

from verify_norm.checks.relations.equations import UNLUCKY, Comparison, confidence
from verify_norm.core.dtypes import FORMATS, Array

DERIVATIVE = {1: 45 / 60, 2: -9 / 60, 3: 1 / 60}
FOURTH_ORDER = {1: 8 / 12, 2: -1 / 12}
SIXTH = {0: -20.0, 1: 15.0, 2: -6.0, 3: 1.0}
SPREAD = math.sqrt(924.0)  # Σ of the squares of the sixth difference's coefficients, 1, −6, 15, −20, 15, −6, 1
AMPLIFIED = math.sqrt(2 * sum(c * c for c in DERIVATIVE.values()))  # of rounding, in D6
UNIFORM = 1 / math.sqrt(3)  # the RMS, in half ulps, of errors where every element moves; else one may stay and not show
CONVERGING = 8  # how much better each order must be than the one before
LONGEST = 1 / 8  # of a standard deviation: three steps stay well inside the data's own scale


def student(values: float, comparisons: int) -> float:
    """Return Student's t in place of λ, where so many values estimate the size of the errors."""
    return float(-stdtrit(max(values, 1), UNLUCKY / (2 * max(comparisons, 1))))


def settle(point: Array, reach: float, dtype: str) -> tuple[Array, Array]:
    """Return the point on a grid, and the grid's spacing: point + whole multiples of it, up to `reach`, are exact.

    >>> point, grid = settle(np.array([0.3, 3.9]), 0.5, "bfloat16")
    >>> point.tolist(), grid.tolist()
    ([0.30078125, 3.90625], [0.00390625, 0.03125])
    """
    grid = FORMATS[dtype].ulp(np.abs(point) + reach)
    return np.rint(point / grid) * grid, grid


@dataclass(frozen=True, slots=True)
class Local:
    """A forward that computes in `dtype` around one point, and what its outputs are multiplied with.

    `base` is forward(point). The rows of point and outputs are `units` independent units, or all are one. `least`
    bounds each output's noise from below, unit by unit.
    """

    forward: Callable[[Tensor], list[Tensor]]
    point: Tensor
    base: list[Tensor]
    dy: list[Tensor]
    units: int
    dtype: str
    least: Sequence[Tensor] = ()


@dataclass(frozen=True, slots=True)
class Direction:
    """A step of the point; `signs`: it moves every element, with random signs."""

    name: str
    step: Tensor
    signs: bool


@dataclass(frozen=True, slots=True)
class Claim:
    """The gradient of the input `output`, and a bound on its errors, unit by unit."""

    output: str
    gradient: Tensor
    noise: Tensor


@dataclass(frozen=True, slots=True)
class Differences:
    """The derivative of ⟨dy, y⟩ along a step, its truncation error and its rounding error, unit by unit."""

    derivative: Tensor
    truncation: Tensor
    rounding: Tensor


def difference(near: Local, direction: Direction) -> Differences:
    """Return the derivative of ⟨dy, forward(point)⟩ along the step, by seven points."""
    units, step = near.units, direction.step
    sixth = [b * SIXTH[0] for b in near.base]
    slopes = []
    for k in (1, 2, 3):
        plus, minus = near.forward(near.point + k * step), near.forward(near.point - k * step)
        total = torch.zeros(units, dtype=torch.float64)
        for i, (up, down) in enumerate(zip(plus, minus, strict=True)):
            total += _inner(near.dy[i], up - down, units)
            sixth[i].add_(up, alpha=SIXTH[k]).add_(down, alpha=SIXTH[k])
        slopes.append(total)
    d6 = sum((slopes[k - 1] * c for k, c in DERIVATIVE.items()), torch.zeros(units))
    d4 = sum((slopes[k - 1] * c for k, c in FOURTH_ORDER.items()), torch.zeros(units))
    rounding = torch.zeros(units, dtype=torch.float64)
    for i, array in enumerate(sixth):
        size = torch.maximum(_mean_square(near.base[i], units), _mean_square(plus[i], units))  # plus: the farthest
        own = confidence(units) * _half_ulp(near.dtype, size) * (UNIFORM if direction.signs else 1.0)
        least = torch.maximum(own, near.least[i]) if near.least else own
        square = _mean_square(array, units)
        shown = uncertain(square, square.mean(), array.numel() // units) if array.numel() else torch.zeros(units)
        bound = torch.maximum(least, shown / SPREAD) ** 2
        rounding += AMPLIFIED * (bound * _inner(near.dy[i], near.dy[i], units)).sqrt()
    gap, before = (d6 - d4).abs(), (d4 - slopes[0] / 2).abs()
    truncation = torch.where(gap <= before / CONVERGING + 2 * rounding, gap, math.inf)
    return Differences(d6, torch.where(torch.isfinite(d6), truncation, math.inf), rounding)


def uncertain(square: Tensor, mean: Tensor, values: float) -> Tensor:
    """Return a bound on a sum of n errors with random signs, over √n, in each unit: λ times their RMS.

    The larger of two estimates: from the unit's own mean `square` of `values` errors, and from the `mean` of all units.
    """
    units = square.numel()
    return torch.maximum(square.sqrt() * student(values, units), mean.sqrt() * student(values * units, units))


def step_length(dtype: str) -> float:
    """Return the step in standard deviations: u^(1/5), at most an eighth."""
    return float(min(FORMATS[dtype].u ** 0.2, LONGEST))


def compare(near: Local, direction: Direction, found: Differences, claim: Claim) -> Comparison:
    """Return both sides of the identity along the step, and their tolerance.

    The gradient errs by half an ulp, its final rounding, at least. Roundings average out along random signs.
    """
    units, step = near.units, direction.step
    terms, lam = claim.gradient * step, confidence(units)
    each = torch.maximum(lam * _half_ulp(near.dtype, _mean_square(claim.gradient, units)), claim.noise)
    n = max(step.numel() // units, 1)
    together = 1.0 if direction.signs else max(math.sqrt(n) / lam, 1.0)  # worst case √n, by Cauchy and Schwarz
    backward = together * each * _inner(step, step, units).sqrt()
    tolerance = found.truncation + found.rounding
    tolerance = tolerance + torch.where(torch.isfinite(backward), backward, 0.0)  # a gradient of NaN is wrong at once
    moved = (terms != 0).reshape(units, -1).sum(1).clamp(min=1)
    element = (_inner(terms, terms, units) / moved).sqrt()
    sides = (found.derivative, terms.reshape(units, -1).sum(1), tolerance, element)
    left, right, most, typical = (side.numpy() for side in sides)
    unit = "row" if units > 1 else "tensor"
    return Comparison(direction.name, claim.output, left, right, most, typical, unit)


def _inner(a: Tensor, b: Tensor, units: int) -> Tensor:
    product: Tensor = torch.linalg.vecdot(a.reshape(units, -1), b.reshape(units, -1))
    return product


def _mean_square(a: Tensor, units: int) -> Tensor:
    return a.reshape(units, -1).square().mean(1)


def _half_ulp(dtype: str, mean_square: Tensor) -> Tensor:
    """Return a bound on the RMS of half an ulp: u·|y|, and half of the smallest step there is."""
    form = FORMATS[dtype]
    return form.u * (mean_square.sqrt() + form.smallest_normal)
