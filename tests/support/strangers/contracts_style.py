"""Right norms that promise less than the strict contract: what libraries are known for, each in plain torch."""

import torch
from torch import nn


def _normal(wide, eps):
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)


def fused_add_rms_norm(input, residual, weight, epsilon):
    """As an engine's kernel: overwrites both, normalizes the sum as stored, rounds x̂ before the weight."""
    residual.copy_(input.float() + residual.float())
    scaled = _normal(residual.float(), epsilon).to(input.dtype).float()
    input.copy_(scaled if weight is None else scaled * weight.float())


def rounded_sum_fwd(x, residual, weight, eps):
    """Normalizes the sum as it returns it."""
    summed = (x.float() + residual.float()).to(residual.dtype)
    scaled = _normal(summed.float(), eps)
    return (scaled if weight is None else scaled * weight.float()).to(x.dtype), summed


class _Casting(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        wide = x.float()
        rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, rstd)
        return ((wide * rstd).to(x.dtype).float() * weight.float()).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        x, weight, rstd = ctx.saved_tensors
        xhat = x.float() * rstd
        g = dy.float() * weight.float()
        dweight = (dy.float() * xhat.to(x.dtype).float()).reshape(-1, x.shape[-1]).sum(0)
        dx = rstd * (g - xhat * (g * xhat).mean(-1, keepdim=True))
        return dy.copy_(dx), dweight.to(weight.dtype), None


class CastingRMSNorm(nn.Module):
    """As a library of training kernels: Llama's casting, and dx overwrites dy."""

    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(self, hidden_states):
        return _Casting.apply(hidden_states, self.weight, self.eps)
