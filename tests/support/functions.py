"""Differentiable functions for the tests of gradcheck, and the findings on one."""

import torch

from verify_norm.gradcheck.gradcheck import gradcheck

SHAPES = {"x": (6, 32), "w": (32,)}


def made(backward, forward=lambda x, w: torch.sin(x) * w):
    """Return a fused function of x and w with this backward(ctx, dy, x, w)."""

    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return forward(x, w)

        @staticmethod
        def backward(ctx, dy):
            return backward(ctx, dy, *ctx.saved_tensors)

    return lambda x, w: Fused.apply(x, w)


def right(ctx, dy, x, w):
    return dy * w * x.cos(), (dy * x.sin()).sum(0)


def checks(function, shapes=SHAPES, **options):
    report = gradcheck(function, shapes=shapes, **options)
    assert report.checked
    assert report.ok is (not report.findings)
    return {(f.check, f.output) for f in report.findings}


def in_float32(x, w, bias):
    x32 = x.float()
    rstd = torch.rsqrt(x32.square().mean(-1, keepdim=True) + 1e-6)
    return (x32 * rstd * w.float() + bias.float()).to(x.dtype)


def changed(function, change):
    """Return a function of x whose gradient is `change` of the right one."""

    class Changed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return function(x)

        @staticmethod
        def backward(ctx, dy):
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(function(x), x, dy)
            return change(gradient)

    return lambda x: Changed.apply(x)


FEW_OUTPUTS = {
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "norm": lambda x: x.norm(dim=-1),
    "mean square": lambda x: x.square().mean(),
    "cross-entropy": lambda x: torch.nn.functional.cross_entropy(x, torch.arange(x.shape[0]) % x.shape[1]),
    "variance": lambda x: x.var(-1),
    "sum of sines": lambda x: x.sin().sum(),
}
