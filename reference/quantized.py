"""LayerNorm and RMSNorm to 8 bits: y = sat(s·z) for z of the norm and a scale s, and amax = max |z|.

In 8 bits every tensor has its own scale (Micikevicius et al., "FP8 formats for deep learning", 2022, arXiv 2209.05433).
With delayed scaling, the amax of one step determines the scale of the next.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from verify_norm.reference import layernorm, rmsnorm
from verify_norm.reference.arithmetic import Arithmetic, finite_below
from verify_norm.reference.view import Array, Shape, rows

E4M3FN = 448.0  # the largest number of float8_e4m3fn; that of float8_e5m2 is 57344


class LayerNorm(NamedTuple):
    """The outputs of the fused forward pass: y as x, amax one value, mean and rstd one value a row."""

    y: Array
    amax: Array
    mean: Array
    rstd: Array


class RMSNorm(NamedTuple):
    """The outputs of the fused forward pass: y as x, amax one value, rstd one value a row."""

    y: Array
    amax: Array
    rstd: Array


def layernorm_forward(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    scale: Array,
    *,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
    largest: float = E4M3FN,
) -> LayerNorm:
    """Return LayerNorm z, scaled and saturated: y = min(max(s·z, −L), L), and amax = max |z| of all elements.

    amax is that of z before the scale, and 0 of no elements.

    Parameters
    ----------
    x, weight, bias, eps, weight_offset, normalized_shape
        as in `layernorm.forward`.
    scale
        (1,), what z is multiplied by.
    largest
        L, the largest finite number of y's type.

    Returns
    -------
    LayerNorm : y (as x, still float64), amax (1,), mean and rstd (M,).

    Raises
    ------
    ValueError : as in `layernorm.forward`.

    Examples
    --------
    >>> value = layernorm_forward(np.array([[1.0, 3.0]]), np.array([1.0, 2.0]), None, np.array([400.0]), eps=0.5625)
    >>> value.y.round(6).tolist(), value.amax.round(6).tolist()
    ([[-320.0, 448.0]], [1.6])
    """
    z = layernorm.forward(x, weight, bias, eps=eps, weight_offset=weight_offset, normalized_shape=normalized_shape)
    return LayerNorm(saturated(z.y * scale, largest), amax_of(z.y), z.mean, z.rstd)


def rmsnorm_forward(
    x: Array,
    weight: Array | None,
    scale: Array,
    *,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
    largest: float = E4M3FN,
) -> RMSNorm:
    """Return RMSNorm z, scaled and saturated, and amax, as `layernorm_forward`.

    Examples
    --------
    >>> value = rmsnorm_forward(np.array([[3.0, 5.0]]), None, np.array([512.0]), eps=47.0)
    >>> value.y.tolist(), value.amax.tolist()
    ([[192.0, 320.0]], [0.625])
    """
    z = rmsnorm.forward(x, weight, eps=eps, weight_offset=weight_offset, normalized_shape=normalized_shape)
    return RMSNorm(saturated(z.y * scale, largest), amax_of(z.y), z.rstd)


@np.errstate(all="ignore")
def layernorm_error(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    scale: Array,
    *,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
    largest: float = E4M3FN,
    arithmetic: Arithmetic,
) -> LayerNorm:
    """Return how far a kernel may be from `layernorm_forward`, per element, before the final rounding."""
    n = layernorm.norm(rows(x, normalized_shape), x, weight, bias, eps, weight_offset)
    z, dz = layernorm.normalize(n), layernorm.normalize_error(n, arithmetic)
    bias_size = 0.0 if n.bias is None else np.broadcast_to(np.abs(n.bias), n.view.shape).reshape(x.shape)
    terms = np.abs(z.y) + 2 * bias_size  # at least |w·x̂| + |b|
    y = saturated_error(z.y * scale, product_error(dz.y, terms, scale, arithmetic), largest)
    return LayerNorm(y, amax_error(z.y, dz.y), dz.mean, dz.rstd)


@np.errstate(all="ignore")
def rmsnorm_error(
    x: Array,
    weight: Array | None,
    scale: Array,
    *,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
    largest: float = E4M3FN,
    arithmetic: Arithmetic,
) -> RMSNorm:
    """Return how far a kernel may be from `rmsnorm_forward`, per element, before the final rounding."""
    n = rmsnorm.norm(rows(x, normalized_shape), x, weight, eps, weight_offset)
    z, dz = rmsnorm.normalize(n), rmsnorm.normalize_error(n, arithmetic)
    y = saturated_error(z.y * scale, product_error(dz.y, np.abs(z.y), scale, arithmetic), largest)
    return RMSNorm(y, amax_error(z.y, dz.y), dz.rstd)


def saturated(values: Array, largest: float) -> Array:
    """Return the values clipped to ±largest; NaN stays.

    >>> saturated(np.array([1.0, -1e9, np.inf, np.nan]), 448.0).tolist()
    [1.0, -448.0, 448.0, nan]
    """
    return np.clip(values, -largest, largest)


def amax_of(z: Array) -> Array:
    """Return max |z| as (1,): 0 of no elements, NaN where an element is NaN."""
    largest: Array = np.abs(z).max(initial=0.0, keepdims=True).reshape(1)
    return largest


def product_error(dz: Array | float, terms: Array, scale: Array, a: Arithmetic) -> Array:
    """Return the error of s·z, where z is off by dz.

    A kernel may multiply s by w and b first, which rounds each term once more. `terms` bounds the magnitudes of the
    terms that z is a sum of.
    """
    s = np.abs(scale)
    delta = s * dz + a.gamma(3) * s * (terms + dz) + a.tiny * (4.0 + 4.0 * s)
    return finite_below(delta, s * (terms + dz), a.huge)


def saturated_error(value: Array, delta: Array, largest: float) -> Array:
    """Return the error of sat(value), where value is off by delta: 0 where everything within delta saturates.

    >>> saturated_error(np.array([1.0, 448.0, 900.0]), np.full(3, 0.5), 448.0).tolist()
    [0.5, 0.5, 0.0]
    """
    y = saturated(value, largest)
    upper, lower = saturated(value + delta, largest), saturated(value - delta, largest)
    return np.where(np.isfinite(delta), np.maximum(upper - y, y - lower), delta)


def amax_error(z: Array, dz: Array) -> Array:
    """Return the error of amax = max |z|, where z is off by dz; inf where a dz is not finite.

    >>> amax_error(np.array([1.0, -2.0]), np.array([1.5, 0.25])).tolist()
    [0.5]
    """
    known = np.where(np.isfinite(dz), dz, np.inf)
    value, upper, lower = amax_of(z), amax_of(np.abs(z) + known), amax_of(np.maximum(np.abs(z) - known, 0.0))
    error: Array = np.maximum(upper - value, value - lower)
    return error
