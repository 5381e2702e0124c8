"""The part of a page on ladders: error against what changes, beside textbook algorithms on the same data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import floor, isfinite, log10
from typing import Any

from verify_norm.auditing.model import Audit, Ladder, Rung
from verify_norm.report.html.figures import Drawn, Figure, axis, decades, layout, note, said, short, upright
from verify_norm.report.html.markup import Html, folded, join, judged, label, replay, table, tag
from verify_norm.report.html.words import algorithm, climb, number, step, unjudged
from verify_norm.report.model import Report

HEADINGS = {
    "offset": "A mean far from zero", "scale": "Large and small numbers", "eps": "The weight of eps",
    "length": "Longer rows", "rows": "More rows", "channel": "One large channel",
}  # fmt: skip
STYLES = {  # colour and dashes: of those in one ladder none looks like another
    "two_pass": (1, "solid"), "welford": (2, "dash"), "one_pass": (3, "solid"), "shifted_one_pass": (4, "dot"),
    "sequential sums": (3, "solid"), "pairwise sums": (1, "solid"), "blocked sums": (2, "dash"),
    "compensated sums": (4, "dot"), "partials in float32": (5, "dot"), "partials in float16": (6, "dash"),
    "partials in bfloat16": (5, "solid"),
}  # fmt: skip
DASHES = {"solid": None, "dash": "7 4", "dot": "2 3", "longdash": "11 4"}
LEAST = 1e-2  # ulp: what is smaller is drawn there
LEAD = (
    "The error of the worst row, its root mean square in ULP, as one thing about the data changes. The bold line is "
    "the kernel, the thin ones are textbook algorithms on the same data. A red dot is over its bound, a hollow one has "
    "none; a triangle at the upper edge is no number."
)


def ladders(audit: Audit, drawn: Drawn) -> Html | None:
    """The whole part; None where no ladder was climbed."""
    groups = [(name, tuple(group)) for name, group in groupby(audit.ladders, lambda one: one.name)]
    parts = (
        tag("section", tag("h4", HEADINGS.get(name, name)), _legend(group),
            tag("div", *(_ladder(audit.report, one, drawn) for one in group), class_="grid"))
        for name, group in groups
    )  # fmt: skip
    return join((tag("p", LEAD, class_="lead"), *parts)) if groups else None


def style(name: str) -> tuple[str, str]:
    """Colour and dashes of a textbook algorithm."""
    colour, dash = STYLES.get(name, (1 + sum(map(ord, name)) % 6, "longdash"))
    return f"var(--line{colour})", dash


def textbook(rungs: Sequence[Rung]) -> list[str]:
    """The names of the algorithms of some rungs."""
    return list(dict.fromkeys(name for rung in rungs for name in rung.textbook))


def _legend(group: tuple[Ladder, ...]) -> Html:
    """The lines' names, once for the figures of a group; each line is as it is in them."""
    names = dict.fromkeys(name for one in group for name in textbook(one.rungs))
    lines = [("kernel", "var(--ink)", "solid", 3.5), *((algorithm(name), *style(name), 1.5) for name in names)]
    return tag("ul", *(
        tag("li", tag("svg", tag("line", x1=0, y1=5, x2=28, y2=5, stroke_width=width, stroke_dasharray=DASHES[dash],
                                 style=f"stroke:{colour}"), viewBox="0 0 28 10", aria_hidden="true"), name)
        for name, colour, dash, width in lines
    ), class_="legend")  # fmt: skip


def _ladder(report: Report, one: Ladder, drawn: Drawn) -> Html:
    names, title, words = textbook(one.rungs), f"{one.output}, {one.dtype}", climb(one)
    rows = (
        (step(rung.value), number(rung.error_ulp), judged(rung.ratio),
         *(number(rung.textbook[name]) if name in rung.textbook else "–" for name in names))
        for rung in one.rungs
    )  # fmt: skip
    over = next((rung.spec for rung in one.rungs if rung.value == one.first_over), None)
    heads = (one.unit, "kernel", "error/bound", *map(algorithm, names))
    return tag(
        "figure", tag("figcaption", tag("h5", title), tag("p", words)),
        drawn.place(figure(one), f"{title}: error against {one.unit}. {words}") if one.rungs else None,
        folded("Numbers", table(f"Errors of {title} in ULP", heads, rows)),
        folded(f"The case at {step(one.first_over)}", replay(report, over)) if over and one.first_over else None,
    )  # fmt: skip


def figure(one: Ladder) -> Figure:
    """Error against value, both logarithmic; what cannot be drawn stands at the upper or the lower edge."""
    errors = [error for rung in one.rungs for error in (rung.error_ulp, *rung.textbook.values())]
    seen = [error for error in errors if isfinite(error) and error > LEAST] or [1.0]
    low, high = min(floor(log10(min(seen))), -1), max(log10(max(seen)) * 1.06 + 0.15, 1.0)
    ends = [log10(rung.value) for rung in one.rungs if rung.value > 0] or [0.0, 1.0]
    left, right = min(ends), max(ends)
    pad = max(right - left, 0.5) * 0.03
    form = layout(
        270, hovermode="x unified",
        xaxis=axis(label(one.unit), type="log", range=[left - pad, right + pad], hoverformat=".3g",
                   spikecolor="var(--soft)", spikethickness=1, **decades(left, right)),
        yaxis=axis(type="log", range=[low - 0.12, high + 0.03 * (high - low)], **decades(low, high, 6)),
        annotations=[note("ULP", xref="paper", x=0, y=1, xanchor="right", yanchor="bottom", yshift=6, xshift=-4)],
    )  # fmt: skip
    if one.first_over is not None and one.first_over > 0:
        at = log10(one.first_over)
        form["shapes"] = [upright(one.first_over, "var(--bad)")]
        form["annotations"].append(
            note(f"over its bound from {step(one.first_over)}", "var(--bad)", x=at, y=1, yanchor="bottom", yshift=6,
                 xanchor="right" if at > (left + right) / 2 else "left")
        )  # fmt: skip
    edges = (10.0**low, 10.0**high)
    line, dots = _kernel(one.rungs, edges)
    thin = [_algorithm(one.rungs, name, edges) for name in textbook(one.rungs)]
    return {"data": [line, *thin, dots], "layout": form}


def _line(points: Sequence[tuple[float, float]], edges: tuple[float, float]) -> Figure:
    """Places and shapes of a line's points."""
    low, high = edges
    return {
        "type": "scatter", "hoverinfo": "x+text+name", "cliponaxis": False, "x": [short(value) for value, _ in points],
        "y": [short(min(max(error, low), high)) if error == error else short(high) for _, error in points],
        "marker": {"symbol": ["circle" if low <= error <= high else "triangle-down" if error < low else "triangle-up"
                              for _, error in points]},
    }  # fmt: skip


def _kernel(rungs: Sequence[Rung], edges: tuple[float, float]) -> tuple[Figure, Figure]:
    """The kernel's line, which is to lie under the others, and its dots, which are to lie above them."""
    line = _line([(rung.value, rung.error_ulp) for rung in rungs], edges)
    marker: dict[str, Any] = line["marker"] | {
        "size": [11 if rung.ratio > 1 or not isfinite(rung.error_ulp) else 7 for rung in rungs],
        "color": ["var(--bad)" if rung.ratio > 1 else "var(--page)" if unjudged(rung) else "var(--ink)"
                  for rung in rungs], "opacity": 1,
        "line": {"width": 1.5, "color": ["var(--ink)" if unjudged(rung) else "var(--page)" for rung in rungs]},
    }  # fmt: skip
    bounds = ("no bound applies" if unjudged(rung) else f"error/bound {number(rung.ratio)}" for rung in rungs)
    words = [f"<b>{said(rung.error_ulp)}</b>, {bound}" for rung, bound in zip(rungs, bounds, strict=True)]
    bold = {"mode": "lines", "name": "kernel", "hovertext": words, "line": {"color": "var(--ink)", "width": 3.5}}
    return line | bold, line | {"mode": "markers", "hoverinfo": "skip", "marker": marker}


def _algorithm(rungs: Sequence[Rung], name: str, edges: tuple[float, float]) -> Figure:
    points = [(rung.value, rung.textbook[name]) for rung in rungs if name in rung.textbook]
    line, (colour, dash) = _line(points, edges), style(name)
    marker = line["marker"] | {"color": colour, "size": [0 if isfinite(error) else 8 for _, error in points]}
    return line | {"name": label(algorithm(name)), "hovertext": [said(error) for _, error in points],
                   "mode": "lines+markers", "marker": marker, "line": {"color": colour, "width": 1.5, "dash": dash},
    }  # fmt: skip
