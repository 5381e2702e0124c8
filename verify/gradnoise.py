"""How much noise a function's values and gradients show, and the arithmetic that explains it.

A function may be called in float64 and compute in float32, as many norms do. It is then held to float32: its points and
steps lie on that one's grid, where its first conversion rounds nothing, and the steps have the length that suits it.

How much noise there is cannot be told from one line of points, on which the errors of a row's mean may be small by
chance, and with them those of the whole row: several lines tell it, and how uncertain that is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from verify_norm import gradhygiene
from verify_norm.dtypes import FORMATS
from verify_norm.gradhygiene import Subject
from verify_norm.gradient import SIXTH, SPREAD, settle, step_length, uncertain

DTYPES = ("float64", "float32", "bfloat16", "float16")
ASKED, ENOUGH = 32, 2**14  # elements: where an output has fewer, along several lines; where it has more, some of them
SHARE = 1 / 16  # of the elements at least show the noise of the arithmetic, beyond those that may have a corner
CORNERS = 4  # times h, in standard deviations: the share of elements that a corner within three steps is near to
LINES, SMALL = 8, 2**12  # each tells a number at least of how large the noise is: more of inputs of few elements
LOOSE = 4  # so many times smaller than u may that noise be
ROOM = 4  # spacings of a type's grid at least in a step, or it is not taken for the type that is computed in
SHORTER = 1 / 16  # of a step, where what is no rounding is 16⁶ times smaller


def settled(subject: Subject) -> tuple[Subject, dict[str, Tensor]]:
    """The subject at points of a grid on which its steps lie too, and that grid's spacing for every input."""
    h = step_length(subject.arithmetic)
    found = {n: settle(p.numpy(), 3 * h * scale_of(p), subject.arithmetic) for n, p in subject.points.items()}
    points = {n: torch.from_numpy(np.asarray(p)) for n, (p, _) in found.items()}
    return replace(subject, points=points), {n: torch.from_numpy(np.asarray(grid)) for n, (_, grid) in found.items()}


def inner_type(subject: Subject, grids: Mapping[str, Tensor], rng: np.random.Generator) -> str:
    """The narrower type that explains the forward's noise, as float32 in a function of float64; "" where none has to.

    Rounding is what does not shrink with the step: what does belongs to a function that is steep, and rounds no more.
    """
    u = FORMATS[subject.dtype].u
    noise = _relative(subject, grids, rng)
    narrower = [d for d in DTYPES if u < FORMATS[d].u <= LOOSE * noise and _fits(subject, d)]
    if not narrower or noise <= gradhygiene.AGAIN * u or _relative(subject, grids, rng, SHORTER) < SHORTER * noise:
        return ""
    return max(narrower, key=lambda d: FORMATS[d].u)


def _fits(subject: Subject, dtype: str) -> bool:
    """Whether the type tells a step's points apart: where it does not, noise comes of data that are far from 0."""
    h = step_length(dtype)
    reaches = {name: (p, h * scale_of(p)) for name, p in subject.points.items() if p.numel()}
    return all(ROOM * settle(p.numpy(), 3 * step, dtype)[1].max() <= step for p, step in reaches.values())


def _lines(subject: Subject, small: int) -> int:
    """How many lines can be afforded: so many where the inputs are small."""
    return small if sum(p.numel() for p in subject.points.values()) <= SMALL else LINES


def _relative(subject: Subject, grids: Mapping[str, Tensor], rng: np.random.Generator, shorter: float = 1.0) -> float:
    """What most sixth differences of an output leave, relative to the output's RMS; of all outputs the largest.

    An element may be rounded alike at all points of a line and looks exact along it: so many are asked, few along
    several lines. And some may have a corner on it: so more of them than those have to show the noise.
    """

    @torch.no_grad()
    def forward(at: Subject) -> dict[str, Tensor | None]:
        return {str(i): y for i, y in enumerate(at.call({}))}

    noise, share = 0.0, SHARE + CORNERS * step_length(subject.dtype)
    outputs = forward(subject)
    fewest = min(y.numel() for y in outputs.values() if y is not None)
    count = min(-(-ASKED // max(fewest, 1)), _lines(subject, ASKED))
    lines = [_left_over(subject, grids, rng, forward, shorter) for _ in range(count)]
    for i, y in outputs.items():
        if y is not None and y.any():
            largest = y.double().abs().max()
            left = torch.cat([line[i].abs().reshape(-1) for line in lines]) / largest
            left = left[:: -(-left.numel() // ENOUGH)]
            noise = max(noise, float(left.quantile(1 - share)) / float((y.double() / largest).square().mean().sqrt()))
    return noise


@dataclass(frozen=True, slots=True)
class Noise:
    """How noisy an array is: mean squares of what sixth differences leave, a row a line.

    A column is a slice of the array's first dimension, of `count` elements.
    """

    squares: Tensor
    count: int

    def bound(self, units: int) -> Tensor:
        """How large a sum of n such errors with random signs may be, over √n, in each unit: λ times their RMS.

        Errors may be one error: of a mean, which all of its row share. Then a line tells no more than one number does.
        The mean of n independent squares varies by 2/n of its square from line to line: half as many numbers are
        counted as that tells of. Where nothing is finite, nothing is known: NaN.
        """
        squares, count = torch.where(self.squares.isfinite(), self.squares, math.nan), self.count
        if squares.shape[1] != units:
            squares, count = squares.nanmean(1, keepdim=True), count * squares.shape[1]
        mean, lines = squares.nanmean(0), squares.shape[0]
        varies = float(((squares / mean - 1) ** 2).nanmean(0)[mean > 0].nanmean())
        told = min(max(1 / varies, 1.0), count) if varies > 0 else count
        return uncertain(mean, mean.nanmean(), lines * told)


def noise(subject: Subject, dy: Sequence[Tensor], grids: Mapping[str, Tensor],
          rng: np.random.Generator) -> tuple[list[Noise], dict[str, Noise]]:  # fmt: skip
    """How noisy each output is, and each gradient, along lines in which all inputs move together.

    That is rounding, and much more where the function has a corner narrower than a step, as a norm has in a row of
    two equal elements: no difference of the forward could tell the slope in it, and so no gradient is held to one.
    """

    def both(at: Subject) -> dict[str, Tensor | None]:
        outputs, gradients = gradhygiene.outputs_and_gradients(at, dy)
        return {**{f"{i}": y.detach() for i, y in enumerate(outputs)}, **{f"d{n}": g for n, g in gradients.items()}}

    squares: dict[str, list[Tensor]] = {}
    counts: dict[str, int] = {}
    for _ in range(_lines(subject, 2 * LINES)):
        for name, left in _left_over(subject, grids, rng, both).items():
            each = left.square().flatten(1).mean(1) if left.dim() > 1 else left.square().reshape(-1)
            squares.setdefault(name, []).append(each)
            counts[name] = left.numel() // max(len(each), 1)
    found = {name: Noise(torch.stack(lines), counts[name]) for name, lines in squares.items()}
    none = Noise(torch.zeros(1, 1), 1)
    return [found[f"{i}"] for i in range(len(dy))], {name: found.get(f"d{name}", none) for name in subject.points}


def _left_over(subject: Subject, grids: Mapping[str, Tensor], rng: np.random.Generator,
               values: Callable[[Subject], Mapping[str, Tensor | None]],
               shorter: float = 1.0) -> dict[str, Tensor]:  # fmt: skip
    """What sixth differences leave of values by name, along a line in which all inputs move together."""
    h, steps = step_length(subject.arithmetic) * shorter, {}
    for name, point in subject.points.items():
        v = torch.from_numpy(rng.uniform(-1.0, 1.0, tuple(point.shape)))  # elements that are equal part
        steps[name] = torch.round(h * scale_of(point) * v / grids[name]) * grids[name]
    total: dict[str, Tensor] = {}
    for k in range(-3, 4):
        moved = {name: point + k * steps[name] for name, point in subject.points.items()}
        for name, value in values(replace(subject, points=moved)).items():
            if value is not None:
                total.setdefault(name, torch.zeros(value.shape, dtype=torch.float64))
                total[name].add_(value.double(), alpha=SIXTH[abs(k)] / SPREAD)
    return total


def scale_of(point: Tensor) -> float:
    """The standard deviation, or the size where there is none."""
    spread = float(point.std(correction=0)) if point.numel() else 0.0
    return spread or (float(point.abs().max()) if point.numel() else 0.0) or 1.0
