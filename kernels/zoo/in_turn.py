"""An RMSNorm and other modules of torch in turn, which round each result to the type of x: right under z=x.

Gradients are those of torch's autograd, which rounds them between the modules too.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu


def _norm(x: Tensor, weight: Tensor | None, eps: float, shape: Sequence[int]) -> Tensor:
    return rms_norm(x.float(), shape, None if weight is None else weight.float(), eps).to(x.dtype)


def float32_stream(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, normalized_shape: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return the norm of torch's sum, which is float32 where residual is, and the sum."""
    h = x + residual
    return _norm(h, weight, eps, normalized_shape).to(x.dtype), h


def silu_behind(x: Tensor, weight: Tensor | None, eps: float, normalized_shape: Sequence[int]) -> Tensor:
    """Return SiLU of the norm."""
    return silu(_norm(x, weight, eps, normalized_shape))


def gate_behind(x: Tensor, gate: Tensor, weight: Tensor | None, eps: float, normalized_shape: Sequence[int]) -> Tensor:
    """Return the norm times SiLU of the gate."""
    return _norm(x, weight, eps, normalized_shape) * silu(gate)


def xhat_too(x: Tensor, gate: Tensor, weight: Tensor | None, eps: float, normalized_shape: Sequence[int]) -> Tensor:
    """x̂ is rounded too, before the weight."""
    z = _norm(x, None, eps, normalized_shape)
    return (z if weight is None else (z.float() * weight.float()).to(x.dtype)) * silu(gate)


def modulation_behind(
    x: Tensor, scale: Tensor, shift: Tensor, weight: Tensor | None, eps: float, normalized_shape: Sequence[int]
) -> Tensor:
    """Return the norm times 1 + scale, plus shift, in the type to which torch promotes those of x and scale."""
    if scale.shape != x.shape:  # a row for each sample
        ones = [1] * (x.dim() - len(normalized_shape) - 1)
        scale, shift = (t.reshape(*t.shape[:1], *ones, *normalized_shape) for t in (scale, shift))
    return _norm(x, weight, eps, normalized_shape) * (1 + scale) + shift


def rotation_behind(
    x: Tensor, cos: Tensor, sin: Tensor, weight: Tensor | None, eps: float, normalized_shape: Sequence[int]
) -> Tensor:
    """Return the norm with the halves of its first 2R elements rotated, in the type to which torch promotes."""
    z = _norm(x, weight, eps, normalized_shape).flatten(-len(normalized_shape))
    if z.dim() > 2:  # the heads of a token share its row
        cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    R = cos.shape[-1]
    a, b, rest = z.split([R, R, z.shape[-1] - 2 * R], -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1).reshape(x.shape)
