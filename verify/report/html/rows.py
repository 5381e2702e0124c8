"""The part of a page on rows: a map of the largest errors over one case's output."""

from math import ceil, inf, isfinite, log2
from typing import Any

from verify_norm.auditing.model import Audit, Heat
from verify_norm.report.html.figures import CORRECT, Figure, axis, constant, in_ulp, layout, place, power_of_two

LEAST = -3  # log2 of the smallest error, in ulp, with a colour of its own


def rows(audit: Audit, figures: dict[str, Figure]) -> list[dict[str, Any]] | None:
    """Return the content of the part, a map for each output; None where there is no map."""
    found = []
    for one in audit.heat:
        if one.cells and one.cells[0]:
            words = spoken(one)
            placed = place(figures, heat(one), f"Map of the errors of {one.output}: {words}")
            found.append({"heat": one, "spoken": words, "placed": placed})
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
    """Return the largest error in each cell as a colour, by powers of 2; one that is not finite has its own colour."""
    finite = [e for row in shown.cells for e in row if isfinite(e)]
    high = max(ceil(log2(max([*finite, 2.0]))), 1)
    names, columns = spans(shown.rows, len(shown.cells)), spans(shown.columns, len(shown.cells[0]))
    tall = max((11 if len(names) > 12 else 20) * len(names), 44)  # pixels
    ticks = list(range(LEAST, high + 1, ceil((high - LEAST) / 6)))
    labels = [*map(power_of_two, ticks[:-1]), f"{power_of_two(ticks[-1])} ULP"]
    words = [
        [f"row {r}, place {c}: {in_ulp(e)}" for c, e in zip(columns, row, strict=True)]
        for r, row in zip(names, shown.cells, strict=True)
    ]
    every: Figure = {"type": "heatmap", "hoverinfo": "text", "hovertext": words, "xgap": 1, "ygap": 1}
    grid = every | {
        "z": [[_colour(e) for e in row] for row in shown.cells],
        "zmin": LEAST,
        "zmax": high,
        "colorscale": [[i / 4, f"var(--heat{i})"] for i in range(5)],
        "colorbar": constant()["colorbar"] | {"tickvals": ticks, "ticktext": labels, "y": 1 + 25 / tall},
    }
    lost = every | {
        "z": [[None if isfinite(e) else 1 for e in row] for row in shown.cells],
        "showscale": False,
        "colorscale": [[0, "var(--bad)"], [1, "var(--bad)"]],
    }
    form = layout(
        88 + tall,
        hovermode="closest",
        margin={"l": 46, "r": 8, "t": 46, "b": 42},
        xaxis=axis("place in the row", showgrid=False, **_ticks(columns)),
        yaxis=axis("row", showgrid=False, autorange="reversed", visible=len(names) > 1, **_ticks(names)),
    )
    return {"data": [grid] + [lost] * any(not isfinite(e) for row in shown.cells for e in row), "layout": form}


def _colour(error: float) -> float | None:
    """Return the place of an error on the scale of colours; None where it is not finite."""
    if not isfinite(error):
        return None
    return round(max(log2(error), LEAST), 2) if error > 0 else LEAST


def _ticks(names: list[str]) -> Figure:
    """Return a few ticks of an axis of cells, each with the first number in its cell."""
    each = ceil(len(names) / 8)
    return {"tickvals": list(range(0, len(names), each)), "ticktext": [name.split("–")[0] for name in names[::each]]}
