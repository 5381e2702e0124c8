"""The outputs of a function that writes its results into tensors that it is given."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from verify_norm.cases.contents import dtype_name
from verify_norm.core.contract import Contract
from verify_norm.core.op import Op
from verify_norm.core.op import Tensor as Argument
from verify_norm.core.promises import output_dtype
from verify_norm.loading.bind import features

BYTES = ("float4_e2m1fn", "float8_e8m0fnu")  # types that a kernel gets as bytes


def blank(name: str, op: Op, contract: Contract, given: Mapping[str, Any]) -> Tensor | None:
    """Return an uninitialized tensor in an output's shape and type; None for the gradient of None."""
    tensor = next(t for t in op.outputs if t.name == name)
    x: Tensor = given["x"] if "x" in given else given["residual_out"]
    like: Tensor | None = given.get(name.removeprefix("d")) if tensor.extent in ("affine", "sample") else x
    if like is None:
        return None
    parameter = dtype_name(like) if tensor.extent == "affine" else None
    residual = given.get("residual")
    of_residual = None if residual is None else dtype_name(residual)
    dtype = output_dtype(tensor, contract, dtype_name(x), parameter, residual_dtype=of_residual)
    shape = _shape(tensor, op, x, like, given)
    if dtype == "float4_e2m1fn":  # two numbers a byte
        shape = (*shape[:-1], -(-shape[-1] // 2))
    return torch.empty(shape, dtype=torch.uint8 if dtype in BYTES else getattr(torch, dtype), device=like.device)


def _shape(tensor: Argument, op: Op, x: Tensor, like: Tensor, given: Mapping[str, Any]) -> tuple[int, ...]:
    """Return an output's shape: that of x, of the input `like` whose gradient it is, or of statistics and scales."""
    if tensor.extent in ("data", "affine", "sample"):
        return tuple(like.shape)
    if tensor.extent == "one":
        return (1,)
    if op.view == "channels":
        return (x.shape[1],)
    if op.view == "groups":
        return (x.shape[0], given.get("num_groups", x.shape[1]))
    length = features(op, given)
    rows = x.numel() // max(length, 1)
    return (rows, op.quantizer.blocks(length)) if tensor.extent == "block" else (rows,)


def merged(returned: Any, written: dict[str, Any], op: Op) -> dict[str, Any] | Any:
    """Return the tensors written into, and the other returned values, by name."""
    values = returned if isinstance(returned, (tuple, list)) else (returned,)
    rest = [v for v in values if v is not None and not any(v is t for t in written.values())]
    names = [t.name for t in op.outputs if t.name not in written]
    if len(rest) > len(names):
        raise TypeError(f"expected {', '.join(written)} to be written into, got {len(rest)} returned values too")
    return {**written, **dict(zip(names, rest, strict=False))}
