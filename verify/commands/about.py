"""What there is: the kernels, operators and checks, and all that is known of one."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from verify_norm import session

if TYPE_CHECKING:
    from verify_norm.spec import Kernel


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
