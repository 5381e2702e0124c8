"""How rows of one length are cut, and with which constants their kernels are compiled.

The plan functions are looked up at every call, by flat arguments: a NamedTuple as the key takes three times as long.
"""

from functools import cache

import torch
import triton
from torch import Tensor

from verify_norm.kernels.launch import (
    CPU_PROGRAMS,
    LANES,
    Plan,
    dependent,
    multiprocessors,
    ptx,
    shared_memory,
    warps_of,
)
from verify_norm.kernels.rows.backward import BackwardConstants, FoldConstants, backward
from verify_norm.kernels.rows.backward import fold as fold_lines
from verify_norm.kernels.rows.forward import ForwardConstants, forward
from verify_norm.kernels.rows.gated import backward as gated

HELD = {"forward": 2**15, "backward": 2**14}  # elements of the longest row that registers hold
FEWER_WARPS = 12288  # columns up to which 8 warps take the forward of a row of more than 8192
LONG = 20480  # columns of 16 bits up to which 8 warps take that of one of more than 16384, two a multiprocessor
NARROW = 112  # elements of two rows that a thread holds at most, where results have 8 bits
PAIRED = 3072  # columns, if more than 1024, up to which 4 warps take a tile of the backward
TWO_ROWS = 6144  # columns, if more than 1024, below which a tile of the backward has two rows
CONVERTED = 8192  # columns up to which registers hold a row in float32 beside its sums
RAW = 12288  # columns up to which they hold it in its own type, whatever that is; beyond, of 16 bits
TOGETHER = 128  # sums side by side down a column, at least: the longer their runs, the larger their error
ALONE = 8192  # elements of tiles, or one tile, that one program of the backward takes: no launch has to add lines
FEW = 16  # rows, at most: what `verify-norm prove` proves one number of rows at a time
RESERVED = 8 * 2**10  # bytes of shared memory that reductions take
UNLIMITED = 2**31 - 1  # programs of a launch: each has one tile
GROUPS = {"group64": 64, "group128": 128}  # columns that have a scale of 8 bits together, by form
AHEAD = 48 * 2**10  # bytes a multiprocessor that the forward prefetches: a few tiles, and a tenth of the L2
Type = torch.dtype | None


@cache
def forward_plan(
    device: torch.device,
    n: int,
    vec: int,
    dtype: torch.dtype,
    weight: Type,
    bias: Type,
    residual: bool,
    centered: bool,
    offset: bool,
    quantized: Type = None,
    form: str = "",
    factor: Type = None,
    shift: Type = None,
    joint: bool = False,
) -> Plan:
    """Return the plan of the forward of rows of n elements, which vectors of `vec` load, into 8 bits if `quantized`."""
    group = GROUPS.get(form, 0)
    into_8_bits = quantized is not None and not residual
    cut = _on(device, _forward_cut(n, vec, dtype.itemsize, residual, into_8_bits, group))
    rows = cut["ROWS"]
    ahead = -(-multiprocessors(device) * AHEAD // (rows * n * dtype.itemsize * (1 + residual)))
    options = {"num_warps": warps_of(device, cut.pop("num_warps"))}
    constants = ForwardConstants(
        vec, ptx(device), _even(n, cut), FORM=form, GROUP=min(group, cut["CHUNK"]), JOINT=joint, **cut
    )
    return Plan(forward, constants, device, vec, rows, ahead=ahead, options=options)


@cache
def backward_plan(
    device: torch.device,
    n: int,
    vec: int,
    dtype: torch.dtype,
    weight: Type,
    added: bool,
    centered: bool,
    offset: bool,
    dx: bool,
    dweight: bool,
    dbias: bool,
    form: str = "",
    joint: bool = False,
    written: tuple[Type, Type] | None = None,
) -> Plan:
    """Return the plan of the backward of rows of n elements of type `dtype`, which vectors of `vec` load.

    `written` are the types of dweight and dbias where one program writes them, None where lines of float32 are.
    """
    mixed, raw = weight is not None and weight.itemsize > dtype.itemsize, device.type != "cuda" or ptx(device)
    cut = _on(device, _backward_cut(n, vec, dtype.itemsize, dweight + dbias, added, mixed, raw))
    warps, rows = cut.pop("num_warps"), cut["ROWS"]
    over = cut["CHUNK"] >= 256 * warps  # a thread has the same columns of every row, and adds them up
    most = CPU_PROGRAMS
    if device.type == "cuda":
        # 8 warps fill the registers of a multiprocessor, with the sums of their programs.
        most = _programs(device, 8 // warps) if dweight or dbias else UNLIMITED
        cut["STAGES"] = _stages(device, cut, dtype.itemsize * (2 + added))
    constants = BackwardConstants(
        vec,
        ptx(device),
        _even(n, cut),
        DWEIGHT=dweight,
        DBIAS=dbias,
        SUMS=1 if over else rows,
        FORM=form,
        JOINT=joint,
        **cut,
    )
    alone = min(max(ALONE // (rows * cut["CHUNK"] * cut["CHUNKS"]), 1), FEW // rows)
    return Plan(
        backward, constants, device, vec, rows, most, alone=alone, options={"num_warps": warps_of(device, warps)}
    )


@cache
def gated_plan(device: torch.device, n: int, vec: int, dtype: torch.dtype, weight: Type, offset: bool) -> Plan:
    """Return the plan of a gated norm's gradients: 16 warps of a multiprocessor, one tile on its way beside theirs."""
    cut = _on(device, _gated_cut(n, vec, dtype.itemsize))
    warps, rows = cut.pop("num_warps"), cut["ROWS"]
    over = cut["CHUNK"] >= 256 * warps  # a thread has the same columns of every row, and adds them up
    most = CPU_PROGRAMS
    if device.type == "cuda":
        most = _programs(device, 16 // warps)
        cut["STAGES"] = _stages(device, cut, dtype.itemsize * 3)
    constants = BackwardConstants(
        vec,
        ptx(device),
        _even(n, cut),
        DWEIGHT=weight is not None,
        DBIAS=False,
        FORM="gate",
        JOINT=False,
        AGAIN=1,
        RAW=1,
        SUMS=1 if over else rows,
        **cut,
    )
    return Plan(gated, constants, device, vec, rows, most, options={"num_warps": warps_of(device, warps)})


def _programs(device: torch.device, each: int) -> int:
    """Return how many programs run on a device at a time, `each` on a multiprocessor; as many lines are added up."""
    return max(max(each, 1) * multiprocessors(device), TOGETHER)


def _stages(device: torch.device, cut: dict[str, int], size: int) -> int:
    """Return how many stages shared memory has room for, with `size` bytes a column, which all but the last take."""
    buffer = cut["ROWS"] * cut["CHUNK"] * cut["CHUNKS"] * size
    return min(cut["STAGES"], max(1, 1 + (shared_memory(device) - RESERVED) // buffer))


@cache
def fold_plan(device: torch.device, short: bool, vec: int, dweight: Type, dbias: Type) -> Plan:
    """Return the plan that sums the backward's lines: of short rows more lines at a time, and fewer columns."""
    rows, chunk, warps = CPU_PROGRAMS, 4096, 4
    if device.type == "cuda":
        rows, chunk, warps = (256, 8, 8) if short else (128, 16, 4)
    constants = FoldConstants(vec, ptx(device), rows, chunk)
    options = {"num_warps": warps_of(device, warps)} | dependent(device)
    return Plan(fold_lines, constants, device, vec, rows, options=options)


def fold(lines: Tensor, dw: Tensor | None, db: Tensor | None) -> None:
    """Add `lines` (parts, count, n), float32, into dw and db, whichever are given, in one order."""
    parts, count, n = lines.shape
    vec = 4 if n % 4 == 0 else 1
    types = None if dw is None else dw.dtype, None if db is None else db.dtype
    plan = fold_plan(lines.device, n <= 1024, vec, *types)
    plan.launch(parts * -(-n // plan.constants.CHUNK), lines, dw, db, count, n // vec)


def scales(form: str, n: int) -> int | None:
    """Return how many scales a row of n elements has in this form; None where it has none of its own."""
    return 1 if form == "rows" else -(-n // GROUPS[form]) if form in GROUPS else None


def _forward_cut(n: int, vec: int, size: int, residual: bool, quantized: bool, group: int) -> dict[str, int]:
    """Return the cut of the forward: 32 elements of a tile a thread, or 16 of each of two tensors.

    So enough vectors are in flight, at a third of the registers. Of short rows a thread has 64 bytes, and no lane is
    idle where a row is 3/4 of a power of two, such as 768 columns. From 16 bits into 8 a thread has two to three times
    as many: less is moved, so instructions count, and many of them are those of a thread, whatever it holds. No `group`
    is in two chunks, and of rows with groups no more lanes idle than need be: scales cost as much there.
    """
    if n <= 1024:
        block = _block(n, vec)
        short = {"ROWS": 4096 // size // block, "CHUNK": block, "CHUNKS": 1, "num_warps": 2}
        thirds = vec > 1 and 4 * n == 3 * block and 4 * group <= block
        return short | {"CHUNK": block // 4, "CHUNKS": 3} if thirds else short
    if quantized and size == 2:
        warps = triton.next_power_of_2(-(-2 * n // (32 * NARROW)))
        return {"ROWS": 2 if n < 8192 else 1, **_chunks(n, min(max(warps, 2), 8 if n <= 24576 else 16))}
    warps = _warps(n) if n <= 8192 or FEWER_WARPS < n <= 2**14 else 8
    if n > (2**14 if residual or size > 2 else LONG):
        warps = 16 if size == 2 else 32
    if residual and (not group or n % (512 * warps) == 0):
        warps = min(2 * warps, 32)
    return {"ROWS": 2 if n <= 2048 else 1, **_chunks(n, warps)}


def _backward_cut(n: int, vec: int, size: int, sums: int, added: bool, mixed: bool, raw: bool) -> dict[str, int]:
    """Return the cut of the backward: 32 to 64 elements of a tile a thread, beside the sums down as many columns.

    It is half of that in twice the threads, and where elements are loaded one by one, whose addresses take registers
    too. `mixed` says that the weight has more bytes than x, and `raw` that the compiler can be kept from holding both
    forms of what is kept RAW. Without sums a program has one tile, as in the forward, and all of it on its way at once.
    """
    alone = size == 2 and sums == 1 and not added
    held = {"AGAIN": 0, "RAW": 0, "STAGES": 3 if vec > 1 and sums else 1, "ROWS": 1}
    again = held | {"AGAIN": 1, "STAGES": 1, **_chunks(n, 16)}
    if n <= 1024:  # many small programs: one computes while another waits for a sum or for memory
        tile = 2048 if vec > 1 else 1024
        return held | {"ROWS": tile // _block(n, vec), "CHUNK": _block(n, vec), "CHUNKS": 1, "num_warps": 2}
    if vec == 1:
        return held | _chunks(n, 8 if n <= 4096 else 16)
    if not sums:
        return held | {"RAW": int(raw), **_chunks(n, _warps(n))}
    if n < TWO_ROWS:
        return held | {"ROWS": 2, **_chunks(n, 4 if n <= PAIRED else 8)}
    if n == 8192 and alone and not mixed:  # faster for this length, and for none near it
        return again | {"ROWS": 2}
    if n <= CONVERTED:
        return held | {"STAGES": 4 if n < 8192 and not added else 3, **_chunks(n, 8)}
    if raw and (n <= RAW or (size == 2 and not alone and not mixed)):
        return held | {"RAW": 1, "STAGES": 2 if n > RAW and added else 3, **_chunks(n, 8)}
    if size == 2 and (n <= RAW or alone):
        return again
    return held | {"AGAIN": 2, "STAGES": 1, **_chunks(n, 8)}


def _gated_cut(n: int, vec: int, size: int) -> dict[str, int]:
    """Return the cut of a gated norm's gradients: up to 24 elements of each tensor a thread, 32 beyond 8192 columns.

    A second stage loads the next tile into shared memory. From 4096 to 8192 columns of 16 bits the L2 is faster.
    """
    if n <= 1024:
        block = _block(n, vec)
        tile, warps, stages = (1024, size, 2) if vec > 1 else (2048, 4, 1)
        return {"ROWS": max(tile // block, 1), "CHUNK": block, "CHUNKS": 1, "STAGES": stages, "num_warps": warps}
    if vec == 1:
        return {"ROWS": 1, "STAGES": 1, **_chunks(n, 8 if n <= 4096 else 16)}
    warps = (4 if n <= PAIRED else 8 if n <= 4096 else 16) * (size // 2)
    stages = 1 if 4096 < n <= 8192 and size == 2 else 2
    return {"ROWS": 1, "STAGES": stages, **_chunks(n, min(warps, 16))}


def _warps(n: int) -> int:
    """Return so many warps that a thread has 32 elements of a row at most, and 4 at least."""
    return max(4, triton.next_power_of_2(-(-n // 1024)))


def _chunks(n: int, warps: int) -> dict[str, int]:
    """Return chunks of 16 bytes a thread, in 16 bits an element, as many as a row needs."""
    return {"CHUNK": 256 * warps, "CHUNKS": -(-n // (256 * warps)), "num_warps": warps}


def _block(n: int, vec: int) -> int:
    """Return the columns of a short row: few sizes, since each is compiled anew, more where memory limits the speed."""
    return max(64, triton.next_power_of_2(n)) if vec > 1 else 64 if n <= 64 else 256 if n <= 256 else 1024


def _even(n: int, cut: dict[str, int]) -> bool:
    return (n >= 1024 or cut["CHUNKS"] > 1) and n % cut["CHUNK"] == 0


def _on(device: torch.device, cut: dict[str, int]) -> dict[str, int]:
    """Return the cut for a device: an interpreted program is worth more rows."""
    if device.type == "cuda":
        return cut
    return cut | {"ROWS": max(1, LANES["cpu"] // (cut["CHUNK"] * triton.next_power_of_2(cut["CHUNKS"])))}
