"""GroupNorm and an activation after it: SiLU, as in diffusion models, and GELU."""

from __future__ import annotations

import numpy as np

from verify_norm.reference import layernorm, rounding
from verify_norm.reference.activation import GELU, SILU, Activation, pulled, pushed
from verify_norm.reference.layernorm import Backward, Forward
from verify_norm.reference.rounding import Arithmetic
from verify_norm.reference.view import Array, groups


def silu_forward(x: Array, weight: Array | None, bias: Array | None, *, num_groups: int, eps: float) -> Forward:
    """SiLU of GroupNorm: z = w·x̂ + b as `groupnorm.forward` has it, y = z·σ(z) with σ = 1/(1 + e^−z).

    Parameters, shapes, errors and costs are those of `groupnorm.forward`.

    Examples
    --------
    >>> x = np.array([[[1.0, 3.0]]])
    >>> silu_forward(x, None, None, num_groups=1, eps=0.5625).y.round(4).tolist()  # of −0.8 and 0.8
    [[[-0.248, 0.552]]]
    """
    return _forward(SILU, x, weight, bias, num_groups, eps)


def gelu_forward(x: Array, weight: Array | None, bias: Array | None, *, num_groups: int, eps: float) -> Forward:
    """GELU of GroupNorm: z = w·x̂ + b as `groupnorm.forward` has it, y = z·Φ(z), Φ = (1 + erf(z/√2))/2.

    This is torch's GELU, not the approximation by tanh. Parameters, shapes, errors and costs are those of
    `groupnorm.forward`.

    Examples
    --------
    >>> x = np.array([[[1.0, 3.0]]])
    >>> gelu_forward(x, None, None, num_groups=1, eps=0.5625).y.round(4).tolist()  # of −0.8 and 0.8
    [[[-0.1695, 0.6305]]]
    """
    return _forward(GELU, x, weight, bias, num_groups, eps)


def silu_backward(dy: Array, x: Array, weight: Array | None, bias: Array | None, *, num_groups: int,
                  eps: float) -> Backward:  # fmt: skip
    """Gradients of ⟨dy, y⟩ for y = z·σ(z), z = w·x̂ + b.

    σ̇ = e^−z/(1 + e^−z)²·ż = σ(1 − σ)·ż, hence

        dz = dy·σ(1 + z(1 − σ))

    and from there on everything is `groupnorm.backward` with dz in place of dy: g = w·dz, and dweight = Σ dz·x̂ and
    dbias = Σ dz. Through z, the gradients depend on the bias too. Parameters, shapes, errors and costs are those of
    `groupnorm.backward`.

    Examples
    --------
    >>> x, dy = np.array([[[1.0, 3.0]]]), np.array([[[1.0, 1.0]]])
    >>> dx, dweight, dbias = silu_backward(dy, x, np.ones(1), np.zeros(1), num_groups=1, eps=0.5625)
    >>> dx.round(4).tolist(), dweight.round(4).tolist(), dbias.round(4).tolist()
    ([[[-0.104, 0.104]]], [0.5778], [1.0])
    """
    return _backward(SILU, dy, x, weight, bias, num_groups, eps)


def gelu_backward(dy: Array, x: Array, weight: Array | None, bias: Array | None, *, num_groups: int,
                  eps: float) -> Backward:  # fmt: skip
    """Gradients of ⟨dy, y⟩ for y = z·Φ(z), z = w·x̂ + b.

    Φ̇ = φ(z)·ż with φ the normal density, hence

        dz = dy·(Φ(z) + z·φ(z))

    and from there on everything is `groupnorm.backward` with dz in place of dy, as in `silu_backward`.

    Examples
    --------
    >>> x, dy = np.array([[[1.0, 3.0]]]), np.array([[[1.0, 1.0]]])
    >>> dx, dweight, dbias = gelu_backward(dy, x, np.ones(1), np.zeros(1), num_groups=1, eps=0.5625)
    >>> dx.round(4).tolist(), dweight.round(4).tolist(), dbias.round(4).tolist()
    ([[[-0.1497, 0.1497]]], [0.8318], [1.0])
    """
    return _backward(GELU, dy, x, weight, bias, num_groups, eps)


def silu_forward_error(x: Array, weight: Array | None, bias: Array | None, *, num_groups: int, eps: float,
                       arithmetic: Arithmetic) -> Forward:  # fmt: skip
    """How far a kernel of this arithmetic may be from `silu_forward`, per element, before the final rounding."""
    return _forward_error(SILU, x, weight, bias, num_groups, eps, arithmetic)


def gelu_forward_error(x: Array, weight: Array | None, bias: Array | None, *, num_groups: int, eps: float,
                       arithmetic: Arithmetic) -> Forward:  # fmt: skip
    """How far a kernel of this arithmetic may be from `gelu_forward`, per element, before the final rounding."""
    return _forward_error(GELU, x, weight, bias, num_groups, eps, arithmetic)


def silu_backward_error(dy: Array, x: Array, weight: Array | None, bias: Array | None, *, num_groups: int, eps: float,
                        arithmetic: Arithmetic) -> Backward:  # fmt: skip
    """How far a kernel of this arithmetic may be from `silu_backward`, per element, before the final rounding."""
    return _backward_error(SILU, dy, x, weight, bias, num_groups, eps, arithmetic)


def gelu_backward_error(dy: Array, x: Array, weight: Array | None, bias: Array | None, *, num_groups: int, eps: float,
                        arithmetic: Arithmetic) -> Backward:  # fmt: skip
    """How far a kernel of this arithmetic may be from `gelu_backward`, per element, before the final rounding."""
    return _backward_error(GELU, dy, x, weight, bias, num_groups, eps, arithmetic)


@np.errstate(all="ignore")
def _forward(act: Activation, x: Array, weight: Array | None, bias: Array | None, num_groups: int,
             eps: float) -> Forward:  # fmt: skip
    value, _ = layernorm.normalize(groups(x, num_groups), x, weight, bias, eps)
    return value._replace(y=act.value(value.y))


@np.errstate(all="ignore")
def _backward(act: Activation, dy: Array, x: Array, weight: Array | None, bias: Array | None, num_groups: int,
              eps: float) -> Backward:  # fmt: skip
    view = groups(x, num_groups)
    z = layernorm.normalize(view, x, weight, bias, eps)[0].y
    return layernorm.differentiate(view, dy * act.slope(z), x, weight, bias, eps)[0]


@np.errstate(all="ignore")
def _forward_error(act: Activation, x: Array, weight: Array | None, bias: Array | None, num_groups: int, eps: float,
                   a: Arithmetic) -> Forward:  # fmt: skip
    view = groups(x, num_groups)
    value, s = layernorm.normalize(view, x, weight, bias, eps)
    error = layernorm.normalize_error(view, x, weight, bias, value, s, a)
    return error._replace(y=rounding.finite_below(pushed(act, value.y, error.y, a), np.abs(value.y) + error.y, a.huge))


@np.errstate(all="ignore")
def _backward_error(act: Activation, dy: Array, x: Array, weight: Array | None, bias: Array | None, num_groups: int,
                    eps: float, a: Arithmetic) -> Backward:  # fmt: skip
    """Z is computed anew, of the mean and rstd that the kernel is given."""
    view = groups(x, num_groups)
    forward, s = layernorm.normalize(view, x, weight, bias, eps)
    z, e = forward.y.reshape(view.shape), layernorm.saved_error(view, x, s, a)
    off = rounding.affine_error(z, s.xhat, s.rstd, view.weight(weight), view.weight(bias), e, view, a)
    dz, lost = pulled(act, dy.reshape(view.shape), z, off, a)
    value, s, p = layernorm.differentiate(view, dz.reshape(x.shape), x, weight, bias, eps)
    return layernorm.differentiate_error(view, dz, x, weight, value, s, p, a, lost=lost)
