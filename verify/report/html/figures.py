"""What the figures of a page have in common, as plotly takes it: plain data.

A colour is a name of the style sheet, as "var(--ink)"; the page's script puts in what that is on light, dark or paper.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, floor
from typing import Any

from verify_norm.report.html.markup import Html, tag
from verify_norm.report.html.words import number, step

Figure = dict[str, Any]
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"
CORRECT = 0.5  # ulp: no farther is a correctly rounded value from the truth


@dataclass(slots=True)
class Drawn:
    """Gathers the figures of a page; its script draws each when it comes into view."""

    figures: dict[str, Figure] = field(default_factory=dict)

    def place(self, figure: Figure, spoken: str) -> Html:
        """Where a figure will be, as high as it is; `spoken` says what it shows."""
        name = f"figure-{len(self.figures) + 1}"
        self.figures[name] = figure
        height = figure["layout"]["height"]
        return tag("div", id=name, class_="figure", role="img", aria_label=spoken, style=f"height:{height}px")


def layout(height: int, **more: Any) -> Figure:
    """A figure so many pixels high."""
    return {
        "height": height, "margin": {"l": 46, "r": 14, "t": 26, "b": 42}, "paper_bgcolor": "var(--page)",
        "plot_bgcolor": "var(--page)", "font": {"family": FONT, "size": 12, "color": "var(--soft)"},
        "showlegend": False, "dragmode": False, "hoverlabel": {
            "bgcolor": "var(--page)", "bordercolor": "var(--rule)", "align": "left", "namelength": -1,
            "font": {"family": FONT, "size": 12, "color": "var(--ink)"},
        },
    } | more  # fmt: skip


def axis(title: str = "", **more: Any) -> Figure:
    """An axis, whose `title` is a label."""
    return {
        "gridcolor": "var(--grid)", "linecolor": "var(--rule)", "tickcolor": "var(--rule)", "ticks": "outside",
        "ticklen": 4, "zeroline": False, "fixedrange": True, "automargin": True, "tickangle": 0,
        "title": {"text": title, "standoff": 8},
    } | more  # fmt: skip


def note(text: str, colour: str = "var(--soft)", **where: Any) -> Figure:
    """Words in a figure, whose `text` is a label."""
    return {"text": text, "showarrow": False, "yref": "paper", "font": {"size": 12, "color": colour}} | where


def upright(x: float, colour: str) -> Figure:
    """A dotted line from bottom to top."""
    return {"type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1,
            "line": {"color": colour, "width": 1, "dash": "dot"}}  # fmt: skip


def decades(low: float, high: float, most: int = 7) -> Figure:
    """Ticks of a logarithmic axis between two powers of ten, at most so many, written as powers."""
    first, last = ceil(low - 1e-9), floor(high + 1e-9)
    values = range(first, last + 1, max(1, ceil((last - first + 1) / most)))
    words = [step(10.0**k) if -2 <= k <= 2 else f"10<sup>{_minus(k)}</sup>" for k in values]
    return {"tickvals": [short(10.0**k) for k in values], "ticktext": words}


def power_of_two(k: int) -> str:
    """2**k as a label."""
    return step(2.0**k) if 0 <= k < 10 else {-1: "½", -2: "¼", -3: "⅛"}.get(k, f"2<sup>{_minus(k)}</sup>")


def _minus(whole: int) -> str:
    return str(whole).replace("-", "−")


def short(value: float) -> float:
    """Four digits: a figure shows no more."""
    return float(f"{value:.4g}")


def said(error: float) -> str:
    """An error in words."""
    return f"{number(error)} ULP" if abs(error) < float("inf") else "no number"
