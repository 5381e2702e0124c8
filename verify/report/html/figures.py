"""What the figures of a page have in common: scales, ticks, and numbers in words.

A figure is SVG that the templates write, in percents of its plot's width and height. So it fits any width while its
text keeps its size, follows the style sheet's colours (light, dark, paper), and is there without a script. Bars,
lines and cells need no charting library: plotly's package carries only the whole of plotly.js, 4.8 MB, which are 2.0
MB deflated and in base64; SVG from Matplotlib has fixed colours and one width.
"""

from collections.abc import Iterable
from math import ceil, floor, isfinite
from typing import Any, NamedTuple

from verify_norm.report.numbers import RAISED, number, step

Figure = dict[str, Any]
Ticks = list[tuple[float, str]]  # a place in percent, and its label
CORRECT = 0.5  # ulp: the largest error of a correctly rounded value


class Scale(NamedTuple):
    """An axis from its left or upper end to the other one, in what it is linear in: a logarithm, mostly."""

    first: float
    last: float

    def at(self, value: float) -> float:
        """Return the place of a value, in percent.

        >>> Scale(0.0, 4.0).at(1.0), Scale(3.0, -1.0).at(2.0)
        (25.0, 25.0)
        """
        return round(100 * (value - self.first) / (self.last - self.first), 2)


def path(points: Iterable[tuple[float, float]]) -> str:
    """Return a line through points as the path of an SVG element.

    >>> path([(0, 100), (50.0, 12.5)])
    'M0 100L50 12.5'
    """
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)


def decades(scale: Scale, most: int = 7) -> Ticks:
    """Return the ticks of a scale of log10, at most `most`, written as powers of ten."""
    low, high = sorted(scale)
    first, last = ceil(low - 1e-9), floor(high + 1e-9)
    values = range(first, last + 1, max(1, ceil((last - first + 1) / most)))
    return [(scale.at(k), step(10.0**k) if -2 <= k <= 2 else f"10{_raised(k)}") for k in values]


def power_of_two(k: int) -> str:
    """Return 2**k as a label.

    >>> power_of_two(9), power_of_two(12), power_of_two(-3)
    ('512', '2¹²', '⅛')
    """
    return step(2.0**k) if 0 <= k < 10 else {-1: "½", -2: "¼", -3: "⅛"}.get(k, f"2{_raised(k)}")


def _raised(whole: int) -> str:
    return str(whole).translate(RAISED)


def in_ulp(error: float) -> str:
    """Return an error in words."""
    return f"{number(error)} ULP" if isfinite(error) else "not finite"
