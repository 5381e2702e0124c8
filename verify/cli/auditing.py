"""Beyond pass or fail: the audit of a kernel's accuracy, and the hunt for its worst inputs."""

import os
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from typing import Annotated

import typer

from verify_norm.cli import console, options
from verify_norm.cli.outputs import Destinations, apart, deliver, write_json
from verify_norm.core import files, serial
from verify_norm.core.errors import Exit, one_of
from verify_norm.core.ops import OPS
from verify_norm.core.results import worst_of
from verify_norm.search.request import request

KEPT = typer.Option("--corpus", help="Run the cases in this file first, if it exists, and add the worst of this hunt.")


@options.taking("audit", examples=200, seconds=30.0)
def audit(
    context: typer.Context,
    kernel: Annotated[str, options.KERNEL],
    op: Annotated[str, options.OP] = "",
    bind: Annotated[str, options.BIND] = "",
    *,
    given: options.Given,
    corpus: Annotated[str, options.CORPUS] = "",
    baseline: Annotated[str, options.BASELINE] = "",
    in_process: Annotated[bool, options.IN_PROCESS] = False,
    json_path: Annotated[str, options.JSON] = "",
    html: Annotated[str, options.HTML] = "",
) -> int:
    """Show where a kernel loses accuracy, and which arithmetic it uses.

    Measures errors in ULP, climbs ladders of harder and harder inputs, and takes a fingerprint.
    """
    to = Destinations(json_path, html, baseline=baseline, limits=context.obj.limits)
    asked = request(
        kernel, given, op=op or None, bind=bind, isolate=not in_process, corpus=corpus, tell=console.complain
    )
    from verify_norm.auditing.audit import audit as examine

    audits = []
    for loaded, first in asked.runs():
        report = console.search(loaded, asked.settings, first=first)
        audits.append(examine(loaded, report, asked.settings, partial(_announce, loaded.name)))
        if report.interrupted:
            break
    return deliver(*audits, to=to, all_of_them=bool(op), planned=len(asked.kernels))


def _announce(kernel: str, part: str) -> None:
    """Print which part of an audit begins."""
    console.status(f"{kernel}: {part}")


@options.taking("hunt", seconds=30.0)
def hunt(
    kernel: Annotated[str, options.KERNEL],
    output: Annotated[str, typer.Option("--output", help="Count the errors of this output alone, such as dx.")] = "",
    op: Annotated[str, options.OP] = "",
    bind: Annotated[str, options.BIND] = "",
    *,
    given: options.Given,
    dtype: Annotated[str, typer.Option("--dtype", help="Types of x; fp32 alone if the kernel takes it.")] = "",
    corpus: Annotated[str, KEPT] = "",
    in_process: Annotated[bool, options.IN_PROCESS] = False,
    json_path: Annotated[str, options.JSON] = "",
) -> int:
    """Hunt for the inputs with the largest errors.

    --corpus keeps them for later runs.
    """
    apart({"--json": json_path, "--corpus": corpus})
    files.writable(json_path)
    files.writable(corpus, ours=("",))  # what is no corpus is refused when it is read
    if dtype:
        given["dtypes"] = dtype
    known = corpus if os.path.exists(corpus) else ""  # without one, this hunt writes the first
    asked = request(
        kernel, given, op=op or None, bind=bind, isolate=not in_process, corpus=known, tell=console.complain
    )
    outputs = [[tensor.name for tensor in OPS[loaded.op].outputs] for loaded in asked.kernels]
    if output:
        one_of("output", output, chain.from_iterable(outputs))
    from verify_norm.auditing.audit import hunted
    from verify_norm.auditing.hunt import HuntOptions
    from verify_norm.report import terminal
    from verify_norm.report.audit import show_hunt
    from verify_norm.running.environment import environment
    from verify_norm.search import corpus as file

    settings = asked.settings
    dtypes = settings.dtypes if dtype else ()
    wanted = HuntOptions(settings.seconds, output or None, settings.device, settings.seed, dtypes)
    found = []
    for (loaded, first), names in zip(asked.runs(), outputs, strict=True):
        if output and output not in names:
            continue
        one = hunted(loaded, replace(wanted, corpus=first), isolate=not in_process)
        found.append(one)
        if corpus:
            kept = file.save(corpus, loaded, [worst.spec for worst in one.worst])
            console.complain(f"{corpus} now has {kept} cases of {loaded.name}")
        if json_path != "-":
            show_hunt(one, terminal.console(), bind, settings.contract)
        if one.interrupted:
            console.complain(f"incomplete: the hunt was interrupted after {one.seconds:.0f} s; run it again")
            break
    facts = {"environment": environment(settings.device)}
    lines = serial.jsonable([asdict(one) | facts for one in found])
    write_json(lines[0] if len(lines) == 1 else lines, json_path)
    for one in found:
        if one.verdict is Exit.NOTHING:
            said = f"too little was checked: {one.op} was compared in {one.compared:,} of {one.tried:,} cases"
            why = f"the first other case: {one.problem}"
            console.complain(f"{said}; {why if one.problem else f'verify-norm --kernel {one.kernel} says why'}")
    return worst_of((one.verdict for one in found), every=bool(op))
