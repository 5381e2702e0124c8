"""LayerNorm: y = w·x̂ + b with x̂ = (x − μ)/√(var + eps) along each row, its gradients, and their rounding errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from verify_norm.reference import rounding
from verify_norm.reference.rounding import Arithmetic, XhatError
from verify_norm.reference.view import Array, View, rows


class Forward(NamedTuple):
    """What the forward pass returns: y as x, mean and rstd one value a row."""

    y: Array
    mean: Array
    rstd: Array


class Backward(NamedTuple):
    """What the backward pass returns: dx as x, the others as the parameters, None where those are None."""

    dx: Array
    dweight: Array | None
    dbias: Array | None


def forward(x: Array, weight: Array | None, bias: Array | None, *, eps: float,
            normalized_shape: int | Sequence[int] | None = None) -> Forward:  # fmt: skip
    """Normalize every row of x to mean 0 and variance 1, then scale and shift it.

    Along a row of N elements,

        μ = mean x      xc = x − μ      var = mean xc²      r = 1/√(var + eps)      x̂ = r·xc      y = w·x̂ + b

    in two passes, since mean x² − μ² would cancel where |μ| is large. var divides by N, not N − 1.

    Parameters
    ----------
    x
        (…, *normalized_shape).
    weight, bias
        normalized_shape; None stands for 1 and 0.
    eps
        added to the variance, under the root.
    normalized_shape
        the last dimensions that make one row; by default the last one.

    Returns
    -------
    Forward : y (as x), mean and rstd (M,), M the product of the leading dimensions.

    Raises
    ------
    ValueError : x does not end with `normalized_shape`.

    Notes
    -----
    Time O(MN), memory O(MN): three arrays as large as x.

    Examples
    --------
    >>> forward(np.array([[1.0, 3.0], [5.0, 5.0]]), None, None, eps=0.5625).y.tolist()
    [[-0.8, 0.8], [0.0, 0.0]]
    """
    return normalize(rows(x, normalized_shape), x, weight, bias, eps)[0]


def backward(dy: Array, x: Array, weight: Array | None, bias: Array | None, *, eps: float,
             normalized_shape: int | Sequence[int] | None = None) -> Backward:  # fmt: skip
    """Gradients of ⟨dy, y⟩ with respect to x, weight and bias.

    With g = w·dy, the gradient with respect to x̂, consider a change ẋ of the row. Then

        μ̇ = mean ẋ      ṙ = −r³·mean(xc·(ẋ − μ̇)) = −r²·mean(x̂·ẋ)       as Σxc = 0
        dx̂ = r(ẋ − μ̇) + xc·ṙ = r(ẋ − mean ẋ − x̂·mean(x̂·ẋ))

    so ∂x̂/∂x = r(I − 11ᵀ/N − x̂x̂ᵀ/N), which is symmetric: the gradient is the same map applied to g,

        c1 = mean(g·x̂)      c2 = mean g      dx = r(g − c2 − x̂·c1)

    and r/N·(N·g − Σg − x̂·Σ(g·x̂)), the form often seen, is this one with N taken out of the bracket. x̂ is the same in
    every row's y = w·x̂ + b, so dweight = Σ dy·x̂ and dbias = Σ dy over the rows.

    Parameters
    ----------
    dy
        the gradient with respect to y, as x.
    x, weight, bias, eps, normalized_shape
        as in `forward`; the statistics are computed anew from x.

    Returns
    -------
    Backward : dx (as x), dweight and dbias (as the parameters).

    Raises
    ------
    ValueError : x does not end with `normalized_shape`.

    Notes
    -----
    Time O(MN), memory O(MN): six arrays as large as x.

    Examples
    --------
    >>> x, dy = np.array([[1.0, 3.0]]), np.array([[1.0, 0.0]])
    >>> dx, dweight, dbias = backward(dy, x, np.ones(2), np.zeros(2), eps=0.5625)
    >>> dx.round(3).tolist(), dweight.tolist(), dbias.tolist()
    ([[0.144, -0.144]], [-0.8, 0.0], [1.0, 0.0])
    """
    return differentiate(rows(x, normalized_shape), dy, x, weight, bias, eps)[0]


def forward_error(x: Array, weight: Array | None, bias: Array | None, *, eps: float,
                  normalized_shape: int | Sequence[int] | None = None, arithmetic: Arithmetic) -> Forward:  # fmt: skip
    """How far a kernel of this arithmetic may be from `forward`, per element, before the final rounding.

    `verify_norm.reference.rounding` explains the stages. Parameters, shapes and costs are those of `forward`.

    Returns
    -------
    Forward : the bound on the error of each element, NaN or inf where it cannot be judged.

    Examples
    --------
    >>> float32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38)
    >>> row = np.array([0.0, 1.0, 3.0])
    >>> near, far = (forward_error(row + c, None, None, eps=0.0, arithmetic=float32).y.max() for c in (0, 9000))
    >>> bool(near < 1e-5 < 1e-4 < far)  # the mean of large numbers is known less well
    True
    """
    return forward_with_error(x, weight, bias, eps=eps, normalized_shape=normalized_shape, arithmetic=arithmetic)[1]


def backward_error(dy: Array, x: Array, weight: Array | None, bias: Array | None, *, eps: float,
                   normalized_shape: int | Sequence[int] | None = None,
                   arithmetic: Arithmetic) -> Backward:  # fmt: skip
    """How far a kernel of this arithmetic may be from `backward`, per element, before the final rounding.

    Covers statistics that the kernel is given (the truth, rounded to the type they are saved in) and such as it
    computes itself, and either form of dx. Parameters, shapes and costs are those of `backward`.

    Returns
    -------
    Backward : the bound on the error of each element, NaN or inf where it cannot be judged.

    Examples
    --------
    >>> float32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38)
    >>> x, dy = np.array([[1.0, 3.0]]), np.array([[1.0, 0.0]])
    >>> bool(backward_error(dy, x, None, None, eps=0.5625, arithmetic=float32).dx.max() < 1e-6)
    True
    """
    return backward_with_error(dy, x, weight, bias, eps=eps, normalized_shape=normalized_shape,
                               arithmetic=arithmetic)[1]  # fmt: skip


def forward_with_error(x: Array, weight: Array | None, bias: Array | None, *, eps: float,
                       normalized_shape: int | Sequence[int] | None = None,
                       arithmetic: Arithmetic) -> tuple[Forward, Forward]:  # fmt: skip
    """`forward` and `forward_error`, computing the statistics once.

    >>> float32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38)
    >>> value, error = forward_with_error(np.array([1.0, 3.0]), None, None, eps=0.5625, arithmetic=float32)
    >>> value.y.tolist(), bool((error.y < 1e-6).all())
    ([-0.8, 0.8], True)
    """
    view = rows(x, normalized_shape)
    value, s = normalize(view, x, weight, bias, eps)
    return value, normalize_error(view, x, weight, bias, value, s, arithmetic)


def backward_with_error(dy: Array, x: Array, weight: Array | None, bias: Array | None, *, eps: float,
                        normalized_shape: int | Sequence[int] | None = None,
                        arithmetic: Arithmetic) -> tuple[Backward, Backward]:  # fmt: skip
    """`backward` and `backward_error`, computing the statistics once.

    >>> float32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38)
    >>> x, dy = np.array([[1.0, 3.0]]), np.array([[1.0, 0.0]])
    >>> value, error = backward_with_error(dy, x, None, None, eps=0.5625, arithmetic=float32)
    >>> value.dx.round(3).tolist(), value.dweight, error.dweight, bool((error.dx < 1e-6).all())
    ([[0.144, -0.144]], None, None, True)
    """
    view = rows(x, normalized_shape)
    value, s, p = differentiate(view, dy, x, weight, bias, eps)
    return value, differentiate_error(view, dy, x, weight, value, s, p, arithmetic)


class Statistics(NamedTuple):
    """The statistics of every row or group, kept as axes of size 1, and the normalized data, in the view's shape."""

    mean: Array
    xc: Array
    var: Array
    rstd: Array
    xhat: Array


class Projection(NamedTuple):
    """What dx is made of: g = w·dy, and its means against x̂ and 1, kept as axes of size 1."""

    g: Array
    c1: Array
    c2: Array


def statistics(view: View, x: Array, eps: float) -> Statistics:
    """Two passes: the mean, then the variance of what is centred.

    The mean of numbers far from zero is itself rounded, and xc inherits that as a shift of the row. The mean of xc,
    which should be 0, is that shift, and is taken off both; without it y errs by u·|μ|·r, 10⁶ ulps where the offset is
    10⁶ times the scale, as `verify-norm certify` would show.
    """
    x = x.reshape(view.shape)
    mean = x.mean(view.axes, keepdims=True)
    xc = x - mean
    shift = xc.mean(view.axes, keepdims=True)
    mean, xc = mean + shift, xc - shift
    var = (xc * xc).mean(view.axes, keepdims=True)
    rstd = 1.0 / np.sqrt(var + eps)
    return Statistics(mean, xc, var, rstd, xc * rstd)


@np.errstate(all="ignore")
def normalize(view: View, x: Array, weight: Array | None, bias: Array | None,
              eps: float) -> tuple[Forward, Statistics]:  # fmt: skip
    """`forward` for any view of the data: of rows, or of groups."""
    s, w, b = statistics(view, x, eps), view.weight(weight), view.weight(bias)
    y = s.xhat if w is None else s.xhat * w
    y = y if b is None else y + b
    return Forward(y.reshape(x.shape), s.mean.reshape(view.statistic), s.rstd.reshape(view.statistic)), s


@np.errstate(all="ignore")
def differentiate(view: View, dy: Array, x: Array, weight: Array | None, bias: Array | None,
                  eps: float) -> tuple[Backward, Statistics, Projection]:  # fmt: skip
    """`backward` for any view of the data: of rows, or of groups."""
    s, w, dy = statistics(view, x, eps), view.weight(weight), dy.reshape(view.shape)
    g = dy if w is None else w * dy
    c1 = (g * s.xhat).mean(view.axes, keepdims=True)
    c2 = g.mean(view.axes, keepdims=True)
    dx = s.rstd * (g - c2 - s.xhat * c1)
    dweight = None if weight is None else (dy * s.xhat).sum(view.shared).reshape(weight.shape)
    dbias = None if bias is None else dy.sum(view.shared).reshape(bias.shape)
    return Backward(dx.reshape(x.shape), dweight, dbias), s, Projection(g, c1, c2)


@np.errstate(all="ignore")
def normalize_error(view: View, x: Array, weight: Array | None, bias: Array | None, value: Forward, s: Statistics,
                    a: Arithmetic) -> Forward:  # fmt: skip
    """`forward_error` for any view of the data, given the exact values."""
    dmean, rho = statistics_error(view, x, s, a)
    z = rounding.xhat_error(x.reshape(view.shape), s.mean, dmean, s.xhat, s.rstd, rho, a)
    y = rounding.affine_error(value.y.reshape(view.shape), s.xhat, s.rstd, view.weight(weight), view.weight(bias), z,
                              view, a)  # fmt: skip
    mean, rstd = rounding.saved(s.mean, dmean, a), rounding.saved(s.rstd, s.rstd * rho, a)
    return Forward(y.reshape(x.shape), mean.reshape(view.statistic), rstd.reshape(view.statistic))


@np.errstate(all="ignore")
def differentiate_error(view: View, dy: Array, x: Array, weight: Array | None, value: Backward, s: Statistics,
                        p: Projection, a: Arithmetic, *, lost: Array | float = 0.0) -> Backward:  # fmt: skip
    """`backward_error` for any view of the data, given the exact values; `lost` is what dy is off by, as the view."""
    z, w = saved_error(view, x, s, a), view.weight(weight)
    dx = rounding.projection_error(p.g, p.c1, p.c2, value.dx.reshape(view.shape), s.xhat, s.rstd, weight, z, view, a,
                                   lost=lost if w is None else np.abs(w) * lost)  # fmt: skip
    dweight, dbias = value.dweight, value.dbias
    dy = dy.reshape(view.shape)
    if dweight is not None:
        dweight = rounding.weight_error(dy, s.xhat, z, view, a, lost=lost).reshape(dweight.shape)
    if dbias is not None:
        dbias = rounding.bias_error(dy, view, a, lost=lost).reshape(dbias.shape)
    return Backward(dx.reshape(x.shape), dweight, dbias)


def saved_error(view: View, x: Array, s: Statistics, a: Arithmetic) -> XhatError:
    """The error of x̂' that a backward makes of the mean and rstd which it is given."""
    dmean, rho = statistics_error(view, x, s, a)
    dmean, rho = rounding.saved(s.mean, dmean, a), rounding.saved(s.rstd, s.rstd * rho, a) / s.rstd
    return rounding.xhat_error(x.reshape(view.shape), s.mean, dmean, s.xhat, s.rstd, rho, a)


def statistics_error(view: View, x: Array, s: Statistics, a: Arithmetic) -> tuple[Array, Array]:
    """δμ and the relative error of rstd, as a kernel computes them, before it saves them."""
    dmean, size = rounding.mean_error(x.reshape(view.shape), s.xc, s.mean, view, a)
    low, high = rounding.variance_error(s.var, s.xc, dmean, size, view, a)
    return dmean, rounding.rstd_error(low, high, s.rstd, a)
