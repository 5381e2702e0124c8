"""The float64 reference and its bounds on a GPU: the reference's own lines, on torch tensors.

`reference/` is NumPy, and uses array operations alone. `OnDevice` takes those of them that the references of LayerNorm,
RMSNorm, GroupNorm and their fusions use, by NumPy's own protocols, so that every element of a result of 10⁸ elements is
held to the same bound as in a verification, in less time than a kernel takes to compile.
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

from verify_norm import judge, ops
from verify_norm.spec import Contract, Expected, Op

FLOAT = torch.float64


def ldexp(value: Tensor, exponent: Tensor) -> Tensor:
    """`value` · 2^exponent, exact: torch's own goes by way of a float32 power. For normal powers of two."""
    return value * ((exponent.to(torch.int64) + 1023) << 52).view(FLOAT)


def frexp(value: Tensor) -> tuple[Tensor, Tensor]:
    mantissa, exponent = torch.frexp(value)
    return mantissa, exponent.to(FLOAT)  # scalars become float64 as well, and small integers are exact


UFUNCS: dict[str, Callable[..., Any]] = {
    "add": torch.add, "subtract": torch.sub, "multiply": torch.mul, "divide": torch.div, "negative": torch.neg,
    "absolute": torch.abs, "sqrt": torch.sqrt, "rint": torch.round, "copysign": torch.copysign,
    "maximum": torch.maximum, "minimum": torch.minimum, "less": torch.lt, "less_equal": torch.le,
    "greater": torch.gt, "greater_equal": torch.ge, "equal": torch.eq, "not_equal": torch.ne,
    "bitwise_and": torch.logical_and, "bitwise_or": torch.logical_or, "isfinite": torch.isfinite,
    "isnan": torch.isnan, "isinf": torch.isinf, "frexp": frexp, "ldexp": ldexp, "exp": torch.exp, "tanh": torch.tanh,
    "square": torch.square, "logical_and": torch.logical_and, "logical_or": torch.logical_or, "erf": torch.erf,
    "logical_not": torch.logical_not, "sign": torch.sign, "erfc (vectorized)": torch.erfc,
}  # fmt: skip
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.where: torch.where, np.clip: torch.clamp, np.zeros_like: torch.zeros_like, np.broadcast_to: torch.broadcast_to,
    np.isneginf: torch.isneginf,
}  # fmt: skip


class OnDevice(NDArrayOperatorsMixin):
    """A tensor that NumPy's functions compute with; a name that is none of theirs here raises TypeError."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def _plain(self, value: Any) -> Any:
        """A tensor of this one's device: numbers become float64 ones, and so does an array of one number repeated."""
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
        """As NumPy's, a plain tuple."""
        return tuple(self.tensor.shape)

    @property
    def ndim(self) -> int:
        """How many axes."""
        return self.tensor.ndim

    def reshape(self, *shape: Any) -> OnDevice:
        """As NumPy's."""
        return OnDevice(self.tensor.reshape(*shape))

    def mean(self, axes: tuple[int, ...], keepdims: bool = False) -> OnDevice:
        """As NumPy's."""
        return OnDevice(self.tensor.mean(axes, keepdim=keepdims))

    def sum(self, axes: tuple[int, ...], keepdims: bool = False) -> OnDevice:
        """As NumPy's."""
        return OnDevice(self.tensor.sum(axes, keepdim=keepdims))

    def max(self, axes: tuple[int, ...] = (), keepdims: bool = False, initial: float = -np.inf) -> OnDevice:
        """As NumPy's, over all axes if none is named."""
        return OnDevice(self.tensor.amax(axes, keepdim=keepdims).clamp_min(initial))

    def __getitem__(self, index: Any) -> OnDevice:
        return OnDevice(self.tensor[index])


@dataclass(frozen=True, slots=True)
class Judged:
    """The worst |got − want| / allowed of one output, and how many of its elements there was a bound for."""

    ratio: float
    elements: int
    judged: int

    @property
    def right(self) -> bool:
        """Whether every element had a bound and is within it."""
        return self.ratio <= 1 and self.judged == self.elements


def values(op: Op, arguments: Mapping[str, Any]) -> Any:
    """The reference of these arguments, in float64 and by output; tensors stay where they are."""
    with np.errstate(all="ignore"):
        return _call(op.reference, _exact(arguments))


def expected(op: Op, arguments: Mapping[str, Any], contract: Contract, dtypes: Mapping[str, str]) -> dict[str, Any]:
    """What is to come out of each output and how far off it may be, for a kernel of this contract; `dtypes` by output.

    `arguments` are tensors, None and numbers, by the names of the operator.
    """
    of_x = dtypes["x"]
    given = {**_exact(arguments), **ops.roundings(contract, of_x, dtypes[op.outputs[0].name])}
    with np.errstate(all="ignore"):
        wanted = _call(op.reference, given)
        deltas = _call(op.error, {**given, "arithmetic": ops.arithmetic(contract, of_x)})
    return {
        tensor.name: None if value is None else Expected(value, delta, dtypes[tensor.name])
        for tensor, value, delta in zip(op.outputs, wanted, deltas, strict=True)
    }


def compare(got: Tensor, want: Expected) -> Judged:
    """Hold a result to its bound. NaN is wrong wherever there is a bound."""
    value, allowed = want.value.tensor, judge.allowed(want).tensor
    bounded = torch.isfinite(allowed) & torch.isfinite(value)
    ratio = (got.detach().to(FLOAT).reshape(value.shape) - value).abs() / allowed
    ratio = torch.where(bounded, ratio.nan_to_num(nan=torch.inf), 0.0)
    return Judged(float(ratio.max()) if ratio.numel() else 0.0, value.numel(), int(bounded.sum()))


def _exact(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {n: OnDevice(v.detach().to(FLOAT)) if isinstance(v, Tensor) else v for n, v in arguments.items()}


def _call(function: Callable[..., Any], offered: Mapping[str, Any]) -> Any:
    return function(**{name: offered[name] for name in inspect.signature(function).parameters if name in offered})
