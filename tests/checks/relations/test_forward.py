"""A kernel's own forward near a case: how far it moves, beside the reference."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from checking import run_of
from norms import layernorm, layernorm_bwd

from verify_norm.checks.relations.forward import expected_at, move, reference_at
from verify_norm.checks.relations.rerun import NearbyError
from verify_norm.core import judge
from verify_norm.core.spec import CaseSpec

SPEC = CaseSpec((4, 16), x_layout="expanded")  # whose rows share memory, and move apart here


def with_forward(function, spec=SPEC):
    run = run_of(layernorm_bwd(), spec, "layernorm_bwd")
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


def test_a_move_is_the_difference_of_both_ends_within_what_each_is_allowed():
    run = with_forward(layernorm())
    at, tensors = ends(run), run.case.arguments
    moved = move(run, *at)
    (one, two), (a, b) = zip(*((e.value, judge.allowed(e)) for e in (expected_at(run, end) for end in at)), strict=True)
    np.testing.assert_allclose(moved.reference, one - two)
    np.testing.assert_allclose(moved.allowed, np.sqrt(a * a + b * b))
    np.testing.assert_allclose(moved.most, a + b)
    made = [
        layernorm()(torch.from_numpy(end["x"]).float(), tensors["weight"], tensors["bias"], SPEC.eps, (16,))[0]
        for end in at
    ]
    assert (moved.kernel == (made[0].double() - made[1].double()).numpy()).all()
    assert (np.abs(moved.kernel - moved.reference) <= moved.most).all()


def test_nothing_is_known_of_an_element_that_may_overflow_at_one_end():
    run = with_forward(layernorm(), replace(SPEC, dtype="float16", x_layout="contiguous"))
    weight = np.where(np.arange(16) == 0, 40000.0, 1.0)
    run = replace(run, case=replace(run.case, exact={**run.case.exact, "weight": weight, "bias": 0 * weight}))
    high, low = np.zeros((4, 16)), np.zeros((4, 16))
    high[:, 0], high[:, 1], low[:, 1] = 8.0, 1.0, 4.0  # x̂ of the first element is almost 4, and −¼
    for ends_, sign in (((high, low), 1), ((low, high), -1)):
        moved = move(run, *({"x": x} for x in ends_))
        assert (moved.kernel[:, 0] == 0).all()
        assert np.isinf(moved.allowed[:, 0]).all()
        assert np.isinf(moved.most[:, 0]).all()
        assert np.isfinite(moved.most[:, 1:]).all()
        assert (moved.kernel[:, 1] * sign < -3).all()


@pytest.mark.parametrize(
    ("layout", "strides"), [("contiguous", (16, 1)), ("transposed", (1, 4)), ("expanded", (16, 1)), ("scalar", (16, 1))]
)
def test_x_has_the_layout_of_the_case_unless_its_rows_share_memory(layout, strides):
    seen = []

    def forward(x, weight, bias, eps, normalized_shape):
        seen.append(x.stride())
        return layernorm()(x, weight, bias, eps, normalized_shape)

    run = with_forward(forward, replace(SPEC, x_layout=layout))
    move(run, *ends(run))
    assert seen == [strides] * 2


@pytest.mark.parametrize(("poison", "missing"), [("nan", True), ("finite", False)])
def test_unwritten_memory_and_gaps_hold_the_poison_of_the_case(poison, missing):
    gaps = []

    def forward(x):
        gaps.append(x.as_strided((1,), (1,), x.storage_offset() + x.shape[1]).item())  # behind the first row
        return torch.empty_like(x), x[:, 0], x[:, 0]

    run = with_forward(forward, replace(SPEC, x_layout="row_strided", poison=poison))
    moved = move(run, *ends(run))
    assert np.isnan(moved.kernel).all() == np.isnan(gaps).all() == missing
    assert np.isnan(gaps).any() == missing
    assert missing or gaps == [run.case.poison] * 2
