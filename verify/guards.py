"""Where a kernel writes and was not to: its arguments before and after, guard zones about all that it allocates."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from verify_norm import memory
from verify_norm.spec import Damage

LIMIT = 2**28  # bytes: a larger buffer gets no guards, and of a larger argument only the elements are compared
HELD = 2**30  # bytes that one call may allocate between guards, all kept to its end; what it allocates then has none
SPARSE = 64  # times as many units as two tensors have: there are too many to mark which are theirs
NARROWEST, WIDEST = 1024, 65536  # bytes of a guard: as wide as its buffer, since what misses often misses by a row
dlpack: Any = importlib.import_module("torch.utils.dlpack")  # which torch does not type

Bits = NDArray[np.uint8]


def _overloads(*names: str) -> frozenset[Any]:
    packets = [getattr(torch.ops.aten, name) for name in names]
    found = [(packet, name) for packet in packets for name in packet.overloads()]
    return frozenset(getattr(packet, name) for packet, name in found if "out" not in name and "names" not in name)


@dataclass(frozen=True, slots=True)
class _Allocation:
    """A buffer of the kernel's: `base` holds a guard, `extent` elements from `front` on, and another guard."""

    name: str
    base: torch.Tensor
    front: int
    extent: int
    address: int


class PoisonEmpty(TorchDispatchMode):
    """Gives the code under it poisoned memory between guard zones, wherever it asks torch for memory.

    What is allocated without being initialized (`torch.empty` and its kin) holds poison, so that reading it before
    writing shows. That and what is allocated with a content (`zeros`, `ones`, `full`, copies) lies in a storage of its
    own, as from torch, with poison before and after it. What torch's own operators allocate inside themselves, and code
    that torch.compile has generated, are out of reach.
    """

    _EMPTY = _overloads("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
    _FRESH = _EMPTY | _overloads(
        "zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like", "new_full", "clone",
        "_to_copy",
    )  # fmt: skip

    def __init__(self, poison: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no type for it
        self._poison = poison
        self._allocations: list[_Allocation] = []
        self._held = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch.compile compile: under a mode that says nothing it runs its function uncompiled, unasked."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        try:
            result = func(*args, **kwargs)
        except RuntimeError as error:
            if "not resizable" not in str(error) or not self._made_resizable((*args, *kwargs.values())):
                raise
            result = func(*args, **kwargs)
        if func not in self._FRESH or type(result) is not torch.Tensor or kwargs.get("pin_memory"):
            return result
        usual = result.layout is torch.strided and result.device.type in ("cpu", "cuda") and not result.is_quantized
        if not usual or result.is_conj() or result.is_neg() or not result.numel():
            return result
        return self._guarded(result, func)

    def _guarded(self, fresh: torch.Tensor, func: Any) -> torch.Tensor:
        """`fresh` between guards; itself, poisoned where it can be, where it is too large or too strange."""
        size, empty = fresh.element_size(), func in self._EMPTY
        extent = 1 + sum((n - 1) * stride for n, stride in zip(fresh.shape, fresh.stride(), strict=True))
        poison = _poison(fresh.dtype, self._poison)
        try:
            if extent * size > LIMIT or self._held + extent * size > HELD:
                # a CPU commits pages as they are touched: only a GPU has them all in any case
                return fresh.fill_(poison) if empty and (fresh.is_cuda or fresh.numel() * size <= LIMIT) else fresh
            front = -(-min(max(extent * size, NARROWEST), WIDEST) // 256) * 256 // size
            base = torch.empty(2 * front + extent, dtype=fresh.dtype, device=fresh.device).fill_(poison)
            middle = base[front : front + extent]
            if not empty:
                middle.copy_(fresh.as_strided((extent,), (1,), fresh.storage_offset()))
            # a tensor that is no view, with a storage that begins and ends as that of `fresh` does
            own: torch.Tensor = dlpack.from_dlpack(dlpack.to_dlpack(middle))
            own.set_(own.untyped_storage(), 0, fresh.shape, fresh.stride())
        except (RuntimeError, NotImplementedError, BufferError):
            return fresh
        self._held += extent * size
        name = f"torch.{func.overloadpacket.__name__.removeprefix('_')} {tuple(fresh.shape)} {memory.dtype_name(fresh)}"
        self._allocations.append(_Allocation(name, base, front, extent, own.data_ptr()))
        return own

    def _made_resizable(self, values: Iterable[Any]) -> bool:
        """Move those of ours out of their guards: they cannot grow there. Whether there were any."""
        addresses = {allocation.address for allocation in self._allocations}
        ours = [t for t in values if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() in addresses]
        for tensor in ours:
            moved = tensor.clone()
            tensor.set_(moved.untyped_storage(), 0, moved.shape, moved.stride())
        return bool(ours)

    def damage(self, outputs: Mapping[str, Any]) -> Iterator[Damage]:
        """What was written into the guards; `outputs` tells which buffers were returned."""
        returned: dict[int, list[str]] = {}
        for name, tensor in outputs.items():
            if tensor is not None:
                returned.setdefault(tensor.untyped_storage().data_ptr(), []).append(name)
        for number, a in enumerate(self._allocations, 1):
            poison = _bits(torch.full_like(a.base[:1], _poison(a.base.dtype, self._poison)))
            end = a.front + a.extent
            sides = {"before": a.base[: a.front], "after": a.base[end:]}
            for where, guard in sides.items():
                wrong = np.flatnonzero((_bits(guard) != poison).any(1))
                if not wrong.size:
                    continue
                names = returned.get(a.address, [])
                buffer = f"{' and '.join(names)}, made by {a.name}" if names else f"{a.name}, allocation {number}"
                away = a.front - 1 - wrong.max() if where == "before" else wrong.min()
                size = a.base.element_size()
                yield Damage(buffer, where, wrong.size * size, int(away) * size, names[0] if names else None)


def _poison(dtype: torch.dtype, poison: float) -> float:
    """What a buffer of this type is filled with. Integers: neither 0 nor 1, which a lock may have to be."""
    if dtype.is_floating_point or dtype.is_complex:
        return poison
    return True if dtype is torch.bool else 7 if math.isnan(poison) else 113


def _bits(flat: torch.Tensor) -> Bits:
    """The bytes of a run of elements, a row an element."""
    return np.asarray(flat.contiguous().view(torch.uint8).cpu().numpy()).reshape(flat.numel(), flat.element_size())


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """An argument as it was: its whole storage, or its elements alone."""

    name: str
    tensor: torch.Tensor
    before: torch.Tensor
    whole: bool


class Arguments:
    """The bits of every argument, its gaps and guards, from before a call."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._taken = []
        for name, tensor in arguments.items():
            if isinstance(tensor, torch.Tensor) and tensor.numel():
                whole = tensor.untyped_storage().nbytes() <= LIMIT
                self._taken.append(_Snapshot(name, tensor.detach(), content(tensor, whole).clone(), whole))

    def damage(self, writable: Iterable[str]) -> Iterator[Damage]:
        """What has changed since; the elements of `writable` arguments may."""
        writable = frozenset(writable)
        for taken in self._taken:
            now = content(taken.tensor, taken.whole)
            if not torch.equal(now, taken.before):
                changed = _changed(taken, now)
                yield from (d for d in changed if not (d.where == "in" and d.buffer in writable))


def content(tensor: torch.Tensor, whole: bool) -> torch.Tensor:
    """The bytes of the tensor's storage, or of its elements alone."""
    if not whole:
        return tensor.detach().contiguous().view(-1).view(torch.uint8)
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _changed(taken: _Snapshot, now: torch.Tensor) -> Iterator[Damage]:
    """Where in an argument's storage elements differ."""
    size = taken.tensor.element_size()
    before, after = (t.cpu().numpy().reshape(-1, size) for t in (taken.before, now))
    changed = np.flatnonzero((before != after).any(1))
    if not taken.whole:
        yield Damage(taken.name, "in", changed.size * size, 0)
        return
    own = np.unique(_offsets(taken.tensor) + int(taken.tensor.storage_offset()))
    place = np.searchsorted(own, changed)  # how many elements lie before
    left = np.where(place > 0, changed - own[place - 1], len(before))
    right = np.where(place < own.size, own[np.minimum(place, own.size - 1)] - changed, len(before))
    inside = right == 0
    wheres = {
        "in": inside,
        "before": (place == 0) & ~inside,
        "after": place == own.size,
        "between": (place > 0) & (place < own.size) & ~inside,
    }
    for where, these in wheres.items():
        if these.any():
            away = np.minimum(left, right)[these].min() - (where != "in")
            yield Damage(taken.name, where, int(these.sum()) * size, int(away) * size)


def _offsets(tensor: torch.Tensor) -> NDArray[np.int64]:
    """Where each element lies, in elements from the first."""
    at = np.zeros((), np.int64)
    for n, stride in zip(tensor.shape, tensor.stride(), strict=True):
        at = np.add.outer(at, np.arange(n, dtype=np.int64) * stride)
    return at.ravel()


def overlaps(outputs: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every output that has bytes in common with an argument, or with an output before it: (output, the other)."""
    seen = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    earlier: dict[str, torch.Tensor] = {}
    for name, output in outputs.items():
        if isinstance(output, torch.Tensor):
            for other, tensor in (*seen.items(), *earlier.items()):
                if _overlap(output, tensor):
                    yield name, other
            earlier[name] = output


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.layout is not torch.strided or not (a.numel() and b.numel()) or a.device != b.device:
        return False
    extents = [1 + sum((n - 1) * stride for n, stride in zip(t.shape, t.stride(), strict=True)) for t in (a, b)]
    low = max(a.data_ptr(), b.data_ptr())
    high = min(t.data_ptr() + n * t.element_size() for t, n in zip((a, b), extents, strict=True))
    if low >= high:
        return False
    if all(_without_gaps(t) for t in (a, b)):
        return True
    unit = math.gcd(a.element_size(), b.element_size(), a.data_ptr(), b.data_ptr())
    first, second = (_units(t, unit, low, high) for t in (a, b))
    size = (high - low) // unit
    if size > SPARSE * (first.size + second.size):
        return bool(np.intersect1d(first, second).size)
    there = np.zeros(size, bool)
    there[first] = True
    return bool(there[second].any())


def _without_gaps(tensor: torch.Tensor) -> bool:
    """Whether every element between the tensor's first and last is its own, once."""
    size = 1
    for stride, n in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if n > 1 and stride != size:
            return False
        size *= n
    return True


def _units(tensor: torch.Tensor, unit: int, low: int, high: int) -> NDArray[np.int64]:
    """Which of the units from one address to another are the tensor's, counted from the first."""
    each = np.arange(0, tensor.element_size(), unit)
    at = np.add.outer(tensor.data_ptr() - low + _offsets(tensor) * tensor.element_size(), each).ravel()
    return np.asarray(at[(at >= 0) & (at < high - low)] // unit)
