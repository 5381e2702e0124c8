"""The part of a page on errors in ulp: numbers, histograms, averages, and the worst cases."""

from collections.abc import Sequence
from itertools import groupby
from math import ceil, floor, log2, log10
from typing import Any

from verify_norm.auditing.model import Audit, Document, UlpReport, report_of, summary
from verify_norm.core.ulp import HIGHEST, LOWEST
from verify_norm.report.html.figures import CORRECT, Figure, Scale, power_of_two
from verify_norm.report.numbers import number, step

SHARES = Scale(3.1, -4.0)  # of a percentage's log10
BEYOND = 2.0 ** (HIGHEST + 1)  # ulp: the upper edge of the bar for larger errors and those that are not finite


def errors(document: Document) -> dict[str, Any] | None:
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
        types = list(group)
        words = "; ".join(map(spoken, types)) + "."
        shown.append({"output": output, "words": words, "plots": histograms(types), "numbers": _numbers(types)})
    return {"ulps": ulps, "histograms": shown}


def spoken(one: UlpReport) -> str:
    """Return what a histogram shows, in words."""
    return f"{one.dtype}, {100 * one.correct:.1f} % rounded correctly, at most {number(one.maximum)} ULP"


def bars(one: UlpReport) -> list[tuple[float, float, str]]:
    """Return a histogram's octaves: log2 of the upper edge, the share of the values, and the range in words."""
    total = max(sum(times for _, times in one.histogram), 1)
    return [(log2(min(edge, BEYOND)), times / total, _octave(edge)) for edge, times in one.histogram]


def _octave(edge: float) -> str:
    if edge > BEYOND / 2:
        return f"{step(BEYOND / 2)} ULP or more, or not finite"
    return f"below {step(edge)} ULP" if edge <= 2.0**LOWEST else f"{step(edge / 2)} to {step(edge)} ULP"


def histograms(ulps: Sequence[UlpReport]) -> list[Figure]:
    """Return a figure for each type of one output, on one axis of powers of 2 for all of them."""
    octaves = [bars(one) for one in ulps]
    low = min(log2(CORRECT), *(shown[0][0] for shown in octaves))
    high = max(1.0, *(shown[-1][0] for shown in octaves))
    across = Scale(low - 1.1, high + 0.1)
    ticks = range(floor(low), ceil(high) + 1, max(2, 2 * ceil((high - low) / 16)))
    return [
        {
            "dtype": one.dtype,
            "spoken": f"Histogram of the errors of {one.output}: {spoken(one)}",
            "x": [(across.at(k), power_of_two(k)) for k in ticks],
            "y": [(SHARES.at(log10(percent)), f"{percent:g} %") for percent in (0.001, 0.1, 10)],
            "half": across.at(log2(CORRECT)),
            "bars": [_bar(one, bar, across) for bar in shown],
        }
        for one, shown in zip(ulps, octaves, strict=True)
    ]


def _bar(one: UlpReport, bar: tuple[float, float, str], across: Scale) -> Figure:
    """Return the bar of an octave; that of values which are not rounded correctly has another colour."""
    edge, share, words = bar
    return {
        "octave": (across.at(edge - 1), across.at(edge)),
        "sides": (across.at(edge - 0.94), across.at(edge - 0.06)),
        "top": SHARES.at(max(log10(100 * share), SHARES.last)) if share else 100,
        "far": edge > log2(CORRECT) and one.maximum > CORRECT,
        "words": f"{one.dtype}, {words}: {_percent(share)}",
    }


def _numbers(ulps: Sequence[UlpReport]) -> list[list[str]]:
    """Return the numbers of one output's histograms: for each octave its range, and the share of each type."""
    shares = [{(edge, words): share for edge, share, words in bars(one)} for one in ulps]
    octaves = sorted({octave for shown in shares for octave in shown})
    return [[key[1], *(_percent(shown[key]) if key in shown else "–" for shown in shares)] for key in octaves]


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %" if share == 0 or share >= 1e-4 else f"{100 * share:.1g} %"
