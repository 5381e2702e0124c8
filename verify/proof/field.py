"""Arithmetic modulo a prime, in which identities of rational functions are tested.

Two rational functions of degree d over the integers that differ have different values at a random point of the field,
except with probability d/p (Schwartz 1980, Zippel 1979). A root r of 1/v is a formal symbol with r²·v = 1: rows are
drawn until v is a square of the field, and `root` returns the one of its two roots that is a square itself (p ≡ 3 mod
4, so that exactly one is).
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

P = 2**31 - 1  # a product of two elements fits into 64 bits
Field = NDArray[np.uint64]
_P = np.uint64(P)


def add(a: Field, b: Field) -> Field:
    """Return a + b."""
    return np.asarray((a + b) % _P)


def sub(a: Field, b: Field) -> Field:
    """Return a − b."""
    return np.asarray((a + (_P - b)) % _P)


def mul(a: Field, b: Field) -> Field:
    """Return a·b."""
    return np.asarray((a * b) % _P)


def total(a: Field, axis: int) -> Field:
    """Return the sum along an axis of less than 2^32 elements."""
    return np.asarray(a.sum(axis=axis, dtype=np.uint64) % _P)


def power(a: Field, exponent: int) -> Field:
    """Return a to a power, by repeated squares."""
    result, base = np.ones_like(a), a
    while exponent:
        if exponent & 1:
            result = mul(result, base)
        base, exponent = mul(base, base), exponent >> 1
    return result


def inverse(a: Field) -> Field:
    """Return 1/a, and 0 of 0; what occurs often is computed once."""
    once, where = np.unique(a, return_inverse=True)
    return power(once, P - 2)[where].reshape(a.shape)


def square(a: Field) -> NDArray[np.bool_]:
    """Return where a is a square of the field, and not 0."""
    return np.asarray(power(a, (P - 1) // 2) == 1)


def root(a: Field) -> Field:
    """Return the root of each square that is a square itself."""
    once, where = np.unique(a, return_inverse=True)
    return power(once, (P + 1) // 4)[where].reshape(a.shape)


def of(value: float | int | Fraction) -> int:
    """Return a rational number as an element.

    >>> of(Fraction(1, 2)) * 2 % P
    1
    """
    exact = Fraction(value)
    return exact.numerator * pow(exact.denominator, -1, P) % P
