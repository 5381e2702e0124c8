"""Normalization by statistics that x does not change: BatchNorm's evaluation.

y is linear in x:

    r = 1/√(running_var + eps)   x̂ = r(x − running_mean)   y = w·x̂ + b   dx = w·r·dy   dweight = Σ dy·x̂   dbias = Σ dy

**Errors.** The mean is exact and r is off by ρ = γ(7) alone: δx̂ = ρ|x̂| + e·m as in `rounding`, with no
shift. dx is a product of three, or of two without a weight:

    δdx = |dx|·((1 + ρ)(1 + γ(1))² − 1)

The numbers in x − mean are independent of each other, so the difference may overflow where y does not. Such x̂ is not
judged.

Kernels (torch, cuDNN) also compute dweight = r·D with D = Σ dy·(x − μ). Where a product underflows, D loses n·tiny, and
where Σ|dy||x − μ| exceeds the largest number, dweight is not judged.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from verify_norm.reference import rounding, statistics_rounding
from verify_norm.reference.arithmetic import Arithmetic, compound, finite_below
from verify_norm.reference.layernorm import Backward, Forward, outside
from verify_norm.reference.norm import Norm
from verify_norm.reference.rounding import XhatError
from verify_norm.reference.statistics_rounding import StatisticsError
from verify_norm.reference.view import Array, View


@np.errstate(all="ignore")
def norm(
    view: View,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    eps: float,
) -> Norm:
    """Return x normalized by the running statistics; raise ValueError where one of them is None."""
    mean, var = view.weight(running_mean), view.weight(running_var)
    if mean is None or var is None:
        raise ValueError("running_mean, running_var: evaluation needs both, got None")
    x = x.reshape(view.shape)
    xc, rstd = x - mean, 1.0 / np.sqrt(var + eps)
    return Norm(view, x, mean, xc, var, rstd, xc * rstd, view.weight(weight), view.weight(bias))


@np.errstate(all="ignore")
def gradients(n: Norm, dy: Array) -> Backward:
    """Return the gradients with respect to x, weight and bias."""
    dy = dy.reshape(n.view.shape)
    dx = n.rstd * n.weighted(dy)
    dweight = None if n.weight is None else n.total(dy * n.xhat)
    return Backward(*n.outside(dx, dweight, None if n.bias is None else n.total(dy)))


def xhat_error(n: Norm, a: Arithmetic) -> XhatError:
    """Return the error of x̂' of fixed statistics; inf where x − μ may overflow, or x̂ itself, which has no bound √N."""
    low = high = np.asarray(a.tiny)
    exact_mean = StatisticsError(np.zeros_like(n.mean), low, high, statistics_rounding.rstd_error(low, high, n.rstd, a))
    z = rounding.xhat_error(n, exact_mean, a)
    return replace(z, floor=finite_below(z.floor, np.maximum(np.abs(n.xc), z.magnitude), a.huge))


def normalize_error(n: Norm, a: Arithmetic) -> Forward:
    """Return the errors of y, mean and rstd."""
    z = xhat_error(n, a)
    y = rounding.affine_error(n, z, a) + a.tiny * np.abs(n.xc)
    return outside(n.view, y, np.zeros_like(n.mean), n.rstd * z.factor)


def gradients_error(n: Norm, dy: Array, a: Arithmetic) -> Backward:
    """Return the errors of `gradients`."""
    z, dy = xhat_error(n, a), dy.reshape(n.view.shape)
    size, weight_size = np.abs(n.rstd * n.weighted(dy)), None if n.weight is None else np.abs(n.weight)
    underflow = a.tiny * (2 + (1 + z.factor) * n.rstd + np.abs(dy) + (0.0 if weight_size is None else weight_size))
    largest = size + n.rstd * (1.0 if weight_size is None else weight_size)
    products = compound(rounding.weight_roundings(n, a), a.gamma(1), a.xhat_u)
    relative = (1.0 + z.factor) * (1.0 + products) - 1.0
    dx = finite_below(size * relative + underflow, largest, a.huge)
    dweight = None if n.weight is None else rounding.weight_error(n, dy, z, a)
    dweight = factored_error(n, dweight, n.rstd * (1.0 + z.factor), largest_sum(n, dy), a)
    return Backward(*n.outside(dx, dweight, None if n.bias is None else rounding.bias_error(n, dy, a)))


def factored_error(n: Norm, delta: Array | None, r: Array, largest: Array, a: Arithmetic) -> Array | None:
    """Return δdweight of dweight = r·D, from that of Σ dy·x̂; D may reach `largest` on the way."""
    if delta is None:
        return None
    r, largest = r.reshape(delta.shape), largest.reshape(delta.shape)
    return finite_below(delta + n.view.count * a.tiny * r, largest, a.huge)


def largest_sum(n: Norm, dy: Array) -> Array:
    """Return Σ|dy||x − μ| of every channel."""
    return n.total(np.abs(dy.reshape(n.view.shape)) * np.abs(n.xc))
