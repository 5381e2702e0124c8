"""SiLU, GELU and σ: their values, first derivatives, and how far a kernel's own evaluation of them may be off.

    SiLU   a(z) = z·σ(z), σ = 1/(1 + e^−z)          a' = σ(1 + z(1 − σ))
    GELU   a(z) = z·Φ(z), Φ = (1 + erf(z/√2))/2     a' = Φ + z·φ,  φ = e^(−z²/2)/√(2π)
    σ      a(z) = σ(z)                              a' = σ(1 − σ)

An activated normalization is a(z) with z = w·x̂ + b. Its gradients are those of the normalization at dz = dy·a'(z).

**Assumed of a kernel**, where u is the unit roundoff of its arithmetic and an ulp is at most 2u of its number:

    e^t    2 + 1.173|t| ulp: CUDA's __expf, or ex2.approx of t·log₂e, which rounds the product
    a/b    2 ulp: CUDA's __fdividef, div.full
    erf    2 ulp: CUDA's erff

(CUDA C++ Programming Guide, "Mathematical Functions": maximum errors of standard and intrinsic functions). A hardware
tanh, off by 2⁻¹¹, is less accurate than this, and so is GELU's approximation by tanh, off by up to 5e-4.

**Evaluation.** With ε = (4 + 2.35|z|)u, σ errs by the factor (1 − σ)ε + 5u; where e^−z may overflow, or σ may be
subnormal, it errs by all of itself: kernels flush it, and __fdividef returns 0 for divisors above 2¹²⁶. z·σ rounds once
more. In σ(1 − σ) an error of σ enters by 1 − 2σ at most, and a difference and a product round twice. In 1 + erf(t), t =
z/√2, the sum errs by 4u|erf| + u(1 + erf), and the two roundings of t add erf'(t)|t|·2u < u. GELU is |z|/2 times that,
with three roundings more, one of which may fall on z·erf. In SiLU's a', ∂a'/∂σ = 1 + z(1 − 2σ) is at most 1 + |z|, and
six roundings of terms below σ(1 + |z|) remain. In GELU's a', Φ errs by half of the sum above, and z·φ by the
exponential at z²/2, the three roundings of that argument, and four more.

**Propagation.** |a'| and |a''| have a maximum. An error δz moves a by at most δz times the largest |a'| on the way, and
a' by max|a''|·δz. The evaluation error within δz of z is taken as the largest at z and at both ends. Where δz is so
large that more lies between them, δz itself dominates.

**Infinite z.** The references have the limits of a and a'. A kernel's own evaluation may make 0·inf = NaN of them, so
these elements are not judged: their error has no bound.

Φ is math.erfc of the standard library, element by element. The rounding of its argument changes it by at most z²·2⁻⁵³
of itself, which is negligible beside a float32 kernel's u.
"""

# No np.asarray: these lines also run on other arrays, such as tensors on a GPU (benchmarks/oracle.py).
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from verify_norm.reference.arithmetic import Arithmetic
from verify_norm.reference.view import Array

_erfc = np.frompyfunc(math.erfc, 1, 1)
ROOT_HALF, DENSITY = math.sqrt(0.5), 1.0 / math.sqrt(2.0 * math.pi)


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation function a(z).

    Parameters
    ----------
    name : the name in `ACTIVATIONS`.
    value, slope : a and a', functions of z.
    value_error, slope_error : how far a kernel's a and a' of its own z may be off, functions of z and the arithmetic.
    steepest : the maximum of |a'|.
    bend : the maximum of |a''|.
    """

    name: str
    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    value_error: Callable[[Array, Arithmetic], Array]
    slope_error: Callable[[Array, Arithmetic], Array]
    steepest: float
    bend: float


def sigmoid(z: Array) -> Array:
    """Return σ(z) = 1/(1 + e^−z), without overflow.

    >>> sigmoid(np.array([-800.0, 0.0, 800.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    small = np.exp(-np.abs(z))
    return np.where(z < 0, small, 1.0) / (1.0 + small)


def normal(z: Array) -> Array:
    """Return Φ(z), the normal distribution function, without cancellation where z is far below 0.

    >>> normal(np.array([-np.inf, 0.0, np.inf])).tolist()
    [0.0, 0.5, 1.0]
    """
    tail: Any = _erfc(-ROOT_HALF * z)
    if isinstance(tail, np.ndarray):  # of Python's numbers; for a z without dimensions it is one number
        tail = tail.astype(np.float64)
    return 0.5 * tail


def density(z: Array) -> Array:
    """Return φ(z) = Φ'(z), the normal density.

    >>> round(float(density(np.zeros(()))), 4)
    0.3989
    """
    return DENSITY * np.exp(-0.5 * z * z)


def _silu(z: Array) -> Array:
    return np.where(np.isneginf(z), 0.0, z) * sigmoid(z)


def _silu_slope(z: Array) -> Array:
    return sigmoid(z) * (1.0 + np.where(np.isinf(z), 0.0, z) * sigmoid(-z))


def _sigmoid_error(z: Array, a: Arithmetic) -> Array:
    """Return the relative error of σ."""
    lost = sigmoid(-z) * (4.0 + 2.35 * np.abs(z)) * a.u + 5.0 * a.u
    known = (-z < math.log(a.huge) - 1.0) & (sigmoid(z) >= 2.0 * a.tiny)
    return np.where(known, lost / (1.0 - np.minimum(lost, 0.5)), 1.0)


def _silu_error(z: Array, a: Arithmetic) -> Array:
    return np.abs(_silu(z)) * ((1.0 + a.u) * _sigmoid_error(z, a) + a.u) + 4 * a.tiny


def _silu_slope_error(z: Array, a: Arithmetic) -> Array:
    largest = sigmoid(z) * (1.0 + np.abs(z))
    return largest * (_sigmoid_error(z, a) + 6.0 * a.u) + 4 * a.tiny * (1.0 + np.abs(z))


def _sigmoid_slope(z: Array) -> Array:
    return sigmoid(z) * sigmoid(-z)


def _sigmoid_value_error(z: Array, a: Arithmetic) -> Array:
    return sigmoid(z) * _sigmoid_error(z, a) + 4 * a.tiny


def _sigmoid_slope_error(z: Array, a: Arithmetic) -> Array:
    lost = _sigmoid_error(z, a)
    return sigmoid(z) * (lost * (1.0 + lost) + 3.0 * a.u) + 4 * a.tiny


def _gelu(z: Array) -> Array:
    return np.where(np.isneginf(z), 0.0, z) * normal(z)


def _gelu_slope(z: Array) -> Array:
    return normal(z) + np.where(np.isinf(z), 0.0, z) * density(z)


def _normal_error(z: Array, a: Arithmetic) -> Array:
    """Return the error of 1 + erf(z/√2)."""
    return (4.0 * np.abs(1.0 - 2.0 * normal(-np.abs(z))) + 2.0 * normal(z) + 1.0) * a.u


def _gelu_error(z: Array, a: Arithmetic) -> Array:
    size = 0.5 * np.abs(z)
    return size * (_normal_error(z, a) + a.u) + 3.0 * a.u * np.abs(_gelu(z)) + 4 * a.tiny


def _gelu_slope_error(z: Array, a: Arithmetic) -> Array:
    half = 0.5 * z * z
    lost = np.abs(z) * density(z) * (8.0 + 5.35 * half) * a.u + 0.5 * _normal_error(z, a)
    return lost + 2.0 * a.u * np.abs(_gelu_slope(z)) + 4 * a.tiny * (1.0 + np.abs(z))


# |a'| is largest where a'' = 0: σ(1 − σ)(2 + z(1 − 2σ)) and φ(z)(2 − z²). |a''| is largest at 0: 1/2 and 2φ(0).
# Of the sigmoid, a' is largest at 0, 1/4, and |a''| = σ(1 − σ)|1 − 2σ| where σ = (1 ± 1/√3)/2, 1/(6√3).
SILU = Activation("silu", _silu, _silu_slope, _silu_error, _silu_slope_error, 1.0998394, 0.5)
GELU = Activation("gelu", _gelu, _gelu_slope, _gelu_error, _gelu_slope_error, 1.1289042, 0.7978846)
SIGMOID = Activation(
    "sigmoid", sigmoid, _sigmoid_slope, _sigmoid_value_error, _sigmoid_slope_error, 0.25, 1.0 / (6.0 * math.sqrt(3.0))
)
ACTIVATIONS = {activation.name: activation for activation in (SILU, GELU, SIGMOID)}


def nearby(error: Callable[[Array, Arithmetic], Array], z: Array, dz: Array, a: Arithmetic) -> Array:
    """Return how far an evaluation within δz of z may be off."""
    return np.maximum(error(z, a), np.maximum(error(z - dz, a), error(z + dz, a)))


def steepness(act: Activation, z: Array, dz: Array) -> Array:
    """Return at least |a'| everywhere within δz of z.

    >>> steepness(SILU, np.zeros(2), np.array([0.0, np.inf])).tolist()
    [0.5, 1.0998394]
    """
    return np.minimum(np.abs(act.slope(z)) + act.bend * dz, act.steepest)


def pulled(act: Activation, dy: Array, z: Array, dz: Array, a: Arithmetic) -> tuple[Array, Array]:
    """Return the gradient dy·a'(z), and how far a kernel's may be off where |z' − z| ≤ δz.

    >>> float32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38)
    >>> value, lost = pulled(GELU, np.ones(()), np.zeros(()), np.zeros(()), float32)
    >>> float(value), bool(lost < 1e-6)
    (0.5, True)
    """
    slope = act.slope(z)
    off = act.bend * dz + nearby(act.slope_error, z, dz, a)
    return dy * slope, np.abs(dy) * (off + a.u * (np.abs(slope) + off)) + a.tiny
