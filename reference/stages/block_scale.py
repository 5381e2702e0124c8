"""The scales of blocks that have few bits themselves: powers of two in MX, numbers of E4M3 in NVFP4.

**MX** (OCP Microscaling Formats, v1.0): 32 elements share a scale of E8M0, 2^k with −127 ≤ k ≤ 127. With A = max |z| of
the block, L the largest number of the elements' type, 2^e its binade and m its stored bits of significand, k is

    floor   ⌊log2 A⌋ − e           the specification's (section 6.3); z/s may be beyond L, and saturates
    ceil    ⌈log2 A⌉ − e
    even    ⌊log2 A'⌋ − e          A' is A rounded to m bits, half away from 0
    rceil   ⌈log2(A/L)⌉            cvt.rp.satfinite.ue8m0x2.f32 of PTX: nothing saturates

the four of torchao's `ScaleCalculationMode`; a contract says which (`Contract.e8m0`).

**NVFP4** (NVIDIA): 16 elements of E2M1 share a scale of E4M3, and all of a tensor a float32 number g, an input:

    s = round(g·A/6) in E4M3, 448 at most      y = z·g/s

so y·s/g ≈ z. Where s rounds to 0, y has no known value, and a kernel may also keep s above a floor (`scale_floor`).

**Errors.** Both are steps: where A, and the roundings of what is computed of it, reach over the edge of one, either
scale is right, and y is judged by the interval of both.
"""

from __future__ import annotations

import numpy as np

from verify_norm.reference.view import Array

BINADES = {"float8_e4m3fn": (8, 3), "float8_e5m2": (15, 2), "float4_e2m1fn": (2, 1)}  # e and m
E8M0 = ("floor", "ceil", "even", "rceil")
LEAST_POWER, MOST_POWER = -127, 127


def power_of_two(amax: Array, dtype: str, largest: float, how: str = "floor") -> Array:
    """Return the scale 2^k of blocks with this max |z|; 0 for blocks of zeros. `how` is one of E8M0.

    >>> amax = np.array([448.0, 480.0, 512.0, 500.0])
    >>> [power_of_two(amax, "float8_e4m3fn", 448.0, how).tolist() for how in E8M0]  # doctest: +NORMALIZE_WHITESPACE
    [[1.0, 1.0, 2.0, 1.0], [2.0, 2.0, 2.0, 2.0], [1.0, 1.0, 2.0, 2.0], [1.0, 2.0, 2.0, 2.0]]
    """
    binade, bits = BINADES[dtype]
    mantissa, exponent = np.frexp(amax / largest if how == "rceil" else amax)  # mantissa in [1/2, 1)
    upwards = mantissa >= 1.0 - 2.0 ** (-bits - 2) if how == "even" else (mantissa > 0.5) & (how != "floor")
    k = np.where(upwards, exponent, exponent - 1) - (0 if how == "rceil" else binade)
    return np.where(amax > 0, np.ldexp(1.0, np.clip(k, LEAST_POWER, MOST_POWER)), 0.0)


def in_e4m3(value: Array) -> Array:
    """Return positive values rounded to E4M3, ties to even, 448 at most.

    >>> in_e4m3(np.array([0.0, 2.0**-11, 0.01, 1.0625, 1e9])).tolist()
    [0.0, 0.0, 0.009765625, 1.0, 448.0]
    """
    step = np.ldexp(1.0, np.maximum(np.frexp(value)[1] - 1, -6) - 3)
    rounded: Array = np.minimum(np.rint(value / step) * step, 448.0)
    return rounded
