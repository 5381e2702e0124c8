"""The row normalizations as operators of torch, which torch.compile keeps whole; called eagerly, the functions alone.

An operator's way through torch's dispatcher costs more than a small kernel, and only a compiler needs it: it cannot see
through a launch, and is told instead what shapes and types come out.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from verify_norm.kernels import row_norm
from verify_norm.kernels.row_norm import Gradients

NAMESPACE = __name__.partition(".")[0]  # "verify_norm"; of its own for a copy of the package


def once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """`once_differentiable`, but quick where no graph of the gradients is asked for, and whole where one is.

    Torch's refuses to differentiate gradients if the cotangent depends on something. They depend on x whatever that
    does, and a gradient penalty of a frozen head would silently lack its second derivatives.
    """
    strict = once_differentiable(backward)

    @functools.wraps(backward)
    def either(ctx: Any, *grads: Tensor | None) -> Any:
        if not torch.is_grad_enabled():
            return backward(ctx, *grads)
        return strict(ctx, *(g if g is None else g.detach().requires_grad_() for g in grads))

    return either


def recorded() -> bool:
    """Whether autograd may want to know of what follows: for gradients, or for tangents, which no_grad does not end.

    Telling it takes as long as all the rest of a call does on the host.
    """
    return torch.is_grad_enabled() or forward_ad._current_level >= 0


@torch.library.custom_op(f"{NAMESPACE}::row_norm_forward", mutates_args=())
def _forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float, offset: float,
    normalized_shape: list[int], centered: bool,
) -> list[Tensor]:  # fmt: skip
    """Those of y, the sum with the residual, mean and rstd that there are."""
    shape = row_norm.geometry(x, weight, bias, normalized_shape)
    found = row_norm.forward(x, residual, weight, bias, eps, offset, shape, centered)[:4]
    return [t for t in found if t is not None]


@_forward.register_fake
def _(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float, offset: float,
    normalized_shape: list[int], centered: bool,
) -> list[Tensor]:  # fmt: skip
    m = math.prod(x.shape[: x.dim() - len(normalized_shape)])
    like_x = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(1 if residual is None else 2)]
    return like_x + [x.new_empty((m,), dtype=torch.float32) for _ in range(1 + centered)]


@torch.library.custom_op(f"{NAMESPACE}::row_norm_backward", mutates_args=())
def _backward(
    dy: Tensor, added: Tensor | None, x: Tensor, weight: Tensor | None, mean: Tensor | None, rstd: Tensor,
    offset: float, shape: list[int], dx: bool, like_weight: Tensor | None, like_bias: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    """Those of dx, dweight and dbias that are asked for."""
    m, n, lead = shape
    wanted = (dx, like_weight, like_bias)
    found = row_norm.backward(dy, added, x, weight, mean, rstd, offset, (m, n, lead), wanted)
    return [t for t in found if t is not None]


@_backward.register_fake
def _(
    dy: Tensor, added: Tensor | None, x: Tensor, weight: Tensor | None, mean: Tensor | None, rstd: Tensor,
    offset: float, shape: list[int], dx: bool, like_weight: Tensor | None, like_bias: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    like = [x if dx else None, like_weight, like_bias]
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in like if t is not None]


def forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float, offset: float,
    shape: tuple[int, int, int], centered: bool,
) -> Any:  # fmt: skip
    """`row_norm.forward`, or its operator where a compiler looks on."""
    if not torch.compiler.is_compiling():
        return row_norm.forward(x, residual, weight, bias, eps, offset, shape, centered)[:4]
    normalized_shape = list(x.shape[shape[2] :])
    with torch.no_grad():  # as the eager call has no gradient, whatever the parameters ask for
        found = iter(_forward(x, residual, weight, bias, float(eps), float(offset), normalized_shape, centered))
    return next(found), None if residual is None else next(found), next(found) if centered else None, next(found)


def backward(
    dy: Tensor, dh: Tensor | None, x: Tensor, weight: Tensor | None, mean: Tensor | None, rstd: Tensor, offset: float,
    shape: tuple[int, int, int], wanted: tuple[bool, Tensor | None, Tensor | None],
) -> Gradients:  # fmt: skip
    """`row_norm.backward`, or its operator where a compiler looks on."""
    if not torch.compiler.is_compiling():
        return row_norm.backward(dy, dh, x, weight, mean, rstd, offset, shape, wanted)
    with torch.no_grad():
        found = iter(_backward(dy, dh, x, weight, mean, rstd, float(offset), list(shape), *wanted))
    dx, dweight, dbias = (next(found) if t is not None and t is not False else None for t in wanted)
    return dx, dweight, dbias
