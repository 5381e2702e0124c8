"""Residual addition with RMSNorm: h = x + residual, y = RMSNorm(h), and h rounded to x's type.

The kernels are those of `rows`, without a mean. The weight may have an offset, which is added in float32.
"""

from typing import Any

import torch
from torch import Tensor

from verify_norm.kernels.arguments import Shape, check_like
from verify_norm.kernels.autograd import once
from verify_norm.kernels.rows import operators
from verify_norm.kernels.rows.launch import check_gradient
from verify_norm.kernels.rows.norm import norm_of


def add_rmsnorm_fwd(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, residual_out and rstd of RMSNorm of h = x + residual, as `add_layernorm_fwd` does."""
    check_like(x, "x", residual=residual)
    norm = norm_of(x, weight, None, normalized_shape, False, weight_offset)
    y, h, _, rstd = operators.forward(x, residual, weight, None, eps, norm)
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
    """Return dx (dresidual is the same) and dweight of `add_rmsnorm_fwd`, as `add_layernorm_bwd` does.

    dx = rstd·(g − x̂·mean(g·x̂)) + dresidual_out with x̂ = residual_out·rstd and g = (w + offset)·dy.
    """
    norm = norm_of(residual_out, weight, None, normalized_shape, False, weight_offset)
    check_gradient(norm, dy, residual_out, None, rstd, dresidual_out, "residual_out")
    return operators.backward(dy, dresidual_out, residual_out, weight, None, rstd, norm, (True, weight, None))[:2]


class AddRMSNormFunction(torch.autograd.Function):
    """For autograd: apply(x, residual, weight, eps, weight_offset, normalized_shape) -> y, residual_out, once."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor,
        weight: Tensor | None,
        eps: float,
        weight_offset: float,
        normalized_shape: Shape,
    ):
        """Return the two outputs, and save what the gradients need."""
        y, h, rstd = add_rmsnorm_fwd(x, residual, weight, eps, weight_offset, normalized_shape)
        ctx.save_for_backward(h, weight, rstd)
        ctx.norm = norm_of(x, weight, None, normalized_shape, False, weight_offset)
        ctx.set_materialize_grads(False)
        return y, h

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor | None, dh: Tensor | None):
        """Return the gradients that are asked for, and no others; an output without a gradient adds none."""
        h, weight, rstd = ctx.saved_tensors
        need = ctx.needs_input_grad
        wanted = (need[0] or need[1], weight if need[2] else None, None)
        dx, dweight = dh, None
        if dy is not None:
            dx, dweight, _ = operators.backward(dy, dh, h, weight, None, rstd, ctx.norm, wanted)
        return dx if need[0] else None, dx if need[1] else None, dweight, None, None, None
