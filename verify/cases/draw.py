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

BOUNDED = 300.0  # scale_ub at a scale of 1: above all |z|; at a scale of 100, above max |z| of some rows, not of others
CANCELLED = 2**14  # elements of x: up to this size, the residual is −x in some of them


def exact_values(spec: CaseSpec, op: Op, tensor: Tensor, device: Any = None) -> Array | None:
    """Return the exact values of one input as float64, in its shape; None for one that the case leaves out.

    They depend on the seed of the case and the name of the input, not on other inputs; a residual also depends on x.
    With a device they lie in its memory, as a `DeviceArray` of the same bits.
    """
    field = "running" if tensor.name in ("running_mean", "running_var") else tensor.name
    if tensor.optional and not getattr(spec, field):
        return None
    form, layout = FORMATS[input_dtype(tensor, spec)], layout_of(spec, tensor.name)
    values = _unrounded(spec, op, tensor, device)
    values = placement.shared(form.round(np.clip(values, -form.largest, form.largest)), layout)
    if spec.special and tensor.name == special_input(spec, op):
        for number, marks in special_values(spec, placement.distinct(values.shape, layout)):
            values = np.where(marks, number, values)
    return values if device is None else on_device(values, device)


def _unrounded(spec: CaseSpec, op: Op, tensor: Tensor, device: Any) -> Array:
    """Return the values of an input before they are rounded to its type, without special values."""
    rng = Random(spec.seed, tensor.name, device)
    if tensor.extent == "one" and tensor.role != "weight":
        return np.array([_scale(spec, tensor)])
    if tensor.extent == "sample":
        return _modulation(spec, op, tensor, rng)
    if tensor.extent == "position":
        return _rotation(spec, op, tensor, device)
    if tensor.name == "mask" and tensor.dtype == "bool":
        return _dropout_mask(spec, op, rng)
    if tensor.name == "gate" and tensor.extent == "data":
        return _gate(spec, op, rng)
    if tensor.extent == "affine" or tensor.role == "weight":
        return _affine(spec, op, tensor, rng)
    if tensor.role == "cotangent":
        return np.ldexp(_cotangent(spec, op, tensor, rng), spec.dy_log2_scale)
    values = noise(spec.data, spec, op, rng)
    if spec.offset:  # −0 + 0 is 0
        values = values + spec.offset
    values = np.ldexp(values, spec.log2_scale)
    if tensor.name == "residual" and prod(spec.shape) <= CANCELLED:
        return _cancelling(spec, op, values, device)
    return values


def _scale(spec: CaseSpec, tensor: Tensor) -> float:
    """Return a scale of y, or a bound of max |z|: the same values saturate."""
    if tensor.name in ("scale", "global_scale"):
        return spec.scale
    numerator = BOUNDED if tensor.name == "scale_ub" else 1.0
    return numerator / (spec.scale or 1.0)


def _modulation(spec: CaseSpec, op: Op, tensor: Tensor, rng: Random) -> Array:
    """Return a scale or shift around 0, as models begin; some elements of 1 + scale are 0."""
    values = rng.standard_normal(sample_shape(spec, op))
    values = _wide(spec, _each_seventh(-1.0 if tensor.name == "scale" else 0.0, values), rng)
    if tensor.name == "scale" and spec.weight_data == "initial":
        return values * 0.0  # of a new model
    return values


def _rotation(spec: CaseSpec, op: Op, tensor: Tensor, device: Any) -> Array:
    """Return the cosine or the sine of one random angle; where it is 0, as at the first position, nothing turns."""
    angle = Random(spec.seed, "angle", device).standard_normal(position_shape(spec, op)) * 8
    still = _each_eighth(angle.shape[:-1], 5).reshape((*angle.shape[:-1], 1))
    angle = np.where(still, 0.0, _each_seventh(0.0, angle))
    return np.cos(angle) if tensor.name == "cos" else np.sin(angle)


def _dropout_mask(spec: CaseSpec, op: Op, rng: Random) -> Array:
    """Return the mask of a dropout: 1 where x is kept, else 0. Some rows are kept as a whole, others dropped."""
    values = np.where(rng.integers(0, 2**20, spec.shape) >= spec.dropout_p * 2**20, 1.0, 0.0)
    values = np.where(_rows(spec, op, 6), 1.0, values)
    return np.where(_rows(spec, op, 5) & (spec.dropout_p > 0), 0.0, values)


def _gate(spec: CaseSpec, op: Op, rng: Random) -> Array:
    """Return a gate: some values are far out, where a sigmoid is 0 or 1, some are 0, and some whole rows."""
    values = 2 * rng.standard_normal(spec.shape) * _each_seventh(16.0, np.ones(spec.shape))
    # Before the norm, a gate that is 0 in a whole row leaves the row no variance.
    off = _rows(spec, op, 5) & (op.before is None or spec.data == "padded")
    return np.where(off, 0.0, _each_seventh(0.0, values, 5))


def _affine(spec: CaseSpec, op: Op, tensor: Tensor, rng: Random) -> Array:
    """Return the values of weight or bias, or of running statistics: those of a batch like x."""
    shape = shape_of(tensor, spec, op)
    values = rng.standard_normal(shape)
    if tensor.name in ("running_mean", "running_var") and spec.weight_data == "initial":
        return np.full(shape, float(tensor.name == "running_var"))
    if tensor.name == "running_mean":
        return np.ldexp(values + spec.offset, spec.log2_scale)
    if tensor.name == "running_var":  # positive, and not all of it underflows; of padded data 0 in some channels
        least = FORMATS[input_dtype(tensor, spec)].ulp(np.zeros(()))
        values = np.maximum(np.ldexp(0.5 + np.abs(values), 2 * spec.log2_scale), least)
        dead = spec.data == "padded" and spec.eps > 0
        return np.where(dead & (np.arange(values.size) % 3 == 1), 0.0, values)
    if tensor.name == "bias":
        return _wide(spec, values, rng) * (spec.weight_data not in ("initial", "subnormal"))
    values = np.copysign(0.5 + np.abs(values), values)  # far from 1, of both signs: a forgotten weight shows
    if spec.weight_data == "wide":
        values = _wide(spec, values, rng)
        if tensor.name == "weight" and _overflows(spec, op):
            far = np.copysign(FORMATS["float16"].largest, values)
            values = np.where(np.arange(prod(shape)).reshape(shape) % 16 == 5, far, values)
    elif spec.weight_data == "subnormal":
        exponent = FORMATS[input_dtype(tensor, spec)].emin - 2
        values = np.where(np.arange(prod(shape)).reshape(shape) % 3 == 0, np.ldexp(values, exponent), values)
    elif spec.weight_data != "random":
        number = 0.0 if spec.weight_data in ("zero", "some_zero") else 1.0
        period = 3 if spec.weight_data.startswith("some_") else 1
        values = np.where(np.arange(prod(shape)).reshape(shape) % period == 0, number, values)
    if tensor.positive:
        return np.abs(np.where(values == 0, 1.0, values))
    return values - spec.weight_offset


def _wide(spec: CaseSpec, values: Array, rng: Random) -> Array:
    """Return the values, spread over all magnitudes where `weight_data` is "wide": a kernel may clamp or overflow.

    Beside float16 none is beyond its largest number; in other types some are.
    """
    if spec.weight_data != "wide":
        return values
    largest = SPREAD // 2 if "float16" in (spec.dtype, spec.weight_dtype) else SPREAD  # exponent
    return values * np.exp2(rng.integers(-largest, largest + 1, values.shape))


def _overflows(spec: CaseSpec, op: Op) -> bool:
    """Return whether some results overflow float16 where weights are wide: a y that is clamped is no infinity.

    Gradients overflow by dy. Elements of few bits would all be 0 beside the largest of a row.
    """
    return spec.dtype == "float16" and op.forward is None and not (op.quantized or op.quantizer or op.user_defined)


def _each_seventh(number: Any, values: Array, place: int = 3) -> Array:
    """Return the values, each seventh replaced by a number: seven divides few lengths, so most columns have some."""
    return np.where(np.arange(values.size).reshape(values.shape) % 7 == place, number, values)


def _each_eighth(shape: tuple[int, ...], place: int) -> Any:
    """Return a mask of this shape, True for each eighth element from the one at `place` on."""
    return (np.arange(prod(shape)) % 8 == place).reshape(shape)


def _rows(spec: CaseSpec, op: Op, place: int) -> Any:
    """Return `_each_eighth` of the rows, or samples, so that it broadcasts against x."""
    outer = spec.shape[: leads(spec, op)]
    return _each_eighth(outer, place).reshape(outer + (1,) * (len(spec.shape) - len(outer)))


def _cancelling(spec: CaseSpec, op: Op, residual: Array, device: Any) -> Array:
    """Return a residual that is −x in some elements and in some whole rows, where the sum is 0."""
    x = next(tensor for tensor in op.inputs if tensor.name == "x")
    x_values = in_memory(exact_values(replace(spec, special=None), op, x, device))
    return np.where(_rows(spec, op, 6), -x_values, _each_seventh(-x_values, residual, 5))


def _cotangent(spec: CaseSpec, op: Op, tensor: Tensor, rng: Random) -> Array:
    """Return dy, or dresidual_out: random values, so that it shows in rows of zeros; 0 with initial weights."""
    if tensor.name == "dy" and spec.dy_data in FAMILIES:
        return noise(spec.dy_data, spec, op, rng)
    values = rng.standard_normal(spec.shape)
    if tensor.name != "dy":
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
    """Return a mask, True for one element of every fifth row or sample: the gradient of a loss that picks elements."""
    row, place = np.ogrid[: prod(shape[:outer]), : prod(shape[outer:])]
    return ((row % 5 == 2) & (place == row * 7 % max(place.size, 1))).reshape(shape)
