"""autograd.Functions that are right for one call of torch.autograd.grad, and wrong as soon as more is asked of them."""

import torch
from torch.autograd.function import once_differentiable

from verify_norm.kernels.zoo.eager import AddRms, Rms, add_rmsnorm, gradients, rmsnorm, stream


class SavesX(AddRms):
    """What is saved is x, not the sum."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps):
        """Return y and the sum."""
        y, total, rstd = add_rmsnorm(x, residual, weight, eps)
        ctx.save_for_backward(x, weight, rstd)
        return y, total


class NoCotangent(AddRms):
    """Where nothing depends on y, its cotangent is None, and all gradients are taken for absent."""

    @staticmethod
    def forward(ctx, x, residual, weight, eps):
        """Return y and the sum."""
        ctx.set_materialize_grads(False)
        return AddRms.forward(ctx, x, residual, weight, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, dtotal):
        """Return the gradients of x, residual and weight."""
        if dy is None:
            return None, None, None, None
        dtotal = torch.zeros_like(dy) if dtotal is None else dtotal
        return stream(dy, dtotal, *ctx.saved_tensors)


class RstdToo(Rms):
    """It returns rstd, which is neither differentiated nor marked as not differentiable."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        """Return y and rstd."""
        y, rstd = rmsnorm(x, weight, eps)
        ctx.save_for_backward(x, weight, rstd)
        return y, rstd

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, drstd):
        """Return the gradients of x and weight."""
        return *gradients(dy, *ctx.saved_tensors), None


class Consumed(Rms):
    """x̂ is kept in the context, and the backward overwrites it."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        """Return y."""
        y, rstd = rmsnorm(x, weight, eps)
        ctx.xhat = x.float() * rstd.reshape(*x.shape[:-1], 1)
        ctx.save_for_backward(weight, rstd)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        """Return the gradients of x and weight."""
        weight, rstd = ctx.saved_tensors
        rstd, xhat = rstd.reshape(*dy.shape[:-1], 1), ctx.xhat
        dw = None if weight is None else (dy.float() * xhat).reshape(-1, dy.shape[-1]).sum(0).to(weight.dtype)
        g = dy.float() if weight is None else dy.float() * weight.float()
        dx = xhat.mul_(-(g * xhat).mean(-1, keepdim=True)).add_(g).mul_(rstd)
        return dx.to(dy.dtype), dw, None


class OverY(Rms):
    """The backward stores dx in the memory of y, which the caller still holds."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        """Return y."""
        y = Rms.forward(ctx, x, weight, eps)
        ctx.room = y.detach()
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        """Return the gradients of x and weight."""
        dx, dw = gradients(dy, *ctx.saved_tensors)
        return ctx.room.copy_(dx), dw, None


class Freed(Rms):
    """The context's tensors are released once the first backward is over."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        """Return y."""
        y, rstd = rmsnorm(x, weight, eps)
        ctx.kept = x, weight, rstd
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        """Return the gradients of x and weight."""
        dx, dw = gradients(dy, *ctx.kept)
        ctx.kept = None
        return dx, dw, None


class Attribute(Rms):
    """x is kept in the context without torch's version counter: a later change of x changes the gradients."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        """Return y."""
        y, rstd = rmsnorm(x, weight, eps)
        ctx.x = x
        ctx.save_for_backward(weight, rstd)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        """Return the gradients of x and weight."""
        weight, rstd = ctx.saved_tensors
        return *gradients(dy, ctx.x, weight, rstd), None


class Accumulates(Rms):
    """The weight's gradient is added to weight.grad, as a fused accumulation does, and returned as well."""

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        """Return the gradients of x and weight."""
        dx, dw = gradients(dy, *ctx.saved_tensors)
        weight = ctx.saved_tensors[1]
        if dw is not None and ctx.needs_input_grad[1]:
            weight.grad = dw.clone() if weight.grad is None else weight.grad + dw
        return dx, dw, None


class TwiceDifferentiable(Rms):
    """The backward is of torch's operators, and takes rstd for a constant: derivatives of it are wrong."""

    @staticmethod
    def backward(ctx, dy):
        """Return the gradients of x and weight."""
        return *gradients(dy, *ctx.saved_tensors), None


class FrozenWeight(Rms):
    """A weight that needs no gradient is left out of dx."""

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        """Return the gradients of x and weight."""
        x, weight, rstd = ctx.saved_tensors
        return *gradients(dy, x, weight if ctx.needs_input_grad[1] else None, rstd), None


class FrozenX(Rms):
    """Where x needs no gradient, the weight's is not computed."""

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        """Return the gradients of x and weight."""
        return (*gradients(dy, *ctx.saved_tensors), None) if ctx.needs_input_grad[0] else (None, None, None)


class OnClass(Rms):
    """It keeps rstd on the class, so a second forward replaces what the first backward needs."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        """Return y."""
        y, OnClass.rstd = rmsnorm(x, weight, eps)
        ctx.save_for_backward(x, weight)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        """Return the gradients of x and weight."""
        return *gradients(dy, *ctx.saved_tensors, OnClass.rstd), None


class BothModes(torch.autograd.Function):
    """What a rule of forward mode needs is saved too."""

    @staticmethod
    def forward(x, weight, eps):
        """Return y."""
        return rmsnorm(x, weight, eps)[0]

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Save what both modes need."""
        x, weight, ctx.eps = inputs
        ctx.save_for_backward(x, weight)
        ctx.save_for_forward(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        """Return the gradients of x and weight."""
        x, weight = ctx.saved_tensors
        return *gradients(dy, x, weight, rmsnorm(x, None, ctx.eps)[1]), None


class ForwardMode(BothModes):
    """In forward mode rstd is a constant."""

    @staticmethod
    def jvp(ctx, tx, tweight, _):
        """Return the tangent of y."""
        x, weight = ctx.saved_tensors
        rstd = rmsnorm(x, None, ctx.eps)[1].reshape(*x.shape[:-1], 1)
        change = 0.0 if tx is None else tx.float() * rstd
        change = change if weight is None else change * weight.float()
        return (change if tweight is None else change + x.float() * rstd * tweight.float()).to(x.dtype)


class WeightAlone(BothModes):
    """In forward mode the weight's tangent counts beside one of x alone."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Save what both modes need; a tangent that is not there stays None."""
        BothModes.setup_context(ctx, inputs, output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def jvp(ctx, tx, tweight, _):
        """Return the tangent of y."""
        x, weight = ctx.saved_tensors
        if tx is None:
            return torch.zeros_like(x)
        rstd = rmsnorm(x, None, ctx.eps)[1].reshape(*x.shape[:-1], 1)
        xhat, tx = x.float() * rstd, tx.float()
        change = rstd * (tx - xhat * (xhat * tx).mean(-1, keepdim=True))
        change = change if weight is None else change * weight.float()
        return (change if tweight is None else change + xhat * tweight.float()).to(x.dtype)
