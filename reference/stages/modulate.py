"""A modulation behind the norm: y = z(1 + scale) + shift, the adaLN of diffusion transformers (Peebles & Xie, 2023).

`scale` and `shift` have one row a sample, (B, N) for x (B, …, N), or one a token, in the shape of x. With several
normalized dimensions these stand for N. A row of them serves L rows of z, one after another.

**Backward.** With m = 1 + scale, ẏ = m·ż + z·ṡ + ṫ, hence

    dz = dy·m      dscale = Σ dy·z      dshift = Σ dy        over the rows that a row of scale serves

**Errors.** A kernel may also compute z + z·scale, w·m first, and b·m + shift, so with M = 1 + |scale| each term of z is
rounded up to 4 times (1 + scale, a product, an addition, and another one of b·m), and shift twice:

    δy  = |m|·δz + γ(4)·M(size + δz) + γ(2)·|shift|
    δdz = |m|·lost + γ(2)·M(|dy| + lost)

Where results are rounded to a narrow type, 1 + scale and the product with it are, and dy·z before it is summed.

dscale is a sum of products like dweight, of terms of z that are off by δz. A kernel may also add up dy·x̂ and dy alone,
w·Σdy·x̂ + b·Σdy, where the sums' roundings meet the terms of z. dshift is a sum like dbias.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verify_norm.reference.arithmetic import Arithmetic, finite_below
from verify_norm.reference.stages.stage import (
    Approximate,
    Elementwise,
    Inputs,
    Pulled,
    product_error,
    rounded_off,
    sum_error,
)
from verify_norm.reference.view import Array


@dataclass(frozen=True, slots=True)
class Modulate(Elementwise):
    """y = z(1 + scale) + shift.

    >>> given = {"scale": np.array([[1.0], [-1.0]]), "shift": np.ones((2, 1))}
    >>> Modulate().value(np.array([[1.0], [2.0], [3.0], [4.0]]), given).ravel().tolist()
    [3.0, 5.0, 1.0, 1.0]
    """

    name: str = "modulate"
    inputs: tuple[str, ...] = ("scale", "shift")
    linear: bool = True
    of_x: bool = False

    def value(self, z: Array, given: Inputs) -> Array:
        """Return z(1 + scale) + shift."""
        return z * (1.0 + spread(given["scale"], z)) + spread(given["shift"], z)

    def moved(self, z: Array, dz: Array, off: Array, given: Inputs) -> Array:
        """Return |1 + scale| times what z moves by."""
        return np.abs(1.0 + spread(given["scale"], z)) * off

    def own_error(self, z: Approximate, given: Inputs, a: Arithmetic) -> Array:
        """Return δy without what δz makes of it."""
        M, shift = 1.0 + np.abs(spread(given["scale"], z.value)), np.abs(spread(given["shift"], z.value))
        terms = M * (z.size + z.delta)
        own = a.gamma(4) * terms + a.gamma(2) * shift + a.tiny * (3.0 + M) + _factor_lost(M, z.size + z.delta, a)
        own = own + a.between(terms + own)  # of the product, before shift is added
        return finite_below(own, terms + shift, a.huge_between)

    def size(self, z: Approximate, given: Inputs) -> Array:
        """Return the terms of z times 1 + |scale|, and |shift|."""
        M = 1.0 + np.abs(spread(given["scale"], z.value))
        return M * z.size + np.abs(spread(given["shift"], z.value))

    def pull(self, dy: Array, z: Array, given: Inputs) -> tuple[Array, dict[str, Array]]:
        """Return dz, dscale and dshift."""
        scale = given["scale"]
        dscale, dshift = (grouped(v, scale).sum(1).reshape(scale.shape) for v in (dy * z, dy))
        return dy * (1.0 + spread(scale, z)), {"scale": dscale, "shift": dshift}

    def pull_error(self, dy: Array, lost: Array | float, z: Approximate, given: Inputs, a: Arithmetic) -> Pulled:
        """Return δdz, δdscale and δdshift."""
        scale, lost = given["scale"], np.broadcast_to(lost, dy.shape)
        wide = spread(scale, dy)
        m, M = np.abs(1.0 + wide), 1.0 + np.abs(wide)
        size = np.abs(dy) + lost
        off = m * lost + a.gamma(2) * M * size + a.tiny * (1.0 + M) + _factor_lost(M, size, a)
        products, alone = np.abs(dy) * z.size, np.abs(dy)
        both = rounded_off(products, product_error(dy, lost, z.size, z.delta, a), a)
        huge = a.narrow_huge if a.partials_u else a.huge

        def summed(terms: Array, lost: Array, *, products: bool) -> Array:
            rows, off = grouped(terms, scale), grouped(lost, scale)
            delta = sum_error(rows, off, 1, a, products=products)
            return finite_below(delta, (rows + off).sum(1), huge).reshape(scale.shape)

        return Pulled(
            finite_below(off, M * size, a.huge),
            {"scale": summed(products, both, products=True), "shift": summed(alone, lost, products=False)},
        )


def _factor_lost(M: Array, size: Array, a: Arithmetic) -> Array:
    """Return what a rounding of 1 + scale loses of its product with a value of this magnitude."""
    return a.between(M) * size


def grouped(v: Array, scale: Array) -> Array:
    """Return rows (M, N) as (S, L, N): the L rows that each of the S rows of `scale` serves.

    >>> grouped(np.zeros((6, 4)), np.zeros((2, 4))).shape
    (2, 3, 4)
    """
    M, N = v.shape
    S = scale.size // N
    return v.reshape(S, M // max(S, 1), N)


def spread(parameter: Array, z: Array) -> Array:
    """Return a row of scale or shift for each row of z (M, N).

    Raises
    ------
    ValueError : the rows of z are no multiple of those of `parameter`, or are of another length.
    """
    M, N = z.shape
    S = parameter.size // N
    if parameter.size != S * N or (M % S if S else M):
        raise ValueError(f"scale and shift: expected rows of {N} elements that divide {M} rows, got {parameter.shape}")
    wide = np.broadcast_to(parameter.reshape(S, 1, N), (S, M // max(S, 1), N))
    return wide.reshape(M, N)
