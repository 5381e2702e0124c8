"""Whether two kernels of one operator return the same bits."""

from typing import Annotated

import typer

from verify_norm.cli import console, options
from verify_norm.cli.outputs import AGAIN, MORE, write
from verify_norm.core import files, serial
from verify_norm.core.errors import Exit
from verify_norm.core.results import worst_of
from verify_norm.core.settings import PAIR_EXAMPLES
from verify_norm.search.request import request_pair

BIND_A = typer.Option("--bind-a", help="The same for A alone.")
BIND_B = typer.Option("--bind-b", help="The same for B alone.")
REPLAY = typer.Option("--replay", help="Compare this one case: the JSON of a replay line.")


@options.taking("same", examples=PAIR_EXAMPLES)
def same(
    a: Annotated[str, typer.Argument(metavar="A", help="Kernel A: what --kernel takes.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Kernel B, of the same operator.")],
    op: Annotated[str, options.OP] = "",
    bind: Annotated[str, options.BIND] = "",
    bind_a: Annotated[str, BIND_A] = "",
    bind_b: Annotated[str, BIND_B] = "",
    *,
    given: options.Given,
    in_process: Annotated[bool, options.IN_PROCESS] = False,
    replay: Annotated[str, REPLAY] = "",
    json_path: Annotated[str, options.JSON] = "",
) -> int:
    """Tell whether two kernels of one operator return the same bits.

    Example: verify-norm same rmsnorm_fwd mine.py:fast_rmsnorm --dtype bf16

    Compares every output over the corner table, a scan of row lengths and random cases: NaN equals NaN of any payload,
    0 and -0 differ. If they differ: since which size, the smallest case, and which field of the contract, as far as
    fingerprints tell. Exit status: 0 identical, 1 different, 2 nothing compared, 3 the table was not finished.
    """
    files.writable(json_path)
    named, case = serial.read_spec(replay)[1:] if replay else (None, None)
    binds = (bind_a or bind, bind_b or bind)
    asked = request_pair((a, b), given, op=op or named, binds=binds, isolate=not in_process, tell=console.complain)
    from verify_norm.equality import compare
    from verify_norm.equality.model import nothing
    from verify_norm.report import documents, terminal
    from verify_norm.report.equality import show

    pairs, found = compare.pair(asked[0].kernels, asked[1].kernels, single=case is not None), []
    settings = asked[0].settings
    for one, other in pairs:
        if case is not None:
            found.append(compare.replay(one, other, case, settings))
            continue
        with console.progress(one.op, "differing output") as update:
            found.append(compare.compare(one, other, settings, update, console.status))
        if found[-1].interrupted:
            break
    if json_path != "-":
        for each in found:
            show(each, terminal.console())
    write(documents.dump_equality(*found) if json_path else "", json_path)
    for each in found:
        if each.verdict is Exit.NOTHING:
            console.complain(nothing(each))
        elif each.verdict is Exit.INCOMPLETE:
            console.complain(f"incomplete: {each.unfinished}; {AGAIN if each.interrupted else MORE}")
    verdicts = [each.verdict for each in found]
    if len(found) < len(pairs):
        console.complain(f"interrupted: {len(found)} of {len(pairs)} directions ran")
        verdicts.append(Exit.INCOMPLETE)
    return worst_of(verdicts, every=bool(op))
