"""The errors of two runs over the same cases: a loss of accuracy is worse, another order of a sum is not."""

import doctest
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from runs import EARLY, changes, kernel, ran, surveyed, tally, with_tallies

from verify_norm.auditing.survey import summary
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.regression import RegressionLimits
from verify_norm.core.tally import Tally
from verify_norm.core.ulp import UlpStats
from verify_norm.report.compare import errors
from verify_norm.report.compare.compare import compare
from verify_norm.report.compare.errors import of_survey, of_tally

NORMAL = np.random.default_rng(0).uniform(-0.5, 0.5, 5000)


@pytest.mark.slow
def test_a_loss_that_no_check_finds_is_worse(good):
    lossy = ran(EARLY)
    assert lossy.ok
    found = changes(good, lossy)
    expected = {"y float16 correctly rounded", "y bfloat16 correctly rounded", "y float16 mean error", "y float16 p99"}
    assert expected <= set(found)
    assert not any(what.startswith(("mean", "rstd", "y float32")) for what in found)
    assert changes(lossy, good) == {}
    assert set(changes(lossy, good, "better")) == set(found)


@pytest.mark.slow
def test_a_sum_in_another_order_is_no_loss(good):
    other = ran(kernel(reverse=True))
    assert other.tallies != good.tallies, "it computes in another order"
    assert changes(good, other) == changes(other, good) == {}


@pytest.mark.slow
def test_a_loss_in_typical_data_is_worse(good):
    old, new = surveyed(good, kernel(), 1), surveyed(good, EARLY, 1)
    assert changes(old, surveyed(good, kernel(reverse=True), 1)) == {}
    found = changes(old, new)
    assert found["y float16 correctly rounded"].why.startswith("in typical data; the limit is 1 %")
    assert "y float16 correctly rounded" in changes(new, old, "better")


def test_each_number_is_judged_alone(good):
    old = with_tallies(good, tally(NORMAL))
    shifted = with_tallies(good, tally(np.abs(NORMAL)))  # the same sizes, all of one sign
    assert set(changes(old, shifted)) == {"y float16 bias"}
    assert set(changes(old, with_tallies(good, tally(NORMAL, ratio=1.4)))) == {"y float16 error/bound"}
    tail = np.where(np.arange(5000) < 100, 3.0 * np.sign(NORMAL), NORMAL)  # 2 % of all
    assert set(changes(old, with_tallies(good, tally(tail)))) == {"y float16 correctly rounded", "y float16 p99"}
    few = np.where(np.arange(5000) < 25, 3.0 * np.sign(NORMAL), NORMAL)
    assert changes(old, with_tallies(good, tally(few))) == {}
    wide = with_tallies(good, tally(NORMAL, "float32")), with_tallies(good, tally(3 * NORMAL, "float32"))
    assert set(changes(*wide)) == {"y float32 mean error", "y float32 p99"}, "float32 is rounded correctly by chance"


def test_one_enormous_error_does_not_move_the_mean(good):
    outlier = np.concatenate([NORMAL[1:], [1e9]])
    old, new = (with_tallies(good, tally(ulps, "float32")) for ulps in (NORMAL, outlier))
    assert new.tallies[0].ulp.mean > 1e5
    assert changes(old, new) == {}


def test_the_user_sets_the_limits(good):
    old, new = (with_tallies(good, tally(np.zeros(100), ratio=ratio)) for ratio in (0.3, 0.5))
    assert set(changes(old, new)) == {"y float16 error/bound"}
    assert changes(old, new, limits=RegressionLimits(ratio=2.0)) == {}
    assert set(changes(old, new, limits=RegressionLimits(ratio=1.6))) == {"y float16 error/bound"}


def test_infinite_and_empty_tallies_are_compared_without_an_error(good):
    infinite = Tally("y", "float32", 1, 2, ulp=UlpStats.of(np.array([np.inf, 1.0]), np.ones(2), FORMATS["float32"]))
    huge = Tally("y", "float32", 1, 2, ulp=UlpStats(2, 0, 0, 1e300, 2e300, 2e300, (0,) * 161 + (2,)), ratio=np.inf)
    empty, foreign = Tally("y", "float32"), Tally("y", "float5", 1, 2, ulp=UlpStats(2, histogram=(1, 1)))
    for one, other in permutations((infinite, huge, empty, foreign), 2):
        compare([with_tallies(good, one)], [with_tallies(good, replace(other, dtype=one.dtype))])
    assert np.isnan(of_tally(foreign).capped)


def test_a_survey_has_the_same_moments_as_a_tally():
    ulps = np.random.default_rng(1).uniform(0, 4, 4000)
    one = tally(ulps)
    fine, coarse = of_tally(one), of_survey(summary(one))
    assert coarse.capped == pytest.approx(fine.capped, rel=0.1)
    assert fine.capped == pytest.approx(ulps.mean(), rel=0.03)
    assert fine.rms == pytest.approx(np.sqrt(np.square(ulps).mean()), rel=0.03)


def test_the_examples_in_its_documentation():
    assert doctest.testmod(errors).attempted >= 3
    assert not doctest.testmod(errors).failed
