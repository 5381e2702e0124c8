"""Modulated LayerNorm (adaLN): y = z·(1 + scale) + shift, z LayerNorm of a row, scale and shift of its sample.

It is the forward of `rows`; all of it is float32, with one rounding at the end.
"""

from torch import Tensor

from verify_norm.kernels.arguments import Shape, check_beside
from verify_norm.kernels.rows.launch import Form, forward
from verify_norm.kernels.rows.norm import norm_of


def modulate_layernorm_fwd(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    eps: float,
    normalized_shape: Shape = None,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, mean and rstd of modulated LayerNorm of x (B, …, *normalized_shape), of any strides.

    Parameters
    ----------
    x : Tensor
        float32, float16 or bfloat16; a row has at most 32768 elements.
    weight, bias : Tensor or None
        Of shape normalized_shape, of x's type or float32.
    scale, shift : Tensor
        Of shape (B, *normalized_shape), of x's type or float32: a line for all rows of a sample; or of x's shape.
    eps : float
        Added to the variance under the root.
    normalized_shape : int, sequence of int or None
    weight_offset : float
        As in `layernorm.layernorm_fwd`.

    Returns
    -------
    y : Tensor
        Of x's shape and type, contiguous.
    mean, rstd : Tensor
        float32 of shape (M,), one a row.

    Raises
    ------
    ValueError, TypeError
        If a shape does not fit, a row is too long, or a type would lose bits in silence.
    """
    norm = norm_of(x, weight, bias, normalized_shape, offset=weight_offset)
    alike = tuple(x.shape)
    wanted = (x.shape[0], *x.shape[norm.lead :]) if norm.lead else alike
    check_beside(x, scale=scale, shift=shift)
    for name, t in (("scale", scale), ("shift", shift)):
        if tuple(t.shape) not in (wanted, alike) or t.shape != scale.shape:
            raise ValueError(f"{name} must have shape {wanted}, a line a sample, or {alike}, not {tuple(t.shape)}")
    per = 1 if scale.shape == x.shape else norm.rows // max(x.shape[0], 1)
    y, _, mean, rstd, _ = forward(x, None, weight, bias, eps, norm, Form(factor=scale, shift=shift, per=max(per, 1)))
    assert mean is not None  # LayerNorm has one
    return y, mean, rstd
