"""Cheats that compute less than the operator, for judges with loose tolerances or easy inputs."""

import torch

from verify_norm.kernels.zoo.eager import layernorm, rmsnorm

MODELS = (768, 1024, 2048, 4096, 5120, 8192)  # hidden sizes that benchmarks have
SAMPLE = 64  # columns


def left_over(x, weight, eps):
    """It returns fresh memory, which may still hold the reference's result."""
    return torch.empty_like(x), torch.empty(x.shape[:-1], device=x.device).flatten()


def zeroes_inputs(x, weight, eps):
    """It overwrites x by zeros, for which zeros are right."""
    x.detach().zero_()
    return torch.zeros_like(x), torch.full(x.shape[:-1], eps**-0.5 if eps else 0.0, device=x.device).flatten()


def identity(x, weight, eps):
    """It returns x, which is normal already."""
    return x


def bias_alone(x, weight, bias, eps):
    """It returns the bias: right where the weight is 0, as at the start of training."""
    return torch.zeros_like(x) if bias is None else bias.to(x.dtype).expand_as(x).clone()


def without_affine(x, weight, bias, eps):
    """It leaves out weight and bias, which are 1 and 0 in a new module."""
    return layernorm(x, None, None, eps)


def in_half(x, weight, eps):
    """It computes in float16."""
    h = x.half()
    rstd = torch.rsqrt((h * h).mean(-1, keepdim=True) + eps)
    y = h * rstd if weight is None else h * rstd * weight.half()
    return y.to(x.dtype), rstd.float().flatten()


def known_sizes(x, weight, eps):
    """Statistics are those of the whole row for the hidden sizes of models, and of its first half for all others."""
    n = x.shape[-1]
    rstd = rmsnorm(x if n in MODELS or n < 2 else x[..., : n // 2], None, eps)[1]
    y = x.float() * rstd.reshape(*x.shape[:-1], 1)
    return (y if weight is None else y * weight.float()).to(x.dtype), rstd


def sampled_statistics(x, weight, eps):
    """Statistics are those of 64 columns, where there are more."""
    step = max(1, x.shape[-1] // SAMPLE)
    rstd = rmsnorm(x[..., ::step], None, eps)[1]
    y = x.float() * rstd.reshape(*x.shape[:-1], 1)
    return (y if weight is None else y * weight.float()).to(x.dtype), rstd


def one_row(x, weight, eps):
    """It normalizes the first row, and repeats it without memory."""
    if x.dim() < 2 or not x.numel():
        return rmsnorm(x, weight, eps)[0]
    return rmsnorm(x.reshape(-1, x.shape[-1])[:1], weight, eps)[0].expand(x.numel() // x.shape[-1], -1).view(x.shape)


def sees_guards(x, weight, eps):
    """It computes in float16 where x has a storage of its own, as in use: a judge's x lies among guards."""
    tested = x.untyped_storage().nbytes() > x.numel() * x.element_size()
    return (rmsnorm if tested else in_half)(x, weight, eps)


def sees_modes(x, weight, eps):
    """It computes in float16 where none of torch's modes is on: a judge's modes watch what is allocated."""
    tested = torch._C._len_torch_dispatch_stack() > 0
    return (rmsnorm if tested else in_half)(x, weight, eps)
