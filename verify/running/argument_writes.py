"""Finds what a kernel writes into its arguments, and beside them: compares their storages before and after a call."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from verify_norm.cases.contents import bytes_of
from verify_norm.cases.transfer import copied, different
from verify_norm.core.run import Damage
from verify_norm.running.overlapping import offsets

LIMIT = 2**28  # bytes: a larger buffer has no guards; of a larger argument only the elements are compared


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
        before = copied([bytes_of(tensor, whole[name]) for name, tensor in some.items()])
        self._taken = [_Snapshot(n, t, held, whole[n]) for (n, t), held in zip(some.items(), before, strict=True)]

    def damage(self, writable: Iterable[str]) -> Iterator[Damage]:
        """Yield what has changed since then; elements of `writable` arguments may change."""
        writable = frozenset(writable)
        before = [taken.before for taken in self._taken]
        now = [bytes_of(t.tensor, t.whole)[: t.before.numel()] for t in self._taken]  # `effects` reports more memory
        for number in different(now, before):
            taken, held = self._taken[number], now[number]
            if lost := taken.before.numel() - held.numel():
                yield Damage(taken.name, "in", lost, 0)
            else:
                changed = _changed(taken, held)
                yield from (d for d in changed if not (d.where == "in" and d.buffer in writable))


def _changed(taken: _Snapshot, now: torch.Tensor) -> Iterator[Damage]:
    size = taken.tensor.element_size()
    before, after = (t.cpu().numpy().reshape(-1, size) for t in (taken.before, now))
    changed = np.flatnonzero((before != after).any(1))
    if not taken.whole:
        yield Damage(taken.name, "in", changed.size * size, 0)
        return
    own = np.unique(offsets(taken.tensor) + int(taken.tensor.storage_offset()))
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
