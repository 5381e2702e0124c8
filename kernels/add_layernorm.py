"""Residual addition with LayerNorm: h = x + residual, y = LayerNorm(h), and h rounded to x's type.

The statistics and y are those of the float32 sum h, never of its rounded copy residual_out: a kernel that re-reads
what it stored returns another y in half precision. The kernels are those of `rows`.
"""

from typing import Any

import torch
from torch import Tensor

from verify_norm.kernels.arguments import Gradients, Shape, check_like
from verify_norm.kernels.autograd import once
from verify_norm.kernels.rows import operators
from verify_norm.kernels.rows.launch import check_gradient
from verify_norm.kernels.rows.norm import norm_of


def add_layernorm_fwd(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    normalized_shape: Shape = None,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return y, residual_out, mean and rstd of LayerNorm of h = x + residual, both (…, *normalized_shape), any strides.

    y and residual_out, which is h rounded, have x's shape and type and are contiguous; mean and rstd are those of h
    before it is rounded, float32 of shape (M,), one a row. The arguments are those of `layernorm_fwd`.

    Raises
    ------
    ValueError, TypeError
        As `arguments.normalized` raises, and if residual does not have x's shape, type and device.
    """
    check_like(x, "x", residual=residual)
    norm = norm_of(x, weight, bias, normalized_shape, offset=weight_offset)
    return operators.forward(x, residual, weight, bias, eps, norm)


def add_layernorm_bwd(
    dy: Tensor,
    dresidual_out: Tensor | None,
    residual_out: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    eps: float,
    normalized_shape: Shape = None,
    weight_offset: float = 0.0,
) -> Gradients:
    """Return dx (dresidual is the same), dweight and dbias of `add_layernorm_fwd`, from the gradients of both outputs.

    dx = rstd·(g − mean(g) − x̂·mean(g·x̂)) + dresidual_out with x̂ = (residual_out − mean)·rstd and g = (w + offset)·dy;
    without its last term where dresidual_out is None. dx has residual_out's type, dweight and dbias those of weight and
    bias, and None stays None. A row's dx does not depend on any other row, and every sum is the same at every run.

    Raises
    ------
    ValueError, TypeError
        As in the forward, and if dy or dresidual_out is not like residual_out or a statistic not float32, one a row.
    """
    norm = norm_of(residual_out, weight, bias, normalized_shape, offset=weight_offset)
    check_gradient(norm, dy, residual_out, mean, rstd, dresidual_out, "residual_out")
    return operators.backward(dy, dresidual_out, residual_out, weight, mean, rstd, norm, (True, weight, bias))


class AddLayerNormFunction(torch.autograd.Function):
    """For autograd: apply(x, residual, weight, bias, eps, normalized_shape) -> y, residual_out. Differentiable once."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        normalized_shape: Shape,
    ):
        """Return the two outputs, and save what the gradients need."""
        y, h, mean, rstd = add_layernorm_fwd(x, residual, weight, bias, eps, normalized_shape)
        ctx.save_for_backward(h, weight, bias, mean, rstd)
        ctx.norm = norm_of(x, weight, bias, normalized_shape)
        ctx.set_materialize_grads(False)
        return y, h

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor | None, dh: Tensor | None):
        """Return the gradients that are asked for, and no others; an output without a gradient adds none."""
        h, weight, bias, mean, rstd = ctx.saved_tensors
        need = ctx.needs_input_grad
        wanted = (need[0] or need[1], weight if need[2] else None, bias if need[3] else None)
        dx, dweight, dbias = dh, None, None
        if dy is not None:
            dx, dweight, dbias = operators.backward(dy, dh, h, weight, mean, rstd, ctx.norm, wanted)
        return dx if need[0] else None, dx if need[1] else None, dweight, dbias, None, None
