"""Standard error: lines for the user, a mistake as one line, and a search with a progress bar."""

import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console

from verify_norm import __version__
from verify_norm.core.case_words import count
from verify_norm.core.errors import Exit, UsageError, one_line, visible
from verify_norm.core.kernel import Kernel
from verify_norm.core.results import Report
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.report.markup import escape

err = Console(stderr=True, highlight=False, emoji=False)
LONGEST = 2000  # characters of a line: a name may have thousands
_interrupted = False


@contextmanager
def interrupts() -> Iterator[None]:
    """Remember Ctrl-C in this block: code that it interrupts, such as an import of C, may raise another exception."""
    global _interrupted
    _interrupted = False

    def remember(number: int, frame: object) -> None:
        global _interrupted
        _interrupted = True
        raise KeyboardInterrupt

    before, main = signal.getsignal(signal.SIGINT), threading.current_thread() is threading.main_thread()
    if before is not signal.default_int_handler or not main:  # ignored, for example by nohup, or somebody else's
        yield
        return
    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def statuses() -> Iterator[None]:
    """Turn what ends a command early into words and an exit status."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, typer.Exit) or hasattr(error, "format_message"):  # typer's own errors have one
            raise
        raise typer.Exit(ended_by(error)) from None


def ended_by(error: BaseException) -> Exit:
    """Say what ended a command, a mistake or Ctrl-C in one line, and return the exit status."""
    if isinstance(error, UsageError) or hasattr(error, "format_message"):
        complain(_refused(error) if hasattr(error, "format_message") else str(error))
        return Exit.NOTHING
    if _interrupted or isinstance(error, (KeyboardInterrupt, typer.Abort)):
        complain("interrupted before there was a report")
        return Exit.INCOMPLETE
    traceback.print_exception(error)
    complain(f"internal error: {one_line(error)}; this is an error of verify-norm, not of the kernel")
    command = shlex.join(["verify-norm", *sys.argv[1:]])
    complain(f"please report it with the traceback above, the version {__version__}, and the command: {command}")
    return Exit.INTERNAL


def _refused(error: Any) -> str:
    """Return typer's message about a command line; of arguments and options, which ones the command takes."""
    message, context = str(error.format_message()), error.ctx
    command = context.command_path.removeprefix("verify-norm ") if context else ""
    if message.startswith("Missing argument"):
        name, help_ = message.split("'")[1].upper(), error.param.help.rstrip(".")
        return f"{command}: expected {name}, got none; {name} is: {help_}"
    if message.startswith("Missing option"):
        option, help_ = max(error.param.opts, key=len), error.param.help.rstrip(".")
        return f"{command}: expected {option}, got none; {help_}"
    if message.startswith("Got unexpected extra"):
        arguments = count(len(context.command.collect_usage_pieces(context)) - 1, "argument")
        got = message.partition("(")[2].rpartition("(")[2].rstrip(").")
        takes_kernel = any("--kernel" in param.opts for param in context.command.params)
        instead = "; a kernel is given as --kernel" if takes_kernel else ""
        return f"{command}: expected {arguments}, got {got} too{instead}"
    return message


def complain(message: str) -> None:
    """Print one line on standard error."""
    err.print(f"verify-norm: {_line(message)}", soft_wrap=True)


def _line(message: str) -> str:
    """Return a message as one line for Rich, and not too long."""
    line = visible(message)
    return escape(line if len(line) <= LONGEST else line[: LONGEST - 1] + "…")


def status(message: str) -> None:
    """Print how far a command is, on standard error."""
    err.print(_line(message), soft_wrap=True)


def search(kernel: Kernel, settings: Settings, *, resume: bool = False, first: Iterable[CaseSpec] = ()) -> Report:
    """Return the report of a search that has a journal and, on a terminal, a progress bar."""
    from verify_norm.search.journal import Journal, path_of
    from verify_norm.search.search import search as run

    journal = Journal(path_of(kernel, settings), resume=resume)
    if resume and journal.done:
        complain(f"{len(journal.done)} cases are already done")
    elif resume:
        complain("nothing to resume: the search starts from the beginning")
    with progress(kernel.name) as update:
        return run(kernel, settings, update, journal, first=first)


@contextmanager
def progress(name: str, noun: str = "finding") -> Iterator[Callable[[int, int, int], None]]:
    """Show a progress bar on a terminal; yield what moves it on: cases done, cases planned, and what was found.

    `noun` is what was found, in the singular, such as "finding".
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    name = visible(name)
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(name, total=None)

        def update(done: int, planned: int, found: int) -> None:
            text = f"{name}: {count(found, noun)}" if found else name
            bar.update(task, completed=done, total=planned, description=text)

        yield update
