"""Statements about running again: the same case, and the same rows among others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from verify_norm.dtypes import FORMATS, Array
from verify_norm.fingerprint.forward import noise
from verify_norm.fingerprint.rig import Outputs, Rig
from verify_norm.fingerprint.statement import Statement

RUNS = 3
ROWS, LENGTH = {"cpu": 32, "cuda": 1024}, 300  # as many rows as an interpreter bears, and as fill a GPU
BY_ROW = ("y", "mean", "rstd", "dx")


def repeated(rig: Rig) -> Iterator[Statement]:
    """The same bits in a few runs, and for a row alone, in another place, and among more or fewer."""
    count = ROWS[torch.device(rig.device).type]
    everything = np.arange(count)
    first = _run(rig, everything)
    if first is None:
        return
    yield from _deterministic(rig, first)
    for rows, words in (
        (np.array([5]), "alone"),
        (np.arange(8), f"among 8 rather than {count}"),
        (everything[::-1], "in another place"),
        (np.arange(2 * count) % count, "among twice as many"),
    ):
        other = _run(rig, rows)
        if other is None:
            return
        for name in BY_ROW:
            if name in first and name in other and not _same(first[name][rows], other[name]):
                differ = int((first[name][rows] != other[name]).sum())
                shown = f"{differ} of {other[name].size} values of {name} have other bits where a row is {words}"
                yield Statement("batch invariant", "no", shown, 1.0)
                return
    shown = f"a row of {LENGTH} has the same bits alone, in another place, and among 8, {count} and {2 * count}"
    yield Statement("batch invariant", "yes", shown, 0.85)


def _deterministic(rig: Rig, first: Outputs) -> Iterator[Statement]:
    count = ROWS[torch.device(rig.device).type]
    for run in range(1, RUNS):
        again = _run(rig, np.arange(count))
        changed = [name for name in first.values if again is None or not _same(first[name], again[name])]
        if changed:
            shown = f"{', '.join(changed)} of the same {count} rows had other bits in run {run + 1}"
            yield Statement("deterministic", "no", shown, 1.0)
            return
    yield Statement("deterministic", "yes", f"{RUNS} runs of the same {count} rows gave the same bits", 0.85)


def _run(rig: Rig, rows: NDArray[np.int64]) -> Outputs | None:
    """All outputs for these of the rows, in this order; what is saved of a row goes with it."""
    count, form = ROWS[torch.device(rig.device).type], FORMATS["float32"]
    x, dy = form.round(noise(count, LENGTH)), form.round(noise(count, LENGTH, seed=1))
    mean, rstd = x.mean(1), 1 / x.std(1)
    return rig.rows(x[rows], dy=dy[rows], mean=mean[rows], rstd=rstd[rows], weight=1.25, bias=0.5)


def _same(one: Array, two: Array) -> bool:
    return bool(((one == two) | (np.isnan(one) & np.isnan(two))).all())
