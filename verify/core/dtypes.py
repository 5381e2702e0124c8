"""Floating-point formats: names, constants, ulp, and exact rounding of float64 values."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from verify_norm.core.contract import Beyond
from verify_norm.core.errors import one_of

Array = NDArray[np.float64]
EXPONENT = 0x7FF << 52  # of a float64; with its other bits cleared it is the power of two at or below it


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format with gradual underflow.

    `precision` counts the hidden bit; `emin` and `emax` are the exponents of the smallest normal and of the largest
    finite number; `largest` is the largest finite number.
    """

    name: str
    precision: int
    emin: int
    emax: int
    largest: float
    dtype: np.dtype[np.generic]

    @property
    def u(self) -> float:
        """Return the unit roundoff of round to nearest: half the distance from 1 to the next number."""
        return 2.0**-self.precision

    @property
    def smallest_normal(self) -> float:
        """Return the smallest normal number: below it, precision is lost or the value is flushed to zero."""
        return 2.0**self.emin

    def ulp(self, value: Array | float) -> Array:
        """Return the distance between neighbours in the binade of `value`, at least that of subnormals (Muller, 2018).

        >>> FORMATS["bfloat16"].ulp(np.array([1.0, 1.99, 2.0, 0.0])).tolist()
        [0.0078125, 0.0078125, 0.015625, 9.183549615799121e-41]
        """
        binade: Any = (_floats(value).view(np.int64) & EXPONENT).view(np.float64)  # of a subnormal number 0
        step: Array = np.clip(binade, 2.0**self.emin, 2.0**self.emax) * 2.0 ** (1 - self.precision)
        return step

    def round(self, value: Array) -> Array:
        """Return the nearest number of this format, ties to even, as float64; an infinity beyond the largest.

        Exact, because it scales by powers of two; a conversion through float32 would round twice. To float32 itself
        NumPy and torch convert with one rounding, in a tenth of the time.

        >>> FORMATS["float16"].round(np.array([1 + 2**-11, 1 + 3 * 2**-11, 65519.9, 65520.0])).tolist()
        [1.0, 1.001953125, 65504.0, inf]
        """
        with np.errstate(invalid="ignore", over="ignore"):
            if self.name == "float32":
                converted: Array = _floats(value).astype(np.float32).astype(np.float64)
                return converted
            step = self.ulp(value)
            rounded: Array = np.rint(value / step) * step
            here = not hasattr(rounded, "tensor")  # to look at a device array takes longer than to go on
            if here and -self.largest <= rounded.min(initial=0.0) and rounded.max(initial=0.0) <= self.largest:
                return rounded
        return np.where(np.abs(rounded) > self.largest, np.copysign(np.inf, value), rounded)

    def is_rounding(self, got: Array, value: Array, saturate: Beyond = "either") -> NDArray[np.bool_]:
        """Return whether `got` is `value` rounded to this format; NaN rounds to NaN.

        Beyond the largest number two answers may be right. The OCP specification of 8-bit formats (OFP8, revision 1.0,
        section 5.2) defines a saturating conversion to that number, and a conversion to an infinity, or to NaN in
        e4m3fn, which has no infinity. Kernels and hardware saturate; some versions of torch do not. `saturate` says
        which is right: "either" of them in an 8-bit format, the infinity in a wider one.

        >>> FORMATS["float8_e4m3fn"].is_rounding(np.array([448.0, np.nan, np.inf]), np.array([1e3, 1e3, 1.0])).tolist()
        [True, True, False]
        """
        nearest, narrow = self.round(value), self.dtype.itemsize == 1
        same: NDArray[np.bool_] = (got == nearest) | (np.isnan(got) & np.isnan(value))
        beyond = np.isinf(nearest)
        if saturate == "saturate":
            same &= ~beyond
        elif narrow and self.name == "float8_e4m3fn":
            same |= beyond & np.isnan(got)
        if saturate == "saturate" or (narrow and saturate == "either"):
            same |= beyond & (got == np.copysign(self.largest, value))
        return same


def _floats(value: Any) -> Any:
    """Return an array of float64: the value itself if it is one, in whatever memory."""
    return value.astype(np.float64, copy=False) if hasattr(value, "view") else np.asarray(value, np.float64)


def _format(name: str) -> Format:
    dtype = np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)
    info = ml_dtypes.finfo(dtype)
    largest, precision = float(info.max), info.nmant + 1
    emin, emax = int(info.minexp), int(np.frexp(largest)[1]) - 1
    return Format(name, precision, emin, emax, largest, dtype)


FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
FORMATS = {name: _format(name) for name in FLOATS}
FORMATS |= {name: _format(name) for name in ("float4_e2m1fn", "float8_e8m0fnu")}  # of a quantized y, and of its scales
FORMATS["int8"] = Format("int8", 1, 0, 0, 127.0, np.dtype(np.int8))  # of a quantized y: an ulp is 1
FORMATS["bool"] = Format("bool", 1, 0, 0, 1.0, np.dtype(np.bool_))  # of a mask: 0 and 1
KERNEL_DTYPES = ("float32", "float16", "bfloat16")  # the types that x can have
ALIASES = {"fp64": "float64", "fp32": "float32", "f32": "float32", "bf16": "bfloat16"}
ALIASES |= {"fp16": "float16", "half": "float16"}


def dtype_name(text: str, known: tuple[str, ...] = KERNEL_DTYPES) -> str:
    """Return the full name of a type; raises UsageError unless it is among `known`.

    >>> dtype_name("fp16")
    'float16'
    """
    return one_of("dtype", ALIASES.get(text, text), known)
