"""The order of a sum as a tree, found by masking.

A sum of n units u has +M in place of summand i and −M in place of summand j, with M so large that M + k·u rounds to M
for any k ≤ n. Every unit that meets either of them before they meet each other is lost: these are the units below the
lowest common ancestor of i and j in the tree of additions. The result, (n − size of that subtree)·u, gives the size,
and the sizes of all pairs give the tree. The method is that of Xie, Gao, Wang & Xue, "Revealing floating-point
accumulation orders in software/hardware implementations" (USENIX ATC 2025). They need few pairs; here each row or
column masks one pair, so one run covers all pairs, and the redundant ones show whether there is a tree at all.
"""

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from verify_norm.auditing.fingerprint.statement import Tree
from verify_norm.core.dtypes import Array

Sizes = NDArray[np.int64]


def masked(n: int, first: Sizes, second: Sizes, *, mask: float, unit: float) -> Array:
    """Return one row of n units for each pair, with +mask and −mask at the two places.

    >>> masked(4, np.array([0, 1]), np.array([2, 3]), mask=8.0, unit=1.0).tolist()
    [[8.0, 1.0, -8.0, 1.0], [1.0, 8.0, 1.0, -8.0]]
    """
    rows, row = np.full((len(first), n), unit), np.arange(len(first))
    rows[row, first], rows[row, second] = mask, -mask
    return rows


def counts(kept: Array, n: int) -> Sizes | None:
    """Return the subtree sizes n − kept; None if `kept` are not all numbers of units."""
    whole = np.isfinite(kept) & (kept == np.rint(kept)) & (kept >= 0) & (kept <= n - 2)
    return n - kept.astype(np.int64) if whole.all() else None


def tree_of(n: int, sizes: Sizes) -> Tree | None:
    """Return the tree with common subtrees of these sizes of all pairs (0, 1), (0, 2), …; None if there is none.

    A node that adds more than two parts at once has more than two children, in the order of their first leaf.

    >>> tree_of(3, np.array([2, 3, 3]))
    ((0, 1), 2)
    >>> tree_of(3, np.array([2, 2, 3])) is None
    True
    """
    return _subtree(table(n, sizes), np.arange(n))


def table(n: int, sizes: Sizes) -> Sizes:
    """Return the sizes of all pairs (0, 1), (0, 2), … as a symmetric matrix, with 1 on its diagonal."""
    matrix = np.ones((n, n), dtype=np.int64)
    first, second = np.triu_indices(n, 1)
    matrix[first, second] = matrix[second, first] = sizes
    return matrix


def _subtree(matrix: Sizes, leaves: Sizes) -> Tree | None:
    """Return the tree of these leaves, which have a common ancestor of their own; None if there is none."""
    if len(leaves) == 1:
        return int(leaves[0])
    sizes = matrix[np.ix_(leaves, leaves)]
    if (sizes > len(leaves)).any():
        return None
    together = sizes < len(leaves)  # which two leaves share a child
    children: list[Tree] = []
    seen = np.zeros(len(leaves), dtype=bool)
    for place in range(len(leaves)):
        if seen[place]:
            continue
        members = together[place]
        if seen[members].any() or (together[members] != members).any() or members.all():
            return None  # the sizes contradict each other
        seen |= members
        child = _subtree(matrix, leaves[members])
        if child is None:
            return None
        children.append(child)
    return tuple(children)


def leaves_of(tree: Tree) -> list[int]:
    """Return the summands below a node."""
    return [tree] if isinstance(tree, int) else [leaf for child in tree for leaf in leaves_of(child)]


def total(tree: Tree, terms: Array, rounded: Callable[[Array], Array]) -> Array:
    """Return the sums of terms (…, n) in the order of the tree, with each addition `rounded`.

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
    """Return the number of additions on the longest path."""
    return 0 if isinstance(tree, int) else 1 + max(depth(child) for child in tree)


def described(tree: Tree) -> str:
    """Return the order in words.

    >>> described((((0, 1), 2), 3)), described(((0, 1), (2, 3))), described(((0, 2), (1, 3)))
    ('sequential', 'pairwise', 'folded in halves')
    >>> described(((((0, 1), 2), 3), (((4, 5), 6), 7)))
    'runs of 4 (sequential), then both added'
    """
    ranks = {leaf: rank for rank, leaf in enumerate(sorted(leaves_of(tree)))}
    n = len(ranks)
    if n <= 2:
        return "both added" if n == 2 else "one"
    tree = _canonical(tree, ranks)
    if not isinstance(tree, int) and len(tree) == n:
        return f"{n} at once"
    same = {rank: rank for rank in range(n)}
    for name, shape in SHAPES.items():
        if tree == _canonical(shape(list(same)), same):
            return name
    return _by_parts(tree, n) or f"irregular, {depth(tree)} deep"


def _canonical(tree: Tree, ranks: dict[int, int]) -> Tree:
    """Return the tree with its leaves renamed, and children in the order of their first leaf."""
    if isinstance(tree, int):
        return ranks[tree]
    return tuple(sorted((_canonical(child, ranks) for child in tree), key=lambda child: min(leaves_of(child))))


def same_order(one: Tree | None, other: Tree | None) -> bool:
    """Return whether two trees add the same summands in the same order, up to which of two parts comes first.

    >>> same_order(((0, 1), 2), (2, (1, 0))), same_order(((0, 1), 2), (0, (1, 2)))
    (True, False)
    """
    if one is None or other is None:
        return one is other
    first, second = ({leaf: leaf for leaf in leaves_of(tree)} for tree in (one, other))
    return _canonical(one, first) == _canonical(other, second)


def _by_parts(tree: Tree, n: int) -> str | None:
    """Return the shortest description by equal parts that are added first: runs of neighbours, or interleaved lanes."""
    found = []
    for size in range(n // 2, 1, -1):
        if n % size:
            continue
        lanes = n // size
        for words, part_of in (
            (f"runs of {size}", {leaf: leaf // size for leaf in range(n)}),
            (f"{lanes} lanes interleaved", {leaf: leaf % lanes for leaf in range(n)}),
        ):
            parts: list[Tree] = []
            outer = _quotient(tree, part_of, size, parts)
            shapes = {described(part) for part in parts}
            if len(parts) == lanes and len(shapes) == 1:
                found.append(f"{words} ({shapes.pop()}), then {described(outer)}")
    regular = [words for words in found if "irregular" not in words]
    return min(regular, key=len, default=None)


def _quotient(tree: Tree, part_of: dict[int, int], size: int, parts: list[Tree]) -> Tree:
    """Return the tree with each node that is a whole part replaced by its number, and add that node to `parts`."""
    below = leaves_of(tree)
    if len(below) == size and len({part_of[leaf] for leaf in below}) == 1:
        parts.append(tree)
        return part_of[below[0]]
    return tree if isinstance(tree, int) else tuple(_quotient(child, part_of, size, parts) for child in tree)


def sequential(leaves: Sequence[Tree]) -> Tree:
    """Return the tree that adds one leaf after the other."""
    return reduce(lambda tree, leaf: (tree, leaf), leaves)


def pairwise(leaves: list[int]) -> Tree:
    """Return the tree that adds the sums of the first and of the second half, recursively."""
    half = (len(leaves) + 1) // 2
    return leaves[0] if len(leaves) == 1 else (pairwise(leaves[:half]), pairwise(leaves[half:]))


def folded(leaves: Sequence[Tree]) -> Tree:
    """Return the tree that adds the second half to the first, element by element, until one is left."""
    half = (len(leaves) + 1) // 2
    pairs = list(zip(leaves[: len(leaves) - half], leaves[half:], strict=True))
    return leaves[0] if half == len(leaves) else folded([*pairs, *leaves[len(leaves) - half : half]])


SHAPES: dict[str, Callable[[list[int]], Tree]] = {
    "sequential": sequential,
    "sequential from the last": lambda leaves: sequential(leaves[::-1]),
    "pairwise": pairwise,
    "folded in halves": folded,
}
