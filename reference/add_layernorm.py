"""LayerNorm of a residual sum: h = x + residual, y = LayerNorm(h); see `residual_sum`."""

from __future__ import annotations

from typing import NamedTuple

from verify_norm.reference import layernorm, residual_sum, rounding, statistics_rounding
from verify_norm.reference.arithmetic import Arithmetic
from verify_norm.reference.layernorm import Backward
from verify_norm.reference.view import Array, Shape, rows


class Forward(NamedTuple):
    """The outputs of add_layernorm's forward pass: y and residual_out as x, mean and rstd one value a row."""

    y: Array
    residual_out: Array
    mean: Array
    rstd: Array


def forward(
    x: Array,
    residual: Array,
    weight: Array | None,
    bias: Array | None,
    *,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
) -> Forward:
    """Return LayerNorm of h = x + residual, and h itself.

    Parameters
    ----------
    x, residual
        (…, *normalized_shape), of one shape.
    weight, bias, eps, weight_offset, normalized_shape
        as in `layernorm.forward`.

    Returns
    -------
    Forward : y and residual_out (as x, neither rounded), mean and rstd (M,).

    Raises
    ------
    ValueError : residual is not of x's shape, x does not end with `normalized_shape`, or a row is empty.

    Examples
    --------
    >>> import numpy as np
    >>> y, h, mean, rstd = forward(np.array([[1.0, 2.0]]), np.array([[0.0, 1.0]]), None, None, eps=0.5625)
    >>> y.tolist(), h.tolist(), mean.tolist(), rstd.tolist()
    ([[-0.8, 0.8]], [[1.0, 3.0]], [2.0], [0.8])
    """
    h = residual_sum.added(x, residual, "residual")
    value = layernorm.forward(h, weight, bias, eps=eps, weight_offset=weight_offset, normalized_shape=normalized_shape)
    return Forward(value.y, h, value.mean, value.rstd)


def backward(
    dy: Array,
    dresidual_out: Array | None,
    residual_out: Array,
    weight: Array | None,
    bias: Array | None,
    *,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
) -> Backward:
    """Return the gradients of ⟨dy, y⟩ + ⟨dresidual_out, residual_out⟩ with respect to x, residual, weight and bias.

    Parameters
    ----------
    dy, dresidual_out
        the gradients with respect to both outputs, as x; dresidual_out is None where residual_out has no gradient.
    residual_out
        what the forward pass returned; the norm is differentiated there.
    weight, bias, eps, weight_offset, normalized_shape
        as in `layernorm.backward`.

    Returns
    -------
    Backward : dx (as x; dresidual is the same), dweight and dbias (as the parameters).

    Raises
    ------
    ValueError : dresidual_out is not of residual_out's shape, that does not end with `normalized_shape`, or a row is
        empty.

    Examples
    --------
    >>> import numpy as np
    >>> h, dy = np.array([[1.0, 3.0]]), np.array([[1.0, 0.0]])
    >>> backward(dy, np.ones((1, 2)), h, None, None, eps=0.5625).dx.round(3).tolist()
    [[1.144, 0.856]]
    """
    options = {"eps": eps, "weight_offset": weight_offset}
    value = layernorm.backward(dy, residual_out, weight, bias, **options, normalized_shape=normalized_shape)
    return value._replace(dx=residual_sum.joined(value.dx, dresidual_out))


def forward_error(
    x: Array,
    residual: Array,
    weight: Array | None,
    bias: Array | None,
    *,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
    arithmetic: Arithmetic,
    rounded: residual_sum.Rounding | None = None,
) -> Forward:
    """Return how far a kernel may be from `forward`, per element, before the final rounding.

    `rounded` is the function that, by contract, rounds h to x's type before the statistics. None means that h is only
    rounded to the accumulation type. The other parameters are those of `forward`.

    Returns
    -------
    Forward : the bound on the error of each element, NaN or inf where it cannot be judged.

    Examples
    --------
    >>> import numpy as np
    >>> float32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38)
    >>> x, residual = np.array([[1.0, 3.0]]), np.array([[0.0, 2**-9]])
    >>> def error(**contract):
    ...     return forward_error(x, residual, None, None, eps=0.1, arithmetic=float32, **contract)
    >>> bool(error().rstd < 1e-6 < 1e-4 < error(rounded=lambda h: h.round(2)).rstd)
    True
    """
    h = residual_sum.added(x, residual, "residual")
    view = rows(h, normalized_shape)
    exact = layernorm.norm(view, h, weight, bias, eps, weight_offset)
    kept = layernorm.norm(view, residual_sum.kept(h, arithmetic, rounded), weight, bias, eps, weight_offset)
    error = layernorm.normalize_error(kept, residual_sum.flushing(arithmetic))
    y, mean, rstd = residual_sum.apart(layernorm.normalize(exact), layernorm.normalize(kept), error)
    return Forward(y, residual_sum.sum_error(x, residual, arithmetic), mean, rstd)


def backward_error(
    dy: Array,
    dresidual_out: Array | None,
    residual_out: Array,
    weight: Array | None,
    bias: Array | None,
    *,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
    arithmetic: Arithmetic,
    given: statistics_rounding.Given | None = None,
) -> Backward:
    """Return how far a kernel may be from `backward`, per element, before the final rounding.

    Saved statistics may be those of residual_out, given or computed; see `layernorm.backward_error`.

    >>> import numpy as np
    >>> float32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38)
    >>> h, dy = np.array([[1.0, 3.0]]), np.array([[1.0, 0.0]])
    >>> def error(d):
    ...     return backward_error(dy, d, h, None, None, eps=0.1, arithmetic=float32).dx.max()
    >>> bool(error(None) < error(0 * h) < 1e-5 < 1e-4 < error(1000 * h))
    True
    """
    n = layernorm.norm(rows(residual_out, normalized_shape), residual_out, weight, bias, eps, weight_offset)
    error = Backward(*rounding.gradients_error(n, dy, arithmetic, given=given))
    return error._replace(dx=residual_sum.joined_error(n, dy, error.dx, dresidual_out, arithmetic))
