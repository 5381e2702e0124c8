"""A Comparison for people: the errors of both runs side by side, and what changed."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from verify_norm.report.comparison import Change, Comparison, Errors, Pair, Way
from verify_norm.report.terminal import number

COLORS: dict[Way, str] = {"worse": "red", "better": "green", "changed": "yellow", "same": "dim"}
WORDS: dict[Way, str] = {"worse": "worse", "better": "better", "changed": "changed", "same": "as before"}


def show(comparison: Comparison, console: Console) -> None:
    """Print the whole comparison."""
    for pair in comparison.pairs:
        console.print(f"\n[bold]{escape(title(pair))}[/]: {cases(pair)}")
        if pair.rows:
            console.print(_table(pair))
        for note in pair.notes:
            console.print(f"[dim]note: {escape(note)}[/]")
        for change in pair.changes:
            console.print(f"[{COLORS[change.way]}]{WORDS[change.way]}[/] {escape(sentence(change))}", soft_wrap=True)
            if change.replay and change.way != "same":
                console.print(f"  replay: {escape(change.replay)}", soft_wrap=True)
    for line in alone(comparison):
        console.print(f"[dim]{escape(line)}[/]")
    console.print(f"[{'red' if comparison.worse else 'green'} bold]{verdict(comparison)}[/]")


def title(pair: Pair) -> str:
    """The kernel's name, or both."""
    return pair.kernel if pair.kernel == pair.old_kernel else f"{pair.old_kernel} → {pair.kernel}"


def cases(pair: Pair) -> str:
    """How many cases both runs met."""
    if pair.same_cases:
        return f"the same {pair.new_cases} cases in both runs"
    return f"{pair.old_cases} cases → {pair.new_cases} other ones"


def sentence(change: Change) -> str:
    """What changed, from what to what, and why that counts."""
    why = f" ({change.why})" if change.why else ""
    if change.way == "same":
        return f"{change.what}: {change.new}{why}"
    return f"{change.what}: {change.old} → {change.new}{why}"


def alone(comparison: Comparison) -> Iterator[str]:
    """What is in one file alone, a line each."""
    for names, which in ((comparison.old_alone, "old"), (comparison.new_alone, "new")):
        if names:
            yield f"only in the {which} one: {', '.join(names)}"


def verdict(comparison: Comparison) -> str:
    """One line that says whether anything got worse."""
    counts = {way: sum(len(pair.of(way)) for pair in comparison.pairs) for way in COLORS}
    kernels = f"{len(comparison.pairs)} kernel{'s' * (len(comparison.pairs) != 1)} compared"
    better = f", {counts['better']} better" if counts["better"] else ""
    if counts["worse"]:
        return f"worse in {counts['worse']} point{'s' * (counts['worse'] != 1)}{better}; {kernels}"
    return f"nothing got worse{better}; {kernels}"


def columns(old: Errors, new: Errors) -> tuple[str, ...]:
    """Both runs' numbers of one output in one type, as cells of a table: one number where they are the same."""
    cells = ([number(e.ratio), number(e.mean), _signed(e.bias), number(e.p99), f"{100 * e.correct:.2f} %"]
             for e in (old, new))  # fmt: skip
    return tuple(was if was == now else f"{was.removesuffix(' %')} → {now}" for was, now in zip(*cells, strict=True))


def _signed(value: float) -> str:
    return f"{value:+.2g}" if abs(value) < 10 else ("-" if value < 0 else "+") + number(abs(value))


HEADS = ("output", "dtype", "data", "error/bound", "mean ULP", "bias", "p99", "rounded right")


def _table(pair: Pair) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(HEADS):
        table.add_column(name, justify="left" if place < 3 else "right", no_wrap=place < 3, overflow="fold")
    for row in pair.rows:
        kind = "typical" if row.new.typical else "cases"
        table.add_row(escape(row.new.output), escape(row.new.dtype), kind, *columns(row.old, row.new))
    return table
