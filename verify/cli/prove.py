"""Proofs of a Triton kernel: certificates, and their replay."""

from itertools import product
from typing import Annotated, Any

import typer

from verify_norm.cli import console, options
from verify_norm.cli.outputs import write_json
from verify_norm.core import files
from verify_norm.core.errors import Exit, UsageError
from verify_norm.core.ranges import out_of_range
from verify_norm.search.options import split, types

ROWS = typer.Option("--n", help="Lengths of a row, separated by commas; of a group of channels its elements.")
DTYPES = typer.Option("--dtype", help="Types of x, weight and bias: float32, float16, bfloat16.")
EPS = typer.Option("--eps", min=0.0, help="eps of all rows.")
OFFSET = typer.Option("--weight-offset", help="What is added to the weight: weight_offset of LayerNorm and RMSNorm.")
M = typer.Option("--rows", min=1, help="Number of rows, or of groups, where it cannot be a symbol.")
MOST = typer.Option("--most-rows", min=1, help="Prove numbers of rows up to this one alone.")
GROUPS = typer.Option("--groups", min=0, help="Groups of channels of one sample, for GroupNorm.")
POSITIONS = typer.Option("--positions", min=1, help="Positions of a channel, for GroupNorm.")
JSON = typer.Option("--json", help="Write the certificates to this file, a list; - is standard output.")
CHECK = typer.Option("--check", help="Replay the certificates in this file; prove nothing.")


def prove(
    kernel: Annotated[str, typer.Option("--kernel", "-k", help="Kernel, as in a run.")] = "",
    op: Annotated[str, options.OP] = "",
    bind: Annotated[str, options.BIND] = "",
    n: Annotated[str, ROWS] = "4096",
    dtype: Annotated[str, DTYPES] = "float32,float16,bfloat16",
    eps: Annotated[float, EPS] = 1e-5,
    weight_offset: Annotated[float, OFFSET] = 0.0,
    rows: Annotated[int, M] = 301,
    most_rows: Annotated[int, MOST] = 2**31 - 1,
    groups: Annotated[int, GROUPS] = 0,
    positions: Annotated[int, POSITIONS] = 1,
    json_path: Annotated[str, JSON] = "",
    check: Annotated[str, CHECK] = "",
) -> int:
    """Prove what a Triton kernel computes, and how far it rounds, for all inputs of a length and type, without a GPU.

    Exit status: 0 every configuration is proved, 1 one is not, and the output names the line that prevents it, 2 usage
    error.
    """
    files.writable(json_path)
    if bool(kernel) == bool(check):
        raise UsageError("prove: expected either --kernel K or --check FILE")
    if check:
        return _replayed(check)
    if refused := out_of_range("eps", eps) or out_of_range("weight_offset", weight_offset):
        raise UsageError(refused)
    from verify_norm.proof import prove as proving
    from verify_norm.proof.certificate import certificates

    asked = proving.configurations(
        kernel,
        op,
        bind,
        list(product(_lengths(n), types(split(dtype)))),
        {"eps": eps, "offset": weight_offset, "groups": groups, "positions": positions},
        rows=rows,
        most_rows=most_rows,
    )
    found = certificates(asked)
    for one in found:
        _show(one, quiet=json_path == "-")
    if json_path:
        write_json(found, json_path)
    return Exit.PASS if all(one["proved"] for one in found) else Exit.FINDINGS


def _lengths(text: str) -> list[int]:
    """Return the lengths of rows in a text; raises UsageError."""
    try:
        lengths = [int(part) for part in split(text)]
    except ValueError as error:
        raise UsageError(f"--n {text!r}: expected lengths of a row, such as 4096 or 1000,4096") from error
    if not lengths:
        raise UsageError("--n: expected at least one length of a row, such as 4096, got none")
    return lengths


def _show(one: dict[str, Any], *, quiet: bool) -> None:
    """Print a certificate, or what stands in its way."""
    if quiet:
        return
    fixed = one["fixed"]
    head = f"{one['kernel']}: {one['op']}, N = {fixed['N']}, {fixed['dtype']}, {fixed['layout']}"
    if not one["proved"]:
        typer.echo(f"NOT PROVED {head}")
        for reason in one["reasons"]:
            where = f" ({reason['line']})" if reason["line"] else ""
            typer.echo(f"    {reason['what']:<10}{reason['why']}{where}")
        return
    typer.echo(f"PROVED {head}")
    alone = f" alone: {one['alone']}" if one["alone"] else ""
    typer.echo(f"    {'rows':<10}{one['domain']}{alone}")
    typer.echo(f"    {'outputs':<10}{', '.join(one['outputs'])}: within δ and half an ulp of the operator")
    typer.echo(f"    {'contract':<10}{one['contract']}")
    typer.echo(f"    {'checked':<10}{one['replayed']}")


def _replayed(path: str) -> int:
    """Replay the certificates of a file."""
    from verify_norm.proof.replay.check import check
    from verify_norm.proof.replay.reading import Rejected
    from verify_norm.proof.saved import read, title

    status = Exit.PASS
    for one in read(path):
        try:
            typer.echo(f"{title(one)}: {check(one)}")
        except Rejected as error:
            status = Exit.FINDINGS
            console.complain(f"{title(one)}: {error}")
    return status
