"""The float64 reference and its bounds on a GPU: the code of `reference/`, run on torch tensors.

The tensors are device arrays (`verify_norm.cases.device_array`). So every element of a result of 10⁸ elements is
compared with the same bound as in a verification, in less time than a kernel takes to compile.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verify_norm.cases.device_array import DeviceArray
from verify_norm.cases.device_functions import FLOAT
from verify_norm.core import judge, promises
from verify_norm.core.contract import Contract
from verify_norm.core.op import Op
from verify_norm.core.run import Expected


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
    given = {**_exact(arguments), **promises.roundings(contract, of_x, dtypes[op.outputs[0].name])}
    with np.errstate(all="ignore"):
        wanted = _call(op.reference, given)
        deltas = _call(op.error, {**given, "arithmetic": promises.arithmetic(contract, of_x, of_weight)})
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
    return {n: DeviceArray(v.detach().to(FLOAT)) if isinstance(v, Tensor) else v for n, v in arguments.items()}


def _call(function: Callable[..., Any], offered: Mapping[str, Any]) -> Any:
    return function(**{name: offered[name] for name in inspect.signature(function).parameters if name in offered})
