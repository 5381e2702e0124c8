"""The values of a case's inputs: families of data, each tensor from its own random stream."""

import zlib
from math import prod

import numpy as np
from scipy.special import ndtri

from verify_norm.cases import placement
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.geometry import affine_shape, input_dtype, layout_of, row_length
from verify_norm.core.spec import CaseSpec, Op, Tensor


def tensor(spec: CaseSpec, op: Op, one: Tensor) -> Array | None:
    """Return the exact values of one input, independent of the other inputs; None for one that is left out."""
    kept = "running" if one.name in ("running_mean", "running_var") else one.name
    if one.optional and not getattr(spec, kept):
        return None
    rng = np.random.Generator(np.random.Philox(key=[spec.seed, zlib.crc32(one.name.encode())]))
    form = FORMATS[input_dtype(one, spec)]
    if kept == "running":  # statistics of a batch like x; the variance is positive, and not all of it underflows
        values = rng.standard_normal(affine_shape(spec, op))
        if one.name == "running_mean":
            values = np.ldexp(values + spec.offset, spec.log2_scale)
        else:
            values = np.maximum(np.ldexp(0.5 + np.abs(values), 2 * spec.log2_scale), form.ulp(np.zeros(())))
    elif one.extent == "one":
        values = np.array([spec.scale])
    elif one.extent == "affine":
        values = rng.standard_normal(affine_shape(spec, op))
        if one.name == "weight":  # far from 1, of both signs: a kernel that forgets the weight differs
            values = np.copysign(0.5 + np.abs(values), values) * _zeros(spec, values.shape) - spec.weight_offset
    elif one.role == "cotangent":
        values = np.ldexp(rng.standard_normal(spec.shape), spec.dy_log2_scale)
    else:
        values = np.ldexp(_family(spec, op, rng) + spec.offset, spec.log2_scale)
    values = form.round(np.clip(values, -form.largest, form.largest))
    if one.name in ("x", "residual_out") and spec.special and values.size:
        values[(0,) * values.ndim] = float(spec.special)
    return placement.shared(values, layout_of(spec, one.name))


def _place(spec: CaseSpec, op: Op) -> Array:
    """Return where each element of x stands among those that are normalized together, between 0 and 1."""
    n, shape = row_length(spec, op), spec.shape
    if op.view == "channels":
        space = prod(shape[2:])
        place = np.add.outer(np.arange(shape[0]) * space, np.arange(space))[:, None]
        place = np.broadcast_to(place, (*shape[:2], space))
    else:
        place = np.arange(prod(shape)) % max(n, 1)
    return ((place + 0.5) / max(n, 1)).reshape(shape)


def _zeros(spec: CaseSpec, shape: tuple[int, ...]) -> Array:
    """Return 0 where the weight vanishes, else 1."""
    vanish = {"random": 0, "zero": 1, "some_zero": np.arange(prod(shape)).reshape(shape) % 3 == 0}[spec.weight_data]
    return np.where(np.broadcast_to(vanish, shape), 0.0, 1.0)


def _family(spec: CaseSpec, op: Op, rng: np.random.Generator) -> Array:
    """Return noise of unit scale in the shape of x."""
    shape = spec.shape
    if spec.data == "heavy":  # Student's t with two degrees of freedom: without a variance, a few values dominate
        return rng.standard_t(2, shape)
    if spec.data == "channel":  # one channel a thousand times larger, as in activations of large language models
        noise = rng.standard_normal(shape)
        axis = -1 if op.view == "rows" else 1
        channel = int(rng.integers(max(shape[axis], 1)))
        scale = np.where(np.arange(shape[axis]) == channel, 1000.0, 1.0)
        return noise * np.moveaxis(scale.reshape(-1, *(1,) * (len(shape) - 1)), 0, axis)
    if spec.data == "constant":  # one value in every row, sample or channel: the variance is 0
        lengthwise = range(len(shape) - spec.normalized_ndim)
        axes = {"rows": lengthwise, "groups": (0,), "channels": (1,)}[op.view]
        one = rng.standard_normal([n if axis in axes else 1 for axis, n in enumerate(shape)])
        return np.ascontiguousarray(np.broadcast_to(one, shape))
    if spec.data == "alternating":  # +1, −1, …: the largest sums that cancel
        return np.where(np.arange(prod(shape)) % 2, -1.0, 1.0).reshape(shape)
    if spec.data in ("sorted", "ramp", "steps"):
        place = _place(spec, op)  # running sums and means of ordered data lose the most
        ordered = {"sorted": ndtri(place), "ramp": 2 * place, "steps": np.floor(8 * place) / 4}[spec.data]
        return ordered + rng.standard_normal(shape) / 64
    if spec.data == "zero":
        return np.zeros(shape)
    if spec.data == "integers":  # exact in every format, with ties
        return rng.integers(-8, 9, shape).astype(np.float64)
    return rng.standard_normal(shape)
