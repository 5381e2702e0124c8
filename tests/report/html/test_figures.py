"""What the figures of a page share: places, ticks, and powers as labels."""

from math import inf, nan

import pytest

from verify_norm.report.html import figures


@pytest.mark.parametrize(
    ("low", "high", "values", "words"),
    [
        (0.0, 2.0, [0, 1, 2], ["1", "10", "100"]),
        (-3.0, 3.0, [-3, -2, -1, 0, 1, 2, 3], ["10⁻³", "0.01", "0.1", "1", "10", "100", "10³"]),
        (0.2, 0.8, [], []),  # no power of ten in it
        (0.0, 13.0, [0, 2, 4, 6, 8, 10, 12], None),  # at most seven
    ],
)
@pytest.mark.parametrize("upward", [False, True])
def test_ticks_are_powers_of_ten(low, high, values, words, upward):
    scale = figures.Scale(high, low) if upward else figures.Scale(low, high)
    ticks = figures.decades(scale)
    share = [100 * (value - low) / (high - low) for value in values]
    assert [at for at, _ in ticks] == pytest.approx([100 - one for one in share] if upward else share, abs=0.01)
    assert words is None or [label for _, label in ticks] == words


@pytest.mark.parametrize(("k", "label"), [(0, "1"), (9, "512"), (10, "2¹⁰"), (-1, "½"), (-3, "⅛"), (-4, "2⁻⁴")])
def test_powers_of_two(k, label):
    assert figures.power_of_two(k) == label


def test_errors_in_words():
    assert figures.in_ulp(1.5) == "1.50 ULP"
    assert figures.in_ulp(inf) == figures.in_ulp(nan) == "not finite"
