"""InstanceNorm: GroupNorm with a group for every channel.

A channel of one position (x of shape (B, C), or one position in space) has x̂ = 0, hence y = b and dx = 0, as a row of
one element has in LayerNorm. torch's function refuses it; its kernels return the same.
"""

from __future__ import annotations

from verify_norm.reference import groupnorm
from verify_norm.reference.arithmetic import Arithmetic
from verify_norm.reference.layernorm import Backward, Forward
from verify_norm.reference.statistics_rounding import Given
from verify_norm.reference.view import Array

__all__ = ["Backward", "Forward", "backward", "backward_error", "forward", "forward_error"]


def forward(x: Array, weight: Array | None, bias: Array | None, *, eps: float) -> Forward:
    """Normalize every channel of every sample to mean 0 and variance 1, then scale and shift it.

    Parameters, costs and errors are those of `groupnorm.forward` with as many groups as channels.

    Returns
    -------
    Forward : y (as x), mean and rstd (B, C).

    Raises
    ------
    ValueError : x has no channels, or they are empty.

    Examples
    --------
    >>> import numpy as np
    >>> forward(np.array([[[1.0, 3.0], [5.0, 5.0]]]), np.array([5.0, 1.0]), None, eps=0.5625).y.tolist()
    [[[-4.0, 4.0], [0.0, 0.0]]]
    """
    return groupnorm.forward(x, weight, bias, num_groups=_channels(x), eps=eps)


def backward(dy: Array, x: Array, weight: Array | None, bias: Array | None, *, eps: float) -> Backward:
    """Return the gradients of ⟨dy, y⟩ with respect to x, weight and bias, as `groupnorm.backward`.

    >>> import numpy as np
    >>> x, dy = np.array([[[1.0, 3.0]]]), np.array([[[1.0, 0.0]]])
    >>> backward(dy, x, np.ones(1), None, eps=0.5625).dx.round(3).tolist()
    [[[0.144, -0.144]]]
    """
    return groupnorm.backward(dy, x, weight, bias, num_groups=_channels(x), eps=eps)


def forward_error(x: Array, weight: Array | None, bias: Array | None, *, eps: float, arithmetic: Arithmetic) -> Forward:
    """Return how far a kernel of this arithmetic may be from `forward`, per element, before the final rounding.

    >>> import numpy as np
    >>> float32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38)
    >>> forward_error(np.ones((2, 3, 4)), None, None, eps=1e-5, arithmetic=float32).mean.shape
    (2, 3)
    """
    return groupnorm.forward_error(x, weight, bias, num_groups=_channels(x), eps=eps, arithmetic=arithmetic)


def backward_error(
    dy: Array,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    *,
    eps: float,
    arithmetic: Arithmetic,
    given: Given | None = None,
) -> Backward:
    """Return how far a kernel of this arithmetic may be from `backward`, per element, before the final rounding.

    >>> import numpy as np
    >>> float32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38)
    >>> x = np.ones((2, 3, 4))
    >>> backward_error(x, x, np.ones(3), None, eps=1e-5, arithmetic=float32).dweight.shape
    (3,)
    """
    count = _channels(x)
    return groupnorm.backward_error(dy, x, weight, bias, num_groups=count, eps=eps, arithmetic=arithmetic, given=given)


def _channels(x: Array) -> int:
    return x.shape[1] if x.ndim > 1 else 1  # `view.groups` raises ValueError for x without channels
