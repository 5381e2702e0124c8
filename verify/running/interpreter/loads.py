"""Loads and stores of interpreted kernels beyond the tensors that they are given.

A GPU stops there with an illegal memory access, or takes what lies there by chance. Here such an element is noted and
left out: it is read as 0, or as `other`. Otherwise no result would show a load that the kernel leaves out later, and a
store would change, or end, the judge's process. A launch's tensors are its arguments, each with its whole storage: an
argument may be a view whose kernel reads beside it. Where a kernel makes pointers of numbers, as from a table of
addresses, nothing tells what it may read.
"""

import linecache
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify_norm.running.interpreter import syntax

Area = tuple[str, int, int]  # of a tensor's storage: the tensor's name in the kernel, its first address, its end

beyond: dict[str, str] = {}  # in words, by the line that reads or writes, since it was last cleared
_areas: list[Area] | None = None  # of the launch that runs; None: it may read and write anything


@contextmanager
def given(arguments: Mapping[str, Any]) -> Iterator[None]:
    """Look at the loads and stores of a launch of these arguments."""
    global _areas
    before = _areas
    try:
        _areas = [area for name, value in arguments.items() for area in _of(name, value)]
    except (TypeError, RuntimeError):  # of a pointer that is no tensor's, or of a tensor that has no memory
        _areas = None
    try:
        yield
    finally:
        _areas = before


def load(own: Callable[..., Any], self: Any, pointers: Any, mask: Any, *rest: Any, **options: Any) -> Any:
    """Load what lies in the tensors, and note what does not."""
    return own(self, pointers, _within("a load", pointers, mask), *rest, **options)


def store(own: Callable[..., Any], self: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **options: Any) -> Any:
    """Store what lies in the tensors, and note what does not."""
    return own(self, pointers, value, _within("a store", pointers, mask), *rest, **options)


def pointer_of_number(own: Callable[..., Any], self: Any, source: Any, kind: Any) -> Any:
    """Make a pointer of a number, and look no more in this launch."""
    global _areas
    _areas = None
    return own(self, source, kind)


def _of(name: str, value: Any) -> Iterator[Area]:
    """Yield the storage of a tensor, or of those in a tuple or a descriptor; raises TypeError of other pointers."""
    import torch

    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        yield name, storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    elif isinstance(value, tuple):
        for one in value:
            yield from _of(name, one)
    elif hasattr(value, "base"):
        yield from _of(name, value.base)
    elif hasattr(value, "data_ptr"):
        raise TypeError(type(value))


def _within(what: str, pointers: Any, mask: Any) -> Any:
    """Return the mask, without what lies beyond all tensors."""
    if _areas is None:
        return mask
    width = max(pointers.get_element_ty().primitive_bitwidth // 8, 1)
    addresses: NDArray[np.uint64] = pointers.data
    wanted = np.broadcast_to(np.asarray(mask.data), addresses.shape)  # a block pointer's mask is an array itself
    taken = addresses if wanted.all() else addresses[wanted]
    if not taken.size:
        return mask
    low, high = int(taken.min()), int(taken.max()) + width
    if any(first <= low and high <= end for _, first, end in _areas):
        return mask
    inside = np.zeros(addresses.shape, bool)
    for _, first, end in _areas:
        inside |= (addresses >= first) & (addresses <= end - width)
    outside = wanted & ~inside
    if not outside.any():
        return mask
    line = _line(sys._getframe(1))
    if line not in beyond:
        beyond[line] = f"{what} {_where(_areas, addresses[outside], width)} in `{line}`"
    return wanted & inside  # an array, which has `data` as a handle has


def _where(areas: list[Area], outside: NDArray[np.uint64], width: int) -> str:
    """Return in words how far these addresses lie from the tensor that is next to them."""
    low, high = int(outside.min()), int(outside.max()) + width
    sides = [
        max((first - low, f"before the memory of {name}"), (high - end, f"behind the memory of {name}"))
        for name, first, end in areas
    ]
    distance, side = min(sides, default=(width, "without any tensor"))
    return f"{distance} bytes {side}"


def _line(frame: FrameType | None) -> str:
    """Return the line of the kernel that runs."""
    while frame is not None:
        names = frame.f_globals
        if syntax.NAME in names and not names.get("__name__", "").startswith("triton."):
            return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        frame = frame.f_back
    return ""
