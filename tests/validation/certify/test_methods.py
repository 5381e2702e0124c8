"""Each method passes a right derivative, detects one that is off by little, and counts what is not finite as wrong."""

from dataclasses import replace

import numpy as np
import pytest

from verify_norm.validation.certify.methods import METHODS, RESOLVES, WHY, agreement, as_published
from verify_norm.validation.certify.probes import Probe


def probe(slope=1.0, **other):
    """f(t) = exp(t) − 1 and 2·sin(t), with the derivatives 1 and 2 at 0."""
    given = {"claim": np.array([slope, 2.0]), "size": np.array([1.0, 2.0]), "magnitude": np.ones(2), "length": 1.0}
    return Probe("dx", lambda t: np.array([np.expm1(t), 2 * np.sin(t)]), **(given | other), kappa=0.0)


@pytest.mark.parametrize("method", METHODS)
def test_a_right_derivative_passes_and_one_a_part_in_10_6_off_does_not(method):
    error, allowed, ok = METHODS[method](probe())
    assert ok
    assert error <= allowed < 1e-8
    error, allowed, ok = METHODS[method](probe(1 + 1e-6))
    assert not ok
    assert error == pytest.approx(1e-6, rel=0.01)
    assert WHY[method]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_claim_that_is_not_finite_is_wrong(method, value):
    error, _, ok = METHODS[method](probe(value))
    assert error == np.inf
    assert not ok


def test_the_worst_entry_is_the_one_that_is_largest_against_its_allowance():
    one = probe(size=np.array([4.0, 10.0]))
    assert agreement(np.array([1e-6, -3e-6]), np.array([1e-6, 2e-6]), one) == (3e-7, 2e-7, False)
    assert agreement(np.array([0.0, 0.0]), np.zeros(2), one) == (0.0, 0.0, True)
    assert agreement(np.array([0.0, 1e-300]), np.zeros(2), one)[2] is False


def test_a_method_that_allows_too_much_has_checked_nothing():
    one, exact = probe(), np.zeros(2)
    assert agreement(exact, np.full(2, RESOLVES * 2.0), one)[2]
    assert not agreement(exact, np.full(2, RESOLVES * 2.1), one)[2]


def test_richardsons_step_removes_the_h_squared_of_a_cubic():
    """D(h) = 1 + h² of t + t³: what is left is round-off, far below the step."""
    cubic = replace(
        probe(), path=lambda t: np.array([t + t**3]), claim=np.ones(1), size=np.ones(1), magnitude=np.ones(1)
    )
    error, allowed, ok = METHODS["central difference"](cubic)
    assert ok
    assert error < 1e-11 < 1e-10 < allowed


def test_the_published_check_by_hand():
    """Of 3·p[0] at p = 0 float32 takes the slope 3 nearly exactly, so a gradient of 1 is (3 − 1)/(3 + 1) off."""
    x, slope = np.zeros(2), np.array([3.0, 0.0])
    assert as_published(lambda p: (p * np.float32(3.0))[0], x, slope) < 1e-6
    wrong = as_published(lambda p: (p * np.float32(3.0))[0], x, np.array([1.0, 0.0]))
    assert wrong == pytest.approx((3 - 1) / (3 + 1), rel=1e-4)
