"""Finds illegal writes of a kernel: compares its arguments before and after, and guards all that it allocates."""

import importlib
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from verify_norm.cases import contents
from verify_norm.cases.transfer import copied, different
from verify_norm.core import geometry
from verify_norm.core.run import Damage
from verify_norm.running.operators import Operators

LIMIT = 2**28  # bytes: a larger buffer has no guards; of a larger argument only the elements are compared
TOO_HARD = 2  # torch's answer to whether a tensor overlaps itself, where strides do not tell
COUNTED = 2**20  # elements whose addresses are compared
HELD = 2**30  # bytes of guarded buffers in one call, which all live to its end; later buffers have no guards
NARROWEST, WIDEST = 1024, 65536  # bytes of a guard: as wide as its buffer, because a wrong write is often off by a row
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of an element
dlpack: Any = importlib.import_module("torch.utils.dlpack")  # torch has no types for it


def _overloads(*names: str) -> frozenset[Any]:
    packets = [getattr(torch.ops.aten, name) for name in names]
    found = [(packet, name) for packet in packets for name in packet.overloads()]
    return frozenset(getattr(packet, name) for packet, name in found if "out" not in name and "names" not in name)


@dataclass(frozen=True, slots=True)
class _Allocation:
    """A buffer of the kernel: `base` holds a guard, `extent` elements from `front` on, and another guard."""

    name: str
    base: torch.Tensor
    front: int
    extent: int
    address: int


class PoisonEmpty(TorchDispatchMode):
    """A mode in which torch allocates poisoned memory between guard zones.

    Uninitialized tensors (`torch.empty` and the like) hold poison: reading them before writing shows. They and
    initialized tensors (`zeros`, `ones`, `full`, copies) have a storage of their own, as from torch, with poison before
    and after it. Allocations inside torch's operators and in code by torch.compile are not guarded. `operators` has the
    norm operators of torch among those that ran.
    """

    _EMPTY = _overloads(*("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"))
    _FRESH = _EMPTY | _overloads(
        *("zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like", "new_full"),
        *("clone", "_to_copy"),
    )

    def __init__(self, poison: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no type for it
        self._poison = poison
        self._allocations: list[_Allocation] = []
        self._held = 0
        self.operators = Operators()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: in other modes torch.compile runs its function uncompiled."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        try:
            result = func(*args, **kwargs)
        except RuntimeError as error:
            if "not resizable" not in str(error) or not self._made_resizable((*args, *kwargs.values())):
                raise
            result = func(*args, **kwargs)
        self.operators.enter(func)
        if func not in self._FRESH or type(result) is not torch.Tensor or kwargs.get("pin_memory"):
            return result
        usual = result.layout is torch.strided and result.device.type in ("cpu", "cuda") and not result.is_quantized
        if not usual or result.is_conj() or result.is_neg() or not result.numel():
            return result
        return self._guarded(result, func)

    def _guarded(self, fresh: torch.Tensor, func: Any) -> torch.Tensor:
        """Return `fresh` between guards; itself, poisoned if possible, if it is too large or of an unusual kind."""
        size, empty = fresh.element_size(), func in self._EMPTY
        extent = geometry.memory_span(fresh.shape, fresh.stride())
        poison = _poison(fresh.dtype, self._poison)
        try:
            if extent * size > LIMIT or self._held + extent * size > HELD:
                # a CPU commits pages when they are touched: only a GPU has committed all of them
                return fresh.fill_(poison) if empty and (fresh.is_cuda or fresh.numel() * size <= LIMIT) else fresh
            front = -(-min(max(extent * size, NARROWEST), WIDEST) // 256) * 256 // size
            base = torch.empty(2 * front + extent, dtype=fresh.dtype, device=fresh.device).fill_(poison)
            middle = base[front : front + extent]
            if not empty:
                middle.copy_(fresh.as_strided((extent,), (1,), fresh.storage_offset()))
            # not a view: its storage begins and ends like that of `fresh`
            own: torch.Tensor = dlpack.from_dlpack(dlpack.to_dlpack(middle))
            own.set_(own.untyped_storage(), 0, fresh.shape, fresh.stride())
        except (RuntimeError, NotImplementedError, BufferError):
            return fresh
        self._held += extent * size
        maker = func.overloadpacket.__name__.removeprefix("_")
        name = f"torch.{maker} {tuple(fresh.shape)} {contents.dtype_name(fresh)}"
        self._allocations.append(_Allocation(name, base, front, extent, own.data_ptr()))
        return own

    def _made_resizable(self, values: Iterable[Any]) -> bool:
        """Move guarded tensors out of their guards, where they cannot grow; return whether there are any."""
        addresses = {allocation.address for allocation in self._allocations}
        ours = [t for t in values if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() in addresses]
        for tensor in ours:
            moved = tensor.clone()
            tensor.set_(moved.untyped_storage(), 0, moved.shape, moved.stride())
        return bool(ours)

    def damage(self, outputs: Mapping[str, Any]) -> Iterator[Damage]:
        """Yield what was written into the guards; `outputs` tells which buffers were returned."""
        if self._intact():
            return
        returned: dict[int, list[str]] = {}
        for name, tensor in outputs.items():
            if tensor is not None:
                returned.setdefault(tensor.untyped_storage().data_ptr(), []).append(name)
        for number, a in enumerate(self._allocations, 1):
            poison = _poison_bits(a.base.dtype, self._poison)
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

    def _intact(self) -> bool:
        """Return whether all guards hold poison, as nearly always: in one look, since each waits for the GPU."""
        guards: defaultdict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = defaultdict(list)
        for a in self._allocations:
            kind = INTEGERS.get(a.base.element_size())
            if kind is None:  # complex128
                return False
            whole = a.base.view(kind)
            guards[a.base.dtype, a.base.device] += [whole[: a.front], whole[a.front + a.extent :]]
        wrong = defaultdict[torch.device, list[torch.Tensor]](list)
        for (dtype, device), some in guards.items():
            wrong[device].append((torch.cat(some) != _poison_integer(dtype, self._poison)).any())
        return not any(bool(torch.stack(some).any()) for some in wrong.values())


def _poison(dtype: torch.dtype, poison: float) -> float:
    """Return the fill value of a buffer of this type; an integer is neither 0 nor 1, the usual values of a lock."""
    if dtype.is_floating_point or dtype.is_complex:
        return poison
    return True if dtype is torch.bool else 7 if math.isnan(poison) else 113


@cache
def _poison_bits(dtype: torch.dtype, poison: float) -> NDArray[np.uint8]:
    """Return the bytes of one poisoned element of a buffer of this type."""
    return _bits(torch.full((1,), _poison(dtype, poison), dtype=dtype))


@cache
def _poison_integer(dtype: torch.dtype, poison: float) -> int:
    """Return the same bytes as an integer of INTEGERS."""
    return int(torch.full((1,), _poison(dtype, poison), dtype=dtype).view(INTEGERS[dtype.itemsize]).item())


def _bits(flat: torch.Tensor) -> NDArray[np.uint8]:
    """Return the bytes of a run of elements, one row per element."""
    return np.asarray(flat.contiguous().view(torch.uint8).cpu().numpy()).reshape(flat.numel(), flat.element_size())


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """An argument before the call: its whole storage, or only its elements."""

    name: str
    tensor: torch.Tensor
    before: torch.Tensor
    whole: bool


class Arguments:
    """The bits of every argument before a call, with its gaps and guards."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        some = {n: t.detach() for n, t in arguments.items() if isinstance(t, torch.Tensor) and t.numel()}
        whole = {name: tensor.untyped_storage().nbytes() <= LIMIT for name, tensor in some.items()}
        before = copied([content(tensor, whole[name]) for name, tensor in some.items()])
        self._taken = [_Snapshot(n, t, held, whole[n]) for (n, t), held in zip(some.items(), before, strict=True)]

    def damage(self, writable: Iterable[str]) -> Iterator[Damage]:
        """Yield what has changed since then; elements of `writable` arguments may change."""
        writable = frozenset(writable)
        before = [taken.before for taken in self._taken]
        now = [content(t.tensor, t.whole)[: t.before.numel()] for t in self._taken]  # `effects` reports more memory
        for number in different(now, before):
            taken, held = self._taken[number], now[number]
            if lost := taken.before.numel() - held.numel():
                yield Damage(taken.name, "in", lost, 0)
            else:
                changed = _changed(taken, held)
                yield from (d for d in changed if not (d.where == "in" and d.buffer in writable))


def content(tensor: torch.Tensor, whole: bool) -> torch.Tensor:
    """Return the bytes of the tensor's storage, or only of its elements."""
    if not whole:
        dense = tensor.detach().contiguous()  # of one element with any strides
        return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _changed(taken: _Snapshot, now: torch.Tensor) -> Iterator[Damage]:
    size = taken.tensor.element_size()
    before, after = (t.cpu().numpy().reshape(-1, size) for t in (taken.before, now))
    changed = np.flatnonzero((before != after).any(1))
    if not taken.whole:
        yield Damage(taken.name, "in", changed.size * size, 0)
        return
    own = np.unique(_offsets(taken.tensor) + int(taken.tensor.storage_offset()))
    place = np.searchsorted(own, changed)  # the number of own elements before it
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


def overlaps(outputs: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield every output that shares bytes with an argument or an earlier output, as (output, the other)."""
    seen = [(name, value, _reach(value)) for name, value in arguments.items() if isinstance(value, torch.Tensor)]
    for name, output in outputs.items():
        if isinstance(output, torch.Tensor):
            own = _reach(output)
            near = ((other, tensor) for other, tensor, its in seen if own.start < its.stop and its.start < own.stop)
            yield from ((name, other) for other, tensor in near if _overlap(output, tensor))
            seen.append((name, output, own))


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Return whether two elements of a tensor share memory; False where that takes long to tell.

    >>> overlaps_itself(torch.zeros(3).expand(2, 3)), overlaps_itself(torch.zeros(4).as_strided((3, 2), (1, 1)))
    (True, True)
    >>> overlaps_itself(torch.zeros(3, 2).t()), overlaps_itself(torch.zeros(9).as_strided((2, 3), (3, 2)))
    (False, False)
    """
    known = torch._debug_has_internal_overlap(tensor)  # 0: no, 1: yes, 2: too hard
    if known != TOO_HARD or tensor.numel() > COUNTED:
        return bool(known == 1)
    return int(np.unique(_offsets(tensor)).size) < tensor.numel()


def _offsets(tensor: torch.Tensor) -> Any:
    """Return how many elements each element is behind the first one, in memory."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return sum(np.ix_(*(np.arange(n) * stride for n, stride in steps)))


def _reach(tensor: torch.Tensor) -> range:
    """Return the addresses from a tensor's first byte to its last."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return range(0)
    first = tensor.data_ptr()
    return range(first, first + geometry.memory_span(tensor.shape, tensor.stride()) * tensor.element_size())


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors that reach into each other share a byte."""
    return a.device == b.device and bool(np.shares_memory(np.asarray(_Addresses(a)), np.asarray(_Addresses(b))))


class _Addresses:
    """A tensor's addresses as an array: NumPy compares them, and reads no memory, which may be a GPU's."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{size}",
            "data": (tensor.data_ptr(), False),
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * size for stride in tensor.stride()),
        }
