"""Audits and hunts for people: tables on standard output, below the checks' own."""

from __future__ import annotations

from math import isfinite

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from verify_norm.auditing.model import Audit, Hunt, Ladder, UlpReport
from verify_norm.report import terminal
from verify_norm.report.text import command, replay_line

MEASURES = {"ratio": "error/bound", "ulp": "ULP"}


def show(audit: Audit, console: Console) -> None:
    """Print the whole audit; the verdict on the checks comes first, as in any run."""
    terminal.show(audit.report, console)
    if audit.ulps:
        console.print("\n[bold]errors in typical data[/]: random rows of usual lengths; in ULP")
        console.print(_errors(audit.ulps))
        for one in audit.ulps:
            if line := _beyond(one):
                console.print(line)
        for name in dict.fromkeys(one.output for one in audit.ulps):
            worst = max((w for one in audit.ulps if one.output == name for w in one.by_ratio), key=lambda w: w.ratio)
            console.print(
                f"[dim]worst {name}: {terminal.number(worst.ulp)} ULP, {worst.ratio:.2f} of its bound: "
                f"{escape(replay_line(audit.report, worst.spec))}[/]", soft_wrap=True,
            )  # fmt: skip
    if audit.ladders:
        console.print(
            "\n[bold]ladders[/]: the error of the worst row, in ULP of its size, as one thing about the data grows; "
            "and which textbook algorithms lose as much on the same data"
        )
        console.print(_ladders(audit.ladders))
    if audit.fingerprint is not None and audit.fingerprint.statements:
        console.print(f"\n[bold]fingerprint[/]: what {audit.fingerprint.runs} crafted runs reveal")
        console.print(_fingerprint(audit))
    for line in audit.disagreements:
        console.print(f"[red bold]contract[/] {escape(line)}")
    for skip in audit.skipped:
        console.print(f"[dim]not done: {escape(skip.what)}: {escape(skip.reason)}[/]")
    console.print(verdict(audit))


def verdict(audit: Audit) -> str:
    """One line: the checks' verdict, the contract's, and how long it took."""
    name, taken = escape(audit.report.kernel), f"audit of {audit.seconds:.0f} s"
    against = len(audit.disagreements)
    if audit.ok:
        return f"[green bold]pass[/] {name}: every check, and no arithmetic that its contract excludes; {taken}"
    if not audit.report.checked:
        return f"[red bold]nothing checked[/]: {name}; {taken}"
    found = len(audit.report.findings)
    parts = [f"{found} finding{'s' * (found != 1)}"] * bool(found)
    parts += [f"{against} disagreement{'s' * (against != 1)} with its contract"] * bool(against)
    return f"[red bold]FAIL[/] {name}: {' and '.join(parts) or 'interrupted'}; {taken}"


def _table(*heads: str, words: int = 2) -> Table:
    """A table whose first columns are words, and whose others are numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place < words else "right", no_wrap=True)
    return table


def _errors(reports: tuple[UlpReport, ...]) -> Table:
    table = _table(
        "output", "dtype", "cases", "max", "p99.9", "p99", "p50", "mean", "bias", "rounded right", "error/bound"
    )
    for one in reports:
        numbers = (one.maximum, one.p999, one.p99, one.p50, one.mean)
        table.add_row(
            one.output, one.dtype, str(one.cases), *(terminal.number(n) for n in numbers), f"{one.bias:+.3f}",
            f"{100 * one.correct:.2f} %", f"{one.ratio:.2f}",
        )  # fmt: skip
    return table


def _beyond(one: UlpReport) -> str:
    """That an average is beyond what rounding and the bound explain; "" where it is not."""
    seen = one.averages
    if seen is None or (seen.excess <= seen.excess_allowed and abs(seen.bias) <= seen.bias_allowed):
        return ""
    return (
        f"[red bold]{one.output} {one.dtype}[/]: mean error {seen.excess:.3g} ULP beyond correct rounding "
        f"({seen.excess_allowed:.3g} explained), bias {seen.bias:+.3g} ({seen.bias_allowed:.3g} explained)"
    )


def _ladders(ladders: tuple[Ladder, ...]) -> Table:
    table = _table("what grows", "output", "from", "to", "least", "most", words=2)
    table.add_column("over its bound")
    table.add_column("like", overflow="fold")
    for one in ladders:
        errors = [rung.error_ulp for rung in one.rungs]
        over = "never" if one.first_over is None else f"[red]from {one.first_over:.3g}[/]"
        ends = (f"{one.rungs[0].value:.3g}", f"{one.rungs[-1].value:.3g}") if one.rungs else ("", "")
        spread = [_error(min(errors)), _error(max(errors))] if errors else ["", ""]
        table.add_row(escape(one.unit), one.output, *ends, *spread, over, _likeness(one))
    return table


def _likeness(one: Ladder) -> str:
    """The algorithms that the kernel resembles."""
    known = {name for rung in one.rungs for name in rung.textbook}
    if len(known) > 1 and known == set(one.like):
        return "any of them"  # where they do not differ
    sums = " sums" * (len(one.like) > 1 and all(name.endswith(" sums") for name in one.like))
    return escape(", ".join(name.removesuffix(sums) for name in one.like) + sums) or "none of them"


def _error(value: float) -> str:
    return terminal.number(value) if isfinite(value) else "∞"


def _fingerprint(audit: Audit) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head, most in (("property", None), ("x", None), ("is", 32), ("sure", None), ("evidence", None)):
        table.add_column(head, overflow="fold", no_wrap=head in ("property", "x", "sure"), max_width=most)
    assert audit.fingerprint is not None
    for one in audit.fingerprint.statements:
        sure = f"{100 * one.confidence:.0f} %" if one.confidence else "–"
        table.add_row(one.name, one.dtype, f"[bold]{escape(one.said)}[/]", sure, escape(one.evidence))
    return table


def show_hunt(hunt: Hunt, console: Console, bind: str = "") -> None:
    """Print what a hunt found, with a replay line for each."""
    for one in hunt.worst:
        further = f"; {one.beyond:.3g} where its data are moved too" if one.beyond > one.value * 1.001 else ""
        console.print(f"[bold]{one.output}[/] {MEASURES[one.measure]} {one.value:.3g} ({one.found}{further})")
        console.print(f"  replay: {escape(command(hunt.kernel, hunt.op, one.spec, bind))}", soft_wrap=True)
    console.print(
        f"{hunt.cases} cases in {hunt.seconds:.0f} s: {hunt.drawn} drawn, {hunt.evolved} evolved, {hunt.moved} with "
        "their data moved"
    )
