"""Campaigns: `campaign PLAN`, `campaign status FILE`, `campaign report FILE`, and `merge FILE... --into FILE`."""

import time
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live
from typer.core import TyperGroup

from verify_norm.cli import config, console, options
from verify_norm.cli.outputs import apart, write
from verify_norm.core import files
from verify_norm.core.case_words import count
from verify_norm.core.errors import Exit, UsageError, one_of
from verify_norm.report.markup import escape

FILE = typer.Argument(metavar="FILE", help="The store of a campaign.")
PLAN = typer.Argument(metavar="[PLAN]", help="A plan, TOML or JSON. Options override its keys.")
BLOCK = typer.Option("--block", min=1, help="Random cases of one unit at most. Default: 500.")
UNIT_SECONDS = typer.Option("--seconds", min=0.1, help="Time for one unit. Default: 600.")
STORE = typer.Option("--store", help="The file that keeps the outcomes. Default: PLAN with the ending .campaign.")
JOBS = typer.Option("--jobs", "-j", min=1, help="Workers on a CPU; by default one for each core. A GPU has one each.")
SHARD = typer.Option("--shard", help="Run this share of the units, such as 1/4; verify-norm merge joins the stores.")
ON = typer.Option("--on", help="Where units run: local, this machine; ray or ray=ADDRESS, a Ray cluster.")
CONFIGS = typer.Option("--configs", help="Of kernels under @triton.autotune: tuned, or all configurations too.")
ACCELERATORS = typer.Option(
    "--accelerators", help="Run all units on each of these and compare them, such as H100,A100."
)
STOP = typer.Option("--stop-after", min=0.1, help="Start no unit after so many seconds; the same command resumes.")
SQL = typer.Option("--sql", help="Run this SQL query on the store, and print the rows, separated by tabs.")
KERNEL = typer.Option("--kernel", "-k", help="Show the whole report of this kernel. Repeat it for more kernels.")
MARKDOWN = typer.Option("--markdown", help="Write Markdown to this file. - is standard output.")
WATCH = typer.Option("--watch", help="Repeat the output each second, until the campaign ends or Ctrl-C.")
INTO = typer.Option("--into", help="The file to merge the outcomes into; it may exist.")
EVERY = {True: 10.0, False: 30.0}  # seconds until the line changes on a terminal, and between two lines elsewhere


class Group(TyperGroup):
    """The commands of a campaign; what is none of them is a plan."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read `campaign PLAN` and `campaign --kernel K` as `campaign run …`."""
        if not args or args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=Group,
    help="Check many kernels in many cases, on all GPUs or cores of a machine, and keep the outcomes in one file.",
)


@app.command(cls=config.Command)
@options.taking("campaign")
def run(
    context: typer.Context,
    plan: Annotated[str, PLAN] = "",
    kernel: Annotated[list[str] | None, options.KERNELS] = None,
    op: Annotated[str, options.OP] = "",
    bind: Annotated[str, options.BIND] = "",
    *,
    given: options.Given,
    seconds: Annotated[float | None, UNIT_SECONDS] = None,
    block: Annotated[int | None, BLOCK] = None,
    configs: Annotated[str | None, CONFIGS] = None,
    accelerators: Annotated[str | None, ACCELERATORS] = None,
    on: Annotated[str, ON] = "local",
    store: Annotated[str, STORE] = "",
    jobs: Annotated[int | None, JOBS] = None,
    shard: Annotated[str, SHARD] = "1/1",
    stop_after: Annotated[float | None, STOP] = None,
) -> int:
    """Run a plan, or go on with it: `verify-norm campaign PLAN`.

    A unit is one kernel in one type and one block of random cases; the first block also has the corner table. Each
    outcome is in the store once its unit is done. Killed at any moment, the same command goes on. Exit status: 0 all
    right, 1 findings, 2 a usage error or nothing checked, 3 not finished.
    """
    from verify_norm.campaign import run, summary
    from verify_norm.campaign.model import LostError
    from verify_norm.campaign.places import executor, here
    from verify_norm.campaign.plan import checked, expand, read
    from verify_norm.campaign.shard import Shard
    from verify_norm.campaign.store import Store
    from verify_norm.report import campaign, terminal

    share = Shard.of(shard)
    own = {name: value for name, value in given.items() if _explicit(context, name)}  # keys of a plan
    more = {"seconds": seconds, "block": block, "configs": configs, "accelerators": accelerators}
    own |= {name: value for name, value in more.items() if value is not None}
    own |= _kernels(plan, kernel or [], op, bind)
    path = store or _beside(plan, share)
    asked = checked((read(plan) if plan else {}) | own, plan)
    files.writable(path, ours=("SQLite format 3",))
    units = expand(asked, console.complain, elsewhere=not here(on))
    where = executor(on, asked, jobs)
    size = count(len(units), "unit")
    if share.n > 1:
        size += f", {sum(unit in share for unit in units)} of them in shard {shard}"
    console.status(f"{size}; store {path}")
    stop = inf if stop_after is None else stop_after
    with _line() as tell:

        def progress(written: Store) -> None:
            tell(lambda: campaign.progress(summary.summarize(written, share)))

        try:
            run.run(asked, units, path, where, shard=share, seconds=stop, progress=progress)
        except (KeyboardInterrupt, LostError) as error:
            console.complain(f"{str(error) or 'interrupted'}; the same command resumes from {path}")
    with Store.reading(path) as written:
        found = summary.summarize(written, share)
    campaign.show(found, terminal.console())
    return found.verdict


def _kernels(plan: str, names: list[str], op: str, bind: str) -> dict[str, Any]:
    """Return the key of a plan for the kernels that the command line names; raises UsageError if nothing names any."""
    if names:
        return {"kernels": [{"kernel": name, "op": op, "bind": bind} for name in names]}
    if not plan:
        raise UsageError("expected a plan, such as verify-norm campaign plan.toml, or --kernel")
    if op or bind:
        raise UsageError(f"{'--op' if op else '--bind'} belongs to --kernel; in a plan it is a key of a kernel")
    return {}


def _explicit(context: typer.Context, name: str) -> bool:
    """Return whether the command line has an option."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _beside(plan: str, shard: Any) -> str:
    """Return where a plan's outcomes are kept if the user does not say: beside it, each shard in a file of its own."""
    if not plan:
        raise UsageError("--store: expected a file for the outcomes, since there is no plan whose name it could have")
    ending = f".{shard.i}-of-{shard.n}.campaign" if shard.n > 1 else ".campaign"
    return str(Path(plan).with_suffix(ending))


@contextmanager
def _line() -> Any:
    """Yield what shows how far the campaign is: a line that changes on a terminal, else one now and then."""
    shown = time.monotonic()
    with console.err.status("") as line:

        def tell(words: Any) -> None:
            nonlocal shown
            if time.monotonic() < shown + EVERY[console.err.is_terminal]:
                return  # it reads all outcomes, and workers wait for it
            shown = time.monotonic()
            if console.err.is_terminal:
                line.update(escape(words()))
            else:
                console.status(words())

        yield tell


@app.command(cls=config.Command)
def status(file: Annotated[str, FILE], watch: Annotated[bool, WATCH] = False) -> int:
    """Show how far a campaign is, also while it runs: units, cases a second, findings, time left, by worker."""
    from verify_norm.campaign.store import Store
    from verify_norm.campaign.summary import summarize
    from verify_norm.report import campaign, terminal

    out = terminal.console()
    with Store.reading(file) as stored:
        found = summarize(stored)
        if watch and out.is_terminal:
            with Live(console=out, auto_refresh=False) as live:
                while found.running:
                    live.update(escape(campaign.progress(found)), refresh=True)
                    time.sleep(1.0)
                    found = summarize(stored)
        campaign.show_status(found, out)
    return Exit.PASS


@app.command(cls=config.Command)
def report(
    file: Annotated[str, FILE],
    kernel: Annotated[list[str] | None, KERNEL] = None,
    sql: Annotated[str, SQL] = "",
    json_path: Annotated[str, options.JSON] = "",
    html: Annotated[str, options.HTML] = "",
    markdown_path: Annotated[str, MARKDOWN] = "",
) -> int:
    """Show what a campaign found: a row for each kernel, and the findings; with --kernel its whole report.

    --html is a page with a row for each kernel, or with --kernel the page of a run. --json has one report for each
    kernel, as --baseline and verify-norm compare take them. The exit status is that of the campaign; of --sql 0.
    """
    from verify_norm.campaign.merging import merged
    from verify_norm.campaign.store import Store
    from verify_norm.campaign.summary import summarize
    from verify_norm.report import campaign, documents, markdown, terminal

    apart({"--json": json_path, "--html": html, "--markdown": markdown_path}, read=(file,))
    files.writable(json_path)
    files.writable(html, ours=("<!DOCTYPE html>",))
    files.writable(markdown_path, ours=("### ",))
    with Store.reading(file) as stored:
        if sql:
            write("".join("\t".join(map(str, row)) + "\n" for row in stored.query(sql)), "-")
            return Exit.PASS
        found = summarize(stored)
        known = {row.kernel for row in found.rows}
        wanted = {one_of("kernel of the campaign", name, known) for name in kernel or known}
        reports = []
        if kernel or json_path or markdown_path:
            for row in found.rows:
                of_units = stored.reports(row.kernel, row.op) if row.kernel in wanted else []
                if of_units:
                    reports.append(merged(of_units))
    if "-" not in (json_path, html, markdown_path):
        if kernel:
            for one in reports:
                terminal.show_report(one, terminal.console())
        campaign.show(found, terminal.console())
    if (json_path or markdown_path or kernel) and not reports:
        raise UsageError(f"{file} has no report of {', '.join(sorted(wanted))} yet")
    if json_path:
        write(documents.dump(*reports), json_path)
    if markdown_path:
        write(markdown.of(*reports), markdown_path)
    if html:
        write(_page(found, reports if kernel else []), html)
    return found.verdict


def _page(found: Any, reports: list[Any]) -> str:
    """Return the page of these reports; without any, that of the campaign."""
    from verify_norm.report.html import campaign, page

    return page.pages(*reports) if reports else campaign.page(found)


def merge(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="The stores of a campaign's shards.")],
    into: Annotated[str, INTO],
) -> int:
    """Merge several stores of one plan into one file, and show what was found.

    It refuses stores of other plans and versions. A second merge changes nothing. Exit status 3 if units are missing.
    """
    from verify_norm.campaign.join import merge
    from verify_norm.campaign.store import Store
    from verify_norm.campaign.summary import summarize
    from verify_norm.report import campaign, terminal

    merge(files, into)
    with Store.reading(into) as stored:
        found = summarize(stored)
    campaign.show(found, terminal.console())
    return found.verdict
