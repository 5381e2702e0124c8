"""How far the tool can be trusted: its power on a kernel, the zoo, the references' certificate, the gradient check."""

import sys
from typing import Annotated

import typer

from verify_norm.cli import console, options
from verify_norm.cli.outputs import Destinations, deliver, write, write_json
from verify_norm.core import files
from verify_norm.core.dtypes import dtype_name
from verify_norm.core.errors import Exit, UsageError, one_of
from verify_norm.core.results import worst_of
from verify_norm.core.settings import Settings
from verify_norm.search.options import split
from verify_norm.search.request import device as existing
from verify_norm.search.request import interpret, request

NEEDED = ("crash", "signature", "accuracy", "statistics", "distribution", "sums", "gradient")  # those that tell power


@options.taking("power")
def power(
    kernel: Annotated[str, options.KERNEL],
    op: Annotated[str, options.OP] = "",
    bind: Annotated[str, options.BIND] = "",
    *,
    given: options.Given,
    json_path: Annotated[str, options.JSON] = "",
) -> int:
    """Print the smallest errors that each check would detect, in every output and type of the kernel."""
    to = Destinations(json_path)
    asked = request(kernel, given | {"checks": NEEDED}, op=op or None, bind=bind, tell=console.complain)
    report = console.search(asked.only(), asked.settings)
    if report.detectable and to.shown:
        from verify_norm.report import terminal

        terminal.show_power(report, terminal.console())
    status = deliver(report, to=to)
    if report.detectable or status is not Exit.PASS:
        return status
    console.complain("the power could not be measured: no case has finite results within their bounds")
    return Exit.NOTHING


@options.taking("zoo")
def zoo(
    names: Annotated[
        list[str] | None, typer.Argument(help="Example kernels, by the beginnings of their names; all if none.")
    ] = None,
    against: Annotated[
        str, typer.Option("--against", help="Also run other projects' test policies: all, or some by name.")
    ] = "",
    *,
    given: options.Given,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Number of kernels at a time; 0 is one per core.")] = 0,
    json_path: Annotated[str, options.JSON] = "",
) -> int:
    """Run the verifier on kernels with known bugs, and on right ones.

    It has to detect every bug and to pass every right kernel.
    """
    place = existing(given["device"])
    interpret(always=place == "cpu")
    files.writable(json_path)
    from verify_norm.kernels.zoo import ZOO
    from verify_norm.report import terminal
    from verify_norm.report import zoo as form
    from verify_norm.validation import zoo as collection
    from verify_norm.validation.policies import POLICIES

    chosen = [example for example in ZOO.values() if example.name.startswith(tuple(names or [""]))]
    if not chosen:
        raise UsageError(f"no example's name begins with {' or '.join(names or [])}; verify-norm zoo runs all")
    there = list(collection.detectable(place))
    run = [example for example in chosen if example in there]
    wanted = tuple(POLICIES if against == "all" else (one_of("policy", name, POLICIES) for name in split(against)))
    settings = Settings(**given | {"device": place})
    outcomes, interrupted = [], False
    try:
        for outcome in collection.run_all(settings, run, against=wanted, jobs=jobs):
            outcomes.append(outcome)
            done = "as expected" if outcome.as_expected else outcome.gap or "NOT as expected"
            console.status(f"{len(outcomes)} of {len(run)}: {outcome.example.name} {done}")
            sys.stderr.write(outcome.error)
    except KeyboardInterrupt:
        interrupted = True
        console.complain(f"interrupted: {len(run) - len(outcomes)} of {len(run)} examples were not run")
    if json_path != "-":
        form.show_zoo(outcomes, [example for example in chosen if example not in run], terminal.console())
    write_json(collection.dump(outcomes, settings, interrupted=interrupted), json_path)
    verdicts = [outcome.verdict for outcome in outcomes]
    if Exit.INTERNAL in verdicts:
        return Exit.INTERNAL
    if interrupted and not settings.allow_incomplete:
        verdicts.append(Exit.INCOMPLETE)
    return worst_of(verdicts)


def certify(
    ops: Annotated[
        list[str] | None,
        typer.Argument(help="Operators, such as layernorm, or chains, such as 'rmsnorm | silu'; all if none."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the random points.")] = 0,
    device: Annotated[
        str, typer.Option("--device", help="auto, cpu, cuda, cuda:N: a GPU is compared with NumPy.")
    ] = "auto",
    json_path: Annotated[str, options.JSON] = "",
) -> int:
    """Check the gradients of the references: by complex step, scipy, central differences, and with fifty digits.

    On a GPU, which judges large cases, also check that it computes truth and bound as NumPy does.
    """
    place = existing(device)
    files.writable(json_path)
    from verify_norm.report import certificate as form
    from verify_norm.report import terminal
    from verify_norm.validation.certify import certify as prove

    proved = prove(ops or None, seed, device=None if place == "cpu" else place)
    if json_path != "-":
        form.show_certificate(proved, terminal.console())
    write_json(proved.jsonable(), json_path)
    if proved.ok:
        return Exit.PASS
    return Exit.FINDINGS if proved.failures else Exit.NOTHING


def gradcheck(
    function: Annotated[
        str, typer.Argument(help="A differentiable torch function: path/file.py:fn or package.module:fn.")
    ],
    shapes: Annotated[str, typer.Option("--shapes", help="Shapes of its inputs, such as x=4x64,weight=64.")] = "",
    dtype: Annotated[str, typer.Option("--dtype", help="Types, such as fp64,bf16; the widest by default.")] = "",
    op: Annotated[str, typer.Option("--op", help="layernorm, ...: also check second order and forward mode.")] = "",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the inputs and directions.")] = 0,
    json_path: Annotated[str, options.JSON] = "",
) -> int:
    """Check the gradients of any differentiable torch function. It needs no reference."""
    interpret()
    files.writable(json_path)
    from verify_norm.gradcheck import report as form
    from verify_norm.gradcheck.gradcheck import gradcheck as check
    from verify_norm.gradcheck.noise import DTYPES

    dtypes = [dtype_name(name, DTYPES) for name in split(dtype)]
    report = check(function, shapes=shapes or None, dtypes=dtypes, seed=seed, op=op or None)
    if json_path != "-":
        print(form.text(report))
    write(form.dump(report) + "\n" if json_path else "", json_path)
    if not report.checked:
        return Exit.NOTHING
    return Exit.PASS if report.ok else Exit.FINDINGS
