"""Triton kernels that a CUDA context does not survive, or that write past what is theirs; for the tests on a GPU."""

import torch
import triton
import triton.language as tl

LARGE = 3000  # elements of x


@triton.jit
def _poke(Y, distance):
    tl.store(Y + distance, 1.0)


@triton.jit
def _wait(Lock):
    while tl.atomic_cas(Lock, 0, 1) != 7:
        pass


def _rmsnorm(x, weight, eps, weight_offset, normalized_shape):
    dims = tuple(range(x.dim() - len(normalized_shape), x.dim()))
    y = x.double() * torch.rsqrt(x.double().pow(2).mean(dims, keepdim=True) + eps)
    y = y if weight is None else y * (weight.double() + weight_offset)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return out.copy_(y)


def past_the_end(x, weight, eps, weight_offset, normalized_shape):
    y = _rmsnorm(x, weight, eps, weight_offset, normalized_shape)
    if x.numel() > LARGE:
        _poke[(1,)](y, y.numel() + 2)
    return y


def illegal_address(x, weight, eps, weight_offset, normalized_shape):
    y = _rmsnorm(x, weight, eps, weight_offset, normalized_shape)
    if x.numel() > LARGE:
        _poke[(1,)](y, 2**42)
    return y


def deadlock(x, weight, eps, weight_offset, normalized_shape):
    if x.numel() > LARGE:
        _wait[(1,)](torch.ones(1, dtype=torch.int32, device=x.device))
    return _rmsnorm(x, weight, eps, weight_offset, normalized_shape)
