"""How a function separates: which rows of an input move which parts of the outputs, and nothing else.

Rows that are independent of each other are experiments of their own, in one call: each has its own noise, and a local
error is not averaged away. So are the elements of a weight or bias that each have a column of the outputs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

FEW = 8  # rows: with more, a dependence shows in many pairs of them, and two halves are enough


@dataclass(frozen=True, slots=True)
class Layout:
    """The `units` of an input, along its first axis, and of each output the axis along which they lie.

    Where rows depend on each other there is one unit, and no axis.

    >>> tuple(Layout((8,), 8, (1,)).of_output(0, torch.zeros(4, 8)).shape)
    (8, 4)
    """

    shape: tuple[int, ...]
    units: int
    axes: tuple[int, ...]

    def of_input(self, values: Tensor) -> Tensor:
        """Return an array of the input's shape as (units, elements of each)."""
        return values.reshape(self.units, -1)

    def of_output(self, index: int, values: Tensor) -> Tensor:
        """Return an array of the output's shape as (units, elements of each)."""
        return (values.movedim(self.axes[index], 0) if self.axes else values).reshape(self.units, -1)

    def squares(self, dy: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
        """Return Σ (dy·v)² over the outputs, in each unit."""
        each = [self.of_output(i, d * v).square().sum(1) for i, (d, v) in enumerate(zip(dy, values, strict=True))]
        return torch.stack(each).sum(0)


def layout_of(
    forward: Callable[[Tensor], list[Tensor]],
    point: Tensor,
    base: Sequence[Tensor],
    step: Tensor,
    rng: np.random.Generator,
) -> Layout:
    """Return the layout of an input: where some of its rows move by `step`, the others' parts of the outputs stay.

    Every row moves once while others stay; of a few rows, every pair is separated.
    """
    shape = tuple(point.shape)
    rows = shape[0] if shape else 1
    candidates = [_candidates(y, point) for y in base] if rows > 1 else [[]]
    if not all(candidates):
        return Layout(shape, 1, ())
    for still in _splits(rows, rng):
        moved = forward(torch.where(still.reshape(-1, *(1,) * (point.dim() - 1)), point, point + step))
        for y, at, axes in zip(moved, base, candidates, strict=True):
            axes[:] = [axis for axis in axes if bool((y == at).movedim(axis, 0)[still].all())]
        if not all(candidates):
            return Layout(shape, 1, ())
    return Layout(shape, rows, tuple(axes[0] for axes in candidates))


def _candidates(y: Tensor, point: Tensor) -> list[int]:
    """Return the axes of an output that may be the input's first; of a weight or bias, first as broadcasting aligns."""
    order = [0] if point.dim() > 1 else [y.dim() - 1, *range(y.dim())]
    return list(dict.fromkeys(axis for axis in order if 0 <= axis < y.dim() and y.shape[axis] == point.shape[0]))


def _splits(rows: int, rng: np.random.Generator) -> list[Tensor]:
    """Return which rows stay, split by split: halves of a random order, and their complements."""
    order = rng.permutation(rows)
    bits = (rows - 1).bit_length() if rows <= FEW else 1
    halves = [torch.from_numpy((order >> bit) & 1 == 1) for bit in range(bits)]
    return [half for each in halves for half in (each, ~each)]
