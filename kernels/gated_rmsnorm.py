"""Gated RMSNorm: y = x̂·w·SiLU(gate) with x̂ = x/√(mean(x²) + eps) over each row, in float32: Mamba2's and Qwen3-Next's.

The gate is applied after the norm. The forward is that of `rows`, the gradients have a kernel of their own.
"""

from torch import Tensor

from verify_norm.kernels.arguments import Shape, check_backward, check_like
from verify_norm.kernels.rows.launch import Form, forward, gated_backward
from verify_norm.kernels.rows.norm import norm_of

GATE = Form("gate")


def gated_rmsnorm_fwd(
    x: Tensor,
    gate: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
) -> tuple[Tensor, Tensor]:
    """Return y and rstd of gated RMSNorm of x (…, *normalized_shape), of any strides.

    Parameters
    ----------
    x, gate : Tensor
        float32, float16 or bfloat16, alike; a row has at most 32768 elements.
    weight : Tensor or None
        Of shape normalized_shape, of x's type or float32.
    eps : float
        Added to the mean square under the root.
    weight_offset, normalized_shape
        As in `rmsnorm.rmsnorm_fwd`.

    Returns
    -------
    y : Tensor
        Of x's shape and type, contiguous.
    rstd : Tensor
        float32 of shape (M,), one a row.

    Raises
    ------
    ValueError, TypeError
        If a shape does not fit, a row is too long, or a type would lose bits in silence.
    """
    check_like(x, "x", gate=gate)
    y, _, _, rstd, _ = forward(
        x, gate, weight, None, eps, norm_of(x, weight, None, normalized_shape, False, weight_offset), GATE
    )
    return y, rstd


def gated_rmsnorm_bwd(
    dy: Tensor,
    x: Tensor,
    gate: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return dx, dgate and dweight of gated RMSNorm, from dy like x and the forward's rstd, of rows up to 16384.

    The formulas are in `rows.gated`. Every sum is the same at every run. `eps` is in rstd already; it is an argument
    because the operator has it.

    Raises
    ------
    ValueError, TypeError
        As in the forward, and if dy is not like x or rstd not float32, one a row.
    """
    check_like(x, "x", gate=gate)
    norm = norm_of(x, weight, None, normalized_shape, False, weight_offset)
    check_backward(x, dy, norm.rows, rstd=rstd)
    return gated_backward(dy, x, gate, weight, rstd, norm)
