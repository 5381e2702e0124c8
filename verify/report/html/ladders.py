"""The part of a page on ladders: error against what changes, beside textbook algorithms on the same data."""

from collections.abc import Sequence
from itertools import groupby
from math import floor, isfinite, log10
from typing import Any

from verify_norm.auditing.model import Audit, Ladder, Rung
from verify_norm.report.html.figures import Figure, axis, constant, decades, in_ulp, layout, note, place, upright
from verify_norm.report.words import algorithm, climb, label, number, short, step, unjudged

LEAST = 1e-2  # ulp: smaller errors are drawn there


def ladders(audit: Audit, figures: dict[str, Figure]) -> list[dict[str, Any]]:
    """Return the content of the part: a group for each property of the data that changes."""
    content = []
    for name, members in groupby(audit.ladders, lambda one: one.name):
        group = list(members)
        legend = [(line, *style(line)) for line in _textbook([rung for one in group for rung in one.rungs])]
        content.append({"name": name, "legend": legend, "ladders": [_ladder(one, figures) for one in group]})
    return content


def style(name: str) -> tuple[str, str]:
    """Return colour and dashes of a textbook algorithm; in one ladder no two lines look alike."""
    colour, dash = constant()["lines"].get(name, (1 + sum(map(ord, name)) % 6, "longdash"))
    return f"var(--line{colour})", dash


def _textbook(rungs: Sequence[Rung]) -> list[str]:
    return list(dict.fromkeys(name for rung in rungs for name in rung.textbook))


def _ladder(one: Ladder, figures: dict[str, Figure]) -> dict[str, Any]:
    title, words = f"{one.output}, {one.dtype}", climb(one)
    spoken = f"{title}: error against {one.unit}. {words}"
    placed = place(figures, figure(one), spoken) if one.rungs else None
    return {"ladder": one, "title": title, "words": words, "algorithms": _textbook(one.rungs), "placed": placed}


def figure(one: Ladder) -> Figure:
    """Return error against value, both logarithmic; what cannot be drawn stands at the upper or the lower edge."""
    errors = [error for rung in one.rungs for error in (rung.error_ulp, *rung.textbook.values())]
    seen = [error for error in errors if isfinite(error) and error > LEAST] or [1.0]
    low, high = min(floor(log10(min(seen))), -1), max(log10(max(seen)) * 1.06 + 0.15, 1.0)
    ends = [log10(rung.value) for rung in one.rungs if rung.value > 0] or [0.0, 1.0]
    left, right = min(ends), max(ends)
    pad = max(right - left, 0.5) * 0.03
    across = {"range": [left - pad, right + pad], "spikecolor": "var(--soft)", "spikethickness": 1}
    form = layout(
        270,
        hovermode="x unified",
        xaxis=axis(label(one.unit), type="log", hoverformat=".3g", **across, **decades(left, right)),
        yaxis=axis(type="log", range=[low - 0.12, high + 0.03 * (high - low)], **decades(low, high, 6)),
        annotations=[note("ULP", xref="paper", x=0, y=1, xanchor="right", yanchor="bottom", yshift=6, xshift=-4)],
    )
    if one.first_over is not None and one.first_over > 0:
        x = log10(one.first_over)
        side = "right" if x > (left + right) / 2 else "left"
        words = f"over its bound from {step(one.first_over)}"
        form["shapes"] = [upright(one.first_over, "var(--bad)")]
        form["annotations"].append(note(words, "var(--bad)", x=x, y=1, yanchor="bottom", yshift=6, xanchor=side))
    edges = (10.0**low, 10.0**high)
    line, dots = _kernel(one.rungs, edges)
    thin = [_algorithm(one.rungs, name, edges) for name in _textbook(one.rungs)]
    return {"data": [line, *thin, dots], "layout": form}


def _line(points: Sequence[tuple[float, float]], edges: tuple[float, float]) -> Figure:
    """Return the places and symbols of a line's points."""
    low, high = edges
    symbols = [
        "circle" if low <= error <= high else "triangle-down" if error < low else "triangle-up" for _, error in points
    ]
    return {
        "type": "scatter",
        "hoverinfo": "x+text+name",
        "cliponaxis": False,
        "x": [short(value) for value, _ in points],
        "y": [short(min(max(error, low), high)) if error == error else short(high) for _, error in points],
        "marker": {"symbol": symbols},
    }


def _kernel(rungs: Sequence[Rung], edges: tuple[float, float]) -> tuple[Figure, Figure]:
    """Return the kernel's line, which lies under the others, and its dots, which lie above them."""
    line = _line([(rung.value, rung.error_ulp) for rung in rungs], edges)
    fill = ["var(--bad)" if r.ratio > 1 else "var(--page)" if unjudged(r) else "var(--ink)" for r in rungs]
    marker = line["marker"] | {
        "size": [11 if rung.ratio > 1 or not isfinite(rung.error_ulp) else 7 for rung in rungs],
        "color": fill,
        "opacity": 1,
        "line": {"width": 1.5, "color": ["var(--ink)" if unjudged(rung) else "var(--page)" for rung in rungs]},
    }
    bounds = ("no bound applies" if unjudged(rung) else f"error/bound {number(rung.ratio)}" for rung in rungs)
    words = [f"<b>{in_ulp(rung.error_ulp)}</b>, {bound}" for rung, bound in zip(rungs, bounds, strict=True)]
    bold = {"mode": "lines", "name": "kernel", "hovertext": words, "line": {"color": "var(--ink)", "width": 3.5}}
    return line | bold, line | {"mode": "markers", "hoverinfo": "skip", "marker": marker}


def _algorithm(rungs: Sequence[Rung], name: str, edges: tuple[float, float]) -> Figure:
    """Return the line of a textbook algorithm, with a marker only where its error is not finite."""
    points = [(rung.value, rung.textbook[name]) for rung in rungs if name in rung.textbook]
    line, (colour, dash) = _line(points, edges), style(name)
    return line | {
        "name": label(algorithm(name)),
        "hovertext": [in_ulp(error) for _, error in points],
        "mode": "lines+markers",
        "marker": line["marker"] | {"color": colour, "size": [0 if isfinite(error) else 8 for _, error in points]},
        "line": {"color": colour, "width": 1.5, "dash": dash},
    }
