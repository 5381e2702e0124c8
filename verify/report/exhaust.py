"""An exhaustive run for people, on standard output."""

from rich.console import Console
from rich.table import Table

from verify_norm.core.errors import Exit
from verify_norm.exhaustive.model import Exhausted, replay, summary, words
from verify_norm.report.equality import CPU
from verify_norm.report.markup import escape
from verify_norm.report.numbers import number, percent
from verify_norm.report.terminal import table
from verify_norm.report.words import facts_of

UNJUDGED = (
    "An element is unjudged where the truth is not finite, for example of a row with a NaN, or where the declared "
    "arithmetic may overflow or underflow completely: the square of 1e20 overflows in float32. A NaN must give NaN."
)
VERDICTS = {
    Exit.PASS: "[green bold]PASS[/]",
    Exit.FINDINGS: "[red bold]FAIL[/]",
    Exit.INCOMPLETE: "[yellow bold]INCOMPLETE[/]",
    Exit.NOTHING: "[red bold]nothing checked[/]",
}


def show(found: Exhausted, console: Console) -> None:
    """Print the whole result; the verdict is the last line."""
    if found.tallies:
        console.print(_errors(found))
    if any(one.unjudged for one in found.tallies):
        console.print(f"[dim]{UNJUDGED}[/]")
    for violation in found.violations:
        console.print(f"\n[red bold]FAIL[/] {summary(violation)}; the first:")
        for element in violation.elements:
            console.print(f"  {escape(words(violation, element))}", soft_wrap=True)
            console.print(f"    replay {escape(replay(found.asked, element))}", soft_wrap=True)
    if found.problem:
        console.print(f"\n[red bold]FAIL[/] {escape(found.problem)}", soft_wrap=True)
    console.print(f"[dim]{escape(facts_of(found.environment))}[/]")
    if "interpreter" in found.environment:
        console.print(f"[dim]{CPU}[/]")
    console.print(verdict(found), soft_wrap=True)


def _errors(found: Exhausted) -> Table:
    """Return a table with a row for each output and type."""
    sizes = ("elements", "unjudged", "max ULP", "mean", "correctly rounded", "error/bound", "at item")
    made = table("output", "dtype", *sizes)
    for one in found.tallies:
        counts = (f"{one.elements:,}", f"{one.unjudged:,}")
        errors = (number(one.ulp.maximum), number(one.ulp.mean), percent(one.ulp.correctly_rounded))
        item = f"{one.index[0]:,}" if one.index else "–"
        made.add_row(one.output, one.dtype, *counts, *errors, f"{one.ratio:.3f}", item)
    return made


def verdict(found: Exhausted) -> str:
    """Return one line: the verdict, how much ran, and how fast."""
    ran = found.done - found.asked.first
    speed = f"{ran / found.seconds:,.0f} a second" if found.seconds else "none ran"
    wrong = sum(one.count for one in found.violations)
    parts = [escape(found.scope), f"in {found.seconds:.0f} s ({speed})", f"{found.judged:,} elements judged"]
    if wrong:
        parts.append(f"{wrong:,} wrong")
    if found.ended:
        parts.append(escape(found.ended))
    return f"{VERDICTS[found.verdict]} {escape(found.asked.kernel)}: {'; '.join(parts)}"
