"""Trees of additions: found from sizes, and described in words."""

import doctest

import emulations as em
import numpy as np
import pytest

from verify_norm.auditing.fingerprint import order


def test_a_tree_that_adds_many_parts_at_once():
    tree = ((0, 1, 2, 3), (4, 5, 6, 7))
    first, second = np.triu_indices(8, 1)
    sizes = np.array([4 if i // 4 == j // 4 else 8 for i, j in zip(first, second, strict=True)])
    assert order.tree_of(8, sizes) == tree
    assert order.described(tree) == "runs of 4 (4 at once), then both added"


@pytest.mark.parametrize("seed", range(8))
def test_any_tree_is_found_from_its_masked_sums(seed):
    rng = np.random.default_rng(seed)
    parts: list = list(range(20))
    while len(parts) > 1:
        i, j = sorted(rng.choice(len(parts), 2, replace=False))
        parts[i] = tuple(sorted((parts[i], parts.pop(j)), key=lambda t: min(order.leaves_of(t))))
    first, second = np.triu_indices(20, 1)
    rows = order.masked(20, first, second, mask=2.0**40, unit=1.0)
    sums = order.total(parts[0], rows, em.rounding("float32"))
    assert order.tree_of(20, order.counts(sums, 20)) == parts[0]


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (((0, 3), (1, 2)), "irregular, 2 deep"),
        (((0, 2), (1, 3)), "folded in halves"),
        ((0, (1, (2, 3))), "sequential from the last"),
        ((((0, 2), 4), ((1, 3), 5)), "2 lanes interleaved (sequential), then both added"),
        ((((0, 1), (2, 3)), ((4, 5), (6, 7))), "pairwise"),
        (((5, 7), 9), "sequential"),
    ],
)
def test_orders_in_words(tree, words):
    assert order.described(tree) == words


@pytest.mark.parametrize("kept", [[0.5, 0, 0], [np.nan, 0, 0], [np.inf, 0, 0], [2, 0, 0], [-1, 0, 0]])
def test_sums_that_are_no_numbers_of_units_give_no_sizes(kept):
    assert order.counts(np.array(kept, dtype=float), 3) is None


def test_doctests():
    assert doctest.testmod(order).failed == 0
