"""The directional derivative (jvp) of each forward pass, by operator in `JVP`.

One algebra serves all operators. Of a row, or a group, it needs x̂, r and the symmetric map P of `Norm.project`, for
which ∂x̂/∂x = rP. The derivation stands in `tangent`; nothing is taken from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from verify_norm.reference import layernorm, rmsnorm
from verify_norm.reference.norm import Norm
from verify_norm.reference.view import Array, Shape, groups, rows, shaped


@np.errstate(all="ignore")
def tangent(n: Norm, tx: Array, tweight: Array, tbias: Array) -> tuple[Array, Array, Array]:
    """Return (ẏ, μ̇, ṙ) for the changes ẋ, ẇ, ḃ, all in the shape of the view.

    With w what x̂ is multiplied by, μ = mean x, and Σxc = 0 in var = mean xc²,

        μ̇ = mean ẋ      ṙ = −½r³·2·mean(xc·(ẋ − μ̇)) = −r²·mean(x̂·ẋ)
        dx̂ = r(ẋ − μ̇) + xc·ṙ = rP(ẋ)
        ẏ = w·dx̂ + ẇ·x̂ + ḃ

    RMSNorm has xc = x and no μ; the same lines hold with its P.
    """
    mean = n.average(tx)
    rstd = -n.rstd * n.rstd * n.average(n.xhat * tx)
    y = n.weighted(n.rstd * n.project(tx)) + tweight * n.xhat + tbias
    return y, mean, rstd


def layernorm_jvp(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    tx: Array | None,
    tweight: Array | None,
    tbias: Array | None,
    *,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
) -> layernorm.Forward:
    """Return the directional derivative of `layernorm.forward` at (x, weight, bias) along (tx, tweight, tbias).

    Parameters
    ----------
    x, weight, bias, eps, weight_offset, normalized_shape
        as in `layernorm.forward`.
    tx, tweight, tbias
        the changes ẋ, ẇ, ḃ of x, weight and bias, shaped as these; None stands for 0. w is weight + offset.

    Returns
    -------
    layernorm.Forward : the changes of y, mean and rstd.

    Raises
    ------
    ValueError : as in `layernorm.forward`; a change without its parameter, or of another shape.

    Notes
    -----
    Time O(MN), memory O(MN): six arrays as large as x.

    Examples
    --------
    >>> x, tx = np.array([[1.0, 3.0]]), np.array([[0.0, 1.0]])
    >>> y, mean, rstd = layernorm_jvp(x, None, None, tx, None, None, eps=0.5625)
    >>> y.round(3).tolist(), mean.tolist(), rstd.round(3).tolist()
    ([[-0.144, 0.144]], [0.5], [-0.256])
    """
    view = rows(x, normalized_shape)
    v, s = shaped(tweight, weight, "tweight", view.affine), shaped(tbias, bias, "tbias", view.affine)
    n = layernorm.norm(view, x, weight, bias, eps, weight_offset)
    return layernorm.outside(view, *tangent(n, shaped(tx, x, "tx", view.shape), v, s))


def groupnorm_jvp(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    tx: Array | None,
    tweight: Array | None,
    tbias: Array | None,
    *,
    num_groups: int,
    eps: float,
) -> layernorm.Forward:
    """Return the directional derivative of `groupnorm.forward` at (x, weight, bias) along (tx, tweight, tbias).

    x, weight, bias, num_groups and eps are those of `groupnorm.forward`; the rest is as in `layernorm_jvp`, with means
    over groups.

    Examples
    --------
    >>> x, tx = np.array([[[1.0, 3.0]]]), np.array([[[0.0, 1.0]]])
    >>> groupnorm_jvp(x, np.full(1, 2.0), None, tx, None, None, num_groups=1, eps=0.5625).y.round(3).tolist()
    [[[-0.288, 0.288]]]
    """
    view = groups(x, num_groups)
    v, s = shaped(tweight, weight, "tweight", view.affine), shaped(tbias, bias, "tbias", view.affine)
    n = layernorm.norm(view, x, weight, bias, eps)
    return layernorm.outside(view, *tangent(n, shaped(tx, x, "tx", view.shape), v, s))


def rmsnorm_jvp(
    x: Array,
    weight: Array | None,
    tx: Array | None,
    tweight: Array | None,
    *,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
) -> rmsnorm.Forward:
    """Return the directional derivative of `rmsnorm.forward` at (x, weight) along (tx, tweight).

    x, weight, eps, weight_offset and normalized_shape are those of `rmsnorm.forward`; the rest is as in
    `layernorm_jvp`, with P without its mean.

    Returns
    -------
    rmsnorm.Forward : the changes of y and rstd.

    Examples
    --------
    >>> y, rstd = rmsnorm_jvp(np.array([[3.0, 5.0]]), None, np.array([[1.0, 0.0]]), None, eps=47.0)
    >>> y.round(3).tolist(), rstd.round(4).tolist()
    ([[0.116, -0.015]], [-0.0029])
    """
    view = rows(x, normalized_shape)
    v, s = shaped(tweight, weight, "tweight", view.affine), np.zeros(view.affine)
    n = rmsnorm.norm(view, x, weight, eps, weight_offset)
    y, _, rstd = tangent(n, shaped(tx, x, "tx", view.shape), v, s)
    return rmsnorm.Forward(y.reshape(view.data), rstd.reshape(view.statistic))


JVP: dict[str, Callable[..., Any]] = {"layernorm": layernorm_jvp, "rmsnorm": rmsnorm_jvp, "groupnorm": groupnorm_jvp}
