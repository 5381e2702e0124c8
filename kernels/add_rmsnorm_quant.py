"""RMSNorm, of a sum or of x alone, and rounding to 8 bits with a scale of every row or group: y = sat(z/scale).

z = RMSNorm(x + residual). A scale is the largest |z| over 448, the largest number of e4m3fn: of a row, or of each 64 or
128 elements of one. It is the forward of `rows`: x and the residual are read once, and z never leaves the registers.
"""

import torch
from torch import Tensor

from verify_norm.kernels.arguments import check_like
from verify_norm.kernels.rows.launch import Form, forward
from verify_norm.kernels.rows.norm import norm_of


def add_rmsnorm_quant_fwd(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return y, scale, residual_out and rstd of h = x + residual (…, N), of any strides.

    Parameters
    ----------
    x, residual : Tensor
        float32, float16 or bfloat16, alike; N is at most 32768.
    weight : Tensor or None
        Of shape (N,), of x's type or float32.
    eps : float
        Added to the mean square under the root.

    Returns
    -------
    y : Tensor
        float8_e4m3fn of x's shape, contiguous: z/scale, saturated; z is not rounded before.
    scale : Tensor
        float32 of shape (M,): the largest |z| of a row over 448, 1 where that is 0; NaN where z is NaN.
    residual_out : Tensor
        h rounded to x's type; the norm is that of h before it.
    rstd : Tensor
        float32 of shape (M,), one a row.

    Raises
    ------
    ValueError, TypeError
        If a shape does not fit, a row is too long, a type would lose bits in silence, or the GPU has no e4m3fn.
    """
    check_like(x, "x", residual=residual)
    y, scale, h, rstd = _quantized(x, residual, weight, eps, "rows")
    assert h is not None  # of an addition
    return y, scale, h, rstd


def add_rmsnorm_quant_group_fwd(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return y, scale, residual_out and rstd, as `add_rmsnorm_quant_fwd`, with a scale of every 128 elements.

    The last group of a row may be shorter. scale is float32 of shape (M, K), K groups a row.
    """
    return _by_groups(x, residual, weight, eps, 128)


def add_rmsnorm_quant_group64_fwd(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return y, scale, residual_out and rstd, as `add_rmsnorm_quant_group_fwd`, with a scale of every 64 elements."""
    return _by_groups(x, residual, weight, eps, 64)


def rmsnorm_quant_fwd(x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, scale and rstd of x (…, N), as `add_rmsnorm_quant_fwd` without a residual."""
    y, scale, _, rstd = _quantized(x, None, weight, eps, "rows")
    return y, scale, rstd


def _by_groups(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, group: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    check_like(x, "x", residual=residual)
    y, scale, h, rstd = _quantized(x, residual, weight, eps, f"group{group}")
    assert h is not None  # of an addition
    return y, scale.view(rstd.numel(), -(-x.shape[-1] // group)), h, rstd


def _quantized(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, eps: float, form: str
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Return y, the scales, the sum if there is one, and rstd."""
    norm = norm_of(x, weight, None, None, False)
    if torch.version.hip is None and x.is_cuda and torch.cuda.get_device_capability(x.device) < (8, 9):
        raise ValueError("Triton converts to 8 bits from compute capability 8.9 on")
    y, h, _, rstd, scale = forward(x, residual, weight, None, eps, norm, Form(form, torch.float8_e4m3fn))
    assert scale is not None  # of these forms
    return y, scale, h, rstd
