"""Activations that are computed on a normalization's result before it is stored, and their derivatives, in float32."""

import triton.language as tl

from verify_norm.kernels.launch import jit

ACTIVATIONS = ("silu", "gelu")
SQRT_HALF = tl.constexpr(0.7071067811865476)
DENSITY = tl.constexpr(0.3989422804014327)  # 1/√(2π)


@jit
def sigmoid(z, PTX: tl.constexpr):
    """Return σ(z) = 1/(1 + e^−z), 0 where e^−z overflows; PTX says that the target has sm_90's instructions.

    There, five instructions instead of ten: without scaling for arguments that are subnormal, or whose reciprocal is.
    A quarter of the sum has a reciprocal that is normal.
    """
    if PTX:
        asm: tl.constexpr = """{
            .reg .f32 t;
            mul.f32 t, $1, 0fBFB8AA3B; ex2.approx.ftz.f32 t, t; fma.rn.f32 t, t, 0f3E800000, 0f3E800000;
            rcp.approx.ftz.f32 t, t; mul.f32 $0, t, 0f3E800000; }"""
        s = tl.inline_asm_elementwise(asm, "=f,f", [z], dtype=tl.float32, is_pure=True, pack=1)
    else:
        s = 1.0 / (1.0 + tl.exp(-z))
    return s


@jit
def activate(z, ACT: tl.constexpr, PTX: tl.constexpr):
    """Return SiLU z·σ(z), GELU z·Φ(z), or z itself."""
    if ACT == "silu":
        z *= sigmoid(z, PTX)
    elif ACT == "gelu":
        z = 0.5 * z * (1.0 + tl.erf(z * SQRT_HALF))
    return z


@jit
def slope(z, ACT: tl.constexpr, PTX: tl.constexpr):
    """Return the derivative at z: σ(1 + z(1 − σ)) and Φ(z) + z·φ(z).

    The rounding of 1 − σ adds at most σ|z|u to a', one of the six that the bound allows.
    """
    if ACT == "silu":
        s = sigmoid(z, PTX)
        z = s * (1.0 + z * (1.0 - s))
    elif ACT == "gelu":
        z = 0.5 * (1.0 + tl.erf(z * SQRT_HALF)) + z * DENSITY * tl.exp(-0.5 * z * z)
    return z
