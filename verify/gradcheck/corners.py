"""Steps that cross no corner of a function, such as relu, max, clamp and abs have.

Along a line that moves many elements, some pass a corner, and no difference shows the slope there. The corners are
found by the gradient itself: it jumps there, in the elements that reach them. Each element has the longest step within
which its gradient does not jump; an element at a corner does not move. That the outputs then show no more noise than
rounding is measured; where they do, the unit has shorter steps. A gradient that is wrong may choose wrong steps, but no
step makes two sides of the identity agree that differ, and those of a right gradient are right.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from verify_norm.core.dtypes import FORMATS
from verify_norm.gradcheck.differences import Noise
from verify_norm.gradcheck.layout import Layout
from verify_norm.gradcheck.noise import Values, both, forward, shortest, sixth_differences
from verify_norm.gradcheck.subject import Subject, gradients

ROUNDINGS = 8  # times half an ulp of the outputs: more noise than this may come from corners
SHORTER, SHRINKS = 1 / 16, 4  # on so much shorter a step, noise that is less by this factor is not rounding
LEVEL = 8  # each step tried is shorter by this factor
TRIALS = (1.5, 1.2, 0.9, 0.6)  # lengths of the lines at each level: further than a check's line, and several
SLIGHT = 2**-8  # of the gradient: what it changes by within the shortest step may be rounding
STEEP = 1 / 8  # of the gradient: what changes by more within the shortest step is not resolved
JUMP = 16  # times the rounding of the gradient in the other elements: it jumps


def suspects(
    subject: Subject,
    dy: Sequence[Tensor],
    layouts: Mapping[str, Layout],
    noises: Mapping[str, Noise],
    rng: np.random.Generator,
) -> list[str]:
    """Return the inputs along which the outputs have more noise than rounding explains, which shrinks with the step."""
    sizes, seen = _half_ulps(subject), {n: noise.squares.nanmean(0) for n, noise in noises.items()}
    found = [n for n, k in layouts.items() if not (seen[n] <= ROUNDINGS**2 * k.squares(dy, sizes)).all()]
    if not found:
        return []
    short = {name: torch.full(layout.shape, SHORTER) for name, layout in layouts.items()}
    lines = [sixth_differences(subject, rng, forward, short) for _ in TRIALS]

    def shrinks(name: str) -> bool:
        squares = torch.stack([layouts[name].squares(dy, _outputs(line, dy)) for line in lines]).mean(0)
        return not bool((squares * SHRINKS**2 >= seen[name]).all())

    return [name for name in found if shrinks(name)]


def lengths_of(subject: Subject, name: str, dy: Sequence[Tensor], layout: Layout, rng: np.random.Generator) -> Tensor:
    """Return the step of each element of an input, in the usual one; 0 where it lies at a corner."""
    levels = [1.0]
    while levels[-1] / LEVEL >= 2 * shortest(subject, name):
        levels.append(levels[-1] / LEVEL)
    jumps = [_largest(subject, name, torch.full(layout.shape, length), both(dy), f"d{name}", rng) for length in levels]
    gradient = gradients(subject, dy)[name]
    size = torch.zeros(layout.shape) if gradient is None else torch.where(gradient.isfinite(), gradient, 0.0).double()
    flat, least = layout.of_input(size), layout.of_input(jumps[-1])
    large = torch.maximum(flat.abs(), flat.square().mean(1, keepdim=True).sqrt())
    own = torch.where(least <= SLIGHT * large, least, 0.0)  # else it is a jump at the point itself
    usual = least.median(1, keepdim=True).values
    most = JUMP * torch.maximum(torch.maximum(own, usual), FORMATS[subject.arithmetic].u * large)
    most = torch.where(usual <= STEEP * large, most, -1.0)  # else no step resolves the gradient at all
    lengths = torch.zeros(layout.shape, dtype=torch.float64)
    for length, jump in zip(reversed(levels), reversed(jumps), strict=True):
        lengths = torch.where((layout.of_input(jump) <= most).reshape(layout.shape), length, lengths)
    return _quiet(subject, name, dy, layout, lengths, levels, rng)


def _quiet(
    subject: Subject,
    name: str,
    dy: Sequence[Tensor],
    layout: Layout,
    lengths: Tensor,
    levels: Sequence[float],
    rng: np.random.Generator,
) -> Tensor:
    """Return the lengths, shorter in each unit whose outputs show more than rounding; 0 where they do at any length."""

    def noise(lengths: Tensor) -> Tensor:
        lines = [sixth_differences(subject, rng, forward, {name: lengths * trial}) for trial in TRIALS]
        return torch.stack([layout.squares(dy, _outputs(line, dy)) for line in lines]).mean(0)

    half_ulps = layout.squares(dy, _half_ulps(subject))
    most = SHRINKS**2 * torch.maximum(half_ulps, noise(torch.full(layout.shape, levels[-1])))
    factor = torch.zeros(layout.units, dtype=torch.float64)
    for level in levels:
        now = torch.where(factor > 0, factor, level)
        factor = torch.where((factor == 0) & (noise(lengths * _spread(now, layout)) <= most), level, factor)
        if factor.all():
            break
    return lengths * _spread(factor, layout)


def _spread(units: Tensor, layout: Layout) -> Tensor:
    """Return one value a unit in a shape that multiplies the input."""
    return units.reshape(-1, *(1,) * (len(layout.shape) - 1)) if layout.shape else units.reshape(())


def _largest(
    subject: Subject, name: str, lengths: Tensor, values: Values, key: str, rng: np.random.Generator
) -> Tensor:
    """Return the largest sixth difference of a value along the lines of all trials."""
    largest = torch.zeros(lengths.shape, dtype=torch.float64)
    for trial in TRIALS:
        line = sixth_differences(subject, rng, values, {name: lengths * trial})
        largest = torch.maximum(largest, line[key].abs().nan_to_num(math.inf)) if key in line else largest
    return largest


def _outputs(line: Mapping[str, Tensor], dy: Sequence[Tensor]) -> list[Tensor]:
    return [line[str(i)] for i in range(len(dy))]


def _half_ulps(subject: Subject) -> list[Tensor]:
    u = FORMATS[subject.arithmetic].u
    return [y.double() * u for y in forward(subject).values() if y is not None]
