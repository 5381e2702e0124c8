"""What several commands take: their options, and a search that shows how far it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from verify_norm import session

if TYPE_CHECKING:
    from verify_norm.report.model import Report, Settings
    from verify_norm.spec import CaseSpec, Kernel

KERNEL = typer.Option("--kernel", "-k", help="A kernel's name (see list), package.module:attr, or path/file.py:attr.")
DEVICE = typer.Option("--device", help="cpu, cuda or cuda:N; the first GPU where there is one, else the CPU.")
JSON = typer.Option("--json", help="Write the report there, of both directions a list; - for standard output.")
IN_PROCESS = typer.Option("--in-process", help="Run the kernel in this process, as for a debugger: crashes end it.")
OP = typer.Option("--op", help="What it computes, if no name tells: layernorm_fwd; layernorm is both directions.")
BIND = typer.Option(
    "--bind",
    help="Whose argument is whose: x=hidden_states,eps=variance_epsilon (the operator's name = the kernel's), "
    'mode="llama",eps=1e-6 (constants), and after an arrow what is returned: -> y,rstd,_',
)
CHECKS = typer.Option("--checks", help="Only these checks, as accuracy,signature.")
TIMEOUT = typer.Option("--timeout", min=0.1, help="Seconds for one case, else it hangs; 20, or 90 on a GPU.")
EXAMPLES = typer.Option("--examples", min=0, help="Random cases, after the corner table.")
SEED = typer.Option("--seed", min=0, help="Of the random cases.")
DTYPE = typer.Option("--dtype", help="Types of x, as fp32,bf16.")
HTML = typer.Option("--html", help="Write a page of the reports there, which works offline.")
BASELINE = typer.Option("--baseline", help="Compare with the reports in that file: what got worse is exit status 1.")
CORPUS = typer.Option("--corpus", help="A file of the worst cases that a hunt found, which are run first.")


def search(kernel: Kernel, settings: Settings, *, resume: bool = False, first: Iterable[CaseSpec] = ()) -> Report:
    """`search.search` with a progress bar on standard error, and a journal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from verify_norm.journal import Journal, path_of
    from verify_norm.search import search as run

    journal = Journal(path_of(kernel, settings), resume=resume)
    if resume:
        session.complain(f"{len(journal.done)} cases were done before" if journal.done else "nothing to resume: anew")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=session.err, transient=True, disable=not session.err.is_terminal) as bar:
        task = bar.add_task(kernel.name, total=None)

        def update(done: int, planned: int, found: int) -> None:
            said = f"{kernel.name}: {found} finding{'s' * (found != 1)}" if found else kernel.name
            bar.update(task, completed=done, total=planned, description=said)

        return run(kernel, settings, update, journal, first=first)
