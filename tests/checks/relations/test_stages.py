"""The stages of the rounding analysis: what a row shares cancels in sums, and two runs have more in common than one."""

from dataclasses import replace

import numpy as np
import pytest
from checking import ROWS, run_of
from norms import layernorm, layernorm_bwd, rmsnorm

from verify_norm.checks.relations.stages import (
    Stages,
    cotangent,
    gradient_apart,
    has_mean,
    normalized,
    stages,
    sum_error,
    y_apart,
)
from verify_norm.core.spec import CaseSpec
from verify_norm.reference import layernorm as reference
from verify_norm.reference.arithmetic import Arithmetic
from verify_norm.reference.rounding import XhatError
from verify_norm.reference.view import rows


def test_the_sums_allow_less_than_their_elements_do():
    run = run_of(layernorm_bwd(), replace(ROWS, shape=(4, 1024)), "layernorm_bwd")
    s, delta, dy = stages(run), run.case.expected["dx"].delta, run.case.exact["dy"]
    for phi in (0 * s.norm.xhat + 1, s.norm.xhat):
        elements = (abs(phi) * delta).sum(1, keepdims=True)
        assert (sum_error(s, dy, None, delta, phi) < 0.75 * elements).all()


def test_statistics_and_largest_xhat_by_hand():
    """x = ±1 in turn: mean 0, variance 1; with eps = 3 rstd is ½, and x̂ is ±½ with the errors of a row beyond it."""
    run = run_of(layernorm(), CaseSpec((2, 64), data="alternating", eps=3.0, weight=False, bias=False))
    s = stages(run)
    x = run.case.exact["x"]
    np.testing.assert_allclose(s.norm.rstd.ravel(), 1 / np.sqrt(x.var(1) + 3.0))
    assert (s.largest >= np.abs(s.norm.xhat)).all()
    assert (s.largest <= np.abs(s.norm.xhat) + 1e-5).all()
    assert s.row_sum(np.ones(())).ravel().tolist() == [64.0, 64.0]


def test_rmsnorm_and_batchnorms_evaluation_have_no_mean_of_their_own():
    assert has_mean(run_of(layernorm()).case)
    assert not has_mean(run_of(rmsnorm(), op="rmsnorm_fwd").case)
    for training in (True, False):
        run = run_of(lambda x: x, CaseSpec((4, 3), training=training), "batchnorm_fwd")
        assert has_mean(run.case) == training


def test_a_fused_sum_is_kept_as_the_contract_says():
    spec = CaseSpec((4, 64), "bfloat16")
    kept = {how: run_of(lambda x: x, spec, "add_rmsnorm_fwd", residual=how) for how in ("sum", "rounded")}
    exact = kept["sum"].case.exact
    h = exact["x"] + exact["residual"]
    assert (normalized(kept["sum"]) == h.astype(np.float32)).all()
    rounded = normalized(kept["rounded"])
    assert (np.abs(rounded - h) <= 2.0**-8 * np.abs(h)).all()
    assert (rounded != h).any()


@pytest.mark.parametrize("name", ["dx", "dweight", "dbias"])
def test_two_runs_are_less_apart_than_either_may_be_from_the_truth(name):
    run = run_of(layernorm_bwd(), replace(ROWS, offset=100.0), "layernorm_bwd")
    s, dy = stages(run), run.case.exact["dy"]
    apart = gradient_apart(s, name, *cotangent(s, dy)).ravel()
    assert (apart <= run.case.expected[name].delta.ravel() * (1 + 1e-12)).all()
    if name != "dbias":  # which has nothing to do with the mean
        assert np.median(apart) < 0.5 * np.median(run.case.expected[name].delta)


def test_a_root_taken_anew_costs_its_error_in_y():
    s = stages(run_of(layernorm()))
    assert (y_apart(s, 1e-3) > y_apart(s, 0.0)).all()
    plain = y_apart(s, 0.0)
    np.testing.assert_array_less(np.abs(y_apart(s, 1e-3) - plain), 2e-3 * np.abs(s.norm.weight) * s.largest + 1e-9)


U, T, V, N = 2.0**-24, 2.0**-60, 2.0**-8, 8
EXACT = Arithmetic(u=0.0, tiny=0.0, huge=1e30, variance="two_pass")
ROUNDS, FLUSHES, LLAMA = replace(EXACT, u=U), replace(EXACT, tiny=T), replace(EXACT, xhat_u=V)
ONES, X = np.ones((1, N)), np.tile([-1.0, 1.0], (1, N // 2))
QUIET = np.tile([-1.0, -1.0, 1.0, 1.0], (1, N // 4))  # neither a mean nor x̂ in it


def summed(a, dy, phi, passed=None, delta=0.0, lost=0.0, **errors):
    """The bound on Σφ·dx of a row of x̂ = ±1 whose x̂' has these errors."""
    z = {name: np.full((1, 1), errors.get(name, 0.0)) for name in ("shift", "factor", "magnitude", "floor")}
    z = XhatError(**z, unit=errors.get("unit", 0.0))
    s = Stages(reference.norm(rows(X, None), X, None, None, 0.0), a, np.abs(X), z)
    return float(sum_error(s, dy, passed, np.full((1, N), delta), phi, lost=lost)[0, 0])


SUMS = {  # each term of the bound alone, by data that the others do not meet
    "c2": (summed(ROUNDS, ONES, ONES) - summed(ROUNDS, ONES, QUIET), N * (7 + 5) * U),
    "c1": (summed(ROUNDS, ONES, X, magnitude=3.0) - summed(ROUNDS, ONES, QUIET, magnitude=3.0), N * 3 * 13 * U),
    "a shift meets c1": (summed(EXACT, X, ONES, shift=0.5), N * 0.5),
    "a factor meets c1, in c1 and in r": (summed(EXACT, X, X, factor=0.5), N * (0.5 + 0.5 * 1.5) * 1.5),
    "a factor of the row": (summed(EXACT, QUIET, QUIET, factor=0.5), N * 0.5),
    "r/n, g, and the last roundings": (summed(ROUNDS, QUIET, QUIET), N * (4 + 2 + 2) * U),
    "g, and the last roundings": (summed(ROUNDS, QUIET, X), N * (2 + 2) * U),
    "the last roundings of what dx is off by": (summed(ROUNDS, 0 * X, QUIET, delta=3.0), N * 2 * 3 * U),
    "g and c2 of an element": (summed(ROUNDS, ONES, QUIET), N * (2 + 2) * U),
    "g and x̂·c1 of an element": (summed(ROUNDS, X, QUIET, magnitude=1.0), N * (2 + 4) * U),
    "x̂ in x̂·c1": (summed(EXACT, X, QUIET, magnitude=3.0, unit=1e-4), N * 3e-4),
    "floors in x̂·c1, and in c1": (summed(EXACT, X, QUIET, floor=0.5), N * 0.5 * 1.5),
    "what dy is off by": (summed(EXACT, 0 * X, QUIET, lost=0.5), N * 0.5),
    "g in a narrow type": (summed(LLAMA, QUIET, X), N * V),
    "an addition to the terms": (summed(ROUNDS, ONES, QUIET, 0 * X) - summed(ROUNDS, ONES, QUIET), N * 2 * U),
    "underflow": (summed(FLUSHES, 0 * X, QUIET), (N * (1 + 3) + 2 * N) * T),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_over_dx_is_off_by_what_its_derivation_counts(name):
    value, counted = SUMS[name]
    assert value == pytest.approx(counted, rel=0.01, abs=0.0)
