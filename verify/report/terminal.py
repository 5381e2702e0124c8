"""A Report for people: the tables and the findings, on standard output."""

from collections.abc import Iterable
from io import StringIO
from typing import cast

from rich.console import Console, JustifyMethod
from rich.padding import Padding
from rich.table import Table

from verify_norm.core.case_words import count
from verify_norm.core.errors import Exit
from verify_norm.core.finding import Finding
from verify_norm.core.report_text import cases, facts, next_step
from verify_norm.core.results import Report
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import CheckResult, Tally
from verify_norm.report.basis import seen
from verify_norm.report.detected import detected, detected_by_all, relative
from verify_norm.report.markup import escape
from verify_norm.report.numbers import ascii_number, percent
from verify_norm.report.words import facts_of, skip_line
from verify_norm.report.worst import CONDITION, Worst, worst_cases

POWER = (
    "a factor of 1 ± e, before the last rounding, on the whole output, on one row of it in every case, or on one "
    "element in every case; and the share of the cases that detect a term left out of the sums."
)
LEAST_WIDTH = 108  # the table of errors needs it; a narrower terminal wraps lines instead of losing columns


def console() -> Console:
    """Return standard output, as wide as the tables need."""
    out = Console(highlight=False, emoji=False)  # a kernel may be called :llama
    out.width = max(out.width, LEAST_WIDTH)
    return out


def text(*reports: Report) -> str:
    """Return what `show_report` prints, without colours."""
    out = Console(file=StringIO(), width=LEAST_WIDTH, highlight=False, emoji=False, color_system=None)
    for report in reports:
        show_report(report, out)
    return cast(StringIO, out.file).getvalue()


def table(
    *heads: str, words: int = 2, folded: Iterable[str] = (), whole: bool = False, title: str | None = None
) -> Table:
    """Return a table whose first columns are words, and whose others are numbers, or folded words.

    Words too long for a narrow terminal end in an ellipsis, unless `whole`.
    """
    made = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left", title_style="bold")
    for column, head in enumerate(heads):
        fold = head in folded
        justify: JustifyMethod = "left" if fold or column < words else "right"
        made.add_column(head, justify=justify, no_wrap=not fold, overflow="fold" if fold or whole else "ellipsis")
    return made


def show_report(report: Report, console: Console) -> None:
    """Print the whole report."""
    if report.tallies:
        console.print(_errors(report.tallies))
    worst = [one for one in worst_cases(report) if not one.rounding]
    if worst:
        console.print(_worst(worst))
    _show_checks(report, console)
    told = detected_by_all(report)
    if told:
        console.print("the run would have detected a factor of 1 ± e, before the last rounding, on")
        for place, words in told:
            console.print(f"  {place}: e = {escape(words)}")
    for skip in report.skipped:
        console.print(f"[dim]not checked: {escape(skip_line(skip))}[/]")
    for finding in report.findings:
        _finding(report, finding, console)
    settled, line = next_step(report)
    if settled:
        console.print(f"\n{escape(settled[0].upper() + settled[1:])}:")
        console.print(f"  [bold]{escape(line)}[/]", soft_wrap=True)
    console.print(f"[dim]{escape(facts_of(report.environment))}[/]")
    console.print(_verdict(report))
    for line in seen(report):
        console.print(Padding(escape(line), (0, 0, 0, 5)))


def _show_checks(report: Report, console: Console) -> None:
    """Print a line for each check; without cases one line alone, if all have the same reason."""
    if report.cases:
        for result in report.checks:
            console.print(_check(report, result))
        return
    reasons = {result.no_data for result in report.checks}
    if len(reasons) == 1:
        console.print(f"[yellow]– no data[/]  of any check: {escape(reasons.pop())}")


def _errors(tallies: tuple[Tally, ...]) -> Table:
    heads = ("output", "dtype", "cases", "elements", "max ULP", "p99", "mean", "correctly rounded", "error/bound")
    made = table(*heads, "error/probable")
    for tally in tallies:
        ulp = tally.ulp
        numbers = (
            ascii_number(ulp.maximum),
            ascii_number(ulp.quantile(0.99)),
            ascii_number(ulp.mean),
            percent(ulp.correctly_rounded),
        )
        ratio = f"[{'red' if tally.ratio > 1 else 'green'}]{ascii_number(tally.ratio)}[/]"
        counts = (str(tally.cases), f"{tally.elements:,}")
        probable = "–" if tally.probable is None else ascii_number(tally.probable)
        made.add_row(tally.output, tally.dtype, *counts, *numbers, ratio, probable)
    return made


def _worst(worst: Iterable[Worst]) -> Table:
    made = table("worst", "dtype", "by", "error", *CONDITION, "in", words=3, folded=("in",))
    for one in worst:
        made.add_row(one.output, one.dtype, one.measure, ascii_number(one.error), *one.numbers, _data(one.spec))
    return made


def _data(spec: CaseSpec) -> str:
    """Return a case, short: the shape, and the data where they are unusual."""
    words = ["×".join(map(str, spec.shape))]
    if spec.data != "normal":
        words.append(spec.data)
    if spec.offset:
        words.append(f"offset {spec.offset:g}")
    if spec.log2_scale:
        words.append(f"scale 2^{spec.log2_scale}")
    return escape(" ".join(words))


def _check(report: Report, result: CheckResult) -> str:
    mark = f"[green]✓ {count(result.cases, 'case')}[/]" if result.cases else "[yellow]– no data[/]"
    if result.failed:
        mark = f"[red]✗ {result.failed} of {result.cases} cases[/]"
    smallest = escape(detected(report, result.name))
    power = f" Alone it would have detected a factor of 1 ± e on any output: e = {smallest}." if smallest else ""
    held = f" Not promised; it held in {result.held} of {result.observed}." if result.observed else ""
    why = f" [yellow]No data: {escape(result.no_data)}.[/]" if result.no_data else ""
    return f"{mark}  [bold]{result.name}[/] — {escape(result.summary)}{power}{held}{why}"


def show_power(report: Report, console: Console) -> None:
    """Print the errors that the run would have detected, check by check and output by output."""
    made = table("check", "output", "dtype", "cases", "everything", "one row", "one element", "a dropped term", words=3)
    for one in report.detectable:
        errors = (one.everything, one.row, one.element)
        share = "–" if one.dropped is None else f"{100 * one.dropped:.0f} %"
        sizes = ("–" if error is None else relative(error) for error in errors)
        made.add_row(one.check, one.output, one.dtype, str(one.cases), *sizes, share)
    console.print(made)
    console.print(f"The smallest e that the check alone would have detected: {POWER}")


def _finding(report: Report, finding: Finding, console: Console) -> None:
    """Print what failed, and below it a row for each fact about the smallest case that shows it."""
    console.print(f"\n[red bold]FAIL[/] [bold]{finding.check}[/]: {escape(finding.message)}")
    for name, value in facts(report, finding).items():
        console.print(f"  {name:<9} {escape(value)}", soft_wrap=True)


def _verdict(report: Report) -> str:
    inside = 100 * report.seconds_in_kernel / max(report.process_seconds, 1e-9)
    kernel, basis = escape(report.kernel), f"{cases(report)} in {report.seconds:.1f} s ({inside:.0f} % in the kernel)"
    cut = f"; {escape(report.unfinished)}" if report.unfinished else ""
    if report.verdict is Exit.FINDINGS:
        return f"[red bold]FAIL[/] {kernel}: {count(len(report.findings), 'finding')}; {basis}{cut}"
    if report.verdict is Exit.NOTHING:
        return f"[red bold]nothing checked[/]: {kernel}"
    if report.verdict is Exit.INCOMPLETE:
        return f"[yellow bold]INCOMPLETE[/] {kernel}: no finding so far; {basis}{cut}"
    return f"[green bold]PASS[/] {kernel}{report.within}: {basis}{cut}"
