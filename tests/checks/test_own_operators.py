"""Operators of a user's own through all checks: right kernels pass, unusual ones too, and each mistake is detected."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from checking import findings
from hypothesis import given, settings

from verify_norm.cases import corners, covering, make, strategies
from verify_norm.core.contract import Contract
from verify_norm.core.layouts import layout_of
from verify_norm.core.ops import OPS
from verify_norm.core.spec import FURTHER, CaseSpec
from verify_norm.core.user_operators import operator
from verify_norm.loading import gradients

LAWS = tuple(name for name in FURTHER if name not in ("effects", "memory", "honesty", "calls", "modes", "autograd"))
SPECS = (
    CaseSpec((2, 3, 40), seed=1, further=LAWS),
    CaseSpec((4, 33), dtype="bfloat16", x_layout="transposed", seed=2, further=LAWS),
    CaseSpec((5, 3, 20), dtype="float16", weight_dtype="float32", normalized_ndim=2, seed=3, further=()),
    CaseSpec((300, 8), data="heavy", log2_scale=9, seed=4, further=()),
    CaseSpec((0, 8), seed=5, further=()),
    CaseSpec((3, 64), data="zero", seed=6, further=()),
    CaseSpec((4, 30), special="inf", seed=7, further=()),
    CaseSpec((3, 64), special="nan", special_at="rows", seed=8, further=()),
)


def root_mean(x, power=2):
    return np.mean(np.abs(x) ** power, axis=-1, keepdims=True) ** (1 / power)


def scaled(x, g, *, eps):
    return g * x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + eps)


def with_rstd(x, weight):
    rstd = 1 / root_mean(x)
    return weight * x * rstd, rstd


OPERATORS = {
    "tanh": operator(lambda x, w, b, alpha: w * np.tanh(alpha * x) + b, tensors={"alpha": "1"}, name="tanh"),
    "scale": operator(scaled, tensors={"g": "1"}),
    "learned": operator(
        lambda x, w, e: w * x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + e), positive=["e"], name="learned"
    ),
    "power": operator(lambda x, w: w * x / root_mean(x, 3), name="power"),
    "largest": operator(lambda x, w: w * x / np.max(np.abs(x), axis=-1, keepdims=True), name="largest"),
    "weighed": operator(lambda x, w: x * (w / np.mean(w * w)), name="weighed"),
    "saves": operator(with_rstd, statistics=["rstd"]),
}


def rows(x, normalized_shape, kind=torch.float32):
    return x.to(kind).reshape(-1, int(np.prod(normalized_shape)))


def by_rows(formula, *, kind=torch.float32):
    """Return a kernel of a formula on rows, which takes tensors by its own names of them."""
    names = formula.__code__.co_varnames[1 : formula.__code__.co_argcount]

    def kernel(x, normalized_shape, **given):
        taken = [t.to(kind).reshape(-1) if isinstance(t := given[name], torch.Tensor) else t for name in names]
        y = formula(rows(x, normalized_shape, kind), *taken)
        return y.to(x.dtype).reshape(x.shape)

    return kernel


def by_hand(dy, x, w, b, alpha, normalized_shape):
    g, r, n = rows(dy, normalized_shape), rows(x, normalized_shape), w.shape
    t, a = torch.tanh(alpha.float() * r), alpha.float()
    inner = g * w.float().reshape(-1) * (1 - t * t)
    sums = ((g * t).sum(0).reshape(n), g.sum(0).reshape(n), (inner * r).sum().reshape(1))
    return ((inner * a).to(x.dtype).reshape(x.shape), *(one.to(w.dtype) for one in sums))


def halved(*args, **given):
    dx, dw, db, dalpha = by_hand(*args, **given)
    return dx, dw, db, dalpha / 2


def saving(x, weight, normalized_shape):
    r = rows(x, normalized_shape)
    rstd = r.square().mean(1, keepdim=True).rsqrt()
    return (r * rstd * weight.float().reshape(-1)).to(x.dtype).reshape(x.shape), rstd.reshape(-1)


def saving_variance(x, weight, normalized_shape):
    y, rstd = saving(x, weight, normalized_shape)
    return y, rstd**-2


def using_rstd(dy, x, weight, rstd, normalized_shape):
    g, r, s = rows(dy, normalized_shape), rows(x, normalized_shape), rstd.reshape(-1, 1)
    xhat, wg = r * s, g * weight.float().reshape(-1)
    dx = s * (wg - xhat * (wg * xhat).mean(1, keepdim=True))
    return dx.to(x.dtype).reshape(x.shape), (g * xhat).sum(0).reshape(weight.shape).to(weight.dtype)


def without_its_mean(dy, x, weight, rstd, normalized_shape):
    _, dw = using_rstd(dy, x, weight, rstd, normalized_shape)
    g, s = rows(dy, normalized_shape), rstd.reshape(-1, 1)
    return (g * weight.float().reshape(-1) * s).to(x.dtype).reshape(x.shape), dw


def summed(x):
    return x.square().sum(1, keepdim=True)


RIGHT = {
    "tanh": lambda x, w, b, alpha: torch.tanh(alpha * x) * w + b,
    "tanh by a sigmoid": lambda x, w, b, alpha: torch.addcmul(b, 2 * torch.sigmoid(2 * alpha * x) - 1, w),
    "scale": lambda x, g, eps: x * (g * (summed(x) + eps).rsqrt()),
    "scale backwards": lambda x, g, eps: (g * x) / (summed(x.flip(1)) + eps).sqrt(),
    "learned": lambda x, w, e: x * (w * (summed(x) / x.shape[1] + e).rsqrt()),
    "power": lambda x, w: x * w / (x.abs() * x * x).mean(1, keepdim=True).pow(1 / 3),
    "power by logarithms": lambda x, w: x * w * torch.exp2(-torch.log2(x.abs().pow(3).mean(1, keepdim=True)) / 3),
    "largest": lambda x, w: w * (x / torch.maximum(x.amax(1, keepdim=True), -x.amin(1, keepdim=True))),
}
WRONG = {
    "tanh that overflows": lambda x, w, b, alpha: ((z := (2 * alpha * x).exp()) - 1) / (z + 1) * w + b,
    "tanh of hardware": lambda x, w, b, alpha: torch.tanh(alpha * x) * (1 + 2**-11) * w + b,
    "tanh without alpha": lambda x, w, b, alpha: torch.tanh(x) * w + b,
    "tanh rounded early": lambda x, w, b, alpha: torch.tanh(alpha * x).bfloat16().float() * w + b,
    "scale without eps": lambda x, g, eps: g * x * (summed(x) + 0.01).rsqrt(),
    "scale of a mean": lambda x, g, eps: g * x * (summed(x) / x.shape[1] + eps).rsqrt(),
    "learned of one channel": lambda x, w, e: x * w * (summed(x) / x.shape[1] + e[:1]).rsqrt(),
    "power of signed cubes": lambda x, w: x * w / (x * x * x).mean(1, keepdim=True).abs().pow(1 / 3),
    "largest of signed": lambda x, w: w * x / x.amax(1, keepdim=True),
}
FORWARDS = {name: by_rows(formula) for name, formula in {**RIGHT, **WRONG}.items()}
FORWARDS |= {"power in float64": by_rows(RIGHT["power"], kind=torch.float64), "saves": saving}
BACKWARDS = {"tanh": (by_hand, halved), "saves": (using_rstd, without_its_mean)}


def found(name, kernel, way):
    """Return the outputs and checks of findings in any case."""
    op = f"{OPERATORS[name.split()[0]].name}_{way}"
    return set().union(*(findings(kernel, spec, op) for spec in SPECS))


@pytest.mark.parametrize("name", [*RIGHT, "power in float64", "saves"])
def test_a_right_kernel_passes(name):
    assert not found(name, FORWARDS[name], "fwd")


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_detected(name):
    assert ("accuracy", "y") in found(name, FORWARDS[name], "fwd")


def test_a_statistic_is_judged():
    assert {("statistics", "rstd")} <= found("saves", saving_variance, "fwd")


@pytest.mark.parametrize("name", BACKWARDS)
def test_a_backward_by_hand(name):
    right, wrong = BACKWARDS[name]
    assert not found(name, right, "bwd")
    assert any(check == "accuracy" for check, _ in found(name, wrong, "bwd"))


@pytest.mark.parametrize(("off", "found"), [(0.0, set()), (2.0**-8, {("accuracy", "y")})])
def test_a_sum_of_a_weight_is_no_sum_over_rows(off, found):
    """No contract about partial sums of dweight loosens it."""

    def kernel(x, w):
        return x * (w / w.square().mean() * (1 + off))

    promised = Contract(partials="bfloat16", summation="atomic")
    op, spec = f"{OPERATORS['weighed'].name}_fwd", CaseSpec((4, 512), seed=9, further=())
    assert findings(kernel, spec, op, contract=promised) == found


def test_the_truth_of_an_own_operator_is_numpys_for_a_large_case_on_a_gpu():
    spec = CaseSpec((2**10, 2**10))
    assert make.judge_of(spec, OPS["rmsnorm_fwd"], "cuda:1") == "cuda:1"
    assert make.judge_of(spec, OPERATORS["scale"].records("scale")[0], "cuda:1") is None


NAMED = ("gamma", "residual", "gate", "mask", "bias", "weight")  # names of their own, and those of other operators


def product(name, dims):
    """The operator x̂ times one more tensor of such a name and dimensions, and a kernel of it."""
    space = {"np": np}
    source = f"def f(x, {name}, *, eps):\n    return {name} * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)"
    exec(source, space)

    def kernel(offered=None, **named):
        taken = offered or named
        x, eps, normalized_shape = (taken[one] for one in ("x", "eps", "normalized_shape"))
        r = rows(x, normalized_shape)
        xhat = (r * (r.square().mean(1, keepdim=True) + eps).rsqrt()).reshape(x.shape)
        return (xhat * taken[name].float()).to(x.dtype)

    return operator(space["f"], tensors={name: dims}, name=f"of_{name}_{dims}"), kernel


def by_torch(kernel, op):
    """The backward that torch makes of a kernel, and what a record of it says."""
    back = gradients.backward(kernel, op)
    return (lambda **given: back(given)), {"autograd": True, "forward_run": kernel}


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("way", ["fwd", "bwd"])
@pytest.mark.parametrize("dims", ["MN", "N", "1"])
@pytest.mark.parametrize("name", NAMED)
def test_every_case_of_a_tensor_of_any_name_and_dimensions(name, dims, way):
    operator, kernel = product(name, dims)
    op = OPS[f"{operator.name}_{way}"]
    run, fields = (kernel, {}) if way == "fwd" else by_torch(kernel, op)
    table = corners.corners(op, ("float32",), frozen=way == "bwd")
    some = tuple(spec for spec in table if 0 < np.prod(spec.shape) < 2**9)[::6]
    made = covering.array(op, ("float32",), (), frozen=way == "bwd").rows
    few = [spec for spec in made if np.prod(spec.shape) < 2**12]
    layouts = {layout_of(spec, name) for spec in few}
    assert layouts >= ({"contiguous"} if dims == "1" else {"contiguous", "every_other"})
    for spec in (*some, *few[::80]):
        assert not findings(run, replace(spec, further=()), op.name, **fields), spec
    drawn: list[CaseSpec] = []
    settings(max_examples=5, database=None)(
        given(strategies.specs(op, ("float32",), 64))(lambda spec: drawn.append(spec))
    )()
    assert drawn


def test_layouts_of_a_tensor_of_its_own():
    operator, right = product("gamma", "MN")

    def wrong(x, gamma, eps, normalized_shape):
        read = torch.as_strided(gamma, x.shape, x.stride())
        return right(x=x, eps=eps, normalized_shape=normalized_shape, gamma=read)

    op, spec = f"{operator.name}_fwd", CaseSpec((4, 6), other_layout="transposed", further=())
    assert not findings(right, spec, op)
    assert ("accuracy", "y") in findings(wrong, spec, op)
    assert not findings(wrong, replace(spec, other_layout="contiguous"), op)


@pytest.mark.parametrize("dims", ["MN", "N"])
def test_the_gradients_of_a_users_residual_and_weight(dims):
    for name in ("residual", "weight"):
        operator, kernel = product(name, dims)
        run, fields = by_torch(kernel, OPS[f"{operator.name}_bwd"])
        for spec in (replace(SPECS[0], further=("batch_invariance", "autograd")), SPECS[1]):
            assert not findings(run, spec, f"{operator.name}_bwd", **fields)
