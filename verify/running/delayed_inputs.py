"""Runs a kernel in a stream that is busy until all launches of the kernel are queued, and delivers the inputs late.

In other runs a launch ends before the host makes the next one, and its results are ready by chance. Here the last work
before the kernel writes the inputs, which are NaN until then, and lets the next launch begin before it ends, if that
launch allows it (programmatic dependent launch). The next work copies the results, and is followed by another call of
the kernel. This detects a launch in another stream than torch's current one, a launch that reads an input or a buffer
without waiting for the launch that writes it, a stream that the current one does not wait for, and what the host
changes for the next call before this one has read it. Weights and biases are ready from the beginning: kernels may load
them early.

Sources: pytorch #22470, vLLM #13632 (streams); cutlass #2760, sglang #38290 (no wait); how to see that, cccl #5249.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, wraps
from typing import Any

import torch
import triton
import triton.language as tl
from torch.utils._pytree import tree_map_only
from triton.language.extra.cuda import gdc_launch_dependents, globaltimer

from verify_norm.cases.contents import bytes_of
from verify_norm.core.run import Case

LIMIT = 2**28  # bytes of the inputs' storages: larger inputs are not copied
NAN = 255  # a byte: bytes of this value are NaN in every format
DELAY = 2_000_000  # nanoseconds: time for the host to make all launches of a call
PROGRAMS = 4  # per input: all must run on the GPU before a dependent launch may begin
BLOCK = 4096
_stream = cache(torch.cuda.Stream)  # one for each device


@triton.jit  # type: ignore[untyped-decorator]
def arrive(Table, EARLY: tl.constexpr, DELAY: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Copy bytes after a delay; the rows of `Table` are source address, target address, and count."""
    if EARLY:
        gdc_launch_dependents()
    if DELAY:
        started = globaltimer()
        now = started
        while now - started < DELAY:
            now = globaltimer()
    row = Table + 3 * tl.program_id(1)
    source = tl.load(row).to(tl.pointer_type(tl.uint8))
    target = tl.load(row + 1).to(tl.pointer_type(tl.uint8))
    size = tl.load(row + 2)
    for start in range(tl.program_id(0) * BLOCK, size, tl.num_programs(0) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        tl.store(target + i, tl.load(source + i, mask=i < size), mask=i < size)


def possible(case: Case) -> bool:
    """Return whether the case is on an NVIDIA GPU and its inputs are small enough."""
    inputs = list(_inputs(case).values())
    return bool(inputs) and torch.version.cuda is not None and sum(map(torch.numel, inputs)) <= LIMIT


@contextmanager
def arriving(case: Case) -> Iterator[None]:
    """Run the body in its own stream, in which the inputs of the case arrive late, and wait for its end."""
    inputs = list(_inputs(case).values())
    device = inputs[0].device
    copies = [t.clone() for t in inputs]
    rows = [[source.data_ptr(), t.data_ptr(), t.numel()] for source, t in zip(copies, inputs, strict=True)]
    table = torch.tensor(rows, device=device)
    early = torch.cuda.get_device_capability(device) >= (9, 0)
    torch.cuda.synchronize(device)  # another stream made the inputs
    with torch.cuda.device(device), torch.cuda.stream(_stream(device)):
        poison_allocator(sum(map(torch.numel, inputs)), device)
        for t in inputs:
            t.fill_(NAN)
        torch.cuda.synchronize(device)
        try:
            arrive[(PROGRAMS, len(rows))](table, EARLY=early, DELAY=DELAY, BLOCK=BLOCK)
            yield
        finally:
            torch.cuda.synchronize(device)


def read_at_once(function: Callable[..., Any], following: Callable[[], object] = lambda: None) -> Callable[..., Any]:
    """Return the function with copies of its results in their place, which the current stream makes right after it.

    Who waits for the whole GPU before reading a result does not see that nobody waits for the stream that computes it.
    `following` is called then, while the GPU has not begun the call; what it raises counts for nothing.
    """

    @wraps(function)
    def reading(*args: Any, **kwargs: Any) -> Any:
        returned = function(*args, **kwargs)
        with torch.no_grad():
            copies = tree_map_only(torch.Tensor, torch.clone, returned)
        with suppress(Exception):
            following()
        return copies

    return reading


def poison_allocator(size: int, device: torch.device) -> None:
    """Leave NaN in the memory that torch's allocator returns next in the current stream: about 2 · `size` bytes.

    Poison written at an allocation, as in other runs, would be a launch between two launches of the kernel.
    """
    blocks = [torch.empty(count, dtype=torch.uint8, device=device) for count in (*[2**19] * 4, 2 * size + 2**21)]
    for block in blocks:
        block.fill_(NAN)


def _inputs(case: Case) -> dict[int, torch.Tensor]:
    """Return the bytes of every storage of an input, by address, except parameters; none on a CPU."""
    storages = {}
    for tensor in case.op.inputs:
        value = case.arguments[tensor.name]
        if tensor.extent != "affine" and value is not None and value.is_cuda and value.numel():
            storages[value.untyped_storage().data_ptr()] = bytes_of(value, whole=True)
    return storages
