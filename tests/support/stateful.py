"""A kernel that goes wrong after some calls, for the tests of isolation."""

import itertools

import torch

_calls = itertools.count()


def rmsnorm_fwd(x, weight, eps, weight_offset, normalized_shape):
    dims = tuple(range(x.dim() - len(normalized_shape), x.dim()))
    y = x.double() * torch.rsqrt(x.double().pow(2).mean(dims, keepdim=True) + eps)
    y = y if weight is None else y * (weight.double() + weight_offset)
    return (y * 2 if next(_calls) > 4 else y).to(x.dtype)
