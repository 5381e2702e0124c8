"""A kernel's own forward near a case: how far it moves, beside the reference."""

from dataclasses import replace

import numpy as np
import pytest
from checking import run_of
from norms import layernorm, layernorm_bwd

from verify_norm.checks.relations.forward import expected_at, move, reference_at
from verify_norm.checks.relations.rerun import NearbyError
from verify_norm.core.spec import CaseSpec

SPEC = CaseSpec((4, 16), x_layout="expanded")  # whose rows share memory, and move apart here


def with_forward(function):
    run = run_of(layernorm_bwd(), SPEC, "layernorm_bwd")
    return replace(run, kernel=replace(run.kernel, forward_run=function))


def ends(run, step=2.0**-6):
    x = run.case.exact["x"]
    v = np.random.default_rng(0).choice([-step, step], x.shape)
    return {"x": (x + v).astype(np.float32).astype(float)}, {"x": (x - v).astype(np.float32).astype(float)}


@pytest.mark.slow
def test_a_right_forward_moves_as_the_reference_does_and_one_of_another_eps_does_not():
    for function, right in (
        (layernorm(), True),
        (lambda x, weight, bias: layernorm()(x, weight, bias, 0.1, (16,)), False),
    ):
        run = with_forward(function)
        moved = move(run, *ends(run))
        assert np.abs(moved.reference).max() > 0.01
        assert (np.abs(moved.kernel - moved.reference) <= moved.most).all() == right
        assert (moved.allowed <= moved.most).all()


def test_the_truth_at_a_moved_input_is_that_of_the_forward():
    run = with_forward(layernorm())
    plus, _ = ends(run)
    x, w, b = plus["x"], run.case.exact["weight"], run.case.exact["bias"]
    want = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + SPEC.eps) * w + b
    np.testing.assert_allclose(expected_at(run, plus).value, want, rtol=1e-12, atol=1e-12)
    halved = reference_at(run.case.op, run.case, {"dy": run.case.exact["dy"] / 2})
    np.testing.assert_allclose(halved.dx, reference_at(run.case.op, run.case).dx / 2, rtol=1e-12)


@pytest.mark.parametrize(
    ("function", "said"),
    [(lambda x: 1 / 0, "ZeroDivisionError"), (lambda x: x[:1], "no y of the right shape"), (lambda x: None, "no y")],
)
def test_a_forward_that_fails_there_says_why(function, said):
    run = with_forward(function)
    with pytest.raises(NearbyError, match=said):
        move(run, *ends(run))
