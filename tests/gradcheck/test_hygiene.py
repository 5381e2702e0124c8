"""The layout of dy, and the precision that gradients are held to."""

import pytest
import torch
from functions import checks, in_float32

from verify_norm.core.dtypes import FORMATS
from verify_norm.gradcheck.gradcheck import gradcheck
from verify_norm.gradcheck.hygiene import precision as precision_of
from verify_norm.gradcheck.subject import Subject, gradients


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(("M", "N"), [(4, 64), (64, 64), (300, 5)])
def test_the_layout_is_held_to_float32_inside_float64(M, N):
    shapes = {"x": (M, N), "w": (N,), "bias": (N,)}
    for seed in range(5):
        assert "layout" not in {check for check, _ in checks(in_float32, shapes, seed=seed)}


def test_float32_inside_float64_does_not_hide_how_dy_is_read():
    class Contiguous(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *args):
            ctx.save_for_backward(*args)
            return in_float32(*args)

        @staticmethod
        def backward(ctx, dy):
            leaves = [value.detach().requires_grad_() for value in ctx.saved_tensors]
            with torch.enable_grad():
                y = in_float32(*leaves)
            return torch.autograd.grad(y, leaves, torch.as_strided(dy, dy.shape, y.stride()))

    shapes = {"x": (4, 64), "w": (64,), "bias": (64,)}
    report = gradcheck(lambda x, w, bias: Contiguous.apply(x, w, bias), shapes=shapes)
    for when in ("transposed", "expanded"):
        assert {f.output for f in report.findings if when in f.message} == {"x", "w", "bias"}
    assert {f.check for f in report.findings} == {"layout"}


@pytest.mark.parametrize(
    ("strides", "words"),
    [((0, 20, 4, 1), "first dimension"), ((60, 20, 4, 0), "last dimension"), ((4, 0, 0, 1), "inner dimensions")],
)
def test_dy_of_a_sum_over_any_dimensions_is_read_by_its_strides(strides, words):
    class Dense(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, dy):
            repeated = [stride == 0 for stride in dy.stride()] == [stride == 0 for stride in strides]
            return ctx.saved_tensors[0].cos() * (torch.ones_like(dy) if repeated else dy)

    def found(function):
        return {(f.check, f.message) for f in gradcheck(function, shapes={"x": (2, 3, 5, 4)}).findings}

    assert not found(lambda x: x.sin())
    ((check, message),) = found(lambda x: Dense.apply(x))
    assert check == "layout"
    assert f"expanded along its {words}" in message


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, None])
def test_a_gradient_that_rounds_as_in_a_narrow_type_is_noted(dtype):
    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x.exp())
            return x.exp()

        @staticmethod
        def backward(ctx, dy):
            return (dy * ctx.saved_tensors[0]).to(dtype or dy.dtype).to(dy.dtype)

    report = gradcheck(lambda x: Exp.apply(x), shapes={"x": (4, 16)})
    assert report.ok
    assert any("rounds as in a 16-bit type" in note for note in report.notes) == (
        dtype in (torch.bfloat16, torch.float16)
    )


def test_an_input_may_be_among_the_outputs():
    assert gradcheck(lambda x: (x, x.square()), shapes={"x": (4, 5)}).ok
    assert gradcheck(lambda x: torch.nn.functional.dropout(x, 0.0), shapes={"x": (4, 5)}).ok
    wrong = gradcheck(lambda x: (x, x.detach() * x), shapes={"x": (4, 5)})
    assert {f.check for f in wrong.findings} == {"value"}


def test_precision_is_that_of_a_narrower_arithmetic():
    def precision(function, dtype):
        points = {"x": torch.linspace(-3, 3, 40, dtype=torch.float64).reshape(8, 5)}
        subject = Subject("f", function, points, points, dtype)
        dy = [torch.linspace(1, 2, 40, dtype=torch.float64).reshape(8, 5).to(getattr(torch, dtype))]
        return precision_of(subject, dy, gradients(subject, dy))["x"]

    for dtype in ("float64", "float32", "bfloat16"):
        u = FORMATS[dtype].u
        assert precision(torch.sin, dtype) == precision(torch.relu, dtype) == precision(lambda x: x * 0, dtype) == u
        inside = precision(lambda x: x.float().sin().to(x.dtype), dtype)
        assert inside == u if dtype != "float64" else 2**-26 < inside < 2**-23


def spoiled(how):
    """tanh whose backward does something with some dy."""

    class Spoiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return torch.tanh(x)

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            return how(dy) * (1 - torch.tanh(x) ** 2)

    return lambda x: Spoiled.apply(x)


@pytest.mark.parametrize("seed", [1, 3, 8])
def test_what_a_larger_term_absorbs_is_no_error(seed):
    """Where y is all but 1, dy − Σ y·dy of a softmax is 0 unless dy is 0 there, whatever the other terms are."""
    report = gradcheck(lambda x: (60 * x).softmax(0), shapes={"x": (5, 1)}, dtypes=("float64",), seed=seed)
    assert report.findings == ()


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(6, 8), (2, 3, 4), (1, 4), ()])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_gradients_are_linear_in_dy(shape, dtype):
    assert checks(spoiled(lambda dy: dy), {"x": shape}, dtypes=(dtype,)) == set()
    clipped = checks(spoiled(lambda dy: dy.clamp(-4, 4)), {"x": shape}, dtypes=(dtype,))
    assert ("linear", "x") in clipped
    if shape[:1] > (1,) and FORMATS[dtype].u < 2**-20:  # a tolerance of 64·√n·u is all of the gradient in 16 bits
        doubled = spoiled(lambda dy: dy * (2 if (dy == 0).any() else 1))
        assert ("linear", "x") in checks(doubled, {"x": shape}, dtypes=(dtype,))
