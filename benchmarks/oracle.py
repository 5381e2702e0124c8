"""The float64 reference and its bounds on a GPU: the code of `reference/`, run on torch tensors.

`reference/` is written in NumPy array operations. `OnDevice` implements the operations that the references of
LayerNorm, RMSNorm, GroupNorm and their fusions use, through NumPy's protocols. So every element of a result of 10⁸
elements is compared with the same bound as in a verification, in less time than a kernel takes to compile.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin
from torch import Tensor

from verify_norm.core import judge, ops
from verify_norm.core.run import Expected
from verify_norm.core.spec import Contract, Op

FLOAT = torch.float64


def ldexp(value: Tensor, exponent: Tensor) -> Tensor:
    """Return `value` · 2^exponent, exact for normal powers of two; torch.ldexp rounds through a float32 power."""
    return value * ((exponent.to(torch.int64) + 1023) << 52).view(FLOAT)


def frexp(value: Tensor) -> tuple[Tensor, Tensor]:
    mantissa, exponent = torch.frexp(value)
    return mantissa, exponent.to(FLOAT)  # scalars are float64 too; small integers are exact


SAME_NAME = (
    "add subtract multiply divide negative absolute sqrt copysign maximum minimum less less_equal greater "
    "greater_equal not_equal isfinite isnan isinf exp tanh square sign erf logical_and logical_or logical_not"
)
UFUNCS: dict[str, Callable[..., Any]] = {name: getattr(torch, name) for name in SAME_NAME.split()} | {
    "rint": torch.round,
    "equal": torch.eq,
    "bitwise_and": torch.logical_and,
    "bitwise_or": torch.logical_or,
    "frexp": frexp,
    "ldexp": ldexp,
    "erfc (vectorized)": torch.erfc,
}
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.where: torch.where,
    np.clip: torch.clamp,
    np.zeros_like: torch.zeros_like,
    np.broadcast_to: torch.broadcast_to,
    np.isneginf: torch.isneginf,
}


class OnDevice(NDArrayOperatorsMixin):
    """A tensor that NumPy's functions accept; a function not listed above raises TypeError."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def _plain(self, value: Any) -> Any:
        """Return a float64 tensor on this device; an array that repeats one number becomes that number."""
        if isinstance(value, OnDevice):
            return value.tensor
        if isinstance(value, tuple):  # a shape
            return value
        if isinstance(value, np.ndarray) and value.size and not any(value.strides):
            value = value.flat[0]
        if isinstance(value, np.ndarray) and value.ndim:
            return torch.tensor(value, dtype=FLOAT, device=self.tensor.device)
        return torch.full((), float(value), dtype=FLOAT, device=self.tensor.device)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None) -> Any:
        if method != "__call__" or ufunc.__name__ not in UFUNCS:
            return NotImplemented
        result = UFUNCS[ufunc.__name__](*map(self._plain, inputs))
        if out is not None:  # a += b
            out[0].tensor = result
            return out[0]
        return tuple(map(OnDevice, result)) if isinstance(result, tuple) else OnDevice(result)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function not in FUNCTIONS or kwargs:
            return NotImplemented
        return OnDevice(FUNCTIONS[function](*map(self._plain, args)))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, as a plain tuple like NumPy's."""
        return tuple(self.tensor.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.tensor.ndim

    def reshape(self, *shape: Any) -> OnDevice:
        """Return the reshaped array, as NumPy does."""
        return OnDevice(self.tensor.reshape(*shape))

    def mean(self, axes: tuple[int, ...], keepdims: bool = False) -> OnDevice:
        """Return the mean over these axes, as NumPy does."""
        return OnDevice(self.tensor.mean(axes, keepdim=keepdims))

    def sum(self, axes: tuple[int, ...], keepdims: bool = False) -> OnDevice:
        """Return the sum over these axes, as NumPy does."""
        return OnDevice(self.tensor.sum(axes, keepdim=keepdims))

    def max(self, axes: tuple[int, ...] = (), keepdims: bool = False, initial: float = -np.inf) -> OnDevice:
        """Return the maximum over these axes, or over all axes by default, as NumPy does."""
        return OnDevice(self.tensor.amax(axes, keepdim=keepdims).clamp_min(initial))

    def min(self, initial: float = np.inf) -> OnDevice:
        """Return the minimum over all axes, as NumPy does."""
        return OnDevice(self.tensor.amin().clamp_max(initial))

    def __bool__(self) -> bool:
        return bool(self.tensor)

    def __getitem__(self, index: Any) -> OnDevice:
        return OnDevice(self.tensor[index])


@dataclass(frozen=True, slots=True)
class Judged:
    """The largest |got − want| / allowed of one output, its elements, and how many of them have a bound."""

    ratio: float
    elements: int
    judged: int

    @property
    def right(self) -> bool:
        """Whether every element has a bound and is within it."""
        return self.ratio <= 1 and self.judged == self.elements


def values(op: Op, arguments: Mapping[str, Any]) -> Any:
    """Return the float64 outputs of the reference for these arguments, on the device of the tensors."""
    with np.errstate(all="ignore"):
        return _call(op.reference, _exact(arguments))


def expected(op: Op, arguments: Mapping[str, Any], contract: Contract, dtypes: Mapping[str, str]) -> dict[str, Any]:
    """Return the expected value and error bound of each output for a kernel of this contract.

    `arguments` are tensors, None and numbers, by the operator's names; `dtypes` are the types of x and of each output.
    """
    of_x, weight = dtypes["x"], arguments.get("weight")
    of_weight = None if weight is None else str(weight.dtype).removeprefix("torch.")
    given = {**_exact(arguments), **ops.roundings(contract, of_x, dtypes[op.outputs[0].name])}
    with np.errstate(all="ignore"):
        wanted = _call(op.reference, given)
        deltas = _call(op.error, {**given, "arithmetic": ops.arithmetic(contract, of_x, of_weight)})
    return {
        tensor.name: None if value is None else Expected(value, delta, dtypes[tensor.name], contract.saturate)
        for tensor, value, delta in zip(op.outputs, wanted, deltas, strict=True)
    }


def compare(got: Tensor, want: Expected) -> Judged:
    """Return how far a result is from its bound. NaN is wrong wherever there is a bound."""
    value, allowed = want.value.tensor, judge.allowed(want).tensor
    bounded = torch.isfinite(allowed) & torch.isfinite(value)
    ratio = (got.detach().to(FLOAT).reshape(value.shape) - value).abs() / allowed
    ratio = torch.where(bounded, ratio.nan_to_num(nan=torch.inf), 0.0)
    return Judged(float(ratio.max()) if ratio.numel() else 0.0, value.numel(), int(bounded.sum()))


def _exact(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {n: OnDevice(v.detach().to(FLOAT)) if isinstance(v, Tensor) else v for n, v in arguments.items()}


def _call(function: Callable[..., Any], offered: Mapping[str, Any]) -> Any:
    return function(**{name: offered[name] for name in inspect.signature(function).parameters if name in offered})
