"""The fingerprint of a kernel: the statements of every probe that applies to it."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from verify_norm.auditing.fingerprint import backward, forward
from verify_norm.auditing.fingerprint.orders import orders, squares_order
from verify_norm.auditing.fingerprint.rig import Feed, Outputs, Rig
from verify_norm.auditing.fingerprint.statement import UNDECIDED, Fingerprint, Statement, shown, undecided
from verify_norm.auditing.fingerprint.sums import Bits, Sum, accumulators, bits_of, squares_bits, sums
from verify_norm.auditing.fingerprint.variance import variance
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.judge import identical
from verify_norm.core.kernel import Kernel

NARROW = ("bfloat16", "float16")  # the first one that the kernel takes is probed besides float32
RUNS = 3
ROWS = {"cpu": 32, "cuda": 1024}  # few for Triton's interpreter, enough to fill a GPU
LENGTH = 300  # of a row
BY_ROW = ("y", "mean", "rstd", "dx")
Seen = list[tuple[Sum, Bits | None]]


def fingerprint(kernel: Kernel, device: str = "cpu") -> Fingerprint:
    """Return all statements about a kernel over rows or groups; none for BatchNorm, 8-bit outputs and stages with
    tensors of their own.

    No reference is involved, so a wrong kernel has a fingerprint too. A property that no output shows is left out, and
    one with contradictory evidence is undecided. A kernel that raises counts as not taking the input.

    >>> from verify_norm.loading.registry import load
    >>> found = fingerprint(load("layernorm_bwd_torch"))
    >>> found.value("dbias accumulator"), found.value("deterministic")
    ('float32', 'yes')
    """
    rig = Rig(kernel, device)
    stage_inputs = any(name != "mask" for name in rig.op.stage_inputs)  # no probe feeds them; a mask keeps all
    eight_bits = rig.op.quantized or rig.op.quantizer  # of y show too little
    if not rig.op.lawful or rig.op.view == "channels" or eight_bits or stage_inputs:
        return Fingerprint(kernel.name, kernel.op, device, ())
    with np.errstate(all="ignore"):  # a function that is no norm returns zeros and infinities
        again = tuple(shown(repeated(rig)))
        fixed = not any(s.name == "deterministic" and s.said == "no" for s in again)
        seen = [(found, bits_of(found)) for dtype in _dtypes(rig) for found in sums(rig, dtype)]
        properties = _backward(rig) if rig.backward else _forward(rig, seen)
        statements = (*_sums(rig, seen, fixed), *properties, *again)
    return Fingerprint(kernel.name, kernel.op, device, statements, rig.runs)


def _dtypes(rig: Rig) -> list[str]:
    """Return the dtypes of x to probe."""
    offered = rig.kernel.dtypes
    narrow = [dtype for dtype in NARROW if dtype in offered][:1]
    return ["float32", *narrow] if "float32" in offered else narrow


def _sums(rig: Rig, seen: Seen, fixed: bool) -> Iterator[Statement]:
    """Yield the dtypes of all sums, and their orders in float32; no order over rows unless it is `fixed`."""
    for found, bits in seen:
        yield from _accumulators(rig, found, bits)
        if found.dtype != "float32" or bits is None:
            continue
        if fixed or found.kind in ("mean", "row"):
            yield from shown(orders(found, bits))
        else:
            yield undecided(f"{found.name} order", "it changes from run to run")
    if not rig.centred and not rig.backward:
        for dtype in _dtypes(rig):
            yield from shown(_squares(rig, dtype))


def _squares(rig: Rig, dtype: str) -> Iterator[Statement]:
    """Yield the dtype of RMSNorm's Σx², and its order in float32."""
    squared = squares_bits(rig, dtype)
    yield from accumulators("row", dtype, squared)
    if dtype == "float32":
        yield from squares_order(rig, squared)


def _accumulators(rig: Rig, found: Sum, bits: Bits | None) -> list[Statement]:
    """Return the dtypes of one sum; for a mean that is no plain sum, from its accuracy."""
    statements = [] if bits is None else list(accumulators(found.name, found.dtype, bits))
    no_plain_sum = all(statement.said == UNDECIDED for statement in statements)
    if found.kind == "mean" and found.dtype == "float32" and no_plain_sum:
        return list(shown(forward.row_accuracy(rig))) or statements
    return statements


def _forward(rig: Rig, seen: Seen) -> Iterator[Statement]:
    """Yield what a forward pass shows besides its sums; of L2Norm, whose squares are summed, no divisor."""
    divided = list(shown(forward.divisor(rig))) if rig.op.averages else []
    count = divided[0].said if divided else None
    yield from (*divided, *shown(forward.eps(rig, count)))
    statistics = [found for dtype in _dtypes(rig) for found in shown(forward.statistics(rig, dtype))]
    yield from statistics
    if rig.centred and "float32" in rig.kernel.dtypes and count in ("N", "N-1"):
        coarse = any(found.dtype == "float32" and found.said in NARROW for found in statistics)
        yield from shown(variance(rig, seen[0][1], count, from_y=coarse))
    for dtype in _dtypes(rig):
        if dtype != "float32" and any(tensor.name == "weight" for tensor in rig.op.inputs):
            yield from shown(forward.xhat(rig, dtype))
    yield from shown(forward.formula(rig))


def _backward(rig: Rig) -> Iterator[Statement]:
    """Yield what a backward pass shows besides its sums."""
    yield from shown(backward.source(rig))
    for dtype in _dtypes(rig):
        yield from backward.terms(rig, dtype)


def repeated(rig: Rig) -> Iterator[Statement]:
    """Yield whether a few runs return the same bits, and a row the same bits alone, elsewhere, and among others."""
    count = ROWS[torch.device(rig.device).type]
    first = _run(rig, np.arange(count))
    if first.values:
        yield _deterministic(rig, first, count)
        yield from _batch_invariant(rig, first, count)


def _deterministic(rig: Rig, first: Outputs, count: int) -> Statement:
    """Return whether further runs of all rows have the bits of the first one."""
    for run in range(2, RUNS + 1):
        again = _run(rig, np.arange(count))
        changed = [name for name in first.values if name not in again or not identical(first[name], again[name]).all()]
        if changed:
            shown = f"{', '.join(changed)} of the same {count} rows had other bits in run {run}"
            return Statement("deterministic", "no", shown, 1.0)
    return Statement("deterministic", "yes", f"{RUNS} runs of the same {count} rows gave the same bits", 0.85)


def _batch_invariant(rig: Rig, first: Outputs, count: int) -> Iterator[Statement]:
    """Yield whether rows have the bits of the run of all rows, `first`, in other batches; nothing if one fails."""
    for rows, words in (
        (np.array([5]), "alone"),
        (np.arange(8), f"among 8 rather than {count}"),
        (np.arange(count)[::-1], "in another place"),
        (np.arange(2 * count) % count, "among twice as many"),
    ):
        other = _run(rig, rows)
        if not other.values:
            return
        for name in BY_ROW:
            if name not in first or name not in other:
                continue
            differ = int((~identical(first[name][rows], other[name])).sum())
            if differ:
                shown = f"{differ} of {other[name].size} values of {name} have other bits if a row is {words}"
                yield Statement("batch invariant", "no", shown, 1.0)
                return
    shown = f"a row of {LENGTH} has the same bits alone, in another place, and among 8, {count} and {2 * count}"
    yield Statement("batch invariant", "yes", shown, 0.85)


def _run(rig: Rig, rows: NDArray[np.int64]) -> Outputs:
    """Return the outputs of these of the rows, in this order, each with its own statistics."""
    count, form = ROWS[torch.device(rig.device).type], FORMATS["float32"]
    x, dy = form.round(forward.noise(count, LENGTH)), form.round(forward.noise(count, LENGTH, seed=1))
    mean, rstd = x.mean(1), 1 / x.std(1)
    return rig.rows(Feed(x[rows], dy[rows], weight=1.25, bias=0.5, mean=mean[rows], rstd=rstd[rows]))
