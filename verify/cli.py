"""The command line: `verify-norm --kernel K`, and its commands."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from verify_norm import __version__, config, session
from verify_norm.commands import about, auditing, options, proof, results

if TYPE_CHECKING:
    from verify_norm.report.model import Report, Settings
    from verify_norm.spec import Kernel

app = typer.Typer(
    cls=config.Group,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Tells whether a normalization kernel is correct, and how accurate it is.",
)


@app.callback(invoke_without_command=True)
def verify(
    context: typer.Context,
    kernel: Annotated[str, options.KERNEL] = "",
    op: Annotated[str, options.OP] = "",
    bind: Annotated[str, options.BIND] = "",
    dtype: Annotated[str, options.DTYPE] = "float32,float16,bfloat16",
    checks: Annotated[str, options.CHECKS] = "",
    examples: Annotated[int, options.EXAMPLES] = 400,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Time for the whole search.")] = 55.0,
    seed: Annotated[int, options.SEED] = 0,
    device: Annotated[str, options.DEVICE] = "auto",
    shapes: Annotated[
        str, typer.Option("--shapes", help="fuzz, models (norm shapes of real models), or all.")
    ] = "fuzz",
    timeout: Annotated[float | None, options.TIMEOUT] = None,
    in_process: Annotated[bool, options.IN_PROCESS] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the same command was killed.")] = False,
    sanitize: Annotated[str, typer.Option("--sanitize", help="Corners under compute-sanitizer: memcheck, …")] = "",
    corpus: Annotated[str, options.CORPUS] = "",
    baseline: Annotated[str, options.BASELINE] = "",
    json_path: Annotated[str, options.JSON] = "",
    html_path: Annotated[str, options.HTML] = "",
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Check one kernel: corners first, then random cases, each element against a derived bound."""
    if version:
        print(f"verify-norm {__version__}")
        return
    if context.invoked_subcommand is not None:
        return
    if not kernel:
        raise typer.BadParameter("name a kernel: --kernel layernorm_bwd (verify-norm list shows them)")
    session.err.print(f"verify-norm {__version__}: {escape(kernel)}", soft_wrap=True)
    config.announce(context)
    with session.usage_errors():
        from verify_norm.registry import one_of

        place = session.device(device)
        outputs = session.Outputs(json_path, html_path, baseline)
        one_of("set of shapes", shapes, config.SHAPES)
        kernels = session.load_all(kernel, op or None, place, bind)
        from verify_norm.report.model import Settings

        settings = Settings(
            dtypes=session.dtypes(dtype),
            checks=session.checks(checks),
            examples=0 if shapes == "models" else examples,
            seconds=seconds / len(kernels),
            seed=seed,
            device=place,
            shapes=shapes,
            timeout=timeout,
            isolate=not in_process,
        )
        if sanitize:
            session.deliver(*(_sanitize(loaded, settings, sanitize) for loaded in kernels), outputs=outputs)
        reports: list[Report] = []
        for loaded in kernels:
            if not reports or not reports[-1].interrupted:
                first = session.corpus(corpus, loaded)
                reports.append(options.search(loaded, settings, resume=resume, first=first))
        session.deliver(*reports, outputs=outputs, all_of_them=bool(op))


@app.command(cls=config.Command)
def replay(
    spec: Annotated[str, typer.Argument(help="The line of JSON that a finding shows.")],
    bind: Annotated[str, options.BIND] = "",
    device: Annotated[str, options.DEVICE] = "auto",
    checks: Annotated[str, options.CHECKS] = "",
    timeout: Annotated[float | None, options.TIMEOUT] = None,
    in_process: Annotated[bool, options.IN_PROCESS] = False,
    json_path: Annotated[str, options.JSON] = "",
) -> None:
    """Run one case again, as a finding's replay line has it."""
    with session.usage_errors():
        session.interpret()
        from verify_norm.report.json import read_spec

        name, op, case = read_spec(spec)
        place = session.device(device)
        session.writable(json_path)
        kernel = session.load(name, op, place, bind)
        from verify_norm.report.model import Settings
        from verify_norm.search import replay as run

        wanted = session.checks(checks)
        settings = Settings((case.dtype,), wanted, examples=0, device=place, timeout=timeout, isolate=not in_process)
        with session.one_case(case, kernel.op):
            report = run(kernel, case, settings)
        session.deliver(report, json_path=json_path)


app.command("list")(about.list_)
for command in (about.show, auditing.audit, auditing.hunt, results.compare, results.schema, proof.power, proof.zoo,
                proof.certify, proof.gradcheck):  # fmt: skip
    app.command(cls=config.Command)(command)


def main() -> None:
    """Entry point of the console script: a mistake in the options is one line, as any other."""
    try:
        status = app(standalone_mode=False)
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's own errors have one
            raise
        session.complain(error.format_message())
        status = 2
    sys.exit(status if isinstance(status, int) else 0)


def _sanitize(kernel: Kernel, settings: Settings, tool: str) -> Report:
    from verify_norm import sanitize
    from verify_norm.registry import one_of

    return sanitize.sanitize(kernel, settings, one_of("tool", tool, sanitize.TOOLS), sanitize.find(settings.device))
