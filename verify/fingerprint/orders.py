"""Statements about the order in which a kernel adds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from verify_norm.dtypes import FORMATS, Array
from verify_norm.fingerprint import order
from verify_norm.fingerprint.precision import TYPES, UNIT, Bits
from verify_norm.fingerprint.rig import Rig
from verify_norm.fingerprint.statement import Statement, Tree, undecided
from verify_norm.fingerprint.sums import Sum, squares

LENGTH, SQUARES, LONG = 64, 32, 4096  # summands; of Σx²; of a sum that no blocked one adds one after the other
SHORT = 32  # summands of a channel, of which there is one a pair; of a slow kernel
MASK = 60  # a mask in units, as a power of two: above the 53 bits of float64 and the number of units


def _mask(seen: Bits | None, n: int) -> float:
    """A mask that swallows n units, and that a narrow type holds where the sum is in one."""
    narrow = seen is not None and not seen.why and seen.most <= FORMATS["float16"].precision
    exponent = int(np.ceil(np.log2(n))) + 2 + seen.most if narrow and seen is not None else MASK
    return UNIT * 2.0**exponent


def orders(found: Sum, seen: Bits | None) -> Iterator[Statement]:
    """The order of a short sum as a tree, and whether a long one is sequential."""
    if seen is None:
        return
    name = f"{found.name} order"
    by_channel = found.rig.op.view == "groups" and found.kind in ("dweight", "dbias")
    n = SHORT if by_channel or found.rig.slow else LENGTH
    mask = _mask(seen, n)
    first, second = order.pairs(n)
    left = found.read(order.masked(n, first, second, mask=mask, unit=UNIT))
    sizes = None if left is None else order.counts(_snapped(left / UNIT, found), n)
    tree = None if sizes is None else order.tree_of(n, sizes)
    if tree is None:
        why = "what is left is no number of units" if sizes is None else "the sizes contradict each other"
        yield undecided(name, f"{len(first)} pairs of {n} summands masked: {why}, as in no fixed tree of additions")
        return
    shown, sure = f"{len(first)} pairs of {n} summands masked: all agree with this tree", 0.9
    right = _explained(found, tree, seen, len(first))
    if right is not None:
        shown += f", and it gives {right} of {len(first)} sums of random numbers to the bit"
        sure = 0.99 if right == len(first) else 0.8
    if right is not None and right < len(first) / 2:
        yield undecided(name, f"{shown}: more than a tree of additions, as compensated sums are")
        return
    yield Statement(name, order.described(tree), shown, sure, tree=tree)
    yield from _long(found, seen, 0.7 if right is None else 0.95)  # unexplained, it may be compensated


def _snapped(kept: Array, found: Sum) -> Array:
    """A reading that is worked out from others is off by some roundings of them."""
    if found.kind in ("dweight", "dbias"):
        return kept
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(kept - np.rint(kept)) < 2.0**-6, np.rint(kept), kept)


def _explained(found: Sum, tree: Tree, seen: Bits, count: int) -> int | None:
    """How many of `count` sums of random numbers the tree gives to the bit; None where these cannot be read."""
    type_ = TYPES.get(seen.most) if not seen.why and seen.most == seen.least else None
    if found.kind == "row" or type_ is None:
        return None
    n = len(order.leaves_of(tree))
    form = FORMATS[min(type_, "float32", key=lambda name: FORMATS[name].precision)]  # or the terms would be rounded
    terms = form.round(np.random.default_rng(1).standard_normal((count, n)))
    got = order.total(tree, terms, FORMATS[type_].round)
    if found.kind == "mean":
        out = found.rig.rows(terms)
        if out is None or "mean" not in out or (FORMATS["bfloat16"].round(out["mean"]) == out["mean"]).all():
            return None  # what is worked out from y, or saved in a narrow type, is not the sum to the bit
        return int((FORMATS["float32"].round(got / n) == out["mean"]).sum())
    left = found.read(terms)
    return None if left is None else int((FORMATS["float32"].round(got) == left).sum())


def _long(found: Sum, seen: Bits, sure: float) -> Iterator[Statement]:
    """Sequential from the first summand, if the common subtree of it and of the j-th has j + 1 leaves for every j."""
    name, n = f"long {found.name} sum", LONG
    other = np.unique(np.concatenate([np.arange(1, 4), np.arange(1, 8) * n // 8 + 1, [n - 2, n - 1]]))
    left = found.read(order.masked(n, np.zeros_like(other), other, mask=_mask(seen, n), unit=UNIT))
    sizes = None if left is None else order.counts(_snapped(left / UNIT, found), n)
    if sizes is None:
        return
    straight = sizes == other + 1
    shown = f"{int(straight.sum())} of {len(other)} summands among {n} are added to the sum of all before them"
    yield Statement(name, "sequential" if straight.all() else "in parts", shown, sure)


def squares_order(rig: Rig, seen: Bits | None) -> Iterator[Statement]:
    """The order of RMSNorm's Σx², whose terms have one sign, so that no mask can be taken away again.

    Beside 1 at i, two numbers v at j and k with v² = ¾ of half an ulp are lost where each meets the 1 on its own, and
    leave an ulp where they meet each other first. For a fixed i, "j and k meet first" says which summands are in one
    sibling on the way from i to the root. Every node but the root is the sibling of one, so these are all nodes.
    """
    if seen is None or seen.why or seen.least != seen.most:
        return
    n, p = SQUARES, seen.most
    first, second = order.pairs(n)
    x = np.zeros((n, len(first), n))
    small = np.sqrt(0.75 * 2.0**-p)
    rows = np.arange(len(first))
    for i in range(n):
        x[i, rows, first] = x[i, rows, second] = small
        x[i, :, i] = 1.0
    left = squares(rig, x.reshape(-1, n))
    if left is None:
        return
    ulps = np.rint(left.reshape(n, -1) * 2.0 ** (p - 1))
    clusters = _clusters(n, ulps > 0)
    tree = None if clusters is None else _nested(list(range(n)), clusters)
    asked = f"{n * len(first)} triples of {n} squares"
    if tree is None:
        yield undecided("row order", f"{asked}: the answers contradict each other, as in no fixed tree of additions")
    else:
        yield Statement("row order", order.described(tree), f"{asked}: all agree with this tree", 0.9, tree=tree)


def _clusters(n: int, together: NDArray[np.bool_]) -> set[frozenset[int]] | None:
    """All siblings of all ways to the root; None where "meet first" is not transitive."""
    first, second = order.pairs(n)
    found: set[frozenset[int]] = set()
    for i in range(n):
        table = np.eye(n, dtype=bool)
        table[first, second] = table[second, first] = together[i]
        table[i, :] = table[:, i] = False
        table[i, i] = True
        for j in range(n):
            if (table[table[j]] != table[j]).any():
                return None
            if j != i:
                found.add(frozenset(np.flatnonzero(table[j]).tolist()))
    return found


def _nested(leaves: list[int], clusters: set[frozenset[int]]) -> Tree | None:
    """The tree of these sets; None where two of them overlap."""
    if len(leaves) == 1:
        return leaves[0]
    inside = sorted((c for c in clusters if c < frozenset(leaves)), key=len, reverse=True)
    children: list[list[int]] = []
    seen: set[int] = set()
    for cluster in inside:
        if not cluster & seen:
            children.append(sorted(cluster))
            seen |= cluster
    if seen != set(leaves) or any(sum(bool(c & set(child)) for child in children) > 1 for c in inside):
        return None
    nested = [_nested(child, clusters) for child in sorted(children)]
    return None if None in nested else tuple(child for child in nested if child is not None)
