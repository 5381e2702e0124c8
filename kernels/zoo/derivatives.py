"""Backward passes by torch's autograd that are right, each in a way that a verifier may take for wrong."""

import torch
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from verify_norm.kernels.zoo.eager import Rms, gradients, rmsnorm
from verify_norm.kernels.zoo.functions import BothModes


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


class Transformed(BothModes):
    """It has rules of its own for vmap and for forward mode."""

    @staticmethod
    def jvp(ctx, tx, tweight, _):
        """Return the tangent of y."""
        x, weight = ctx.saved_tensors
        rstd = rmsnorm(x, None, ctx.eps)[1].reshape(*x.shape[:-1], 1)
        xhat, tx = x.float() * rstd, torch.zeros_like(x) if tx is None else tx.float()
        change = rstd * (tx - xhat * (xhat * tx).mean(-1, keepdim=True))
        change = change if weight is None else change * weight.float()
        return (change if tweight is None else change + xhat * tweight.float()).to(x.dtype)

    @staticmethod
    def vmap(info, in_dims, x, weight, eps):
        """Return y of a batch, and where the batch is in it: one sample after the other."""
        each = [
            [t] * info.batch_size if place is None else t.unbind(place)
            for t, place in zip((x, weight), in_dims, strict=False)
        ]
        return torch.stack([Transformed.apply(*pair, eps) for pair in zip(*each, strict=True)]), 0


def checkpointed(x, weight, eps):
    """The forward pass runs again in the backward."""
    return checkpoint(lambda a, b: rmsnorm(a, b, eps)[0], x, weight, use_reentrant=False)
