"""A comparison for people: the errors of both runs side by side, and what changed."""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from verify_norm.core.case_words import count
from verify_norm.report.compare.model import Change, Errors, Pair, RunComparison, Way
from verify_norm.report.markup import escape
from verify_norm.report.numbers import ascii_number, percent
from verify_norm.report.terminal import table

COLORS: dict[Way, str] = {"worse": "red", "better": "green", "changed": "yellow", "same": "dim"}
HEADS = ("output", "dtype", "data", "error/bound", "mean ULP", "bias", "p99", "correctly rounded")


def show_comparison(comparison: RunComparison, console: Console) -> None:
    """Print the whole comparison."""
    for pair in comparison.pairs:
        console.print(f"\n[bold]{escape(title(pair))}[/]: {cases(pair)}")
        if pair.rows:
            console.print(_table(pair))
        for note in pair.notes:
            console.print(f"[dim]note: {escape(note)}[/]")
        for change in pair.changes:
            word = "as before" if change.way == "same" else change.way
            console.print(f"[{COLORS[change.way]}]{word}[/] {escape(sentence(change))}", soft_wrap=True)
            if change.replay and change.way != "same":
                console.print(f"  replay: {escape(change.replay)}", soft_wrap=True)
    for line in alone(comparison):
        console.print(f"[dim]{escape(line)}[/]")
    console.print(f"[{'red' if comparison.worse else 'green'} bold]{verdict(comparison)}[/]")


def title(pair: Pair) -> str:
    """Return the kernel's name, or both names."""
    return pair.kernel if pair.kernel == pair.old_kernel else f"{pair.old_kernel} → {pair.kernel}"


def cases(pair: Pair) -> str:
    """Return how many cases both runs checked, in words."""
    if pair.same_cases and pair.old_cases == pair.new_cases:
        return f"the same {pair.new_cases} cases in both runs"
    return f"{pair.old_cases} → {pair.new_cases} cases"


def sentence(change: Change) -> str:
    """Return what changed, from what to what, and why that counts."""
    why = f" ({change.why})" if change.why else ""
    values = change.new if change.way == "same" else f"{change.old} → {change.new}"
    return f"{change.what}: {values}{why}"


def alone(comparison: RunComparison) -> Iterator[str]:
    """Yield a line for each of the two files that has kernels of its own."""
    for names, which in ((comparison.old_alone, "old"), (comparison.new_alone, "new")):
        if names:
            yield f"only in the {which} file: {', '.join(names)}"


def verdict(comparison: RunComparison) -> str:
    """Return one line that says whether anything got worse."""
    worse = sum(len(pair.of("worse")) for pair in comparison.pairs)
    better = sum(len(pair.of("better")) for pair in comparison.pairs)
    found = f"{worse} got worse" if worse else "nothing got worse"
    also = f", {better} got better" if better else ""
    return f"{found}{also}; {count(len(comparison.pairs), 'kernel')} compared"


def columns(old: Errors, new: Errors) -> tuple[str, ...]:
    """Return both runs' numbers of one output in one type as the cells of a table, one number where they are equal."""
    pairs = zip(_numbers(old), _numbers(new), strict=True)
    return tuple(was if was == now else f"{was.removesuffix(' %')} → {now}" for was, now in pairs)


def _numbers(one: Errors) -> list[str]:
    return [
        ascii_number(one.ratio),
        ascii_number(one.mean),
        _signed(one.bias),
        ascii_number(one.p99),
        percent(one.correct),
    ]


def _signed(value: float) -> str:
    """Return a number with its sign."""
    if abs(value) < 10:
        return f"{value:+.2g}"
    return f"{'-' if value < 0 else '+'}{ascii_number(abs(value))}"


def _table(pair: Pair) -> Table:
    made = table(*HEADS, words=3, whole=True)
    for column in made.columns[3:]:
        column.no_wrap = False
    for row in pair.rows:
        data = "typical" if row.new.typical else "cases"
        made.add_row(escape(row.new.output), escape(row.new.dtype), data, *columns(row.old, row.new))
    return made
