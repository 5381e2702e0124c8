"""Tensors in hostile memory: any layout, poison in every gap, and guard zones on both sides."""

import mmap
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import torch

from verify_norm.cases import address_space
from verify_norm.cases.device_array import apart
from verify_norm.cases.gpu_memory import kept
from verify_norm.cases.transfer import sent
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.layouts import VECTOR, memory_span

GAP = 3  # elements: an odd gap, in which rows lose their alignment
WHOLE = 64  # elements: a gap in which they keep it
GUARD = 64  # elements on each side: more than one vector load, less than what would cost time
BEYOND = 2**16  # elements: an offset that 16 bits do not hold
# Elements beyond it where rows are whole vectors, by their length: half a vector in a type of 16 or 32 bits, or
# an odd address. Rows alone must lie as they lie among others, so the number of rows has no say.
MISALIGNED = (4, 2, 1, 1)
FAR = 2**31  # elements: the first offset that 32 bits do not hold
FAR_ROWS = 1024  # at most: each touches a page of memory or two

# along which dimensions a layout repeats what it holds, and the rank beyond which it does
REPEATED = {
    "expanded": (1, slice(0, 1)),
    "expanded_last": (1, slice(-1, None)),
    "expanded_middle": (2, slice(1, -1)),
    "expanded_inner": (2, slice(2, None)),
}

_TORCH = {name: getattr(torch, name) for name in FORMATS if hasattr(torch, name)}
_BITS = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}  # torch takes bits, not ml_dtypes


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a tensor lies in its storage: strides, index of the first element, and extent, all in elements."""

    strides: tuple[int, ...]
    offset: int
    extent: int


@lru_cache(2**12)  # cases ask some hundred times
def placement(shape: tuple[int, ...], layout: str) -> Placement:
    """Return how `layout` places a tensor of this shape; contiguous if the layout does not apply to the shape.

    "expanded_last" repeats one value along the last dimension, such as `t[:, None].expand(M, N)`. "expanded_middle"
    repeats the rows of one index of the first dimension, such as the gradient of `.sum(1)`, "expanded_inner" one value
    along all dimensions behind the second, such as the gradient of a sum over positions. "sequence_slice" is
    `t[:, :S]` of a longer t, "channel_slice" the same of a tensor in channels_last. "swapped" is `t.transpose(0, 1)`,
    as of a sequence-first t, "swapped_last" `t.transpose(-2, -1)`, both dense; so is "heads_first", `t.transpose(1, 2)`
    of four and more dimensions, as the heads of an attention or the frames of a video. "inner_slice" is
    `t[..., :H, :]`, as the heads of q in a fused projection, or a part of an image. "own" is a storage of exactly these
    elements, without guards, as users have it: a kernel cannot tell by it that it is tested.

    "offset" begins beyond 2¹⁶ elements, at an odd one or at half a vector. The gaps of "row_strided" are odd, or whole
    vectors where rows are. The number of rows changes neither. "loose" is contiguous, with a stride of 0 along each
    dimension of at most one element, which torch leaves open, such as `t.expand(M, N)[:1]`.

    "far" puts the last index of the first dimension beyond 2³¹ elements. With two indices the stride itself needs 64
    bits; with more the stride fits 32 bits and its product with the index does not. A product that wraps is negative:
    2³¹ elements lie before the first, so a wrong offset reads a wrong value instead of crashing.

    >>> placement((2, 3), "transposed").strides
    (1, 2)
    >>> placement((2, 3), "row_strided").strides
    (6, 1)
    >>> placement((3, 4), "far").strides
    (1074987008, 1)
    >>> placement((3, 4), "expanded_last").strides, placement((2, 4, 5), "channel_slice").strides
    ((1, 0), (35, 1, 7))
    >>> [placement((2, 3, 4, 5), layout).strides for layout in ("expanded_middle", "expanded_inner")]
    [(5, 0, 0, 1), (3, 1, 0, 0)]
    >>> [placement((2, 3, 4, 5), layout).strides for layout in ("swapped", "swapped_last", "heads_first")]
    [(20, 40, 5, 1), (60, 20, 1, 4), (60, 5, 15, 1)]
    """
    rank = len(shape)
    order = tuple(range(rank))  # from the slowest dimension to the fastest
    padded = list(shape)
    step, front, repeated = 1, GUARD, range(0)
    if layout == "transposed":
        order = order[::-1]
    elif layout in ("channels_last", "channel_slice") and rank > 2:
        order = (0, *range(2, rank), 1)
    elif layout == "swapped" and rank > 2:
        order = (1, 0, *range(2, rank))
    elif layout == "swapped_last" and rank > 2:
        order = (*range(rank - 2), rank - 1, rank - 2)
    elif layout == "heads_first" and rank > 3:
        order = (0, 2, 1, *range(3, rank))
    if layout in ("sequence_slice", "channel_slice") and rank > 2:
        padded[1] += GAP
    elif layout == "inner_slice" and rank > 2:
        padded[-2] += GAP
    elif layout in REPEATED and rank > REPEATED[layout][0]:
        repeated = range(rank)[REPEATED[layout][1]]
        padded = [1 if axis in repeated else n for axis, n in enumerate(shape)]
    elif layout == "row_strided" and rank > 1:
        padded[-1] += WHOLE if shape[-1] % VECTOR == _turn(shape[-1]) % 2 == 0 else GAP
    elif layout == "every_other":
        step = 2
    elif layout == "offset":
        front += BEYOND + (MISALIGNED[_turn(shape[-1]) % 4] if shape and shape[-1] % VECTOR == 0 else 1)
    elif layout == "own":
        front = 0
    strides, size = [0] * rank, step
    for axis in reversed(order):
        strides[axis] = size
        size *= max(padded[axis], 1)
    if repeated:
        strides = [0 if axis in repeated else stride for axis, stride in enumerate(strides)]
    elif layout == "scalar":
        strides = [0] * rank
    elif layout == "loose":
        strides = [stride if n > 1 else 0 for n, stride in zip(shape, strides, strict=True)]
    if layout == "far" and spreads(shape):
        strides[0] = _far_stride(shape[0], size // shape[0])
        front += FAR
    return Placement(tuple(strides), front, memory_span(shape, strides))


def _far_stride(rows: int, length: int) -> int:
    """Return the elements from row to row, of which the last begins beyond FAR."""
    least = -(-FAR // (rows - 1))
    step = address_space.step(rows, length + GUARD)
    if step is None:
        return max(length, -(-least // GUARD) * GUARD)
    return (-(-least // step) | 1) * step


def _turn(length: int) -> int:
    """Return a number by which lengths take turns, multiples and powers of two as well.

    >>> [_turn(n) % 4 for n in (8, 16, 24, 32, 64, 128)]
    [1, 3, 0, 2, 3, 0]
    """
    return length // VECTOR + length.bit_length()


def applies(layout: str, shape: tuple[int, ...]) -> bool:
    """Return whether the layout places a tensor of this shape otherwise than a contiguous one.

    >>> applies("transposed", (3,)), applies("transposed", (3, 2))
    (False, True)
    """
    return placement(shape, layout) != placement(shape, "contiguous")


def spreads(shape: tuple[int, ...]) -> bool:
    """Return whether the layout "far" applies to the shape."""
    return len(shape) > 1 and 1 < shape[0] <= FAR_ROWS and prod(shape) > 0


def in_block(shape: tuple[int, ...]) -> bool:
    """Return whether rows that are "far" fit into one block of a GPU's memory, and its driver is known."""
    fits = spreads(shape) and address_space.step(shape[0], prod(shape[1:]) + GUARD) is not None
    return fits and address_space.driver() is not None


def shared(values: Array, layout: str) -> Array:
    """Return the values that a tensor of this layout can hold: along a stride of 0 all are equal."""
    strides = placement(values.shape, layout).strides
    return values if 0 not in strides else np.array(np.broadcast_to(values[apart(strides)], values.shape))


def distinct(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Return the shape of the elements that have memory of their own.

    >>> distinct((3, 4), "expanded")
    (1, 4)
    """
    strides = placement(shape, layout).strides
    return tuple(min(n, 1) if stride == 0 else n for n, stride in zip(shape, strides, strict=True))


def place(values: Any, dtype: str, layout: str, poison: float, device: str) -> torch.Tensor:
    """Return a tensor that holds `values`, numbers of the format `dtype`, in `layout`; other elements are `poison`.

    On a CPU the gaps of "far" hold zeros and take no memory. On a GPU rows that fit into it share one block of memory
    with their gaps. If they do not fit into memory, the tensor is contiguous.
    """
    form = FORMATS[dtype]
    where = placement(values.shape, layout)
    size = where.offset + where.extent + GUARD
    if where.offset > FAR:
        room = _block(values.shape, size, dtype, poison, device)
        room = _untouched(size, dtype, device) if room is None else room
        if room is None:
            return place(values, dtype, "contiguous", poison, device)
        far = room.as_strided(values.shape, where.strides, where.offset)
        far.copy_(place(values, dtype, "own", poison, device))
        return far
    if not isinstance(values, np.ndarray):
        whole = torch.full((size,), poison, dtype=torch.float64, device=device).to(_TORCH[dtype])
        held = whole.as_strided(values.shape, where.strides, where.offset)
        held[apart(where.strides)] = values.tensor[apart(where.strides)]
        return held if layout != "own" else held.clone()
    with np.errstate(invalid="ignore"):  # NumPy warns about signalling NaN
        base = np.full(size, poison, dtype=form.dtype)
        bits, bytestrides = base.view(_BITS[base.itemsize]), tuple(stride * base.itemsize for stride in where.strides)
        np.ndarray(values.shape, base.dtype, bits, where.offset * base.itemsize, bytestrides)[...] = values
    if torch.device(device).type != "cpu":
        return sent([place(values, dtype, layout, poison, "cpu")], device)[0]
    storage = torch.from_numpy(bits).view(_TORCH[dtype])
    if layout == "own":
        return storage[: values.size].reshape(values.shape).clone()  # not a view, in memory that torch allocated
    return storage.as_strided(values.shape, where.strides, where.offset)


def place_all(
    wanted: Mapping[str, tuple[Any, str, str]], poison: float, device: str, together: Sequence[str] = ()
) -> dict[str, torch.Tensor]:
    """Return `place` of the values, format and layout of each name; what NumPy makes goes to a GPU at once.

    Two names that are `together` are the chunks of one contiguous tensor.
    """
    both = [wanted[name] for name in together]
    if both and all(isinstance(values, np.ndarray) for values, *_ in both):
        joined = np.concatenate([values for values, *_ in both], axis=-1), both[0][1], "contiguous"
        rest = {name: one for name, one in wanted.items() if name not in together}
        placed = place_all({**rest, together[0]: joined}, poison, device)
        return placed | dict(zip(together, placed[together[0]].chunk(2, -1), strict=True))
    made = {
        name: place(*one, poison, "cpu")
        for name, one in wanted.items()
        if isinstance(one[0], np.ndarray) and placement(one[0].shape, one[2]).offset <= FAR
    }
    if torch.device(device).type != "cpu":
        made = dict(zip(made, sent(list(made.values()), device), strict=True))
    return made | {name: place(*one, poison, device) for name, one in wanted.items() if name not in made}


def _block(shape: tuple[int, ...], size: int, dtype: str, poison: float, device: str) -> torch.Tensor | None:
    """Return `size` elements of address space of a GPU, all poison, for rows that share a block; None if none do."""
    kind = _TORCH[dtype]
    space = address_space.lent(size * kind.itemsize, device) if in_block(shape) else None
    if space is None:
        return None
    elements = space.view(kind)
    # from the GPU's own memory: a number of the host's would be copied there once for each element
    element = torch.full((), poison, dtype=torch.float64, device=device).to(kind)
    elements[: address_space.BLOCK // kind.itemsize] = element
    return elements


def _untouched(size: int, dtype: str, device: str) -> torch.Tensor | None:
    """Return `size` elements of address space, not initialized; None if they do not fit.

    A CPU allocates a page when it is touched. The mapping is shared and without a reservation, so neither Linux's
    accounting nor a limit on a process's data counts it. A GPU allocates all of it: at most half of its free memory.
    """
    wanted = size * _TORCH[dtype].itemsize
    try:
        if torch.device(device).type != "cpu":
            free = torch.cuda.mem_get_info(device)[0] + kept(device)
            return torch.empty(size, dtype=_TORCH[dtype], device=device) if 2 * wanted <= free else None
        if sys.platform != "linux":
            return None
        without_reservation = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python names it from 3.13 on
        pages = mmap.mmap(-1, wanted, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | without_reservation)
        return torch.frombuffer(pages, dtype=_TORCH[dtype])  # the tensor keeps the mapping alive
    except (OSError, ValueError, torch.OutOfMemoryError):
        return None
