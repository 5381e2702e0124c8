"""A comparison's ratio and power, and the bound on sums with random signs."""

import math
from dataclasses import replace

import numpy as np
import pytest
from counted import PLAIN, X, case_of, run_of

from verify_norm.checks.relations.equations import Comparison, arithmetic_of, confidence, judged, pairs
from verify_norm.core.contract import Contract


def test_the_power_is_the_smallest_error_that_shows():
    numbers = (np.array([v]) for v in (2.0, 2.0, 1e-6, 0.5))
    comparison = Comparison("d", "dx", *numbers, "row")
    assert comparison.power == 5e-7
    assert comparison.local == 2e-6
    for error, caught in ((4e-7, False), (6e-7, True)):
        wrong = replace(comparison, right=comparison.right * (1 + error))
        assert bool(wrong.ratio.max() > 1) is caught


def test_two_runs_are_compared_where_both_have_the_right_type_and_size():
    case = case_of(PLAIN, "layernorm_fwd")
    run = run_of(case)
    y = run.outputs["y"]
    others = {
        "y": y,
        "mean": replace(run.outputs["mean"], dtype="float16"),
        "rstd": replace(run.outputs["rstd"], got=np.ones(2)),
    }
    (pair,) = pairs(run, replace(run, outputs=others))
    assert pair[0] == "y"
    wrong = replace(run, outputs=run.outputs | {"y": replace(y, dtype="float16")})
    assert [name for name, *_ in pairs(wrong, wrong)] == ["mean", "rstd"]
    assert list(pairs(run, replace(run, outputs={}))) == []


def test_outputs_are_compared_in_the_shape_of_the_first_run():
    run = run_of(case_of(PLAIN, "layernorm_fwd"))
    flat = {name: replace(one, got=one.got.reshape(-1, 1)) for name, one in run.outputs.items()}
    for name, left, right in pairs(run, replace(run, outputs=flat)):
        assert left.shape == right.shape == run.outputs[name].got.shape


def test_the_type_of_weight_counts_where_its_sum_with_an_offset_is_rounded():
    spec = replace(PLAIN, weight_offset=1.0)
    contract = Contract(offset_weight="weight")
    for weight_dtype, u in (("bfloat16", 2.0**-8), (None, 0.0)):
        run = run_of(case_of(replace(spec, weight_dtype=weight_dtype), "rmsnorm_fwd"), contract)
        assert arithmetic_of(run).offset_u == u


@pytest.mark.parametrize(
    ("value", "delta", "power", "known"),
    [
        (20000.0, 0.0, 0, True),
        (20000.0, 0.0, -3, True),
        (-20000.0, 0.0, 1, False),
        (15000.0, 0.0, 1, True),
        (30000.0, 0.0, 0, True),
        (32752.0, 0.0, 0, False),  # half the largest float16
        (32000.0, 750.0, 0, True),
        (32000.0, 800.0, 0, False),
        (math.inf, 0.0, 0, False),
        (math.nan, 0.0, 0, False),
        (1.0, math.inf, 0, False),
    ],
)
def test_what_may_overflow_at_either_scale_is_not_judged(value, delta, power, known):
    case = case_of(replace(PLAIN, dtype="float16"), "layernorm_fwd")
    y = replace(case.expected["y"], value=np.full(X.shape, value), delta=np.full(X.shape, delta))
    run = replace(run_of(case), case=replace(case, expected={"y": y}))
    expected = 0.25 if known else math.inf
    assert (judged(run, "y", np.full(X.shape, 0.25), power) == expected).all()
    if power == 0:
        assert (judged(run, "y", np.full(X.shape, 0.25)) == expected).all()


@pytest.mark.parametrize(
    ("tolerance", "power", "known"),
    [(32000.0, 0, True), (33000.0, 0, False), (17000.0, 1, False), (17000.0, -3, True), (4e12, 0, False)],
)
def test_what_may_overflow_within_the_tolerance_is_not_judged(tolerance, power, known):
    """Of gradients that cancel, as far beyond float16 as their sums are, an infinity is as right as 0."""
    case = case_of(replace(PLAIN, dtype="float16"), "layernorm_fwd")
    y = replace(case.expected["y"], value=np.zeros(X.shape), delta=np.zeros(X.shape))
    run = replace(run_of(case), case=replace(case, expected={"y": y}))
    found = judged(run, "y", np.full(X.shape, tolerance), power)
    assert (found == (tolerance if known else math.inf)).all()


def test_a_gradient_of_nan_is_wrong_and_what_is_not_judged_is_not():
    def comparison(right, tolerance):
        return Comparison("d", "dx", np.ones(1), np.array([right]), np.array([tolerance]), np.ones(1), "row")

    assert comparison(math.nan, 1.0).ratio == math.inf
    lost = replace(comparison(1.0, 1.0), left=np.array([math.nan]))
    assert lost.ratio == math.inf
    assert replace(lost, right=lost.left).ratio == 0, "another check says what is right"
    assert comparison(5.0, math.inf).ratio == 0
    assert comparison(5.0, math.inf).judged == 0
    assert comparison(5.0, math.inf).power == math.inf


def test_hoeffding_holds_for_the_worst_errors():
    rng = np.random.default_rng(0)
    for errors in (np.ones(64), rng.standard_t(2, 64), np.eye(64)[0]):
        sums = (rng.choice((-1, 1), (20000, 64)) * errors).sum(1)
        assert (np.abs(sums) <= confidence(20000) * np.linalg.norm(errors)).all()


def test_the_least_factor_that_shows_in_a_unit_counts_what_is_off_already():
    """Of four units one is 0, and one is not judged."""
    left, right = np.array([2.0, 0.0, 9.0, -4.0]), np.array([2.1, 0.0, 9.0, -4.0])
    tolerance = np.array([0.3, 1e-9, math.inf, 0.8])
    comparison = Comparison("d", "dx", left, right, tolerance, np.abs(right), "row")
    for sign, e in ((1, 0.2 / 2.1), (-1, 0.4 / 2.1)):
        assert math.isclose(comparison.smallest(sign), min(e, 0.2))
    assert replace(comparison, tolerance=np.full(4, math.inf)).smallest(1) == math.inf


def test_a_unit_of_nothing_or_without_a_tolerance_says_nothing_of_power():
    left, tolerance = np.array([1.0, 0.0, 2.0]), np.array([0.5, 1.0, math.inf])
    comparison = Comparison("d", "dx", left, left, tolerance, np.array([2.0, 0.0, 1.0]), "row")
    assert (comparison.power, comparison.local) == (0.5, 0.25)
