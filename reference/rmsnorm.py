"""RMSNorm: y = w·x̂ with x̂ = x/√(mean x² + eps) along each row, its gradients, and their rounding errors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from verify_norm.reference import rounding, statistics_rounding
from verify_norm.reference.arithmetic import Arithmetic
from verify_norm.reference.norm import Norm
from verify_norm.reference.view import Array, Shape, View, rows


class Forward(NamedTuple):
    """The outputs of the forward pass: y as x, rstd one value a row."""

    y: Array
    rstd: Array


class Backward(NamedTuple):
    """The outputs of the backward pass: dx as x, dweight as weight, None where that is None."""

    dx: Array
    dweight: Array | None


def forward(
    x: Array, weight: Array | None, *, eps: float, weight_offset: float = 0.0, normalized_shape: Shape = None
) -> Forward:
    """Divide every row of x by its root mean square, then scale it.

    Along a row of N elements,

        r = 1/√(mean x² + eps)      x̂ = r·x      y = (w + offset)·x̂

    Parameters
    ----------
    x
        (…, *normalized_shape).
    weight
        normalized_shape; None stands for a factor of 1, whatever the offset.
    eps
        added to the mean square, under the root.
    weight_offset
        added to the weight: 1 in the models that store w − 1.
    normalized_shape
        the last dimensions that make one row; by default the last one.

    Returns
    -------
    Forward : y (as x), rstd (M,), M the product of the leading dimensions.

    Raises
    ------
    ValueError : x does not end with `normalized_shape`, or a row is empty.

    Notes
    -----
    Time O(MN), memory O(MN): three arrays as large as x.

    Examples
    --------
    >>> forward(np.array([[3.0, 5.0]]), np.ones(2), eps=47.0, weight_offset=1.0).y.tolist()
    [[0.75, 1.25]]
    """
    return normalize(norm(rows(x, normalized_shape), x, weight, eps, weight_offset))


def backward(
    dy: Array, x: Array, weight: Array | None, *, eps: float, weight_offset: float = 0.0, normalized_shape: Shape = None
) -> Backward:
    """Return the gradients of ⟨dy, y⟩ with respect to x and weight.

    With g = (w + offset)·dy, the gradient with respect to x̂, consider a change ẋ of the row. Then

        ṙ = −r³·mean(x·ẋ) = −r²·mean(x̂·ẋ)      dx̂ = r·ẋ + x·ṙ = r(ẋ − x̂·mean(x̂·ẋ))

    so ∂x̂/∂x = r(I − x̂x̂ᵀ/N), which is symmetric: the gradient is the same map applied to g,

        c1 = mean(g·x̂)      dx = r(g − x̂·c1)

    It is LayerNorm's without the mean. Every row has the same weight, so dweight = Σ dy·x̂ over the rows.

    Parameters
    ----------
    dy
        the gradient with respect to y, as x.
    x, weight, eps, weight_offset, normalized_shape
        as in `forward`; the reference computes rstd again from x.

    Returns
    -------
    Backward : dx (as x), dweight (as weight).

    Raises
    ------
    ValueError : as in `forward`.

    Notes
    -----
    Time O(MN), memory O(MN): five arrays as large as x.

    Examples
    --------
    >>> dx, dweight = backward(np.array([[1.0, 0.0]]), np.array([[3.0, 5.0]]), np.ones(2), eps=47.0)
    >>> dx.round(3).tolist(), dweight.tolist()
    ([[0.116, -0.015]], [0.375, 0.0])
    """
    dx, dweight, _ = norm(rows(x, normalized_shape), x, weight, eps, weight_offset).gradients(dy)
    return Backward(dx, dweight)


def forward_error(
    x: Array,
    weight: Array | None,
    *,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
    arithmetic: Arithmetic,
) -> Forward:
    """Return how far a kernel of this arithmetic may be from `forward`, per element, before the final rounding.

    `verify_norm.reference.rounding` explains the stages. Parameters, shapes, errors and costs are those of `forward`.

    Returns
    -------
    Forward : the bound on the error of each element, NaN or inf where it cannot be judged.

    Examples
    --------
    >>> float32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38)
    >>> error = forward_error(np.array([[3.0, 5.0]]), None, eps=47.0, arithmetic=float32)
    >>> bool((error.y < 1e-6).all())
    True
    """
    return normalize_error(norm(rows(x, normalized_shape), x, weight, eps, weight_offset), arithmetic)


def backward_error(
    dy: Array,
    x: Array,
    weight: Array | None,
    *,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
    arithmetic: Arithmetic,
    given: statistics_rounding.Given | None = None,
) -> Backward:
    """Return how far a kernel of this arithmetic may be from `backward`, per element, before the final rounding.

    By default the bound covers an rstd that the kernel is given (the truth, rounded to the type it is saved in) and one
    that it computes itself, with `given` only the first. Parameters, shapes, errors and costs are those of `backward`.

    Returns
    -------
    Backward : the bound on the error of each element, NaN or inf where it cannot be judged.

    Examples
    --------
    >>> float32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38)
    >>> x, dy = np.array([[3.0, 5.0]]), np.array([[1.0, 0.0]])
    >>> bool(backward_error(dy, x, None, eps=47.0, arithmetic=float32).dx.max() < 1e-6)
    True
    """
    n = norm(rows(x, normalized_shape), x, weight, eps, weight_offset)
    dx, dweight, _ = rounding.gradients_error(n, dy, arithmetic, given=given)
    return Backward(dx, dweight)


class Statistics(NamedTuple):
    """The mean square and its reciprocal root of every row, on axes of size 1, and the normalized data."""

    square: Array
    rstd: Array
    xhat: Array


def statistics(view: View, x: Array, eps: float) -> Statistics:
    """Return the statistics of x in one pass: a mean of squares does not cancel."""
    x = x.reshape(view.shape)
    square = (x * x).mean(view.axes, keepdims=True)
    rstd = 1.0 / np.sqrt(square + eps)
    return Statistics(square, rstd, x * rstd)


@np.errstate(all="ignore")
def norm(view: View, x: Array, weight: Array | None, eps: float, offset: float) -> Norm:
    """Return x divided by its root mean square; x̂ meets weight + offset, or nothing where weight is None."""
    s, w, x = statistics(view, x, eps), view.weight(weight), x.reshape(view.shape)
    w = None if w is None else w + offset
    mean = np.zeros_like(s.rstd)
    return Norm(view, x, mean, x, s.square, s.rstd, s.xhat, weight=w, offset=offset != 0.0, centred=False)


@np.errstate(all="ignore")
def normalize(n: Norm) -> Forward:
    """Return `forward` of a normalized x."""
    return Forward(n.y.reshape(n.view.data), n.rstd.reshape(n.view.statistic))


@np.errstate(all="ignore")
def normalize_error(n: Norm, a: Arithmetic) -> Forward:
    """Return `forward_error` of a normalized x."""
    e = statistics_rounding.statistics_error(n, a)
    y = rounding.affine_error(n, rounding.xhat_error(n, e, a), a)
    return Forward(y.reshape(n.view.data), (n.rstd * e.rho).reshape(n.view.statistic))
