"""LayerNorm: y = w·x̂ + b with x̂ = (x − μ)/√(var + eps) along each row, its gradients, and their rounding errors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from verify_norm.reference import rounding, statistics_rounding
from verify_norm.reference.arithmetic import Arithmetic
from verify_norm.reference.norm import Norm
from verify_norm.reference.view import Array, Shape, View, rows


class Forward(NamedTuple):
    """The outputs of the forward pass: y as x, mean and rstd one value a row."""

    y: Array
    mean: Array
    rstd: Array


class Backward(NamedTuple):
    """The outputs of the backward pass: dx as x, the others as the parameters, None where those are None."""

    dx: Array
    dweight: Array | None
    dbias: Array | None


def forward(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    *,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
) -> Forward:
    """Normalize every row of x to mean 0 and variance 1, then scale and shift it.

    Along a row of N elements,

        μ = mean x      xc = x − μ      var = mean xc²      r = 1/√(var + eps)      x̂ = r·xc
        y = (w + offset)·x̂ + b

    in two passes, since mean x² − μ² would cancel where |μ| is large. var divides by N, not N − 1.

    Parameters
    ----------
    x
        (…, *normalized_shape).
    weight, bias
        normalized_shape; None stands for a factor of 1, whatever the offset, and for 0.
    eps
        added to the variance, under the root.
    weight_offset
        added to the weight: 1 in the models that store w − 1, as LayerNorm1P of NeMo.
    normalized_shape
        the last dimensions that make one row; by default the last one.

    Returns
    -------
    Forward : y (as x), mean and rstd (M,), M the product of the leading dimensions.

    Raises
    ------
    ValueError : x does not end with `normalized_shape`, or a row is empty.

    Notes
    -----
    Time O(MN), memory O(MN): three arrays as large as x.

    Examples
    --------
    >>> forward(np.array([[1.0, 3.0], [5.0, 5.0]]), None, None, eps=0.5625).y.tolist()
    [[-0.8, 0.8], [0.0, 0.0]]
    >>> forward(np.array([[1.0, 3.0]]), np.ones(2), np.ones(2), eps=0.5625, weight_offset=1.0).y.round(9).tolist()
    [[-0.6, 2.6]]
    """
    return normalize(norm(rows(x, normalized_shape), x, weight, bias, eps, weight_offset))


def backward(
    dy: Array,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    *,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
) -> Backward:
    """Return the gradients of ⟨dy, y⟩ with respect to x, weight and bias.

    With g = (w + offset)·dy, the gradient with respect to x̂, consider a change ẋ of the row. Then

        μ̇ = mean ẋ      ṙ = −r³·mean(xc·(ẋ − μ̇)) = −r²·mean(x̂·ẋ)       as Σxc = 0
        dx̂ = r(ẋ − μ̇) + xc·ṙ = r(ẋ − mean ẋ − x̂·mean(x̂·ẋ))

    so ∂x̂/∂x = r(I − 11ᵀ/N − x̂x̂ᵀ/N), which is symmetric: the gradient is the same map applied to g,

        c1 = mean(g·x̂)      c2 = mean g      dx = r(g − c2 − x̂·c1)

    and r/N·(N·g − Σg − x̂·Σ(g·x̂)), the form often seen, is this one with N taken out of the bracket. Every row has the
    same w and b, so dweight = Σ dy·x̂ and dbias = Σ dy over the rows.

    Parameters
    ----------
    dy
        the gradient with respect to y, as x.
    x, weight, bias, eps, weight_offset, normalized_shape
        as in `forward`; the reference computes the statistics again from x.

    Returns
    -------
    Backward : dx (as x), dweight and dbias (as the parameters).

    Raises
    ------
    ValueError : as in `forward`.

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
    return Backward(*norm(rows(x, normalized_shape), x, weight, bias, eps, weight_offset).gradients(dy))


def forward_error(
    x: Array,
    weight: Array | None,
    bias: Array | None,
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
    >>> row = np.array([0.0, 1.0, 3.0])
    >>> near, far = (forward_error(row + c, None, None, eps=0.0, arithmetic=float32).y.max() for c in (0, 9000))
    >>> bool(near < 1e-5 < 1e-4 < far)  # the mean of large numbers is known less well
    True
    """
    return normalize_error(norm(rows(x, normalized_shape), x, weight, bias, eps, weight_offset), arithmetic)


def backward_error(
    dy: Array,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    *,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
    arithmetic: Arithmetic,
    given: statistics_rounding.Given | None = None,
) -> Backward:
    """Return how far a kernel of this arithmetic may be from `backward`, per element, before the final rounding.

    By default the bound covers statistics that the kernel is given (the truth, rounded to the type they are saved in)
    and statistics that it computes itself. With `given` it is that of a kernel which uses these, each off by what it is
    from the truth. It covers either form of dx. Other parameters, shapes, errors and costs are those of `backward`.

    Returns
    -------
    Backward : the bound on the error of each element, NaN or inf where it cannot be judged.

    Examples
    --------
    >>> float32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38)
    >>> x, dy = np.array([[1.0, 3.0]]), np.array([[1.0, 0.0]])
    >>> bool(backward_error(dy, x, None, None, eps=0.5625, arithmetic=float32).dx.max() < 2e-6)
    True
    >>> x, given = x + 2.0**20, statistics_rounding.Given(np.array([2.0**20 + 2]), np.array([0.8]))  # both exact
    >>> options = {"eps": 0.5625, "arithmetic": float32}
    >>> wide, tight = (backward_error(dy, x, None, None, **options, given=g).dx for g in (None, given))
    >>> bool(tight.max() < 2e-6 < 1e-2 < wide.max())
    True
    """
    n = norm(rows(x, normalized_shape), x, weight, bias, eps, weight_offset)
    return Backward(*rounding.gradients_error(n, dy, arithmetic, given=given))


class Statistics(NamedTuple):
    """The statistics of every row or group, on axes of size 1, and the centred and normalized data."""

    mean: Array
    xc: Array
    var: Array
    rstd: Array
    xhat: Array


def statistics(view: View, x: Array, eps: float) -> Statistics:
    """Return the statistics of x in two passes: the mean, then the variance of the centred data.

    The mean of numbers far from zero is itself rounded, and xc inherits that error as a shift of the row. The mean of
    xc, which should be 0, is that shift, and both are corrected by it. Without the correction y errs by u·|μ|·r, which
    is 10⁶ ulps where the offset is 10⁶ times the scale; `verify-norm certify` detects that.
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
def norm(view: View, x: Array, weight: Array | None, bias: Array | None, eps: float, offset: float = 0.0) -> Norm:
    """Return x normalized by its own statistics, for any view of it: rows, groups or channels.

    x̂ meets weight + offset, or nothing where weight is None.
    """
    s, w = statistics(view, x, eps), view.weight(weight)
    w = None if w is None else w + offset
    return Norm(view, x.reshape(view.shape), *s, weight=w, bias=view.weight(bias), offset=offset != 0.0)


@np.errstate(all="ignore")
def normalize(n: Norm) -> Forward:
    """Return `forward` for any view of the data."""
    return outside(n.view, n.y, n.mean, n.rstd)


@np.errstate(all="ignore")
def normalize_error(n: Norm, a: Arithmetic) -> Forward:
    """Return `forward_error` for any view of the data."""
    e = statistics_rounding.statistics_error(n, a)
    y = rounding.affine_error(n, rounding.xhat_error(n, e, a), a)
    return outside(n.view, y, e.mean, n.rstd * e.rho)


def outside(view: View, y: Array, mean: Array, rstd: Array) -> Forward:
    """Return the outputs, or their errors, in the shapes that the caller expects."""
    return Forward(y.reshape(view.data), mean.reshape(view.statistic), rstd.reshape(view.statistic))
