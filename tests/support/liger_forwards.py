"""Liger's forwards, called below their autograd functions, which torch without CUDA cannot record."""

from liger_kernel.ops.fused_add_rms_norm import fused_add_rms_norm_forward
from liger_kernel.ops.group_norm import group_norm_forward
from liger_kernel.ops.layer_norm import layer_norm_forward
from liger_kernel.ops.rms_norm import rms_norm_forward


def layernorm_fwd(x, weight, bias, eps):
    y, _, mean, rstd, *_ = layer_norm_forward(x, weight, bias, eps)
    return y, mean, rstd


def rmsnorm_fwd(x, weight, eps):
    y, _, rstd, *_ = rms_norm_forward(x, weight, eps, 0.0, "llama", None)
    return y, rstd


def add_rmsnorm_fwd(x, residual, weight, eps):
    y, total, rstd, *_ = fused_add_rms_norm_forward(x, residual, weight, eps, 0.0, "llama")
    return y, total, rstd


def groupnorm_fwd(x, weight, bias, num_groups, eps):
    y, _, mean, rstd, *_ = group_norm_forward(x, x.shape[1], num_groups, weight, bias, eps)
    return y, mean, rstd
