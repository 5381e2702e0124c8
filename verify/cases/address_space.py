"""Address space on an NVIDIA GPU that takes little memory: one block of it lies at every multiple of its size.

A tensor with the layout "far" spans up to 17 GB and uses a few rows of them. CUDA allocates and frees so much slowly,
and for one process at a time. The driver's virtual memory management (cuMemMap of the CUDA driver API) maps a block as
often as a range holds it, once for a process.
"""

from collections import defaultdict
from functools import cache
from importlib import import_module
from typing import Any
from weakref import finalize

import torch

PAGE = 2**21  # bytes: what CUDA maps at least
# Bytes of a block. No power of two is a multiple of them, so an offset that wraps at 2³² leads to another row, or
# between rows.
BLOCK = 47 * PAGE
BLOCKS = 192  # of a range: 2³² elements of 4 bytes, and what rows lie apart beyond that
WIDEST = 8  # bytes of an element


class RefusedError(RuntimeError):
    """The driver did not map the memory."""


class _Range:
    """A range of addresses as torch takes it, by the CUDA array interface."""

    def __init__(self, address: int) -> None:
        place = {"data": (address, False), "shape": (BLOCKS * BLOCK,), "typestr": "|u1", "version": 3}
        self.__cuda_array_interface__ = place


_unused: defaultdict[torch.device, list[int]] = defaultdict(list)  # addresses of the process's ranges
_refusing = set[torch.device]()  # asked once: what the driver has mapped before it refuses stays mapped


def step(rows: int, length: int) -> int | None:
    """Return a number of elements such that rows at multiples of an odd multiple of it share no memory.

    It holds for `rows` rows of `length` elements of any type; None where they do not fit. A block has at least
    `WIDEST` times `rows` places, a power of two; an odd multiple of a place visits each before it returns.

    >>> step(3, 100), step(1024, 100), step(1024, 12032)
    (3080192, 12032, None)
    """
    places = WIDEST * 2 ** (rows - 1).bit_length()
    return BLOCK // places if length < BLOCK // places else None


@cache
def driver() -> Any:
    """Return the module of CUDA's driver, which comes with torch 2.11 for CUDA; None where it is missing."""
    try:
        return import_module("cuda.bindings.driver")
    except ImportError:
        return None


def lent(size: int, device: torch.device | str) -> torch.Tensor | None:
    """Return `size` bytes of address space on a device, for as long as the tensor or a view of it lives.

    All of it repeats the first `BLOCK` bytes. None if the range is too short, or where the driver maps none.
    """
    device = torch.device(device)
    if device.type != "cuda" or size > BLOCKS * BLOCK or driver() is None or device in _refusing:
        return None
    if not _unused[device]:
        try:
            _unused[device].append(_mapped(device))
        except RefusedError:
            _refusing.add(device)
            return None
    held = _Range(address := _unused[device].pop())
    finalize(held, _unused[device].append, address).atexit = False
    return torch.as_tensor(held, device=device)[:size]


def _mapped(device: torch.device) -> int:
    """Return the address of a new range; raises RefusedError where the driver refuses it."""
    cuda = driver()
    index = torch.cuda.current_device() if device.index is None else device.index
    with torch.cuda.device(index):
        torch.cuda.synchronize()  # makes CUDA's context the current one of this thread
        place = cuda.CUmemAllocationProp()
        place.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        place.location.type, place.location.id = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, index
        access = cuda.CUmemAccessDesc()
        access.location, access.flags = place.location, cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        memory = _done(cuda.cuMemCreate(BLOCK, place, 0))
        address = int(_done(cuda.cuMemAddressReserve(BLOCKS * BLOCK, PAGE, 0, 0)))
        for number in range(BLOCKS):
            _done(cuda.cuMemMap(address + number * BLOCK, BLOCK, 0, memory, 0))
        _done(cuda.cuMemSetAccess(address, BLOCKS * BLOCK, [access], 1))
    return address


def _done(answer: tuple[Any, ...]) -> Any:
    """Return what a function of the driver returns beside its status; raises RefusedError if it failed."""
    status, *returned = answer
    if int(status) != 0:
        raise RefusedError(str(status))
    return returned[0] if returned else None
