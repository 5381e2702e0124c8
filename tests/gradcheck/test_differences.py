"""Derivative, truncation and rounding from seven points."""

import numpy as np
import pytest
import torch

from verify_norm.core.dtypes import FORMATS
from verify_norm.gradcheck import differences
from verify_norm.gradcheck.layout import Layout


def seven(function, point, h, dtype="float64"):
    """Differences along +1 in every element; dy = 1, and the forward in `dtype`."""
    settled, grid = differences.settle(np.asarray(point, dtype=float), 3 * h, dtype)
    settled, step = torch.from_numpy(settled), torch.from_numpy(np.rint(h / grid) * grid)

    def forward(p):
        return [function(p.to(getattr(torch, dtype))).double()]

    base = forward(settled)
    layout, exact = Layout(tuple(settled.shape), 1, ()), differences.Noise(torch.zeros(1, 1), 1)
    rounding = (4 * FORMATS[dtype].u) ** 2 * base[0].square().sum().expand(16, 1)
    near = differences.Local(
        forward, settled, base, [torch.ones_like(base[0])], layout, dtype, differences.Noise(rounding, base[0].numel())
    )
    along = differences.Direction("ones", step, signs=True)
    claim = differences.Claim("x", torch.zeros_like(settled), exact)
    return differences.compare(near, along, differences.difference(near, along), claim), settled, step


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
    assert abs(found.left[0] - truth) <= found.tolerance[0]
    assert found.tolerance[0] < abs(truth) * {"float64": 1e-10, "float32": 1e-3, "bfloat16": 2}[dtype]


def test_noise_is_told_by_the_lines_that_showed_it():
    """Few lines with one number each tell little, so that Student's t is large; in many numbers it is nearly λ."""
    rng = np.random.default_rng(0)
    few, many = (torch.from_numpy(rng.chisquare(n, (16, 1))) for n in (1, 64))
    assert 10 < differences.Noise(few, 1).bound.item() < 20
    assert 6 * 8 < differences.Noise(many, 64).bound.item() < 8 * 8


@pytest.mark.parametrize("width", [1e-3, 1e-2, 0.03])
def test_a_step_too_long_for_the_function_is_not_judged(width):
    found, *_ = seven(lambda t: torch.atan(t / width), [0.0] * 8, 0.1)
    assert not found.judged


def test_a_jump_is_not_judged():
    found, *_ = seven(lambda t: torch.where(t > 0, 1.0, 0.0).double(), [0.001] * 8, 0.1)
    assert not found.judged
