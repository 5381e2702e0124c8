"""ULP distances against counted neighbours, and statistics that merge."""

import doctest
from dataclasses import replace

import numpy as np
import pytest

from verify_norm.core import ulp
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.ulp import UlpStats, distance


def test_doctests():
    assert doctest.testmod(ulp).failed == 0


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_distance_counts_neighbours_within_a_binade(name):
    form = FORMATS[name]
    bits = np.arange(2**15, dtype=np.uint16)
    with np.errstate(invalid="ignore"):  # signalling NaN
        numbers = bits.view(form.dtype).astype(np.float64)
    finite = np.isfinite(numbers)
    for steps in (0, 1, 2, 7):
        want, got = numbers[: -8 or None], np.roll(numbers, -steps)[:-8]
        same_binade = finite[:-8] & np.isfinite(got) & (form.ulp(got) == form.ulp(want))
        assert same_binade.sum() > 20_000
        assert np.array_equal(distance(got, want, form)[same_binade], np.full(same_binade.sum(), float(steps)))


def test_distance_to_what_is_not_a_number_of_the_format():
    form = FORMATS["bfloat16"]
    assert distance(np.array([1.0]), np.array([1 + 2.0**-9]), form).tolist() == [0.25]


@pytest.mark.parametrize(
    ("got", "want", "expected"),
    [
        (np.inf, 65520.0, 0.0),  # rounds to infinity
        (np.inf, 65519.0, np.inf),  # rounds to 65504
        (65504.0, 65520.0, 0.5),  # the last finite number, half a step below
        (np.nan, np.nan, 0.0),
        (np.nan, 1.0, np.inf),
        (1.0, np.nan, np.inf),
        (-np.inf, np.inf, np.inf),
        (0.0, 2.0**-25, 0.5),  # half the smallest subnormal
    ],
)
def test_distance_of_specials(got, want, expected):
    assert float(distance(np.array(got), np.array(want), FORMATS["float16"])) == expected


def test_statistics_of_rounding_are_those_of_rounding():
    rng = np.random.default_rng(0)
    want = rng.standard_normal(200_000)
    form = FORMATS["bfloat16"]
    stats = UlpStats.of(form.round(want), want, form)
    assert stats.maximum <= 0.5
    assert abs(stats.mean - 0.25) < 0.01
    assert stats.correctly_rounded == 1.0
    assert abs(stats.bias) < 0.01
    assert 0.45 <= stats.quantile(0.99) <= 0.5
    truncated = UlpStats.of(np.trunc(want / form.ulp(want)) * form.ulp(want), want, form)
    assert abs(truncated.mean - 0.5) < 0.01
    assert truncated.bias < -0.49
    assert abs(truncated.correctly_rounded - 0.5) < 0.01


def test_merging_is_the_same_as_taking_all_at_once():
    rng = np.random.default_rng(1)
    form = FORMATS["float16"]
    want = rng.standard_normal(3000)
    got = form.round(want * (1 + 2.0**-9 * rng.standard_normal(3000)))
    got[5] = np.nan
    whole = UlpStats.of(got, want, form)
    parts = UlpStats.of(got[:1000], want[:1000], form).merge(UlpStats.of(got[1000:], want[1000:], form))
    assert parts.histogram == whole.histogram
    assert (parts.count, parts.nonfinite, parts.correct, parts.maximum) == (3000, 1, whole.correct, np.inf)
    assert parts.mean == pytest.approx(whole.mean)
    assert UlpStats().merge(whole) == whole


@pytest.mark.parametrize("fraction", [0.5, 0.9, 0.99])
def test_quantiles_are_right_within_a_bin(fraction):
    rng = np.random.default_rng(2)
    form = FORMATS["float32"]
    want = 1.0 + rng.random(50_000) / 2
    errors = rng.exponential(8.0, 50_000).round()
    got = form.round(want) + errors * form.ulp(want)
    exact = np.quantile(distance(got, want, form), fraction)
    assert exact <= UlpStats.of(got, want, form).quantile(fraction) <= exact * 2**0.25 * (1 + 1e-12)


def test_statistics_by_hand():
    """Errors of 0, 1, −2 and 2⁻⁹ ulp, one infinity that is wrong and one that is right."""
    form = FORMATS["float16"]
    want = np.array([1.0, 1.0, -4.0, 1.0 - 2.0**-20, 1.0, 1e6])
    got = np.array([1.0, 1.0 + 2.0**-10, -4.0 + 2.0**-7, 1.0, np.inf, np.inf])
    one = UlpStats.of(got, want, form)
    assert (one.count, one.nonfinite, one.correct, one.maximum) == (6, 1, 3, np.inf)
    assert one.total == 0 + 1 + 2 + 2.0**-9
    assert one.signed == 0 + 1 - 2 + 2.0**-9
    assert (one.mean, one.bias, one.correctly_rounded) == (one.total / 5, one.signed / 5, 0.5)
    bins = {n: count for n, count in enumerate(one.histogram) if count}
    assert bins == {0: 3, 1 + 8 * 4: 1, 1 + 9 * 4: 1, ulp.BINS - 1: 1}
    given = UlpStats.of(got, want, form, ulps=np.full((2, 3), 0.5))
    assert (given.maximum, given.total, given.histogram[1 + 7 * 4]) == (0.5, 3.0, 6)
    far = UlpStats.of(np.array([2.0**-14]), np.array([2.0**-60]), FORMATS["float64"])
    assert (far.histogram[-1], len(far.histogram)) == (1, ulp.BINS), "larger than the last edge"


def test_saturation_counts_as_rounding_where_it_is_allowed():
    form, got, want = FORMATS["float8_e5m2"], np.array([57344.0]), np.array([1e6])
    for saturate, right in (("either", True), ("saturate", True), ("overflow", False)):
        one = UlpStats.of(got, want, form, saturate)
        assert (one.correct, one.maximum == 0, distance(got, want, form, saturate)[0] == 0) == (right,) * 3
    assert distance(got, want, form)[0] == 0
    assert UlpStats.of(got, want, form).correct == 1


def test_quantiles_at_the_ends():
    assert UlpStats().quantile(0.5) == 0.0
    last = replace(UlpStats(), count=4, maximum=7.0, histogram=(0,) * (ulp.BINS - 2) + (2, 2))
    assert (last.quantile(1.0), last.quantile(0.5)) == (7.0, 7.0), "the maximum is less than the edges"
    far = replace(last, maximum=1e12)
    assert (far.quantile(1.0), far.quantile(0.5)) == (1e12, 2.0**32)
    assert replace(far, histogram=(1, 3) + (0,) * (ulp.BINS - 2)).quantile(0.25) == 2.0**-8


def test_numbers_whose_difference_overflows_are_infinitely_far_apart():
    form, most = FORMATS["float64"], FORMATS["float64"].largest
    assert distance(np.array([most]), np.array([-most]), form).tolist() == [np.inf]
