"""RMSNorm with the arguments of a library that has one function for all norms: bias and residual, which may be None."""

import torch
from torch.nn import functional


def rms_norm(x, weight, bias, residual, eps=1e-6, prenorm=False):
    if residual is not None:
        x = x + residual
    y = functional.rms_norm(x, x.shape[-1:], weight, eps)
    y = y if bias is None else y + bias
    return (y, x) if prenorm else y


def rms_norm_gemma(x, weight: torch.Tensor | None, eps=1e-6):
    return rms_norm(x, None if weight is None else 1 + weight.float(), None, None, eps).to(x.dtype)
