"""Memory that the judge shares with an untrusted kernel: there the arguments of a call lie, gaps and guards included.

The judge copies them in before a call and copies them back after it, so it sees what the kernel has written, and a
kernel that writes later writes into nothing that is still read. The memory is a file without a name, sealed: nobody can
shorten it, which would end a process that reads it. With a GPU it is the host's memory, and the worker copies.
"""

import fcntl
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from verify_norm.cases.contents import bytes_of, dtype_name, overwrite
from verify_norm.running.argument_writes import LIMIT

SIZE = 2**38  # bytes of address space; pages exist once they are touched
ALIGNED = 4096  # bytes: a storage begins at a page, as a large one of malloc's does
KEPT = 2**28  # bytes: if a call has used more, all pages go back to the system after it


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a tensor lies: the first byte and the size of its storage, and the layout of its elements in it."""

    at: int
    size: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    grad: bool

    @property
    def whole(self) -> bool:
        """Return whether the whole storage is copied: of a very large one, only the elements."""
        return self.size <= LIMIT


class Arena:
    """The shared memory, of the judge or, given its file, of the worker."""

    def __init__(self, file: int | None = None) -> None:
        self.file = _sealed() if file is None else file
        self._pages = mmap.mmap(self.file, SIZE)
        self.bytes = torch.frombuffer(self._pages, dtype=torch.uint8)

    def slots(self, arguments: Mapping[str, Any]) -> dict[str, Slot]:
        """Return a slot for each tensor; two tensors of one storage share its bytes."""
        slots: dict[str, Slot] = {}
        places: dict[int, int] = {}
        free = 0
        for name, tensor in arguments.items():
            if not isinstance(tensor, torch.Tensor):
                continue
            size, address = tensor.untyped_storage().nbytes(), tensor.untyped_storage().data_ptr()
            if address not in places or not size:
                places[address] = free
                free += -(-size // ALIGNED) * ALIGNED
            dtype, where = dtype_name(tensor), (tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))
            slots[name] = Slot(places[address], size, dtype, *where, tensor.requires_grad)
        return slots

    def write(self, slots: Mapping[str, Slot], arguments: Mapping[str, Any]) -> None:
        """Copy the tensors in."""
        for name, slot in slots.items():
            self.copy(slot, self.tensor(slot), arguments[name])

    def read(self, slots: Mapping[str, Slot], arguments: Mapping[str, Any]) -> None:
        """Copy the tensors back; torch does not count it as a new version of them."""
        for name, slot in slots.items():
            self.copy(slot, arguments[name], self.tensor(slot))
        if max((slot.at + slot.size for slot in slots.values()), default=0) > KEPT:
            self._pages.madvise(mmap.MADV_REMOVE)

    def tensor(self, slot: Slot) -> torch.Tensor:
        """Return the tensor in the shared memory; its storage begins and ends as that of the judge's tensor."""
        dtype = getattr(torch, slot.dtype)
        if not slot.size:
            return torch.empty(0, dtype=dtype).as_strided(slot.shape, slot.stride)
        storage = torch.frombuffer(self._pages, dtype=torch.uint8, count=slot.size, offset=slot.at).untyped_storage()
        tensor: torch.Tensor = torch.empty(0, dtype=dtype).set_(storage, slot.offset, slot.shape, slot.stride)
        return tensor

    def copy(self, slot: Slot, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy one of two tensors that lie alike to the other: the whole storage, or of a large one its elements."""
        if slot.whole:
            bytes_of(target, True).copy_(bytes_of(source, True))
        elif source.numel():
            overwrite(target.detach(), source.detach())

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor lies in the shared memory."""
        return 0 <= tensor.untyped_storage().data_ptr() - self.bytes.data_ptr() < SIZE

    def close(self) -> None:
        """Give the memory back; tensors in it keep it as long as they live."""
        del self.bytes
        os.close(self.file)


def _sealed() -> int:
    file = os.memfd_create("verify-norm", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, SIZE)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return file
