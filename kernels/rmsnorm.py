"""RMSNorm: y = x · rstd · (w + offset) over each row, with rstd = 1/√(mean(x²) + eps).

The offset is for weights stored as their distance from 1, as Gemma does: w + 1 is formed in float32, never in the
weight's own type. Without a weight the factor is 1, whatever the offset. All arithmetic is float32. The kernels are
those of `rows`, without a mean.
"""

from typing import Any

import torch
from torch import Tensor

from verify_norm.kernels.arguments import Shape
from verify_norm.kernels.autograd import applied, once, recorded
from verify_norm.kernels.rows import operators
from verify_norm.kernels.rows.launch import check_gradient
from verify_norm.kernels.rows.norm import norm_of


def rmsnorm_fwd(
    x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0, normalized_shape: Shape = None
) -> tuple[Tensor, Tensor]:
    """Return y and rstd of RMSNorm of x (…, *normalized_shape), of any strides.

    Parameters
    ----------
    x : Tensor
        float32, float16 or bfloat16, of any strides.
    weight : Tensor or None
        Of shape normalized_shape, of x's type or float32.
    eps : float
        Added to the mean square under the root.
    weight_offset : float
        Added to the weight where there is one (1 for Gemma).
    normalized_shape : int, sequence of int or None
        The trailing dimensions to normalize; None: those of the weight, else the last one.

    Returns
    -------
    y : Tensor
        Of x's shape and type, contiguous.
    rstd : Tensor
        float32 of shape (M,), one a row.

    Raises
    ------
    ValueError, TypeError
        As `arguments.normalized` raises: a shape that does not fit, a type that would lose bits in silence.
    """
    norm = norm_of(x, weight, None, normalized_shape, False, weight_offset)
    y, _, _, rstd = operators.forward(x, None, weight, None, eps, norm)
    return y, rstd


def rmsnorm_bwd(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
) -> tuple[Tensor, Tensor | None]:
    """Return dx and dweight of RMSNorm, from dy like x and the forward's rstd.

    With x̂ = x·rstd and g = (w + offset)·dy: dx = rstd·(g − x̂·mean(g·x̂)), and dweight = Σ dy·x̂ over the rows.
    dx has x's type, dweight the weight's, None without one. A row's dx does not depend on any other row, and
    every sum is the same at every run. `eps` is in rstd already; it is an argument because the operator has
    it.

    Raises
    ------
    ValueError, TypeError
        As in the forward, and if dy is not like x or rstd not float32, one a row.
    """
    norm = norm_of(x, weight, None, normalized_shape, False, weight_offset)
    check_gradient(norm, dy, x, None, rstd)
    return operators.backward(dy, None, x, weight, None, rstd, norm, (True, weight, None))[:2]


class RMSNormFunction(torch.autograd.Function):
    """RMSNorm for autograd: apply(x, weight, eps, weight_offset, normalized_shape) -> y. Differentiable once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float, weight_offset: float, normalized_shape: Shape):
        """Return y, and save what the gradients need."""
        ctx.norm = norm = norm_of(x, weight, None, normalized_shape, False, weight_offset)
        y, _, _, rstd = operators.forward(x, None, weight, None, eps, norm)
        ctx.save_for_backward(x, weight, rstd)
        return y

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor):
        """Return the gradients that are asked for, and no others."""
        x, weight, rstd = ctx.saved_tensors
        need = ctx.needs_input_grad
        wanted = (need[0], weight if need[1] else None, None)
        dx, dweight, _ = operators.backward(dy, None, x, weight, None, rstd, ctx.norm, wanted)
        return dx, dweight, None, None, None


apply = applied(RMSNormFunction)


class RMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm, computed by this kernel: same arguments, parameters and state.

    With eps=None, eps is that of float32, the type of the arithmetic, for every type of x, as in torch.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized input."""
        eps = torch.finfo(torch.float32).eps if self.eps is None else self.eps
        shape = self.normalized_shape if self.weight is None else None  # the weight has it
        if not recorded():
            return rmsnorm_fwd(x, self.weight, eps, 0.0, shape)[0]
        return apply(x, self.weight, eps, 0.0, shape)
