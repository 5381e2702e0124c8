"""Addition, RMSNorm and rounding to 8 bits with a scale of every row: z = RMSNorm(x + residual), y = sat(z/scale).

The scale of a row is its largest |z| over 448, the largest number of e4m3fn. It is the forward of `rows`: x and the
residual are read once, and z never leaves the registers.
"""

import torch
from torch import Tensor

from verify_norm.kernels.arguments import check_like
from verify_norm.kernels.rows.launch import Form, forward, norm_of

ROWS = Form("rows", torch.float8_e4m3fn)


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
    norm = norm_of(x, weight, None, None, False)
    if torch.version.hip is None and x.is_cuda and torch.cuda.get_device_capability(x.device) < (8, 9):
        raise ValueError("Triton converts to 8 bits from compute capability 8.9 on")
    y, h, _, rstd, scale = forward(x, residual, weight, None, eps, norm, ROWS)
    assert h is not None  # of an addition
    assert scale is not None  # of this form
    return y, scale, h, rstd
