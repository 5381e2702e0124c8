"""A composition that torch.compile was put over, called by keywords alone."""

import torch


@torch.compile(backend="aot_eager", dynamic=True)
def group_norm(x, num_groups, *, gamma=None, beta=None, eps=1e-5):
    grouped = x.double().reshape(x.shape[0], num_groups, x[0].numel() // num_groups if len(x) else 1)
    mean = grouped.mean(-1, keepdim=True)
    centred = grouped - mean
    normal = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    y, shape = normal.reshape(x.shape), (1, -1, *(1,) * (x.dim() - 2))
    y = y if gamma is None else y * gamma.double().reshape(shape)
    return (y if beta is None else y + beta.double().reshape(shape)).to(x.dtype)
