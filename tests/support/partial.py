"""Kernels for RMSNorm of which little or nothing can be checked, and right ones that offer less than others."""

import signal

import torch

from verify_norm import kernel


def right(x, weight, eps, weight_offset, normalized_shape):
    dims = tuple(range(x.dim() - len(normalized_shape), x.dim()))
    y = x.double() * torch.rsqrt(x.double().pow(2).mean(dims, keepdim=True) + eps)
    return (y if weight is None else y * (weight.double() + weight_offset)).to(x.dtype)


def returns_nothing(x, weight, eps):
    return ()


def returns_none(x, weight, eps):
    return None


def returns_no_name(x, weight, eps):
    return {}


def returns_rstd_alone(x, weight, eps):
    return {"rstd": torch.rsqrt(x.float().pow(2).mean(-1) + eps)}


def returns_another_shape(x, weight, eps):
    return x.new_zeros(3, 3, 3, 3, 3, 3)


def raises(x, weight, eps):
    raise ValueError("not today")


def raises_mostly(x, weight, eps, weight_offset, normalized_shape):
    if x.shape != (5, 64):  # a row of the corner table
        raise ValueError("not this shape")
    return right(x, weight, eps, weight_offset, normalized_shape)


def gradients_of_nothing(dy, x, weight, rstd, eps):
    return ()


def gradients_of_none(dy, x, weight, rstd, eps):
    return None


def gradient_raises(dy, x, weight, rstd, eps):
    raise ValueError("not today")


def wrong_in_three_dimensions(x, weight, eps, weight_offset, normalized_shape):
    y = right(x, weight, eps, weight_offset, normalized_shape)
    return y * 2 if x.dim() > 2 else y


def interrupted(x, weight, eps, weight_offset, normalized_shape):
    """Do what Ctrl-C does, in the sixth row of the corner table."""
    if x.shape == (7, 33):
        signal.raise_signal(signal.SIGINT)
    return right(x, weight, eps, weight_offset, normalized_shape)


@kernel(op="rmsnorm_fwd", unsupported=lambda spec: None if spec.shape[-1] == 64 else "a row has 64 elements")
def refuses_mostly(x, weight, eps, weight_offset, normalized_shape):
    return right(x, weight, eps, weight_offset, normalized_shape)


@kernel(op="rmsnorm_fwd", unsupported=lambda spec: "x has two dimensions" if len(spec.shape) != 2 else None)
def matrices_alone(x, weight, eps, weight_offset, normalized_shape):
    assert x.dim() == 2
    return right(x, weight, eps, weight_offset, normalized_shape)


@kernel(op="rmsnorm_fwd", unsupported=lambda spec: None if spec.x_layout == "contiguous" else "x is contiguous")
def contiguous_alone(x, weight, eps, weight_offset, normalized_shape):
    assert x.is_contiguous()
    return right(x, weight, eps, weight_offset, normalized_shape)


@kernel(op="rmsnorm_bwd", bind="-> _,dweight")
def dweight_alone(dy, x, weight, rstd, eps, weight_offset, normalized_shape):
    with torch.enable_grad():
        w = None if weight is None else weight.double().requires_grad_()
        y = right(x.double(), w, eps, weight_offset, normalized_shape)
        return None, None if w is None else torch.autograd.grad(y, w, dy.double())[0].to(weight.dtype)
