"""Right norms in eager torch, of the last dimension: each bug of `verify_norm.kernels.zoo.seldom` is a change of one.

`rmsnorm` and `layernorm` are forward passes, `gradients` is a backward. `Rms` and `AddRms` are both directions, as
autograd.Functions.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def rmsnorm(x: Tensor, weight: Tensor | None, eps: float, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return y and rstd."""
    r = x.float()
    rstd = torch.rsqrt(r.square().mean(-1, keepdim=True) + eps)
    y = r * rstd if weight is None else r * rstd * (weight.float() + offset)
    return y.to(x.dtype), rstd.flatten()


def layernorm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, mean: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, mean and rstd."""
    r = x.float()
    mean = r.mean(-1, keepdim=True) if mean is None else mean
    rstd = torch.rsqrt((r - mean).square().mean(-1, keepdim=True) + eps)
    y = (r - mean) * rstd
    y = y if weight is None else y * weight.float()
    y = y if bias is None else y + bias.float()
    return y.to(x.dtype), mean.flatten(), rstd.flatten()


def gradients(dy: Tensor, x: Tensor, weight: Tensor | None, rstd: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return dx and dweight of `rmsnorm`."""
    rstd = rstd.reshape(*x.shape[:-1], 1)
    xhat = x.float() * rstd
    g = dy.float() if weight is None else dy.float() * weight.float()
    dx = rstd * (g - xhat * (g * xhat).mean(-1, keepdim=True))
    dw = None if weight is None else (dy.float() * xhat).reshape(-1, x.shape[-1]).sum(0).to(weight.dtype)
    return dx.to(x.dtype), dw


class Rms(torch.autograd.Function):
    """RMSNorm in both directions, for one derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float) -> Any:
        """Return y."""
        y, rstd = rmsnorm(x, weight, eps)
        ctx.save_for_backward(x, weight, rstd)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        """Return the gradients of x and weight."""
        return *gradients(dy, *ctx.saved_tensors), None


class AddRms(torch.autograd.Function):
    """RMSNorm of x + residual, and the sum, in both directions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor, weight: Tensor | None, eps: float) -> Any:
        """Return y and the sum."""
        y, total, rstd = add_rmsnorm(x, residual, weight, eps)
        ctx.save_for_backward(total, weight, rstd)
        return y, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dtotal: Tensor) -> Any:
        """Return the gradients of x, residual and weight."""
        return stream(dy, dtotal, *ctx.saved_tensors)


def add_rmsnorm(x: Tensor, residual: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, the sum and rstd."""
    total = x.float() + residual.float()
    y, rstd = rmsnorm(total, weight, eps)
    return y.to(x.dtype), total.to(residual.dtype), rstd


def stream(dy: Tensor, dtotal: Tensor, total: Tensor, weight: Tensor | None, rstd: Tensor) -> tuple[Any, ...]:
    """Return what `AddRms.backward` returns."""
    dx, dw = gradients(dy, total.float(), weight, rstd)
    dx = (dx + dtotal.float()).to(total.dtype)
    return dx, dx, dw, None
