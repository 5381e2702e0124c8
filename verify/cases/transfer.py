"""Many small tensors at once: sent to a GPU, read from it, or compared there.

Whoever reads a GPU's memory, or writes it from the host's, waits for all that it has to do before, and it then waits
for the host. For small tensors this takes longer than their bytes do, so they share one such wait.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from verify_norm.cases.one_thread import one_thread

SMALL = 2**20  # bytes of a tensor: a larger one is sent, read and compared by itself, and nothing of it is copied twice


@one_thread()
def different(some: Sequence[Tensor], others: Sequence[Tensor]) -> list[int]:
    """Return the numbers of the pairs of flat tensors of bytes that differ.

    >>> one, two = torch.zeros(3, dtype=torch.uint8), torch.ones(2, dtype=torch.uint8)
    >>> different([one, two], [one, two]), different([one, two], [one, one])
    ([], [1])
    """
    pairs = list(zip(some, others, strict=True))
    small = {number for number, (one, two) in enumerate(pairs) if one.numel() == two.numel() <= SMALL}
    if len(small) > 1 and torch.equal(*(torch.cat([pairs[number][side] for number in small]) for side in (0, 1))):
        pairs_left = [number for number in range(len(pairs)) if number not in small]
    else:
        pairs_left = list(range(len(pairs)))
    return [number for number in pairs_left if not torch.equal(*pairs[number])]


@one_thread()
def copied(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of flat tensors of bytes, of small ones as parts of one."""
    small = [tensor for tensor in tensors if tensor.numel() <= SMALL]
    parts = iter(_split(torch.cat(small), small) if small else ())
    return [next(parts) if tensor.numel() <= SMALL else tensor.clone() for tensor in tensors]


@one_thread()
def sent(tensors: Sequence[Tensor], device: str) -> list[Tensor]:
    """Return tensors of the host's memory on a device, each in a storage of its own like its own here."""
    stored = [torch.empty(0, dtype=torch.uint8, device="cpu").set_(tensor.untyped_storage()) for tensor in tensors]
    small = [bytes_ for bytes_ in stored if bytes_.numel() <= SMALL]
    parts = iter(_split(_sent_at_once(small, torch.device(device)), small) if small else ())
    # a copy of a part begins at an address that is aligned for every type
    there = [next(parts).clone() if bytes_.numel() <= SMALL else bytes_.to(device) for bytes_ in stored]
    return [_like(tensor, held) for held, tensor in zip(there, tensors, strict=True)]


def _sent_at_once(parts: list[Tensor], device: torch.device) -> Tensor:
    """Return tensors of bytes as one on a device; from page-locked memory, since nobody waits for that to be read."""
    if device.type != "cuda":
        return torch.cat(parts).to(device)
    page_locked = torch.empty(sum(part.numel() for part in parts), dtype=torch.uint8, device="cpu", pin_memory=True)
    return torch.cat(parts, out=page_locked).to(device, non_blocking=True)


def _like(tensor: Tensor, held: Tensor) -> Tensor:
    """Return bytes as a tensor like another one, which is a view where that is."""
    where = tensor.shape, tensor.stride()
    if tensor._is_view():
        return held.view(tensor.dtype).as_strided(*where, tensor.storage_offset())
    own = torch.empty(0, dtype=tensor.dtype, device=held.device)
    return own.set_(held.untyped_storage(), tensor.storage_offset(), *where)


@one_thread()
def values(tensors: Sequence[Tensor]) -> list[Any]:
    """Return the tensors' values as NumPy's arrays of float64, exactly.

    >>> [array.tolist() for array in values([torch.ones(2, 1).bfloat16(), torch.tensor(3)])]
    [[[1.0], [1.0]], 3.0]
    """
    small = [tensor.detach().to(torch.float64).reshape(-1) for tensor in tensors if _is_small(tensor)]
    parts = iter(_split(torch.cat(small).cpu(), small) if small else ())
    flat = (next(parts) if _is_small(one) else one.detach().to("cpu", torch.float64).reshape(-1) for one in tensors)
    return [part.numpy().reshape(tuple(tensor.shape)) for part, tensor in zip(flat, tensors, strict=True)]


def _is_small(tensor: Tensor) -> bool:
    return tensor.numel() * 8 <= SMALL


def _split(whole: Tensor, parts: Sequence[Tensor]) -> list[Tensor]:
    ends = accumulate((part.numel() for part in parts), initial=0)
    return [whole[first:last] for first, last in pairwise(ends)]
