"""A comparison's ratio and power, and the bound on sums with random signs."""

import math
from dataclasses import replace

import numpy as np
from counted import PLAIN, case_of, run_of

from verify_norm.checks.relations.equations import Comparison, confidence, pairs


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


def test_a_gradient_of_nan_is_wrong_and_what_is_not_judged_is_not():
    def comparison(right, tolerance):
        return Comparison("d", "dx", np.ones(1), np.array([right]), np.array([tolerance]), np.ones(1), "row")

    assert comparison(math.nan, 1.0).ratio == math.inf
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
