"""A Report where people work with it: a compact table for notebooks, and a row for each finding."""

from collections.abc import Callable
from html import escape
from typing import Any

from verify_norm.core.case_words import case
from verify_norm.core.finding import Finding
from verify_norm.core.report_text import explanation, next_step, replay_line
from verify_norm.core.results import Report
from verify_norm.report.numbers import number
from verify_norm.report.words import headline, printable

COLOURS = {"pass": "#1a7f37", "fail": "#cf222e", "none": "#cf222e", "part": "#9a6700"}
HEADS = ("kernel", "operator", "verdict", "largest error/bound")


def table(*reports: Report) -> str:
    """Return an HTML table with a row for each report, and below it the findings with their replay lines."""
    heads = "".join(f"<th>{head}</th>" for head in HEADS)
    parts = [f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(map(_row, reports))}</tbody></table>"]
    for report in reports:
        items = [
            f"<li><b>{_text(finding.check)}</b>: {_text(finding.message)}<br>"
            f"<code>{_text(replay_line(report, finding.spec))}</code></li>"
            for finding in report.findings
        ]
        if items:
            parts.append(f"<ul>{''.join(items)}</ul>")
        settled, line = next_step(report)
        if settled:
            parts.append(f"<p>{_text(settled)}:<br><code>{_text(line)}</code></p>")
    return "".join(parts)


def _row(report: Report) -> str:
    """Return the row of a report."""
    said = headline(report)
    worst: dict[str, float] = {}
    for tally in report.tallies:
        worst[tally.output] = max(worst.get(tally.output, 0.0), tally.ratio)
    ratios = ", ".join(f"{output} {number(ratio)}" for output, ratio in worst.items())
    verdict = f'<b style="color:{COLOURS[said.kind]}">{_text(said.word)}</b> {_text(said.line)}'
    cells = (_text(report.kernel), _text(report.op), verdict, _text(ratios))
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


COLUMNS: dict[str, Callable[[Report, Finding], Any]] = {
    "kernel": lambda report, finding: report.kernel,
    "op": lambda report, finding: report.op,
    "check": lambda report, finding: finding.check,
    "output": lambda report, finding: finding.output,
    "message": lambda report, finding: finding.message,
    "case": lambda report, finding: case(finding.spec),
    "dtype": lambda report, finding: finding.spec.dtype,
    "shape": lambda report, finding: finding.spec.shape,
    "index": lambda report, finding: finding.index,
    "got": lambda report, finding: finding.got,
    "expected": lambda report, finding: finding.want,
    "ulp": lambda report, finding: finding.ulp,
    "allowed": lambda report, finding: finding.allowed,
    "cases": lambda report, finding: finding.cases,
    "contract": explanation,
    "replay": lambda report, finding: replay_line(report, finding.spec),
}


def frame(*reports: Report) -> Any:
    """Return a pandas.DataFrame with a row for each finding, and its columns where there is none.

    Raises ImportError without pandas.
    """
    import pandas  # type: ignore[import-untyped, import-not-found, unused-ignore]

    rows = [[of(report, finding) for of in COLUMNS.values()] for report in reports for finding in report.findings]
    return pandas.DataFrame(rows, columns=list(COLUMNS))


def _text(value: object) -> str:
    return escape(printable(value))
