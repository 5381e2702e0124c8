"""RMSNorm with limits: kernels that refuse in words what they do not take, and kernels that fail there."""

import torch


def norm(x, weight, eps):
    y = x.double() * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight.double()).to(x.dtype)


def rms_norm_of_matrices_fwd(x, weight, eps):
    assert x.dim() == 2
    return norm(x, weight, eps)


def rms_norm_vectorized_fwd(x, weight, eps):
    """The limits of a kernel with loads of 8 elements and a weight, with (y, None) as autograd code returns it."""
    if weight is None:
        raise ValueError("weight is required")
    if x.stride(-1) != 1:
        raise ValueError("the last dimension of x must be contiguous")
    if x.shape[-1] % 8:
        raise NotImplementedError(f"hidden size {x.shape[-1]} is not a multiple of 8")
    return norm(x, weight, eps), None


def rms_norm_of_matrices_but_wrong_fwd(x, weight, eps):
    return rms_norm_of_matrices_fwd(x, weight, eps) * 1.001


def rms_norm_fails_where_long_fwd(x, weight, eps):
    if x.shape[-1] > 1024:
        raise IndexError("index 1024 is out of bounds for dimension 0 with size 1024")
    return norm(x, weight, eps)


def rms_norm_refuses_more_than_it_says_fwd(x, weight, eps):
    if x.shape[-1] % 16:
        raise ValueError("hidden size must be a multiple of 8")
    return norm(x, weight, eps)
