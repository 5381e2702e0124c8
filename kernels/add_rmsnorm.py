"""Residual addition with RMSNorm: h = x + residual, y = RMSNorm(h), and h rounded to x's type.

The kernels are those of add_norm without a mean. The weight may have an offset, which is added in float32.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from verify_norm.kernels.add_norm import Shape, check_like, run_backward, run_forward
from verify_norm.kernels.launch import check_backward, normalized, split


def add_rmsnorm_fwd(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """RMSNorm of h = x + residual: y, residual_out and rstd, as in `add_layernorm_fwd`."""
    y, h, _, rstd = run_forward(x, residual, weight, None, eps, weight_offset, normalized_shape, centered=False)
    return y, h, rstd


def add_rmsnorm_bwd(
    dy: Tensor,
    dresidual_out: Tensor | None,
    residual_out: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of `add_rmsnorm_fwd`: dx (dresidual is the same) and dweight, as in `add_layernorm_bwd`.

    dx = rstd·(g − x̂·mean(g·x̂)) + dresidual_out with x̂ = residual_out·rstd and g = (w + offset)·dy.
    """
    m, n = split(residual_out, normalized(residual_out, weight, None, normalized_shape))
    check_backward(residual_out, dy, m, rstd=rstd)
    check_like(residual_out, "residual_out", dresidual_out=dresidual_out)
    wanted = (True, weight, None)
    return run_backward(dy, dresidual_out, residual_out, weight, None, rstd, m, n, float(weight_offset), wanted)[:2]


class AddRMSNormFunction(torch.autograd.Function):
    """For autograd: apply(x, residual, weight, eps, weight_offset, normalized_shape) -> y, residual_out, once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, weight_offset: float,
                normalized_shape: Shape):  # fmt: skip
        """The two outputs, keeping what the gradients need."""
        y, h, rstd = add_rmsnorm_fwd(x, residual, weight, eps, weight_offset, normalized_shape)
        ctx.save_for_backward(h, weight, rstd)
        ctx.split = split(x, normalized(x, weight, None, normalized_shape))
        ctx.offset = float(weight_offset)
        ctx.set_materialize_grads(False)
        return y, h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dh: Tensor | None):
        """The gradients that are asked for, and no others; from one output alone where the other has none."""
        h, weight, rstd = ctx.saved_tensors
        need = ctx.needs_input_grad
        wanted = (need[0] or need[1], weight if need[2] else None, None)
        dx, dweight = dh, None
        if dy is not None:
            dx, dweight, _ = run_backward(dy, dh, h, weight, None, rstd, *ctx.split, ctx.offset, wanted)
        return dx if need[0] else None, dx if need[1] else None, dweight, None, None, None
