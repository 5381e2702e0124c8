"""A quantization behind the norm: y = sat(z/s) in 8 or 4 bits, with a scale s that is given or that the data determine.

    A = max |z| of a row ("per_token"), or of each block of 64 or 128 elements of it ("group64", "group128")
    s = max(min(A, scale_ub)/L, floor)      y = min(max(z/s, −L), L)

L is the largest number of y's type (127 of int8). s dequantizes: y·s ≈ z. A `static` s is y_scale, an input. The last
block of a row may be shorter. `scale_ub`, an input of one value, bounds A, as in vLLM and FBGEMM; `floor` is the
contract's (`Contract.scale_floor`), else 0. y is no function that autograd differentiates, so there is no backward.

Blocks of "mx" (32 elements) and "nvfp4" (16) have scales of few bits: `block_scale` derives them. In NVFP4 z/s is
z·g/s, with the `global_scale` g.

**Nothing but zeros.** Where A = 0, y = 0 and s is 1, or the floor. Any s from 0 to 2 is right, since y·s = 0; NaN is
wrong. Where a z is NaN or infinite, y·s must not be a number: y or s says so, and the other elements of that row or
block are not judged. In "mx" and "nvfp4" an infinite z may also saturate.

**Errors of the scale.** A is off by at most what max(|z| + δz) and max(|z| − δz) differ from it. A kernel divides by L,
or multiplies by a rounded 1/L, so s is between

    s⁻ = bounded(A − δA)·(1 − γ(4))      s⁺ = bounded(A + δA)·(1 + γ(4))

**Errors of y.** A kernel computes z/s, z·(1/s), z·(L/A), or meets s with the weight before x̂ (z is then rounded in its
terms, `size`). That is a division and three roundings, beyond the scale's own; with σ = max(1/s⁻ − 1/s, 1/s − 1/s⁺),

    δy = |z|·σ + (δz + γ(4 + 3)·(size + δz))/s⁻ + underflow

and less where that saturates. So y is a rounding of a value within δy of z/s: near a tie either neighbour is right. It
is not judged where s⁻ is 0 or 1/s may leave the range: there the data are rounding errors, or subnormal.

Where s has few bits, s⁻ and s⁺ are those of both ends. A kernel of NVFP4 computes z·(1/(s·(1/g))), which is a division
and two roundings more, and g·A·(1/6) has two more.

**Saturation.** Converted to int8, what is below −127 may become −127 or −128.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from verify_norm.reference.arithmetic import DIVISION, Arithmetic, finite_below
from verify_norm.reference.quantized import saturated, saturated_error
from verify_norm.reference.stages.block_scale import in_e4m3, power_of_two
from verify_norm.reference.stages.stage import Approximate, Inputs, Pulled, exactly
from verify_norm.reference.view import Array

LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "int8": 127.0, "float4_e2m1fn": 6.0}
BLOCKS = {"group64": 64, "group128": 128, "mx": 32, "nvfp4": 16}  # of a row; "per_token" has one of the whole row
SCALE_TYPES = {"mx": "float8_e8m0fnu", "nvfp4": "float8_e4m3fn"}  # float32 elsewhere
NO_NAN = ("int8", "float4_e2m1fn")  # types that hold none
GRANULARITIES = ("static", "per_token", *BLOCKS)
NO_SCALE = 1.0  # of nothing but zeros


class Scales(NamedTuple):
    """The scale of every block, (M, K), and between what a kernel's may be."""

    value: Array
    low: Array
    high: Array


@dataclass(frozen=True, slots=True)
class Quantize:
    """y = sat(z/s).

    >>> Quantize("float8_e4m3fn", "per_token").value(np.array([[1.0, -2.0], [0.0, 0.0]]), {}).tolist()
    [[224.0, -448.0], [0.0, 0.0]]
    """

    dtype: str
    granularity: str = "static"
    bounded: bool = False
    name: str = "quantize"
    linear: bool = False
    of_x: bool = False
    trained: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of what it takes beside z."""
        if self._of_tensor:
            return ("global_scale",)
        if not self.dynamic:
            return ("y_scale",)
        return ("scale_ub",) if self.bounded else ()

    @property
    def dynamic(self) -> bool:
        """Whether the data determine the scale, which is then an output."""
        return self.granularity != "static"

    @property
    def largest(self) -> float:
        """L."""
        return LARGEST[self.dtype]

    @property
    def scale_dtype(self) -> str:
        """The type of the scale."""
        return SCALE_TYPES.get(self.granularity, "float32")

    @property
    def divisions(self) -> int:
        """How many roundings a scale has before the one to its type."""
        return DIVISION + 2 if self._of_tensor else DIVISION

    def _range(self, given: Inputs) -> float:
        """Return the magnitude at which y saturates: L, or infinity by contract."""
        return float(given.get("largest", self.largest))

    def blocks(self, n: int) -> int:
        """Return how many scales a row of n elements has.

        >>> [Quantize("int8", one).blocks(129) for one in GRANULARITIES]
        [1, 1, 3, 2, 5, 9]
        """
        return -(-n // self.length(n))

    def length(self, n: int) -> int:
        """Return how many elements of a row of n have one scale."""
        return BLOCKS.get(self.granularity, n)

    def spread(self, values: Array, n: int) -> Array:
        """Return the value of each block (M, K) for each element of it, (M, n)."""
        wide: Array = values[:, np.arange(n) // self.length(n)]
        return wide

    def most(self, size: Array) -> Array:
        """Return the maximum of each block, (M, K), NaN where an element is NaN."""
        M, n = size.shape
        length, count = self.length(n), self.blocks(n)
        inside = np.minimum(np.arange(count * length), n - 1)  # a short block repeats its last element
        maximum: Array = size[:, inside].reshape(M, count, length).max(2)
        return maximum

    def scale(self, z: Array, given: Inputs) -> Array:
        """Return the scale of every block, (M, K): `NO_SCALE` of nothing but zeros, and where z is not finite."""
        return self._scales(exactly(z), given, 0.0).value

    def scale_error(self, z: Approximate, given: Inputs, a: Arithmetic) -> Array:
        """Return how far a kernel's scale may be off: inf where nothing is known, as of what is not finite."""
        s = self._scales(z, given, a.gamma(self.divisions))
        delta = np.maximum(s.high - s.value, s.value - s.low) + a.tiny
        free = self._vanishing(s, a) | (self.most(np.abs(z.value)) == 0)
        return np.where(self._unknown(z), np.inf, np.where(free, np.maximum(delta, 1.0), delta))

    def _scales(self, z: Approximate, given: Inputs, unit: float) -> Scales:
        """Return the scales and their bounds, where a division errs by `unit`; itself of a given one."""
        if not self.dynamic:
            s = given["y_scale"]
            return Scales(s, s, s)
        size = np.abs(z.value)
        ends = ((size, 0.0), (np.maximum(size - z.delta, 0.0), -unit), (size + z.delta, unit))
        value, low, high = (self._bounded(self.most(one), given, off) for one, off in ends)
        return Scales(np.where(np.isfinite(self.most(size)) & (value > 0), value, NO_SCALE), low, high)

    def _divisors(self, s: Scales, given: Inputs) -> Scales:
        """Return what z is divided by: the scales, in NVFP4 over the scale of the tensor."""
        return Scales(*(one / given["global_scale"] for one in s)) if self._of_tensor else s

    @property
    def _of_tensor(self) -> bool:
        """Whether all scales have a factor that is one of the tensor's."""
        return self.granularity == "nvfp4"

    def _bounded(self, amax: Array, given: Inputs, off: float) -> Array:
        """Return max(min(A, scale_ub)/L, floor) in the type of scales, where its roundings come to `off`."""
        if self.granularity == "mx":
            return power_of_two(amax * (1.0 + off), self.dtype, self.largest, str(given.get("e8m0", "floor")))
        if self.bounded:
            amax = np.minimum(amax, given["scale_ub"])
        if self._of_tensor:
            amax = amax * given["global_scale"]
        bounded: Array = np.maximum(amax / self.largest, given.get("scale_floor", 0.0)) * (1.0 + off)
        return in_e4m3(bounded) if self._of_tensor else bounded

    def _unknown(self, z: Approximate) -> Array:
        """Return which blocks have a z, or a bound of one, that is not finite: a scale_ub would hide it."""
        unknown: Array = ~np.isfinite(self.most(np.abs(z.value) + z.delta))
        return unknown

    def _vanishing(self, s: Scales, a: Arithmetic) -> Array:
        """Return where a scale, or a step of its computation, may leave the range of the arithmetic."""
        lowest = 4 * max(a.tiny, 1 / a.huge)
        highest = min(a.huge, 1 / a.tiny if a.tiny else np.inf) / (4 * self.largest)
        vanishing: Array = ~((s.low >= lowest) & (s.high <= highest))
        return vanishing

    def value(self, z: Array, given: Inputs) -> Array:
        """Return sat(z/s), NaN where z is NaN, or where it is infinite and no given scale or bound saturates it."""
        saturates = self.bounded or not self.dynamic or self.granularity in SCALE_TYPES
        divisor = self._divisors(self._scales(exactly(z), given, 0.0), given).value
        s = self.spread(np.broadcast_to(divisor, (len(z), self.blocks(z.shape[1]))), z.shape[1])
        y = saturated(z / s, self._range(given))
        if not saturates:
            y = np.where(np.isinf(z), np.nan, y)
        if self.dtype in NO_NAN and not self.dynamic:
            y = np.where(np.isnan(y), 0.0, y)
        return y

    def moved(self, z: Array, dz: Array, off: Array, given: Inputs) -> Array:
        """Return 0: `own_error` has all of the error, since each z moves the scale of the others."""
        return np.zeros_like(off)

    def own_error(self, z: Approximate, given: Inputs, a: Arithmetic) -> Array:
        """Return δy."""
        M, n = z.value.shape
        s = self._divisors(self._scales(z, given, a.gamma(self.divisions)), given)
        shape = (M, self.blocks(n))
        unknown = self._vanishing(s, a) | self._unknown(z)
        value, low, high, unjudged = (self.spread(np.broadcast_to(part, shape), n) for part in (*s, unknown))
        sigma = np.maximum(1.0 / low - 1.0 / value, 1.0 / value - 1.0 / high)
        terms, roundings = z.size + z.delta, DIVISION + 3
        if self._of_tensor:
            roundings += DIVISION + 2
        delta = np.abs(z.value) * sigma + (z.delta + a.gamma(roundings) * terms) / low + a.tiny * (4.0 + 4.0 / low)
        delta = finite_below(delta, terms / low, a.huge)
        delta = saturated_error(z.value / value, delta, self._range(given))
        below = (self.dtype == "int8") & (z.value / value - delta < -self.largest - 0.5)
        delta = np.where(below, np.maximum(delta, 1.0), delta)
        zero = self.spread(self.most(terms) == 0, n)
        return np.where(zero, 0.0, np.where(unjudged, np.inf, delta))

    def size(self, z: Approximate, given: Inputs) -> Array:
        """Return |y|."""
        return np.abs(self.value(z.value, given))

    def pull(self, dy: Array, z: Array, given: Inputs) -> tuple[Array, dict[str, Array]]:
        """Raise ValueError: there is no backward."""
        raise ValueError("quantize has no gradient")

    def pull_error(self, dy: Array, lost: Array | float, z: Approximate, given: Inputs, a: Arithmetic) -> Pulled:
        """Raise ValueError: there is no backward."""
        raise ValueError("quantize has no gradient")
