"""The part of a page on ladders: error against what changes, beside textbook algorithms on the same data."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from math import floor, isfinite, isnan, log10
from typing import Any

from verify_norm.auditing.model import Audit, Ladder, Rung
from verify_norm.report.html.figures import Figure, Scale, decades, in_ulp, path
from verify_norm.report.ladders import algorithm, climb, unjudged
from verify_norm.report.numbers import number, step

LEAST = 1e-2  # ulp: smaller errors are drawn there
DASHES = {"solid": "", "dash": "7 4", "dot": "2 3", "longdash": "11 4"}  # pixels drawn and left out
LINES = {  # the colour of the style sheet, by its number, and the dashes of each algorithm
    "two_pass": (1, "solid"),
    "welford": (2, "dash"),
    "one_pass": (3, "solid"),
    "shifted_one_pass": (4, "dot"),
    "sequential sums": (3, "solid"),
    "pairwise sums": (1, "solid"),
    "blocked sums": (2, "dash"),
    "compensated sums": (4, "dot"),
    "partials in float32": (5, "dot"),
    "partials in float16": (6, "dash"),
    "partials in bfloat16": (5, "solid"),
}


def ladders(audit: Audit) -> list[dict[str, Any]]:
    """Return the content of the part: a group for each property of the data that changes."""
    content = []
    for name, members in groupby(audit.ladders, lambda one: one.name):
        group = list(members)
        legend = [(line, *style(line)) for line in _textbook([rung for one in group for rung in one.rungs])]
        content.append({"name": name, "legend": legend, "ladders": [_ladder(one) for one in group]})
    return content


def style(name: str) -> tuple[int, str]:
    """Return colour and dashes of a textbook algorithm; in one ladder no two lines look alike."""
    colour, dash = LINES.get(name, (1 + sum(map(ord, name)) % 6, "longdash"))
    return colour, DASHES[dash]


def _textbook(rungs: Sequence[Rung]) -> list[str]:
    return list(dict.fromkeys(name for rung in rungs for name in rung.textbook))


def _ladder(one: Ladder) -> dict[str, Any]:
    """Return the content of one ladder: its words, and its figure if it has a step that can be drawn."""
    title, words = f"{one.output}, {one.dtype}", climb(one)
    drawn = replace(one, rungs=tuple(rung for rung in one.rungs if rung.value > 0))  # others have no logarithm
    plot = figure(drawn) | {"spoken": f"{title}: error against {one.unit}. {words}"} if drawn.rungs else None
    return {"ladder": one, "title": title, "words": words, "algorithms": _textbook(one.rungs), "plot": plot}


def figure(one: Ladder) -> Figure:
    """Return error against value, both logarithmic; what cannot be drawn stands at the upper or the lower edge."""
    errors = [error for rung in one.rungs for error in (rung.error_ulp, *rung.textbook.values())]
    seen = [error for error in errors if isfinite(error) and error > LEAST] or [1.0]
    low, high = min(floor(log10(min(seen))), -1), max(log10(max(seen)) * 1.06 + 0.15, 1.0)
    left, right = (log10(end(rung.value for rung in one.rungs)) for end in (min, max))
    pad = max(right - left, 0.5) * 0.03
    across, up = Scale(left - pad, right + pad), Scale(high + 0.03 * (high - low), low - 0.12)
    edges = (10.0**low, 10.0**high)

    def at(rung: Rung, error: float) -> tuple[float, float]:
        inside = edges[1] if isnan(error) else min(max(error, edges[0]), edges[1])
        return across.at(log10(rung.value)), up.at(log10(inside))

    over = one.first_over or 0.0
    return {
        "x": decades(across),
        "y": decades(up, 6),
        "line": path(at(rung, rung.error_ulp) for rung in one.rungs),
        "thin": [_algorithm(one.rungs, name, at) for name in _textbook(one.rungs)],
        "dots": [_dot(rung, at(rung, rung.error_ulp), edges) for rung in one.rungs],
        "stops": _stops(one, [at(rung, 1.0)[0] for rung in one.rungs]),
        "over": {"at": across.at(log10(over)), "words": f"over its bound from {step(over)}"} if over > 0 else None,
    }


def _dot(rung: Rung, place: tuple[float, float], edges: tuple[float, float]) -> Figure:
    """Return the mark of the kernel's error: large where it is over its bound, hollow where it has none."""
    error, over, (lowest, highest) = rung.error_ulp, rung.ratio > 1, edges
    shape = "up"  # it is beyond the upper edge, or NaN
    if error < lowest:
        shape = "down"
    elif error <= highest:
        shape = "circle"
    kind = "unjudged" if unjudged(rung) else "kept"
    if over:
        kind = "over"
    return {"place": place, "shape": shape, "kind": kind, "large": over or not isfinite(error)}


def _algorithm(rungs: Sequence[Rung], name: str, at: Callable[[Rung, float], tuple[float, float]]) -> Figure:
    """Return the line of a textbook algorithm, with a mark only where its error is not finite."""
    errors = [(rung, rung.textbook[name]) for rung in rungs if name in rung.textbook]
    colour, dashes = style(name)
    lost = [at(rung, error) for rung, error in errors if not isfinite(error)]
    return {"line": path(at(*one) for one in errors), "colour": colour, "dashes": dashes, "lost": lost}


def _stops(one: Ladder, places: list[float]) -> list[Figure]:
    """Return for each step its place, the band around it, and what its label says."""
    middles = [(a + b) / 2 for a, b in pairwise(places)]
    bands = zip([0.0, *middles], [*middles, 100.0], strict=True)
    return [
        {"at": at, "band": band, "words": _words(one.unit, rung)}
        for rung, at, band in zip(one.rungs, places, bands, strict=True)
    ]


def _words(unit: str, rung: Rung) -> str:
    """Return all errors of a step, a line for each."""
    bound = "no bound applies" if unjudged(rung) else f"error/bound {number(rung.ratio)}"
    lines = [f"{unit} {step(rung.value)}", f"kernel: {in_ulp(rung.error_ulp)}, {bound}"]
    return "\n".join(lines + [f"{algorithm(name)}: {in_ulp(error)}" for name, error in rung.textbook.items()])
