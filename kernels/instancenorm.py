"""InstanceNorm: GroupNorm with a group for every channel, in GroupNorm's launches.

A channel of one position has x̂ = 0, hence y = b and dx = 0; torch's function refuses it.
"""

from torch import Tensor

from verify_norm.kernels.arguments import Gradients
from verify_norm.kernels.groupnorm import groupnorm_bwd, groupnorm_fwd


def instancenorm_fwd(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, mean and rstd of InstanceNorm of x (B, C, *spatial), of any strides.

    Parameters, results and errors are those of `groupnorm_fwd` with as many groups as channels; mean and rstd are of
    shape (B, C).
    """
    return groupnorm_fwd(x, weight, bias, _channels(x), eps)


def instancenorm_bwd(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, rstd: Tensor, eps: float
) -> Gradients:
    """Return dx, dweight and dbias of InstanceNorm, as `groupnorm_bwd` does."""
    return groupnorm_bwd(dy, x, weight, bias, mean, rstd, _channels(x), eps)


def _channels(x: Tensor) -> int:
    return x.shape[1] if isinstance(x, Tensor) and x.dim() > 1 else 1  # else the checks there raise
