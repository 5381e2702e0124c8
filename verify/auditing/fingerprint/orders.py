"""Statements about the order in which a kernel adds."""

from collections.abc import Iterator

import numpy as np

from verify_norm.auditing.fingerprint import order
from verify_norm.auditing.fingerprint.rig import Feed, Rig
from verify_norm.auditing.fingerprint.statement import HiddenError, Statement, Tree, undecided
from verify_norm.auditing.fingerprint.sums import TYPES, UNIT, Bits, Sum, squares
from verify_norm.core.dtypes import FORMATS

LENGTH, SQUARES, LONG = 64, 32, 4096  # summands of a sum; of Σx²; of a sum that no blocked kernel adds one by one
SHORT = 32  # summands if a run has one pair a channel, or the kernel is slow
MASK = 60  # log2 of the mask in units: more than the 53 bits of float64 and any number of units here


def _sizes(found: Sum, seen: Bits, n: int, first: order.Sizes, second: order.Sizes) -> order.Sizes | None:
    """Return the sizes of the common subtrees of these pairs of n summands; None if no sum shows them."""
    bits = MASK
    if not seen.why and seen.most <= FORMATS["float16"].precision:  # a narrow sum has to hold the mask
        bits = int(np.ceil(np.log2(n))) + 2 + seen.most
    mask = UNIT * 2.0**bits
    try:
        kept = found.read(order.masked(n, first, second, mask=mask, unit=UNIT)) / UNIT
    except HiddenError:
        return None
    if found.kind not in ("dweight", "dbias"):  # such a sum is computed from outputs, with some roundings
        kept = np.where(np.abs(kept - np.rint(kept)) < 2.0**-6, np.rint(kept), kept)
    return order.counts(kept, n)


def orders(found: Sum, seen: Bits) -> Iterator[Statement]:
    """Yield the order of a short sum as a tree, and whether a long sum is sequential."""
    name = f"{found.name} order"
    by_channel = found.rig.op.view == "groups" and found.kind in ("dweight", "dbias")
    n = SHORT if by_channel or found.rig.slow else LENGTH
    first, second = np.triu_indices(n, 1)
    sizes = _sizes(found, seen, n, first, second)
    tree = None if sizes is None else order.tree_of(n, sizes)
    shown, count = f"{len(first)} masked pairs of {n} summands", len(first)
    if tree is None:
        why = "the sums are no multiples of the unit" if sizes is None else "the subtree sizes contradict each other"
        yield undecided(name, f"{shown}: {why}, so there is no fixed tree of additions")
        return
    shown, sure = f"{shown}: all agree with this tree", 0.9
    right = _explained(found, tree, seen, count)
    if right is not None:
        shown += f", and it gives the bits of {right} of {count} sums of random numbers"
        sure = 0.99 if right == count else 0.8
    if right is not None and right < count / 2:
        yield undecided(name, f"{shown}: not a plain tree of additions; compensated sums behave like this")
        return
    yield Statement(name, order.described(tree), shown, sure, tree=tree)
    yield from _long(found, seen, 0.7 if right is None else 0.95)  # without such sums it may be compensated


def _explained(found: Sum, tree: Tree, seen: Bits, count: int) -> int | None:
    """Return how many of `count` sums of random numbers have the tree's bits; None if no output shows them."""
    if found.kind == "row" or seen.why or seen.most != seen.least or seen.most not in TYPES:
        return None
    held = TYPES[seen.most]
    n = len(order.leaves_of(tree))
    form = min(FORMATS[held], FORMATS["float32"], key=lambda f: f.precision)  # the terms stay exact in both
    terms = form.round(np.random.default_rng(1).standard_normal((count, n)))
    want = order.total(tree, terms, FORMATS[held].round)
    if found.kind == "mean":
        out = found.rig.rows(Feed(terms))
        if "mean" not in out or (FORMATS["bfloat16"].round(out["mean"]) == out["mean"]).all():
            return None  # a mean computed from y, or saved in a narrow dtype, does not have the bits of the sum
        got, want = out["mean"], want / n
    else:
        got = found.read(terms)
    return int((FORMATS["float32"].round(want) == got).sum())


def _long(found: Sum, seen: Bits, sure: float) -> Iterator[Statement]:
    """Yield "sequential" if the common subtree of the first and the j-th summand has j + 1 leaves for every j."""
    n = LONG
    other = np.unique(np.concatenate([np.arange(1, 4), np.arange(1, 8) * n // 8 + 1, [n - 2, n - 1]]))
    sizes = _sizes(found, seen, n, np.zeros_like(other), other)
    if sizes is not None:
        straight = sizes == other + 1
        shown = f"{int(straight.sum())} of {len(other)} summands among {n} are added to the sum of all before them"
        yield Statement(f"long {found.name} sum", "sequential" if straight.all() else "in parts", shown, sure)


def squares_order(rig: Rig, seen: Bits) -> Iterator[Statement]:
    """Yield the order of RMSNorm's Σx²; its terms have one sign, so no mask can be subtracted again.

    Next to 1 at i, numbers v at j and k with v² = ¾ of half an ulp are lost if each meets the 1 on its own, and leave
    an ulp if they meet each other first. Then i is not below the lowest common ancestor of j and k, so the number of
    such i gives the size of that subtree.
    """
    if seen.why or seen.least != seen.most:
        return
    n, p = SQUARES, seen.most
    first, second = np.triu_indices(n, 1)
    x = np.zeros((n, len(first), n))
    small = np.sqrt(0.75 * 2.0**-p)
    rows = np.arange(len(first))
    for i in range(n):
        x[i, rows, first] = x[i, rows, second] = small
        x[i, :, i] = 1.0
    together = np.rint(squares(rig, x.reshape(-1, n)).reshape(n, -1) * 2.0 ** (p - 1)) > 0  # of every i and pair
    together[first, rows] = together[second, rows] = False
    sizes = order.table(n, n - together.sum(0))
    tree = order.tree_of(n, sizes[first, second])
    shown = f"{n * len(first)} triples of {n} squares"
    if tree is None or (together != (sizes[first, second] < np.minimum(sizes[:, first], sizes[:, second]))).any():
        yield undecided("row order", f"{shown}: they contradict each other, so there is no fixed tree of additions")
    else:
        yield Statement("row order", order.described(tree), f"{shown}: all agree with this tree", 0.9, tree=tree)
