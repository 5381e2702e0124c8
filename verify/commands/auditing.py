"""Beyond pass or fail: the audit of a kernel's accuracy, and the hunt for its worst inputs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from verify_norm import session
from verify_norm.commands import options


def audit(
    kernel: Annotated[str, options.KERNEL],
    op: Annotated[str, options.OP] = "",
    bind: Annotated[str, options.BIND] = "",
    dtype: Annotated[str, options.DTYPE] = "float32,float16,bfloat16",
    examples: Annotated[int, options.EXAMPLES] = 200,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Time for the checks, before the rest.")] = 30.0,
    seed: Annotated[int, options.SEED] = 0,
    device: Annotated[str, options.DEVICE] = "auto",
    corpus: Annotated[str, options.CORPUS] = "",
    baseline: Annotated[str, options.BASELINE] = "",
    timeout: Annotated[float | None, options.TIMEOUT] = None,
    in_process: Annotated[bool, options.IN_PROCESS] = False,
    json_path: Annotated[str, options.JSON] = "",
    html_path: Annotated[str, options.HTML] = "",
) -> None:
    """Where a kernel loses accuracy, and what arithmetic it really does: errors in ULP, ladders, a fingerprint."""
    with session.usage_errors():
        place = session.device(device)
        outputs = session.Outputs(json_path, html_path, baseline)
        kernels = session.load_all(kernel, op or None, place, bind)
        from verify_norm.auditing.audit import audit as look
        from verify_norm.report.model import Settings

        settings = Settings(
            dtypes=session.dtypes(dtype), examples=examples,
            seconds=seconds / len(kernels), seed=seed, device=place, timeout=timeout, isolate=not in_process,
        )  # fmt: skip
        audits = []
        for loaded in kernels:
            report = options.search(loaded, settings, first=session.corpus(corpus, loaded))
            say = lambda part, name=loaded.name: session.err.print(escape(f"{name}: {part}"), soft_wrap=True)  # noqa: E731
            audits.append(look(loaded, report, settings, say))
            if report.interrupted:
                break
        session.deliver(*audits, outputs=outputs, all_of_them=bool(op))


def hunt(
    kernel: Annotated[str, options.KERNEL],
    output: Annotated[str, typer.Option("--output", help="Of this output alone, as dx.")] = "",
    op: Annotated[str, options.OP] = "",
    bind: Annotated[str, options.BIND] = "",
    dtype: Annotated[str, typer.Option("--dtype", help="Types of x; fp32 alone where the kernel offers it.")] = "",
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Time for the hunt.")] = 30.0,
    seed: Annotated[int, options.SEED] = 0,
    device: Annotated[str, options.DEVICE] = "auto",
    corpus: Annotated[str, options.CORPUS] = "",
    in_process: Annotated[bool, options.IN_PROCESS] = False,
    json_path: Annotated[str, options.JSON] = "",
) -> None:
    """Hunt for the inputs on which a kernel's errors are largest; --corpus keeps them for later runs."""
    with session.usage_errors():
        place = session.device(device)
        session.writable(json_path)
        session.writable(corpus)
        kernels = session.load_all(kernel, op or None, place, bind)
        from verify_norm.auditing import corpus as file
        from verify_norm.auditing.audit import hunted
        from verify_norm.environment import environment
        from verify_norm.ops import OPS
        from verify_norm.registry import one_of
        from verify_norm.report.audit import show_hunt
        from verify_norm.report.json import jsonable
        from verify_norm.report.terminal import console

        dtypes = session.dtypes(dtype) if dtype else ()
        every = [(loaded, tensor.name) for loaded in kernels for tensor in OPS[loaded.op].outputs]
        if output:
            one_of("output", output, dict.fromkeys(name for _, name in every))
            kernels = [loaded for loaded in kernels if (loaded, output) in every]
        found = []
        for loaded in kernels:
            first = session.corpus(corpus, loaded)
            one = hunted(loaded, seconds / len(kernels), output or None, place, seed, dtypes, first, not in_process)
            found.append(one)
            if corpus:
                kept = file.save(corpus, loaded, [worst.spec for worst in one.worst])
                session.complain(f"{corpus} now has {kept} cases of {loaded.name}")
            if json_path != "-":
                show_hunt(one, console(), bind)
        lines = jsonable([asdict(one) | {"environment": environment(place)} for one in found])
        text = json.dumps(lines[0] if len(lines) == 1 else lines, indent=1, ensure_ascii=False) + "\n"
        session.write(text if json_path else "", json_path)
        over = any(worst.measure == "ratio" and worst.value > 1 for one in found for worst in one.worst)
        raise typer.Exit(1 if over else 0 if any(one.worst for one in found) else 2)
