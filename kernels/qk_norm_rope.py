"""RMSNorm of heads and a rotation of each (RoPE) in one kernel, as Qwen3 treats q and k: z = x̂·w, then pairs turn.

Pairs are (i, i + R/2), or (2i, 2i + 1) in the kernels whose names say interleaved. All of it is float32 with one
rounding at the end; `rows.rotation` has the formulas.
"""

from torch import Tensor

from verify_norm.kernels.arguments import Shape, check_backward, check_beside
from verify_norm.kernels.rows import rotation_launch
from verify_norm.kernels.rows.norm import Norm, norm_of
from verify_norm.kernels.rows.rotation_launch import Angles


def qk_norm_rope_fwd(
    x: Tensor,
    weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
) -> tuple[Tensor, Tensor]:
    """Return y and rstd of heads x (…, H, *normalized_shape), of any strides, as those of q or k in a packed qkv.

    Parameters
    ----------
    x : Tensor
        float32, float16 or bfloat16; a row has at most 8192 elements.
    weight : Tensor or None
        Of shape normalized_shape, of x's type or float32.
    cos, sin : Tensor
        Of shape (…, R/2), a line for each token, or (M, R/2) for x (M, N); of x's type or float32. The first R elements
        of each row turn, R at most N, and the others stay.
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
    norm = norm_of(x, weight, None, normalized_shape, False, weight_offset)
    return rotation_launch.forward(x, weight, _angles(x, cos, sin, norm), eps, norm)


def qk_norm_rope_bwd(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    rstd: Tensor,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
) -> tuple[Tensor, Tensor | None]:
    """Return dx and dweight, from dy like x and the forward's rstd; cos and sin are constants.

    Every sum is the same at every run. `eps` is in rstd already; it is an argument because the operator has it.

    Raises
    ------
    ValueError, TypeError
        As in the forward, and if dy is not like x or rstd not float32, one a row.
    """
    norm = norm_of(x, weight, None, normalized_shape, False, weight_offset)
    check_backward(x, dy, norm.rows, rstd=rstd)
    return rotation_launch.backward(dy, x, weight, _angles(x, cos, sin, norm), rstd, norm)


def qk_norm_rope_interleaved_fwd(
    x: Tensor,
    weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
) -> tuple[Tensor, Tensor]:
    """Return y and rstd as `qk_norm_rope_fwd` does, of neighbouring pairs (2i, 2i + 1), as in GPT-J."""
    norm = norm_of(x, weight, None, normalized_shape, False, weight_offset)
    return rotation_launch.forward(x, weight, _angles(x, cos, sin, norm, interleaved=True), eps, norm)


def qk_norm_rope_interleaved_bwd(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    rstd: Tensor,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
) -> tuple[Tensor, Tensor | None]:
    """Return dx and dweight as `qk_norm_rope_bwd` does, of neighbouring pairs."""
    norm = norm_of(x, weight, None, normalized_shape, False, weight_offset)
    check_backward(x, dy, norm.rows, rstd=rstd)
    return rotation_launch.backward(dy, x, weight, _angles(x, cos, sin, norm, interleaved=True), rstd, norm)


def _angles(x: Tensor, cos: Tensor, sin: Tensor, norm: Norm, *, interleaved: bool = False) -> Angles:
    """Return the rotation; raises an error for tables that are not one line a token, or too wide."""
    check_beside(x, cos=cos, sin=sin)
    lead, most = tuple(x.shape[: norm.lead]), norm.columns // 2
    lead = lead[:-1] if norm.lead > 1 else lead
    half = cos.shape[-1] if cos.dim() else -1
    if tuple(cos.shape) != (*lead, half) or not 0 <= half <= most:
        shape = ", ".join(map(str, (*lead, "R/2")))
        raise ValueError(f"cos must have shape ({shape}) with R/2 of at most {most}, not {tuple(cos.shape)}")
    if sin.shape != cos.shape or sin.dtype != cos.dtype:
        raise ValueError(
            f"sin must be like cos, {tuple(cos.shape)} and {cos.dtype}, not {tuple(sin.shape)} and {sin.dtype}"
        )
    return Angles(cos, sin, half, interleaved)
