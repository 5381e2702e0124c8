"""Backward passes by torch's autograd that are right, each in a way that a verifier may take for wrong."""

import torch
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from verify_norm.kernels.zoo.eager import Rms, gradients, rmsnorm


class Recomputes(torch.autograd.Function):
    """It saves x and weight alone, and its backward is differentiable: rstd is computed again."""

    @staticmethod
    def forward(x, weight, eps):
        """Return y and rstd."""
        return rmsnorm(x, weight, eps)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Save what the backward needs; rstd has no gradient."""
        x, weight, ctx.eps = inputs
        ctx.save_for_backward(x, weight)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, dy, _):
        """Return the gradients of x and weight."""
        x, weight = ctx.saved_tensors
        return *gradients(dy, x, weight, rmsnorm(x, None, ctx.eps)[1]), None


class AsNeeded(Rms):
    """It computes the gradients that are asked for, and no others."""

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        """Return the gradients of x and weight."""
        dx, dw = gradients(dy, *ctx.saved_tensors)
        wants = ctx.needs_input_grad
        return dx if wants[0] else None, dw if wants[1] else None, None


class InFloat32(Rms):
    """Under autocast it gets float32, and in its backward autocast is off."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, weight, eps):
        """Return y."""
        return Rms.forward(ctx, x, weight, eps)

    @staticmethod
    @once_differentiable
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, dy):
        """Return the gradients of x and weight."""
        return *gradients(dy, *ctx.saved_tensors), None


def checkpointed(x, weight, eps):
    """The forward pass runs again in the backward."""
    return checkpoint(lambda a, b: rmsnorm(a, b, eps)[0], x, weight, use_reentrant=False)
