"""The directions along which a gradient is compared with the forward, and the steps along them."""

import numpy as np
import torch
from torch import Tensor

from verify_norm.checks.relations.equations import Comparison
from verify_norm.core.dtypes import FORMATS
from verify_norm.gradcheck.differences import Claim, Differences, Direction, Local, compare, difference, step_length
from verify_norm.gradcheck.noise import scale_of
from verify_norm.gradcheck.subject import Subject

TRIES = 4  # steps, each a quarter of the one before
NARROW = 4  # lines in types narrower than float32, where the change along one may be below its rounding by chance
KINDS = ("one coordinate", "the mean", "the input itself")  # directions that a random one averages away


def on_grid(subject: Subject, name: str, step: Tensor) -> Tensor:
    """Return a step of an input in whole spacings of its grid."""
    return torch.round(step / subject.grids[name]) * subject.grids[name]


def comparisons(
    subject: Subject, near: Local, claim: Claim, rng: np.random.Generator, *, zero: bool
) -> list[Comparison]:
    """Return the comparisons of one gradient along every direction; `zero`: there is none."""
    point, layout, h = near.point, near.layout, step_length(subject.arithmetic)
    scale = scale_of(point) * (torch.ones(()) if near.lengths is None else near.lengths)

    def direction(label: str, v: Tensor, size: float, signs: bool = False) -> Direction:
        return Direction(label, on_grid(subject, claim.output, size * v * scale), signs)

    def shortened(
        label: str, v: Tensor, h: float, signs: bool = False
    ) -> tuple[Direction, Differences, Comparison, float]:
        """Return what a step shows that is short enough for half of the units, and that step; the last if none is."""
        for length in (h / 4**k for k in range(TRIES)):
            along = direction(label, v, length, signs)
            found = difference(near, along)
            result = compare(near, along, found, claim)
            if 2 * result.judged >= result.left.size:
                return along, found, result, length
        return along, found, result, h

    results, narrow = [], FORMATS[subject.arithmetic].u > FORMATS["float32"].u
    for line in range(NARROW if narrow else 1):
        v = torch.from_numpy(rng.choice((-1.0, 1.0), tuple(point.shape)))
        *_, result, h = shortened("random signs" + (f", line {line + 1}" if narrow else ""), v, h, signs=True)
        results.append(result)
    for label, w in _structured(point, layout.units, rng):
        along = direction(label, w, h)
        results.append(compare(near, along, difference(near, along), claim))
    if not zero and claim.gradient.any():
        along, found, result, _ = shortened("the gradient's signs", claim.gradient.sign(), h)
        results.append(result)
        if layout.units > 1 and result.judged:
            results.append(compare(near, along, found, claim, rows=torch.from_numpy(np.isfinite(result.tolerance))))
    return results


def _structured(point: Tensor, units: int, rng: np.random.Generator) -> list[tuple[str, Tensor]]:
    """Return directions that a random one averages away, one a row in turn where there are rows enough."""
    flat = point.reshape(units, -1)
    n = flat.shape[1]
    if n == 1:
        return []
    one = torch.zeros_like(flat)
    one[torch.arange(units), torch.from_numpy(rng.integers(0, n, units))] = 1.0
    centred = (flat - flat.mean(1, keepdim=True)) / scale_of(point)
    each = [one, torch.ones_like(flat), centred]
    if units < len(KINDS):
        kinds = KINDS if point.dim() > 1 else KINDS[:1]  # of a weight or bias, one is enough
        return [(kind, v.reshape(point.shape)) for kind, v in zip(kinds, each, strict=False)]
    mixed = torch.empty_like(flat)
    for turn, v in enumerate(each):
        mixed[turn :: len(KINDS)] = v[turn :: len(KINDS)]
    return [("one coordinate, the mean, the input itself, by row", mixed.reshape(point.shape))]
