"""The part of a page on errors in ulp: numbers, histograms, averages, and the worst cases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from math import ceil, floor, log2

from verify_norm.auditing.model import Audit, Document, UlpReport, WorstCase, report_of
from verify_norm.report.html.figures import CORRECT, Drawn, Figure, axis, layout, note, power_of_two, short, upright
from verify_norm.report.html.markup import Html, folded, join, judged, label, replay, table, tag
from verify_norm.report.html.words import case, number, place, step
from verify_norm.report.model import Report
from verify_norm.ulp import HIGHEST, LOWEST

BEYOND = 2.0 ** (HIGHEST + 1)  # ulp: the upper edge that is drawn for what is larger, or no number
LEAD = (
    "Distances to the float64 truth, in units in the last place of the output’s type. A value rounded correctly is "
    "at most ½ away. Where elements cancel, the bound is wide too: error/bound judges, not the largest ULP."
)
HEADS = (
    "output", "type", "cases", "elements", "max", "mean", "p50", "p99", "p99.9", "rounded correctly", "bias",
    "error/bound",
)  # fmt: skip
AVERAGES = ("output", "type", "elements", "beyond rounding", "allowed", "bias", "allowed, ±")


def errors(document: Document, drawn: Drawn) -> Html | None:
    """The whole part; of an audit in typical data, else over the cases of the checks. None where nothing is known."""
    report = report_of(document)
    ulps = document.ulps if isinstance(document, Audit) else ()
    if not ulps and report.tallies:
        from verify_norm.auditing.ulps import summary  # it imports torch, which the page of an audit does without

        ulps = tuple(summary(tally) for tally in report.tallies)
    if not ulps:
        return None
    outputs = [(name, tuple(group)) for name, group in groupby(ulps, lambda one: one.output)]
    key = "How many of the values have an error in each octave, on a logarithmic scale; grey is up to ½ ULP."
    return join((
        tag("p", LEAD, class_="lead"),
        table("Errors in ULP", HEADS, map(_row, ulps), words=2),
        _averages(ulps),
        tag("h4", "Histograms"), tag("p", key, class_="key"),
        tag("div", *(_histogram(name, group, drawn) for name, group in outputs), class_="grid"),
        *_worst(report, ulps),
    ))  # fmt: skip


def _row(one: UlpReport) -> tuple[object, ...]:
    numbers = (one.maximum, one.mean, one.p50, one.p99, one.p999)
    correct = f"{100 * one.correct:.2f} %"
    return (
        one.output, one.dtype, f"{one.cases:,}", f"{one.elements:,}", *map(number, numbers), correct, number(one.bias),
        judged(one.ratio),
    )  # fmt: skip


def _averages(ulps: tuple[UlpReport, ...]) -> Html | None:
    rows = [
        (one.output, one.dtype, f"{a.count:,}",
         *map(number, (a.excess, a.excess_allowed, a.bias, a.bias_allowed)))
        for one in ulps if (a := one.averages) is not None
    ]  # fmt: skip
    return table("Averages in random data, in ULP", AVERAGES, rows, words=2) if rows else None


def _histogram(output: str, ulps: tuple[UlpReport, ...], drawn: Drawn) -> Html | None:
    shown = [one for one in ulps if one.histogram]
    if not shown:
        return None
    spoken = f"Histogram of the errors of {output}: " + "; ".join(
        f"{one.dtype}, {100 * one.correct:.1f} % rounded correctly, at most {number(one.maximum)} ULP" for one in shown
    )
    return tag("figure", tag("figcaption", tag("h5", output)), drawn.place(histograms(shown), spoken))


def bars(one: UlpReport) -> list[tuple[float, float, str]]:
    """A histogram's octaves: log2 of the upper edge, the share of the values in it, and which errors those are."""
    total = max(sum(times for _, times in one.histogram), 1)
    return [(log2(min(edge, BEYOND)), times / total, _octave(edge)) for edge, times in one.histogram]


def _octave(edge: float) -> str:
    if edge > BEYOND / 2:
        return f"{step(BEYOND / 2)} ULP or more, or no number"
    return f"below {step(edge)} ULP" if edge <= 2.0**LOWEST else f"{step(edge / 2)} to {step(edge)} ULP"


def histograms(ulps: Iterable[UlpReport]) -> Figure:
    """Histograms of one output's types, one above the other on one axis of powers of 2; each holds something."""
    shown = [(label(one.dtype), bars(one), one.maximum <= CORRECT) for one in ulps]
    low = min(log2(CORRECT), *(octaves[0][0] for _, octaves, _ in shown))
    high = max(1.0, *(octaves[-1][0] for _, octaves, _ in shown))
    ticks = list(range(floor(low), ceil(high) + 1, max(2, 2 * ceil((high - low) / 16))))
    last = "y" + str(len(shown)) * (len(shown) > 1)
    form = layout(62 + 108 * len(shown), hovermode="closest", shapes=[upright(log2(CORRECT), "var(--soft)")])
    form["xaxis"] = axis("error in ULP", range=[low - 1.1, high + 0.1], anchor=last, showgrid=False, tickvals=ticks,
                         ticktext=[power_of_two(k) for k in ticks])  # fmt: skip
    form["annotations"] = [note("½ ULP", x=log2(CORRECT), y=1, yanchor="bottom", yshift=2)]
    traces, each = [], 1 / len(shown)
    for row, (dtype, octaves, correct) in enumerate(shown):
        name, top = "y" + str(row + 1) * (row > 0), 1 - row * each
        bottom = 0.0 if row == len(shown) - 1 else top - 0.88 * each
        form["yaxis" + name[1:]] = axis(
            domain=[bottom, top], type="log", range=[-4.0, 3.1], tickvals=[1e-3, 0.1, 10],
            ticktext=["0.001 %", "0.1 %", "10 %"],
        )  # fmt: skip
        form["annotations"].append(
            note(f"<b>{dtype}</b>", "var(--ink)", xref="paper", x=1, y=top, xanchor="right", yanchor="top")
        )
        colours = ["var(--bar)" if correct or at <= log2(CORRECT) else "var(--far)" for at, _, _ in octaves]
        traces.append({
            "type": "bar", "x": [at - 0.5 for at, _, _ in octaves], "width": 0.88, "xaxis": "x", "yaxis": name,
            "y": [short(100 * share) for _, share, _ in octaves], "hoverinfo": "text", "textposition": "none",
            "hovertext": [f"{dtype}, {words}: {_percent(share)}" for _, share, words in octaves],
            "marker": {"color": colours},
        })  # fmt: skip
    return {"data": traces, "layout": form}


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %" if share == 0 or share >= 1e-4 else f"{100 * share:.1g} %"


def _worst(report: Report, ulps: tuple[UlpReport, ...]) -> Iterator[Html]:
    """The worst cases of each output and type, folded up."""
    held = [one for one in ulps if one.by_ulp or one.by_ratio]
    if held:
        yield tag("h4", "Worst cases")
    for one in held:
        ulp = max((c.ulp for c in one.by_ulp), default=0.0)
        ratio = max((c.ratio for c in one.by_ratio), default=0.0)
        summary = f": largest error {number(ulp)} ULP, largest error/bound {number(ratio)}"
        lists = [
            part for title, cases in (("By ULP", one.by_ulp), ("By error/bound", one.by_ratio)) if cases
            for part in (tag("h5", title), tag("ol", *(_case(report, c) for c in cases), class_="cases"))
        ]  # fmt: skip
        yield folded(join((tag("b", one.output, " ", one.dtype), summary)), *lists)


def _case(report: Report, one: WorstCase) -> Html:
    where = f" at {place(one.index)} of {case(one.spec)}: got "
    numbers = (tag("b", number(one.ulp), " ULP"), ", error/bound ", judged(one.ratio), where)
    values = (tag("code", repr(one.got)), ", want ", tag("code", repr(one.want)))
    return tag("li", tag("p", *numbers, *values), replay(report, one.spec))
