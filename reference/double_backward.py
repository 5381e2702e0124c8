"""The gradients of each backward pass, by operator in `DOUBLE_BACKWARD`.

One algebra serves all operators. Of a row, or a group, it needs x̂, r and the symmetric map P of `Norm.project`, for
which ∂x̂/∂x = rP. The derivation stands in `cotangents`; nothing is taken from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from verify_norm.reference import layernorm, rmsnorm
from verify_norm.reference.norm import Norm
from verify_norm.reference.view import Array, Shape, groups, rows, shaped


class Second(NamedTuple):
    """Gradients of ⟨ddx, dx⟩ + ⟨ddweight, dweight⟩ + ⟨ddbias, dbias⟩: shaped as dy, x and weight (None if that is)."""

    dy: Array
    x: Array
    weight: Array | None


@np.errstate(all="ignore")
def cotangents(n: Norm, u: Array, v: Array, s: Array, dy: Array) -> tuple[Array, Array, Array]:
    """Return the gradients of L = ⟨u, dx⟩ + ⟨v, dweight⟩ + ⟨s, dbias⟩ with respect to dy, x and the weight.

    All arrays have the shape of the view, or broadcast against it. The backward pass is the adjoint of the directional
    derivative (`jvp.tangent`): with g = w·dy,

        L = ⟨dy, ẏ(u, v, s)⟩ = Σ_rows r⟨g, P(u)⟩ + ⟨v·dy, x̂⟩ + ⟨s, dy⟩

    L is linear in dy, whose gradient is therefore ẏ(u, v, s), and in w, which only g holds:

        ∂L/∂dy = w·rP(u) + v·x̂ + s      ∂L/∂w = Σ_shared dy·rP(u)

    x is in r and x̂. With c1 = mean(g·x̂), k1 = mean(u·x̂) and

        q = mean(g·P(u)) = mean(g·u) − mean g·mean u − c1·k1

    the first term of a row is n·r·q. Let x change by ẋ: ṙ = −r²·mean(x̂·ẋ), and since dx̂ = rP(ẋ) and P is symmetric,

        ċ1 = mean(g·rP(ẋ)) = r·mean(P(g)·ẋ)      k̇1 = r·mean(P(u)·ẋ)      q̇ = −ċ1·k1 − c1·k̇1
        n(ṙq + rq̇) = −r²⟨q·x̂ + k1·P(g) + c1·P(u), ẋ⟩

    The second term ⟨v·dy, x̂⟩ changes by ⟨v·dy, rP(ẋ)⟩ = ⟨rP(v·dy), ẋ⟩, as in `layernorm.backward`. Hence

        ∂L/∂x = rP(v·dy) − r²(q·x̂ + k1·P(g) + c1·P(u))

    No term holds the bias: its gradient is 0.
    """
    g = n.weighted(dy)
    pu = n.project(u)
    pg = n.project(g)
    c1 = n.average(g * n.xhat)
    k1 = n.average(u * n.xhat)
    q = n.average(g * pu)
    by_dy = n.weighted(n.rstd * pu) + v * n.xhat + s
    by_x = n.rstd * (n.project(v * dy) - n.rstd * (q * n.xhat + k1 * pg + c1 * pu))
    by_weight = n.total(dy * (n.rstd * pu))
    return by_dy, by_x, by_weight


def layernorm_double_backward(
    ddx: Array | None,
    ddweight: Array | None,
    ddbias: Array | None,
    dy: Array,
    x: Array,
    weight: Array | None,
    *,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
) -> Second:
    """Return the gradients of ⟨ddx, dx⟩ + ⟨ddweight, dweight⟩ + ⟨ddbias, dbias⟩ with respect to dy, x and weight.

    dx, dweight and dbias are the outputs of `layernorm.backward`.

    Parameters
    ----------
    ddx, ddweight, ddbias
        the gradients with respect to dx, dweight and dbias, shaped as x, weight and bias; None stands for 0.
    dy, x, weight, eps, weight_offset, normalized_shape
        as in `layernorm.backward`.

    Returns
    -------
    Second : the gradients with respect to dy, x and weight; the one with respect to bias is 0.

    Raises
    ------
    ValueError : as in `layernorm.backward`; a cotangent without its parameter, or of another shape.

    Notes
    -----
    Time O(MN), memory O(MN): nine arrays as large as x.

    Examples
    --------
    >>> x, dy, ddx = np.array([[1.0, 3.0]]), np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    >>> by_dy, by_x, by_weight = layernorm_double_backward(ddx, None, None, dy, x, np.ones(2), eps=0.5625)
    >>> by_dy.round(3).tolist(), by_x.round(4).tolist(), by_weight.round(3).tolist()
    ([[-0.144, 0.144]], [[-0.1382, 0.1382]], [-0.144, 0.0])
    """
    n = layernorm.norm(rows(x, normalized_shape), x, weight, None, eps, weight_offset)
    return _second(n, ddx, ddweight, ddbias, dy, x, weight)


def groupnorm_double_backward(
    ddx: Array | None,
    ddweight: Array | None,
    ddbias: Array | None,
    dy: Array,
    x: Array,
    weight: Array | None,
    *,
    num_groups: int,
    eps: float,
) -> Second:
    """Return the gradients of ⟨ddx, dx⟩ + ⟨ddweight, dweight⟩ + ⟨ddbias, dbias⟩ with respect to dy, x and weight.

    dx, dweight and dbias are the outputs of `groupnorm.backward`, and dy, x, weight, num_groups and eps its arguments;
    the rest is as in `layernorm_double_backward`, with means over groups.

    Examples
    --------
    >>> x, dy = np.array([[[1.0, 3.0]]]), np.array([[[1.0, 0.0]]])
    >>> second = groupnorm_double_backward(None, np.ones(1), None, dy, x, np.ones(1), num_groups=1, eps=0.5625)
    >>> second.dy.tolist(), second.x.round(3).tolist(), second.weight.tolist()
    ([[[-0.8, 0.8]]], [[[0.144, -0.144]]], [0.0])
    """
    n = layernorm.norm(groups(x, num_groups), x, weight, None, eps)
    return _second(n, ddx, ddweight, ddbias, dy, x, weight)


def rmsnorm_double_backward(
    ddx: Array | None,
    ddweight: Array | None,
    dy: Array,
    x: Array,
    weight: Array | None,
    *,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
) -> Second:
    """Return the gradients of ⟨ddx, dx⟩ + ⟨ddweight, dweight⟩ with respect to dy, x and weight.

    dx and dweight are the outputs of `rmsnorm.backward`, and dy, x, weight, eps, weight_offset and normalized_shape its
    arguments; the rest is as in `layernorm_double_backward`, with P without its mean.

    Examples
    --------
    >>> x, dy, ddx = np.array([[3.0, 5.0]]), np.array([[1.0, 0.0]]), np.array([[1.0, 0.0]])
    >>> second = rmsnorm_double_backward(ddx, None, dy, x, None, eps=47.0)
    >>> second.dy.round(3).tolist(), second.x.round(4).tolist(), second.weight
    ([[0.116, -0.015]], [[-0.0082, -0.0039]], None)
    """
    n = rmsnorm.norm(rows(x, normalized_shape), x, weight, eps, weight_offset)
    return _second(n, ddx, ddweight, None, dy, x, weight)


DOUBLE_BACKWARD: dict[str, Callable[..., Second]] = {
    "layernorm": layernorm_double_backward,
    "rmsnorm": rmsnorm_double_backward,
    "groupnorm": groupnorm_double_backward,
}


def _second(
    n: Norm, ddx: Array | None, ddweight: Array | None, ddbias: Array | None, dy: Array, x: Array, weight: Array | None
) -> Second:
    """Return `cotangents` in the shapes of dy, x and weight."""
    view = n.view
    u, v = shaped(ddx, x, "ddx", view.shape), shaped(ddweight, weight, "ddweight", view.affine)
    s = shaped(ddbias, ddbias, "ddbias", view.affine)  # the bias is no argument, so its shape is not known
    by_dy, by_x, by_weight = cotangents(n, u, v, s, dy.reshape(view.shape))
    to_x, to_weight, _ = n.outside(by_x, None if weight is None else by_weight, None)
    return Second(by_dy.reshape(view.data), to_x, to_weight)
