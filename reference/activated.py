"""GroupNorm and an activation after it: SiLU, as in diffusion models, and GELU."""

from __future__ import annotations

import numpy as np

from verify_norm.reference import layernorm, rounding
from verify_norm.reference.activation import GELU, SILU, Activation, pulled, pushed
from verify_norm.reference.arithmetic import Arithmetic, finite_below
from verify_norm.reference.layernorm import Backward, Forward
from verify_norm.reference.norm import Norm
from verify_norm.reference.view import Array, groups


def silu_forward(x: Array, weight: Array | None, bias: Array | None, *, num_groups: int, eps: float) -> Forward:
    """Return SiLU of GroupNorm: z = w·x̂ + b as in `groupnorm.forward`, y = z·σ(z) with σ = 1/(1 + e^−z).

    Parameters, shapes, errors and costs are those of `groupnorm.forward`.

    Examples
    --------
    >>> x = np.array([[[1.0, 3.0]]])
    >>> silu_forward(x, None, None, num_groups=1, eps=0.5625).y.round(4).tolist()  # of −0.8 and 0.8
    [[[-0.248, 0.552]]]
    """
    return _forward(SILU, _norm(x, weight, bias, num_groups, eps))


def gelu_forward(x: Array, weight: Array | None, bias: Array | None, *, num_groups: int, eps: float) -> Forward:
    """Return GELU of GroupNorm: z = w·x̂ + b as in `groupnorm.forward`, y = z·Φ(z), Φ = (1 + erf(z/√2))/2.

    This is torch's GELU, not the approximation by tanh. Parameters, shapes, errors and costs are those of
    `groupnorm.forward`.

    Examples
    --------
    >>> x = np.array([[[1.0, 3.0]]])
    >>> gelu_forward(x, None, None, num_groups=1, eps=0.5625).y.round(4).tolist()  # of −0.8 and 0.8
    [[[-0.1695, 0.6305]]]
    """
    return _forward(GELU, _norm(x, weight, bias, num_groups, eps))


def silu_backward(
    dy: Array, x: Array, weight: Array | None, bias: Array | None, *, num_groups: int, eps: float
) -> Backward:
    """Return the gradients of ⟨dy, y⟩ for y = z·σ(z), z = w·x̂ + b.

    σ̇ = e^−z/(1 + e^−z)²·ż = σ(1 − σ)·ż, hence

        dz = dy·σ(1 + z(1 − σ))

    The rest is `groupnorm.backward` with dz in place of dy: g = w·dz, dweight = Σ dz·x̂ and dbias = Σ dz. Through z, the
    gradients depend on the bias too. Parameters, shapes, errors and costs are those of `groupnorm.backward`.

    Examples
    --------
    >>> x, dy = np.array([[[1.0, 3.0]]]), np.array([[[1.0, 1.0]]])
    >>> dx, dweight, dbias = silu_backward(dy, x, np.ones(1), np.zeros(1), num_groups=1, eps=0.5625)
    >>> dx.round(4).tolist(), dweight.round(4).tolist(), dbias.round(4).tolist()
    ([[[-0.104, 0.104]]], [0.5778], [1.0])
    """
    return _backward(SILU, dy, _norm(x, weight, bias, num_groups, eps))


def gelu_backward(
    dy: Array, x: Array, weight: Array | None, bias: Array | None, *, num_groups: int, eps: float
) -> Backward:
    """Return the gradients of ⟨dy, y⟩ for y = z·Φ(z), z = w·x̂ + b.

    Φ̇ = φ(z)·ż with φ the normal density, hence

        dz = dy·(Φ(z) + z·φ(z))

    The rest is `groupnorm.backward` with dz in place of dy, as in `silu_backward`.

    Examples
    --------
    >>> x, dy = np.array([[[1.0, 3.0]]]), np.array([[[1.0, 1.0]]])
    >>> dx, dweight, dbias = gelu_backward(dy, x, np.ones(1), np.zeros(1), num_groups=1, eps=0.5625)
    >>> dx.round(4).tolist(), dweight.round(4).tolist(), dbias.round(4).tolist()
    ([[[-0.1497, 0.1497]]], [0.8318], [1.0])
    """
    return _backward(GELU, dy, _norm(x, weight, bias, num_groups, eps))


def silu_forward_error(
    x: Array, weight: Array | None, bias: Array | None, *, num_groups: int, eps: float, arithmetic: Arithmetic
) -> Forward:
    """Return how far a kernel of this arithmetic may be from `silu_forward`, per element, before the final rounding."""
    return _forward_error(SILU, _norm(x, weight, bias, num_groups, eps), arithmetic)


def gelu_forward_error(
    x: Array, weight: Array | None, bias: Array | None, *, num_groups: int, eps: float, arithmetic: Arithmetic
) -> Forward:
    """Return how far a kernel of this arithmetic may be from `gelu_forward`, per element, before the final rounding."""
    return _forward_error(GELU, _norm(x, weight, bias, num_groups, eps), arithmetic)


def silu_backward_error(
    dy: Array,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    *,
    num_groups: int,
    eps: float,
    arithmetic: Arithmetic,
    given: rounding.Given | None = None,
) -> Backward:
    """Return how far a kernel of this arithmetic may be from `silu_backward`, per element, before the last rounding."""
    return _backward_error(SILU, dy, _norm(x, weight, bias, num_groups, eps), arithmetic, given)


def gelu_backward_error(
    dy: Array,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    *,
    num_groups: int,
    eps: float,
    arithmetic: Arithmetic,
    given: rounding.Given | None = None,
) -> Backward:
    """Return how far a kernel of this arithmetic may be from `gelu_backward`, per element, before the last rounding."""
    return _backward_error(GELU, dy, _norm(x, weight, bias, num_groups, eps), arithmetic, given)


def _norm(x: Array, weight: Array | None, bias: Array | None, num_groups: int, eps: float) -> Norm:
    return layernorm.norm(groups(x, num_groups), x, weight, bias, eps)


@np.errstate(all="ignore")
def _forward(act: Activation, n: Norm) -> Forward:
    z = layernorm.normalize(n)
    return z._replace(y=act.value(z.y))


@np.errstate(all="ignore")
def _backward(act: Activation, dy: Array, n: Norm) -> Backward:
    dz = dy.reshape(n.view.shape) * act.slope(n.y)
    return Backward(*n.gradients(dz))


@np.errstate(all="ignore")
def _forward_error(act: Activation, n: Norm, a: Arithmetic) -> Forward:
    z, dz = layernorm.normalize(n).y, layernorm.normalize_error(n, a)
    return dz._replace(y=finite_below(pushed(act, z, dz.y, a), np.abs(z) + dz.y, a.huge))


@np.errstate(all="ignore")
def _backward_error(act: Activation, dy: Array, n: Norm, a: Arithmetic, given: rounding.Given | None) -> Backward:
    """Return the errors of a kernel that computes z again, from the statistics that it uses."""
    off = rounding.affine_error(n, rounding.xhat_error(n, rounding.saved_error(n, a, given), a), a)
    dz, lost = pulled(act, dy.reshape(n.view.shape), n.y, off, a)
    return Backward(*rounding.gradients_error(n, dz, a, lost=lost, given=given))
