"""RMSNorm of a residual sum: h = x + residual, y = RMSNorm(h); see `residual_sum`."""

from __future__ import annotations

from typing import NamedTuple

from verify_norm.reference import residual_sum, rmsnorm, rounding, statistics_rounding
from verify_norm.reference.arithmetic import Arithmetic
from verify_norm.reference.rmsnorm import Backward
from verify_norm.reference.view import Array, Shape, rows


class Forward(NamedTuple):
    """The outputs of add_rmsnorm's forward pass: y and residual_out as x, rstd one value a row."""

    y: Array
    residual_out: Array
    rstd: Array


def forward(
    x: Array,
    residual: Array,
    weight: Array | None,
    *,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
) -> Forward:
    """Return RMSNorm of h = x + residual, and h itself; arguments and errors as in `add_layernorm.forward`.

    >>> import numpy as np
    >>> y, h, rstd = forward(np.array([[1.0, 2.0]]), np.array([[2.0, 3.0]]), None, eps=47.0)
    >>> y.tolist(), h.tolist(), rstd.tolist()
    ([[0.375, 0.625]], [[3.0, 5.0]], [0.125])
    """
    h = residual_sum.added(x, residual, "residual")
    value = rmsnorm.forward(h, weight, eps=eps, weight_offset=weight_offset, normalized_shape=normalized_shape)
    return Forward(value.y, h, value.rstd)


def backward(
    dy: Array,
    dresidual_out: Array | None,
    residual_out: Array,
    weight: Array | None,
    *,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
) -> Backward:
    """Return the gradients with respect to x (and residual) and weight; arguments as in `add_layernorm.backward`.

    >>> import numpy as np
    >>> h, dy = np.array([[3.0, 5.0]]), np.array([[1.0, 0.0]])
    >>> backward(dy, np.ones((1, 2)), h, None, eps=47.0).dx.round(3).tolist()
    [[1.116, 0.985]]
    """
    value = rmsnorm.backward(
        dy, residual_out, weight, eps=eps, weight_offset=weight_offset, normalized_shape=normalized_shape
    )
    return value._replace(dx=residual_sum.joined(value.dx, dresidual_out))


def forward_error(
    x: Array,
    residual: Array,
    weight: Array | None,
    *,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
    arithmetic: Arithmetic,
    rounded: residual_sum.Rounding | None = None,
) -> Forward:
    """Return how far a kernel may be from `forward`, as in `add_layernorm.forward_error`.

    >>> import numpy as np
    >>> float32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38)
    >>> x, residual = np.array([[1.0, 2.0]]), np.array([[2.0, 3.0]])
    >>> bool(forward_error(x, residual, None, eps=47.0, arithmetic=float32).y.max() < 1e-6)
    True
    """
    h = residual_sum.added(x, residual, "residual")
    view = rows(h, normalized_shape)
    exact = rmsnorm.norm(view, h, weight, eps, weight_offset)
    kept = rmsnorm.norm(view, residual_sum.kept(h, arithmetic, rounded), weight, eps, weight_offset)
    error = rmsnorm.normalize_error(kept, residual_sum.flushing(arithmetic))
    y, rstd = residual_sum.apart(rmsnorm.normalize(exact), rmsnorm.normalize(kept), error)
    return Forward(y, residual_sum.sum_error(x, residual, arithmetic), rstd)


def backward_error(
    dy: Array,
    dresidual_out: Array | None,
    residual_out: Array,
    weight: Array | None,
    *,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
    arithmetic: Arithmetic,
    given: statistics_rounding.Given | None = None,
) -> Backward:
    """Return how far a kernel may be from `backward`, as in `add_layernorm.backward_error`.

    >>> import numpy as np
    >>> float32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38)
    >>> h, dy = np.array([[3.0, 5.0]]), np.array([[1.0, 0.0]])
    >>> bool(backward_error(dy, h, h, None, eps=47.0, arithmetic=float32).dx.max() < 2e-6)
    True
    """
    n = rmsnorm.norm(rows(residual_out, normalized_shape), residual_out, weight, eps, weight_offset)
    dx, dweight, _ = rounding.gradients_error(n, dy, arithmetic, given=given)
    return Backward(residual_sum.joined_error(n, dy, dx, dresidual_out, arithmetic), dweight)
