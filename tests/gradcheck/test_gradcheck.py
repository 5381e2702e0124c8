"""`verify-norm gradcheck`: right functions pass, and every way a gradient is wrong is detected."""

import numpy as np
import pytest
import torch
from functions import SHAPES, checks, made, right
from torch.nn import functional

from verify_norm.core.errors import UsageError
from verify_norm.gradcheck.gradcheck import gradcheck
from verify_norm.gradcheck.report import text


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_right_functions_pass(dtype):
    options = {"dtypes": [dtype]}
    assert checks(made(right), **options) == set()
    assert checks(lambda x, w: functional.layer_norm(x, w.shape, w), **options) == set()
    assert checks(lambda x: functional.group_norm(x, 2), {"x": (3, 4, 5)}, **options) == set()
    assert checks(lambda x: functional.softmax(x, -1), {"x": (6, 9)}, **options) == set()
    assert checks(lambda x: x.mean(0), {"x": (6, 9)}, **options) == set()
    assert checks(lambda x: (x.exp(), x.sum(1)), {"x": (6, 9)}, **options) == set()
    assert checks(lambda x: x.square().sum(), {"x": (7,)}, **options) == set()


WRONG = {
    "a factor": (lambda ctx, dy, x, w: (1.001 * dy * w * x.cos(), (dy * x.sin()).sum(0)), ("value", "x")),
    "w left out": (lambda ctx, dy, x, w: (dy * x.cos(), (dy * x.sin()).sum(0)), ("value", "x")),
    "no sum": (lambda ctx, dy, x, w: (dy * w * x.cos(), (dy * x.sin())[0]), ("value", "w")),
    "NaN": (lambda ctx, dy, x, w: (dy * w * x.cos() / 0, (dy * x.sin()).sum(0)), ("value", "x")),
    "None": (lambda ctx, dy, x, w: (dy * w * x.cos(), None), ("none", "w")),
    "one too few": (lambda ctx, dy, x, w: dy * w * x.cos(), ("signature", "")),
    "one too many": (lambda ctx, dy, x, w: (*right(ctx, dy, x, w), dy), ("signature", "")),
    "shape": (lambda ctx, dy, x, w: (dy * w * x.cos(), dy[:, :5].sum(0)), ("signature", "")),
    "dtype": (lambda ctx, dy, x, w: (dy * w * x.cos(), (dy * x.sin()).sum(0).float()), ("signature", "w")),
    "raises": (lambda ctx, dy, x, w: 1 / 0, ("signature", "")),
    "writes to dy": (lambda ctx, dy, x, w: (right(ctx, dy, x, w), dy.mul_(2))[0], ("mutation", "dy")),
    "writes to x": (lambda ctx, dy, x, w: (right(ctx, dy, x, w), x.detach().mul_(2))[0], ("mutation", "x")),
    "dy's memory": (
        lambda ctx, dy, x, w: right(ctx, torch.as_strided(dy, dy.shape, x.stride()), x, w),
        ("layout", "x"),
    ),
    "frozen x": (
        lambda ctx, dy, x, w: (dy * w * x.cos(), (dy * x.sin()).sum(0) * ctx.needs_input_grad[0]),
        ("frozen", "w"),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_functions_are_detected(name):
    backward, finding = WRONG[name]
    assert finding in checks(made(backward))


def test_one_element_of_many_shows_and_its_row_is_named():
    def backward(ctx, dy, x, w):
        dx, dw = right(ctx, dy, x, w)
        dx[3, 17] *= 1.01
        return dx, dw

    for dtype in ("float64", "float32"):
        (found,) = gradcheck(made(backward), shapes=SHAPES, dtypes=[dtype]).findings
        assert "in row 3" in found.message


def test_an_unused_input_may_have_no_gradient():
    assert checks(lambda x, w: x.sin()) == set()


def test_rows_that_depend_on_each_other_are_one_unit():
    report = gradcheck(lambda x: x - x.mean(0), shapes={"x": (6, 32)})
    assert report.ok
    assert {c.units for c in report.compared} == {1}
    assert {c.units for c in gradcheck(lambda x: x.sin(), shapes={"x": (6, 32)}).compared} == {1, 6}


def test_statistics_that_require_no_gradient_are_left_out():
    def norm(x):
        rstd = torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6)
        return x * rstd, rstd.detach().float()

    report = gradcheck(norm, shapes={"x": (4, 64)})
    assert report.ok
    assert report.notes[0] == "floating-point output 1, of shape (4, 1), requires no gradient and is left out"
    assert report.compared[0].local < 1e-9


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("narrow", ["float32", "bfloat16", "float16", ""])
def test_a_gradient_that_is_wrong_in_one_narrower_type_alone(narrow):
    def backward(ctx, dy, x, w):
        dx, dw = right(ctx, dy, x, w)
        return dx, dw * (1.5 if narrow and dw.dtype == getattr(torch, narrow) else 1)

    report = gradcheck(made(backward), shapes=SHAPES)
    assert {(f.check, f.output, f.dtype) for f in report.findings} == ({("value", "w", narrow)} if narrow else set())
    assert report.dtypes == ("float64",)
    others = [dtype for dtype in ("float32", "bfloat16", "float16") if dtype != narrow]
    assert report.notes[-1].startswith(f"in {', '.join(others)} no gradient")
    assert gradcheck(lambda x: x.abs().sqrt(), shapes={"x": (16, 64)}).ok, "a value that is rounded to its pole"


@pytest.mark.parametrize("empty", [lambda x: x[:0], lambda x: x[:, :0], lambda x: x[0, :0]])
def test_empty_outputs_are_no_obstacle(empty):
    report = gradcheck(lambda x: (x.sin(), empty(x)), shapes={"x": (4, 5)})
    assert report.ok
    assert all(c.judged == c.units for c in report.compared)
    with pytest.raises(UsageError, match="returns empty tensors, so there is nothing to check"):
        gradcheck(empty, shapes={"x": (4, 5)})


def test_an_input_may_be_one_number():
    assert gradcheck(lambda x, w: x * w, shapes={"x": (4, 5), "w": ()}).ok


def test_a_wider_type_that_is_refused_is_noted():
    def float32_only(x):
        if x.dtype != torch.float32:
            raise TypeError("float32, please")
        return x.sin()

    report = gradcheck(float32_only)
    assert report.ok
    assert report.dtypes == ("float32",)
    assert "float32, please" in report.notes[0]


@pytest.mark.parametrize("steepness", [1e2, 1e4, 1e6, 1e9])
def test_a_steep_function_is_right_or_not_judged(steepness):
    report = gradcheck(lambda x: torch.atan(steepness * x), shapes={"x": (1, 40)})
    assert not report.findings
    if not report.checked:
        assert "no step is short enough" in text(report)
        assert not report.ok


def dropping(x):
    return functional.dropout(x, 0.5)


def scaling(x):
    with torch.no_grad():
        x.mul_(2)
    return x * 1


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (dropping, "random"),
        (scaling, "mutates its input"),
        (lambda x: x.mul_(2), "mutates its input"),
        (lambda x: x.detach() * 2, "not differentiable"),
        (lambda x: 1.0, "returns a float"),
        (lambda x: {"y": x}, "returns a dict"),
        (lambda x: x.argmax(), "no floating-point tensor"),
        (lambda x: x @ x, "cannot be called"),
        (lambda x: x / 0, "NaN or infinity"),
        (lambda quantity: quantity, "for tensors pass --shapes quantity=4x64"),
        (lambda x, eps: x + eps, "needs eps: .* add a default, or leave --shapes out and write make_inputs"),
    ],
)
def test_what_cannot_be_checked_is_one_line(function, words):
    with pytest.raises(UsageError, match=words) as error:
        gradcheck(function)
    assert "\n" not in str(error.value)


def test_an_empty_input_is_one_line():
    for shapes in ({"x": (0, 64), "w": (64,)}, {"x": (4, 0), "w": (0,)}):
        with pytest.raises(UsageError, match=r"x of <lambda> is empty \([04]×(64|0)\), so there is nothing to check"):
            gradcheck(lambda x, w: x * w, shapes=shapes)


def test_an_unknown_operator_is_refused_first():
    for target in (lambda x, eps: x + eps, "no/such/file.py:f"):
        with pytest.raises(UsageError, match=r"unknown operator .layernrm. .did you mean layernorm"):
            gradcheck(target, op="layernrm")


@pytest.mark.slow
def test_the_same_seed_gives_the_same_numbers():
    first, second, other = (gradcheck(made(right), shapes=SHAPES, seed=seed) for seed in (1, 1, 2))
    assert first.compared == second.compared != other.compared


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_no_false_alarm_on_random_shapes(dtype):
    rng = np.random.default_rng(0)
    for seed in range(20):
        M, N = (int(2 ** rng.uniform(0, 5)) for _ in range(2))
        shapes = {"x": (M, N), "weight": (N,), "bias": (N,)}
        report = gradcheck(
            lambda x, weight, bias: functional.layer_norm(x, weight.shape, weight, bias),
            shapes=shapes,
            dtypes=[dtype],
            seed=seed,
        )
        assert not report.findings, (shapes, seed)
