"""How much noise a function's values and gradients have, and the arithmetic that explains it.

A function may be called in float64 and compute in float32, as many norms do. It is then held to float32: its points and
steps lie on float32's grid, where its first conversion rounds nothing, and the steps have the length for float32.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from verify_norm.core.dtypes import FORMATS
from verify_norm.gradcheck.differences import SIXTH, SPREAD, settle, step_length, uncertain
from verify_norm.gradcheck.hygiene import AGAIN
from verify_norm.gradcheck.subject import Subject, backward

DTYPES = ("float64", "float32", "bfloat16", "float16")
ASKED, ENOUGH = 32, 2**14  # elements of an output: with fewer, several lines are used; with more, a part of them
SHARE = 1 / 16  # of the elements at least show the noise of the arithmetic, beyond those that may have a corner
CORNERS = 4  # times h, in standard deviations: the share of elements with a corner within three steps
LINES, SMALL = 8, 2**12  # lines at least, each one estimate of the noise; more for inputs of few elements
LOOSE = 4  # noise may be this many times smaller than u
ROOM = 4  # grid spacings in a step, at least, for a type to be the one that is computed in
SHORTER = 1 / 16  # of a step: differences that are not rounding become 16⁶ times smaller

Values = Callable[[Subject], dict[str, Tensor | None]]


def settled(subject: Subject) -> Subject:
    """Return the subject at points of a grid on which its steps lie too."""
    h = step_length(subject.arithmetic)
    points, grids = {}, {}
    for name, point in subject.points.items():
        on_grid, grid = settle(point.numpy(), 3 * h * scale_of(point), subject.arithmetic)
        points[name], grids[name] = torch.from_numpy(np.asarray(on_grid)), torch.from_numpy(np.asarray(grid))
    return replace(subject, points=points, grids=grids)


def inner_type(subject: Subject, rng: np.random.Generator) -> str:
    """Return the narrower type that explains the forward's noise, as float32 in a function of float64; else "".

    Rounding does not shrink with the step. Noise that does shrink belongs to a steep function.
    """
    u = FORMATS[subject.dtype].u
    noise = _relative(subject, rng)
    narrower = [d for d in DTYPES if u < FORMATS[d].u <= LOOSE * noise and _fits(subject, d)]
    if not narrower or noise <= AGAIN * u or _relative(subject, rng, SHORTER) < SHORTER * noise:
        return ""
    return max(narrower, key=lambda d: FORMATS[d].u)


def _fits(subject: Subject, dtype: str) -> bool:
    """Return whether the type separates a step's points; where not, the noise comes from data that are far from 0."""
    h = step_length(dtype)
    reaches = [(p, h * scale_of(p)) for p in subject.points.values() if p.numel()]
    return all(ROOM * settle(p.numpy(), 3 * step, dtype)[1].max() <= step for p, step in reaches)


def _lines(subject: Subject, small: int) -> int:
    return small if sum(p.numel() for p in subject.points.values()) <= SMALL else LINES


def _relative(subject: Subject, rng: np.random.Generator, shorter: float = 1.0) -> float:
    """Return the noise that a share of an output's elements exceeds, over the output's RMS; of all outputs the largest.

    An element may be rounded alike at all points of a line and look exact along it: so many elements count, or few
    along several lines. Some elements may have a corner on the line: so more elements than those have to show noise.
    """

    @torch.no_grad()
    def forward(subject: Subject) -> dict[str, Tensor | None]:
        return {str(i): y for i, y in enumerate(subject.call({}))}

    noise, share = 0.0, SHARE + CORNERS * step_length(subject.dtype)
    outputs = forward(subject)
    fewest = min(y.numel() for y in outputs.values() if y is not None)
    count = min(-(-ASKED // max(fewest, 1)), _lines(subject, ASKED))
    lines = [_sixth_differences(subject, rng, forward, shorter) for _ in range(count)]
    for i, y in outputs.items():
        if y is not None and y.any():
            largest = y.double().abs().max()
            left = torch.cat([line[i].abs().reshape(-1) for line in lines]) / largest
            left = left[:: -(-left.numel() // ENOUGH)]
            noise = max(noise, float(left.quantile(1 - share)) / float((y.double() / largest).square().mean().sqrt()))
    return noise


@dataclass(frozen=True, slots=True)
class Noise:
    """Mean squares of an array's sixth differences: a row a line, a column a slice of `count` elements."""

    squares: Tensor
    count: int

    def bound(self, units: int) -> Tensor:
        """Return the bound of `uncertain` in each unit.

        Where a row shares the error of its mean, a line counts as one number. The mean of n independent squares varies
        by 2/n of its square from line to line; half of that n counts. Where nothing is finite, the bound is NaN.
        """
        squares, count = torch.where(self.squares.isfinite(), self.squares, math.nan), self.count
        if squares.shape[1] != units:
            squares, count = squares.nanmean(1, keepdim=True), count * squares.shape[1]
        mean, lines = squares.nanmean(0), squares.shape[0]
        varies = float(((squares / mean - 1) ** 2).nanmean(0)[mean > 0].nanmean())
        independent = min(max(1 / varies, 1.0), count) if varies > 0 else count
        return uncertain(mean, mean.nanmean(), lines * independent)


Noises = tuple[list[Noise], dict[str, Noise]]


def noise(subject: Subject, dy: Sequence[Tensor], rng: np.random.Generator) -> Noises:
    """Return the noise of each output, and of each gradient by name, along lines in which all inputs move together.

    It is rounding, and much more where the function has a corner narrower than a step, as a norm has in a row of two
    equal elements: no difference of the forward shows the slope there, and no gradient is held to one.
    """

    def both(subject: Subject) -> dict[str, Tensor | None]:
        leaves = subject.leaves()
        outputs = subject.call(leaves)
        found = {f"d{name}": gradient for name, gradient in backward(outputs, dy, leaves).items()}
        return found | {f"{i}": y.detach() for i, y in enumerate(outputs)}

    squares: dict[str, list[Tensor]] = {}
    counts: dict[str, int] = {}
    for _ in range(_lines(subject, 2 * LINES)):
        for name, left in _sixth_differences(subject, rng, both).items():
            each = left.square().flatten(1).mean(1) if left.dim() > 1 else left.square().reshape(-1)
            squares.setdefault(name, []).append(each)
            counts[name] = left.numel() // max(len(each), 1)
    found = {name: Noise(torch.stack(lines), counts[name]) for name, lines in squares.items()}
    none = Noise(torch.zeros(1, 1), 1)
    return [found[f"{i}"] for i in range(len(dy))], {name: found.get(f"d{name}", none) for name in subject.points}


def _sixth_differences(
    subject: Subject, rng: np.random.Generator, values: Values, shorter: float = 1.0
) -> dict[str, Tensor]:
    """Return sixth differences of values by name, over √924, along a line in which all inputs move together."""
    h, steps = step_length(subject.arithmetic) * shorter, {}
    for name, point in subject.points.items():
        v = torch.from_numpy(rng.uniform(-1.0, 1.0, tuple(point.shape)))  # separates elements that are equal
        steps[name] = torch.round(h * scale_of(point) * v / subject.grids[name]) * subject.grids[name]
    total: dict[str, Tensor] = {}
    for k in range(-3, 4):
        moved = {name: point + k * steps[name] for name, point in subject.points.items()}
        for name, value in values(replace(subject, points=moved)).items():
            if value is not None:
                total.setdefault(name, torch.zeros(value.shape, dtype=torch.float64))
                total[name].add_(value.double(), alpha=SIXTH[abs(k)] / SPREAD)
    return total


def scale_of(point: Tensor) -> float:
    """Return the standard deviation; where it is 0, the largest magnitude, or 1."""
    spread = float(point.std(correction=0)) if point.numel() else 0.0
    return spread or (float(point.abs().max()) if point.numel() else 0.0) or 1.0
