"""The values of a case's inputs: each tensor from its own random stream."""

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from verify_norm.cases import placement
from verify_norm.cases.device_array import in_memory, on_device
from verify_norm.cases.families import SPREAD, keep_axes, masked, noise
from verify_norm.cases.random import Random
from verify_norm.cases.special_values import special_values
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.geometry import input_dtype, leads, position_shape, sample_shape, shape_of
from verify_norm.core.layouts import layout_of
from verify_norm.core.op import Op, Tensor
from verify_norm.core.spec import FAMILIES, CaseSpec
from verify_norm.core.specials import special_input

BOUNDED = 300.0  # scale_ub at a scale of 1: above all |z|; at one of 100 it is in the midst of the largest of rows
CANCELLED = 2**14  # elements of x: so many or fewer, a residual is −x in some of them


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
        values = noise(spec.data, spec, op, rng)
        values = np.ldexp(values + spec.offset if spec.offset else values, spec.log2_scale)  # −0 + 0 is 0
        if one.name == "residual" and prod(spec.shape) <= CANCELLED:
            values = _cancelling(spec, op, values, device)
    values = placement.shared(form.round(np.clip(values, -form.largest, form.largest)), layout)
    if spec.special and one.name == special_input(spec, op):
        for number, marks in special_values(spec, placement.distinct(values.shape, layout)):
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
    outer = spec.shape[: leads(spec, op)]
    return _each_eighth(outer, place).reshape(outer + (1,) * (len(spec.shape) - len(outer)))


def _cancelling(spec: CaseSpec, op: Op, residual: Array, device: Any) -> Array:
    """Return a residual that is −x in some elements and in some whole rows, where the sum is 0."""
    x = next(tensor for tensor in op.inputs if tensor.name == "x")
    other = in_memory(tensor(replace(spec, special=None), op, x, device))
    return np.where(_rows(spec, op, 6), -other, _each_seventh(-other, residual, 5))


def _cotangent(spec: CaseSpec, op: Op, one: Tensor, rng: Random) -> Array:
    """Return dy, or dresidual_out: random, so what is passed on of zero rows shows, but 0 with initial weights."""
    if one.name == "dy" and spec.dy_data in FAMILIES:
        return noise(spec.dy_data, spec, op, rng)
    values = rng.standard_normal(spec.shape)
    if one.name != "dy":
        return values * (spec.weight_data != "initial")
    if spec.dy_data == "random":
        return values
    if spec.dy_data == "one":
        return np.ones(spec.shape)
    rows = range(leads(spec, op))
    of_weight = range(len(rows), len(spec.shape) if op.view == "rows" else 2)
    columns = keep_axes(spec.shape, of_weight)
    if spec.dy_data == "zero_rows":
        return np.where(masked(keep_axes(spec.shape, rows), rng) & ~_picked(spec.shape, len(rows)), 0.0, values)
    length = prod(columns)
    if op.view == "rows" and length >= 48 and length % 8 == 0:  # whole tiles, as of a part of y
        return np.where((np.arange(length) // _tile(length) % 3 == 1).reshape(columns), 0.0, values)
    return np.where(masked(columns, rng), 0.0, values)


def _tile(length: int) -> int:
    """Return the elements of a tile of a row that may be zeros: a third of the row or less, at most 512."""
    return int(min(512, 2 ** ((length // 3).bit_length() - 1)))


def _picked(shape: tuple[int, ...], outer: int) -> Any:
    """Return the one element of every fifth row or sample that a gradient has which picks elements, as a loss does."""
    row, place = np.ogrid[: prod(shape[:outer]), : prod(shape[outer:])]
    return ((row % 5 == 2) & (place == row * 7 % max(place.size, 1))).reshape(shape)
