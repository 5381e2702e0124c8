"""The families of data: noise in the shape of x, which a case shifts and scales."""

from collections.abc import Collection, Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from verify_norm.cases.random import Random
from verify_norm.core.dtypes import Array
from verify_norm.core.geometry import groups, leads, row_length
from verify_norm.core.op import Op
from verify_norm.core.spec import CaseSpec

SPREAD = 20  # log2 of how far rows, groups or channels differ in mean and scale, and weights of wide data


def noise(data: str, spec: CaseSpec, op: Op, rng: Random) -> Array:
    """Return the data of a family in the shape of x, as float64, before offset and scale."""
    shape = spec.shape
    if data == "heavy":  # Student's t with two degrees of freedom: without a variance, a few values dominate
        return rng.heavy(shape)
    if data == "channel":  # one channel a thousand times larger, for example in activations of large language models
        noise = rng.standard_normal(shape)
        axis = -1 if op.view == "rows" else 1
        channel = int(rng.few.integers(max(shape[axis], 1)))
        scale = np.where(np.arange(shape[axis]) == channel, 1000.0, 1.0)
        return noise * np.moveaxis(scale.reshape(-1, *(1,) * (len(shape) - 1)), 0, axis)
    if data == "constant":  # one value in every row, sample or channel: the variance is 0
        one = rng.standard_normal(keep_axes(shape, (1,) if op.view == "channels" else range(leads(spec, op))))
        return np.array(np.broadcast_to(one, shape))
    if data == "alternating":  # +1, −1, …: the largest sums that cancel
        return np.where(np.arange(prod(shape)) % 2, -1.0, 1.0).reshape(shape)
    if data in ("sorted", "ramp", "steps"):
        place = _relative_place(spec, op)  # running sums and means of ordered data lose the most
        if data == "sorted":
            ordered: Array = torch.special.ndtri(torch.from_numpy(place)).numpy()
        else:
            ordered = 2 * place if data == "ramp" else np.floor(8 * place) / 4
        return ordered + rng.standard_normal(shape) / 64
    if data == "uneven":
        scale, mean = _uneven(spec, op, rng)
        return scale * (mean + rng.standard_normal(shape))
    if data == "zero":
        return np.zeros(shape)
    if data == "padded":  # some rows, groups or channels are −0, or constant where there is an offset; a part of others
        zeros, level = _parts(spec, op)
        mask = _per_channel(masked(_statistics_shape(spec, op), rng), spec, op) | zeros
        return np.where(mask, -0.0, rng.standard_normal(shape) + level)
    if data == "integers":  # exact in every format, with ties, and zeros of both signs
        return rng.integers(0, 9, shape) * np.copysign(1.0, rng.standard_normal(shape))
    return rng.standard_normal(shape)


def _relative_place(spec: CaseSpec, op: Op) -> Array:
    """Return the place of each element of x, from 0 to 1, among those normalized with it, in the shape of x."""
    n, shape = row_length(spec, op), spec.shape
    if op.view == "channels":
        space = prod(shape[2:])
        place = np.add.outer(np.arange(shape[0]) * space, np.arange(space))[:, None]
        place = np.broadcast_to(place, (*shape[:2], space))
    else:
        place = np.arange(prod(shape)) % max(n, 1)
    return ((place + 0.5) / max(n, 1)).reshape(shape)


def _parts(spec: CaseSpec, op: Op) -> tuple[Any, Any]:
    """Return where rows have zeros, and the mean of what is left: a kernel may take a part of a row for all of it.

    Every third row begins with zeros: a vector of 16 bytes, of a longer row a block of 128 elements. The half of these
    are at another level behind them, and of a quarter the last element alone is not zero. As many long rows end with
    zeros, a half of them.
    """
    length = row_length(spec, op) if op.view == "rows" else 0
    if not length:
        return np.zeros((1,) * len(spec.shape), bool), 0.0
    row, place = np.ogrid[: prod(spec.shape) // length, :length]
    first = (row % 3 == 1) & (place < (128 if length >= 256 else min(8, length - 1)))
    first |= (row % 12 == 7) & (place < length - 1)
    last = (row % 6 == 2) & (place >= (length + 1) // 2) & (length >= 16)
    level = np.where(row % 6 == 4, 100.0, np.where(row % 6 == 2, 3.0, 0.0)) * (length >= 16)
    return (first | last).reshape(spec.shape), np.broadcast_to(level, first.shape).reshape(spec.shape)


def _uneven(spec: CaseSpec, op: Op, rng: Random) -> tuple[Array, Array]:
    """Return the scale, and the mean in units of it, of every row, group or channel; both broadcast against x."""
    shape = _statistics_shape(spec, op)
    powers = np.rint(np.linspace(-SPREAD / 2, SPREAD / 2, prod(shape)))
    scale, mean = np.exp2(rng.few.permutation(powers)).reshape(shape), rng.few.choice((-8.0, 0.0, 8.0), shape)
    return _per_channel(scale, spec, op), _per_channel(mean, spec, op)


def _statistics_shape(spec: CaseSpec, op: Op) -> list[int]:
    """Return how many rows, groups or channels are normalized, as a shape of x's rank."""
    shape = keep_axes(spec.shape, {"rows": range(leads(spec, op)), "groups": (0, 1), "channels": (1,)}[op.view])
    if op.view == "groups":
        shape[1] = groups(spec, op)
    return shape


def _per_channel(values: Array, spec: CaseSpec, op: Op) -> Array:
    """Return the values of groups repeated for each of their channels; those of rows and channels broadcast already."""
    return np.repeat(values, spec.shape[1] // values.shape[1], 1) if op.view == "groups" else values


def masked(shape: Sequence[int], rng: Random) -> Any:
    """Return a mask, True for about half: for the first element, and not for the last of several."""
    mask = rng.few.random(shape) < 0.5
    mask.flat[-1:], mask.flat[:1] = False, True
    return mask


def keep_axes(shape: tuple[int, ...], axes: Collection[int]) -> list[int]:
    """Return the shape with these axes alone; the others have size 1."""
    return [n if axis in axes else 1 for axis, n in enumerate(shape)]
