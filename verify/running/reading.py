"""Reads what a call has returned: as plain tensors, with the signs that they are computed only when they are read."""

import gc
from collections.abc import Mapping
from types import FunctionType, ModuleType
from typing import Any

import torch

from verify_norm.cases import contents
from verify_norm.cases.transfer import copied
from verify_norm.core.op import Op
from verify_norm.loading.returned import by_name, disguise, readable

Evasions = tuple[tuple[str | None, str], ...]  # as in Run
CONTAINERS = (torch.Tensor, torch.nn.Parameter, tuple, list, dict)  # unpacking them runs no code of the kernel
COPIED = 2**26  # bytes: of larger outputs no copy is made
REACHED = 1000  # objects of a container that are looked at


def read(returned: Any, op: Op) -> tuple[dict[str, Any] | str, Evasions]:
    """Return the outputs as plain tensors, or in words what is wrong with them, and the call's evasions."""
    before = None if type(returned) in CONTAINERS else _storages(returned)
    outputs = by_name(returned, op)
    evasions: list[tuple[str | None, str]] = []
    if isinstance(outputs, str):
        return outputs, ()
    if before is not None:
        late = [name for name, value in outputs.items() if not _was_there(value, before)]
        if late:
            kind = type(returned).__name__
            words = f"it makes {' and '.join(late)} only when what it returned, a {kind}, is unpacked"
            evasions.append((None, words))
    for name, value in outputs.items():
        words = disguise(value)
        if words:
            evasions.append((name, f"{name} {words}"))
    return readable(outputs), tuple(evasions)


def _storages(returned: Any) -> dict[int, torch.Tensor]:
    """Return a copy of the bytes of each storage that a container refers to, at any depth, by its address."""
    copies, seen, waiting = dict[int, torch.Tensor](), set[int](), [returned]
    while waiting and len(seen) < REACHED:
        item = waiting.pop(0)
        if id(item) in seen or isinstance(item, (type, ModuleType, FunctionType)):
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            if item.layout is torch.strided and 0 < item.untyped_storage().nbytes() <= COPIED:
                copies[item.untyped_storage().data_ptr()] = contents.bytes_of(item, whole=True).clone()
        else:
            waiting += gc.get_referents(item)
    return copies


def _was_there(value: Any, before: Mapping[int, torch.Tensor]) -> bool:
    """Return whether a storage held an output's bytes before; True if it has no bytes, or too many to be copied."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or not value.numel():
        return True
    storage = value.untyped_storage()
    copy = before.get(storage.data_ptr())
    if copy is None:
        return storage.nbytes() > COPIED
    return torch.equal(contents.bytes_of(value, whole=True), copy)


def output_bytes(outputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return a copy of the bytes of each output: work that ends after the call changes the output, not the copy."""
    tensors = {
        name: contents.bytes_of(value, whole=False)
        for name, value in outputs.items()
        if value is not None and not value.is_meta and value.nbytes <= COPIED
    }
    return dict(zip(tensors, copied(list(tensors.values())), strict=True))
