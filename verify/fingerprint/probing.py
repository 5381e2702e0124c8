"""The fingerprint of a kernel: every probe that applies to it, and what they say."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from verify_norm.fingerprint import backward, forward
from verify_norm.fingerprint.orders import orders, squares_order
from verify_norm.fingerprint.precision import Bits, accumulators, bits_of, squares_bits
from verify_norm.fingerprint.repeat import repeated
from verify_norm.fingerprint.rig import Rig
from verify_norm.fingerprint.statement import UNDECIDED, Fingerprint, Statement, undecided
from verify_norm.fingerprint.sums import Sum, sums
from verify_norm.fingerprint.variance import variance
from verify_norm.spec import Kernel

NARROW = ("bfloat16", "float16")  # of these the first that the kernel takes is looked at too


def fingerprint(kernel: Kernel, device: str = "cpu") -> Fingerprint:
    """All that probing says about a kernel of a norm of rows or groups; nothing about BatchNorm and about 8 bits.

    Nothing is compared with a reference, so a wrong kernel has a fingerprint too. A property that the outputs do not
    show is left out, and one whose evidence is contradictory is undecided.

    Parameters
    ----------
    kernel
        what `registry.load` returns. Whatever it raises is taken for a case that it does not take.
    device
        where it is run, as "cuda".

    Examples
    --------
    >>> from verify_norm.registry import load
    >>> found = fingerprint(load("layernorm_bwd_torch"))
    >>> found.said("dbias accumulator"), found.said("deterministic")
    ('float32', 'yes')
    """
    rig = Rig(kernel, device)
    if rig.op.view == "channels" or rig.op.quantized:  # 8 bits of y show too little
        return Fingerprint(kernel.name, kernel.op, device, ())
    with np.errstate(all="ignore"):  # what is no norm gives zeros and infinities, and a generator runs in here too
        again = tuple(repeated(rig))
        fixed = not any(s.name == "deterministic" and s.said == "no" for s in again)
        seen = [(found, bits_of(found)) for dtype in _dtypes(rig) for found in sums(rig, dtype)]
        properties = _backward(rig) if rig.backward else _forward(rig, seen)
        statements = (*_sums(rig, seen, fixed), *properties, *again)
    return Fingerprint(kernel.name, kernel.op, device, statements, rig.runs)


Seen = list[tuple[Sum, Bits | None]]


def _dtypes(rig: Rig) -> list[str]:
    """The types of x that are looked at."""
    return [*(["float32"] if rig.takes("float32") else []), *[d for d in NARROW if rig.takes(d)][:1]]


def _sums(rig: Rig, seen: Seen, fixed: bool) -> Iterator[Statement]:
    """The types of all sums, and their orders in float32 if these are `fixed`."""
    for found, bits in seen:
        said = list(accumulators(found.name, found.dtype, bits))
        if found.kind == "mean" and found.dtype == "float32" and all(s.said == UNDECIDED for s in said):
            said = list(forward.row_accuracy(rig)) or said
        yield from said
        if found.dtype == "float32" and (fixed or found.kind in ("mean", "row")):
            yield from orders(found, bits)
        elif found.dtype == "float32" and bits is not None:
            yield undecided(f"{found.name} order", "it changes from run to run")
    for dtype in _dtypes(rig) if not rig.centred and not rig.backward else []:
        squared = squares_bits(rig, dtype)
        yield from accumulators("row", dtype, squared)
        if dtype == "float32":
            yield from squares_order(rig, squared)


def _forward(rig: Rig, seen: Seen) -> Iterator[Statement]:
    """What a forward pass shows beside its sums."""
    divided = next(iter(forward.divisor(rig)), None)
    count = None if divided is None else divided.said
    kept = [s for dtype in _dtypes(rig) for s in forward.statistics(rig, dtype)]
    yield from [] if divided is None else [divided]
    yield from forward.eps(rig, count)
    yield from kept
    if rig.centred and rig.takes("float32") and count in ("N", "N-1"):
        coarse = any(s.dtype == "float32" and s.said in NARROW for s in kept)
        yield from variance(rig, seen[0][1], count, from_y=coarse)
    for dtype in _dtypes(rig):
        if dtype != "float32":
            yield from forward.xhat(rig, dtype)
    yield from forward.formula(rig)


def _backward(rig: Rig) -> Iterator[Statement]:
    """What a backward pass shows beside its sums."""
    yield from backward.source(rig)
    for dtype in _dtypes(rig):
        yield from backward.terms(rig, dtype)
