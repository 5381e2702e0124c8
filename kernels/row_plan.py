"""How rows of one length are cut, and how their kernels are launched with little Python before them.

Triton's own launch looks at every argument to find the compiled variant that belongs to it, which takes longer than
many a kernel. A plan is looked up by what tells variants apart, keeps the compiled kernel, and calls it as Triton
would. What tells them apart is complete because `launch.jit` lets Triton specialize on no size, stride, address or
float: there remain the types of the pointers, which of them are None, the constants, and the device. Triton's launch
hooks do not see these calls.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from verify_norm.kernels import rows, rows_backward
from verify_norm.kernels.launch import CPU_PROGRAMS, LANES

HELD = {"forward": 2**15, "backward": 2**14}  # elements of the longest row that registers hold
FEWER_WARPS = 12288  # columns up to which 8 warps take the forward of a row of more than 8192
LONG = 20480  # columns of 16 bits up to which 8 warps take that of one of more than 16384, two a multiprocessor
NARROW = 112  # elements of two rows that a thread holds at most, where results have 8 bits
PAIRED = 3072  # columns, if more than 1024, up to which a multiprocessor has two programs of the backward
TWO_ROWS = 6144  # columns, if more than 1024, below which a tile of the backward has two rows
CONVERTED = 8192  # columns up to which registers hold a row in float32 beside its sums
RAW = 12288  # columns up to which they hold it in its own type, whatever that is; beyond, of 16 bits
TOGETHER = 128  # sums side by side down a column, at least: the longer their runs, the larger their error
RESERVED = 8 * 2**10  # bytes of shared memory that reductions take
AHEAD = 48 * 2**10  # bytes a multiprocessor that the forward prefetches: a few tiles, and a tenth of the L2
Type = torch.dtype | None


@dataclass(slots=True)
class Plan:
    """A kernel with its constants, for one type and form of every argument, on one device.

    vec : elements that strides and lengths are counted in
    rows : rows a tile
    most : programs that are to be on the device at a time
    ahead : tiles between one and that which it prefetches
    """

    kernel: Any
    constants: dict[str, Any]
    device: torch.device
    vec: int
    rows: int
    most: int = 0
    ahead: int = 0
    compiled: tuple[Any, ...] | None = None

    def launch(self, programs: int, *arguments: Any) -> None:
        """Run so many programs on the device's current stream."""
        index = self.device.index
        if index is not None and torch._C._cuda_getDevice() != index:
            with torch.cuda.device(index):
                self.launch(programs, *arguments)
        elif self.compiled is None:
            compiled = self.kernel[(programs,)](*arguments, **self.constants)
            if compiled is not None:  # as it is in the interpreter
                constants = (None,) * (len(self.kernel.arg_names) - len(arguments))  # the places that are compiled in
                self.compiled = (*_launcher(compiled), constants)
        else:
            run, options, constants = self.compiled
            run(programs, 1, 1, torch._C._cuda_getCurrentRawStream(index), *options, *arguments, *constants)


def _launcher(compiled: Any) -> tuple[Any, tuple[Any, ...]]:
    """What launches a compiled kernel, and its arguments between the stream and the kernel's own.

    In Triton 3.6 it is the function in C below the one in Python that allocates scratch memory, of which these kernels
    need none: 1.4 of 7 µs.
    """
    run = compiled.run
    scratch = any(getattr(run, f"{name}_scratch_size", True) for name in ("global", "profile"))
    if triton.__version__.startswith("3.6.") and not scratch:
        flags = (run.launch_cooperative_grid, run.launch_pdl)
        return run.launch, (compiled.function, *flags, None, None, compiled.packed_metadata, None, None, None)
    return run, (compiled.function, compiled.packed_metadata, None, None, None)


@cache
def forward_plan(
    device: torch.device, n: int, vec: int, dtype: torch.dtype, weight: Type, bias: Type, residual: bool,
    centered: bool, offset: bool, quantized: Type = None,
) -> Plan:  # fmt: skip
    """The forward of rows of n elements of type `dtype`, which vectors of `vec` load, into 8 bits if `quantized`."""
    cut = _on(device, _forward_cut(n, vec, dtype.itemsize, residual, quantized is not None))
    size = cut["ROWS"] * n * dtype.itemsize * (1 + residual)
    ahead = -(-multiprocessors(device) * AHEAD // size)
    constants = {"VEC": vec, "PTX": ptx(device), "EVEN": _even(n, cut)} | cut
    return Plan(rows.forward, constants, device, vec, cut["ROWS"], ahead=ahead)


@cache
def backward_plan(
    device: torch.device, n: int, vec: int, dtype: torch.dtype, weight: Type, added: bool, centered: bool,
    offset: bool, dx: bool, dweight: bool, dbias: bool,
) -> Plan:  # fmt: skip
    """The backward of rows of n elements of type `dtype`, which vectors of `vec` load."""
    mixed, raw = weight is not None and weight.itemsize > dtype.itemsize, device.type != "cuda" or ptx(device)
    cut = _on(device, _backward_cut(n, vec, dtype.itemsize, dweight + dbias, added, mixed, raw))
    over = cut["CHUNK"] >= 256 * cut["num_warps"]  # a thread has the same columns of every row, and adds them up
    most = CPU_PROGRAMS
    if device.type == "cuda":
        each = max(8 // cut["num_warps"], 1)  # programs of a multiprocessor, whose registers 8 warps fill
        most = max(each * multiprocessors(device), TOGETHER)
        buffer = cut["ROWS"] * cut["CHUNK"] * cut["CHUNKS"] * dtype.itemsize * (2 + added)  # one a stage but the last
        cut["STAGES"] = min(cut["STAGES"], max(1, 1 + (shared_memory(device) - RESERVED) // buffer))
    constants = {"VEC": vec, "PTX": ptx(device), "EVEN": _even(n, cut), "DWEIGHT": dweight, "DBIAS": dbias,
                 "SUMS": 1 if over else cut["ROWS"]}  # fmt: skip
    return Plan(rows_backward.backward, constants | cut, device, vec, cut["ROWS"], most)


@cache
def fold_plan(device: torch.device, short: bool, vec: int, dweight: Type, dbias: Type) -> Plan:
    """The sums of the lines that the backward leaves: more lines of short rows, and fewer columns of each."""
    cut = {"ROWS": CPU_PROGRAMS, "CHUNK": 4096}
    if device.type == "cuda":
        cut = {"ROWS": 256, "CHUNK": 8, "num_warps": 8} if short else {"ROWS": 128, "CHUNK": 16, "num_warps": 4}
    return Plan(rows_backward.fold, {"VEC": vec} | cut | dependent(device), device, vec, cut["ROWS"])


def fold(lines: Tensor, dw: Tensor | None, db: Tensor | None) -> None:
    """Add `lines` (parts, count, n), float32, into dw and db, whichever are given, in one order."""
    parts, count, n = lines.shape
    vec = 4 if n % 4 == 0 else 1
    types = None if dw is None else dw.dtype, None if db is None else db.dtype
    plan = fold_plan(lines.device, n <= 1024, vec, *types)
    plan.launch(parts * -(-n // plan.constants["CHUNK"]), lines, dw, db, count, n // vec)


def _forward_cut(n: int, vec: int, size: int, residual: bool, quantized: bool) -> dict[str, int]:
    """32 elements of a tile a thread, or 16 of each of two: vectors enough in flight, at a third of the registers.

    Of short rows it is 64 bytes, and no lane is idle where 3/4 of a power of two are a row, as 768 columns often are.
    From 16 bits into 8 it is two to three times as much: less is moved, so that instructions count, and many of them
    are those of a thread, whatever it holds.
    """
    if n <= 1024:
        block = _block(n, vec)
        short = {"ROWS": 4096 // size // block, "CHUNK": block, "CHUNKS": 1, "num_warps": 2}
        return short | {"CHUNK": block // 4, "CHUNKS": 3} if vec > 1 and 4 * n == 3 * block else short
    if quantized and size == 2:
        warps = triton.next_power_of_2(-(-2 * n // (32 * NARROW)))
        return {"ROWS": 2 if n < 8192 else 1, **_chunks(n, min(max(warps, 2), 8 if n <= 24576 else 16))}
    warps = max(4, triton.next_power_of_2(-(-n // 1024))) if n <= 8192 or FEWER_WARPS < n <= 2**14 else 8
    if n > (2**14 if residual or size > 2 else LONG):
        warps = 16 if size == 2 else 32
    return {"ROWS": 2 if n <= 2048 else 1, **_chunks(n, min(2 * warps, 32) if residual else warps)}


def _backward_cut(n: int, vec: int, size: int, sums: int, added: bool, mixed: bool, raw: bool) -> dict[str, int]:
    """32 to 64 elements of a tile a thread, beside the sums down as many columns; half of that in twice the threads.

    Half of that also where elements are loaded one by one, whose addresses take registers too. `mixed` says that the
    weight has more bytes than x, and `raw` that the compiler can be kept from holding both forms of what is kept RAW.
    """
    alone = size == 2 and sums < 2 and not added
    held = {"AGAIN": 0, "RAW": 0, "STAGES": 3 if vec > 1 else 1, "ROWS": 1}
    again = held | {"AGAIN": 1, "STAGES": 1, **_chunks(n, 16)}
    if n <= 1024:  # many small programs: one computes while another waits for a sum or for memory
        tile = 2048 if vec > 1 else 1024
        return held | {"ROWS": tile // _block(n, vec), "CHUNK": _block(n, vec), "CHUNKS": 1, "num_warps": 2}
    if vec == 1:
        return held | _chunks(n, 8 if n <= 4096 else 16)
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


def _chunks(n: int, warps: int) -> dict[str, int]:
    """Columns of 16 bytes a thread, in 16 bits an element, as often as a row needs."""
    return {"CHUNK": 256 * warps, "CHUNKS": -(-n // (256 * warps)), "num_warps": warps}


def _block(n: int, vec: int) -> int:
    """Columns of a short row. Few sizes, since each is compiled anew; more for those whose speed is that of memory."""
    return max(64, triton.next_power_of_2(n)) if vec > 1 else 64 if n <= 64 else 256 if n <= 256 else 1024


def _even(n: int, cut: dict[str, int]) -> bool:
    return (n >= 1024 or cut["CHUNKS"] > 1) and n % cut["CHUNK"] == 0


def _on(device: torch.device, cut: dict[str, int]) -> dict[str, int]:
    """The cut for a device: an interpreted program is worth more rows."""
    if device.type == "cuda":
        return cut
    return cut | {"ROWS": max(1, LANES["cpu"] // (cut["CHUNK"] * triton.next_power_of_2(cut["CHUNKS"])))}


@cache
def multiprocessors(device: torch.device) -> int:
    """How many the device has; a few for a CPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else CPU_PROGRAMS


def shared_memory(device: torch.device) -> int:
    """Bytes that one program may have of it."""
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block))


def dependent(device: torch.device) -> dict[str, bool]:
    """The constants of a kernel that waits for the launch before, and so may begin before that ends: on sm_90."""
    return {"PTX": True, "launch_pdl": True} if ptx(device) else {"PTX": False}


@cache
def ptx(device: torch.device) -> bool:
    """Whether kernels may use instructions of sm_90."""
    if device.type != "cuda" or torch.version.hip is not None or triton.knobs.runtime.interpret:
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)
