"""Dropout before a sum: its error by hand, and what nobody judges."""

from dataclasses import replace

import numpy as np
import pytest

from verify_norm.reference import residual_sum
from verify_norm.reference.arithmetic import DIVISION, Arithmetic, nearest
from verify_norm.reference.stages.dropout import Dropout, _factor_error
from verify_norm.reference.stages.stage import Approximate, exactly, passed

U = 2.0**-24
SINGLE = Arithmetic(u=U, tiny=2.0**-126, huge=3.4028235e38)
EXACT = Arithmetic(u=0.0, tiny=0.0, huge=1e300)
MASK = np.array([[1.0, 0.0, 1.0]])


def given(p):
    return {"mask": MASK, "dropout_p": p}


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_the_error_is_that_of_p_and_of_six_roundings(p):
    z = np.array([[3.0, 5.0, -2.0]])
    y = passed(Dropout(), exactly(z), given(p), SINGLE)
    want = np.abs(z) * MASK / (1 - p) * (DIVISION + 2 + p / (1 - p)) * U
    assert np.allclose(y.delta, want, rtol=1e-4, atol=2 * SINGLE.tiny)
    assert y.delta[0, 1] == 0 == y.value[0, 1]


@pytest.mark.parametrize("p", [0.1, 0.3, 0.9, 0.999])
def test_kernels_in_float32_stay_within_it_and_reach_a_tenth(p):
    """A quotient by 1 − p, and a product with its reciprocal in float32 or in Python."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(1, 20000)).astype(np.float32)
    values = {"mask": np.ones_like(z), "dropout_p": p}
    y = passed(Dropout(), exactly(z.astype(np.float64)), values, SINGLE)
    one, q = np.float32(1), np.float32(p)
    made = (z / (one - q), z * (one / (one - q)), z * np.float32(1 / (1 - p)))
    ratios = [np.max(np.abs(k - y.value) / y.delta) for k in made]
    assert max(ratios) < 1
    assert ratios[0] > 0.1


def test_an_error_of_z_and_of_dy_is_carried_by_the_factor():
    z = Approximate(np.array([[3.0, 5.0, -2.0]]), np.full((1, 3), 0.5), np.full((1, 3), 5.0))
    y = passed(Dropout(), z, given(0.75), EXACT)
    assert y.delta.tolist() == [[2.0, 0.0, 2.0]]
    assert y.size.tolist() == [[20.0, 0.0, 20.0]]
    dy = np.array([[1.0, 1.0, -1.0]])
    assert Dropout().pull(dy, z.value, given(0.75))[0].tolist() == [[4.0, 0.0, -4.0]]
    assert Dropout().pull_error(dy, 0.25, z, given(0.75), EXACT).lost.tolist() == [[1.0, 0.0, 1.0]]


def test_what_is_not_judged():
    for z in (np.inf, np.nan, 2e38):  # beyond the range, over 1 − p
        y = passed(Dropout(), exactly(np.full((1, 3), z)), given(0.5), SINGLE)
        assert (y.delta == np.inf).all()
    y = passed(Dropout(), exactly(np.ones((1, 3))), given(1 - 2.0**-10), replace(SINGLE, u=2.0**-8))
    assert np.isinf(y.delta[0, [0, 2]]).all()  # nothing is known of 1 − p


def test_what_a_contract_keeps_of_the_sum():
    """Between the roundings of both ends: of a tie either neighbour, elsewhere the dropout's own error."""
    h, delta = np.array([1.0 + 2.0**-9, 1.0, np.nan]), np.array([2.0**-20, 2.0**-20, np.inf])
    narrow = replace(SINGLE, u=2.0**-8)
    off = residual_sum.kept_off(h, delta, SINGLE, lambda v: nearest(v, replace(narrow, u=2.0**-9)))
    assert off.tolist() == [2.0**-8, 2.0**-20, np.inf]


def test_the_error_of_its_own_is_that_of_the_factor_and_two_underflows():
    coarse = Arithmetic(u=2.0**-10, tiny=2.0**-6, huge=1e30)
    off = coarse.u * 0.75 / 0.25
    factor = (1 + coarse.gamma(2 + DIVISION)) / (1 - off) - 1
    dy, lost = np.array([[3.0, 5.0, -2.0]]), np.array([[0.5, 0.25, 1.0]])
    own = [(3.0 + 0.5) * 4 * factor + 2 * coarse.tiny, 0.0, (2.0 + 1.0) * 4 * factor + 2 * coarse.tiny]
    z = Approximate(dy, lost, np.abs(dy))
    assert Dropout().own_error(z, given(0.75), coarse)[0].tolist() == pytest.approx(own)
    pulled = Dropout().pull_error(dy, lost, z, given(0.75), coarse)
    assert pulled.lost[0].tolist() == pytest.approx([own[0] + 2.0, 0.0, own[2] + 4.0])
    assert pulled.gradients == {}


@pytest.mark.parametrize("u", [1.0, 1.5])
def test_nothing_is_known_of_a_factor_whose_rounding_may_be_all_of_it(u):
    assert _factor_error(0.5, replace(SINGLE, u=u)) == np.inf


def test_a_mask_has_the_shape_of_x_and_serves_its_rows():
    mask = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    made = Dropout().value(np.array([[1.0, 2.0], [3.0, 4.0]]), {"mask": mask, "dropout_p": 0.5})
    assert made.tolist() == [[2.0, 0.0], [0.0, 8.0]]
