"""Errors in units in the last place: exact distances to a float64 truth, and statistics of them that can be merged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verify_norm.dtypes import Array, Format

LOWEST, HIGHEST, PER_OCTAVE = -8, 32, 4
BINS = (HIGHEST - LOWEST) * PER_OCTAVE + 2  # one for what is smaller, one for what is larger or not finite


def distance(got: Array, want: Array, form: Format) -> Array:
    """|got − want| in ulps of `want`'s binade in the format `form`; inf where one is finite and the other is not.

    `got` holds numbers of the format, `want` any float64. A correctly rounded value is at most ½ away, an infinity
    that rounding to nearest gives is 0 away, and NaN is 0 away from NaN.

    >>> from verify_norm.dtypes import FORMATS
    >>> distance(np.array([1.0, 1.0078125]), np.array([1.001953125, 1.0]), FORMATS["bfloat16"]).tolist()
    [0.25, 1.0]
    """
    with np.errstate(invalid="ignore", over="ignore"):
        ulps = np.abs(got - want) / form.ulp(want)
        same = form.is_rounding(got, want)
        saturated = same & np.isinf(form.round(want))
    beyond = ~np.isfinite(got) | ~np.isfinite(want) | saturated
    return np.where(beyond, np.where(same, 0.0, np.inf), ulps)


@dataclass(frozen=True, slots=True)
class UlpStats:
    """A summary of ulp distances, exact under `merge` but for quantiles, which are read off a histogram.

    `histogram` has four bins an octave from 2**-8 to 2**32 ulp, so a quantile is right within 19 %; `maximum` and
    `mean` are exact. `mean` leaves out the infinite distances, which `nonfinite` counts. `bias` is the mean signed
    error in ulp, away from zero positive. `correct` counts the correctly rounded values.
    """

    count: int = 0
    nonfinite: int = 0
    correct: int = 0
    maximum: float = 0.0
    total: float = 0.0
    signed: float = 0.0
    histogram: tuple[int, ...] = (0,) * BINS

    @classmethod
    def of(cls, got: Array, want: Array, form: Format) -> UlpStats:
        """Statistics of `got`, numbers of the format `form`, against the float64 values `want`."""
        if not got.size:
            return cls()
        ulps = distance(got, want, form).ravel()
        finite = np.isfinite(ulps)
        with np.errstate(invalid="ignore", divide="ignore"):
            sign = np.where(np.abs(got) >= np.abs(want), 1.0, -1.0).ravel()
            place = np.floor(np.log2(np.where(finite, ulps, 1.0)) * PER_OCTAVE) - LOWEST * PER_OCTAVE + 1
            bins = np.where(finite, np.clip(place, 0, BINS - 1), BINS - 1).astype(np.int64)
            correct = np.count_nonzero(form.is_rounding(got, want))
        return cls(
            count=ulps.size,
            nonfinite=int(ulps.size - np.count_nonzero(finite)),
            correct=int(correct),
            maximum=float(ulps.max()),
            total=float(ulps[finite].sum()),
            signed=float((ulps * sign)[finite].sum()),
            histogram=tuple(np.bincount(bins, minlength=BINS).tolist()),
        )

    def merge(self, other: UlpStats) -> UlpStats:
        """The statistics of both sets together."""
        return UlpStats(
            count=self.count + other.count,
            nonfinite=self.nonfinite + other.nonfinite,
            correct=self.correct + other.correct,
            maximum=max(self.maximum, other.maximum),
            total=self.total + other.total,
            signed=self.signed + other.signed,
            histogram=tuple(a + b for a, b in zip(self.histogram, other.histogram, strict=True)),
        )

    @property
    def mean(self) -> float:
        """Mean distance in ulp of the finite ones; a correctly rounded 16-bit result averages ¼."""
        return self.total / max(self.count - self.nonfinite, 1)

    @property
    def bias(self) -> float:
        """Mean signed distance in ulp; positive where results are too large in magnitude."""
        return self.signed / max(self.count - self.nonfinite, 1)

    @property
    def correctly_rounded(self) -> float:
        """Fraction of the values that are the nearest number of their format."""
        return self.correct / max(self.count, 1)

    def quantile(self, fraction: float) -> float:
        """Upper edge of the histogram bin that holds the quantile, in ulp, and never more than the maximum."""
        if not self.count:
            return 0.0
        cumulative: NDArray[np.int64] = np.cumsum(np.asarray(self.histogram, dtype=np.int64))
        place = int(np.searchsorted(cumulative, fraction * self.count))
        if place >= BINS - 1:
            return self.maximum
        return float(min(2.0 ** (LOWEST + place / PER_OCTAVE), self.maximum))
