"""An RMSNorm and other modules of torch in turn, which round each result to the type of x: right under z=x.

Gradients are those of torch's autograd, which rounds them between the modules too.
"""

from collections.abc import Sequence

from torch import Tensor
from torch.nn.functional import rms_norm, silu


def _norm(x: Tensor, weight: Tensor | None, eps: float, shape: Sequence[int]) -> Tensor:
    return rms_norm(x.float(), shape, None if weight is None else weight.float(), eps).to(x.dtype)


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
