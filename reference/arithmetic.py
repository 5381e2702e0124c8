"""The arithmetic that a kernel promises, in numbers: unit roundoff, range, order of summation.

**Roundings.** k roundings in a row change a value by at most γ(k) = ku/(1 − ku) of itself (Higham, Accuracy and
Stability of Numerical Algorithms, 2nd ed., lemma 3.1), where u is the unit roundoff.

**Sums.** A sum of n terms, in any order, errs by at most γ(n − 1)·Σ|t|, and a sum of n products by γ(n)·Σ|t| (Higham,
section 4.2). A sequential sum may reach this. A blocked sum is a tree over runs, and errs by at most h·u·Σ|t| with

    h = min(n, log2 n + n/(3·lanes) + 6)

The first part, log2 n, is the tree (Higham, eq. 4.6). The second is the loss of the runs on the worst data that does
not target one order of summation: n equal terms (repeated rows, a constant row). While a running sum of L equal terms
stays in one binade, each addition rounds the same way by at most half an ulp. So the last binade loses L/4·u, the one
before L/16·u, and all of them L/3·u, for runs of L = n/lanes terms. 128 lanes are the fewest of a usual block on a GPU.
A matrix product on a CPU has as many as its vectors are wide, and a loop of tl.dot has one: a contract says how many.
The third, 6, covers the few roundings at each end of the tree (vector load, warp, block). benchmarks/bounds.py measures
how closely kernels approach these bounds.

**Matrix products.** A kernel may sum by a matrix product: of dyᵀ and x̂, or of ones and dy·x̂. Its operands hold d
significant bits, in k pieces of b = d/k bits (`PRODUCTS`). tl.dot may cut operands off instead of rounding them, by its
documentation. So a piece misses at most p = 2^(1 − b) of what it is given, and k pieces p^k = 2^(k − d) of the operand.
A scheme of k pieces leaves out the products of two small pieces:

    k = 1  a1·b1                             misses what a and b miss:     2p
    k = 2  a1·b1 + a1·b2 + a2·b1             misses that, and a2·b2:       2p² + p²
    k = 3  those, a2·b2, a1·b3 and a3·b1     misses the other three:       2p³ + p⁴, as 24 bits are all of a float32

(Henry, Tang & Heinecke, "Leveraging the bfloat16 artificial intelligence datatype for higher-precision computations",
IEEE ARITH 2019). All are at most (k + 1)·p^k. A product with a one misses p^k, and nothing of a number of d bits: the
sum of a 16-bit dy, as dbias is, has only the roundings of the sum in TF32. Tensor cores align the products of a step to
the largest, cut off what is below its last bit, and cut off the sum as well; they keep subnormal numbers (Fasi, Higham,
Mikaitis & Pranesh, PeerJ Computer Science 7:e330, 2021). Cutting off loses up to an ulp, so each rounding of the sum
counts twice. A product adds in one run as far as a program's loop goes: L is at least min(n, RUN). A contract with a
longer loop says so by its lanes.

**Divisions and roots.** A quotient counts as DIVISION roundings and a square root as ROOT. Triton compiles `/` to
div.full.f32, whose largest error is 2 ulp, at most 4u of the result, and tl.sqrt to sqrt.approx.ftz.f32, whose largest
relative error is 2⁻²³ = 2u (NVIDIA, PTX ISA 8.5, sections 9.7.3.8 and 9.7.3.15). rsqrt.approx.ftz.f32, 2^-22.9 = 2.2u
(9.7.3.16), is better than 1/√. Results that are rounded to nearest are better than all of these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from verify_norm.reference.view import Array

LANES = 128
RUN = 512  # terms that a program may add up in one run
TREE_ENDS = 6
PRODUCTS = {"tf32": (11, 1), "tf32x3": (22, 2), "bf16": (8, 1), "bf16x3": (16, 2), "bf16x6": (24, 3)}  # bits, pieces
DIVISION = 4
ROOT = 2


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The arithmetic of a kernel.

    Parameters
    ----------
    u : unit roundoff of the accumulation type (float32: 2**-24).
    tiny : its smallest normal number. An underflow loses at most this, because subnormals may be flushed to zero.
    huge : its largest finite number. A sum that may exceed it is not judged.
    summation : "blocked" (runs, then a tree, in any order) or "sequential" (one running sum).
    variance : "two_pass", "centered" (Welford, Chan), "shifted" (by the row's first element).
    expanded : x·a + b instead of (x − mean)·a.
    stats_u : unit roundoff of the narrower type that mean and rstd are saved in; 0 if they keep the accumulation type.
    products : how products inside sums are formed: in the accumulation type ("float32"), or as `PRODUCTS` says.
    xhat_u : unit roundoff of the narrower type that x̂ is rounded to before the weight (and g before x̂); 0 if none.
    partials_u : unit roundoff of the narrower type that holds partial sums of dweight and dbias; 0 if none.
    narrow_tiny : largest loss by underflow in those narrower types (float16: 2**-25).
    narrow_huge : their largest finite number. A value that may exceed it is not judged (float16: 65504).
    offset_u : unit roundoff of the narrower type that weight + offset is rounded to; 0 if none.
    z_u, z_tiny, z_huge : unit roundoff, loss by underflow and largest number of the narrower type that results have
        between a norm and other operations, as where modules of 16 bits follow each other; 0, 0 and inf if none.
    lanes : how many runs a blocked sum has at least, before its tree.
    atomic : sums over rows have one running sum, in any order (one atomic addition a row).

    >>> Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38).variance
    'centered'
    """

    u: float
    tiny: float
    huge: float
    summation: Literal["blocked", "sequential"] = "blocked"
    variance: Literal["two_pass", "centered", "shifted"] = "centered"
    expanded: bool = False
    products: Literal["float32", "tf32", "tf32x3", "bf16", "bf16x3", "bf16x6"] = "float32"
    stats_u: float = 0.0
    xhat_u: float = 0.0
    partials_u: float = 0.0
    offset_u: float = 0.0
    z_u: float = 0.0
    z_tiny: float = 0.0
    z_huge: float = math.inf
    narrow_tiny: float = 0.0
    narrow_huge: float = math.inf
    lanes: int = LANES
    atomic: bool = False

    def gamma(self, roundings: float) -> float:
        """Return γ(k), the largest relative change by k roundings in a row; inf where it has no bound.

        >>> Arithmetic(u=0.25, tiny=0.0, huge=1.0).gamma(2)
        1.0
        """
        lost = roundings * self.u
        return lost / (1.0 - lost) if lost < 1.0 else math.inf

    def terms(self, n: int, *, products: bool) -> float:
        """Return the h of a sum of n terms, or of n products: its error is at most γ(h)·Σ|t|.

        >>> float32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38)
        >>> [float32.terms(n, products=True) for n in (1, 2, 384, 16384)]
        [1, 2, 15.584962500721156, 62.666666666666664]
        """
        most: float = max(n if products else n - 1, 0)
        run = n / self.lanes if self.products == "float32" else max(n / self.lanes, min(n, RUN))
        if self.summation != "sequential" and n > 1:
            most = min(most, math.log2(n) + run / 3 + TREE_ENDS)
        return most if self.products == "float32" else 2 * most

    def summed(self, n: int, more: int = 0) -> float:
        """Return the relative change of n products by a sum of them and `more` roundings, of Σ|t|.

        >>> tf32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38, products="tf32")
        >>> 2**-9 < tf32.summed(1000) < 2**-8.9
        True
        """
        return compound(self.gamma(self.terms(n, products=True) + more), self.product_u)

    @property
    def operand_u(self) -> float:
        """What an operand of a matrix product misses of a float32, relative to it; 0 without matrix products."""
        bits, pieces = PRODUCTS.get(self.products, (0, 0))
        return 2.0 ** (pieces - bits) if bits else 0.0

    @property
    def product_u(self) -> float:
        """What a product of two such operands misses."""
        return (PRODUCTS.get(self.products, (0, 0))[1] + 1) * self.operand_u

    def missed(self, terms: Array, lost: Array | float = 0.0) -> Array:
        """Return what operands miss of the terms of a sum, which are off by `lost`: nothing of what they can hold.

        Without matrix products that is 0, in a shape that broadcasts against the terms.

        >>> tf32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38, products="tf32")
        >>> tf32.missed(np.array([1.0, 3 + 2.0**-8, 1 + 2.0**-11])) > 0
        array([False, False,  True])
        """
        if not self.operand_u:
            return np.zeros_like(terms[..., :1])
        scaled = np.ldexp(np.frexp(terms)[0], PRODUCTS[self.products][0])
        held = (scaled == np.rint(scaled)) & (np.asarray(lost) == 0)
        return np.where(held, 0.0, self.operand_u * (np.abs(terms) + lost))

    @property
    def huge_between(self) -> float:
        """The largest number that a result between a norm and other operations may be."""
        return min(self.huge, self.z_huge)

    def between(self, size: Array) -> Array:
        """Return what such a result of this magnitude loses by its rounding, at most; an exact 0 loses nothing.

        >>> half = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38, z_u=2**-11, z_tiny=2**-25)
        >>> half.between(np.array([0.0, 1.0])).tolist() == [0.0, 2**-11 + 2**-25]
        True
        """
        if not self.z_u:
            return np.zeros(())
        return np.where(size == 0, 0.0, self.z_u * size + self.z_tiny)

    @property
    def over_rows(self) -> Arithmetic:
        """The arithmetic of sums over rows, as dweight and dbias are: one atomic addition a row is a running sum."""
        return replace(self, summation="sequential") if self.atomic else self

    def updates(self, n: int) -> float:
        """Return the k of a running mean of n terms: how many of its roundings may reach the variance.

        >>> Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38).updates(1024)
        21.333333333333332
        """
        return n if self.summation == "sequential" else min(n, math.log2(n) + 2 * n / (3 * self.lanes) + TREE_ENDS)


def compound(*relative: float) -> float:
    """Return the relative change that these relative changes make, one after another.

    >>> compound(0.5, 0.5)
    1.25
    """
    return math.prod(1.0 + change for change in relative) - 1.0


def finite_below(bound: Array, magnitude: Array, huge: float) -> Array:
    """Return `bound` where `magnitude` cannot overflow, and inf where it may, or is NaN.

    A bound above `huge` also becomes inf: it bounds a difference whose terms overflow, where inf − inf = NaN is right.
    """
    return np.where((magnitude < huge) & (bound < huge), bound, np.inf)


def nearest(value: Array, a: Arithmetic) -> Array:
    """Return the number of the accumulation type nearest to `value`, ties to even; an infinity beyond its largest.

    >>> nearest(np.array([1 + 2**-30, 0.1]), Arithmetic(u=2**-24, tiny=2**-126, huge=3.4e38)) == np.float32([1, 0.1])
    array([ True,  True])
    """
    binade = np.frexp(np.maximum(np.abs(value), a.tiny))[1] - 1
    step = np.ldexp(2 * a.u, binade)
    result: Array = np.rint(value / step) * step
    return np.where(np.abs(result) > a.huge, np.copysign(np.inf, value), result)
