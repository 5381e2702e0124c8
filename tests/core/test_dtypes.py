"""Rounding and ulps against every number of the 16-bit formats, and against torch's own conversions."""

import doctest
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
import torch

from verify_norm.core import dtypes
from verify_norm.core.dtypes import FLOATS, FORMATS
from verify_norm.core.errors import UsageError

SMALL = ("float16", "bfloat16", "float8_e5m2", "float8_e4m3fn")


def every_number(name):
    """All finite numbers of a format, in order, without −0."""
    form = FORMATS[name]
    bits = np.arange(2 ** (8 * form.dtype.itemsize)).astype(f"u{form.dtype.itemsize}")
    with np.errstate(invalid="ignore"):  # signalling NaN
        values = bits.view(form.dtype).astype(np.float64)
    return np.unique(values[np.isfinite(values)])


def test_doctests():
    assert doctest.testmod(dtypes).failed == 0


@pytest.mark.parametrize("name", SMALL)
def test_ulp_is_the_distance_to_the_next_number_in_the_binade(name):
    form, numbers = FORMATS[name], every_number(name)
    positive = numbers[numbers >= 0]
    gaps = np.diff(positive)
    assert np.array_equal(form.ulp(positive[:-1]), gaps)
    assert np.array_equal(form.ulp(-positive[:-1]), gaps)


@pytest.mark.parametrize("name", SMALL)
def test_rounding_is_to_the_nearest_with_ties_to_even(name):
    form, numbers = FORMATS[name], every_number(name)
    for share in (0.25, 0.5, 0.75):
        between = numbers[:-1] + share * np.diff(numbers)
        nearest = numbers[:-1] if share < 0.5 else numbers[1:]
        if share == 0.5:
            even = np.abs(np.array([lower for lower, _ in pairwise(numbers)]) / form.ulp(between)) % 2 == 0
            nearest = np.where(even, numbers[:-1], numbers[1:])
        assert np.array_equal(form.round(between), nearest)
    assert np.array_equal(form.round(numbers), numbers)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_rounding_agrees_with_torch(name):
    rng = np.random.default_rng(0)
    with np.errstate(over="ignore"):
        values = np.ldexp(rng.standard_normal(20_000), rng.integers(-160, 130, 20_000)).astype(np.float32).astype(float)
    torchs = torch.from_numpy(values).to(torch.float32).to(getattr(torch, name)).double().numpy()
    assert np.array_equal(FORMATS[name].round(values), torchs)


def test_rounding_to_float32_is_to_the_nearest_with_ties_to_even():
    """Of numbers of every magnitude, subnormal ones among them, and of what is next to the largest."""
    form, bits = FORMATS["float32"], np.random.default_rng(0).integers(0, 0x7F800000, 20_000).astype(np.int32)
    lower = np.concatenate([[0, 1, 0x7FFFFF, 0x7F7FFFFE], bits[bits < 0x7F7FFFFF]]).astype(np.int32)
    below, above = (some.view(np.float32).astype(np.float64) for some in (lower, lower + 1))
    for share, nearest in ((0.49, below), (0.5, np.where(lower % 2, above, below)), (0.51, above)):
        between = below + share * (above - below)
        for sign in (1.0, -1.0):
            assert np.array_equal(form.round(sign * between), sign * nearest)
    assert np.signbit(form.round(np.array([-0.0, -(2.0**-160), 2.0**-160]))).tolist() == [True, True, False]
    tie = form.largest + form.ulp(form.largest) / 2
    assert form.round(np.array([np.nextafter(tie, 0), tie, -tie, np.inf])).tolist() == [
        form.largest,
        *np.inf * np.array([1, -1, 1]),
    ]


def test_rounding_does_not_round_twice():
    # Just above the middle of two bfloat16 numbers, by less than float32 holds: through float32 it would fall to even.
    value = np.array([1 + 2.0**-8 + 2.0**-40])
    assert FORMATS["bfloat16"].round(value).tolist() == [1 + 2.0**-7]


def test_overflow_and_specials():
    form = FORMATS["float16"]
    special = np.array([65519.99, 65520.0, -1e300, np.inf, -np.inf, np.nan])
    assert np.array_equal(
        form.round(special), np.array([65504, np.inf, -np.inf, np.inf, -np.inf, np.nan]), equal_nan=True
    )


BEYOND = [  # format, saturate: whether the largest number, an infinity and NaN are right beyond the largest number
    ("float8_e4m3fn", "either", (True, True, True)),
    ("float8_e4m3fn", "overflow", (False, True, True)),
    ("float8_e4m3fn", "saturate", (True, False, False)),
    ("float8_e5m2", "either", (True, True, False)),
    ("float8_e5m2", "overflow", (False, True, False)),
    ("float8_e5m2", "saturate", (True, False, False)),
    *((name, "either", (False, True, False)) for name in ("float16", "bfloat16", "float32")),
    *((name, "overflow", (False, True, False)) for name in ("float16", "bfloat16", "float32")),
    *((name, "saturate", (True, False, False)) for name in ("float16", "bfloat16", "float32")),
]


@pytest.mark.parametrize(("name", "saturate", "right"), BEYOND)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_what_is_right_beyond_the_largest_number(name, saturate, right, sign):
    form = FORMATS[name]
    got = np.array([form.largest, np.inf, np.nan, 1.0, -form.largest, -np.inf]) * sign
    value = np.full(6, 4 * form.largest) * sign
    assert form.is_rounding(got, value, saturate).tolist() == [*right, False, False, False]
    assert not form.is_rounding(got[1:3], np.ones(2), saturate).any()  # of a number that is not beyond it


@pytest.mark.parametrize(("name", "u"), [("float32", 2.0**-24), ("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_unit_roundoff(name, u):
    assert FORMATS[name].u == u


def test_short_names_of_types():
    assert dtypes.dtype_name("bf16") == dtypes.dtype_name("bfloat16") == "bfloat16"
    assert dtypes.dtype_name("fp64", ("float64",)) == "float64"
    assert set(dtypes.ALIASES.values()) | set(dtypes.KERNEL_DTYPES) <= set(FORMATS)
    with pytest.raises(UsageError, match="unknown dtype 'float64'"):
        dtypes.dtype_name("float64")


@pytest.mark.parametrize("name", [*SMALL, "float32", "float64"])
def test_the_ulp_of_numbers_that_are_no_array_is_that_of_arrays(name):
    form = FORMATS[name]
    values = [0.0, 1.0, -1.99, 2.0, 1e300, form.smallest_normal, 0.75 * form.smallest_normal, 1e-320, form.largest]
    assert [float(form.ulp(value)) for value in values] == form.ulp(np.array(values)).tolist()
    assert form.ulp(np.array([1.5, 2.5], np.float32)).tolist() == [2 * form.u, 4 * form.u]


def test_whole_numbers_have_an_ulp_of_1_and_saturate_at_127():
    form, values = FORMATS["int8"], np.array([-1e9, -127.4, -2.5, 0.4, 1.5, 126.6, 300.0])
    assert form.ulp(values).tolist() == [1.0] * 7
    assert form.round(values).tolist() == [-np.inf, -127, -2, 0, 2, 127, np.inf]
    assert form.is_rounding(np.array([-127.0, -127, -3, 0, 2, 126, 127]), values).tolist() == [
        True,
        True,
        False,
        True,
        True,
        False,
        True,
    ]


@pytest.mark.parametrize("name", FLOATS)
def test_constants_are_those_of_the_formats(name):
    form, info = FORMATS[name], ml_dtypes.finfo(name)
    assert (form.name, form.dtype.name, form.dtype.itemsize * 8) == (name, name, info.bits)
    assert (form.largest, form.smallest_normal, 2 * form.u) == (info.max, info.smallest_normal, info.eps)
    assert 2.0**form.emax <= form.largest < 2 * (2.0**form.emax)
    step = 2.0 ** (form.emax - form.precision + 1)
    of = np.array([0.0, -0.0, 2.0**-1074, 1.0, -1.0, info.max, 2.0**1023, np.inf, -np.inf, np.nan])
    assert form.ulp(of).tolist() == [*[info.smallest_subnormal] * 3, info.eps, info.eps, *[step] * 5]


def test_rounding_of_nothing_and_of_what_is_beyond_float64_says_nothing():
    assert FORMATS["float16"].round(np.zeros(0)).shape == (0,)
    assert FORMATS["float64"].round(np.array([-1e308, 1.5, np.inf])).tolist() == [-1e308, 1.5, np.inf]
    assert FORMATS["float8_e5m2"].round(np.array([1e300, np.nan]))[0] == np.inf
    assert FORMATS["float16"].round(np.array([-65504.0])).tolist() == [-65504.0]
    assert FORMATS["float16"].round(np.array([-1e9])).tolist() == [-np.inf]


class OnDevice(np.ndarray):
    """An array as one on a device: to look at its numbers takes long."""

    tensor = None

    def min(self, **options):
        raise AssertionError("it was looked at")


def test_an_array_is_taken_in_the_memory_where_it_is():
    values = np.array([1.0, 65519.9, 65520.0, -1e9])
    assert dtypes._floats(values) is values
    there = values.view(OnDevice)
    assert type(dtypes._floats(there)) is OnDevice
    assert FORMATS["float16"].round(there).tolist() == [1.0, 65504.0, np.inf, -np.inf]
    with pytest.raises(AssertionError, match="it was looked at"):
        there.min()


def test_whole_numbers_have_the_ulp_of_their_value():
    form = FORMATS["float16"]
    assert [float(form.ulp(value)) for value in (1, 3, 2048)] == [2.0**-10, 2.0**-9, 2.0]
    assert form.ulp([1, 3]).tolist() == [2.0**-10, 2.0**-9]


@pytest.mark.parametrize("name", ["float32", "float16", "int8"])
def test_what_is_not_finite_is_rounded_without_a_warning(name):
    values = np.array([np.inf, -np.inf, np.nan, 1e300])
    assert np.array_equal(FORMATS[name].round(values), [np.inf, -np.inf, np.nan, np.inf], equal_nan=True)
