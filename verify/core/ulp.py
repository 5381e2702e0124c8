"""Errors in units in the last place: exact distances to a float64 truth, and statistics of them that can be merged."""

from dataclasses import dataclass
from operator import add

import numpy as np
from typing_extensions import Self

from verify_norm.core.contract import Beyond
from verify_norm.core.dtypes import Array, Format

LOWEST, HIGHEST, PER_OCTAVE = -8, 32, 4
BINS = (HIGHEST - LOWEST) * PER_OCTAVE + 2  # one for what is smaller, one for what is larger or not finite


def distance(got: Array, want: Array, form: Format, saturate: Beyond = "either") -> Array:
    """Return |got − want| in ulps of the binade of `want` in the format `form`; inf if only one of them is finite.

    `got` holds numbers of the format, `want` any float64. A correctly rounded value is at most ½ away, an infinity
    that results from rounding is 0 away, as is a number that results from saturation where `saturate` allows it
    (`Format.is_rounding`), and NaN is 0 away from NaN.

    >>> from verify_norm.core.dtypes import FORMATS
    >>> distance(np.array([1.0, 1.0078125]), np.array([1.001953125, 1.0]), FORMATS["bfloat16"]).tolist()
    [0.25, 1.0]
    """
    with np.errstate(invalid="ignore", over="ignore"):
        ulps = np.abs(got - want) / form.ulp(want)
        same = form.is_rounding(got, want, saturate)
        saturated = same & np.isinf(form.round(want))
    beyond = ~np.isfinite(got) | ~np.isfinite(want) | saturated
    return np.where(beyond, np.where(same, 0.0, np.inf), ulps)


@dataclass(frozen=True, slots=True)
class UlpStats:
    """A summary of ulp distances. `merge` is exact; quantiles are read off a histogram.

    `histogram` has four bins an octave from 2**-8 to 2**32 ulp, so a quantile is right within 19 %. `mean` leaves out
    infinite distances, which `nonfinite` counts. `correct` counts the correctly rounded values.
    """

    count: int = 0
    nonfinite: int = 0
    correct: int = 0
    maximum: float = 0.0
    total: float = 0.0
    signed: float = 0.0
    histogram: tuple[int, ...] = (0,) * BINS

    @classmethod
    def of(cls, got: Array, want: Array, form: Format, saturate: Beyond = "either", ulps: Array | None = None) -> Self:
        """Return the statistics of `got`, numbers of the format `form`, against the float64 values `want`.

        `ulps` is their `distance`, where it is known.
        """
        if not got.size:
            return cls()
        ulps = (distance(got, want, form, saturate) if ulps is None else ulps).ravel()
        finite = np.isfinite(ulps)
        with np.errstate(invalid="ignore", divide="ignore"):
            sign = np.where(np.abs(got) >= np.abs(want), 1.0, -1.0).ravel()
            place = np.floor(np.log2(np.where(finite, ulps, 1.0)) * PER_OCTAVE) - LOWEST * PER_OCTAVE + 1
            bins = np.where(finite, np.clip(place, 0, BINS - 1), BINS - 1).astype(np.int64)
            correct = form.is_rounding(got, want, saturate)
            counted = np.where(finite, ulps, 0.0)
            sums = finite.sum(), correct.sum(), counted.sum(), (counted * sign).sum(), ulps.max()
        judged, right, total, signed, maximum = (float(one) for one in np.stack(sums).tolist())  # a GPU's in one copy
        return cls(
            count=ulps.size,
            nonfinite=ulps.size - int(judged),
            correct=int(right),
            maximum=maximum,
            total=total,
            signed=signed,
            histogram=tuple(np.bincount(bins, minlength=BINS).tolist()),
        )

    def merge(self, other: Self) -> Self:
        """Return the statistics of both sets together."""
        sums = {n: getattr(self, n) + getattr(other, n) for n in ("count", "nonfinite", "correct", "total", "signed")}
        histogram = tuple(map(add, self.histogram, other.histogram))
        return type(self)(**sums, maximum=max(self.maximum, other.maximum), histogram=histogram)

    @property
    def mean(self) -> float:
        """Return the mean of the finite distances, in ulp; a correctly rounded 16-bit result averages ¼."""
        return self.total / max(self.count - self.nonfinite, 1)

    @property
    def bias(self) -> float:
        """Return the mean signed distance, in ulp; positive if results are too large in magnitude."""
        return self.signed / max(self.count - self.nonfinite, 1)

    @property
    def correctly_rounded(self) -> float:
        """Return the fraction of the values that are correctly rounded."""
        return self.correct / max(self.count, 1)

    def quantile(self, fraction: float) -> float:
        """Return the upper edge of the histogram bin that holds the quantile, in ulp, at most the maximum."""
        if not self.count:
            return 0.0
        place = int(np.searchsorted(np.cumsum(self.histogram), fraction * self.count))
        if place >= BINS - 1:
            return self.maximum
        return float(min(2.0 ** (LOWEST + place / PER_OCTAVE), self.maximum))
