"""Finds illegal uses of the memory that a kernel allocates: writes beside it into guards, reads of its poison."""

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
from verify_norm.cases.one_thread import one_thread
from verify_norm.core.layouts import memory_span
from verify_norm.core.run import Damage
from verify_norm.running.argument_writes import LIMIT
from verify_norm.running.operators import Operators

HELD = 2**30  # bytes of guarded buffers in one call, which are kept to its end; beyond it buffers have no guards
NARROWEST, WIDEST = 1024, 65536  # bytes of a guard: between them, as wide as the buffer, since writes miss by a row
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of an element
dlpack: Any = importlib.import_module("torch.utils.dlpack")  # torch has no types for it


def _overloads(*names: str) -> frozenset[Any]:
    """Return the overloads of torch's operators of these names that allocate their result themselves."""
    overloads = set()
    for operator in (getattr(torch.ops.aten, name) for name in names):
        for name in operator.overloads():
            if "out" not in name and "names" not in name:
                overloads.add(getattr(operator, name))
    return frozenset(overloads)


@dataclass(frozen=True, slots=True)
class _Allocation:
    """A buffer of the kernel. `base` holds a guard of `front` elements, `extent` elements, and another guard."""

    name: str
    base: torch.Tensor
    front: int
    extent: int
    address: int


class PoisonEmpty(TorchDispatchMode):
    """A mode in which torch allocates poisoned memory between guard zones.

    Uninitialized tensors (`torch.empty` and the like) hold poison, so a read before a write shows in the results. They
    and initialized tensors (`zeros`, `ones`, `full`, copies) have a storage of their own, as from torch, with poison
    before and after it. Allocations inside torch's operators and in code by torch.compile have no guards. `operators`
    collects the norm operators of torch that run.
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

    @one_thread()
    def _guarded(self, fresh: torch.Tensor, func: Any) -> torch.Tensor:
        """Return a copy of `fresh` between guards; if it is too large or unusual, itself, poisoned if possible."""
        size, empty = fresh.element_size(), func in self._EMPTY
        extent = memory_span(fresh.shape, fresh.stride())
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
        tensors = (value for value in values if isinstance(value, torch.Tensor))
        guarded = [tensor for tensor in tensors if tensor.untyped_storage().data_ptr() in addresses]
        for tensor in guarded:
            moved = tensor.clone()
            tensor.set_(moved.untyped_storage(), 0, moved.shape, moved.stride())
        return bool(guarded)

    def damage(self, outputs: Mapping[str, Any]) -> Iterator[Damage]:
        """Yield what was written into the guards; buffers of returned `outputs` are named after these."""
        if self._intact():
            return
        returned: dict[int, list[str]] = {}
        for name, tensor in outputs.items():
            if tensor is not None:
                returned.setdefault(tensor.untyped_storage().data_ptr(), []).append(name)
        for number, allocation in enumerate(self._allocations, 1):
            base, front = allocation.base, allocation.front
            poison = _poison_bits(base.dtype, self._poison)
            guards = {"before": base[:front], "after": base[front + allocation.extent :]}
            for where, guard in guards.items():
                written = np.flatnonzero((_bits(guard) != poison).any(1))
                if not written.size:
                    continue
                names = returned.get(allocation.address, [])
                buffer = f"{allocation.name}, allocation {number}"
                if names:
                    buffer = f"{' and '.join(names)}, made by {allocation.name}"
                distance = front - 1 - written.max() if where == "before" else written.min()
                size = base.element_size()
                output = names[0] if names else None
                yield Damage(buffer, where, written.size * size, int(distance) * size, output)

    @one_thread()
    def _intact(self) -> bool:
        """Return whether all guards hold poison: in one comparison a device and type, since each waits for the GPU."""
        guards: defaultdict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = defaultdict(list)
        for allocation in self._allocations:
            kind = INTEGERS.get(allocation.base.element_size())
            if kind is None:  # complex128
                return False
            base, front = allocation.base.view(kind), allocation.front
            guards[allocation.base.dtype, base.device] += [base[:front], base[front + allocation.extent :]]
        written: defaultdict[torch.device, list[torch.Tensor]] = defaultdict(list)
        for (dtype, device), tensors in guards.items():
            written[device].append((torch.cat(tensors) != _poison_integer(dtype, self._poison)).any())
        return not any(bool(torch.stack(flags).any()) for flags in written.values())


def _poison(dtype: torch.dtype, poison: float) -> float:
    """Return the fill value of a buffer of this type; an integer is neither 0 nor 1, the usual values of a lock."""
    if dtype.is_floating_point or dtype.is_complex:
        return poison
    if dtype is torch.bool:
        return True
    return 7 if math.isnan(poison) else 113


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
