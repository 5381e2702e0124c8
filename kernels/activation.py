"""Activations that are computed on a normalization's result before it is stored, and their derivatives, in float32."""

import triton.language as tl

from verify_norm.kernels.launch import jit

ACTIVATIONS = ("silu", "gelu")
SQRT_HALF = tl.constexpr(0.7071067811865476)
DENSITY = tl.constexpr(0.3989422804014327)  # 1/√(2π)


@jit
def activate(z, ACT: tl.constexpr):
    """SiLU z·σ(z), GELU z·Φ(z), or z itself. Where exp(−z) overflows, z/∞ is the −0 that z·σ(z) underflows to."""
    if ACT == "silu":
        z = z / (1.0 + tl.exp(-z))
    elif ACT == "gelu":
        z = 0.5 * z * (1.0 + tl.erf(z * SQRT_HALF))
    return z


@jit
def slope(z, ACT: tl.constexpr):
    """The derivative at z: σ(1 + z(1 − σ)) and Φ(z) + z·φ(z).

    1 − σ is σ of −z, taken as e^−|z| over the same sum: neither exponential nor difference loses anything at large |z|.
    """
    if ACT == "silu":
        small = tl.exp(-tl.abs(z))
        ratio = 1.0 / (1.0 + small)
        up = tl.where(z < 0.0, small * ratio, ratio)
        down = tl.where(z < 0.0, ratio, small * ratio)
        z = up * (1.0 + z * down)
    elif ACT == "gelu":
        z = 0.5 * (1.0 + tl.erf(z * SQRT_HALF)) + z * DENSITY * tl.exp(-0.5 * z * z)
    return z
