"""LayerNorm and RMSNorm into 8 bits: y = sat(s·z) for z of the norm and a scale s, and amax = max |z|, which the next
scale is chosen by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from verify_norm.reference import layernorm, rmsnorm, rounding
from verify_norm.reference.rounding import Arithmetic
from verify_norm.reference.view import Array, rows

E4M3FN = 448.0  # the largest number of float8_e4m3fn; that of float8_e5m2 is 57344


class LayerNorm(NamedTuple):
    """What the fused forward returns: y as x, amax one value, mean and rstd one value a row."""

    y: Array
    amax: Array
    mean: Array
    rstd: Array


class RMSNorm(NamedTuple):
    """What the fused forward returns: y as x, amax one value, rstd one value a row."""

    y: Array
    amax: Array
    rstd: Array


def layernorm_forward(x: Array, weight: Array | None, bias: Array | None, scale: Array, *, eps: float,
                      normalized_shape: int | Sequence[int] | None = None,
                      largest: float = E4M3FN) -> LayerNorm:  # fmt: skip
    """LayerNorm z, multiplied by a scale and saturated: y = min(max(s·z, −L), L), and amax = max |z| of all elements.

    In 8 bits every tensor has a scale of its own (Micikevicius et al., "FP8 formats for deep learning", 2022, arXiv
    2209.05433); where it is delayed, amax of one step tells the scale of the next. It is that of z before the scale,
    and 0 of no elements.

    Parameters
    ----------
    x, weight, bias, eps, normalized_shape
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
    ValueError : x does not end with `normalized_shape`.

    Examples
    --------
    >>> value = layernorm_forward(np.array([[1.0, 3.0]]), np.array([1.0, 2.0]), None, np.array([400.0]), eps=0.5625)
    >>> value.y.round(6).tolist(), value.amax.round(6).tolist()
    ([[-320.0, 448.0]], [1.6])
    """
    z = layernorm.forward(x, weight, bias, eps=eps, normalized_shape=normalized_shape)
    return LayerNorm(saturated(z.y * scale, largest), most(z.y), z.mean, z.rstd)


def rmsnorm_forward(x: Array, weight: Array | None, scale: Array, *, eps: float, weight_offset: float = 0.0,
                    normalized_shape: int | Sequence[int] | None = None,
                    largest: float = E4M3FN) -> RMSNorm:  # fmt: skip
    """RMSNorm z, multiplied by a scale and saturated, as `layernorm_forward`.

    Examples
    --------
    >>> value = rmsnorm_forward(np.array([[3.0, 5.0]]), None, np.array([512.0]), eps=47.0)
    >>> value.y.tolist(), value.amax.tolist()
    ([[192.0, 320.0]], [0.625])
    """
    z = rmsnorm.forward(x, weight, eps=eps, weight_offset=weight_offset, normalized_shape=normalized_shape)
    return RMSNorm(saturated(z.y * scale, largest), most(z.y), z.rstd)


@np.errstate(all="ignore")
def layernorm_error(x: Array, weight: Array | None, bias: Array | None, scale: Array, *, eps: float,
                    normalized_shape: int | Sequence[int] | None = None, largest: float = E4M3FN,
                    arithmetic: Arithmetic) -> LayerNorm:  # fmt: skip
    """How far a kernel of this arithmetic may be from `layernorm_forward`, per element, before the final rounding."""
    z, dz = layernorm.forward_with_error(
        x, weight, bias, eps=eps, normalized_shape=normalized_shape, arithmetic=arithmetic
    )
    b = rows(x, normalized_shape).weight(bias)
    alone = 0.0 if b is None else np.broadcast_to(np.abs(b), rows(x, normalized_shape).shape).reshape(x.shape)
    terms = np.abs(z.y) + 2 * alone  # at least |w·x̂| + |b|
    return LayerNorm(
        scaled_error(z.y, dz.y, terms, scale, largest, arithmetic), most_error(z.y, dz.y), dz.mean, dz.rstd
    )


@np.errstate(all="ignore")
def rmsnorm_error(x: Array, weight: Array | None, scale: Array, *, eps: float, weight_offset: float = 0.0,
                  normalized_shape: int | Sequence[int] | None = None, largest: float = E4M3FN,
                  arithmetic: Arithmetic) -> RMSNorm:  # fmt: skip
    """How far a kernel of this arithmetic may be from `rmsnorm_forward`, per element, before the final rounding."""
    z, dz = rmsnorm.forward_with_error(
        x, weight, eps=eps, weight_offset=weight_offset, normalized_shape=normalized_shape, arithmetic=arithmetic
    )
    return RMSNorm(scaled_error(z.y, dz.y, np.abs(z.y), scale, largest, arithmetic), most_error(z.y, dz.y), dz.rstd)


def saturated(values: Array, largest: float) -> Array:
    """The values cut to ±largest; NaN stays.

    >>> saturated(np.array([1.0, -1e9, np.inf, np.nan]), 448.0).tolist()
    [1.0, -448.0, 448.0, nan]
    """
    return np.clip(values, -largest, largest)


def most(z: Array) -> Array:
    """Max |z| as (1,): 0 of nothing, NaN where there is one."""
    largest: Array = np.abs(z).max(initial=0.0, keepdims=True).reshape(1)
    return largest


def product_error(dz: Array | float, terms: Array, scale: Array, a: Arithmetic) -> Array:
    """The error of s·z, z off by dz: s may be multiplied by w and b before, a rounding of each term more.

    `terms` bounds the magnitudes of the terms that z consists of.
    """
    s = np.abs(scale)
    delta = s * dz + a.gamma(3) * s * (terms + dz) + a.tiny * (4.0 + 4.0 * s)
    return rounding.finite_below(delta, s * (terms + dz), a.huge)


def scaled_error(z: Array, dz: Array, terms: Array, scale: Array, largest: float, a: Arithmetic) -> Array:
    """The error of sat(s·z): none beyond the largest number, where all that is near saturates alike.

    >>> a = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4e38)
    >>> z, dz = np.array([1.0, 448.0, 900.0]), np.array([0.5, 0.5, 0.5])
    >>> scaled_error(z, dz, z, np.ones(1), 448.0, a).round(3).tolist()
    [0.5, 0.5, 0.0]
    """
    value, delta = z * scale, product_error(dz, terms, scale, a)
    cut = saturated(value, largest)
    up, down = saturated(value + delta, largest) - cut, cut - saturated(value - delta, largest)
    return np.where(np.isfinite(delta), np.maximum(up, down), delta)


def most_error(z: Array, dz: Array) -> Array:
    """The error of amax: how far the largest that |z| may be, or is at least, is from it; inf where one is unknown.

    >>> most_error(np.array([1.0, -2.0]), np.array([1.5, 0.25])).tolist()
    [0.5]
    """
    known = np.where(np.isfinite(dz), dz, np.inf)
    up, down = most(np.abs(z) + known) - most(z), most(z) - most(np.maximum(np.abs(z) - known, 0.0))
    error: Array = np.maximum(up, down)
    return error
