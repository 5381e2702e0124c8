"""`verify-norm gradcheck`: every way a gradient is wrong has a function that shows it, and right ones pass."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from verify_norm.dtypes import FORMATS
from verify_norm.gradcheck import gradcheck
from verify_norm.gradhygiene import Subject, _precision, gradients
from verify_norm.gradinputs import parse_shapes
from verify_norm.registry import UsageError
from verify_norm.report.gradcheck import dump, text

SHAPES = {"x": (6, 32), "w": (32,)}


def made(backward, forward=lambda x, w: torch.sin(x) * w):
    """A fused function of x and w whose backward(ctx, dy, x, w) is given."""

    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return forward(x, w)

        @staticmethod
        def backward(ctx, dy):
            return backward(ctx, dy, *ctx.saved_tensors)

    return lambda x, w: Fused.apply(x, w)


def right(ctx, dy, x, w):
    return dy * w * x.cos(), (dy * x.sin()).sum(0)


def checks(function, shapes=SHAPES, **options):
    report = gradcheck(function, shapes=shapes, **options)
    assert report.checked
    assert report.ok is (not report.findings)
    return {(f.check, f.output) for f in report.findings}


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
        lambda ctx, dy, x, w: right(ctx, torch.as_strided(dy, dy.shape, x.stride()), x, w), ("layout", "x"),
    ),
    "frozen x": (
        lambda ctx, dy, x, w: (dy * w * x.cos(), (dy * x.sin()).sum(0) * ctx.needs_input_grad[0]), ("frozen", "w"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_functions_are_convicted(name):
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
    assert {c.units for c in gradcheck(lambda x: x.sin(), shapes={"x": (6, 32)}).compared} == {6}


def test_statistics_that_require_no_gradient_are_left_out():
    def norm(x):
        rstd = torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6)
        return x * rstd, rstd.detach().float()

    report = gradcheck(norm, shapes={"x": (4, 64)})
    assert report.ok
    assert report.notes == ("floating-point output 1, of shape (4, 1), requires no gradient and is left out",)
    assert report.compared[0].local < 1e-9


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


def test_float64_that_is_not_is_no_false_alarm():
    assert checks(lambda x: functional.layer_norm(x.float(), x.shape[1:]).double(), {"x": (16, 64)}) == set()


def in_float32(x, w, bias):
    x32 = x.float()
    rstd = torch.rsqrt(x32.square().mean(-1, keepdim=True) + 1e-6)
    return (x32 * rstd * w.float() + bias.float()).to(x.dtype)


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
    """One number may be small by chance on all seven points of a line: elements that share it tell it only once."""
    for seed in range(25):
        for shape in ((1, 256), (4, 64)):
            report = gradcheck(function, shapes={"x": shape}, seed=seed, dtypes=(dtype,))
            assert report.ok, (seed, shape, report.findings)


def shifted(function, offset):
    """The function of data far from 0."""
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


def test_a_row_without_a_value_near_by_leaves_the_others_judged():
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


@pytest.mark.parametrize(("M", "N"), [(4, 64), (64, 64), (300, 5)])
def test_float32_inside_float64_is_what_the_layout_is_held_to(M, N):
    shapes = {"x": (M, N), "w": (N,), "bias": (N,)}
    for seed in range(5):
        assert "layout" not in {check for check, _ in checks(in_float32, shapes, seed=seed)}


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
    """One element that moves may be rounded alike at all seven points: it looks exact, and its slope is not."""
    for seed in range(20):
        for M, N in ((1, 2), (1, 9), (3, 5)):
            report = gradcheck(function, shapes={"x": (M, N), "w": (N,)}, seed=seed)
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


def test_precision_is_the_arithmetics_where_it_is_not_the_types():
    def precision(function, dtype):
        points = {"x": torch.linspace(-3, 3, 40, dtype=torch.float64).reshape(8, 5)}
        subject = Subject("f", function, points, points, dtype)
        dy = [torch.linspace(1, 2, 40, dtype=torch.float64).reshape(8, 5).to(getattr(torch, dtype))]
        return _precision(subject, dy, gradients(subject, dy))["x"]

    for dtype in ("float64", "float32", "bfloat16"):
        u = FORMATS[dtype].u
        assert precision(torch.sin, dtype) == precision(torch.relu, dtype) == precision(lambda x: x * 0, dtype) == u
        inside = precision(lambda x: x.float().sin().to(x.dtype), dtype)
        assert inside == u if dtype != "float64" else 2**-26 < inside < 2**-23


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
        (lambda quantity: quantity, "--shapes quantity=4x64 where"),
        (lambda x, eps: x + eps, "needs eps: .* a default, or leave --shapes out and write make_inputs"),
    ],
)
def test_what_cannot_be_checked_is_told_in_one_line(function, words):
    with pytest.raises(UsageError, match=words) as error:
        gradcheck(function)
    assert "\n" not in str(error.value)


def test_an_empty_input_is_told_in_one_line():
    for shapes in ({"x": (0, 64), "w": (64,)}, {"x": (4, 0), "w": (0,)}):
        with pytest.raises(UsageError, match=r"x of <lambda> is empty \([04]×(64|0)\), so there is nothing to check"):
            gradcheck(lambda x, w: x * w, shapes=shapes)


def test_an_unknown_operator_is_said_before_anything_else():
    for target in (lambda x, eps: x + eps, "no/such/file.py:f"):
        with pytest.raises(UsageError, match=r"unknown operator .layernrm. .did you mean layernorm"):
            gradcheck(target, op="layernrm")


def test_shapes_are_read():
    assert parse_shapes("x=4x64, w=64") == {"x": (4, 64), "w": (64,)}
    for wrong in ("x", "x=", "x=4x", "=4", "x=-1", "x=4;y"):
        with pytest.raises(UsageError, match="--shapes"):
            parse_shapes(wrong)
    with pytest.raises(UsageError, match="unknown argument"):
        gradcheck(dropping, shapes="z=4")


def test_a_file_is_checked_with_the_inputs_beside_it(tmp_path):
    path = tmp_path / "fused.py"
    path.write_text(
        "import torch\n"
        "def f(a, scale, b=None):\n    return a.sin() * scale\n"
        "def make_inputs():\n    return {'a': torch.randn(3, 5), 'scale': 2.0}\n"
    )
    report = gradcheck(f"{path}:f")
    assert report.ok
    assert report.inputs == {"a": (3, 5)}


def test_inputs_may_be_positional():
    def f(*tensors):
        return tensors[0] * tensors[1]

    f.make_inputs = lambda: (torch.randn(3, 4), torch.randn(4))
    assert gradcheck(f).ok


def test_the_same_seed_gives_the_same_numbers():
    first, second, other = (gradcheck(made(right), shapes=SHAPES, seed=seed) for seed in (1, 1, 2))
    assert first.compared == second.compared != other.compared


def test_the_report_reads_both_ways():
    report = gradcheck(made(WRONG["a factor"][0]), shapes=SHAPES)
    assert "FAIL" in text(report)
    assert "along random signs" in text(report)
    loaded = json.loads(dump(report))
    assert loaded["ok"] is False
    assert loaded["findings"][0]["output"] == "x"
    assert text(replace(report, findings=(), compared=())).endswith(f"nothing checked; {report.seconds:.2f} s")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_no_false_alarm_on_random_shapes(dtype):
    rng = np.random.default_rng(0)
    for seed in range(20):
        M, N = (int(2 ** rng.uniform(0, 5)) for _ in range(2))
        shapes = {"x": (M, N), "weight": (N,), "bias": (N,)}
        report = gradcheck(lambda x, weight, bias: functional.layer_norm(x, weight.shape, weight, bias),
                           shapes=shapes, dtypes=[dtype], seed=seed)  # fmt: skip
        assert not report.findings, (shapes, seed)
