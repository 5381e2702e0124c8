"""What there is: the kernels, operators and checks, and what is known of one."""

import inspect
import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from verify_norm.cli.console import complain
from verify_norm.core.chains import is_chain
from verify_norm.core.errors import LIST, one_of
from verify_norm.core.ops import OPS, resolved
from verify_norm.reference import chain
from verify_norm.report.markup import escape
from verify_norm.search.request import interpret


def list_() -> None:
    """List the kernels, operators and checks."""
    from rich.table import Table

    interpret()
    from verify_norm.checks import CHECKS
    from verify_norm.loading.builtin import BUILTIN, PEERS, missing
    from verify_norm.loading.entry_points import registered
    from verify_norm.report import terminal

    theirs = registered()
    for line in theirs.complaints:
        complain(line)
    for title, rows in (
        ("kernels", [(k.name, k.op, k.summary) for k in BUILTIN.values()]),
        ("kernels of other libraries", [(k.name, k.op, missing(k) or k.summary) for k in PEERS.values()]),
        (
            "kernels of other packages",
            [(k.name, k.op, f"{k.summary} (from {k.origin})".lstrip()) for k in theirs.kernels.values()],
        ),
        ("operators", [(o.name, ", ".join(t.name for t in o.outputs), o.summary) for o in OPS.values()]),
        ("checks", [(c.name, "", c.summary) for c in CHECKS.values()]),
    ):
        table = Table(title=title, box=None, show_header=False, pad_edge=False)
        table.title_justify, table.title_style = "left", "bold"
        for row in rows:
            table.add_row(*map(escape, row))
        if rows:
            terminal.console().print(table)


def show(name: Annotated[str, typer.Argument(help="A kernel, check or operator; or contracts, or only.")]) -> None:
    """Describe a kernel, a check or an operator; or contracts, what --contract takes; or only, what --only takes."""
    interpret()
    if name == "only":
        _show_only()
        return
    if name in ("contract", "contracts"):
        from verify_norm.report import contracts, terminal

        contracts.show_contracts(terminal.console())
        return
    from verify_norm.checks import CHECKS
    from verify_norm.loading.builtin import BUILTIN, PEERS, directions
    from verify_norm.loading.entry_points import registered
    from verify_norm.loading.registry import find

    if name in CHECKS:
        function = CHECKS[name].function
        _print(f"check {name}\n\n{inspect.getdoc(function) or ''}\n\nin {function.__module__}")
        return
    if (name in OPS and name not in BUILTIN) or is_chain(name):
        for op in directions(resolved(name)[0]):
            _describe_op(op)
        return
    if ":" not in name and name not in BUILTIN and name not in PEERS:
        known = [*BUILTIN, *PEERS, *registered().kernels, *CHECKS, *OPS, "contracts", "only"]
        one_of("kernel, check or operator", name, known, see=LIST)
    kernel = find(name)
    whose = f", from {kernel.origin}" if kernel.origin else ""
    _print(f"kernel {kernel.name} for {kernel.op}\n{kernel.summary}\n")
    _print(f"found at {kernel.target}{whose}")
    _print(f"dtypes {', '.join(kernel.dtypes)}\ncontract {json.dumps(asdict(kernel.contract))}\n")
    for op in directions(kernel.op):
        _describe_op(op)


def _show_only() -> None:
    """Print the clauses of --only."""
    from verify_norm.core.only import CLAUSES, EXAMPLE
    from verify_norm.report import terminal

    _print(
        f"--only says which cases a kernel takes, as --only {EXAMPLE}. A case meets all clauses: drawn cases are "
        "fitted to them, and the verdict names them. Values are joined by +, and 2^k is a power of two.\n"
    )
    made = terminal.table("clause", "what it says", folded=("what it says",))
    for clause, words in CLAUSES.items():
        made.add_row(clause, escape(words))
    terminal.console().print(made)


def _describe_op(name: str) -> None:
    op = OPS[name]
    takes = ", ".join([t.name for t in op.inputs] + list(op.attrs))
    _print(f"operator {name}({takes}) -> {', '.join(t.name for t in op.outputs)}\n{op.summary}\n")
    described = [op.reference] if not op.stages else [chain, *(sys.modules[type(s).__module__] for s in op.stages)]
    _print("\n\n".join(inspect.getdoc(one) or "" for one in described))


def _print(text: str) -> None:
    from rich.console import Console

    Console(highlight=False, emoji=False).print(escape(text))
