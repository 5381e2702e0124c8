"""Numbers as text."""

from math import inf, nan

import pytest

from verify_norm.report import numbers


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, "0"),
        (0.5, "0.50"),
        (999.99, "999.99"),
        (999.999, "1,000"),
        (1e6, "1.0 × 10⁶"),
        (-3.2e-5, "−3.2 × 10⁻⁵"),
        (nan, "NaN"),
        (-inf, "−∞"),
        (-6.1, "−6.10"),
    ],
)
def test_numbers_are_short_and_right(value, expected):
    assert numbers.number(value) == expected
