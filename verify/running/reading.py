"""Reads what a call has returned: as plain tensors, with what shows that they were not there, or do not stay."""

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
CONTAINERS = (torch.Tensor, torch.nn.Parameter, tuple, list, dict)  # to unpack them runs no code of the kernel
HELD = 2**26  # bytes of an output: of larger ones no copy is kept
REACHED = 1000  # objects that a container may consist of


def read(returned: Any, op: Op) -> tuple[dict[str, Any] | str, Evasions]:
    """Return the outputs as plain tensors, or what is wrong with them, and what they do when they are read."""
    held = None if type(returned) in CONTAINERS else _held(returned)
    found = by_name(returned, op)
    evasions: list[tuple[str | None, str]] = []
    if isinstance(found, str):
        return found, ()
    if held is not None and (late := [name for name, value in found.items() if not _was_there(value, held)]):
        words = f"only when what it returned, a {type(returned).__name__}, is unpacked"
        evasions.append((None, f"it makes {' and '.join(late)} {words}"))
    evasions += ((name, f"{name} {words}") for name, value in found.items() if (words := disguise(value)))
    return readable(found), tuple(evasions)


def _held(returned: Any) -> dict[int, torch.Tensor]:
    """Return the bytes of the tensors that a container holds, at any depth, by the address of their storage."""
    found, seen, left = dict[int, torch.Tensor](), set[int](), [returned]
    while left and len(seen) < REACHED:
        one = left.pop(0)
        if id(one) in seen or isinstance(one, (type, ModuleType, FunctionType)):
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            if one.layout is torch.strided and 0 < one.untyped_storage().nbytes() <= HELD:
                found[one.untyped_storage().data_ptr()] = contents.bytes_of(one, whole=True).clone()
        else:
            left += gc.get_referents(one)
    return found


def _was_there(value: Any, held: Mapping[int, torch.Tensor]) -> bool:
    """Return whether a value was in these bytes before; so is what is no tensor, or without bytes, or very large."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or not value.numel():
        return True
    storage = value.untyped_storage()
    before = held.get(storage.data_ptr())
    if before is None:
        return storage.nbytes() > HELD
    return torch.equal(contents.bytes_of(value, whole=True), before)


def content(outputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the bytes of the outputs as they are now, of which work that ends later changes some."""
    some = {
        name: contents.bytes_of(value, whole=False)
        for name, value in outputs.items()
        if value is not None and not value.is_meta and value.nbytes <= HELD
    }
    return dict(zip(some, copied(list(some.values())), strict=True))
