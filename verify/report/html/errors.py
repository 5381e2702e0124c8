"""The part of a page on errors in ulp: numbers, histograms, averages, and the worst cases."""

from collections.abc import Sequence
from itertools import groupby
from math import ceil, floor, log2
from typing import Any

from verify_norm.auditing.model import Audit, Document, UlpReport, report_of, summary
from verify_norm.core.ulp import HIGHEST, LOWEST
from verify_norm.report.html.figures import CORRECT, Figure, axis, layout, note, place, power_of_two, upright
from verify_norm.report.words import label, number, short, step

SHARES: Figure = {
    "type": "log",
    "range": [-4.0, 3.1],
    "tickvals": [1e-3, 0.1, 10],
    "ticktext": ["0.001 %", "0.1 %", "10 %"],
}
BEYOND = 2.0 ** (HIGHEST + 1)  # ulp: the upper edge of the bar for larger errors and those that are not finite


def errors(document: Document, figures: dict[str, Figure]) -> dict[str, Any] | None:
    """Return the content of the part; None where no output was compared with the truth.

    An audit has errors in typical data; the errors of a report are those of its checks' cases.
    """
    report = report_of(document)
    ulps = document.ulps if isinstance(document, Audit) else ()
    if not ulps and report.tallies:
        ulps = tuple(summary(tally) for tally in report.tallies)
    if not ulps:
        return None
    shown = []
    for output, group in groupby((one for one in ulps if one.histogram), lambda one: one.output):
        types, line = list(group), "{}, {:.1f} % rounded correctly, at most {} ULP".format
        words = "; ".join(line(one.dtype, 100 * one.correct, number(one.maximum)) for one in types)
        shown.append((output, place(figures, histograms(types), f"Histogram of the errors of {output}: {words}")))
    return {"ulps": ulps, "histograms": shown}


def bars(one: UlpReport) -> list[tuple[float, float, str]]:
    """Return a histogram's octaves: log2 of the upper edge, the share of the values, and the range in words."""
    total = max(sum(times for _, times in one.histogram), 1)
    return [(log2(min(edge, BEYOND)), times / total, _octave(edge)) for edge, times in one.histogram]


def _octave(edge: float) -> str:
    if edge > BEYOND / 2:
        return f"{step(BEYOND / 2)} ULP or more, or not finite"
    return f"below {step(edge)} ULP" if edge <= 2.0**LOWEST else f"{step(edge / 2)} to {step(edge)} ULP"


def histograms(ulps: Sequence[UlpReport]) -> Figure:
    """Return the histograms of one output's types, one above the other on one axis of powers of 2."""
    octaves = [bars(one) for one in ulps]
    low = min(log2(CORRECT), *(shown[0][0] for shown in octaves))
    high = max(1.0, *(shown[-1][0] for shown in octaves))
    ticks = list(range(floor(low), ceil(high) + 1, max(2, 2 * ceil((high - low) / 16))))
    form = layout(62 + 108 * len(ulps), hovermode="closest", shapes=[upright(log2(CORRECT), "var(--soft)")])
    anchor, words = "y" + str(len(ulps)) * (len(ulps) > 1), [power_of_two(k) for k in ticks]
    marks: Figure = {"range": [low - 1.1, high + 0.1], "tickvals": ticks, "ticktext": words}
    form["xaxis"] = axis("error in ULP", anchor=anchor, showgrid=False, **marks)
    form["annotations"] = [note("½ ULP", x=log2(CORRECT), y=1, yanchor="bottom", yshift=2)]
    traces, each = [], 1 / len(ulps)
    for row, (one, shown) in enumerate(zip(ulps, octaves, strict=True)):
        name, top = str(row + 1) * (row > 0), 1 - row * each
        bottom = 0.0 if row == len(ulps) - 1 else top - 0.88 * each
        form["yaxis" + name] = axis(domain=[bottom, top], **SHARES)
        title = f"<b>{label(one.dtype)}</b>"
        form["annotations"].append(note(title, "var(--ink)", xref="paper", x=1, y=top, xanchor="right", yanchor="top"))
        traces.append(_bars(one, shown) | {"xaxis": "x", "yaxis": "y" + name})
    return {"data": traces, "layout": form}


def _bars(one: UlpReport, octaves: list[tuple[float, float, str]]) -> Figure:
    """Return the bars of one type; those of values that are not rounded correctly have another colour."""
    near = log2(CORRECT) if one.maximum > CORRECT else float("inf")
    return {
        "type": "bar",
        "x": [edge - 0.5 for edge, _, _ in octaves],
        "width": 0.88,
        "y": [short(100 * share) for _, share, _ in octaves],
        "hoverinfo": "text",
        "textposition": "none",
        "hovertext": [f"{label(one.dtype)}, {words}: {_percent(share)}" for _, share, words in octaves],
        "marker": {"color": ["var(--bar)" if edge <= near else "var(--far)" for edge, _, _ in octaves]},
    }


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %" if share == 0 or share >= 1e-4 else f"{100 * share:.1g} %"
