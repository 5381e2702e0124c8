"""LayerNorm: y = (x − mean(x)) · rstd · w + b over each row, with rstd = 1/√(var(x) + eps).

All arithmetic is float32. The variance is that of centred values, in a second pass over the row: E[x²] − E[x]²
cancels when the mean is large. The kernels are those of `rows`.
"""

from typing import Any

import torch
from torch import Tensor

from verify_norm.kernels.arguments import Gradients, Shape
from verify_norm.kernels.autograd import applied, once, recorded
from verify_norm.kernels.rows import operators
from verify_norm.kernels.rows.launch import JOINT, check_gradient
from verify_norm.kernels.rows.norm import norm_of


def layernorm_fwd(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    normalized_shape: Shape = None,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, mean and rstd of LayerNorm of x (…, *normalized_shape), of any strides.

    Parameters
    ----------
    x : Tensor
        float32, float16 or bfloat16, of any strides.
    weight, bias : Tensor or None
        Of shape normalized_shape, of x's type or float32.
    eps : float
        Added to the variance under the root.
    normalized_shape : int, sequence of int or None
        The trailing dimensions to normalize; None: those of the weight (or bias), else the last one.
    weight_offset : float
        Added to the weight in float32: 1 in the models that store w − 1.

    Returns
    -------
    y : Tensor
        Of x's shape and type, contiguous.
    mean, rstd : Tensor
        float32 of shape (M,), one a row.

    Raises
    ------
    ValueError, TypeError
        As `arguments.normalized` raises: a shape that does not fit, a type that would lose bits in silence.
    """
    norm = norm_of(x, weight, bias, normalized_shape, offset=weight_offset)
    y, _, mean, rstd = operators.forward(x, None, weight, bias, eps, norm)
    return y, mean, rstd


def layernorm_bwd(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    eps: float,
    normalized_shape: Shape = None,
    weight_offset: float = 0.0,
) -> Gradients:
    """Return dx, dweight and dbias of LayerNorm, from dy like x and the forward's mean and rstd.

    With x̂ = (x − mean)·rstd and g = (w + offset)·dy: dx = rstd·(g − mean(g) − x̂·mean(g·x̂)), dweight = Σ dy·x̂ and
    dbias = Σ dy over the rows. dx has x's type, dweight and dbias those of weight and bias, and None stays None. A
    row's dx does not depend on any other row, and every sum is the same at every run. `eps` is in rstd already; it
    is an argument because the operator has it.

    Raises
    ------
    ValueError, TypeError
        As in the forward, and if dy is not like x or a statistic not float32, one a row.
    """
    norm = norm_of(x, weight, bias, normalized_shape, offset=weight_offset)
    check_gradient(norm, dy, x, mean, rstd)
    return operators.backward(dy, None, x, weight, mean, rstd, norm, (True, weight, bias))


class LayerNormFunction(torch.autograd.Function):
    """LayerNorm for autograd: apply(x, weight, bias, eps, normalized_shape) -> y. Differentiable once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, normalized_shape: Shape):
        """Return y, and save what the gradients need."""
        ctx.norm = norm = norm_of(x, weight, bias, normalized_shape)
        y, _, mean, rstd = operators.forward(x, None, weight, bias, eps, norm, JOINT)
        like = (
            weight is not None and bias is not None and bias.dtype == weight.dtype
        )  # dbias is allocated as dweight is
        ctx.save_for_backward(x, weight, None if like else bias, mean, *([] if rstd is mean else [rstd]))
        return y

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor):
        """Return the gradients that are asked for, and no others."""
        x, weight, bias, mean, *rstd = ctx.saved_tensors
        need = ctx.needs_input_grad
        wanted = (need[0], weight if need[1] else None, (weight if bias is None else bias) if need[2] else None)
        return *operators.backward(dy, None, x, weight, mean, *(rstd or [mean]), ctx.norm, wanted), None, None


apply = applied(LayerNormFunction)


class LayerNorm(torch.nn.LayerNorm):
    """torch.nn.LayerNorm, computed by this kernel: same arguments, parameters and state."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalized input."""
        shape = self.normalized_shape if self.weight is None else None  # the weight has it
        if not recorded():
            norm = norm_of(input, self.weight, self.bias, shape)
            return operators.forward(input, None, self.weight, self.bias, self.eps, norm, JOINT)[0]
        return apply(input, self.weight, self.bias, self.eps, shape)
