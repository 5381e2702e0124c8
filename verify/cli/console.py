"""Standard error: lines for the user, a mistake as one line, and a search with a progress bar."""

import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.markup import escape

from verify_norm.core.errors import Exit, UsageError, one_line
from verify_norm.core.results import Report, Settings
from verify_norm.core.spec import CaseSpec, Kernel
from verify_norm.search.request import Request

err = Console(stderr=True, highlight=False, emoji=False)
REPORT_IT = "this is an error of verify-norm, not of the kernel; report it with the traceback and the command line"


@contextmanager
def statuses() -> Iterator[None]:
    """Turn what ends a command early into words and an exit status."""
    try:
        yield
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        if isinstance(error, typer.Exit) or hasattr(error, "format_message"):  # typer's own errors have one
            raise
        raise typer.Exit(ended_by(error)) from None


def ended_by(error: BaseException) -> Exit:
    """Say what ended a command, a mistake or Ctrl-C in one line, and return the exit status."""
    if isinstance(error, UsageError) or hasattr(error, "format_message"):
        complain(error.format_message() if hasattr(error, "format_message") else str(error))
        return Exit.NOTHING
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        complain("interrupted before there was a report")
        return Exit.INCOMPLETE
    if isinstance(error, SystemExit):  # rich's, where nobody reads its output any more
        complain("standard output was closed before the end of the report")
        return Exit.NOTHING
    traceback.print_exception(error)
    complain(f"internal error: {one_line(error)}; {REPORT_IT}")
    return Exit.INTERNAL


def complain(message: str) -> None:
    """Print one line on standard error."""
    err.print(f"verify-norm: {escape(message)}", soft_wrap=True)


def noted(asked: Request) -> Request:
    """Return the request, and print its notes."""
    for note in asked.notes:
        complain(note)
    return asked


def status(message: str) -> None:
    """Print how far a command is, on standard error."""
    err.print(escape(message), soft_wrap=True)


def search(kernel: Kernel, settings: Settings, *, resume: bool = False, first: Iterable[CaseSpec] = ()) -> Report:
    """Return the report of a search that has a journal and, on a terminal, a progress bar."""
    from verify_norm.search.journal import Journal, path_of
    from verify_norm.search.search import search as run

    journal = Journal(path_of(kernel, settings), resume=resume)
    if resume:
        done = len(journal.done)
        complain(f"{done} cases are already done" if done else "nothing to resume: the search starts anew")
    with progress(kernel.name) as update:
        return run(kernel, settings, update, journal, first=first)


@contextmanager
def progress(name: str, noun: str = "finding") -> Iterator[Callable[[int, int, int], None]]:
    """Show a progress bar on a terminal; yield what moves it on: cases done, cases planned, and what was found."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(name, total=None)

        def update(done: int, planned: int, found: int) -> None:
            text = f"{name}: {found} {noun}{'s' * (found != 1)}" if found else name
            bar.update(task, completed=done, total=planned, description=text)

        yield update
