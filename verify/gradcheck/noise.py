"""How much noise a function's values and gradients have, and the arithmetic that explains it.

A function may be called in float64 and compute in float32, as many norms do. It is then held to float32: its points and
steps lie on float32's grid, where its first conversion rounds nothing, and the steps have the length for float32.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from verify_norm.core.dtypes import FORMATS
from verify_norm.gradcheck.differences import SIXTH, SPREAD, Noise, settle, step_length
from verify_norm.gradcheck.hygiene import AGAIN
from verify_norm.gradcheck.layout import Layout
from verify_norm.gradcheck.subject import Subject, backward

DTYPES = ("float64", "float32", "bfloat16", "float16")
ASKED, ENOUGH = 32, 2**14  # elements of an output: with fewer, several lines are used; with more, a part of them
SHARE = 1 / 16  # of the elements at least show the noise of the arithmetic, beyond those that may have a corner
CORNERS = 4  # times h, in standard deviations: the share of elements with a corner within three steps
LINES, SMALL = 5, 2**12  # lines at least, each one estimate of the noise; more for inputs of few elements
ENOUGH_LINES = 16  # for these, and for few outputs; twice as many for both
LOOSE = 4  # noise may be this many times smaller than u
ROOM = 4  # grid spacings in a step, at least: fewer do not show a slope, nor that a type is the one computed in
SHORTER = 1 / 16  # of a step: differences that are not rounding become 16⁶ times smaller
REACH = 5  # steps: how far a line goes, at most
NUDGE = 3  # grid spacings: changes the roundings, and little else
FEW = 8  # outputs of a unit: with fewer, more lines are used

Values = Callable[[Subject], dict[str, Tensor | None]]
Lengths = Mapping[str, Tensor] | None


def settled(subject: Subject) -> Subject:
    """Return the subject at points of a grid on which its steps lie too."""
    h = step_length(subject.arithmetic)
    points, grids = {}, {}
    for name, point in subject.points.items():
        on_grid, grid = settle(point.numpy(), REACH * h * scale_of(point), subject.arithmetic)
        points[name], grids[name] = torch.from_numpy(np.asarray(on_grid)), torch.from_numpy(np.asarray(grid))
    return replace(subject, points=points, grids=grids)


def inner_type(subject: Subject, rng: np.random.Generator) -> str:
    """Return the narrower type that explains the forward's noise, such as float32 in a function of float64; else "".

    Rounding does not shrink with the step. Noise that does shrink belongs to a steep function.
    """
    u = FORMATS[subject.dtype].u
    noise = _relative(subject, rng)
    narrower = [d for d in DTYPES if u < FORMATS[d].u <= LOOSE * noise and _fits(subject, d)]
    if not narrower or noise <= AGAIN * u:
        return ""
    short = {name: torch.full(tuple(point.shape), SHORTER) for name, point in subject.points.items()}
    if _relative(subject, rng, short) < noise / 3:
        return ""
    return max(narrower, key=lambda d: FORMATS[d].u)


def inner_by_gradients(subject: Subject, precision: Mapping[str, float]) -> str:
    """Return "float32" where a function of float64 has gradients that round so, though its outputs are exact; else "".

    A norm of two elements is ±1 in any type.
    """
    u = FORMATS["float32"].u
    shown = any(u / LOOSE <= seen <= AGAIN**2 * u for seen in precision.values())
    return "float32" if shown and subject.arithmetic == "float64" and _fits(subject, "float32") else ""


def coarse(subject: Subject, precision: Mapping[str, float]) -> dict[str, float]:
    """Return the gradients that round as in a 16-bit type, and how far, of a function that computes in a wider one."""
    u = FORMATS["float16"].u / LOOSE
    wide = subject.arithmetic in ("float64", "float32")
    return {name: seen for name, seen in precision.items() if wide and seen >= u}


def _fits(subject: Subject, dtype: str) -> bool:
    """Return whether the type separates a step's points; where not, the noise comes from data that are far from 0."""
    h = step_length(dtype)
    reaches = [(p, h * scale_of(p)) for p in subject.points.values() if p.numel()]
    return all(ROOM * settle(p.numpy(), 3 * step, dtype)[1].max() <= step for p, step in reaches)


def shortest(subject: Subject, name: str) -> float:
    """Return the shortest step, in the usual one, that is ROOM spacings of the grid; beyond 1 there is no room."""
    usual = step_length(subject.arithmetic) * scale_of(subject.points[name])
    return ROOM * float(subject.grids[name].median()) / usual


def _lines(subject: Subject, small: int) -> int:
    return small if sum(p.numel() for p in subject.points.values()) <= SMALL else LINES


def _relative(subject: Subject, rng: np.random.Generator, lengths: Lengths = None) -> float:
    """Return the noise that a share of an output's elements exceeds, over the output's RMS; of all outputs the largest.

    An element may be rounded alike at all points of a line and look exact along it: so many elements count, or few
    along several lines. Some elements may have a corner on the line: so more elements than those have to show noise.
    """
    noise, share = 0.0, min(SHARE + CORNERS * step_length(subject.dtype), 1 / 2)
    outputs = forward(subject)
    fewest = min(y.numel() for y in outputs.values() if y is not None)
    count = min(-(-ASKED // max(fewest, 1)), _lines(subject, ASKED))
    lines = [sixth_differences(subject, rng, forward, lengths) for _ in range(count)]
    for i, y in outputs.items():
        if y is not None and y.any():
            largest = y.double().abs().max()
            left = torch.cat([line[i].abs().reshape(-1) for line in lines]) / largest
            left = left[:: -(-left.numel() // ENOUGH)]
            noise = max(noise, float(left.quantile(1 - share)) / float((y.double() / largest).square().mean().sqrt()))
    return noise


Noises = tuple[dict[str, Noise], dict[str, Noise]]


def noise(
    subject: Subject,
    dy: Sequence[Tensor],
    layouts: Mapping[str, Layout],
    rng: np.random.Generator,
    lengths: Lengths = None,
) -> Noises:
    """Return the noise of ⟨dy, y⟩ and of each gradient, for the layout of each input, by its name.

    All inputs move together along each line; with `lengths`, those alone that have some. Noise is rounding, and more
    where the function has corners within a step: no line shows the slope there, and no gradient is held to one.
    """
    values = sum(d.numel() for d in dy)
    few = values < FEW * max(layout.units for layout in layouts.values())
    if FORMATS[subject.arithmetic].u > FORMATS["float32"].u:  # where the rounding of one element's gradient counts
        few |= any(math.prod(layout.shape) < FEW * layout.units for layout in layouts.values())
    outputs: dict[str, list[Tensor]] = {name: [] for name in layouts}
    gradients: dict[str, list[Tensor]] = {name: [] for name in layouts}
    lines = _lines(subject, ENOUGH_LINES)
    for _ in range(max(2 * lines, ENOUGH_LINES) if few else lines):
        left = sixth_differences(subject, rng, both(dy), lengths)
        for name, layout in layouts.items():
            outputs[name].append(layout.squares(dy, [left[str(i)] for i in range(len(dy))]))
            gradients[name].append(layout.of_input(left.get(f"d{name}", torch.zeros(layout.shape))).square().sum(1))
    return (
        {n: Noise(torch.stack(lines), max(values // layouts[n].units, 1)) for n, lines in outputs.items()},
        {
            n: Noise(torch.stack(lines), math.prod(layouts[n].shape) // layouts[n].units)
            for n, lines in gradients.items()
        },
    )


def forward(subject: Subject) -> dict[str, Tensor | None]:
    """Return the outputs, by their numbers."""
    with torch.no_grad():
        return {str(i): y for i, y in enumerate(subject.call({}))}


def both(dy: Sequence[Tensor]) -> Values:
    """Return the function that gives the outputs, by their numbers, and the gradients, such as "dx" of the input x."""

    def values(subject: Subject) -> dict[str, Tensor | None]:
        leaves = subject.leaves()
        outputs = subject.call(leaves)
        found = {f"d{name}": gradient for name, gradient in backward(outputs, dy, leaves).items()}
        return found | {str(i): y.detach() for i, y in enumerate(outputs)}

    return values


def sixth_differences(
    subject: Subject, rng: np.random.Generator, values: Values, lengths: Lengths = None
) -> dict[str, Tensor]:
    """Return sixth differences of values by name, over √924, along a line in which all inputs move together.

    Every element moves, if only by one spacing of its grid: a rounding that stays the same does not show. With
    `lengths`, the inputs that have some move, each element by three quarters of its length to all of it; the others
    move by a few spacings.
    """
    h, steps, starts = step_length(subject.arithmetic), {}, {}
    for name, point in subject.points.items():
        odd = torch.from_numpy(rng.integers(0, 2, tuple(point.shape)))  # else ties may cancel on every line alike
        starts[name] = point + odd * subject.grids[name]
        v = torch.from_numpy(rng.uniform(-1.0, 1.0, tuple(point.shape)))  # separates elements that are equal
        if lengths is None:
            count = h * scale_of(point) * v / subject.grids[name]
        elif name in lengths:
            count = h * scale_of(point) * (v + 3 * v.sign()) / 4 * lengths[name] / subject.grids[name]
        else:
            count = NUDGE * v
        count = torch.round(count) if lengths and name in lengths else torch.trunc(count) + v.sign()
        steps[name] = count * subject.grids[name]
    total: dict[str, Tensor] = {}
    for k in range(-3, 4):
        moved = {name: start.add(steps[name], alpha=k) for name, start in starts.items()}
        for name, value in values(replace(subject, points=moved)).items():
            if value is not None and name in total:
                total[name].add_(value, alpha=SIXTH[abs(k)] / SPREAD)
            elif value is not None:
                total[name] = value.double() * (SIXTH[abs(k)] / SPREAD)
    return total


def scale_of(point: Tensor) -> float:
    """Return the standard deviation; where it is 0, the largest magnitude, or 1."""
    spread = float(point.std(correction=0)) if point.numel() else 0.0
    return spread or (float(point.abs().max()) if point.numel() else 0.0) or 1.0
