"""The values of a case's inputs: families of data, each tensor from its own stream."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import replace
from math import prod

import numpy as np

from verify_norm import memory
from verify_norm.dtypes import FORMATS, Array
from verify_norm.spec import CaseSpec, Op, Tensor


def affine_shape(spec: CaseSpec, op: Op) -> tuple[int, ...]:
    """The shape of weight and bias."""
    return spec.shape[len(spec.shape) - spec.normalized_ndim :] if op.view == "rows" else spec.shape[1:2]


def groups(spec: CaseSpec, op: Op) -> int:
    """How many groups a sample's channels are divided into: the spec's, or as many as channels in InstanceNorm."""
    return spec.num_groups or 1 if "num_groups" in op.attrs else spec.shape[1]


def row_length(spec: CaseSpec, op: Op) -> int:
    """How many elements are normalized together."""
    if op.view == "channels":
        return prod(spec.shape[:1] + spec.shape[2:])
    return prod(spec.shape[1:]) // groups(spec, op) if op.view == "groups" else prod(affine_shape(spec, op))


def refusal(spec: CaseSpec, op: Op) -> str | None:
    """Why there is no such case, beyond what the shape itself says; None where there is one.

    BatchNorm's definition leaves out a variance of one value, and evaluation by statistics that are not kept. Where all
    inputs are frozen that there are, there is nothing to check.

    >>> from verify_norm.ops import OPS
    >>> refusal(CaseSpec((1, 3)), OPS["batchnorm_fwd"])
    'training needs more than one value a channel'
    """
    if "num_groups" in op.attrs and spec.num_groups is None:
        return f"{op.name} needs num_groups"
    if op.view == "channels" and not spec.training and not spec.running:
        return "evaluation needs running statistics"
    if op.view == "channels" and spec.training and row_length(spec, op) == 1:
        return "training needs more than one value a channel"
    if spec.special is not None and not prod(spec.shape):
        return f"an x without elements holds no {spec.special}"
    if spec.frozen != thawed(spec, differentiable(op)).frozen:
        return "no input needs a gradient"
    return None


def thawed(spec: CaseSpec, names: Iterable[str]) -> CaseSpec:
    """The spec with no input frozen, where of those of these names that there are no other is."""
    given = {name for name in names if name == "x" or getattr(spec, name)}
    return replace(spec, frozen=()) if given <= set(spec.frozen) else spec


def differentiable(op: Op) -> list[str]:
    """The inputs of which a backward has gradients, but for those that are added."""
    outputs = {tensor.name for tensor in op.outputs}
    return [name for name in ("x", "weight", "bias") if f"d{name}" in outputs]


def input_dtype(tensor: Tensor, spec: CaseSpec) -> str:
    """The type of an argument."""
    return tensor.among(spec.dtype, spec.weight_dtype)


def layout_of(spec: CaseSpec, name: str) -> str:
    """The layout of one argument; what the spec does not name is contiguous."""
    return getattr(spec, f"{name}_layout", "contiguous")


def draw(spec: CaseSpec, op: Op, tensor: Tensor) -> Array | None:
    """The exact values of one input: drawn from its own stream, so that leaving out another changes nothing."""
    kept = "running" if tensor.name in ("running_mean", "running_var") else tensor.name
    if tensor.optional and not getattr(spec, kept):
        return None
    rng = np.random.Generator(np.random.Philox(key=[spec.seed, zlib.crc32(tensor.name.encode())]))
    form = FORMATS[input_dtype(tensor, spec)]
    if kept == "running":  # of a batch like x; the variance is positive, and not all of it underflows
        values = rng.standard_normal(affine_shape(spec, op))
        if tensor.name == "running_mean":
            values = np.ldexp(values + spec.offset, spec.log2_scale)
        else:
            values = np.maximum(np.ldexp(0.5 + np.abs(values), 2 * spec.log2_scale), form.ulp(np.zeros(())))
    elif tensor.extent == "one":
        values = np.array([spec.scale])
    elif tensor.extent == "affine":
        values = rng.standard_normal(affine_shape(spec, op))
        if tensor.name == "weight":  # far from 1, of both signs, so that a forgotten weight shows
            values = np.copysign(0.5 + np.abs(values), values) * _zeros(spec, values.shape) - spec.weight_offset
    elif tensor.role == "cotangent":
        values = np.ldexp(rng.standard_normal(spec.shape), spec.dy_log2_scale)
    else:
        values = np.ldexp(_family(spec, op, rng) + spec.offset, spec.log2_scale)
    values = form.round(np.clip(values, -form.largest, form.largest))
    if tensor.name in ("x", "residual_out") and spec.special and values.size:
        values[(0,) * values.ndim] = float(spec.special)
    return memory.shared(values, layout_of(spec, tensor.name))


def _zeros(spec: CaseSpec, shape: tuple[int, ...]) -> Array:
    """0 where a weight is to vanish, else 1."""
    vanish = {"random": 0, "zero": 1, "some_zero": np.arange(prod(shape)).reshape(shape) % 3 == 0}[spec.weight_data]
    return np.where(np.broadcast_to(vanish, shape), 0.0, 1.0)


def _family(spec: CaseSpec, op: Op, rng: np.random.Generator) -> Array:
    """Noise of unit scale in the shape of x."""
    shape = spec.shape
    if spec.data == "heavy":  # Student's t with two degrees of freedom: no variance, so a few values dominate
        return rng.standard_t(2, shape)
    if spec.data == "channel":  # one channel a thousand times larger, as activations of large language models have
        noise = rng.standard_normal(shape)
        axis = -1 if op.view == "rows" else 1
        channel = int(rng.integers(max(shape[axis], 1)))
        scale = np.where(np.arange(shape[axis]) == channel, 1000.0, 1.0)
        return noise * np.moveaxis(scale.reshape(-1, *(1,) * (len(shape) - 1)), 0, axis)
    if spec.data == "constant":  # every row, sample or channel one value: the variance is 0
        lengthwise = range(len(shape) - spec.normalized_ndim)
        axes = {"rows": lengthwise, "groups": (0,), "channels": (1,)}[op.view]
        one = rng.standard_normal([n if axis in axes else 1 for axis, n in enumerate(shape)])
        return np.ascontiguousarray(np.broadcast_to(one, shape))
    if spec.data == "alternating":  # +1, −1, …: the largest sums that cancel
        return np.where(np.arange(prod(shape)) % 2, -1.0, 1.0).reshape(shape)
    if spec.data == "zero":
        return np.zeros(shape)
    if spec.data == "integers":  # exact in every format, with ties
        return rng.integers(-8, 9, shape).astype(np.float64)
    return rng.standard_normal(shape)
