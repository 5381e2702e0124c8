"""How much noise a function's values and gradients show, and the arithmetic that explains it.

A function may be called in float64 and compute in float32, as many norms do. It is then held to float32: its points and
steps lie on that one's grid, where its first conversion rounds nothing, and the steps have the length that suits it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from verify_norm import gradhygiene
from verify_norm.dtypes import FORMATS
from verify_norm.gradhygiene import Subject
from verify_norm.gradient import SIXTH, SPREAD, settle, step_length

DTYPES = ("float64", "float32", "bfloat16", "float16")
ASKED, ENOUGH = 32, 2**14  # elements: where an output has fewer, along several lines; where it has more, some of them
SHARE = 1 / 16  # of the elements at least show the noise of the arithmetic, beyond those that may have a corner
CORNERS = 4  # times h, in standard deviations: the share of elements that a corner within three steps is near to
LOOSE = 16  # so many times smaller than u may that noise be


def settled(subject: Subject) -> tuple[Subject, dict[str, Tensor]]:
    """The subject at points of a grid on which its steps lie too, and that grid's spacing for every input."""
    h = step_length(subject.arithmetic)
    found = {n: settle(p.numpy(), 3 * h * scale_of(p), subject.arithmetic) for n, p in subject.points.items()}
    points = {n: torch.from_numpy(np.asarray(p)) for n, (p, _) in found.items()}
    return replace(subject, points=points), {n: torch.from_numpy(np.asarray(grid)) for n, (_, grid) in found.items()}


def inner_type(subject: Subject, grids: Mapping[str, Tensor], rng: np.random.Generator) -> str:
    """The narrower type that explains the forward's noise, as float32 in a function of float64; "" where none has to.

    An element may be rounded alike at all points of a line and looks exact along it: so many are asked, few along
    several lines. And some may have a corner on it: so more of them than those have to show the noise.
    """

    @torch.no_grad()
    def forward(at: Subject) -> dict[str, Tensor | None]:
        return {str(i): y for i, y in enumerate(at.call({}))}

    noise, u, share = 0.0, FORMATS[subject.dtype].u, SHARE + CORNERS * step_length(subject.dtype)
    outputs = forward(subject)
    fewest = min(y.numel() for y in outputs.values() if y is not None)
    lines = [_left_over(subject, grids, rng, forward) for _ in range(-(-ASKED // max(fewest, 1)))]
    for i, y in outputs.items():
        if y is not None and y.any():
            left = torch.cat([line[i].abs().reshape(-1) for line in lines])
            left = left[:: -(-left.numel() // ENOUGH)]
            noise = max(noise, float(left.quantile(1 - share)) / float(y.double().square().mean().sqrt()))
    narrower = [d for d in DTYPES if u < FORMATS[d].u <= LOOSE * noise]
    return max(narrower, key=lambda d: FORMATS[d].u, default="") if noise > gradhygiene.AGAIN * u else ""


def backward_errors(subject: Subject, dy: Sequence[Tensor], grids: Mapping[str, Tensor],
                     rng: np.random.Generator) -> dict[str, Tensor]:  # fmt: skip
    """How far off each element of each gradient is: what sixth differences leave of it, all inputs moving together.

    That is its rounding, and much more where the function has a corner narrower than a step, as a norm has in a row of
    two equal elements: no difference of the forward could tell the slope in it, and so it is not held to one.
    """
    left = _left_over(subject, grids, rng, lambda at: gradhygiene.gradients(at, dy))
    return {name: left.get(name, torch.zeros_like(point)) for name, point in subject.points.items()}


def _left_over(subject: Subject, grids: Mapping[str, Tensor], rng: np.random.Generator,
               values: Callable[[Subject], Mapping[str, Tensor | None]]) -> dict[str, Tensor]:  # fmt: skip
    """What sixth differences leave of values by name, along a line in which all inputs move together."""
    h, steps = step_length(subject.arithmetic), {}
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
