"""The verdict on a value: what is a rounding of something within δ, and what is not."""

import numpy as np
import pytest

from verify_norm.core.dtypes import FORMATS
from verify_norm.core.judge import allowed, hidden, identical, ratio, ulps
from verify_norm.core.run import Expected


def verdict(got, want, delta, dtype="float16"):
    expected = Expected(np.array([want], dtype=float), np.array([delta], dtype=float), dtype)
    return float(ratio(np.array([got], dtype=float), expected)[0])


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_every_rounding_of_what_is_within_delta_passes(name):
    rng = np.random.default_rng(0)
    form = FORMATS[name]
    want = np.ldexp(rng.standard_normal(50_000), rng.integers(-30, 15, 50_000))
    delta = np.abs(want) * form.u * rng.exponential(1.0, 50_000)
    got = form.round(want + delta * rng.uniform(-1, 1, 50_000))
    assert ratio(got, Expected(want, delta, name)).max() <= 1


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_a_neighbour_too_far_fails(name):
    rng = np.random.default_rng(0)
    form = FORMATS[name]
    want = 1.0 + rng.uniform(0.01, 0.99, 1000)  # away from the ends of the binade
    delta = np.full(1000, 0.25 * form.ulp(np.array(1.5)))
    right = form.round(want)
    assert (ratio(right + form.ulp(want) * np.sign(right - want), Expected(want, delta, name)) > 1).all()


@pytest.mark.parametrize(
    ("got", "want", "delta", "passes"),
    [
        (np.inf, 65530.0, 0.0, True),  # overflow is right where the truth overflows
        (np.inf, 65510.0, 20.0, True),  # or something within δ of it
        (np.inf, 65510.0, 1.0, False),
        (-np.inf, 65530.0, 0.0, False),
        (65504.0, 1e6, 10.0, False),  # saturating is not rounding
        (np.nan, 1.0, 0.1, False),
        (np.nan, 1.0, np.inf, True),  # nothing is known here
        (7.0, np.nan, 1.0, True),  # for `nonfinite` to tell
        (0.0, 2.0**-26, 0.0, True),  # underflow
        (1.0, 1.0, 0.0, True),
        (1.0 - 2.0**-11, 1.0, 0.0, False),  # the number below a power of two is half an ulp of it away
        (1.0 - 2.0**-11, 1.0, 2.0**-11.9, True),
        (1.0 + 2.0**-10, 1.0 + 2.0**-11, 0.0, False),  # a tie goes to the even one
        (1.0 + 2.0**-10, 1.0 + 2.0**-11, 2.0**-30, True),
        (2.0**-24, 2.0**-26, 0.0, False),
    ],
)
def test_specials(got, want, delta, passes):
    assert (verdict(got, want, delta) <= 1) == passes


BEYOND = {  # the answers that are right beyond the largest number: that number, an infinity, NaN
    ("float16", "either"): "infinity",
    ("float16", "saturate"): "largest",
    ("float16", "overflow"): "infinity",
    ("float8_e5m2", "either"): "largest infinity",
    ("float8_e5m2", "saturate"): "largest",
    ("float8_e5m2", "overflow"): "infinity",
    ("float8_e4m3fn", "either"): "largest NaN",
    ("float8_e4m3fn", "saturate"): "largest",
    ("float8_e4m3fn", "overflow"): "NaN",
}


@pytest.mark.parametrize(("dtype", "saturate"), BEYOND)
def test_what_is_right_beyond_the_largest_number(dtype, saturate):
    """With a truth far beyond it, and with one that only δ takes there."""
    largest = FORMATS[dtype].largest
    answers = {"largest": largest, "infinity": np.inf, "NaN": np.nan}
    if dtype == "float8_e4m3fn":
        del answers["infinity"]  # it has none
    for want, delta in ((4 * largest, 1.0), (1.5 * largest, 1.0), (largest, largest / 8)):
        for name, got in answers.items():
            for sign in (1, -1):
                expected = Expected(np.array([sign * want]), np.array([delta]), dtype, saturate)
                right = name in BEYOND[dtype, saturate].split() or (name == "largest" and want == largest)
                assert (ratio(np.array([sign * got]), expected)[0] <= 1) == right
                if want > largest:
                    assert (ulps(np.array([sign * got]), expected)[0] <= 0.5) == right


def test_the_error_over_what_is_allowed_is_in_numbers():
    """1 + 2⁻¹⁰ is the next number after 1 in float16; half an ulp is 2⁻¹¹."""
    want, delta = np.array([1.0, -1.0, 1.0, 0.0, 1.5]), np.array([0.0, 2.0**-11, 3 * 2.0**-12, 2.0**-24, 2.0**-9])
    got = np.array([1.0, -1.0, 1.0 + 2.0**-10, 0.0, 1.5 - 2.0**-10])
    expected = Expected(want, delta, "float16")
    assert allowed(expected).tolist() == [2.0**-11, 2.0**-10, 5 * 2.0**-12, 1.5 * 2.0**-24, 2.0**-9 + 2.0**-11]
    assert ratio(got, expected).tolist() == [0.0, 0.0, 0.8, 0.0, 0.4]
    far = Expected(np.array([1.0, 3.875]), np.array([0.0, 0.25]), "float16")
    assert ratio(np.array([1.0 + 2.0**-9, 3.0]), far).tolist() == [
        4.0,
        0.875 / (0.25 + 2.0**-9),
    ]  # the ulp is that of 4.125


@pytest.mark.parametrize(
    ("got", "want", "delta", "expected"),
    [
        (65504.0, 65504.0, 40.0, 0.0),  # within δ it overflows, and right it is
        (65472.0, 65504.0, 40.0, 32 / 56),
        (np.inf, 65504.0, 40.0, 0.0),
        (np.inf, 65504.0, 8.0, np.inf),
        (-np.inf, 65504.0, 40.0, np.inf),
        (np.nan, 65504.0, 40.0, np.inf),
        (np.nan, 1.0, 40.0, np.inf),
        (np.inf, np.inf, 1.0, 0.0),  # not judged
        (1.0, np.nan, 1.0, 0.0),
        (np.inf, 1.0, 1e5, 0.0),  # on either side, where δ goes beyond both ends
        (-np.inf, 1.0, 1e5, 0.0),
        (-np.inf, 3e4, 8e4, np.inf),
    ],
)
def test_the_error_near_the_largest_number(got, want, delta, expected):
    assert verdict(got, want, delta) == expected
    assert verdict(-got, -want, delta) == expected
    if got == np.inf and np.isfinite(want):
        saturating = Expected(np.array([want]), np.array([delta]), "float16", "saturate")
        assert ratio(np.array([got]), saturating)[0] == np.inf


def test_numbers_of_float64_that_overflow_in_between_say_nothing():
    largest = FORMATS["float64"].largest
    expected = Expected(np.array([largest, -largest]), np.array([largest, 0.0]), "float64")
    assert ratio(np.array([np.inf, -largest]), expected)[1] == 0.0


def test_what_is_reached_by_a_rounding_of_float64_alone_is_at_its_bound():
    tie = 1 + 3 * 2.0**-11  # want + δ is a little below it, and rounds to it
    assert verdict(1 + 2.0**-9, np.nextafter(tie, 0.0), 1.5 * 2.0**-53) == 1.0


def test_a_number_near_the_largest_is_right_where_what_is_within_delta_saturates():
    expected = Expected(np.array([40000.0, -40000.0]), np.array([30000.0, 30000.0]), "float16", "saturate")
    assert ratio(np.array([65504.0, -65504.0]), expected).tolist() == [0.0, 0.0]


def test_two_results_are_identical_where_both_are_nan_or_have_the_same_sign_and_value():
    one, other = np.array([np.nan, 1.0, np.nan, np.nan, 0.0]), np.array([1.0, np.nan, np.nan, -np.nan, -0.0])
    assert identical(one, other).tolist() == [False, False, True, True, False]


@pytest.mark.parametrize(
    ("got", "want", "nan", "name", "expected"),
    [
        (1.0, np.nan, False, "y", True),
        (1.0, np.inf, False, "y", True),
        (1.0, np.nan, True, "y", True),
        (0.0, np.inf, False, "y", True),
        (np.nan, np.inf, False, "y", False),
        (np.inf, np.inf, False, "y", False),
        (np.inf, np.nan, False, "y", False),  # of infinities in another order
        (np.inf, np.nan, True, "y", True),
        (np.inf, np.inf, True, "y", False),
        (np.nan, np.nan, True, "y", False),
        (1.0, 1.0, True, "y", False),
        (np.inf, 1.0, True, "y", False),
        (0.0, np.nan, False, "rstd", False),  # 1/√∞
        (0.0, np.nan, True, "rstd", True),
        (0.5, np.nan, False, "rstd", True),
        (1.0, np.nan, False, "rstd", True),
    ],
)
def test_what_a_number_or_an_infinity_hides(got, want, nan, name, expected):
    assert hidden(name, np.array([got]), np.array([want]), np.array([nan])).tolist() == [expected]
