"""The arithmetic: roundings in a row, sums in either order held to their bound, and what may overflow."""

from dataclasses import replace

import numpy as np
import pytest
from references import FLOAT32

from verify_norm.reference.arithmetic import Arithmetic, compound, finite_below

COARSE = Arithmetic(u=0.25, tiny=0.0, huge=1.0)


def test_roundings_in_a_row_by_hand():
    assert COARSE.gamma(0) == 0.0
    assert COARSE.gamma(1) == pytest.approx(1 / 3)
    assert COARSE.gamma(2) == 1.0  # 2u/(1 − 2u)
    assert COARSE.gamma(4) == np.inf  # ku = 1: no bound
    assert compound(1.0, 1.0, 1.0) == 7.0
    assert compound() == 0.0


@pytest.mark.parametrize("k", [1, 2, 7, 1000])
def test_gamma_bounds_any_signs_of_k_roundings(k):
    up, down = (1 + FLOAT32.u) ** k - 1, 1 - (1 - FLOAT32.u) ** k
    assert max(up, down) <= FLOAT32.gamma(k) <= 1.001 * up


def test_a_sum_of_n_terms_has_one_rounding_fewer_than_of_products():
    sequential = replace(FLOAT32, summation="sequential")
    for n in (1, 2, 100):
        assert sequential.terms(n, products=True) == n
        assert sequential.terms(n, products=False) == n - 1
    assert FLOAT32.terms(0, products=False) == FLOAT32.terms(1, products=False) == 0
    assert FLOAT32.terms(384, products=False) == np.log2(384) + 3 * 3 / 8 + 6
    assert sequential.updates(384) == 384
    assert FLOAT32.updates(384) == np.log2(384) + 2 + 6


def relative_error(n, lanes):
    """Sum n equal terms in float32, each of the lanes one by one, then the lanes by a tree."""
    t = np.float32(1 / 3)
    total = np.cumsum(np.full((n // lanes, lanes), t), axis=0, dtype=np.float32)[-1]
    while len(total) > 1:
        total = total[::2] + total[1::2]
    return abs(float(total[0]) / (n * float(t)) - 1)


def test_the_worst_sums_of_each_order_are_within_their_bound_and_one_by_one_is_beyond_that_of_blocks():
    n = 2**17
    blocked, one_by_one = relative_error(n, 128), relative_error(n, 1)
    bound = FLOAT32.gamma(FLOAT32.terms(n, products=False))
    assert blocked <= bound < one_by_one
    assert one_by_one <= FLOAT32.gamma(n - 1)


def test_what_may_overflow_is_not_judged():
    bound = finite_below(np.array([0.5, 0.5, 0.5, 2.0]), np.array([0.9, 1.0, np.nan, 0.1]), 1.0)
    assert bound.tolist() == [0.5, np.inf, np.inf, np.inf]
