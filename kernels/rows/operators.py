"""The row normalizations as operators of torch, which torch.compile keeps whole; called eagerly, the functions alone.

Torch's dispatcher takes longer than a small kernel, and only a compiler needs it: a compiler cannot see through a
launch, and learns the shapes and types of the results from the operator. An operator's schema is flat, so the
operators have more parameters than the functions.
"""

import math
from typing import Any

import torch
from torch import Tensor

from verify_norm.kernels.arguments import Gradients
from verify_norm.kernels.autograd import NAMESPACE
from verify_norm.kernels.rows import launch
from verify_norm.kernels.rows.launch import PLAIN, Form, Wanted
from verify_norm.kernels.rows.norm import Norm, norm_of


@torch.library.custom_op(f"{NAMESPACE}::row_norm_forward", mutates_args=())
def _forward(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    offset: float,
    normalized_shape: list[int],
    centered: bool,
) -> list[Tensor]:
    """Return those of y, the sum with the residual, mean and rstd that exist."""
    norm = norm_of(x, weight, bias, normalized_shape, centered, offset)
    return [t for t in launch.forward(x, residual, weight, bias, eps, norm)[:4] if t is not None]


@_forward.register_fake
def _(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    offset: float,
    normalized_shape: list[int],
    centered: bool,
) -> list[Tensor]:
    m = math.prod(x.shape[: x.dim() - len(normalized_shape)])
    like_x = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(1 if residual is None else 2)]
    return like_x + [x.new_empty((m,), dtype=torch.float32) for _ in range(1 + centered)]


@torch.library.custom_op(f"{NAMESPACE}::row_norm_backward", mutates_args=())
def _backward(
    dy: Tensor,
    added: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor,
    offset: float,
    shape: list[int],
    dx: bool,
    like_weight: Tensor | None,
    like_bias: Tensor | None,
) -> list[Tensor]:
    """Return those of dx, dweight and dbias that are wanted; shape is (rows, columns, leading dimensions)."""
    m, n, lead = shape
    norm = Norm(m, n, lead, mean is not None, offset or None)
    found = launch.backward(dy, added, x, weight, mean, rstd, norm, (dx, like_weight, like_bias))
    return [t for t in found if t is not None]


@_backward.register_fake
def _(
    dy: Tensor,
    added: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor,
    offset: float,
    shape: list[int],
    dx: bool,
    like_weight: Tensor | None,
    like_bias: Tensor | None,
) -> list[Tensor]:
    like = [x if dx else None, like_weight, like_bias]
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in like if t is not None]


def forward(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    norm: Norm,
    form: Form = PLAIN,
) -> Any:
    """Return y, the sum with the residual, mean and rstd, as `launch.forward` does; by its operator in a compiler.

    There mean and rstd are two tensors, whatever the form.
    """
    if not torch.compiler.is_compiling():
        return launch.forward(x, residual, weight, bias, eps, norm, form)[:4]
    _, _, lead, centered, offset = norm
    with torch.no_grad():  # as the eager call has no gradient, whatever the parameters require
        found = iter(_forward(x, residual, weight, bias, float(eps), offset or 0.0, list(x.shape[lead:]), centered))
    return next(found), None if residual is None else next(found), next(found) if centered else None, next(found)


def backward(
    dy: Tensor,
    dh: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor,
    norm: Norm,
    wanted: Wanted,
) -> Gradients:
    """Return dx, dweight and dbias, as `launch.backward` does; by its operator in a compiler."""
    if not torch.compiler.is_compiling():
        return launch.backward(dy, dh, x, weight, mean, rstd, norm, wanted)
    shape = [norm.rows, norm.columns, norm.lead]
    with torch.no_grad():
        found = iter(_backward(dy, dh, x, weight, mean, rstd, norm.offset or 0.0, shape, *wanted))
    dx, dweight, dbias = (next(found) if t is not None and t is not False else None for t in wanted)
    return dx, dweight, dbias
