"""Operators of torch.library: one whose fake implementation is right, and one whose is wrong."""

import torch
from torch import Tensor

from verify_norm.kernels.zoo.eager import rmsnorm


@torch.library.custom_op("verify_norm_zoo::rms", mutates_args=())
def _right(x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    return _contiguous(x, weight, eps)


@torch.library.custom_op("verify_norm_zoo::rms_wrong_fake", mutates_args=())
def _wrong(x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    return _contiguous(x, weight, eps)


def _contiguous(x, weight, eps):
    y, rstd = rmsnorm(x, weight, eps)
    return y.contiguous(), rstd.contiguous()


def _rows(x):
    return x.numel() // max(x.shape[-1], 1)


@_right.register_fake
def _(x, weight, eps):
    return x.new_empty(x.shape), x.new_empty(_rows(x), dtype=torch.float32)


@_wrong.register_fake
def _(x, weight, eps):
    return x.new_empty(x.shape), x.new_empty(_rows(x))


def operator(x, weight, eps):
    """An operator with a right fake implementation."""
    return torch.ops.verify_norm_zoo.rms(x, weight, eps)


def wrong_fake(x, weight, eps):
    """One whose fake implementation gives rstd the type of x."""
    return torch.ops.verify_norm_zoo.rms_wrong_fake(x, weight, eps)
