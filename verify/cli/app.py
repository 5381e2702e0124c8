"""The command line: `verify-norm --kernel K`, and its commands."""

import sys
from collections.abc import Callable
from dataclasses import replace
from glob import has_magic
from typing import Annotated, Any

import typer

from verify_norm import __version__
from verify_norm.cli import (
    about,
    auditing,
    campaign,
    config,
    console,
    exhaust,
    options,
    prove,
    results,
    same,
    streams,
    validation,
)
from verify_norm.cli.outputs import Destinations, deliver
from verify_norm.core.errors import Exit, UsageError, one_of
from verify_norm.core.proved import Proved
from verify_norm.core.results import Report
from verify_norm.search.request import Request, interpret, request

app = typer.Typer(
    cls=config.Group,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Check whether a normalization kernel is correct, and how accurate it is.",
)
NO_CONFIG = typer.Option(
    "--no-config", is_eager=True, callback=config.load, help="Ignore [tool.verify-norm] in pyproject.toml."
)


@app.callback(invoke_without_command=True)
@options.taking("verify")
def verify(
    context: typer.Context,
    kernel: Annotated[list[str] | None, options.KERNELS] = None,
    op: Annotated[str, options.OP] = "",
    bind: Annotated[str, options.BIND] = "",
    *,
    given: options.Given,
    worker: Annotated[int, options.WORKER] = 0,
    in_process: Annotated[bool, options.IN_PROCESS] = False,
    fail_fast: Annotated[bool, options.FAIL_FAST] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the same run after it was killed.")] = False,
    sanitize: Annotated[str, options.SANITIZE] = "",
    corpus: Annotated[str, options.CORPUS] = "",
    certificate: Annotated[str, options.CERTIFICATE] = "",
    baseline: Annotated[str, options.BASELINE] = "",
    json_path: Annotated[str, options.JSON] = "",
    html: Annotated[str, options.HTML] = "",
    junit: Annotated[str, options.JUNIT] = "",
    no_config: Annotated[bool, NO_CONFIG] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> int:
    """Check kernels: corner cases first, then random cases, each element against a derived bound."""
    if version:
        print(f"verify-norm {__version__}")
        return 0
    if context.invoked_subcommand is not None:
        return 0
    if not kernel:
        raise typer.BadParameter("expected a kernel, such as --kernel layernorm_bwd; see verify-norm list, and --help")
    console.status(f"verify-norm {__version__}: {', '.join(kernel)}")
    config.announce(context)
    to = Destinations(json_path, html, junit, baseline, context.obj.limits)
    from verify_norm.loading.several import expanded

    common: dict[str, Any] = {"op": op or None, "bind": bind, "isolate": not in_process}
    if given["untrusted"]:
        _refuse_with_untrusted({"--resume": resume, "--sanitize": sanitize, "--in-process": in_process}, kernel)
        source = context.get_parameter_source("seed")
        if source is not None and source.name == "DEFAULT":
            given.pop("seed")  # the system draws it
    interpret(always=given["device"] == "cpu")  # a file may import Triton
    names = expanded(kernel)
    found = [request(name, given, corpus=corpus, worker=worker, tell=console.complain, **common) for name in names]
    proofs = _proofs(certificate, found)
    reports: list[Report] = []
    for asked in found:
        reports += _sanitized(asked, sanitize) if sanitize else _searched(asked, resume=resume)
        if reports[-1].interrupted or (fail_fast and any(report.findings for report in reports)):
            break
    reports = [replace(report, proofs=proofs.get((report.kernel, report.op), ())) for report in reports]
    planned = sum(len(asked.kernels) for asked in found)
    if fail_fast and len(reports) < planned and not reports[-1].interrupted:
        console.complain(f"--fail-fast: {len(reports)} of {planned} runs were made")
        planned = len(reports)
    return deliver(*reports, to=to, all_of_them=bool(op or sanitize), planned=planned, resumable=True)


def _proofs(path: str, found: list[Request]) -> dict[tuple[str, str], tuple[Proved, ...]]:
    """Return what the certificates in a file say of the kernels; raises UsageError."""
    if not path:
        return {}
    from verify_norm.proof.standing import standing

    kernels = [kernel for asked in found for kernel in asked.kernels]
    return standing(path, kernels, untrusted=any(asked.settings.untrusted for asked in found))


def _refuse_with_untrusted(others: dict[str, object], names: list[str]) -> None:
    """Raise UsageError for an option, or a name, with which an untrusted kernel would run in this process."""
    for option, value in others.items():
        if value:
            raise UsageError(f"--untrusted and {option}: choose one of them")
    for name in names:
        if name.endswith(".py") or (":" in name and has_magic(name)):
            raise UsageError(
                f"--untrusted --kernel {name}: name one function, such as path/file.py:fn; this imports nothing"
            )


def _searched(asked: Request, *, resume: bool) -> list[Report]:
    """Return the report of each direction, up to one that was interrupted."""
    reports: list[Report] = []
    for loaded, first in asked.runs():
        reports.append(console.search(loaded, asked.settings, resume=resume, first=first))
        if reports[-1].interrupted:
            break
    return reports


def _sanitized(asked: Request, tool: str) -> list[Report]:
    from verify_norm.search import sanitize

    one_of("tool", tool, sanitize.TOOLS)
    path = sanitize.find(asked.settings.device)
    return [sanitize.sanitize(loaded, asked.settings, tool, path) for loaded in asked.kernels]


@app.command(cls=config.Command)
@options.taking("replay")
def replay(
    spec: Annotated[str, typer.Argument(help="The JSON of a replay line.")],
    bind: Annotated[str, options.BIND] = "",
    *,
    given: options.Given,
    in_process: Annotated[bool, options.IN_PROCESS] = False,
    json_path: Annotated[str, options.JSON] = "",
) -> int:
    """Run one case again, from the replay line of a finding."""
    from verify_norm.core.serial import read_spec

    name, op, case = read_spec(spec)
    to = Destinations(json_path)
    asked = request(name, given | {"examples": 0}, op=op, bind=bind, isolate=not in_process, tell=console.complain)
    from verify_norm.search.search import replay as run

    return deliver(run(asked.only(), case, asked.settings), to=to)


app.command("list")(about.list_)
COMMANDS: tuple[Callable[..., Any], ...] = (about.show, auditing.audit, auditing.hunt, results.compare, same.same)
MORE: tuple[Callable[..., Any], ...] = (
    results.schema,
    exhaust.exhaust,
    prove.prove,
    campaign.merge,
    validation.power,
    validation.zoo,
    validation.certify,
    validation.gradcheck,
)
for command in (*COMMANDS, *MORE):
    app.command(cls=config.Command)(command)
app.add_typer(campaign.app, name="campaign")


def main() -> None:
    """Run a command line, and exit with its status. A mistake in the options is one line, like any other."""
    with streams.standard() as out, console.interrupts():
        try:
            status = app(standalone_mode=False)
        except (Exception, KeyboardInterrupt) as error:
            status = console.ended_by(error)
        out.flush()
        if out.failed:
            console.complain(f"cannot write to standard output: {out.failed}")
            if status not in (Exit.FINDINGS, Exit.INTERNAL):
                status = Exit.NOTHING
    sys.exit(int(status) if isinstance(status, int) else 0)
