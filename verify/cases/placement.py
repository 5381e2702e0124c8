"""Tensors in hostile memory: any layout, poison in every gap, and guard zones on both sides."""

import mmap
import sys
from dataclasses import dataclass
from math import prod

import numpy as np
import torch

from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.geometry import extent

GUARD = 64  # elements on each side: more than one vector load, less than what would cost time
FAR = 2**31  # elements: the first offset that 32 bits do not hold
FAR_ROWS = 1024  # at most: each touches a page of memory or two

_TORCH = {name: getattr(torch, name) for name in FORMATS if hasattr(torch, name)}
_BITS = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}  # torch takes bits, not ml_dtypes


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a tensor lies in its storage: strides, index of the first element, and extent, all in elements."""

    strides: tuple[int, ...]
    offset: int
    extent: int


def placement(shape: tuple[int, ...], layout: str) -> Placement:
    """Return how `layout` places a tensor of this shape; contiguous if the layout does not apply to the shape.

    "far" puts the last index of the first dimension beyond 2³¹ elements. With two indices the stride itself needs 64
    bits; with more the stride fits 32 bits and its product with the index does not. A product that wraps is negative:
    2³¹ elements lie before the first, so a wrong offset reads a wrong value instead of crashing.

    >>> placement((2, 3), "transposed").strides
    (1, 2)
    >>> placement((2, 3), "row_strided").strides
    (6, 1)
    >>> placement((3, 4), "far").strides
    (1073741824, 1)
    """
    rank = len(shape)
    order = tuple(range(rank))  # from the slowest dimension to the fastest
    padded = list(shape)
    step, shift = 1, 0
    if layout == "transposed":
        order = order[::-1]
    elif layout == "channels_last" and rank > 2:
        order = (0, *range(2, rank), 1)
    elif layout == "row_strided" and rank > 1:
        padded[-1] += 3  # an odd gap: rows lose their alignment
    elif layout == "every_other":
        step = 2
    elif layout == "offset":
        shift = 1  # misaligned for every vector load
    strides, size = [0] * rank, step
    for axis in reversed(order):
        strides[axis] = size
        size *= max(padded[axis], 1)
    if layout == "expanded" and rank > 1:
        strides[0] = 0
    elif layout == "scalar":
        strides = [0] * rank
    front = GUARD
    if layout == "far" and spreads(shape):
        strides[0] = max(size // max(shape[0], 1), -(-FAR // (shape[0] - 1) // GUARD) * GUARD)
        front += FAR
    return Placement(tuple(strides), front + shift, extent(shape, strides))


def applies(layout: str, shape: tuple[int, ...]) -> bool:
    """Return whether the layout places a tensor of this shape otherwise than a contiguous one.

    >>> applies("transposed", (3, 1)), applies("transposed", (3, 2))
    (False, True)
    """
    return placement(shape, layout) != placement(shape, "contiguous")


def spreads(shape: tuple[int, ...]) -> bool:
    """Return whether the layout "far" applies to the shape."""
    return len(shape) > 1 and 1 < shape[0] <= FAR_ROWS and prod(shape) > 0


def shared(values: Array, layout: str) -> Array:
    """Return the values that a tensor of this layout can hold: along a stride of 0 all are equal."""
    if not values.size or (layout == "expanded" and values.ndim < 2) or layout not in ("expanded", "scalar"):
        return values
    one = values[:1] if layout == "expanded" else values[(slice(0, 1),) * values.ndim]
    return np.ascontiguousarray(np.broadcast_to(one, values.shape))


def place(values: Array, dtype: str, layout: str, poison: float, device: str) -> torch.Tensor:
    """Return a tensor that holds `values`, numbers of the format `dtype`, in `layout`; other elements are `poison`.

    The gaps of "far" are not written: on a CPU they hold zeros and take no memory. If they do not fit into memory, the
    tensor is contiguous.
    """
    form = FORMATS[dtype]
    where = placement(values.shape, layout)
    size = where.offset + where.extent + GUARD
    with np.errstate(invalid="ignore"):  # NumPy warns about signalling NaN
        exact = np.ascontiguousarray(values.astype(form.dtype))
    if where.offset > FAR:
        untouched = _untouched(size, dtype, device)
        if untouched is None:
            return place(values, dtype, "contiguous", poison, device)
        far = untouched.as_strided(values.shape, where.strides, where.offset)
        far.copy_(torch.from_numpy(exact.view(_BITS[exact.itemsize])).view(_TORCH[dtype]))
        return far
    base = np.full(size, poison, dtype=np.float64).astype(form.dtype)
    bytestrides = tuple(stride * base.itemsize for stride in where.strides)
    np.lib.stride_tricks.as_strided(base[where.offset :], values.shape, bytestrides)[...] = exact
    storage = torch.from_numpy(base.view(_BITS[base.itemsize])).to(device).view(_TORCH[dtype])
    return storage.as_strided(values.shape, where.strides, where.offset)


def _untouched(size: int, dtype: str, device: str) -> torch.Tensor | None:
    """Return `size` elements of address space, not initialized; None if they do not fit.

    A CPU allocates a page when it is touched. The mapping is shared and without a reservation, so neither Linux's
    accounting nor a limit on a process's data counts it. A GPU allocates all of it: at most half of its free memory.
    """
    wanted = size * _TORCH[dtype].itemsize
    try:
        if torch.device(device).type != "cpu":
            free = torch.cuda.mem_get_info(device)[0] + _kept(device)
            return torch.empty(size, dtype=_TORCH[dtype], device=device) if 2 * wanted <= free else None
        if sys.platform != "linux":
            return None
        without_reservation = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python names it from 3.13 on
        pages = mmap.mmap(-1, wanted, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | without_reservation)
        return torch.frombuffer(pages, dtype=_TORCH[dtype])  # the tensor keeps the mapping alive
    except (OSError, ValueError, torch.OutOfMemoryError):
        return None


def release(device: str) -> None:
    """Return torch's cached GPU memory to the device if it is large, as after a case with layout "far".

    Other processes rely on free memory, as `_untouched` does.
    """
    if torch.device(device).type == "cuda" and _kept(device) >= FAR:  # bytes, less than any such case takes
        torch.cuda.empty_cache()


def _kept(device: str) -> int:
    """Return the bytes of a GPU that torch caches without using them."""
    return torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def overwrite(tensor: torch.Tensor, source: torch.Tensor) -> None:
    """Copy the values of a tensor of the same layout; along a stride of 0 there is one element."""
    own = tuple(slice(0, 1 if stride == 0 else None) for stride in tensor.stride())
    with torch.no_grad():
        tensor[own].copy_(source[own])


def to_float64(tensor: torch.Tensor) -> Array:
    """Return the tensor's values, exactly."""
    return tensor.detach().to("cpu", torch.float64).contiguous().numpy()


def dtype_name(tensor: torch.Tensor) -> str:
    """Return the name of the tensor's type, as "float32"."""
    return str(tensor.dtype).removeprefix("torch.")
