"""A Report for people: the tables and the findings, on standard output."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from verify_norm.report.model import Power, Report, Tally
from verify_norm.report.text import cases, replay_line
from verify_norm.spec import Finding

LEAST_WIDTH = 104  # the table of errors needs it; a narrower terminal wraps lines rather than losing columns


def console() -> Console:
    """Standard output, as wide as the tables need."""
    out = Console(highlight=False)
    out.width = max(out.width, LEAST_WIDTH)
    return out


def show(report: Report, console: Console) -> None:
    """Print the whole report."""
    if report.tallies:
        console.print(_errors(report.tallies))
    _checks(report, console)
    if report.power:
        console.print(f"power: {power_line(report.power)} would typically have shown.")
    for skip in report.skipped:
        times = f" ({skip.cases} cases)" if skip.cases > 1 else ""
        console.print(f"[dim]not checked: {escape(skip.what)}{times}: {escape(skip.reason)}[/]")
    for finding in report.findings:
        _finding(report, finding, console)
    console.print(f"[dim]{escape(', '.join(f'{k} {v}' for k, v in report.environment.items()))}[/]")
    console.print(_verdict(report))


def _errors(tallies: tuple[Tally, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("output", "dtype", "cases", "elements", "max ULP", "p99", "mean", "rounded right", "error/bound"):
        table.add_column(name, justify="left" if name in ("output", "dtype") else "right", no_wrap=True)
    table.add_column("worst in", overflow="fold")
    for tally in tallies:
        ulp = tally.ulp
        table.add_row(
            tally.output,
            tally.dtype,
            str(tally.cases),
            f"{tally.elements:,}",
            number(ulp.maximum),
            number(ulp.quantile(0.99)),
            number(ulp.mean),
            f"{100 * ulp.correctly_rounded:.2f} %",
            f"[{'red' if tally.ratio > 1 else 'green'}]{number(tally.ratio)}[/]",
            _place(tally),
        )
    return table


def _place(tally: Tally) -> str:
    """Where the worst error is, short: the shape, and what is unusual about the data."""
    spec = tally.worst
    if spec is None:
        return ""
    notes = [] if spec.data == "normal" else [spec.data]
    notes += [f"offset {spec.offset:g}"] if spec.offset else []
    notes += [f"scale 2^{spec.log2_scale}"] if spec.log2_scale else []
    return escape(" ".join(["×".join(map(str, spec.shape)), *notes]))


def _checks(report: Report, console: Console) -> None:
    for result in report.checks:
        mark = f"[green]✓ {result.cases} cases[/]" if result.cases else "[dim]– nothing to look at[/]"
        if result.failed:
            mark = f"[red]✗ {result.failed} of {result.cases} cases[/]"
        power = "" if result.power is None else f" A relative error of {result.power:.0e} would typically have shown."
        held = f" Not promised; it held in {result.held} of {result.observed}." if result.observed else ""
        console.print(f"{mark}  [bold]{result.name}[/] — {escape(result.summary)}{power}{held}")


def power_line(power: tuple[Power, ...]) -> str:
    """The least power of any output and type, in words: errors of these sizes, or larger ones, are seen."""
    element, row, bias = (max(getattr(p, kind) for p in power) for kind in ("element", "row", "bias"))
    return (
        f"one element off by {element:.2g} times its bound, one row by a factor of 1 + {row:.1g}, "
        f"everything by 1 + {bias:.1g}"
    )


def show_power(report: Report, console: Console) -> None:
    """What the verdict would have seen, output by output."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    heads = ("output", "dtype", "cases", "one element", "one row", "everything", "… in any case", "a dropped term")
    for name in heads:
        table.add_column(name, justify="left" if name in ("output", "dtype") else "right", no_wrap=True)
    for p in report.power:
        sizes = (f"{p.row:.1e}", f"{p.bias:.1e}", f"{p.least:.1e}")
        share = "–" if p.dropped is None else f"{100 * p.dropped:.0f} %"
        table.add_row(p.output, p.dtype, str(p.cases), f"{p.element:.2f} bounds", *sizes, share)
    console.print(table)
    console.print(
        "The smallest error that a typical case shows: of one element in units of its bound; relative, of one row and "
        "of all elements; the smallest such bias that any case shows; and in how many cases a term left out of the "
        "sums does."
    )


def _finding(report: Report, finding: Finding, console: Console) -> None:
    console.print(f"\n[red bold]{finding.check}[/] {escape(finding.message)}")
    if finding.got is not None and finding.want is not None:
        console.print(f"  got {finding.got!r}   want {finding.want!r}")
    console.print(f"  seen in {finding.cases} case{'s' * (finding.cases != 1)}; this is the smallest found")
    console.print(f"  replay: {escape(replay_line(report, finding.spec))}", soft_wrap=True)


def _verdict(report: Report) -> str:
    inside = 100 * report.seconds_in_kernel / max(report.seconds, 1e-9)
    basis = f"{cases(report)} in {report.seconds:.1f} s, {inside:.0f} % of it in the kernel"
    if not report.checked:
        return f"[red bold]nothing checked[/]: {escape(report.kernel)}"
    if report.findings:
        kinds = len(report.findings)
        return f"[red bold]FAIL[/] {escape(report.kernel)}: {kinds} finding{'s' * (kinds != 1)}; {basis}"
    if report.interrupted:
        return f"[yellow bold]interrupted[/] {escape(report.kernel)}: no finding so far; {basis}"
    return f"[green bold]pass[/] {escape(report.kernel)}: {basis}"


def number(value: float) -> str:
    """Two decimals, or a power of ten."""
    return f"{value:.2f}" if value < 1000 else f"{value:.0e}".replace("e+0", "e+")
