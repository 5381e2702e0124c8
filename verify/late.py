"""Inputs that arrive late: a run in a stream that is busy until all of a kernel's launches are queued in it.

Otherwise a launch is over before the host has made the next, and what one ought to wait for is there by chance. Here
the last work before the kernel writes the inputs, which are NaN until then, and lets what follows begin before it ends,
where that may (programmatic dependent launch). So it shows when a launch is in another stream than torch's current one,
or reads what the launch before it writes, an input or a buffer of the kernel's own, and does not wait for it. Weights
and biases are there from the beginning: kernels may load them early, since nobody writes them just before.

Sources: pytorch #22470, vLLM #13632 (streams); cutlass #2760, sglang #38290 (no wait); how to see that, cccl #5249.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, globaltimer

from verify_norm.guards import content
from verify_norm.spec import Case

LIMIT = 2**28  # bytes of the inputs' storages: larger ones are not copied
NAN = 255  # a byte: of such, NaN consists in every format
DELAY = 2_000_000  # nanoseconds, in which the host is to make all launches of a call; then the inputs come
PROGRAMS = 4  # for each input: all have to be on the GPU before what depends on them may begin
BLOCK = 4096


@triton.jit  # type: ignore[untyped-decorator]
def arrive(Table, EARLY: tl.constexpr, DELAY: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Copy bytes after a while; the rows of `Table` are address, address to copy to, and count."""
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
        at = start + tl.arange(0, BLOCK)
        tl.store(target + at, tl.load(source + at, mask=at < size), mask=at < size)


def possible(case: Case) -> bool:
    """Whether the case is on an NVIDIA GPU, and its inputs are not too large."""
    found = list(_inputs(case).values())
    return bool(found) and torch.version.cuda is not None and sum(map(torch.numel, found)) <= LIMIT


@contextmanager
def arriving(case: Case) -> Iterator[None]:
    """Run what is under it in a stream of its own, in which the inputs of the case arrive late; wait for all of it."""
    inputs = list(_inputs(case).values())
    device = inputs[0].device
    kept = [t.clone() for t in inputs]
    rows = [[source.data_ptr(), t.data_ptr(), t.numel()] for source, t in zip(kept, inputs, strict=True)]
    table = torch.tensor(rows, dtype=torch.int64, device=device)
    early = torch.cuda.get_device_capability(device) >= (9, 0)
    torch.cuda.synchronize(device)  # what made the inputs is in another stream
    with torch.cuda.device(device), torch.cuda.stream(_stream(device)):
        soil(sum(map(torch.numel, inputs)), device)
        for t in inputs:
            t.fill_(NAN)
        torch.cuda.synchronize(device)
        try:
            arrive[(PROGRAMS, len(rows))](table, EARLY=early, DELAY=DELAY, BLOCK=BLOCK)
            yield
        finally:
            torch.cuda.synchronize(device)


def soil(size: int, device: torch.device) -> None:
    """Leave NaN in what torch's allocator will give out next in the current stream: about twice so many bytes.

    Poison that is written when a kernel asks for memory, as in other runs, would be a launch between two of its own.
    """
    blocks = [torch.empty(count, dtype=torch.uint8, device=device) for count in (*[2**19] * 4, 2 * size + 2**21)]
    for block in blocks:
        block.fill_(NAN)


def _inputs(case: Case) -> dict[int, torch.Tensor]:
    """The bytes of every storage, by address, that holds an input other than a parameter; none on a CPU."""
    found = {}
    for tensor in case.op.inputs:
        value = case.arguments[tensor.name]
        if tensor.extent != "affine" and value is not None and value.is_cuda and value.numel():
            found[value.untyped_storage().data_ptr()] = content(value, whole=True)
    return found


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
