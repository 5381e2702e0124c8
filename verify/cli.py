"""The command line: `verify-norm --kernel K`, `list`, `show`, `replay`, `certify`, `gradcheck`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from verify_norm import __version__, session

if TYPE_CHECKING:
    from verify_norm.report.model import Report, Settings
    from verify_norm.spec import Kernel

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Tells whether a normalization kernel is correct, and how accurate it is.",
)
_KERNEL = typer.Option("--kernel", "-k", help="A kernel's name (see list), package.module:attr, or path/file.py:attr.")
_DEVICE = typer.Option("--device", help="cpu, cuda or cuda:N; the first GPU where there is one, else the CPU.")
_JSON = typer.Option("--json", help="Write the report there, of both directions a list; - for standard output.")
_IN_PROCESS = typer.Option("--in-process", help="Run the kernel in this process, as for a debugger: crashes end it.")
_OP = typer.Option("--op", help="What it computes, if no name tells: layernorm_fwd; layernorm is both directions.")
_BIND = typer.Option(
    "--bind",
    help="Whose argument is whose: x=hidden_states,eps=variance_epsilon (the operator's name = the kernel's), "
    'mode="llama",eps=1e-6 (constants), and after an arrow what is returned: -> y,rstd,_',
)
_CHECKS = typer.Option("--checks", help="Only these checks, as accuracy,signature.")


@app.callback(invoke_without_command=True)
def verify(
    context: typer.Context,
    kernel: Annotated[str, _KERNEL] = "",
    op: Annotated[str, _OP] = "",
    bind: Annotated[str, _BIND] = "",
    dtype: Annotated[str, typer.Option("--dtype", help="Types of x, as fp32,bf16.")] = "float32,float16,bfloat16",
    checks: Annotated[str, _CHECKS] = "",
    examples: Annotated[int, typer.Option("--examples", min=0, help="Random cases, after the corner table.")] = 400,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Time for the whole search.")] = 55.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the random cases.")] = 0,
    device: Annotated[str, _DEVICE] = "auto",
    shapes: Annotated[
        str, typer.Option("--shapes", help="fuzz, models (norm shapes of real models), or all.")
    ] = "fuzz",
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds for one case, else it hangs.")] = 20.0,
    in_process: Annotated[bool, _IN_PROCESS] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the same command was killed.")] = False,
    sanitize: Annotated[str, typer.Option("--sanitize", help="Corners under compute-sanitizer: memcheck, …")] = "",
    json_path: Annotated[str, _JSON] = "",
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
    with session.usage_errors():
        from verify_norm.registry import one_of

        place = session.device(device)
        session.writable(json_path)
        one_of("set of shapes", shapes, ("fuzz", "models", "all"))
        kernels = session.load_all(kernel, op or None, place, bind)
        from verify_norm.checks import CHECKS
        from verify_norm.report.model import Settings

        settings = Settings(
            dtypes=tuple(session.dtype(name) for name in session.split(dtype)),
            checks=tuple(one_of("check", name, CHECKS) for name in session.split(checks)),
            examples=0 if shapes == "models" else examples,
            seconds=seconds / len(kernels),
            seed=seed,
            device=place,
            shapes=shapes,
            timeout=timeout,
            isolate=not in_process,
        )
        if sanitize:
            session.deliver(*(_sanitize(loaded, settings, sanitize) for loaded in kernels), json_path=json_path)
        reports = [_search(kernels[0], settings, resume=resume)]
        for loaded in kernels[1:]:
            if not reports[-1].interrupted:
                reports.append(_search(loaded, settings, resume=resume))
        session.deliver(*reports, json_path=json_path, all_of_them=bool(op))


@app.command("list")
def list_() -> None:
    """The kernels, operators and checks there are."""
    from rich.table import Table

    session.interpret()
    from verify_norm.checks import CHECKS
    from verify_norm.entry_points import registered
    from verify_norm.ops import OPS
    from verify_norm.registry import BUILTIN, PEERS, missing
    from verify_norm.report.terminal import console

    theirs = registered()
    for line in theirs.complaints:
        session.complain(line)
    for title, rows in (
        ("kernels", [(k.name, k.op, k.summary) for k in BUILTIN.values()]),
        ("kernels of other libraries", [(k.name, k.op, missing(k) or k.summary) for k in PEERS.values()]),
        ("kernels of other packages", [(k.name, k.op, _theirs(k)) for k in theirs.kernels.values()]),
        ("operators", [(o.name, ", ".join(t.name for t in o.outputs), o.summary) for o in OPS.values()]),
        ("checks", [(c.name, "", c.summary) for c in CHECKS.values()]),
    ):
        table = Table(
            title=title, title_justify="left", box=None, show_header=False, pad_edge=False, title_style="bold"
        )
        for row in rows:
            table.add_row(*map(escape, row))
        if rows:
            console().print(table)


def _theirs(kernel: Kernel) -> str:
    return f"{kernel.summary}{' ' * bool(kernel.summary)}(from {kernel.origin})"


@app.command()
def show(name: Annotated[str, typer.Argument(help="A kernel, check or operator.")]) -> None:
    """All that is known of a kernel, a check or an operator."""
    session.interpret()
    import inspect

    from verify_norm.checks import CHECKS
    from verify_norm.entry_points import registered
    from verify_norm.ops import OPS
    from verify_norm.registry import BOTH, BUILTIN, PEERS, find, one_of

    console = Console(highlight=False)
    with session.usage_errors():
        if name in CHECKS:
            function = CHECKS[name].function
            console.print(f"check {name}\n\n{escape(inspect.getdoc(function) or '')}\n\nin {function.__module__}")
            return
        if name in OPS and name not in BUILTIN:
            _show_op(name, console)
            return
        if ":" not in name and name not in BUILTIN and name not in PEERS:
            one_of("kernel, check or operator", name, [*BUILTIN, *PEERS, *registered().kernels, *CHECKS, *OPS])
        kernel = find(name)
        whose = f", from {kernel.origin}" if kernel.origin else ""
        console.print(f"kernel {kernel.name} for {kernel.op}\n{escape(kernel.summary)}\n")
        console.print(f"found at {kernel.target}{whose}")
        console.print(f"dtypes {', '.join(kernel.dtypes)}\ncontract {json.dumps(asdict(kernel.contract))}\n")
        for op in BOTH.get(kernel.op, (kernel.op,)):
            _show_op(op, console)


def _show_op(name: str, console: Console) -> None:
    import inspect

    from verify_norm.ops import OPS

    op = OPS[name]
    takes = ", ".join([t.name for t in op.inputs] + list(op.attrs))
    console.print(f"operator {name}({takes}) -> {', '.join(t.name for t in op.outputs)}\n{escape(op.summary)}\n")
    console.print(escape(inspect.getdoc(op.reference) or ""))


@app.command()
def replay(
    spec: Annotated[str, typer.Argument(help="The line of JSON that a finding shows.")],
    bind: Annotated[str, _BIND] = "",
    device: Annotated[str, _DEVICE] = "auto",
    checks: Annotated[str, _CHECKS] = "",
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds, else it hangs.")] = 60.0,
    in_process: Annotated[bool, _IN_PROCESS] = False,
    json_path: Annotated[str, _JSON] = "",
) -> None:
    """Run one case again, as a finding's replay line has it."""
    with session.usage_errors():
        session.interpret()
        from verify_norm.registry import UsageError, one_of
        from verify_norm.report.json import read_spec

        name, op, case = read_spec(spec)
        place = session.device(device)
        session.writable(json_path)
        kernel = session.load(name, op, place, bind)
        from verify_norm.checks import CHECKS
        from verify_norm.report.model import Settings
        from verify_norm.search import replay as run

        wanted = tuple(one_of("check", check, CHECKS) for check in session.split(checks))
        settings = Settings((case.dtype,), wanted, examples=0, device=place, timeout=timeout, isolate=not in_process)
        try:
            report = run(kernel, case, settings)
        except ValueError as error:  # the reference refuses shapes that do not fit the operator
            raise UsageError(f"the spec is not one of {kernel.op}: {error}") from error
        session.deliver(report, json_path=json_path)


@app.command()
def power(
    kernel: Annotated[str, _KERNEL],
    op: Annotated[str, typer.Option("--op", help="What the kernel computes, if its name does not say.")] = "",
    examples: Annotated[int, typer.Option("--examples", min=0, help="Random cases, after the corner table.")] = 400,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Time for the whole search.")] = 55.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the random cases.")] = 0,
    device: Annotated[str, _DEVICE] = "auto",
    json_path: Annotated[str, _JSON] = "",
) -> None:
    """How wrong a kernel could be and still pass: errors of graded size, put into what it returns."""
    with session.usage_errors():
        place = session.device(device)
        session.writable(json_path)
        loaded = session.load(kernel, op or None, place)
        from verify_norm.report.model import Settings
        from verify_norm.report.terminal import console, show_power

        checks = ("crash", "signature", "accuracy", "statistics")
        report = _search(loaded, Settings(checks=checks, examples=examples, seconds=seconds, seed=seed, device=place))
        if report.power and json_path != "-":
            show_power(report, console())
        session.deliver(report, json_path=json_path)


@app.command()
def zoo(
    names: Annotated[
        list[str] | None, typer.Argument(help="Specimens, by their names' beginnings; all if none.")
    ] = None,
    against: Annotated[str, typer.Option("--against", help="Other people's policies too: all, or some.")] = "",
    examples: Annotated[int, typer.Option("--examples", min=0, help="Random cases, after the corner table.")] = 400,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Time for each kernel.")] = 55.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the random cases.")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Kernels at a time; 0: one for each core.")] = 0,
    device: Annotated[str, _DEVICE] = "auto",
    json_path: Annotated[str, _JSON] = "",
) -> None:
    """Prove how strong the verifier is: known bugs it is to convict, and unusual kernels it is to pass."""
    with session.usage_errors():
        place = session.device(device)
        session.interpret(always=place == "cpu")
        session.writable(json_path)
        from verify_norm import zoo as menagerie
        from verify_norm.policies import POLICIES
        from verify_norm.registry import UsageError, one_of
        from verify_norm.report import zoo as form
        from verify_norm.report.model import Settings
        from verify_norm.report.terminal import console

        chosen = [s for s in menagerie.ZOO.values() if not names or any(s.name.startswith(name) for name in names)]
        if not chosen:
            raise UsageError(
                f"no specimen's name begins with {' or '.join(names or [])}; verify-norm zoo runs them all"
            )
        run = [s for s in chosen if s in list(menagerie.shown(place))]
        wanted = (
            tuple(POLICIES)
            if against == "all"
            else tuple(one_of("policy", p, POLICIES) for p in session.split(against))
        )
        settings = Settings(examples=examples, seconds=seconds, seed=seed, device=place)
        outcomes = []
        for outcome in menagerie.audit_all(settings, run, against=wanted, jobs=jobs):
            outcomes.append(outcome)
            done = "as it should be" if outcome.right else "NOT as it should be"
            session.err.print(f"{len(outcomes)} of {len(run)}: {outcome.specimen.name} {done}")
        if json_path != "-":
            form.show(outcomes, [s for s in chosen if s not in run], console())
        text = json.dumps(menagerie.dump(outcomes, settings), indent=1, ensure_ascii=False) + "\n"
        session.write(text if json_path else "", json_path)
        raise typer.Exit(0 if all(outcome.right for outcome in outcomes) else 1)


@app.command()
def certify(
    ops: Annotated[list[str] | None, typer.Argument(help="layernorm, rmsnorm, groupnorm; all of them if none.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the random points.")] = 0,
    json_path: Annotated[str, _JSON] = "",
) -> None:
    """Prove every gradient of the references: complex step, scipy, central differences, fifty digits."""
    with session.usage_errors():
        session.writable(json_path)
        from verify_norm.certify import certify as prove
        from verify_norm.report import certificate as form
        from verify_norm.report.terminal import console

        proved = prove(ops or None, seed)
        text = json.dumps(proved.jsonable(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        if json_path != "-":
            form.show(proved, console())
        session.write(text, json_path)
        raise typer.Exit(0 if proved.ok else 1 if proved.failures else 2)


@app.command()
def gradcheck(
    function: Annotated[
        str, typer.Argument(help="A differentiable torch function: path/file.py:fn, package.module:fn.")
    ],
    shapes: Annotated[str, typer.Option("--shapes", help="Of its inputs, as x=4x64,weight=64.")] = "",
    dtype: Annotated[str, typer.Option("--dtype", help="As fp64,bf16; the widest it takes if none is named.")] = "",
    op: Annotated[str, typer.Option("--op", help="layernorm, …: also check second order and forward mode.")] = "",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the inputs and directions.")] = 0,
    json_path: Annotated[str, _JSON] = "",
) -> None:
    """Check the gradients of any differentiable torch function, with no reference."""
    with session.usage_errors():
        session.interpret()
        session.writable(json_path)
        from verify_norm.gradcheck import DTYPES
        from verify_norm.gradcheck import gradcheck as check
        from verify_norm.report import gradcheck as form

        report = check(
            function,
            shapes=shapes or None,
            dtypes=[session.dtype(d, DTYPES) for d in session.split(dtype)],
            seed=seed,
            op=op or None,
        )
        if json_path != "-":
            print(form.text(report))
        session.write(form.dump(report) + "\n" if json_path else "", json_path)
        raise typer.Exit(2 if not report.checked else 0 if report.ok else 1)


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


def _search(kernel: Kernel, settings: Settings, *, resume: bool = False) -> Report:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from verify_norm.journal import Journal, path_of
    from verify_norm.search import search

    journal = Journal(path_of(kernel, settings), resume=resume)
    if resume:
        session.complain(f"{len(journal.done)} cases were done before" if journal.done else "nothing to resume: anew")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=session.err, transient=True, disable=not session.err.is_terminal) as bar:
        task = bar.add_task(kernel.name, total=None)

        def update(done: int, planned: int, found: int) -> None:
            said = f"{kernel.name}: {found} finding{'s' * (found != 1)}" if found else kernel.name
            bar.update(task, completed=done, total=planned, description=said)

        return search(kernel, settings, update, journal)
