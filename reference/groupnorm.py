"""GroupNorm: LayerNorm's algebra over groups of channels, with one weight and bias a channel."""

from __future__ import annotations

from verify_norm.reference import layernorm, rounding, statistics_rounding
from verify_norm.reference.arithmetic import Arithmetic
from verify_norm.reference.layernorm import Backward, Forward
from verify_norm.reference.view import Array, groups

__all__ = ["Backward", "Forward", "backward", "backward_error", "forward", "forward_error"]


def forward(x: Array, weight: Array | None, bias: Array | None, *, num_groups: int, eps: float) -> Forward:
    """Normalize every group of channels of every sample to mean 0 and variance 1, then scale and shift each channel.

    Seen as (B, G, C/G, S), S the product of the spatial dimensions, this is LayerNorm over the last two axes,

        μ = mean x      xc = x − μ      var = mean xc²      r = 1/√(var + eps)      x̂ = r·xc      y = w·x̂ + b

    with means over the n = C/G·S elements of a group. w and b have the shape (1, G, C/G, 1): they vary inside a group,
    and all samples and positions share them.

    Parameters
    ----------
    x
        (B, C, *spatial).
    weight, bias
        (C,); None stands for 1 and 0.
    num_groups
        G, a divisor of C; 1 normalizes whole samples, C single channels (InstanceNorm).
    eps
        added to the variance, under the root.

    Returns
    -------
    Forward : y (as x), mean and rstd (B, G).

    Raises
    ------
    ValueError : C is not a multiple of `num_groups`, x has no channels, or a group is empty.

    Notes
    -----
    Time O(BCS), memory O(BCS): three arrays as large as x.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[[1.0, 3.0], [5.0, 5.0]]])
    >>> forward(x, np.array([5.0, 1.0]), np.array([0.0, 1.0]), num_groups=2, eps=0.5625).y.tolist()
    [[[-4.0, 4.0], [1.0, 1.0]]]
    """
    return layernorm.normalize(layernorm.norm(groups(x, num_groups), x, weight, bias, eps))


def backward(dy: Array, x: Array, weight: Array | None, bias: Array | None, *, num_groups: int, eps: float) -> Backward:
    """Return the gradients of ⟨dy, y⟩ with respect to x, weight and bias.

    The derivation of `layernorm.backward` holds for every group, with means over the group:

        g = w·dy      c1 = mean(g·x̂)      c2 = mean g      dx = r(g − c2 − x̂·c1)

    The weight belongs inside those means, because it differs between the channels of a group. All samples and positions
    share the weight of a channel, so dweight = Σ dy·x̂ and dbias = Σ dy over B and S.

    Parameters
    ----------
    dy
        the gradient with respect to y, as x.
    x, weight, bias, num_groups, eps
        as in `forward`; the reference computes the statistics again from x.

    Returns
    -------
    Backward : dx (as x), dweight and dbias (as the parameters).

    Raises
    ------
    ValueError : as in `forward`.

    Notes
    -----
    Time O(BCS), memory O(BCS): six arrays as large as x.

    Examples
    --------
    >>> import numpy as np
    >>> x, dy = np.array([[[1.0, 3.0]]]), np.array([[[1.0, 0.0]]])
    >>> dx, dweight, dbias = backward(dy, x, np.ones(1), np.zeros(1), num_groups=1, eps=0.5625)
    >>> dx.round(3).tolist(), dweight.tolist(), dbias.tolist()
    ([[[0.144, -0.144]]], [-0.8], [1.0])
    """
    return Backward(*layernorm.norm(groups(x, num_groups), x, weight, bias, eps).gradients(dy))


def forward_error(
    x: Array, weight: Array | None, bias: Array | None, *, num_groups: int, eps: float, arithmetic: Arithmetic
) -> Forward:
    """Return how far a kernel of this arithmetic may be from `forward`, per element, before the final rounding.

    `verify_norm.reference.rounding` explains the stages. Parameters, shapes, errors and costs are those of `forward`.

    Returns
    -------
    Forward : the bound on the error of each element, NaN or inf where it cannot be judged.

    Examples
    --------
    >>> import numpy as np
    >>> float32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38)
    >>> bool(forward_error(np.eye(4), None, None, num_groups=2, eps=1e-5, arithmetic=float32).y.max() < 1e-5)
    True
    """
    return layernorm.normalize_error(layernorm.norm(groups(x, num_groups), x, weight, bias, eps), arithmetic)


def backward_error(
    dy: Array,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    *,
    num_groups: int,
    eps: float,
    arithmetic: Arithmetic,
    given: statistics_rounding.Given | None = None,
) -> Backward:
    """Return how far a kernel of this arithmetic may be from `backward`, per element, before the final rounding.

    The bound covers what `layernorm.backward_error` covers. Parameters, shapes, errors and costs are those of
    `backward`.

    Returns
    -------
    Backward : the bound on the error of each element, NaN or inf where it cannot be judged.

    Examples
    --------
    >>> import numpy as np
    >>> float32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38)
    >>> error = backward_error(np.eye(4), np.eye(4), np.ones(4), None, num_groups=2, eps=1e-5, arithmetic=float32)
    >>> bool(error.dx.max() < 1e-4), error.dweight.shape, error.dbias
    (True, (4,), None)
    """
    n = layernorm.norm(groups(x, num_groups), x, weight, bias, eps)
    return Backward(*rounding.gradients_error(n, dy, arithmetic, given=given))
