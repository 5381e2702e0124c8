"""What there is: the kernels, operators and checks, and what is known of one."""

import inspect
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from verify_norm.cli.console import complain
from verify_norm.core.chains import is_chain
from verify_norm.core.errors import LIST, one_of
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS, resolved
from verify_norm.report.markup import escape
from verify_norm.search.request import interpret


def list_() -> None:
    """List the operators, the checks, and the kernels that come with verify-norm and other packages."""
    interpret()
    from verify_norm.checks import CHECKS
    from verify_norm.loading.builtin import BUILTIN, PEERS, missing
    from verify_norm.loading.entry_points import registered

    theirs = registered()
    for line in theirs.complaints:
        complain(line)
    present: list[Kernel] = []
    absent: defaultdict[str, list[str]] = defaultdict(list)  # names by the reason why they are not here
    for kernel in PEERS.values():
        reason = missing(kernel)
        if reason:
            absent[reason].append(kernel.name)
        else:
            present.append(kernel)
    _table("operators", [(o.name, ", ".join(t.name for t in o.outputs), o.summary) for o in OPS.values()])
    _table("checks", [(c.name, c.summary) for c in CHECKS.values()])
    _table("kernels", [(k.name, k.op, k.summary) for k in BUILTIN.values()])
    _table("kernels of other libraries", [(k.name, k.op, k.summary) for k in present])
    named = [(k.name, k.op, f"{k.summary} (from {k.origin})".lstrip()) for k in theirs.kernels.values()]
    _table("kernels of other packages", named)
    for reason, names in absent.items():
        _print(f"{reason}\n  {', '.join(names)}")


def _table(title: str, rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows below a title; nothing if there are none."""
    from rich.table import Table

    from verify_norm.report import terminal

    made = Table(title=title, box=None, show_header=False, pad_edge=False)
    made.title_justify, made.title_style = "left", "bold"
    for row in rows:
        made.add_row(*map(escape, row))
    if rows:
        terminal.console().print(made)


NAME = typer.Argument(help="An operator, check or kernel; or contracts, only or cases.")


def show(name: Annotated[str, NAME]) -> None:
    """Describe an operator, a check or a kernel; or what --contract or --only takes, or what is in a case.

    The last three have the names contracts, only and cases.
    """
    interpret()
    name = "contracts" if name == "contract" else name
    if name in TOPICS:
        TOPICS[name]()
        return
    from verify_norm.checks import CHECKS
    from verify_norm.loading.builtin import BOTH, BUILTIN, PEERS, directions
    from verify_norm.loading.entry_points import registered
    from verify_norm.loading.registry import find

    if name in CHECKS:
        function = CHECKS[name].function
        _print(f"check {name}\n\n{inspect.getdoc(function) or ''}\n\nin {function.__module__}")
        return
    if name in BOTH or (name in OPS and name not in BUILTIN) or is_chain(name):
        for op in directions(resolved(name)[0]):
            _describe_op(op)
        return
    if ":" not in name and name not in BUILTIN and name not in PEERS:
        known = [*BUILTIN, *PEERS, *registered().kernels, *CHECKS, *OPS, *BOTH, *TOPICS]
        one_of("kernel, check or operator", name, known, see=LIST)
    kernel = find(name)
    whose = f", from {kernel.origin}" if kernel.origin else ""
    _print(f"kernel {kernel.name} for {kernel.op}\n{kernel.summary}\n")
    _print(f"found at {kernel.target}{whose}")
    _print(f"dtypes {', '.join(kernel.dtypes)}\ncontract {json.dumps(asdict(kernel.contract))}\n")
    for op in directions(kernel.op):
        _describe_op(op)


def _show_contracts() -> None:
    """Print what --contract takes."""
    from verify_norm.report import contracts, terminal

    contracts.show_contracts(terminal.console())


def _show_cases() -> None:
    """Print what the layouts and the data of a case are."""
    from verify_norm.report import cases, terminal

    _print(f"{cases.CASE}\n")
    for head, words in (("layout", cases.LAYOUT_WORDS), ("data", cases.DATA_WORDS)):
        made = terminal.table(head, "what it is", folded=("what it is",))
        for name, said in words.items():
            made.add_row(name, escape(said.replace("`", "")))
        terminal.console().print(made)


def _show_only() -> None:
    """Print the clauses of --only."""
    from verify_norm.core.only import CLAUSES, EXAMPLE
    from verify_norm.report import terminal

    _print(
        f"--only says which cases a kernel takes, such as --only {EXAMPLE}. A case meets all clauses: drawn cases are "
        "fitted to them, and the verdict names them. Values are joined by +, and 2^k is a power of two.\n"
    )
    made = terminal.table("clause", "what it says", folded=("what it says",))
    for clause, words in CLAUSES.items():
        made.add_row(clause, escape(words))
    terminal.console().print(made)


TOPICS = {"contracts": _show_contracts, "only": _show_only, "cases": _show_cases}


def _describe_op(name: str) -> None:
    """Print what an operator takes, returns and computes."""
    from verify_norm.report import operators, terminal

    op = OPS[name]
    takes = ", ".join([t.name for t in op.inputs] + list(op.attrs))
    _print(f"operator {name}({takes}) -> {', '.join(t.name for t in op.outputs)}\n{op.summary}\n")
    made = terminal.table("tensor", "", "shape", "type", words=4)
    for tensor in dict.fromkeys((*op.inputs, *op.outputs)):
        way = "may be None" if tensor.optional else ""
        if tensor in op.outputs:
            way = "returned"
        made.add_row(tensor.name, way, escape(operators.shape(tensor, op)), operators.dtype(tensor))
    terminal.console().print(made)
    _print(f"\n{operators.described(op)}\n")


def _print(text: str) -> None:
    """Print text as it is."""
    from rich.console import Console

    Console(highlight=False, emoji=False).print(escape(text))
