"""How far the tool can be trusted: its power on a kernel, the zoo, the references' certificate, the gradient check."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from verify_norm import session
from verify_norm.commands import options


def power(
    kernel: Annotated[str, options.KERNEL],
    op: Annotated[str, options.OP] = "",
    bind: Annotated[str, options.BIND] = "",
    examples: Annotated[int, options.EXAMPLES] = 400,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Time for the whole search.")] = 55.0,
    seed: Annotated[int, options.SEED] = 0,
    device: Annotated[str, options.DEVICE] = "auto",
    json_path: Annotated[str, options.JSON] = "",
) -> None:
    """How wrong a kernel could be and still pass: errors of graded size, put into what it returns."""
    with session.usage_errors():
        place = session.device(device)
        session.writable(json_path)
        loaded = session.load(kernel, op or None, place, bind)
        from verify_norm.report.model import Settings
        from verify_norm.report.terminal import console, show_power

        checks = ("crash", "signature", "accuracy", "statistics")
        report = options.search(
            loaded, Settings(checks=checks, examples=examples, seconds=seconds, seed=seed, device=place)
        )
        if report.power and json_path != "-":
            show_power(report, console())
        session.deliver(report, json_path=json_path)


def zoo(
    names: Annotated[
        list[str] | None, typer.Argument(help="Specimens, by their names' beginnings; all if none.")
    ] = None,
    against: Annotated[str, typer.Option("--against", help="Other people's policies too: all, or some.")] = "",
    examples: Annotated[int, options.EXAMPLES] = 400,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Time for each kernel.")] = 55.0,
    seed: Annotated[int, options.SEED] = 0,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Kernels at a time; 0: one for each core.")] = 0,
    device: Annotated[str, options.DEVICE] = "auto",
    json_path: Annotated[str, options.JSON] = "",
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
        outcomes, interrupted = [], False
        try:
            for outcome in menagerie.audit_all(settings, run, against=wanted, jobs=jobs):
                outcomes.append(outcome)
                done = "as it should be" if outcome.right else "NOT as it should be"
                session.err.print(f"{len(outcomes)} of {len(run)}: {outcome.specimen.name} {done}")
        except KeyboardInterrupt:
            interrupted = True
            session.complain(f"interrupted: {len(run) - len(outcomes)} of {len(run)} specimens were not done")
        if json_path != "-":
            form.show(outcomes, [s for s in chosen if s not in run], console())
        told = menagerie.dump(outcomes, settings, interrupted=interrupted)
        session.write(json.dumps(told, indent=1, ensure_ascii=False) + "\n" if json_path else "", json_path)
        passed = all(outcome.right for outcome in outcomes)
        raise typer.Exit(session.INTERRUPTED if interrupted else 0 if passed else 1)


def certify(
    ops: Annotated[list[str] | None, typer.Argument(help="layernorm, rmsnorm, groupnorm; all of them if none.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the random points.")] = 0,
    json_path: Annotated[str, options.JSON] = "",
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


def gradcheck(
    function: Annotated[
        str, typer.Argument(help="A differentiable torch function: path/file.py:fn, package.module:fn.")
    ],
    shapes: Annotated[str, typer.Option("--shapes", help="Of its inputs, as x=4x64,weight=64.")] = "",
    dtype: Annotated[str, typer.Option("--dtype", help="As fp64,bf16; the widest it takes if none is named.")] = "",
    op: Annotated[str, typer.Option("--op", help="layernorm, …: also check second order and forward mode.")] = "",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the inputs and directions.")] = 0,
    json_path: Annotated[str, options.JSON] = "",
) -> None:
    """Check the gradients of any differentiable torch function, with no reference."""
    with session.usage_errors():
        session.interpret()
        session.writable(json_path)
        from verify_norm.gradcheck import gradcheck as check
        from verify_norm.gradnoise import DTYPES
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
