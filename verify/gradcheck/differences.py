"""The adjoint identity: ⟨dy, J v⟩ = ⟨gradient, v⟩, with J v by differences of the function's own forward.

A gradient checker compares two numbers a direction, and is as good as its tolerance, which is derived here. Each
comparison carries its **resolving power**: the smallest relative error of the gradient that it can detect.

**Seven points** p + k·δ, k = −3 … 3, on a grid of the format's own numbers (`settle`), so that no step is rounded,
measure three quantities (`difference`):

* the derivative, D6 = (45 d1 − 9 d2 + d3)/60 with dk = ⟨dy, y(k) − y(−k)⟩, whose truncation error is O(h⁶);
* its truncation: |D6 − D4|, D4 = (8 d1 − d2)/12 being one order worse. Where the orders do not converge
  (|D6 − D4| > |D4 − D2|/8, beyond rounding), the step is too long for the function and nothing is judged;
* the forward's rounding: a sixth difference of a smooth function is O(h⁶), so the rest is noise, √924 times that of one
  value (Moré & Wild, SIAM J. Sci. Comput. 33, 2011). It is measured along several other lines (`noise`), from points
  beside this one, and is at least the output's own rounding; on this line it must not exceed what those lines show.

**How many lines.** n numbers estimate the size of the noise, so that Student's t with n degrees of freedom replaces λ.
Of a function with one number out, or one a row, a line gives one number. The line of a comparison alone would give
n = 1, and a t of 6·10⁸ at this confidence, which hides any gradient; 16 lines give 13, 32 give 8.5. All errors of a row
are one number where they come from its mean: the variance from line to line shows how many are independent
(`Noise.bound`). Each unit's noise is its own, not that of all, for units may differ in size.

The step balances truncation O(h⁴) against rounding O(u/h): h = u^(1/5) standard deviations; shorter where truncation is
the larger.

**Rounding, summed.** dy is drawn with independent signs, and the forward never sees dy. Given the forward's errors e,
Hoeffding's inequality bounds the sum: |Σ dy·e| ≤ λ·√(Σ dy²·e²) but with probability 2·exp(−λ²/2) (J. Am. Stat. Assoc.
58, 1963). Roundings need not be independent, as Higham & Mary assume (SIAM J. Sci. Comput. 41, 2019): the randomness is
in dy. The same holds for the backward's errors where the signs of v are random; else the worst case Σ|dy|·|e| is used,
√n times larger. Along the gradient's own signs that costs little, since there ⟨gradient, v⟩ is √n times larger too.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from verify_norm.checks.relations.equations import FALSE_ALARM, Comparison, confidence
from verify_norm.core import packages
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.gradcheck.layout import Layout

DERIVATIVE = {1: 45 / 60, 2: -9 / 60, 3: 1 / 60}
FOURTH_ORDER = {1: 8 / 12, 2: -1 / 12}
SCHEMES = (DERIVATIVE, FOURTH_ORDER)
SIXTH = {0: -20.0, 1: 15.0, 2: -6.0, 3: 1.0}
SPREAD = math.sqrt(924.0)  # Σ of the squares of the sixth difference's coefficients, 1, −6, 15, −20, 15, −6, 1
AMPLIFIED = math.sqrt(2 * sum(c * c for c in DERIVATIVE.values()))  # of rounding, in D6
UNIFORM = 1 / math.sqrt(3)  # the RMS, in half ulps, of errors where every element moves; else one may stay and not show
CONVERGING = 8  # how much better each order must be than the one before
FAR = 4  # standard deviations: more than this is no rounding, where there are corners
UNEXPLAINED = 8  # times the outputs' own rounding: noise that may come from a step too long for the function
LONGEST = 1 / 4  # of a standard deviation: three steps stay well inside the data's own scale


def student(values: Tensor, comparisons: int) -> Tensor:
    """Return Student's t in place of λ; `values` is how many estimate the size of the errors. Raises UsageError."""
    packages.need("gradcheck", "scipy")
    from scipy.special import stdtrit

    return torch.from_numpy(-stdtrit(values.clamp(min=1).double().numpy(), FALSE_ALARM / (2 * max(comparisons, 1))))


def settle(point: Array, reach: float, dtype: str) -> tuple[Array, Array]:
    """Return the point on a grid, and the grid's spacing: point + whole multiples of it, up to `reach`, are exact.

    >>> point, grid = settle(np.array([0.3, 3.9]), 0.5, "bfloat16")
    >>> point.tolist(), grid.tolist()
    ([0.30078125, 3.90625], [0.00390625, 0.03125])
    """
    grid = FORMATS[dtype].ulp(np.abs(point) + reach)
    return np.rint(point / grid) * grid, grid


@dataclass(frozen=True)
class Noise:
    """The noise that sums over a unit show: a row a line along which it is measured, a column a unit.

    `squares` are Σ (c·Δ)² over the unit's elements, with Δ their sixth differences over √924, and c their cotangents.
    """

    squares: Tensor
    count: int  # of elements in a unit

    @cached_property
    def usual(self) -> Tensor:
        """Each unit's √Σ (c·e)² as it is on average, with no bound; NaN where nothing is finite."""
        return self._finite.nanmean(0).sqrt()

    @cached_property
    def bound(self) -> Tensor:
        """A bound on each unit's √Σ (c·e)², times λ.

        Where a row shares the error of its mean, a line counts as one number. The mean of n independent squares varies
        by 2/n of its square from line to line; half of that n counts.
        """
        squares, mean, lines = self._finite, self.usual**2, self._finite.isfinite().sum(0)
        varies = float(((squares / mean - 1) ** 2).nanmean(0)[mean > 0].nanmean())
        independent = min(max(1 / varies, 1.0), self.count) if varies > 0 else self.count
        return self.usual * student(lines * independent, mean.numel())

    @cached_property
    def _finite(self) -> Tensor:
        return torch.where(self.squares.isfinite(), self.squares, math.nan)

    def together(self, rows: Tensor | None) -> "Noise":
        """Return the noise of these rows as one unit; without any, this."""
        return self if rows is None else Noise(self.squares[:, rows].sum(1, keepdim=True), self.count * int(rows.sum()))


NOISELESS = Noise(torch.zeros(1, 1), 1)


@dataclass(frozen=True, slots=True)
class Local:
    """A forward that computes in `dtype` around one point, and what its outputs are multiplied with.

    `base` is forward(point). `noise` is that of the outputs. `lengths` are the elements' steps, if not one for all.
    """

    forward: Callable[[Tensor], list[Tensor]]
    point: Tensor
    base: list[Tensor]
    dy: list[Tensor]
    layout: Layout
    dtype: str
    noise: Noise
    lengths: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Direction:
    """A step of the point; `signs`: it moves every element, with random signs."""

    name: str
    step: Tensor
    signs: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """The gradient of the input `output`, and its noise."""

    output: str
    gradient: Tensor
    noise: Noise


@dataclass(frozen=True, slots=True)
class Differences:
    """What seven points tell of ⟨dy, y⟩ along a step, unit by unit.

    The derivative D6; D6 − D4 and D4 − D2; the sixth difference; the squares of half an ulp of all terms, and of their
    change in a step.
    """

    derivative: Tensor
    gap: Tensor
    before: Tensor
    sixth: Tensor
    half_ulps: Tensor
    change: Tensor


def difference(near: Local, direction: Direction) -> Differences:
    """Return the differences of ⟨dy, forward(point)⟩ along the step, by seven points."""
    layout, u, tiny = near.layout, FORMATS[near.dtype].u, FORMATS[near.dtype].smallest_normal

    def inner(values: Sequence[Tensor]) -> Tensor:
        sums = [layout.of_output(i, dy * v).sum(1) for i, (dy, v) in enumerate(zip(near.dy, values, strict=True))]
        return torch.stack(sums).sum(0)

    sixth = SIXTH[0] * inner(near.base)
    slopes = []
    for k in (1, 2, 3):
        plus, minus = (near.forward(near.point + sign * k * direction.step) for sign in (1, -1))
        slopes.append(inner([up - down for up, down in zip(plus, minus, strict=True)]))
        sixth += SIXTH[k] * inner([up + down for up, down in zip(plus, minus, strict=True)])
    d6, d4 = (sum((slopes[k - 1] * c for k, c in scheme.items()), torch.zeros(layout.units)) for scheme in SCHEMES)
    farthest = [u * (torch.maximum(y.abs(), far.abs()) + tiny) for y, far in zip(near.base, plus, strict=True)]
    change = layout.squares(near.dy, [(up - down) / 6 for up, down in zip(plus, minus, strict=True)])
    half_ulps = layout.squares(near.dy, farthest)
    return Differences(d6, d6 - d4, d4 - slopes[0] / 2, sixth / SPREAD, half_ulps, change)


def step_length(dtype: str) -> float:
    """Return the step in standard deviations: u^(1/5), at most LONGEST."""
    return float(min(FORMATS[dtype].u ** 0.2, LONGEST))


def compare(
    near: Local, direction: Direction, found: Differences, claim: Claim, *, rows: Tensor | None = None
) -> Comparison:
    """Return both sides of the identity along the step and their tolerance: by unit, or of these `rows` as one.

    The gradient errs by half an ulp, its final rounding, at least. Roundings average out along random signs.
    """
    layout, step = near.layout, direction.step
    groups = layout.units if rows is None else 1

    def fold(units: Tensor) -> Tensor:
        return units if rows is None else units[rows].sum(0, keepdim=True)

    lam, moved = confidence(groups), layout.of_input(step).square().sum(1)
    derivative, gap, before = fold(found.derivative), fold(found.gap).abs(), fold(found.before).abs()
    half_ulp, shown = fold(found.half_ulps).sqrt(), near.noise.together(rows)
    noise = torch.maximum(lam * half_ulp * (UNIFORM if direction.signs else 1.0), shown.bound)
    resolved = shown.bound <= torch.maximum(UNEXPLAINED * lam * half_ulp, fold(found.change).sqrt())
    sixth = fold(found.sixth).abs()
    slight = FAR * torch.maximum(half_ulp, shown.usual)
    if near.lengths is None:
        converges = gap <= before / CONVERGING + 2 * AMPLIFIED * noise
    else:  # a corner that no line of the noise reached shows as little as this
        converges, gap = gap <= before / CONVERGING + slight, CONVERGING * gap
    converges &= sixth <= (noise if near.lengths is None and direction.signs else slight)

    n = claim.gradient.numel() // layout.units * (1 if rows is None else int(rows.sum()))
    u, smallest = FORMATS[near.dtype].u, FORMATS[near.dtype].smallest_normal
    size = fold(layout.of_input(claim.gradient).square().sum(1) / n).sqrt()
    each = lam * u * (size + smallest)
    each = torch.maximum(each, claim.noise.together(rows).bound / math.sqrt(n))
    together = 1.0 if direction.signs else max(math.sqrt(n) / lam, 1.0)  # worst case √n, by Cauchy and Schwarz
    backward = together * each * fold(moved).sqrt()
    tolerance = gap + AMPLIFIED * noise + torch.where(backward.isfinite(), backward, 0.0)
    seen = converges & resolved & derivative.isfinite() & (fold(moved) > 0)
    terms = layout.of_input(claim.gradient * step)
    count, square = fold((terms != 0).sum(1).double()), fold(terms.square().sum(1))
    sides = (
        derivative,
        fold(terms.sum(1)),
        torch.where(seen, tolerance, math.inf),
        (square / count.clamp(min=1)).sqrt(),
    )
    left, right, allowed, typical = (side.numpy() for side in sides)
    unit = "row" if len(layout.shape) > 1 else "element"
    name = direction.name + ("" if rows is None else ", all rows as one")
    return Comparison(name, claim.output, left, right, allowed, typical, unit if groups > 1 else "tensor")
