"""The parts of a page on rows, checks and environment."""

from __future__ import annotations

from dataclasses import fields
from math import ceil, inf, isfinite, log2

from verify_norm.auditing.model import Audit, Document, Heat, report_of
from verify_norm.report.html.figures import CORRECT, Drawn, Figure, axis, layout, power_of_two, said
from verify_norm.report.html.markup import Html, folded, join, replay, table, tag
from verify_norm.report.html.words import case, contract, number, skip_line
from verify_norm.report.model import CheckResult, Power, Skip
from verify_norm.report.terminal import power_line
from verify_norm.spec import LAYOUTS

LEAST = -3  # log2 of the least error, in ulp, that a map tells from none
CHECKS = ("check", "outcome", "what it looks at", "cases", "found in", "smallest error that shows")
POWER = (
    "output", "type", "cases", "one element, in bounds", "one row", "everything", "… in any case", "a dropped term",
)  # fmt: skip


def rows(audit: Audit, drawn: Drawn) -> Html | None:
    """Where in its rows a case is wrong; None where there is no map."""
    shown = [one for one in audit.heat if one.cells and one.cells[0]]
    lead = "The largest error in each cell of one case’s output. What is rounded correctly is as faint as can be."
    maps = (
        tag("figure", tag("figcaption", tag("h4", f"{one.output}, {one.dtype}"),
                          tag("p", f"{case(one.spec)}: {spoken(one)}.")),
            drawn.place(heat(one), f"Map of the errors of {one.output}: {spoken(one)}"),
            folded("The case", replay(audit.report, one.spec)))
        for one in shown
    )  # fmt: skip
    return join((tag("p", lead, class_="lead"), *maps)) if shown else None


def spans(size: int, cells: int) -> list[str]:
    """What each cell of an axis of `size` elements stands for, as `auditing.heat` divides it.

    >>> spans(5, 2), spans(2, 2)
    (['0–1', '2–4'], ['0', '1'])
    """
    edges = ((i * size // cells, (i + 1) * size // cells) for i in range(cells))
    return [f"{a}" if b - a <= 1 else f"{a}–{b - 1}" for a, b in edges]


def spoken(shown: Heat) -> str:
    """What a map shows, in words."""
    cells = [(inf if e != e else e, r, c) for r, row in enumerate(shown.cells) for c, e in enumerate(row)]
    worst, r, c = max(cells, key=lambda cell: cell[0])
    row = f"in row {spans(shown.rows, len(shown.cells))[r]} " if shown.rows > 1 else ""
    column = spans(shown.columns, len(shown.cells[0]))[c]
    beyond = sum(e > CORRECT for e, _, _ in cells)
    return (
        f"the largest error, {said(worst)}, is {row}at place {column}; {beyond:,} of {len(cells):,} cells have "
        "one beyond ½ ULP"
    )


def heat(shown: Heat) -> Figure:
    """The largest error in each cell, as a colour, by powers of 2; what is no number in a colour of its own."""
    finite = [e for row in shown.cells for e in row if isfinite(e)]
    high = max(ceil(log2(max([*finite, 2.0]))), 1)
    names, columns = spans(shown.rows, len(shown.cells)), spans(shown.columns, len(shown.cells[0]))
    words = [[f"row {r}, place {c}: {said(e)}" for c, e in zip(columns, row, strict=True)]
             for r, row in zip(names, shown.cells, strict=True)]  # fmt: skip
    ticks = list(range(LEAST, high + 1, ceil((high - LEAST) / 6)))
    tall = max((11 if len(names) > 12 else 20) * len(names), 44)  # pixels
    every: Figure = {"type": "heatmap", "hoverinfo": "text", "hovertext": words, "xgap": 1, "ygap": 1}
    grid = every | {
        "z": [[round(max(log2(e), LEAST), 2) if 0 < e < inf else LEAST if e == 0 else None for e in row]
              for row in shown.cells],
        "zmin": LEAST, "zmax": high, "colorscale": [[i / 4, f"var(--heat{i})"] for i in range(5)],
        "colorbar": {"tickvals": ticks, "ticktext": [*map(power_of_two, ticks[:-1]), f"{power_of_two(ticks[-1])} ULP"],
                     "orientation": "h", "thickness": 8, "outlinewidth": 0, "len": 0.6, "x": 1, "xanchor": "right",
                     "xpad": 24, "y": 1 + 25 / tall, "yanchor": "bottom", "ypad": 0, "ticks": "", "tickangle": 0},
    }  # fmt: skip
    lost = every | {
        "z": [[None if isfinite(e) else 1 for e in row] for row in shown.cells], "showscale": False,
        "colorscale": [[0, "var(--bad)"], [1, "var(--bad)"]],
    }  # fmt: skip
    form = layout(
        88 + tall, hovermode="closest", margin={"l": 46, "r": 8, "t": 46, "b": 42},
        xaxis=axis("place in the row", showgrid=False, **_ticks(columns)),
        yaxis=axis("row", showgrid=False, autorange="reversed", visible=len(names) > 1, **_ticks(names)),
    )  # fmt: skip
    return {"data": [grid] + [lost] * any(not isfinite(e) for row in shown.cells for e in row), "layout": form}


def _ticks(names: list[str]) -> Figure:
    """A few ticks of an axis of cells, each with the number that its cell begins with."""
    each = ceil(len(names) / 8)
    return {"tickvals": list(range(0, len(names), each)), "ticktext": [name.split("–")[0] for name in names[::each]]}


def checks(document: Document) -> Html:
    """What was checked, what was not and why, with which layouts, and how small an error would have shown."""
    report = report_of(document)
    listed = [
        (c.name, _outcome(c), c.summary + f" It held in {c.held:,} of {c.observed:,}." * (c.observed > 0),
         f"{c.cases:,}", f"{c.failed:,}", "–" if c.power is None else number(c.power))
        for c in report.checks
    ]  # fmt: skip
    return join((
        table("Checks", CHECKS, listed, words=3, prose=True) if listed else tag("p", "No check ran."),
        _skips(report.skipped + (document.skipped if isinstance(document, Audit) else ())),
        _power(report.power), _layouts(report.layouts),
    ))  # fmt: skip


def _outcome(one: CheckResult) -> Html:
    kind, word = ("good", "✓ passed") if one.cases else ("none", "– nothing to look at")
    if one.failed:
        kind, word = "bad", "✗ found"
    elif one.observed:
        kind, word = "none", "– not promised"
    return tag("span", word, class_=f"{kind} outcome")


def _skips(skipped: tuple[Skip, ...]) -> Html | None:
    lines = tag("ul", *(tag("li", skip_line(skip)) for skip in skipped))
    return join((tag("h4", "Not checked"), lines)) if skipped else None


def _power(power: tuple[Power, ...]) -> Html | None:
    if not power:
        return None
    listed = (
        (p.output, p.dtype, f"{p.cases:,}", *map(number, (p.element, p.row, p.bias, p.least)),
         "–" if p.dropped is None else f"{100 * p.dropped:.0f} %")
        for p in power
    )  # fmt: skip
    words = f"{power_line(power)} would typically have shown.".capitalize()
    body = table("The smallest errors that show", POWER, listed, words=2)
    return join((tag("h4", "Power"), tag("p", words, class_="key"), body))


def _layouts(layouts: dict[str, int]) -> Html | None:
    met = {(key.rpartition(" ")[0], key.rpartition(" ")[2]): times for key, times in layouts.items()}
    kinds = sorted({kind for _, kind in met}, key=lambda k: (LAYOUTS.index(k) if k in LAYOUTS else len(LAYOUTS), k))
    listed = (
        (name, *(met.get((name, kind), "–") for kind in kinds)) for name in dict.fromkeys(name for name, _ in met)
    )
    body = table(
        "In how many cases a tensor had which", ("tensor", *(kind.replace("_", " ") for kind in kinds)), listed
    )
    return join((tag("h4", "Layouts in memory"), body)) if met else None


def environment(document: Document) -> Html:
    """What the numbers depend on: versions, machine, kernel, contract, settings."""
    report = report_of(document)
    kernel = {
        "kernel": report.kernel, "operator": report.op, "found at": report.target or "–",
        "arguments": report.bind or "bound by name", "backend": report.backend, "contract": contract(report.contract),
        "time in the kernel": f"{report.seconds_in_kernel:.1f} s of {report.seconds:.1f} s",
        "schema": str(document.schema),
    }  # fmt: skip
    asked = {one.name: _plain(getattr(report.settings, one.name)) for one in fields(report.settings)}
    parts = (("Environment", report.environment), ("Kernel", kernel), ("Settings", asked))
    return tag(
        "div", *(table(name, ("name", "value"), facts.items(), words=2) for name, facts in parts), class_="columns"
    )


def _plain(value: object) -> str:
    """A setting as it reads."""
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "all"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "the default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
