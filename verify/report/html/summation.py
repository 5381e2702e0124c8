"""The order of a sum as a drawing: summands at the bottom, and a bar over what is added first."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from verify_norm.fingerprint.statement import Tree
from verify_norm.report.html.markup import Html, join, tag

MOST = 64  # summands or folded parts that are drawn
WIDE = 16  # terms of one addition that are drawn where not all summands are
LEAF, FOLDED = 13, 46  # units, wide
BASE = 26  # below the summands, for their numbers


@dataclass(slots=True)
class Node:
    """What is drawn: a summand, an addition of others, or a part of `count` summands that is folded up."""

    first: int
    last: int
    count: int
    kids: list[Node] = field(default_factory=list)
    height: int = 0
    x: float = 0.0

    @property
    def folded(self) -> bool:
        """Whether there is more in it than is drawn."""
        return not self.kids and self.count > 1


def draw(tree: Tree, name: str) -> Html:
    """The tree as an SVG drawing. Of more than 64 summands, the parts that are added first are folded up.

    >>> str(draw(((0, 1), (2, 3)), "row order")).count("<text")
    4
    """
    root, counts = fold(tree)
    order = list(_upwards(root))
    width = _place(order)
    rise = max(7.0, min(22.0, 240 / max(root.height, 1)))
    base = 18 + rise * root.height

    def y(node: Node) -> float:
        return base - rise * node.height

    lines, parts = [f"M{root.x:.1f} {y(root):.1f}V6"], []
    for node in order:
        lines += [f"M{kid.x:.1f} {y(kid):.1f}V{y(node):.1f}" for kid in node.kids]
        if node.kids:
            lines.append(f"M{node.kids[0].x:.1f} {y(node):.1f}H{node.kids[-1].x:.1f}")
        else:
            parts.append(_leaf(node, y(node), base))
    spoken = f"{name}: {counts[id(tree)] if not isinstance(tree, int) else 1} summands, {root.height} levels"
    return tag(
        "svg", tag("path", d="".join(lines), class_="lines"), *parts, tag("circle", cx=f"{root.x:.1f}", cy=5, r=3),
        viewBox=f"0 0 {width:.0f} {base + BASE:.0f}", role="img", aria_label=spoken, class_="tree",
        style=f"max-width:{max(1.15 * width, 240):.0f}px;min-width:{min(width, 620):.0f}px",
    )  # fmt: skip


def _leaf(node: Node, top: float, base: float) -> Html:
    if not node.folded:
        return tag("text", node.first, x=f"{node.x:.1f}", y=f"{base + 12:.1f}")
    shape = f"M{node.x:.1f} {top:.1f}L{node.x - 16:.1f} {base:.1f}H{node.x + 16:.1f}Z"
    said = f"{node.first}…{node.last}"
    return join(
        (
            tag("path", tag("title", f"{node.count} summands, {said}"), d=shape, class_="folded"),
            tag("text", f"{node.count} of", x=f"{node.x:.1f}", y=f"{base + 11:.1f}"),
            tag("text", said, x=f"{node.x:.1f}", y=f"{base + 22:.1f}"),
        )
    )


def fold(tree: Tree) -> tuple[Node, dict[int, int]]:
    """What is drawn of a tree, and how many summands each of its tuples has, by its id.

    The largest parts are opened first, until the next one would be too wide to draw.
    """
    counts, ends = _counted(tree)
    root = _node(tree, counts, ends)
    drawn, waiting = 1, [(-root.count, 0, root, tree)]
    fits = root.count <= MOST
    serials = itertools.count(1)  # what is as large is opened from left to right, and nodes are never compared
    while waiting:
        _, _, node, subtree = heapq.heappop(waiting)
        if isinstance(subtree, int):
            continue
        cut = len(subtree) > WIDE and not fits
        shown = [*subtree[: WIDE // 2], *subtree[-1:]] if cut else list(subtree)
        if drawn - 1 + len(shown) + cut > MOST:
            break
        drawn += len(shown) + cut - 1
        for part in shown:
            kid = _node(part, counts, ends)
            node.kids.append(kid)
            heapq.heappush(waiting, (-kid.count, next(serials), kid, part))
        if cut:
            between = subtree[WIDE // 2 : -1]
            total = sum(counts.get(id(part), 1) for part in between)
            node.kids.insert(-1, Node(_first(between[0], ends), _last(between[-1], ends), total))
    return root, counts


def _node(tree: Tree, counts: dict[int, int], ends: dict[int, tuple[int, int]]) -> Node:
    return Node(_first(tree, ends), _last(tree, ends), counts.get(id(tree), 1))


def _first(tree: Tree, ends: dict[int, tuple[int, int]]) -> int:
    return tree if isinstance(tree, int) else ends[id(tree)][0]


def _last(tree: Tree, ends: dict[int, tuple[int, int]]) -> int:
    return tree if isinstance(tree, int) else ends[id(tree)][1]


def _counted(tree: Tree) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
    """Of every tuple in it, by id: how many summands it has, the least and the largest. No recursion: some are deep."""
    counts: dict[int, int] = {}
    ends: dict[int, tuple[int, int]] = {}
    stack: list[tuple[Tree, bool]] = [(tree, False)]
    while stack:
        part, done = stack.pop()
        if isinstance(part, int) or id(part) in counts:
            continue
        if not done:
            stack += [(part, True), *((kid, False) for kid in part)]
            continue
        counts[id(part)] = sum(1 if isinstance(kid, int) else counts[id(kid)] for kid in part)
        ends[id(part)] = (
            min((_first(kid, ends) for kid in part), default=0), max((_last(kid, ends) for kid in part), default=0)
        )  # fmt: skip
    return counts, ends


def _upwards(root: Node) -> Iterator[Node]:
    """All nodes, each after its kids, from left to right."""
    stack = [(root, False)]
    while stack:
        node, done = stack.pop()
        if done or not node.kids:
            yield node
        else:
            stack += [(node, True), *((kid, False) for kid in reversed(node.kids))]


def _place(order: list[Node]) -> float:
    """Set heights and places, and return the width."""
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
