"""The verdict on values: how far a result is from the truth, in units of what its arithmetic may lose."""

from __future__ import annotations

import numpy as np

from verify_norm.dtypes import FORMATS, Array
from verify_norm.spec import Expected


def allowed(expected: Expected) -> Array:
    """δ + ½ ulp(|want| + δ): the error before the final rounding, and that rounding, per element."""
    form = FORMATS[expected.dtype]
    return expected.delta + 0.5 * form.ulp(np.abs(expected.value) + expected.delta)


def judged(expected: Expected) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Where there is something to hold a result to: the truth is a number and the bound says how near."""
    return np.isfinite(expected.value) & np.isfinite(expected.delta)


def ratio(got: Array, expected: Expected) -> Array:
    """|got − want| / allowed: above 1, no rounding of anything within δ of the truth gives `got`.

    An infinity is right (0) where something within δ of the truth overflows the format with that sign, and NaN never
    is; an 8-bit format may also saturate (`Format.is_rounding`). Where nothing is judged the ratio is 0.
    """
    form = FORMATS[expected.dtype]
    want, delta = expected.value, expected.delta
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.abs(got - want) / allowed(expected)
        farthest = form.round(want + np.copysign(delta, got))
        off = np.where(np.isfinite(got), off, np.where(got == farthest, 0.0, np.inf))
        largest = want + np.copysign(delta, want)
        off = np.where(np.isinf(form.round(largest)) & form.is_rounding(got, largest), 0.0, off)
    return np.where(judged(expected), off, 0.0)
