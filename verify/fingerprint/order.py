"""The order of a sum, as a tree, told from outside by masking.

A sum of n units u with +M in place of summand i and −M in place of summand j, M so large that M + k·u rounds to M for
any k ≤ n, loses every unit that meets either before they meet each other. That is the units below the lowest common
ancestor of i and j in the tree of additions, so what comes out, (n − size of that subtree)·u, tells the size; and the
sizes of all pairs tell the tree. This is the idea of Xie, Gao, Wang & Xue, "Revealing floating-point accumulation
orders in software/hardware implementations" (USENIX ATC 2025). They ask for as few pairs as they can; here a row or a
column is a question of its own, so that one run asks for all of them, and the answers that one does not need say
whether there is such a tree at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from verify_norm.dtypes import Array
from verify_norm.fingerprint.statement import Tree

Sizes = NDArray[np.int64]


def pairs(n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All pairs i < j of n summands, as two arrays."""
    first, second = np.triu_indices(n, 1)
    return first, second


def masked(n: int, first: Sequence[int] | Sizes, second: Sequence[int] | Sizes, *, mask: float, unit: float) -> Array:
    """One row of n summands a question: units, but +mask and −mask at the two places that it names.

    >>> masked(4, [0, 1], [2, 3], mask=8.0, unit=1.0).tolist()
    [[8.0, 1.0, -8.0, 1.0], [1.0, 8.0, 1.0, -8.0]]
    """
    rows = np.full((len(first), n), unit)
    at = np.arange(len(first))
    rows[at, np.asarray(first)] = mask
    rows[at, np.asarray(second)] = -mask
    return rows


def counts(kept: Array, n: int) -> Sizes | None:
    """The sizes of the common subtrees, of `kept` units each; None where these are no numbers of units."""
    with np.errstate(invalid="ignore"):
        whole = np.isfinite(kept) & (kept == np.rint(kept)) & (kept >= 0) & (kept <= n - 2)
    return n - kept.astype(np.int64) if whole.all() else None


def tree_of(n: int, sizes: Sizes) -> Tree | None:
    """The tree in which the pairs of `pairs(n)` have common subtrees of these sizes; None where there is none.

    A node that adds more than two at once has more than two children. Children are in the order of their first leaf.

    >>> tree_of(3, np.array([2, 3, 3]))
    ((0, 1), 2)
    >>> tree_of(3, np.array([2, 2, 3])) is None
    True
    """
    table = np.ones((n, n), dtype=np.int64)
    first, second = pairs(n)
    table[first, second] = table[second, first] = sizes
    return _grown(table, np.arange(n))


def _grown(table: Sizes, leaves: Sizes) -> Tree | None:
    if len(leaves) == 1:
        return int(leaves[0])
    below = table[np.ix_(leaves, leaves)] < len(leaves)  # which two leaves are in one child
    if (table[np.ix_(leaves, leaves)] > len(leaves)).any():
        return None
    children: list[Tree] = []
    seen = np.zeros(len(leaves), dtype=bool)
    for place in range(len(leaves)):
        if seen[place]:
            continue
        members = below[place]
        if seen[members].any() or (below[members] != members).any() or members.all():
            return None  # the answers contradict each other
        seen |= members
        child = _grown(table, leaves[members])
        if child is None:
            return None
        children.append(child)
    return tuple(children)


def leaves_of(tree: Tree) -> list[int]:
    """The summands below a node."""
    return [tree] if isinstance(tree, int) else [leaf for child in tree for leaf in leaves_of(child)]


def total(tree: Tree, terms: Array, rounded: Callable[[Array], Array]) -> Array:
    """The sums of terms (…, n) in the tree's order, each addition `rounded`.

    >>> float(total(((0, 1), 2), np.array([1e16, 1.0, -1e16]), lambda t: t))
    0.0
    """
    if isinstance(tree, int):
        return np.asarray(terms[..., tree])
    result = total(tree[0], terms, rounded)
    for child in tree[1:]:
        result = rounded(result + total(child, terms, rounded))
    return result


def depth(tree: Tree) -> int:
    """How many additions the longest path has.

    >>> depth(((0, 1), (2, 3)))
    2
    """
    return 0 if isinstance(tree, int) else 1 + max(depth(child) for child in tree)


def described(tree: Tree) -> str:
    """The order in words.

    >>> described((((0, 1), 2), 3)), described(((0, 1), (2, 3))), described(((0, 2), (1, 3)))
    ('sequential', 'pairwise', 'folded in halves')
    >>> described(((((0, 1), 2), 3), (((4, 5), 6), 7)))
    'runs of 4 (sequential), then both added'
    """
    ranks = sorted(leaves_of(tree))
    n = len(ranks)
    if n == 1:
        return "one"
    if n == 2:
        return "both added"
    tree = _renamed(tree, {leaf: rank for rank, leaf in enumerate(ranks)})
    if not isinstance(tree, int) and len(tree) == n:
        return f"{n} at once"
    for name, shape in SHAPES.items():
        if _same(tree, shape(list(range(n)))):
            return name
    return _by_parts(tree, n) or f"irregular, {depth(tree)} deep"


def _by_parts(tree: Tree, n: int) -> str | None:
    """Equal parts, of one shape, that are added first: runs of neighbours, or lanes that take turns; in few words."""
    nodes, found = _nodes(tree), []
    for size in (b for b in range(n // 2, 1, -1) if n % b == 0):
        lanes = n // size
        for words, parts in (
            (f"runs of {size}", [list(range(p * size, p * size + size)) for p in range(lanes)]),
            (f"{lanes} lanes interleaved", [list(range(p, n, lanes)) for p in range(lanes)]),
        ):
            inner = [nodes.get(frozenset(part)) for part in parts]
            shapes = {described(part) for part in inner if part is not None}
            if None in inner or len(shapes) != 1:
                continue
            of = {leaf: p for p, part in enumerate(parts) for leaf in part}
            found.append(f"{words} ({shapes.pop()}), then {described(_quotient(tree, of, size))}")
    regular = [words for words in found if "irregular" not in words]
    return min(regular, key=len, default=None)


def _nodes(tree: Tree) -> dict[frozenset[int], Tree]:
    """Every node by the set of its leaves."""
    found = {frozenset(leaves_of(tree)): tree}
    if not isinstance(tree, int):
        for child in tree:
            found |= _nodes(child)
    return found


def _quotient(tree: Tree, part: dict[int, int], size: int) -> Tree:
    """The tree of the parts."""
    below = leaves_of(tree)
    if len(below) == size and len({part[leaf] for leaf in below}) == 1:
        return part[below[0]]
    assert not isinstance(tree, int)
    return tuple(_quotient(child, part, size) for child in tree)


def _renamed(tree: Tree, names: dict[int, int]) -> Tree:
    return names[tree] if isinstance(tree, int) else tuple(_renamed(child, names) for child in tree)


def _same(one: Tree, two: Tree) -> bool:
    """Whether two trees add the same, addition being commutative."""
    if isinstance(one, int) or isinstance(two, int):
        return one == two
    if len(one) != len(two):
        return False
    by_leaf = {min(leaves_of(child)): child for child in two}
    return all((least := min(leaves_of(child))) in by_leaf and _same(child, by_leaf[least]) for child in one)


def sequential(leaves: list[int]) -> Tree:
    """One after the other.

    >>> sequential([0, 1, 2])
    ((0, 1), 2)
    """
    tree: Tree = leaves[0]
    for leaf in leaves[1:]:
        tree = (tree, leaf)
    return tree


def backwards(leaves: list[int]) -> Tree:
    """One after the other, the last first."""
    return sequential(leaves[::-1])


def pairwise(leaves: list[int]) -> Tree:
    """The first half and the second, each so."""
    half = (len(leaves) + 1) // 2
    return leaves[0] if len(leaves) == 1 else (pairwise(leaves[:half]), pairwise(leaves[half:]))


def folded(leaves: list[int]) -> Tree:
    """The second half is added to the first, element by element, until one is left."""
    level: list[Tree] = list(leaves)
    while len(level) > 1:
        half = (len(level) + 1) // 2
        level = [(level[i], level[i + half]) if i + half < len(level) else level[i] for i in range(half)]
    return level[0]


SHAPES: dict[str, Callable[[list[int]], Tree]] = {
    "sequential": sequential, "sequential from the last": backwards, "pairwise": pairwise, "folded in halves": folded,
}  # fmt: skip
