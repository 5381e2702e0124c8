"""Rows of a race as text: the lines printed during it, and the Markdown tables at its end."""

import re
from collections.abc import Sequence
from typing import Any

STEP = re.compile(r"layernorm_fwd_cuda(\d)@(\d+)")
CHOICE = re.compile(r"\w+@(\w+\.\w+=.+)")


def span(us: float) -> str:
    """Return a time with three digits and its unit.

    >>> span(5.4321), span(15898.0)
    ('5.43 µs', '15.9 ms')
    """
    return f"{us:.3g} µs" if us < 999.5 else f"{us / 1000:.3g} ms"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table of these cells; all columns but the first are right-aligned."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def lines_of(rows: Sequence[Any]) -> list[str]:
    """Return a line for the work and one for each contestant: the fastest first, those without a time last."""
    work = rows[0].work
    lines = [f"{work.title}: {work.size / 1e6:.1f} MB, a copy takes {span(rows[0].copy_us)}"]
    for row in sorted(rows, key=lambda row: row.times.best if row.times else float("inf")):
        if row.times is None:
            lines.append(f"  {row.name:<28} {row.status}: {row.reason}")
            continue
        t = row.times
        cells = [f"{span(t.best):>9}", f"{row.gbs:6.0f} GB/s", f"{row.of_copy:5.2f} of copy"]
        if not row.peer and row.of_best is not None:
            cells.append(f"{row.of_best:.2f} × the best peer")
        cells.append(f"eager {span(t.eager)}")
        if t.host is not None:
            cells.append(f"host {span(t.host)}")
        cells.append(f"error/bound {max(row.errors.values(), default=0.0):.2f}")
        lines.append(f"  {row.name:<28} {'  '.join(cells)}{'  ' + t.note if t.note else ''}")
    return lines


def summary(rows: Sequence[Any]) -> str:
    """Return Markdown tables: GB/s by work and contestant, times of other constants, and the ladder by block size."""
    steps = [row for row in rows if STEP.fullmatch(row.name)]
    chosen = {row.work for row in rows if CHOICE.fullmatch(row.name)}
    choices = [row for row in rows if row.work in chosen]
    rest = [row for row in rows if row.work not in chosen and not STEP.fullmatch(row.name)]
    return "\n\n".join(part for part in (_works(rest), _choices(choices), _ladder(steps)) if part)


def brief(rows: Sequence[Any]) -> str:
    """Return a line for each piece of work in the columns of docs/results.md: copy, ours, best peer, torch."""
    lines = []
    for work in dict.fromkeys(row.work for row in rows):
        found = {row.name: row for row in rows if row.work == work}
        ours = next(row for row in found.values() if not row.peer)
        best = min((row for row in found.values() if row.peer and row.times), key=lambda row: row.times.best)
        cells = [f"{work.size / ours.copy_us / 1e3:.0f}", _cell(ours), f"{best.gbs:.0f}, {best.name}"]
        lines.append("| " + " | ".join([work.title, *cells, _cell(found.get("torch"))]) + " |")
    return "\n".join(lines)


def _choices(rows: Sequence[Any]) -> str:
    """Return the table of kernels beside the same kernels with other constants in their plans."""
    if not rows:
        return ""
    cells, before = [], None
    for row in (row for row in rows if row.times is not None or not row.peer):  # without missing peers
        constants = CHOICE.fullmatch(row.name)
        name = constants[1] if constants else row.name
        taken = [row.status, "–"] if row.times is None else [span(row.times.best), f"{row.of_copy:.2f}"]
        cells.append([row.work.title if row.work != before else "", name, *taken])
        before = row.work
    return markdown(["", "", "time", "of copy"], cells)


def _works(rows: Sequence[Any]) -> str:
    if not rows:
        return ""
    mine = list(dict.fromkeys(row.name for row in rows if not row.peer))
    theirs = list(dict.fromkeys(row.name for row in rows if row.peer))
    theirs = [name for name in theirs if any(row.name == name and row.times for row in rows)]
    one_each = len({row.work.op for row in rows if not row.peer}) == len(mine)
    ours = "ours" if one_each else None
    columns = [ours] if ours else mine
    head = ["GB/s", "copy", *(f"{name} (of copy, of best peer)" for name in columns), *theirs]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    for work in dict.fromkeys(row.work for row in rows):
        found = {"ours" if ours and not row.peer else row.name: row for row in rows if row.work == work}
        one = next(iter(found.values()))
        cells = [work.title, f"{work.size / one.copy_us / 1e3:.0f}" if one.copy_us else "–"]
        cells += [_cell(found.get(name)) for name in (*columns, *theirs)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(row: Any) -> str:
    if row is None:
        return "–"
    if row.times is None:
        return row.status
    if row.peer:
        return f"{row.gbs:.0f}"
    best = "" if row.of_best is None else f", {row.of_best:.2f}×"
    return f"**{row.gbs:.0f}** ({row.of_copy:.2f}{best})"


def _ladder(rows: Sequence[Any]) -> str:
    """Return the table of seed 004: steps of the ladder by block size."""
    if not rows:
        return ""
    at = {tuple(map(int, STEP.fullmatch(row.name).groups())): row for row in rows}
    steps, blocks = (sorted({key[axis] for key in at}) for axis in (0, 1))
    head = [f"GB/s, {rows[0].work.title}", *(f"block {block}" for block in blocks)]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * len(blocks)]
    for step in steps:
        found = [at.get((step, block)) for block in blocks]
        cells = ["–" if row is None else row.status if row.times is None else f"{row.gbs:.0f}" for row in found]
        lines.append("| " + " | ".join([f"kernel {step}", *cells]) + " |")
    return "\n".join(lines)
