"""Functions with one number out, or one a row: losses, norms, logsumexp."""

from itertools import product

import pytest
import torch
from functions import FEW_OUTPUTS, changed, checks
from torch.nn import functional

from verify_norm.gradcheck.gradcheck import gradcheck

TYPES = ("float64", "float32")
UNUSUAL = (*TYPES, "bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW_OUTPUTS)
def test_a_thousandth_shows(name):
    function = FEW_OUTPUTS[name]
    for dtype in TYPES:
        options = {"shapes": {"x": (4, 64)}, "dtypes": [dtype]}
        assert checks(changed(function, lambda g: 1.001 * g), **options) == {("value", "x")}
        assert checks(function, **options) == set()


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("shape", [(4, 64), (32, 512)])
@pytest.mark.parametrize("name", FEW_OUTPUTS)
def test_errors_of_a_loss_show_at_another_seed_and_in_a_larger_tensor(name, shape):
    for dtype in TYPES:  # benchmarks/gradcheck.py takes four seeds of each, and more errors
        options = {"shapes": {"x": shape}, "dtypes": [dtype], "seed": int(shape[0] < 32)}
        for error in (1e-3, 1.0):
            wrong = changed(FEW_OUTPUTS[name], lambda g, error=error: (1 + error) * g)
            assert checks(wrong, **options) == {("value", "x")}, (error, options)
        assert checks(FEW_OUTPUTS[name], **options) == set(), options


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", FEW_OUTPUTS)
def test_other_mistakes_in_a_loss_show(name, dtype):
    def row(g, factor):
        return torch.cat([g[:2], factor * g[2:3], g[3:]])

    for change in (torch.neg, torch.zeros_like, torch.ones_like, lambda g: g.roll(1, 1), lambda g: row(g, 0.9)):
        assert checks(changed(FEW_OUTPUTS[name], change), {"x": (4, 64)}, dtypes=[dtype]) == {("value", "x")}


@pytest.mark.parametrize("dtype", TYPES)
def test_each_input_of_a_loss_is_held_to_its_gradient(dtype):
    class Weighted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, factors):
            ctx.save_for_backward(x, w)
            ctx.factors = factors
            return (w * x.square()).mean(), (w * x).sum(-1)

        @staticmethod
        def backward(ctx, dy, dz):
            x, w = ctx.saved_tensors
            n, dz = x.numel(), dz[:, None]
            dx, dw = dy * 2 * w * x / n + dz * w, (dy * x.square() / n + dz * x).sum(0)
            return ctx.factors[0] * dx, ctx.factors[1] * dw, None

    for factors, wrong in (((1, 1), set()), ((1.01, 1), {"x"}), ((1, 0), {"w"}), ((-1, 2), {"x", "w"})):
        found = checks(lambda x, w, f=factors: Weighted.apply(x, w, f), {"x": (8, 32), "w": (32,)}, dtypes=[dtype])
        assert found == {("value", name) for name in wrong}


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("dtype", UNUSUAL)
def test_right_losses_pass_at_unusual_points(dtype):
    """Each function meets each point in all types, and each offset in one of them: the types take turns."""
    points = torch.randn(5, 1), torch.randn(1, 9), torch.zeros(3, 4), torch.randn(6, 7).round()
    for (i, x), (j, (name, function)) in product(enumerate(points), enumerate(FEW_OUTPUTS.items())):
        if name == "variance" and x.shape[1] == 1:
            continue
        offset = (0.0, 10.0, 1000.0)[(i + j + UNUSUAL.index(dtype)) % 3]

        def called(x, function=function):
            return function(x)

        called.make_inputs = lambda x=offset + x: (x,)
        found = gradcheck(called, dtypes=[dtype]).findings
        assert all("is nan" in f.message for f in found), (name, offset, x.shape, found)


def test_a_function_with_a_row_of_outputs_and_a_scalar_passes():
    def function(x):
        return x.sin().sum(), functional.softmax(x, -1), x.norm(dim=-1)

    assert checks(function, {"x": (5, 16)}, dtypes=TYPES) == set()
