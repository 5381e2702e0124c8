"""Functions with corners: relu, max, clamp, abs."""

import pytest
import torch
from functions import changed, checks

from verify_norm.gradcheck.gradcheck import gradcheck

CORNERED = {
    "relu": torch.relu,
    "maximum": lambda x: x.amax(-1),
    "clamp": lambda x: x.clamp(-1, 1),
    "abs": torch.abs,
    "sum of relu": lambda x: x.relu().sum(-1),
    "L1": lambda x: x.abs().mean(),
    "perceptron": lambda x: (x @ torch.arange(16 * x.shape[1]).to(x.dtype).sin().reshape(-1, 16)).relu(),
}
TYPES = ("float64", "float32")


def row_doubled(g):
    return torch.cat([g[:1], 2 * g[1:2], g[2:]])


def element_doubled(g):
    g = g.clone()
    g[3, g[3].abs().argmax()] *= 2
    return g


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", CORNERED)
def test_a_hundredth_and_a_row_show(name, dtype):
    options = {"shapes": {"x": (32, 512)}, "dtypes": [dtype]}
    assert checks(CORNERED[name], **options) == set()
    assert checks(changed(CORNERED[name], lambda g: 1.01 * g), **options) == {("value", "x")}
    assert checks(changed(CORNERED[name], row_doubled), **options) == {("value", "x")}
    if name != "L1":  # one of 16,384 elements of a mean is below its rounding in float32
        assert checks(changed(CORNERED[name], element_doubled), **options) == {("value", "x")}


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), [("relu", "float32")])  # benchmarks/gradcheck.py has the others
def test_a_large_tensor_does_not_hide_them(name, dtype):
    options = {"shapes": {"x": (128, 2048)}, "dtypes": [dtype]}
    assert checks(CORNERED[name], **options) == set()
    for change in (lambda g: 1.01 * g, row_doubled, element_doubled):
        assert checks(changed(CORNERED[name], change), **options) == {("value", "x")}


def test_elements_at_a_corner_are_left_out_and_counted():
    def function(x):
        return torch.relu(x)

    x = torch.randn(6, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[2, :3] = 0.0
    function.make_inputs = lambda: {"x": x}
    report = gradcheck(function)
    assert report.ok
    assert any("3 of 192 elements of x lie at a corner" in note for note in report.notes)


def test_a_jump_is_not_taken_for_a_slope():
    assert not gradcheck(lambda x: x + x.detach().floor(), shapes={"x": (6, 32)}).findings
