"""The arithmetic: roundings in a row, sums in either order held to their bound, and what may overflow."""

from dataclasses import replace

import numpy as np
import pytest
from matrix import EMULATION
from references import FLOAT32

from verify_norm.reference.arithmetic import PRODUCTS, Arithmetic, compound, finite_below

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
    assert FLOAT32.terms(384, products=False) == np.log2(384) + 1 + 6
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


def value_of(products, a, cut):
    return sum(EMULATION.pieces(a, products, cut=cut))


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("cut", [True, False])
def test_operands_and_products_miss_no_more_than_derived(products, cut):
    """Random numbers, and those whose bits are all ones, which a cut hurts most."""
    rng, arithmetic = np.random.default_rng(0), replace(FLOAT32, products=products)
    ones = np.float32(1 + 2.0 ** -np.arange(1, 24) - 2.0**-23)
    a, b = (np.concatenate([np.float32(rng.uniform(1, 2, 2000)), ones]) for _ in "ab")
    exact = a.astype(float) * b
    missed = np.abs(value_of(products, a, cut) - a)
    assert (missed <= arithmetic.missed(a.astype(float))).all()
    by_product = EMULATION.matrix_product(a[:, None], b[:, None], EMULATION.Method(products=products, cut=cut))[:, 0]
    off = np.abs(by_product - exact) / exact
    assert off.max() <= arithmetic.summed(1)
    if cut and products in ("tf32", "bf16"):
        assert off.max() > 0.9 * arithmetic.product_u


def test_what_operands_hold_they_do_not_miss():
    sixteen = np.float16(np.random.default_rng(0).standard_normal(100)).astype(float)
    for products, held in (("tf32", True), ("bf16x3", True), ("bf16", False)):
        assert (replace(FLOAT32, products=products).missed(sixteen) == 0).all() == held
    assert replace(FLOAT32, products="tf32").missed(np.ones(1), lost=np.array([0.5])) == 1.5 * 2.0**-10


def test_a_tensor_core_adds_in_runs_and_cuts_off():
    tf32 = replace(FLOAT32, products="tf32")
    assert tf32.terms(128, products=True) == 2 * (7 + 128 / 3 + 6)
    assert tf32.terms(1 << 16, products=True) == 2 * (16 + 512 / 3 + 6)
    assert replace(tf32, lanes=8).terms(1 << 16, products=True) == 2 * (16 + 8192 / 3 + 6)
    terms = np.full((1, 512), 1 + 2.0**-10, np.float32)  # exact operands
    total = EMULATION.matrix_product(terms, None, EMULATION.Method(products="tf32"))
    off = abs(float(total[0, 0]) / (512 * terms[0, 0].astype(float)) - 1)
    assert off <= tf32.gamma(tf32.terms(512, products=False))
