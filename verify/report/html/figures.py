"""What the figures of a page have in common, as plotly takes it: plain data. `figure.json` holds what never changes.

A colour is a name of the style sheet, as "var(--ink)"; the page's script puts in its value on light, dark or paper.
"""

import json
from functools import cache
from importlib import resources
from math import ceil, floor, isfinite
from typing import Any

from verify_norm.report.words import number, short, step

Figure = dict[str, Any]
CORRECT = 0.5  # ulp: the largest error of a correctly rounded value


def place(figures: dict[str, Figure], figure: Figure, spoken: str) -> dict[str, Any]:
    """Add a figure to those of a page, which are named by their place, and return the place.

    `spoken` says what the figure shows. The page's script draws a figure when its place comes into view.
    """
    name = f"figure-{len(figures) + 1}"
    figures[name] = figure
    return {"id": name, "height": figure["layout"]["height"], "spoken": spoken}


def resource(name: str) -> str:
    """Return the text of a file of this package."""
    return resources.files("verify_norm.report.html").joinpath(name).read_text(encoding="utf-8")


@cache
def constant() -> dict[str, Figure]:
    """Return the constant parts: of layouts, axes and colour bars, and the colour and dashes of each algorithm."""
    return json.loads(resource("figure.json"))  # type: ignore[no-any-return]


def layout(height: int, **more: Any) -> Figure:
    """Return the layout of a figure of this height in pixels."""
    return {"height": height} | constant()["layout"] | more


def axis(title: str = "", **more: Any) -> Figure:
    """Return an axis, whose `title` is a label."""
    return constant()["axis"] | {"title": {"text": title, "standoff": 8}} | more


def note(text: str, colour: str = "var(--soft)", **where: Any) -> Figure:
    """Return words in a figure, whose `text` is a label."""
    return {"text": text, "showarrow": False, "yref": "paper", "font": {"size": 12, "color": colour}} | where


def upright(x: float, colour: str) -> Figure:
    """Return a dotted line from bottom to top."""
    line = {"color": colour, "width": 1, "dash": "dot"}
    return {"type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1, "line": line}


def decades(low: float, high: float, most: int = 7) -> Figure:
    """Return the ticks of a logarithmic axis from 10**low to 10**high, at most `most`, written as powers of ten."""
    first, last = ceil(low - 1e-9), floor(high + 1e-9)
    values = range(first, last + 1, max(1, ceil((last - first + 1) / most)))
    words = [step(10.0**k) if -2 <= k <= 2 else f"10<sup>{_minus(k)}</sup>" for k in values]
    return {"tickvals": [short(10.0**k) for k in values], "ticktext": words}


def power_of_two(k: int) -> str:
    """Return 2**k as a label."""
    return step(2.0**k) if 0 <= k < 10 else {-1: "½", -2: "¼", -3: "⅛"}.get(k, f"2<sup>{_minus(k)}</sup>")


def _minus(whole: int) -> str:
    return str(whole).replace("-", "−")


def in_ulp(error: float) -> str:
    """Return an error in words."""
    return f"{number(error)} ULP" if isfinite(error) else "not finite"
