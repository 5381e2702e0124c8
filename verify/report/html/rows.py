"""The part of a page on rows: a map of the largest errors over one case's output."""

from math import ceil, inf, isfinite, log2
from typing import Any

from verify_norm.auditing.model import Audit, Heat
from verify_norm.report.html.figures import CORRECT, Figure, Scale, Ticks, in_ulp, power_of_two

LEAST = -3  # log2 of the smallest error, in ulp, with a shade of its own
FAINTEST = 0.06


def rows(audit: Audit) -> list[dict[str, Any]] | None:
    """Return the content of the part, a map for each output; None where there is no map."""
    found = []
    for one in audit.heat:
        if one.cells and one.cells[0]:
            words = spoken(one)
            plot = heat(one) | {"spoken": f"Map of the errors of {one.output}: {words}"}
            found.append({"heat": one, "spoken": words, "plot": plot})
    return found or None


def spans(size: int, cells: int) -> list[str]:
    """Return the elements in each cell of an axis of `size` elements, as `auditing.heat` divides it.

    >>> spans(5, 2), spans(2, 2)
    (['0–1', '2–4'], ['0', '1'])
    """
    edges = ((i * size // cells, (i + 1) * size // cells) for i in range(cells))
    return [f"{a}" if b - a <= 1 else f"{a}–{b - 1}" for a, b in edges]


def spoken(shown: Heat) -> str:
    """Return what a map shows, in words."""
    cells = [(inf if e != e else e, r, c) for r, row in enumerate(shown.cells) for c, e in enumerate(row)]
    worst, r, c = max(cells, key=lambda cell: cell[0])
    row = f"in row {spans(shown.rows, len(shown.cells))[r]} " if shown.rows > 1 else ""
    column = spans(shown.columns, len(shown.cells[0]))[c]
    beyond = sum(e > CORRECT for e, _, _ in cells)
    counts = f"{beyond:,} of {len(cells):,} cells have one beyond ½ ULP"
    return f"the largest error, {in_ulp(worst)}, is {row}at place {column}; {counts}"


def heat(shown: Heat) -> Figure:
    """Return the largest error in each cell as a shade, by powers of 2; one that is not finite has another colour."""
    finite = [e for row in shown.cells for e in row if isfinite(e)]
    high = max(ceil(log2(max([*finite, 2.0]))), 1)
    names, columns = spans(shown.rows, len(shown.cells)), spans(shown.columns, len(shown.cells[0]))
    cells = [
        {"r": r, "c": c, "shade": _shade(e, high), "words": f"row {names[r]}, place {columns[c]}: {in_ulp(e)}"}
        for r, row in enumerate(shown.cells)
        for c, e in enumerate(row)
    ]
    ticks = range(LEAST, high + 1, ceil((high - LEAST) / 6))
    return {
        "height": max((11 if len(names) > 12 else 20) * len(names), 44),  # pixels
        "x": _ticks(columns),
        "y": _ticks(names) if len(names) > 1 else [],
        "cells": cells,
        "legend": [(power_of_two(k), _shade(2.0**k, high)) for k in ticks],
        "lost": any(one["shade"] is None for one in cells),
        "rows": names,
        "columns": columns,
    }


def _shade(error: float, high: int) -> float | None:
    """Return how dark the colour of an error is, of at most 1; None where it is not finite."""
    if not isfinite(error):
        return None
    dark = (log2(error) - LEAST) / (high - LEAST) if error > 0 else 0.0
    return round(FAINTEST + (1 - FAINTEST) * max(dark, 0.0), 2)


def _ticks(names: list[str]) -> Ticks:
    """Return a few ticks of an axis of cells, each with the first number in its cell."""
    each, scale = ceil(len(names) / 8), Scale(0, len(names))
    return [(scale.at(k + 0.5), names[k].split("–")[0]) for k in range(0, len(names), each)]
