"""Drawings of the order of a sum."""

import pytest
from documents import halves, sequential

from verify_norm.report.html.summation import MOST, draw, fold


@pytest.mark.parametrize(
    ("tree", "count"),
    [(halves(0, 64), 64), (halves(0, 1024), 1024), (sequential(5000), 5000), (tuple(range(900)), 900)],
    ids=["64 halves", "1024 halves", "5000 in sequence", "900 at once"],
)
def test_a_sum_of_many_is_folded_and_keeps_count(tree, count):
    drawing = draw(tree, "row order")
    assert len(drawing.leaves) <= MOST
    assert sum(leaf.extent.size for leaf in drawing.leaves) == drawing.root.extent.size == count
    assert drawing.root.extent[:2] == (0, count - 1)
    assert any(leaf.folded for leaf in drawing.leaves) == (count > 64)
    assert all(0 < leaf.x < drawing.width for leaf in drawing.leaves)
    assert drawing.spoken.startswith(f"row order: {count} summands, ")


def test_summands_stand_in_the_order_in_which_they_are_added():
    assert len(draw(7, "one").leaves) == 1
    assert [leaf.extent.first for leaf in draw(((0, 2), (1, 3)), "row order").leaves] == [0, 2, 1, 3]
    assert [kid.extent.size for kid in fold(((0, 2), (1, 3))).kids] == [2, 2]
