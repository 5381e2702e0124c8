"""Residual addition with RMSNorm: h = x + residual, y = RMSNorm(h), and h rounded to x's type.

The kernels are `rows` and `long_rows` without a mean. The weight may have an offset, which is added in float32.
"""

from typing import Any

import torch
from torch import Tensor

from verify_norm.kernels import row_ops
from verify_norm.kernels.row_norm import Shape, check_like, checked, geometry


def add_rmsnorm_fwd(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """RMSNorm of h = x + residual: y, residual_out and rstd, as in `add_layernorm_fwd`."""
    check_like(x, "x", residual=residual)
    shape = geometry(x, weight, None, normalized_shape)
    y, h, _, rstd = row_ops.forward(x, residual, weight, None, eps, weight_offset, shape, False)
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
    shape = checked(
        dy, dresidual_out, residual_out, weight, None, None, rstd, normalized_shape, "residual_out", centered=False
    )
    wanted = (True, weight, None)
    return row_ops.backward(dy, dresidual_out, residual_out, weight, None, rstd, weight_offset, shape, wanted)[:2]


class AddRMSNormFunction(torch.autograd.Function):
    """For autograd: apply(x, residual, weight, eps, weight_offset, normalized_shape) -> y, residual_out, once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, weight_offset: float,
                normalized_shape: Shape):  # fmt: skip
        """The two outputs, keeping what the gradients need."""
        y, h, rstd = add_rmsnorm_fwd(x, residual, weight, eps, weight_offset, normalized_shape)
        ctx.save_for_backward(h, weight, rstd)
        ctx.shape = geometry(x, weight, None, normalized_shape)
        ctx.offset = weight_offset
        ctx.set_materialize_grads(False)
        return y, h

    @staticmethod
    @row_ops.once
    def backward(ctx: Any, dy: Tensor | None, dh: Tensor | None):
        """The gradients that are asked for, and no others; from one output alone where the other has none."""
        h, weight, rstd = ctx.saved_tensors
        need = ctx.needs_input_grad
        wanted = (need[0] or need[1], weight if need[2] else None, None)
        dx, dweight = dh, None
        if dy is not None:
            dx, dweight, _ = row_ops.backward(dy, dh, h, weight, None, rstd, ctx.offset, ctx.shape, wanted)
        return dx if need[0] else None, dx if need[1] else None, dweight, None, None, None
