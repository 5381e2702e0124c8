"""NumPy's functions on the tensors of a `DeviceArray`: tables of the functions of torch that stand for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

FLOAT = torch.float64
Function = Callable[..., Any]


def ldexp(value: Tensor, exponent: Tensor) -> Tensor:
    """Return `value` · 2^exponent, in two exact steps; torch.ldexp rounds through a float32 power."""
    whole = exponent.to(torch.int64).clamp(-2044, 2046)
    half = whole >> 1
    for power in (half, whole - half):
        value = value * ((power + 1023) << 52).view(FLOAT)
    return value


def frexp(value: Tensor) -> tuple[Tensor, Tensor]:
    """Return mantissa and exponent, as float64 both: small integers are exact."""
    mantissa, exponent = torch.frexp(value)
    return mantissa, exponent.to(FLOAT)


def sign(value: Tensor) -> Tensor:
    """Return −1, 0 or 1, and NaN of NaN, for which torch.sign returns 0."""
    return torch.where(value.isnan(), value, torch.sign(value))


_OF_ANY_TYPE = (
    "add subtract multiply negative absolute maximum minimum less less_equal greater greater_equal not_equal "
    "logical_and logical_or logical_not bitwise_and bitwise_or bitwise_xor isfinite isnan isinf signbit floor"
)
_OF_FLOATS = "divide sqrt copysign exp log2 tanh square fmax fmin hypot nextafter"
UFUNCS: dict[str, Function] = {name: getattr(torch, name) for name in f"{_OF_ANY_TYPE} {_OF_FLOATS}".split()} | {
    "equal": torch.eq,
    "invert": torch.bitwise_not,
    "left_shift": torch.bitwise_left_shift,
    "right_shift": torch.bitwise_right_shift,
    "rint": torch.round,
    "sign": sign,
    "power": torch.pow,
    "frexp": frexp,
    "ldexp": ldexp,
    "erf": torch.erf,
    "erfc (vectorized)": torch.erfc,
}
FLOATS = {*_OF_FLOATS.split(), "rint", "power", "frexp", "ldexp", "erf", "erfc (vectorized)"}  # of integers as float64
FUNCTIONS: dict[Any, Function] = {
    np.where: lambda mask, a, b: torch.where(mask.to(torch.bool), a, b),
    np.clip: torch.clamp,
    np.zeros_like: torch.zeros_like,
    np.ones_like: torch.ones_like,
    np.full_like: lambda values, number: torch.full_like(values, float(number)),
    np.broadcast_to: lambda values, shape: values.expand(shape),
    np.isneginf: torch.isneginf,
    np.isposinf: torch.isposinf,
    np.take_along_axis: torch.take_along_dim,
    np.array_equal: torch.equal,
    np.bincount: lambda values, weights=None, minlength=0: torch.bincount(values, weights, minlength),
    np.argwhere: torch.argwhere,
    np.flatnonzero: lambda values: torch.nonzero(values.reshape(-1)).squeeze(1),
    np.argsort: torch.argsort,
    np.cumsum: lambda values: torch.cumsum(values, 0),
    np.unique: lambda values, return_inverse=False: torch.unique(values, return_inverse=return_inverse),
    np.count_nonzero: torch.count_nonzero,
    np.stack: lambda values: torch.stack([value.tensor.to(FLOAT) for value in values]),
}
LAST_AS_IT_IS = (np.full_like, np.broadcast_to, np.take_along_axis)  # its last argument is a number, shape or axis
METHODS = {getattr(np, name): name for name in ("sum", "mean", "max", "min", "any", "all", "argmax", "ravel")}
