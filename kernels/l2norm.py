"""L2Norm: y = x·rstd with rstd = 1/√(Σx² + eps) over each row: RMSNorm's kernels, without the division by N.

`torch.nn.functional.normalize` divides by max(‖x‖, eps), which is another operator.
"""

from torch import Tensor

from verify_norm.kernels.arguments import Shape, check_backward
from verify_norm.kernels.rows.launch import Form, backward, forward
from verify_norm.kernels.rows.norm import norm_of

L2 = Form("l2")


def l2norm_fwd(x: Tensor, eps: float, normalized_shape: Shape = None) -> tuple[Tensor, Tensor]:
    """Return y and rstd of x (…, *normalized_shape), of any strides.

    Parameters
    ----------
    x : Tensor
        float32, float16 or bfloat16; a row has at most 32768 elements.
    eps : float
        Added to the sum of squares under the root.
    normalized_shape
        The last dimensions that make one row; by default the last one.

    Returns
    -------
    y : Tensor
        Of x's shape and type, contiguous.
    rstd : Tensor
        float32 of shape (M,), one a row.

    Raises
    ------
    ValueError, TypeError
        If a row is too long, or a type would lose bits in silence.
    """
    y, _, _, rstd, _ = forward(x, None, None, None, eps, norm_of(x, None, None, normalized_shape, False), L2)
    return y, rstd


def l2norm_bwd(dy: Tensor, x: Tensor, rstd: Tensor, eps: float, normalized_shape: Shape = None) -> Tensor:
    """Return dx = rstd·(dy − x̂·Σ(dy·x̂)) with x̂ = x·rstd, from dy like x and the forward's rstd.

    A row has at most 16384 elements, or 8192 where rows do not begin at multiples of 16 bytes. `eps` is in rstd
    already; it is an argument because the operator has it.

    Raises
    ------
    ValueError, TypeError
        As in the forward, and if dy is not like x or rstd not float32, one a row.
    """
    norm = norm_of(x, None, None, normalized_shape, False)
    check_backward(x, dy, norm.rows, rstd=rstd)
    dx: Tensor = backward(dy, None, x, None, None, rstd, norm, (True, None, None), "l2")[0]
    return dx
