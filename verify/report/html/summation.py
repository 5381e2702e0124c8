"""The order of a sum as a drawing: summands at the bottom, and a bar over the terms of each addition."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field
from typing import NamedTuple

from verify_norm.auditing.fingerprint.statement import Tree

MOST = 64  # summands or folded parts in one drawing
WIDE = 16  # terms of one addition that are drawn where not all summands are
LEAF, FOLDED = 13, 46  # units, wide
BASE = 26  # below the summands, for their numbers


class Extent(NamedTuple):
    """The summands of a part of a tree: the smallest index, the largest, and their number."""

    first: int
    last: int
    size: int


EMPTY = Extent(0, 0, 0)


@dataclass(slots=True)
class Node:
    """A summand, an addition of others, or a folded part of several summands."""

    extent: Extent = EMPTY
    kids: list[Node] = field(default_factory=list)
    height: int = 0
    x: float = 0.0
    y: float = 0.0

    @property
    def folded(self) -> bool:
        """Whether the part has more summands than are drawn."""
        return not self.kids and self.extent.size > 1


@dataclass(frozen=True, slots=True)
class Drawing:
    """A tree with all places in units of the drawing."""

    spoken: str  # the drawing in words
    width: float
    base: float  # the height at which the summands stand
    lines: str  # the bars and their uprights, as the path of an SVG element
    leaves: list[Node]  # summands and folded parts, from left to right
    root: Node


def draw(tree: Tree, name: str) -> Drawing:
    """Return the drawing of a tree. Of more than 64 summands, the parts that are added first are folded.

    >>> [leaf.extent.first for leaf in draw(((0, 1), (2, 3)), "row order").leaves]
    [0, 1, 2, 3]
    """
    root = fold(tree)
    order = _upwards(root)
    width = _spread(order)
    rise = max(7.0, min(22.0, 240 / max(root.height, 1)))
    base = 18 + rise * root.height
    for node in order:
        node.y = base - rise * node.height
    lines = [f"M{root.x:.1f} {root.y:.1f}V6"]
    for node in order:
        lines += [f"M{kid.x:.1f} {kid.y:.1f}V{node.y:.1f}" for kid in node.kids]
        if node.kids:
            lines.append(f"M{node.kids[0].x:.1f} {node.y:.1f}H{node.kids[-1].x:.1f}")
    spoken = f"{name}: {root.extent.size} summands, {root.height} levels"
    return Drawing(spoken, width, base, "".join(lines), [node for node in order if not node.kids], root)


def fold(tree: Tree) -> Node:
    """Return the root of what is drawn of a tree.

    The largest parts are opened first, until the next one would be too wide to draw.
    """
    root = _nodes(tree)
    drawn, waiting, root.kids = 1, [(-root.extent.size, 0, root, root.kids)], []
    fits = root.extent.size <= MOST
    serials = itertools.count(1)  # parts of one size are opened from left to right, and nodes are never compared
    while waiting:
        _, _, node, parts = heapq.heappop(waiting)
        if not parts:
            continue
        cut = len(parts) > WIDE and not fits
        kids = [*parts[: WIDE // 2], parts[-1]] if cut else parts
        drawn += len(kids) + cut - 1
        if drawn > MOST:
            break
        node.kids = kids
        for kid in kids:
            heapq.heappush(waiting, (-kid.extent.size, next(serials), kid, kid.kids))
            kid.kids = []
        if cut:
            between = [part.extent for part in parts[WIDE // 2 : -1]]
            total = sum(extent.size for extent in between)
            node.kids.insert(-1, Node(Extent(between[0].first, between[-1].last, total)))
    return root


def _nodes(tree: Tree) -> Node:
    """Return the whole tree as nodes. No recursion: some trees are deep."""
    root = Node()
    stack, additions = [(tree, root)], []
    while stack:
        part, node = stack.pop()
        if isinstance(part, int):
            node.extent = Extent(part, part, 1)
        else:
            node.kids = [Node() for _ in part]
            stack += zip(part, node.kids, strict=True)
            additions.append(node)
    for node in reversed(additions):
        kids = [kid.extent for kid in node.kids]
        first, last = min((kid.first for kid in kids), default=0), max((kid.last for kid in kids), default=0)
        node.extent = Extent(first, last, sum(kid.size for kid in kids))
    return root


def _upwards(root: Node) -> list[Node]:
    """Return all nodes, each after its kids, from left to right."""
    order, stack = [], [root]
    while stack:
        order.append(stack.pop())
        stack += order[-1].kids
    return order[::-1]


def _spread(order: list[Node]) -> float:
    """Set heights and horizontal places, and return the width."""
    right = 6.0
    for node in order:
        if node.kids:
            node.height = 1 + max(kid.height for kid in node.kids)
            node.x = (node.kids[0].x + node.kids[-1].x) / 2
        else:
            wide = FOLDED if node.folded else LEAF
            node.height, node.x = (2 if node.folded else 0), right + wide / 2
            right += wide
    return right + 6.0
