"""One row per floating-point format: its constants, its ulp, and exact rounding of float64 values into it. A leaf."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format with gradual underflow.

    `precision` counts the hidden bit; `emin` and `emax` are the exponents of the smallest normal number and of the
    largest finite one; `largest` is the largest finite number.
    """

    name: str
    precision: int
    emin: int
    emax: int
    largest: float
    dtype: np.dtype[np.generic]

    @property
    def u(self) -> float:
        """Unit roundoff of round to nearest: half the distance from 1 to the next number."""
        return 2.0**-self.precision

    @property
    def smallest_normal(self) -> float:
        """Below it, precision is lost, or the value flushed to zero."""
        return 2.0**self.emin

    def ulp(self, value: Array) -> Array:
        """Distance between neighbours in the binade of `value`, not less than the subnormals' (Muller et al., 2018).

        >>> FORMATS["bfloat16"].ulp(np.array([1.0, 1.99, 2.0, 0.0])).tolist()
        [0.0078125, 0.0078125, 0.015625, 9.183549615799121e-41]
        """
        _, exponent = np.frexp(value)  # value = m·2**exponent with ½ ≤ |m| < 1, and exponent 0 for 0, inf and NaN
        exponent = np.where(value == 0, self.emin, np.clip(exponent - 1, self.emin, self.emax))
        step: Array = np.ldexp(1.0, exponent - self.precision + 1)
        return step

    def round(self, value: Array) -> Array:
        """The nearest number of this format, ties to even, as float64; beyond the largest finite one, an infinity.

        Exact, since it scales by powers of two: a conversion by way of float32 would round twice.

        >>> FORMATS["float16"].round(np.array([1 + 2**-11, 1 + 3 * 2**-11, 65519.9, 65520.0])).tolist()
        [1.0, 1.001953125, 65504.0, inf]
        """
        step = self.ulp(value)
        with np.errstate(invalid="ignore", over="ignore"):
            rounded = np.rint(value / step) * step
        return np.where(np.abs(rounded) > self.largest, np.copysign(np.inf, value), rounded)

    def is_rounding(self, got: Array, value: Array) -> NDArray[np.bool_]:
        """Whether `got` is what rounding `value` to this format gives; NaN is the rounding of NaN.

        Beyond the largest number of an 8-bit format there are two answers, and both are right: the OCP's specification
        (OFP8, revision 1.0, section 5.2) defines a saturating conversion, to that number, and another, to an infinity
        or, in e4m3fn, which has none, NaN. Kernels and hardware saturate; torch did not always.

        >>> FORMATS["float8_e4m3fn"].is_rounding(np.array([448.0, np.nan, np.inf]), np.array([1e3, 1e3, 1.0])).tolist()
        [True, True, False]
        """
        nearest = self.round(value)
        same: NDArray[np.bool_] = (got == nearest) | (np.isnan(got) & np.isnan(value))
        if self.dtype.itemsize > 1:
            return same
        beyond = np.isinf(nearest)
        saturated = beyond & (got == np.copysign(self.largest, value))
        same |= saturated | (beyond & np.isnan(got) & (self.name == "float8_e4m3fn"))
        return same


def _format(name: str) -> Format:
    dtype = np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)
    info = ml_dtypes.finfo(dtype)
    largest = float(info.max)
    return Format(name, info.nmant + 1, int(info.minexp), int(np.frexp(largest)[1]) - 1, largest, dtype)


FORMATS = {
    name: _format(name)
    for name in ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
}  # fmt: skip
