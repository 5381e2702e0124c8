"""The verdict on values: the error of a result, relative to the bound of its arithmetic."""

from typing import Any

import numpy as np

from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.run import Expected
from verify_norm.core.ulp import distance

ABOVE = float(np.nextafter(1.0, 2.0))


def allowed(expected: Expected) -> Array:
    """Return δ + ½ ulp(|want| + δ) per element: the error before the final rounding, plus that rounding."""
    form = FORMATS[expected.dtype]
    return expected.delta + 0.5 * form.ulp(np.abs(expected.value) + expected.delta)


def judged(expected: Expected) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return where a result can be judged: the truth and its bound are finite."""
    return np.isfinite(expected.value) & np.isfinite(expected.delta)


def ulps(got: Array, expected: Expected) -> Array:
    """Return the distance of every element from the truth, in ulps of its binade (`verify_norm.core.ulp.distance`)."""
    return distance(got, expected.value, FORMATS[expected.dtype], expected.saturate)


def identical(one: Array, other: Array) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return where two results have the same bits: NaN equals NaN of any sign and payload, and 0 does not equal −0.

    >>> identical(np.array([0.0, np.nan, 1.0]), np.array([-0.0, -np.nan, 1.0])).tolist()
    [False, True, True]
    """
    same: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] = (one == other) & (np.signbit(one) == np.signbit(other))
    return same | (np.isnan(one) & np.isnan(other))


def hidden(name: str, got: Array, want: Array, nan: Any) -> Any:
    """Return where a number hides a NaN or an infinity of the truth, or an infinity hides a NaN.

    `nan` says where the inputs that an element depends on have a NaN. Of infinite inputs the same sums in another order
    have ∞ − ∞ in other places, so an infinity may stand for a NaN; and rstd may be 0 (`verify_norm.checks.nonfinite`).
    """
    vanished = np.logical_not(nan) & (got == 0) & (name == "rstd")
    return (~np.isfinite(want) & np.isfinite(got) & ~vanished) | (np.isnan(want) & np.isinf(got) & nan)


def worst(ratio: Array) -> tuple[int, ...]:
    """Return the index of the largest ratio."""
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(ratio)), ratio.shape))


def ratio(got: Array, expected: Expected) -> Array:
    """Return |got − want| / allowed, above 1 where no rounding of any value within δ of the truth gives `got`.

    Rounding is monotonic, so those are the numbers from the rounded want − δ to the rounded want + δ. Half an ulp is
    too wide only below a power of two. An infinity counts as right (0) if a value within δ of the truth overflows the
    format with that sign. NaN is never right. `expected.saturate` says where these are otherwise
    (`Format.is_rounding`). Elements that are not judged have a ratio of 0.
    """
    form, want, delta = FORMATS[expected.dtype], expected.value, expected.delta
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.abs(got - want) / allowed(expected)
        reached = (form.round(want - delta) <= got) & (got <= form.round(want + delta))
        off = np.where(reached, np.minimum(off, 1.0), np.maximum(off, ABOVE))
        near = np.abs(want) + delta > form.largest / 2  # no other value overflows
        if (near | ~np.isfinite(got)).any():
            off = _overflowing(off, got, expected)
    return np.where(judged(expected), off, 0.0)


def _overflowing(off: Array, got: Array, expected: Expected) -> Array:
    """Return the ratios where a result, or a value within δ of the truth, is beyond the largest number."""
    form, want, delta = FORMATS[expected.dtype], expected.value, expected.delta
    farthest = form.round(want + np.copysign(delta, got))
    right = (got == farthest) & (expected.saturate != "saturate")
    off = np.where(np.isfinite(got), off, np.where(right, 0.0, np.inf))
    largest = want + np.copysign(delta, want)
    return np.where(np.isinf(form.round(largest)) & form.is_rounding(got, largest, expected.saturate), 0.0, off)
