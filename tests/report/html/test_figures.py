"""What the figures of a page share: ticks, powers as labels, places, and constants that stay constant."""

import copy
from math import inf, nan

import pytest

from verify_norm.report.html import figures


@pytest.mark.parametrize(
    ("low", "high", "values", "words"),
    [
        (0.0, 2.0, [1, 10, 100], ["1", "10", "100"]),
        (
            -3.0,
            3.0,
            [1e-3, 1e-2, 0.1, 1, 10, 100, 1000],
            ["10<sup>−3</sup>", "0.01", "0.1", "1", "10", "100", "10<sup>3</sup>"],
        ),
        (0.2, 0.8, [], []),  # no power of ten in it
        (0.0, 13.0, [1, 100, 1e4, 1e6, 1e8, 1e10, 1e12], None),  # at most seven
    ],
)
def test_ticks_are_powers_of_ten(low, high, values, words):
    ticks = figures.decades(low, high)
    assert ticks["tickvals"] == pytest.approx(values)
    assert words is None or ticks["ticktext"] == words
    assert len(ticks["ticktext"]) == len(ticks["tickvals"]) <= 7


@pytest.mark.parametrize(
    ("k", "label"), [(0, "1"), (9, "512"), (10, "2<sup>10</sup>"), (-1, "½"), (-3, "⅛"), (-4, "2<sup>−4</sup>")]
)
def test_powers_of_two(k, label):
    assert figures.power_of_two(k) == label


def test_errors_in_words():
    assert figures.in_ulp(1.5) == "1.50 ULP"
    assert figures.in_ulp(inf) == figures.in_ulp(nan) == "not finite"


def test_a_figure_is_named_by_its_place():
    page = {}
    first, second = (figures.place(page, {"layout": {"height": h}}, f"figure of {h}") for h in (100, 200))
    assert first == {"id": "figure-1", "height": 100, "spoken": "figure of 100"}
    assert second["id"] == "figure-2"
    assert list(page) == ["figure-1", "figure-2"]


def test_what_a_figure_adds_stays_in_that_figure():
    before = copy.deepcopy(figures.constant())
    assert figures.layout(300, title="t")["height"] == 300
    assert figures.axis("N", type="log")["type"] == "log"
    assert figures.note("n", x=1.0)["font"]["color"] == "var(--soft)"
    assert figures.constant() == before
    assert "title" not in figures.layout(100)
