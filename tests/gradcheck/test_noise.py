"""The noise of a function and the type that it computes in: no false alarm, and no gradient that hides in it."""

import pytest
import torch
from functions import checks, in_float32
from torch.nn import functional

from verify_norm.gradcheck.gradcheck import gradcheck


def test_float32_inside_layernorm_is_no_false_alarm():
    assert checks(lambda x: functional.layer_norm(x.float(), x.shape[1:]).double(), {"x": (16, 64)}) == set()


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: functional.layer_norm(x + 1000.0, x.shape[1:]),
        lambda x: (x + 1000.0) - (x + 1000.0).mean(1, keepdim=True),
        lambda x: x.cumsum(1),
    ],
    ids=["layernorm", "centred", "cumsum"],
)
def test_errors_that_a_row_shares_are_no_false_alarm(function, dtype):
    """One number may be small by chance on all seven points of a line: elements that share it count once."""
    for seed in range(12):
        for shape in ((1, 256), (4, 64)):
            report = gradcheck(function, shapes={"x": shape}, seed=seed, dtypes=(dtype,))
            assert report.ok, (seed, shape, report.findings)


def shifted(function, offset):
    """Return the function with data far from 0 as its inputs."""
    generator = torch.Generator().manual_seed(0)
    function.make_inputs = lambda: {"x": offset + torch.randn(8, 64, generator=generator, dtype=torch.float64)}
    return function


@pytest.mark.parametrize(("dtype", "offset"), [("float32", 700.0), ("float32", 1e4), ("float64", 1e8)])
def test_data_far_from_0_are_not_taken_for_a_narrow_type(dtype, offset):
    class Five(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return functional.layer_norm(x, x.shape[1:])

        @staticmethod
        def backward(ctx, dy):
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad():
                y = functional.layer_norm(x, x.shape[1:])
            return 5 * torch.autograd.grad(y, x, dy)[0]

    for seed in range(5):
        right = gradcheck(shifted(lambda x: x - x.mean(0), offset), dtypes=(dtype,), seed=seed)
        assert right.ok
        assert right.notes == ()
    wrong = gradcheck(shifted(lambda x: Five.apply(x), offset), dtypes=(dtype,))
    assert {(f.check, f.output) for f in wrong.findings} == {("value", "x")}


def test_a_row_without_finite_neighbours_leaves_the_others_judged():
    class Root(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sqrt().sum(1)

        @staticmethod
        def backward(ctx, dy):
            return dy[:, None] / ctx.saved_tensors[0].sqrt() * torch.tensor([1.0, -1.0, -1.0, 1.0])

    def function(x):
        return Root.apply(x)

    x = torch.rand(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    x[3, 2] = 1e-3
    function.make_inputs = lambda: {"x": x}
    assert not gradcheck(function, dtypes=("float32",)).ok
    assert gradcheck(lambda x: x * 1e-170, shapes={"x": (4, 64)}, dtypes=("float64",)).dtypes == ("float64",)


def test_float32_inside_float64_passes():
    assert checks(lambda x, w: in_float32(x, w, torch.zeros(64)), {"x": (4, 64), "w": (64,)}) == set()


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (x.float() + w.float()).to(x.dtype),
        lambda x, w: (x.float() * w.float()).to(x.dtype),
        lambda x, w: in_float32(x, w, torch.zeros_like(w)),
        lambda x, w: x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6) * w,
    ],
    ids=["sum", "product", "rmsnorm", "rstd alone"],
)
def test_few_elements_that_round_alike_are_no_false_alarm(function):
    """One element that moves may be rounded alike at all seven points: it looks exact, but its slope is not."""
    for seed in range(10):
        for M, N in ((1, 2), (1, 9), (3, 5)):
            report = gradcheck(function, shapes={"x": (M, N), "w": (N,)}, dtypes=("float64",), seed=seed)
            assert report.ok, (seed, M, N, report.findings)
            assert any("computes in about float32" in note for note in report.notes)


@pytest.mark.parametrize("steepness", [10, 100, 1000, 10000])
def test_a_steep_function_is_not_taken_for_one_that_rounds(steepness):
    report = gradcheck(lambda x: torch.sin(steepness * x), shapes={"x": (4, 64)}, dtypes=("float64",))
    assert report.ok
    assert report.notes == ()


def test_float32_inside_float64_does_not_hide_a_gradient_that_is_a_thousandth_off():
    class Factor(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return (x.float() * w.float()).to(x.dtype)

        @staticmethod
        def backward(ctx, dy):
            x, w = ctx.saved_tensors
            return (dy.float() * w.float() * 1.001).to(x.dtype), (dy.float() * x.float()).sum(0).to(w.dtype)

    assert checks(lambda x, w: Factor.apply(x, w), {"x": (4, 64), "w": (64,)}) == {("value", "x")}
