"""Several kernels in one table."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from verify_norm.auditing.model import Document, report_of
from verify_norm.report.numbers import ascii_number
from verify_norm.report.terminal import table
from verify_norm.report.words import headline

STYLES = {"pass": "green", "fail": "red", "none": "red", "part": "yellow"}


def show_summary(documents: Sequence[Document], console: Console) -> None:
    """Print a row for each report: the kernel, its verdict, and its largest error over its bound."""
    made = table("kernel", "operator", "verdict", "findings", "cases", "error/bound", "seconds", words=3)
    made.columns[0].no_wrap, made.columns[0].overflow = False, "fold"  # a path may be long
    for document in documents:
        report, said = report_of(document), headline(document)
        ratio = max((tally.ratio for tally in report.tallies), default=None)
        made.add_row(
            escape(report.kernel),
            report.op,
            f"[{STYLES[said.kind]} bold]{said.word}[/]",
            str(len(report.findings)),
            str(report.cases),
            "–" if ratio is None else ascii_number(ratio),
            f"{report.seconds:.1f}",
        )
    console.print("", made)
