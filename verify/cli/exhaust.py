"""A kernel on all of a space that can be counted."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from verify_norm.cli import console, options
from verify_norm.cli.outputs import apart, write
from verify_norm.core import files
from verify_norm.core.errors import Exit
from verify_norm.exhaustive.model import Choice, Exhausted
from verify_norm.report.markup import escape
from verify_norm.search.request import request

SPACE = typer.Option("--space", help="rows2, rows4 (e4m3fn), rows4_e5m2, x or eps; by default rows2, of BatchNorm x.")
DTYPE = typer.Option("--dtype", help="Type of x; by default bf16.")
EPS = typer.Option("--eps", help="eps of all rows.")
ITEMS = typer.Option("--items", help="Only the items from FIRST to the last one before LAST, as FIRST:LAST.")
SECONDS = typer.Option("--seconds", min=0.1, help="End after so many seconds; by default when all is done.")
RESUME = typer.Option("--resume", help="Keep the results in this file, and resume from it.")
EVERY = 30.0  # seconds between two lines where there is no terminal


@options.taking("exhaust")
def exhaust(
    kernel: Annotated[str, options.KERNEL],
    op: Annotated[str, options.OP] = "",
    bind: Annotated[str, options.BIND] = "",
    *,
    given: options.Given,
    space: Annotated[str, SPACE] = "",
    dtype: Annotated[str, DTYPE] = "",
    eps: Annotated[float, EPS] = 1e-5,
    items: Annotated[str, ITEMS] = "",
    seconds: Annotated[float | None, SECONDS] = None,
    resume: Annotated[str, RESUME] = "",
    in_process: Annotated[bool, options.IN_PROCESS] = False,
    json_path: Annotated[str, options.JSON] = "",
) -> int:
    """Run a kernel on all of a space, not on a sample.

    rows2 is every row of 2 values of x's type, rows4 every row of 4 values of an 8-bit type: 2**32 rows each. x is
    every value of x in BatchNorm's evaluation, eps every positive eps of bfloat16 and float16. Every element is judged
    as in any run. Exit status: 0 all right, 1 findings, 2 nothing checked, 3 not finished.
    """
    apart({"--json": json_path, "--resume": resume})
    files.writable(json_path)
    files.writable(resume)
    asked = request(kernel, given, op=op or None, bind=bind, isolate=not in_process, tell=console.complain)
    from verify_norm.exhaustive import run
    from verify_norm.report import terminal
    from verify_norm.report.exhaust import show

    choice = Choice(space, dtype, eps, items)
    with _progress() as progress:
        found = run.exhaust(asked.only(), asked.settings, choice, seconds=seconds, resume=resume, progress=progress)
    if json_path != "-":
        show(found, terminal.console())
    write(run.dump(found) if json_path else "", json_path)
    if found.verdict is Exit.INCOMPLETE:
        more = f"the same command resumes from {resume}" if resume else "--resume FILE keeps what is done"
        console.complain(f"incomplete: {found.scope}; {found.ended}; {more}")
    elif found.verdict is Exit.NOTHING:
        console.complain("nothing was checked: no element has a finite truth within a bound")
    return found.verdict


@contextmanager
def _progress() -> Iterator[Callable[[Exhausted, float], None]]:
    """Yield what shows how far a run is: a line that changes on a terminal, else one now and then."""
    from verify_norm.exhaustive.run import duration

    shown = time.perf_counter()

    def words(found: Exhausted, rate: float) -> str:
        asked, wrong = found.asked, sum(one.count for one in found.violations)
        left = duration((asked.last - found.done) / max(rate, 1e-9))
        done = f"{found.done - asked.first:,} of {asked.last - asked.first:,}"
        line = f"{asked.kernel}: {done}, {rate:,.0f} a second, {left} left"
        return f"{line}, {wrong:,} wrong" if wrong else line

    with console.err.status("") as line:

        def update(found: Exhausted, rate: float) -> None:
            nonlocal shown
            if console.err.is_terminal:
                line.update(escape(words(found, rate)))
            elif time.perf_counter() > shown + EVERY:
                shown = time.perf_counter()
                console.status(words(found, rate))

        yield update
