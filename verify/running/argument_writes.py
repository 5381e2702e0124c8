"""Finds what a kernel writes into its arguments, and beside them: compares their storages before and after a call."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from verify_norm.cases.contents import bytes_of, overwrite
from verify_norm.cases.transfer import copied, different
from verify_norm.core.run import Damage
from verify_norm.running.overlapping import offsets

LIMIT = 2**28  # bytes: a larger buffer has no guards; of a larger argument only the elements are compared


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """An argument before the call: its whole storage, or only its elements; and where these are, in bytes."""

    name: str
    tensor: torch.Tensor
    before: torch.Tensor
    whole: bool
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor, before: torch.Tensor, *, whole: bool) -> "_Snapshot":
        """Return the snapshot of a tensor with these bytes."""
        size = tensor.element_size()
        strides = tuple(stride * size for stride in tensor.stride())
        where = (*tensor.shape, size), (*strides, 1), int(tensor.storage_offset()) * size
        return cls(name, tensor, before, whole, *where)

    def now(self) -> torch.Tensor:
        """Return the bytes after the call; of a storage that has grown those up to its old length.

        The check `effects` reports the growth.
        """
        return bytes_of(self.tensor, self.whole)[: self.before.numel()]

    def beside(self) -> torch.Tensor:
        """Return the bytes after the call, but those of the elements as they were before it."""
        now = self.now()
        if now.numel() < self.before.numel():
            return now
        if not self.whole:
            return self.before
        now = now.clone()
        overwrite(self._elements(now), self._elements(self.before))
        return now

    def _elements(self, bytes_: torch.Tensor) -> torch.Tensor:
        return bytes_.as_strided(self.shape, self.strides, int(bytes_.storage_offset()) + self.offset)


class Arguments:
    """The bits of every argument before a call, with its gaps and guards."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        tensors = {n: t.detach() for n, t in arguments.items() if isinstance(t, torch.Tensor) and t.numel()}
        whole = {name: tensor.untyped_storage().nbytes() <= LIMIT for name, tensor in tensors.items()}
        copies = copied([bytes_of(tensor, whole[name]) for name, tensor in tensors.items()])
        self._snapshots = [
            _Snapshot.of(name, tensor, before, whole=whole[name])
            for (name, tensor), before in zip(tensors.items(), copies, strict=True)
        ]

    def damage(self, writable: Iterable[str]) -> Iterator[Damage]:
        """Yield what has changed since then; elements of `writable` arguments may change."""
        writable = frozenset(writable)
        before = [snapshot.before for snapshot in self._snapshots]
        now = [one.beside() if one.name in writable else one.now() for one in self._snapshots]
        for number in different(now, before):
            snapshot, after = self._snapshots[number], now[number]
            lost = snapshot.before.numel() - after.numel()
            if lost:
                yield Damage(snapshot.name, "in", lost, 0)
            else:
                yield from _changed(snapshot, after)


def _changed(snapshot: _Snapshot, now: torch.Tensor) -> Iterator[Damage]:
    """Yield the changes in a tensor's own elements, and those before, between and after them."""
    size = snapshot.tensor.element_size()
    before, after = (tensor.cpu().numpy().reshape(-1, size) for tensor in (snapshot.before, now))
    changed = np.flatnonzero((before != after).any(1))
    if not snapshot.whole:
        yield Damage(snapshot.name, "in", changed.size * size, 0)
        return
    own = np.unique(offsets(snapshot.tensor) + int(snapshot.tensor.storage_offset()))
    place = np.searchsorted(own, changed)  # the number of own elements before each changed one
    left = np.where(place > 0, changed - own[place - 1], len(before))
    right = np.where(place < own.size, own[np.minimum(place, own.size - 1)] - changed, len(before))
    inside = right == 0
    masks = {
        "in": inside,
        "before": (place == 0) & ~inside,
        "after": place == own.size,
        "between": (place > 0) & (place < own.size) & ~inside,
    }
    for where, mask in masks.items():
        if mask.any():
            distance = np.minimum(left, right)[mask].min()  # in elements
            bytes_between = 0 if where == "in" else int(distance - 1) * size
            yield Damage(snapshot.name, where, int(mask.sum()) * size, bytes_between)
