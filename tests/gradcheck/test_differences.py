"""Derivative, truncation and rounding from seven points."""

import numpy as np
import pytest
import torch

from verify_norm.core.dtypes import FORMATS
from verify_norm.gradcheck import differences


def seven(function, point, h, dtype="float64", units=1):
    """Differences along +1 in every element; dy = 1, and the forward in `dtype`."""
    settled, grid = differences.settle(np.asarray(point, dtype=float), 3 * h, dtype)
    settled, step = torch.from_numpy(settled), torch.from_numpy(np.rint(h / grid) * grid)

    def forward(p):
        return [function(p.to(getattr(torch, dtype))).double()]

    base = forward(settled)
    near = differences.Local(forward, settled, base, [torch.ones_like(base[0])], units, dtype)
    return differences.difference(near, differences.Direction("ones", step, signs=True)), settled, step


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_every_point_of_a_stencil_is_a_number_of_its_format(dtype):
    rng = np.random.default_rng(0)
    h = differences.step_length(dtype)
    point, grid = differences.settle(rng.standard_normal(1000) * 10.0 ** rng.integers(-6, 3, 1000), 3 * h, dtype)
    step = np.rint(h * rng.choice((-1, 1), 1000) / grid) * grid
    for k in range(-3, 4):
        assert (FORMATS[dtype].round(point + k * step) == point + k * step).all()


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("function", [torch.sin, torch.exp, lambda t: t**5, lambda t: 3 * t])
def test_the_derivative_is_within_its_error_bound(dtype, function):
    found, point, step = seven(function, np.linspace(-1, 1, 64), differences.step_length(dtype), dtype)
    at = point.clone().requires_grad_()
    truth = (torch.autograd.grad(function(at).sum(), at)[0] * step).sum()
    assert (found.derivative - truth).abs() <= found.truncation + found.rounding
    assert found.truncation + found.rounding < truth.abs() * {"float64": 1e-10, "float32": 1e-3, "bfloat16": 2}[dtype]


def test_a_function_that_computes_in_a_narrower_type_shows_its_rounding():
    point = np.random.default_rng(0).standard_normal(256)
    true, *_ = seven(torch.sin, point, 1e-3)
    false, *_ = seven(lambda t: t.float().sin().double(), point, 1e-3)
    assert true.rounding < 1e-12 < 1e-7 < false.rounding


@pytest.mark.parametrize("width", [1e-3, 1e-2, 0.03])
def test_a_step_too_long_for_the_function_is_not_judged(width):
    found, *_ = seven(lambda t: torch.atan(t / width), [0.0] * 8, 0.1)
    assert found.truncation.isinf().all()


def test_a_jump_is_not_judged():
    found, *_ = seven(lambda t: torch.where(t > 0, 1.0, 0.0).double(), [0.001] * 8, 0.1)
    assert found.truncation.isinf().all() or found.rounding.min() > 0.5
