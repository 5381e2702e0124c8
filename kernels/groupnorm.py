"""GroupNorm: y = act((x − mean) · rstd · w + b), statistics over each group of channels of each sample, w and b per
channel; act is nothing, SiLU or GELU.

x (B, C, *spatial) is seen as (B, C, S) with any three strides, so that channels_last needs no copy. All arithmetic is
float32, and the variance is that of centred values.
"""

import math
from typing import Any

import torch
from torch import Tensor

from verify_norm.kernels.activation import ACTIVATIONS
from verify_norm.kernels.arguments import Gradients, check_backward, check_length, check_shapes, check_types
from verify_norm.kernels.autograd import once, recorded
from verify_norm.kernels.groups import operators


def grouped(x: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int) -> tuple[int, int, int]:
    """Return B, C and S of x (B, C, *spatial), after the checks that forward and backward share."""
    check_types(x, weight, bias)
    if x.dim() < 2:
        raise ValueError(f"x must have at least 2 dimensions (B, C, *spatial), not shape {tuple(x.shape)}")
    channels = x.shape[1]
    if not isinstance(num_groups, int):
        raise TypeError(f"num_groups must be an integer, not {num_groups!r}")
    if num_groups < 1 or channels % num_groups:
        raise ValueError(f"x has {channels} channels, which num_groups = {num_groups} does not divide")
    check_shapes((channels,), weight=weight, bias=bias)
    check_length(math.prod(x.shape[2:]))
    return x.shape[0], channels, math.prod(x.shape[2:])


def channels_inner(x3: Tensor) -> bool:
    """Return whether neighbours in memory are neighbouring channels, as in channels_last."""
    return x3.stride(1) < x3.stride(2)


def groupnorm_fwd(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, mean and rstd of GroupNorm of x (B, C, *spatial), of any strides.

    Parameters
    ----------
    x : Tensor
        float32, float16 or bfloat16, of rank 2 or more and any strides.
    weight, bias : Tensor or None
        Of shape (C,), of x's type or float32.
    num_groups : int
        G, a divisor of C.
    eps : float
        Added to the variance under the root.

    Returns
    -------
    y : Tensor
        Of x's shape and type; channels_last where x is.
    mean, rstd : Tensor
        float32 of shape (B, G).

    Raises
    ------
    ValueError, TypeError
        If a shape does not fit, G does not divide C, or a type would lose bits in silence.
    """
    return _checked_forward(x, weight, bias, num_groups, eps, None)


def groupnorm_silu_fwd(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return SiLU of GroupNorm, with mean and rstd, as `groupnorm_fwd`."""
    return _checked_forward(x, weight, bias, num_groups, eps, "silu")


def groupnorm_gelu_fwd(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return GELU z·Φ(z), the exact one, of GroupNorm, with mean and rstd, as `groupnorm_fwd`."""
    return _checked_forward(x, weight, bias, num_groups, eps, "gelu")


def groupnorm_bwd(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    num_groups: int,
    eps: float,
) -> Gradients:
    """Return dx, dweight and dbias of GroupNorm, from dy like x and the forward's mean and rstd.

    With x̂ = (x − mean)·rstd and g = w·dy: dx = rstd·(g − mean(g) − x̂·mean(g·x̂)) with means over the group,
    dweight = Σ dy·x̂ and dbias = Σ dy over samples and positions. The sums per sample and channel are made once,
    and serve all three. dx has x's type, dweight and dbias those of weight and bias, and None stays None. `eps`
    is in rstd already; it is an argument because the operator has it.

    Raises
    ------
    ValueError, TypeError
        As in the forward, and if dy is not like x or a statistic not float32, one a group.
    """
    return _checked_backward(dy, x, weight, bias, mean, rstd, num_groups, None)


def groupnorm_silu_bwd(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    num_groups: int,
    eps: float,
) -> Gradients:
    """Return the gradients of SiLU of GroupNorm: those of GroupNorm at dy·silu'(z), z = w·x̂ + b computed anew."""
    return _checked_backward(dy, x, weight, bias, mean, rstd, num_groups, "silu")


def groupnorm_gelu_bwd(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    num_groups: int,
    eps: float,
) -> Gradients:
    """Return the gradients of GELU of GroupNorm: those of GroupNorm at dy·gelu'(z), z = w·x̂ + b computed anew."""
    return _checked_backward(dy, x, weight, bias, mean, rstd, num_groups, "gelu")


def _checked_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int, eps: float, activation: str | None
) -> tuple[Tensor, Tensor, Tensor]:
    grouped(x, weight, bias, num_groups)
    return operators.forward(x, weight, bias, num_groups, eps, activation)


def _checked_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    num_groups: int,
    activation: str | None,
) -> Gradients:
    grouped(x, weight, bias, num_groups)
    check_backward(x, dy, x.shape[0] * num_groups, mean=mean, rstd=rstd)
    return operators.backward(dy, x, weight, bias, (mean, rstd), num_groups, activation, (True, True, True))


def _known(activation: str | None) -> str | None:
    if activation not in (None, *ACTIVATIONS):
        raise ValueError(f"activation must be None or one of {', '.join(ACTIVATIONS)}, not {activation!r}")
    return activation


class GroupNormFunction(torch.autograd.Function):
    """GroupNorm for autograd: apply(x, weight, bias, num_groups, eps, activation=None) -> y. Differentiable once."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        num_groups: int,
        eps: float,
        activation: str | None = None,
    ):
        """Return y, and save what the gradients need."""
        y, mean, rstd = _checked_forward(x, weight, bias, num_groups, eps, _known(activation))
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.num_groups, ctx.activation = num_groups, activation
        return y

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor):
        """Return the gradients that are asked for, and no others."""
        x, weight, bias, mean, rstd = ctx.saved_tensors
        wanted = tuple(ctx.needs_input_grad[:3])
        gradients = operators.backward(dy, x, weight, bias, (mean, rstd), ctx.num_groups, ctx.activation, wanted)
        return *gradients, None, None, None


class GroupNorm(torch.nn.GroupNorm):
    """torch.nn.GroupNorm, computed by this kernel: same arguments, parameters and state, and an activation after it."""

    def __init__(self, *args: Any, activation: str | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.num_groups, self.activation = int(self.num_groups), _known(activation)

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalized input."""
        if not recorded():
            return _checked_forward(input, self.weight, self.bias, self.num_groups, self.eps, self.activation)[0]
        return GroupNormFunction.apply(input, self.weight, self.bias, self.num_groups, self.eps, self.activation)

    def extra_repr(self) -> str:
        """Return torch's, and the activation if there is one."""
        text = super().extra_repr()
        return text if self.activation is None else f"{text}, activation={self.activation}"
