"""The values of a case's inputs: families of data, each tensor from its own random stream."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import torch

from verify_norm.cases import placement
from verify_norm.cases.device_array import in_memory, on_device
from verify_norm.cases.random import Random
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.geometry import (
    groups,
    input_dtype,
    layout_of,
    position_shape,
    row_length,
    sample_shape,
    shape_of,
    special_input,
)
from verify_norm.core.spec import FAMILIES, CaseSpec, Op, Tensor

BOUNDED = 300.0  # scale_ub at a scale of 1: above all |z|; at one of 100 it is in the midst of the largest of rows
CANCELLED = 2**14  # elements of x: so many or fewer, a residual is −x in some of them
SPREAD = 20  # log2 of how far rows, groups or channels differ in mean and scale, and weights of wide data


def tensor(spec: CaseSpec, op: Op, one: Tensor, device: Any = None) -> Array | None:
    """Return the exact values of one input as float64, in its shape; None for one that the case leaves out.

    They depend on the seed of the case and the name of the input, not on other inputs; a residual also on x. With a
    device they lie in its memory, as a `DeviceArray` of the same bits.
    """
    kept = "running" if one.name in ("running_mean", "running_var") else one.name
    if one.optional and not getattr(spec, kept):
        return None
    rng = Random(spec.seed, one.name, device)
    form, layout = FORMATS[input_dtype(one, spec)], layout_of(spec, one.name)
    if one.extent == "one" and one.role != "weight":
        values = np.array([_scale(spec, one)])
    elif one.extent == "sample":  # around 0, as models begin; 1 + scale is 0 in some places
        values = _each_seventh(-1.0 if one.name == "scale" else 0.0, rng.standard_normal(sample_shape(spec, op)))
        values = _wide(spec, values, rng) * (one.name != "scale" or spec.weight_data != "initial")  # of a new model 0
    elif one.extent == "position":  # of one angle; where it is 0, as at the first position, nothing turns
        angle = Random(spec.seed, "angle", device).standard_normal(position_shape(spec, op)) * 8
        still = _each_eighth(angle.shape[:-1], 5).reshape((*angle.shape[:-1], 1))
        values = {"cos": np.cos, "sin": np.sin}[one.name](np.where(still, 0.0, _each_seventh(0.0, angle)))
    elif one.name == "mask" and one.dtype == "bool":  # of a dropout: True where x is kept; of some rows all, or none
        values = np.where(rng.integers(0, 2**20, spec.shape) >= spec.dropout_p * 2**20, 1.0, 0.0)
        values = np.where(_rows(spec, op, 5) & (spec.dropout_p > 0), 0.0, np.where(_rows(spec, op, 6), 1.0, values))
    elif one.name == "gate" and one.extent == "data":  # some far out, where a sigmoid is 0 or 1, and some 0, or a row
        values = 2 * rng.standard_normal(spec.shape) * _each_seventh(16.0, np.ones(spec.shape))
        # A gate before the norm that is 0 in a whole row leaves it no variance.
        off = _rows(spec, op, 5) & (op.before is None or spec.data == "padded")
        values = np.where(off, 0.0, _each_seventh(0.0, values, 5))
    elif one.extent == "affine" or one.role == "weight":
        values = _affine(spec, op, one, rng)
    elif one.role == "cotangent":
        values = np.ldexp(_cotangent(spec, op, one, rng), spec.dy_log2_scale)
    else:
        values = _family(spec.data, spec, op, rng)
        values = np.ldexp(values + spec.offset if spec.offset else values, spec.log2_scale)  # −0 + 0 is 0
        if one.name == "residual" and prod(spec.shape) <= CANCELLED:
            values = _cancelling(spec, op, values, device)
    values = placement.shared(form.round(np.clip(values, -form.largest, form.largest)), layout)
    if spec.special and one.name == special_input(spec, op):
        for number, marks in _special_values(spec, placement.distinct(values.shape, layout)):
            values = np.where(marks, number, values)
    return values if device is None else on_device(values, device)


def _scale(spec: CaseSpec, one: Tensor) -> float:
    """Return a scale of y, or a bound of max |z|: the same values saturate."""
    return (
        spec.scale
        if one.name in ("scale", "global_scale")
        else (BOUNDED if one.name == "scale_ub" else 1.0) / (spec.scale or 1.0)
    )


def _affine(spec: CaseSpec, op: Op, one: Tensor, rng: Random) -> Array:
    """Return the values of weight or bias, or of running statistics: those of a batch like x."""
    shape = shape_of(one, spec, op)
    values = rng.standard_normal(shape)
    if one.name == "running_mean":
        return np.ldexp(values + spec.offset, spec.log2_scale)
    if one.name == "running_var":  # positive, and not all of it underflows; of padded data 0 in some channels
        least = FORMATS[input_dtype(one, spec)].ulp(np.zeros(()))
        values = np.maximum(np.ldexp(0.5 + np.abs(values), 2 * spec.log2_scale), least)
        dead = spec.data == "padded" and spec.eps > 0
        return np.where(dead & (np.arange(values.size) % 3 == 1), 0.0, values)
    if one.name == "bias":
        return _wide(spec, values, rng) * (spec.weight_data not in ("initial", "subnormal"))
    values = np.copysign(0.5 + np.abs(values), values)  # far from 1, of both signs: a forgotten weight shows
    if spec.weight_data == "wide":
        values = _wide(spec, values, rng)
    elif spec.weight_data == "subnormal":
        few = FORMATS[input_dtype(one, spec)].emin - 2
        values = np.where(np.arange(prod(shape)).reshape(shape) % 3 == 0, np.ldexp(values, few), values)
    elif spec.weight_data != "random":
        some = spec.weight_data.startswith("some_")
        where = np.arange(prod(shape)).reshape(shape) % (3 if some else 1) == 0
        values = np.where(where, 0.0 if spec.weight_data in ("zero", "some_zero") else 1.0, values)
    if one.positive:
        return np.abs(np.where(values == 0, 1.0, values))
    return values - spec.weight_offset


def _wide(spec: CaseSpec, values: Array, rng: Random) -> Array:
    """Return the values, of all magnitudes where the case's weights are: a kernel may clamp, flush or overflow.

    Beside float16 none overflows; else some results are beyond float16's largest number.
    """
    if spec.weight_data != "wide":
        return values
    most = SPREAD // 2 if "float16" in (spec.dtype, spec.weight_dtype) else SPREAD
    return values * np.exp2(rng.integers(-most, most + 1, values.shape))


def _each_seventh(one: Any, values: Array, place: int = 3) -> Array:
    """Return the values, each seventh of them `one`: seven divides few lengths, so most columns have some."""
    return np.where(np.arange(values.size).reshape(values.shape) % 7 == place, one, values)


def _each_eighth(shape: tuple[int, ...], place: int) -> Any:
    """Return True for each eighth of so many, from the one at `place` on: for none of fewer."""
    return (np.arange(prod(shape)) % 8 == place).reshape(shape)


def _rows(spec: CaseSpec, op: Op, place: int) -> Any:
    """Return `_each_eighth` of the rows, or samples, so that it broadcasts against x."""
    outer = spec.shape[: len(_outer(spec, op))]
    return _each_eighth(outer, place).reshape(outer + (1,) * (len(spec.shape) - len(outer)))


def _cancelling(spec: CaseSpec, op: Op, residual: Array, device: Any) -> Array:
    """Return a residual that is −x in some elements and in some whole rows, where the sum is 0."""
    x = next(tensor for tensor in op.inputs if tensor.name == "x")
    other = in_memory(tensor(replace(spec, special=None), op, x, device))
    return np.where(_rows(spec, op, 6), -other, _each_seventh(-other, residual, 5))


def _cotangent(spec: CaseSpec, op: Op, one: Tensor, rng: Random) -> Array:
    """Return dy, or dresidual_out: random, so what is passed on of zero rows shows, but 0 with initial weights."""
    if one.name == "dy" and spec.dy_data in FAMILIES:
        return _family(spec.dy_data, spec, op, rng)
    values = rng.standard_normal(spec.shape)
    if one.name != "dy":
        return values * (spec.weight_data != "initial")
    if spec.dy_data == "random":
        return values
    if spec.dy_data == "one":
        return np.ones(spec.shape)
    rows = _outer(spec, op)
    of_weight = range(len(rows), len(spec.shape) if op.view == "rows" else 2)
    columns = _keep_axes(spec.shape, of_weight)
    if spec.dy_data == "zero_rows":
        return np.where(_masked(_keep_axes(spec.shape, rows), rng) & ~_picked(spec.shape, len(rows)), 0.0, values)
    length = prod(columns)
    if op.view == "rows" and length >= 48 and length % 8 == 0:  # whole tiles, as of a part of y
        return np.where((np.arange(length) // _tile(length) % 3 == 1).reshape(columns), 0.0, values)
    return np.where(_masked(columns, rng), 0.0, values)


def _tile(length: int) -> int:
    """Return the elements of a tile of a row that may be zeros: a third of the row or less, at most 512."""
    return int(min(512, 2 ** ((length // 3).bit_length() - 1)))


def _picked(shape: tuple[int, ...], outer: int) -> Any:
    """Return the one element of every fifth row or sample that a gradient has which picks elements, as a loss does."""
    row, place = np.ogrid[: prod(shape[:outer]), : prod(shape[outer:])]
    return ((row % 5 == 2) & (place == row * 7 % max(place.size, 1))).reshape(shape)


def _masked(shape: Sequence[int], rng: Random) -> Any:
    """Return a mask, True for about half: for the first element, and not for the last of several."""
    mask = rng.few.random(shape) < 0.5
    mask.flat[-1:], mask.flat[:1] = False, True
    return mask


def _special_values(spec: CaseSpec, shape: tuple[int, ...]) -> list[tuple[float, Any]]:
    """Return each special value, and where an input with elements of this shape holds it; a later one counts."""
    marks = _special_places(spec, shape)
    if spec.special != "nan+inf":
        return [(float(str(spec.special)), marks)]
    nan, turn = marks.copy(), np.arange(shape[-1]) % 2
    if spec.special_at == "row":
        nan &= turn == 0
    elif spec.special_at == "rows":
        nan[2::4] = False
    return [(np.inf, marks | np.roll(marks, 1, -1)), (np.nan, nan)]


def _special_places(spec: CaseSpec, shape: tuple[int, ...]) -> Any:
    """Return True where `special_at` says, False elsewhere."""
    marks = np.zeros(shape, bool)
    if spec.special_at == "rows":
        rows = marks.reshape(shape[0], -1)
        index = np.arange(0, len(rows), 2)
        rows[index, index * rows.shape[1] // len(rows)] = True  # each at another place
    elif spec.special_at == "row":
        marks[shape[0] // 2] = True
    else:
        place = {"first": lambda n: 0, "middle": lambda n: n // 2, "last": lambda n: n - 1}[spec.special_at]
        marks[tuple(map(place, shape))] = True
    return marks


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


def _family(data: str, spec: CaseSpec, op: Op, rng: Random) -> Array:
    """Return the data of a family in the shape of x, as float64, before offset and scale."""
    shape = spec.shape
    if data == "heavy":  # Student's t with two degrees of freedom: without a variance, a few values dominate
        return rng.heavy(shape)
    if data == "channel":  # one channel a thousand times larger, as in activations of large language models
        noise = rng.standard_normal(shape)
        axis = -1 if op.view == "rows" else 1
        channel = int(rng.few.integers(max(shape[axis], 1)))
        scale = np.where(np.arange(shape[axis]) == channel, 1000.0, 1.0)
        return noise * np.moveaxis(scale.reshape(-1, *(1,) * (len(shape) - 1)), 0, axis)
    if data == "constant":  # one value in every row, sample or channel: the variance is 0
        one = rng.standard_normal(_keep_axes(shape, (1,) if op.view == "channels" else _outer(spec, op)))
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
        mask = _per_channel(_masked(_statistics_shape(spec, op), rng), spec, op) | zeros
        return np.where(mask, -0.0, rng.standard_normal(shape) + level)
    if data == "integers":  # exact in every format, with ties, and zeros of both signs
        return rng.integers(0, 9, shape) * np.copysign(1.0, rng.standard_normal(shape))
    return rng.standard_normal(shape)


def _parts(spec: CaseSpec, op: Op) -> tuple[Any, Any]:
    """Return where rows have zeros, and the mean of what is left: a kernel may take a part of a row for all of it.

    Every third row begins with zeros: a vector of 16 bytes, of a longer row a block of 128 elements. The half of these
    are at another level behind them. As many long rows end with zeros, a half of them.
    """
    length = row_length(spec, op) if op.view == "rows" else 0
    if not length:
        return np.zeros((1,) * len(spec.shape), bool), 0.0
    row, place = np.ogrid[: prod(spec.shape) // length, :length]
    first = (row % 3 == 1) & (place < (128 if length >= 256 else min(8, length - 1)))
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
    shape = _keep_axes(spec.shape, {"rows": _outer(spec, op), "groups": (0, 1), "channels": (1,)}[op.view])
    if op.view == "groups":
        shape[1] = groups(spec, op)
    return shape


def _per_channel(values: Array, spec: CaseSpec, op: Op) -> Array:
    """Return the values of groups repeated for each of their channels; those of rows and channels broadcast already."""
    return np.repeat(values, spec.shape[1] // values.shape[1], 1) if op.view == "groups" else values


def _outer(spec: CaseSpec, op: Op) -> range:
    """Return the axes of x that count rows, or samples."""
    return range(len(spec.shape) - spec.normalized_ndim if op.view == "rows" else 1)


def _keep_axes(shape: tuple[int, ...], axes: Collection[int]) -> list[int]:
    """Return the shape with these axes alone; the others have size 1."""
    return [n if axis in axes else 1 for axis, n in enumerate(shape)]
