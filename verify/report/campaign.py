"""A campaign for people, on a terminal: a row for each kernel, the findings, the verdict; and how far it is."""

from rich.console import Console

from verify_norm.campaign.comparison import SAME
from verify_norm.campaign.summary import Summary, ago, lacking
from verify_norm.core.case_words import count
from verify_norm.core.errors import Exit
from verify_norm.exhaustive.run import duration
from verify_norm.report.exhaust import VERDICTS
from verify_norm.report.markup import escape
from verify_norm.report.numbers import ascii_number
from verify_norm.report.terminal import table
from verify_norm.report.words import facts_of


def show(found: Summary, console: Console) -> None:
    """Print the whole summary; the verdict is the last line."""
    made = table("kernel", "operator", "verdict", "units", "findings", "cases", "error/bound", "seconds", words=3)
    made.columns[0].no_wrap, made.columns[0].overflow = False, "fold"  # a path may be long
    for row in found.rows:
        ratio = "–" if row.ratio is None else ascii_number(row.ratio)
        units = f"{row.done} of {row.units}" if row.done < row.units else str(row.units)
        counts = (units, str(row.findings), f"{row.cases:,}", ratio, f"{row.seconds:.1f}")
        made.add_row(escape(row.kernel), row.op, VERDICTS[row.verdict], *counts)
    console.print(made)
    if found.compared:
        made = table("kernel", "operator", "type", "accelerators", "compared", words=5)
        for each in found.compared:
            said = "\n".join(each.differences) or SAME
            made.add_row(escape(each.kernel), each.op, each.dtype, escape(", ".join(each.accelerators)), escape(said))
        console.print(made)
    for one in found.findings:
        console.print(
            f"\n[red bold]FAIL[/] [bold]{one.check}[/] {escape(one.kernel)} ({one.op}): {escape(one.message)}"
        )
        console.print(f"  seen in   {count(one.cases, 'case')}", soft_wrap=True)
        console.print(f"  replay    {escape(one.replay)}", soft_wrap=True)
    for unit, problem in found.problems:
        console.print(f"[red bold]nothing checked[/] {escape(str(unit))}: {escape(problem)}", soft_wrap=True)
    for line in lacking(found):
        console.print(f"[yellow bold]INCOMPLETE[/] {escape(line)}", soft_wrap=True)
    console.print(f"[dim]{escape(facts_of(found.versions))}[/]")
    console.print(f"{VERDICTS[found.verdict]} {escape(basis(found))}", soft_wrap=True)


def basis(found: Summary) -> str:
    """Return what a verdict is based on, in words."""
    done = count(found.units, "unit")
    if found.done < found.units:
        done = f"{found.done:,} of {done}"
    findings = f"{count(len(found.findings), 'finding')}; " if found.findings else ""
    return f"{found.path}: {findings}{count(len(found.rows), 'kernel')}, {done}, {count(found.cases, 'case')}"


def progress(found: Summary) -> str:
    """Return how far a campaign is, on one line."""
    left = f", {duration(found.left)} left" if found.left and found.done < found.units else ""
    done = f"{found.done:,} of {count(found.units, 'unit')}, {count(found.cases, 'case')}"
    return f"{done}, {found.rate:,.1f} a second, {count(len(found.findings), 'finding')}{left}"


def show_status(found: Summary, console: Console) -> None:
    """Print how far a campaign is, and a row for each worker."""
    state = "running" if found.running else "not running"
    if not found.running and found.done == found.units:
        state = "done"
    console.print(f"{escape(found.path)}: {state}; {progress(found)}", soft_wrap=True)
    made = table("worker", "units", "cases", "cases/s", "last unit", words=1)
    for one in found.workers:
        rate = one.cases / one.seconds if one.seconds else 0.0
        made.add_row(
            escape(one.name), str(one.units), f"{one.cases:,}", f"{rate:,.1f}", f"{duration(ago(one.last))} ago"
        )
    if found.workers:
        console.print(made)
    if found.verdict in (Exit.FINDINGS, Exit.NOTHING):
        console.print("verify-norm campaign report shows what was found" if found.findings else "units have problems")
