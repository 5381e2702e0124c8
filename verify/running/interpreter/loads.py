"""Loads of interpreted kernels from memory beyond the tensors that they are given.

A GPU stops there with an illegal memory access, or reads what lies there by chance. The interpreter reads on, and where
the kernel then leaves out what it has read, no result shows it. A launch's tensors are its arguments, each with its
whole storage: an argument may be a view whose kernel reads beside it. Where a kernel makes pointers of numbers, as from
a table of addresses, nothing tells what it may read.
"""

import linecache
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np

from verify_norm.running.interpreter import syntax

Area = tuple[str, int, int]  # of a tensor's storage: the tensor's name in the kernel, its first address, its end

beyond: dict[str, str] = {}  # in words, by the line that reads, since it was last cleared
_areas: list[Area] | None = None  # of the launch that runs; None: anything may be read


@contextmanager
def given(arguments: Mapping[str, Any]) -> Iterator[None]:
    """Look at the loads of a launch of these arguments."""
    global _areas
    before = _areas
    try:
        _areas = [area for name, value in arguments.items() for area in _of(name, value)]
    except TypeError:
        _areas = None
    try:
        yield
    finally:
        _areas = before


def load(own: Callable[..., Any], self: Any, pointers: Any, mask: Any, *rest: Any, **options: Any) -> Any:
    """Load, and note what lies beyond the tensors."""
    if _areas is not None:
        width = max(pointers.get_element_ty().primitive_bitwidth // 8, 1)
        _look(_areas, pointers.data, np.asarray(mask.data), width)  # a block pointer's mask is an array itself
    return own(self, pointers, mask, *rest, **options)


def pointer_of_number(own: Callable[..., Any], self: Any, source: Any, kind: Any) -> Any:
    """Make a pointer of a number, and look at no more loads of this launch."""
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


def _look(areas: list[Area], addresses: Any, mask: Any, width: int) -> None:
    read = addresses if mask.all() else addresses[np.broadcast_to(mask, addresses.shape)]
    if not read.size:
        return
    low, high = int(read.min()), int(read.max()) + width
    if any(first <= low and high <= end for _, first, end in areas):
        return
    inside = np.zeros(read.shape, bool)
    for _, first, end in areas:
        inside |= (read >= first) & (read <= end - width)
    if inside.all():
        return
    line = _line(sys._getframe(1))
    if line not in beyond:
        beyond[line] = f"{_where(areas, read[~inside], width)} in `{line}`"


def _where(areas: list[Area], read: Any, width: int) -> str:
    """Return in words how far these addresses lie from the tensor that is next to them."""
    low, high = int(read.min()), int(read.max()) + width
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
