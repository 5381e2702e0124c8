"""The assertions, as a test uses them: right results of torch and of others pass, and wrong kernels are refused."""

import doctest
import os
import platform
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import norms
import numpy as np
import pytest
import torch
from torch.nn import functional

from verify_norm import Contract, FindingsError, UsageError, testing
from verify_norm.cases import make
from verify_norm.core import judge
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.kernels.zoo import eager, inputs
from verify_norm.testing import InputError, assert_norm_close, assert_norm_gradients_close, bound, truth

TYPES = (torch.float32, torch.float16, torch.bfloat16)
EPS = 1e-5


def drawn(*shape, seed=0, offset=0.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + offset


def test_doctests():
    result = doctest.testmod(testing, optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL)
    assert (result.failed, result.attempted > 5) == (0, True)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(12, 96), (3, 4, 96)])
def test_results_of_torch_pass(shape, dtype, affine):
    x, w, b = drawn(*shape).to(dtype), drawn(96, seed=1).to(dtype), drawn(96, seed=2).to(dtype)
    weights = (w, b) if affine else (None, None)
    assert_norm_close(functional.layer_norm(x, (96,), *weights, EPS), "layernorm", x, *weights, eps=EPS)
    assert_norm_close(functional.rms_norm(x, (96,), weights[0], EPS), "rmsnorm_fwd", x, weights[0], eps=EPS)
    x, weights = x.reshape(2, 6, 96), [None if t is None else t[:6] for t in weights]
    y = functional.group_norm(x, 3, *weights, EPS)
    assert_norm_close(y, "groupnorm", x, *weights, num_groups=3, eps=EPS, contract="expanded=true")
    y = functional.silu(functional.group_norm(x.float(), 3, None, None, EPS))
    assert_norm_close(y, "groupnorm", x.float(), num_groups=3, eps=EPS, activation="silu", contract="expanded=true")


def test_gradients_of_torch_pass():
    leaves = [t.requires_grad_() for t in (drawn(4, 3, 64), drawn(64, seed=1), drawn(64, seed=2))]
    dy = drawn(4, 3, 64, seed=3)
    grads = torch.autograd.grad(functional.layer_norm(leaves[0], (64,), *leaves[1:], EPS), leaves, dy)
    assert_norm_gradients_close(grads, "layernorm", dy, *leaves, eps=EPS, contract="expanded=true")
    grads = torch.autograd.grad(functional.rms_norm(leaves[0], (64,), leaves[1], EPS), leaves[:2], dy)
    assert_norm_gradients_close(grads, "rmsnorm", dy, *leaves[:2], eps=EPS)


def called(kernel, op, dtype=torch.bfloat16, *, offset=0.0, shape=(12, 96), **options):
    """Compare all outputs of a kernel that takes its arguments by name, as `norms` has them."""
    x, dy = (drawn(*shape, seed=seed, offset=offset * seed).to(dtype) for seed in (1, 0))
    given = {"x": x, "weight": drawn(shape[-1], seed=3).to(dtype), "bias": drawn(shape[-1], seed=4).to(dtype)}
    if op.endswith("_bwd"):
        _, *statistics = norms.layernorm("float64")(**given, eps=EPS, normalized_shape=shape[-1:])
        given |= {"dy": dy} | dict(zip(("mean", "rstd"), statistics, strict=True))
        if op.startswith("rms"):
            given["rstd"] = norms.rmsnorm("float64")(x, None, EPS, shape[-1:])[1]
    given = {t.name: given[t.name] for t in OPS[op].inputs}
    actual = kernel(**make.named(kernel, {**given, "eps": EPS, "normalized_shape": shape[-1:]}))
    (assert_norm_gradients_close if op.endswith("_bwd") else assert_norm_close)(actual, op, **given, eps=EPS, **options)


RIGHT = [
    *((norms.layernorm(how), "layernorm_fwd", {}) for how in ("", "shifted", "welford", "pow", "float64", "guard")),
    (norms.layernorm("expanded"), "layernorm_fwd", {"contract": "expanded=true"}),
    (norms.rmsnorm("llama"), "rmsnorm_fwd", {"contract": "llama"}),
    (norms.rmsnorm("llama"), "rmsnorm_fwd", {"contract": Contract(xhat="x")}),
    (lambda x, weight, eps: eager.rmsnorm(x, weight, eps)[0].float(), "rmsnorm_fwd", {"check_dtype": False}),
    *((norms.layernorm_bwd(how), "layernorm_bwd", {}) for how in ("", "sums", "recomputed", "atomic", "float64")),
    (norms.layernorm_bwd("recomputed"), "layernorm_bwd", {"offset": 300.0}),
    (norms.rmsnorm_bwd(), "rmsnorm_bwd", {}),
    (norms.rmsnorm_bwd("cubed"), "rmsnorm_bwd", {}),
]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("kernel", "op", "options"), RIGHT)
def test_right_kernels_pass(kernel, op, options, dtype):
    called(kernel, op, dtype, **options)


def off_by_an_ulp(x, weight, eps):
    y = eager.rmsnorm(x, weight, eps)[0]
    y[7, 42] = torch.nextafter(y[7, 42], torch.tensor(torch.inf, dtype=y.dtype))
    return y


def late_cast(x, weight, bias, eps):  # statistics of numbers that were rounded first
    return eager.layernorm(x.bfloat16().to(x.dtype), weight, bias, eps)


F32, BF16 = torch.float32, torch.bfloat16
WRONG = [
    (norms.layernorm("n - 1"), "layernorm_fwd", BF16, {}, r"y\[\d+, \d+\] is"),
    (norms.layernorm("one pass"), "layernorm_fwd", F32, {"offset": 300.0}, r"y\[.*allowed .* \(96 terms summed in"),
    (norms.layernorm("grown"), "layernorm_fwd", F32, {}, r"y\[.*\(float32\) from float64"),
    (lambda x, weight, eps: (x, eager.rmsnorm(x, None, eps)[1].bfloat16()), "rmsnorm_fwd", BF16, {}, "stats=x"),
    (norms.rmsnorm("llama"), "rmsnorm_fwd", BF16, {}, r'contract="xhat=x" explains this case.*Llama'),
    (late_cast, "layernorm_fwd", F32, {}, r"y\["),
    (off_by_an_ulp, "rmsnorm_fwd", BF16, {}, r"y\[7, 42\] is .*1 of 1152 elements"),
    (lambda x, weight, eps: eager.rmsnorm(x, weight, 1e-3), "rmsnorm_fwd", BF16, {}, "right with eps=0.001, not with"),
    (lambda x, weight, eps: eager.rmsnorm(x, weight, eps, 1.0), "rmsnorm_fwd", BF16, {}, "right with weight_offset=1,"),
    (
        lambda x, weight, eps: eager.rmsnorm(x, weight, eps)[0].float(),
        "rmsnorm_fwd",
        BF16,
        {},
        "y is float32, x is bfloat16\n  help .*check_dtype=False",
    ),
    (lambda x, weight, eps: eager.rmsnorm(x, weight, eps)[0].half(), "rmsnorm_fwd", F32, {}, "output=float16"),
    (lambda x, weight, eps: eager.rmsnorm(x, weight, eps)[0][:-1], "rmsnorm_fwd", F32, {}, "expected shape"),
    (norms.layernorm_bwd("no weight"), "layernorm_bwd", BF16, {}, r"dx\["),
    (norms.layernorm_bwd("no c2"), "layernorm_bwd", BF16, {}, r"dx\["),
    (norms.layernorm_bwd("rstd of another row"), "layernorm_bwd", BF16, {}, r"dweight\["),
    (norms.layernorm_bwd("a row of zeros"), "layernorm_bwd", BF16, {}, r"dx\[6, "),
    (norms.layernorm_bwd("one column"), "layernorm_bwd", BF16, {}, r"dweight\["),
    (norms.layernorm_bwd("bias"), "layernorm_bwd", BF16, {}, r"dbias\["),
    (norms.layernorm_bwd("nan"), "layernorm_bwd", BF16, {}, r"dx\[0, 0\] is (nan|inf)"),
]


def test_a_module_without_a_matrix_product_is_not_told_of_products():
    x, dy, weight = (drawn(*shape, seed=seed).bfloat16() for seed, shape in enumerate(((64, 40), (64, 40), (40,))))
    leaves = [t.clone().requires_grad_() for t in (x, weight)]
    wide = leaves[0].float()
    y = leaves[1] * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)).to(x.dtype)
    with pytest.raises(FindingsError, match=r'dweight\[(.|\n)*contract="xhat=x" explains this case'):
        assert_norm_gradients_close(torch.autograd.grad(y, leaves, dy), "rmsnorm", dy, x, weight, eps=EPS)


@pytest.mark.parametrize(("kernel", "op", "dtype", "data", "said"), WRONG)
def test_wrong_kernels_are_refused(kernel, op, dtype, data, said):
    with pytest.raises(FindingsError, match=said):
        called(kernel, op, dtype, **data)


NAN, INF = torch.tensor(torch.nan), torch.tensor(-torch.inf)
UNEVEN = drawn(8, 64) * torch.logspace(-12, 9, 8)[:, None]
ZOO = [  # a kernel, its operator, and the inputs that show the bug: x, weight, and what else it takes
    (inputs.looks_at_first_row, "rmsnorm", drawn(4, 32).index_fill(0, torch.tensor([2]), NAN), None, {}),
    (inputs.clamps, "rmsnorm", drawn(4, 32).index_fill(0, torch.tensor([2]), INF), None, {}),
    (inputs.swallows_nan_of_weight, "rmsnorm", drawn(4, 32), torch.full((32,), torch.nan), {}),
    (inputs.scale_of_all, "rmsnorm", UNEVEN, None, {"eps": 1e-30}),
    (inputs.unit_weight, "rmsnorm", drawn(4, 32).bfloat16(), torch.ones(32, dtype=BF16), {}),
    (inputs.type_of_weight, "rmsnorm", drawn(4, 32), drawn(32, seed=1).bfloat16(), {}),
    (inputs.eps_in_type_of_x, "rmsnorm", drawn(4, 32).bfloat16() * 1e-3, None, {}),
    (inputs.offset_is_a_flag, "rmsnorm", drawn(4, 32), drawn(32, seed=1), {"weight_offset": 0.5}),
    (inputs.rows_evenly_apart, "rmsnorm", drawn(4, 9, 32)[:, :5], None, {}),
    (inputs.persistent, "rmsnorm", drawn(1024, 8), None, {}),
    (inputs.columns_below, "rmsnorm", drawn(2, 33 * 1024), None, {}),
    (inputs.weight_in_storage_order, "rmsnorm", drawn(2, 4, 8), drawn(8, 4).t(), {"normalized_shape": (4, 8)}),
    (inputs.channels_below, "groupnorm", drawn(2, 40, 6), None, {"num_groups": 2, "bias": None}),
    (inputs.masked_by_first_row, "rmsnorm_bwd", drawn(32, 8), drawn(8, seed=1), {}),
]


@pytest.mark.parametrize(("kernel", "op", "x", "weight", "options"), ZOO)
def test_wrong_kernels_of_the_zoo_are_refused_and_right_ones_pass(kernel, op, x, weight, options):
    given = {"eps": EPS, **options}
    if op == "rmsnorm_bwd":
        dy = drawn(*x.shape, seed=5).index_fill(0, torch.tensor([0, 16]), 0.0)
        given |= {"dy": dy, "rstd": eager.rmsnorm(x, None, EPS)[1]}
        right, check = eager.gradients(dy, x, weight, given["rstd"]), assert_norm_gradients_close
    elif op == "groupnorm":
        right, check = norms.groupnorm()(x, weight, **given), assert_norm_close
    else:
        given = {"normalized_shape": x.shape[-1:]} | given
        right, check = norms.rmsnorm()(x, weight, **given), assert_norm_close
    check(right, op, x=x, weight=weight, **given)
    with pytest.raises(FindingsError):
        check(kernel(**make.named(kernel, {**given, "x": x, "weight": weight})), op, x=x, weight=weight, **given)


CASES = {
    "rows": CaseSpec((3, 5, 40), "bfloat16", "float32", bias=False),
    "groups": CaseSpec((2, 8, 33), num_groups=4, weight=False),
    "channels": CaseSpec((9, 5, 4), "float16", running=True),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("op", OPS)
def test_values_and_bounds_are_those_of_a_run(op):
    """One ulp more than the bound allows, in one element of one output, is refused; the rounded truth passes."""
    spec = replace(CASES[OPS[op].view], weight_offset=1.0)
    case = make.case(spec, OPS[op], Contract())
    given = {name: value for name, value in case.arguments.items() if name not in ("eps", "mean", "rstd")}
    check = assert_norm_gradients_close if op.endswith("_bwd") else assert_norm_close
    right = {
        name: torch.from_numpy(FORMATS[e.dtype].round(e.value)).to(getattr(torch, e.dtype))
        for name, e in case.expected.items()
        if e is not None
    }
    check(right, op, **given, eps=spec.eps)
    found = bound(op, **given, eps=spec.eps, actual=right)
    for name, values in right.items():
        expected = case.expected[name]
        np.testing.assert_array_equal(found[name].value, expected.value)
        np.testing.assert_array_equal(found[name].allowed, judge.allowed(expected))
        assert found[name].ratio.max() <= 1
        form, at = FORMATS[expected.dtype], (-1,) * values.dim()
        wrong = values.double().clone()
        wrong[at] += 2 * float(found[name].allowed.reshape(values.shape)[at]) + float(form.ulp(wrong[at].item()))
        wrong = wrong.to(values.dtype)
        with pytest.raises(FindingsError, match=rf"^{name}\["):
            check(right | {name: wrong}, op, **given, eps=spec.eps)
        ratio = bound(op, **given, eps=spec.eps, actual={name: wrong})[name].ratio
        np.testing.assert_array_equal(ratio, judge.ratio(wrong.double().numpy(), expected))


def test_statistics_that_a_backward_was_given_are_compared_and_widen_the_bound():
    x, dy, weight = drawn(6, 48).bfloat16(), drawn(6, 48, seed=1).bfloat16(), drawn(48, seed=2).bfloat16()
    rstd = eager.rmsnorm(x, None, EPS)[1].reshape(6, 1)
    coarse = rstd.bfloat16()
    gradients = eager.gradients(dy.float(), x.float(), weight.float(), coarse.float())
    gradients = [one.bfloat16() for one in gradients]
    given = (dy, x, weight)
    assert_norm_gradients_close(eager.gradients(*given, rstd), "rmsnorm", *given, rstd, eps=EPS)
    assert_norm_gradients_close(gradients, "rmsnorm", *given, coarse, eps=EPS, contract="stats=x")
    with pytest.raises(FindingsError, match=r"^dx\["):
        assert_norm_gradients_close(gradients, "rmsnorm", *given, eps=EPS)
    wrong = 1 / rstd.square()  # the mean square in place of rstd
    with pytest.raises(FindingsError, match=r"^given rstd\[\d\] is"):
        assert_norm_gradients_close(eager.gradients(*given, wrong), "rmsnorm", *given, wrong, eps=EPS)


def test_each_element_is_judged_however_many_there_are(monkeypatch):
    monkeypatch.setattr(truth, "BLOCK", 7)
    x = drawn(5, 5)
    y = functional.layer_norm(x.double(), (5,), eps=EPS).float()
    y.view(-1)[torch.tensor([0, 8, 24])] += torch.tensor([-1.0, 1.0, 2.0])
    one = bound("layernorm", x, eps=EPS, actual=y)["y"]
    assert np.flatnonzero(one.ratio > 1).tolist() == [0, 8, 24]
    np.testing.assert_array_equal(one.error, np.abs(y.double().numpy() - one.value))


def test_statistics_that_are_given_exactly_widen_nothing():
    """A kernel may use them or compute its own: the larger of both bounds holds, not their sum."""
    x, dy, w = drawn(6, 32, offset=3.0), drawn(6, 32, seed=1), drawn(32, seed=2)
    mean, rstd = x.double().mean(1), 1 / (x.double().var(1, correction=0) + EPS).sqrt()
    own = bound("layernorm_bwd", dy, x, w, eps=EPS)
    given = bound("layernorm_bwd", dy, x, w, eps=EPS, mean=mean.float(), rstd=rstd.float())
    for name in ("dx", "dweight"):
        assert (own[name].allowed == given[name].allowed).all()


def test_statistics_that_a_fused_addition_was_given_are_those_of_the_sum():
    x, dy, w = drawn(6, 32), drawn(6, 32, seed=1), drawn(32, seed=2)
    rstd = 1 / (x.double().square().mean(1, keepdim=True) + EPS).sqrt()
    xhat, g = x.double() * rstd, dy.double() * w.double()
    dx = (rstd * (g - xhat * (g * xhat).mean(1, keepdim=True)) + dy.double()).float()
    given = {"residual_out": x, "weight": w, "eps": EPS}
    for factor in (1.0, 1.01):
        rstd_given = (factor * rstd[:, 0]).float()
        try:
            assert_norm_gradients_close(dx, "add_rmsnorm", dy, dy, **given, rstd=rstd_given)
            said = ""
        except FindingsError as error:
            said = str(error)
        assert said.startswith("given rstd[") == (factor > 1)
        assert bool(said) == (factor > 1)


def test_a_nan_of_x_reaches_the_running_statistics():
    x = drawn(8, 3)
    x[2, 1] = torch.nan
    zero, one = torch.zeros(3), torch.ones(3)
    right = 0.9 * zero + 0.1 * x.mean(0)
    options = {"running_mean": zero, "running_var": one, "training": True, "momentum": 0.1, "eps": EPS}
    assert_norm_close({"running_mean": right}, "batchnorm", x, **options)
    with pytest.raises(FindingsError, match=r"running_mean\[1\]: expected nan because the input is not finite"):
        assert_norm_close({"running_mean": right.nan_to_num(0.0)}, "batchnorm", x, **options)


def test_a_given_statistic_at_the_end_of_its_bound_widens_that_of_the_gradients():
    x, dy = drawn(6, 48), drawn(6, 48, seed=1)
    forward = bound("rmsnorm", x, eps=EPS)["rstd"]
    given = torch.from_numpy(forward.value + 0.99 * forward.allowed).float()
    own, wide = (bound("rmsnorm_bwd", dy, x, None, rstd, eps=EPS)["dx"].allowed for rstd in (None, given))
    assert (wide >= own).all()
    assert (wide > own).any()


def test_what_is_not_finite_is_no_matter_of_a_contract():
    x = drawn(4, 32).index_fill(0, torch.tensor([2]), torch.tensor(torch.nan))
    with pytest.raises(FindingsError, match="because the input is not finite, got 0; 32 elements") as raised:
        assert_norm_close(eager.rmsnorm(x, None, EPS)[0].nan_to_num(nan=0.0), "rmsnorm", x, eps=EPS)
    assert "contract" not in str(raised.value)
    with pytest.raises(FindingsError, match="because the input is not finite, got inf"):
        assert_norm_close(eager.rmsnorm(x, None, EPS)[0].nan_to_num(nan=torch.inf), "rmsnorm", x, eps=EPS)


def test_a_fused_addition_and_batchnorm_with_their_options():
    x, r, w = drawn(2, 3, 16).bfloat16(), drawn(2, 3, 16, seed=1).bfloat16(), drawn(16, seed=2).bfloat16()
    y, total, rstd = eager.add_rmsnorm(x, r, w, EPS)
    assert_norm_close((y, total, rstd), "add_rmsnorm", x, r, w, eps=EPS)
    assert_norm_close((y, total), "add_rmsnorm", x, w, residual=r, eps=EPS)
    rounded = {"y": eager.rmsnorm(total, w, EPS)[0], "residual_out": total}
    with pytest.raises(FindingsError, match="residual=rounded"):
        assert_norm_close(rounded, "add_rmsnorm", x, r, w, eps=EPS)
    assert_norm_close(rounded, "add_rmsnorm", x, r, w, eps=EPS, contract="vllm")
    x, before = drawn(8, 3, 5), [torch.zeros(3), torch.ones(3)]
    after = [t.clone() for t in before]
    y = functional.batch_norm(x, *after, None, None, True, 0.25, EPS)
    options = {"momentum": 0.25, "eps": EPS, "contract": "summation=sequential,expanded=true"}
    actual = {"y": y, "running_mean": after[0], "running_var": after[1]}
    assert_norm_close(actual, "batchnorm", x, None, None, *before, **options)
    with pytest.raises(FindingsError, match="running_mean"):
        assert_norm_close(actual, "batchnorm", x, None, None, *before, **options | {"momentum": 0.1})


def test_numpy_arrays_of_every_type():
    x = drawn(4, 32).numpy()
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        wide = x.astype(dtype).astype(np.float64)
        y = (wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + EPS)).astype(dtype)
        assert_norm_close(y, "rmsnorm", x.astype(dtype), eps=EPS)
        with pytest.raises(FindingsError, match=r"^y\["):
            assert_norm_close(y * dtype(1.25), "rmsnorm", x.astype(dtype), eps=EPS)


def test_nothing_compared_is_no_pass():
    x = torch.full((2, 8), 3e38)
    with pytest.raises(FindingsError, match="y: nothing was compared"):
        assert_norm_close(torch.zeros(2, 8), "layernorm", x, eps=EPS)
    assert_norm_close(torch.zeros(0, 8), "layernorm", torch.zeros(0, 8), eps=EPS)  # no rows: there is nothing


X, W = drawn(2, 8, 64), drawn(64, seed=1)
BAD = [
    ("rmsnrm", {}, r"unknown operator 'rmsnrm' \(did you mean rmsnorm\?\)"),
    (torch.rms_norm, {}, 'operator: expected a name as "layernorm", got'),
    (torch.ones(2), {}, 'operator: expected a name as "layernorm", got a Tensor: it follows the results'),
    ("rmsnorm_bwd", {}, "operator: expected a name that ends in _fwd, or 'rmsnorm', got 'rmsnorm_bwd'"),
    ("rmsnorm", {"activation": "gelu"}, "unknown operator 'rmsnorm_gelu'"),
    ("rmsnorm", {"weight": W[:5]}, r"weight: expected the last dimensions of x's shape \(2, 8, 64\), got \(5,\)"),
    ("layernorm", {"bias": W[:5]}, r"bias: expected the shape \(64,\), got \(5,\)"),
    ("layernorm", {"bias": W.half()}, "bias: expected float32, the type of the weight, got float16"),
    ("layernorm", {"normalized_shape": (8, 63)}, "normalized_shape: expected the last dimensions of x's shape"),
    ("add_rmsnorm", {"residual": X[:1]}, r"residual: expected the shape \(2, 8, 64\), got \(1, 8, 64\)"),
    ("add_rmsnorm", {"residual": X.half()}, "residual: expected float32, the type of x, got float16"),
    ("add_rmsnorm", {}, "add_rmsnorm_fwd needs residual; its inputs are x, residual, weight"),
    (
        "rmsnorm",
        {"residual": X},
        "rmsnorm_fwd takes no residual; add_layernorm_fwd, add_rmsnorm_fwd or dropout_add_layernorm_fwd does",
    ),
    ("rmsnorm", {"epsilon": 1e-5}, "unknown argument of rmsnorm_fwd 'epsilon'"),
    ("rmsnorm", {"eps": -1}, "eps: expected a finite number of 0 or more, got -1"),
    ("rmsnorm", {"x": X.double()}, "x: expected float32, float16 or bfloat16, got float64"),
    ("rmsnorm", {"x": X.to(torch.complex64)}, "x: expected values that can be compared, got a tensor of complex64"),
    ("rmsnorm", {"x": X.numpy().astype(complex)}, "x: expected an array of real numbers, got one of complex128"),
    ("rmsnorm", {"x": X.to("meta")}, "x: expected values that can be compared, got a meta tensor"),
    ("rmsnorm", {"x": X.to_sparse()}, "x: expected values that can be compared, got a sparse_coo tensor"),
    ("rmsnorm", {"x": [1.0, 2.0]}, "x: expected a torch tensor or a NumPy array, got a list"),
    ("rmsnorm", {"x": X[..., :0], "weight": None}, "x: expected at least one element to normalize"),
    ("rmsnorm", {"x": X.sum()}, "x: expected one or more dimensions, got the shape"),
    ("groupnorm", {"weight": W[:8]}, "groupnorm_fwd needs num_groups"),
    ("groupnorm", {"weight": W[:8], "num_groups": 3}, "num_groups: 8 channels cannot be divided into 3 groups"),
    ("batchnorm", {"weight": W[:8], "training": "no"}, "training: expected True or False, got 'no'"),
    ("batchnorm", {"weight": W[:8], "training": False}, "batchnorm_fwd: evaluation needs running statistics"),
    ("rmsnorm", {"contract": "lama"}, r"unknown contract 'lama' \(did you mean llama\?\)"),
    ("rmsnorm", {"contract": 3}, "contract: expected a Contract or a text"),
    ("rmsnorm", {"contract": Contract(xhat="bf")}, "contract: xhat: expected none, float64"),
    ("rmsnorm", {"actual": None}, "actual: expected one or more of y, rstd, got None"),
    ("rmsnorm", {"actual": {"z": X}}, "unknown output of rmsnorm_fwd 'z'; there are: y, rstd"),
    ("rmsnorm", {"actual": (X, W, W)}, r"actual: expected at most 2 outputs \(y, rstd\), got 3"),
]


@pytest.mark.parametrize(("op", "options", "said"), BAD)
def test_bad_input_is_one_line(op, options, said):
    given = {"actual": X, "x": X, "weight": W, "eps": EPS} | options
    with pytest.raises(InputError, match=f"^{said}") as raised:
        assert_norm_close(given.pop("actual"), op, **given)
    assert isinstance(raised.value, UsageError)
    assert isinstance(raised.value, ValueError)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("call", "tensors"), [(assert_norm_close, (X,)), (assert_norm_close, ()), (assert_norm_gradients_close, (X, X))]
)
def test_a_failed_test_shows_its_own_line_alone(call, tensors):
    with pytest.raises(Exception, match=r"ULP|needs x") as raised:
        call(X, "rmsnorm", *tensors, eps=EPS)
    assert [entry.path for entry in raised.traceback.filter(raised)] == [Path(__file__)]


def test_bad_input_of_the_others():
    with pytest.raises(InputError, match=r"^rmsnorm_fp8 has no gradients"):
        assert_norm_gradients_close(X, "rmsnorm_fp8", X, X, eps=EPS)
    with pytest.raises(InputError, match=r"^rmsnorm \| quantize\(int8\) has no gradients"):
        assert_norm_gradients_close(X, "rmsnorm | quantize(int8)", X, X, eps=EPS)
    with pytest.raises(InputError, match=r"^rstd: expected 16 values, got the shape \(8,\)"):
        assert_norm_gradients_close(X, "rmsnorm", X, X, None, W[:8], eps=EPS)
    with pytest.raises(InputError, match=r"^rmsnorm_fwd: expected at most 2 tensors \(x, weight\), got 3"):
        bound("rmsnorm", X, W, W, eps=EPS)
    with pytest.raises(InputError, match=r"^y: expected the shape \(2, 8, 64\), got \(16, 64\)"):
        bound("rmsnorm", X, W, eps=EPS, actual=X.reshape(16, 64))


def test_a_pass_loads_numpy_alone():
    code = (
        "import sys, numpy as np, verify_norm\n"
        "x = np.ones((2, 8), np.float32)\n"
        "verify_norm.testing.assert_norm_close(x, 'rmsnorm', x, eps=0.0, contract='llama')\n"
        "heavy = ('torch', 'triton', 'hypothesis', 'scipy', 'typer', 'rich', 'pydantic', 'mpmath')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "[]\n", run.stderr


TRITON = """
import os, sys, torch
from verify_norm.testing import assert_norm_close, interpret
if sys.argv[1] == "plain":
    os.environ["TRITON_INTERPRET"] = "1"
elif sys.argv[1] == "late":
    import triton
    interpret()
else:
    interpret()
import triton, triton.language as tl

@triton.jit
def norm(X, Y, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(X + at).to(tl.float32)
    tl.store(Y + at, (x * tl.rsqrt(tl.sum(x * x, 0) / N + 1e-6)).to(tl.bfloat16))

x = torch.linspace(-3, 3, 512).reshape(2, 256).bfloat16()
y = torch.empty_like(x)
norm[(2,)](x, y, 256)
assert_norm_close(y, "rmsnorm", x, eps=1e-6)
print("passes")
"""


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="interpret does nothing where there is a GPU")
@pytest.mark.parametrize(
    ("way", "said"),
    [("corrected", "passes"), ("plain", "ULP (bfloat16) from float64"), ("late", "set TRITON_INTERPRET=1 before")],
)
def test_a_triton_kernel_is_judged_in_the_corrected_interpreter(way, said, tmp_path):
    (tmp_path / "one.py").write_text(TRITON)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(tmp_path / "one.py"), way]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert (said in run.stdout + run.stderr, run.returncode) == (True, int(way != "corrected")), run.stderr


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps or returns memory as it does")
def test_a_second_call_reuses_the_memory_of_the_first():
    code = (
        "import numpy as np, resource, verify_norm\n"
        "faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "x = np.linspace(-1, 1, 2**18, dtype=np.float32).reshape(64, -1)\n"
        "for _ in range(3):\n"
        "    before = faults()\n"
        "    verify_norm.bound('layernorm_bwd', x, x, eps=1e-5)\n"
        "print(faults() - before)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert int(run.stdout) < 512, run.stderr  # one array has 512 pages, and there are some hundred


def test_gates_and_modulations_and_chains_as_text():
    x, gate, weight = torch.randn(2, 3, 8), torch.randn(2, 3, 8), torch.randn(8)
    scale, shift = torch.randn(2, 8), torch.randn(2, 8)
    z = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight
    y = z * (1 + scale[:, None]) + shift[:, None]
    assert_norm_close(z * torch.nn.functional.silu(gate), "gated_rmsnorm", x, gate, weight, eps=EPS)
    assert_norm_close(torch.sigmoid(y), "rmsnorm|modulate|sigmoid", x, weight, scale, shift, eps=EPS)
    assert_norm_close(z * (1 + x) + gate, "rmsnorm | modulate", x, weight, x, gate, eps=EPS)  # a row a token
    gated = x * torch.nn.functional.silu(gate)
    z = gated * torch.rsqrt(gated.square().mean(-1, keepdim=True) + EPS) * weight
    assert_norm_close(z, "gate_rmsnorm", x, gate, weight, eps=EPS)
    assert_norm_close(x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPS), "l2norm", x, eps=EPS)
    for half in (4, 2, 1):  # of 8 elements: a rotation of all, of half and of a quarter of a head
        angle = torch.randn(2, half)
        cos, sin, heads = angle.cos()[:, None], angle.sin()[:, None], x * torch.rsqrt(x.square().mean(-1, True) + EPS)
        a, b, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)
        assert_norm_close(turned, "qk_norm_rope", x, None, angle.cos(), angle.sin(), eps=EPS)
        with pytest.raises(AssertionError, match="beyond their bound"):
            assert_norm_close(turned, "qk_norm_rope", x, None, angle.cos(), -angle.sin(), eps=EPS)
    shifted = (x.bfloat16().float() + shift[:, None]).bfloat16()  # of a row of ones, and no weight: z is x
    x16, scale32 = torch.ones(2, 3, 8).bfloat16(), scale * 1.0
    y16 = (torch.rsqrt(torch.tensor(1 + EPS)) * (1 + scale32[:, None]) + shift[:, None]).expand(2, 3, 8).bfloat16()
    assert_norm_close(y16, "rmsnorm | modulate", x16, None, scale32, shift, eps=EPS)
    y32 = torch.rsqrt(torch.tensor(1 + EPS)) * (1 + scale32[:, None]) + shift[:, None].expand(2, 3, 8)
    assert_norm_close(y32, "rmsnorm | modulate", x16, None, scale32, shift, eps=EPS)  # as torch promotes it
    with pytest.raises(AssertionError, match="x 2×3×8 bfloat16, scale float32"):
        assert_norm_close(shifted, "rmsnorm | modulate", x16, None, scale32, shift, eps=EPS)
    with pytest.raises(Exception, match=re.escape("shift: expected float32, got bfloat16")):
        assert_norm_close(y16, "rmsnorm | modulate", x16, None, scale32, shift.bfloat16(), eps=EPS)
    with pytest.raises(Exception, match=re.escape("cos: expected the shape (2, 4), got (2, 3)")):
        assert_norm_close(x, "qk_norm_rope", x, None, torch.ones(2, 3), torch.ones(2, 3), eps=EPS)
    for name, other, said in (
        ("rmsnorm | modulate", scale.roll(1, 0), "elements are beyond their bound"),
        ("rmsnorm | modulate", scale[:1], "scale: expected the shape (2, 8), got (1, 8)"),
        ("rmsnorm | modulat", scale, "unknown stage 'modulat' (did you mean modulate?)"),
        ("rmsnorm(weight_offset=1) | modulate", scale, "expected weight_offset=1 as an option of this call"),
    ):
        with pytest.raises(Exception, match=re.escape(said)):
            assert_norm_close(y, name, x, weight, other, shift, eps=EPS)


def test_scales_of_what_is_quantized():
    x, weight = torch.randn(4, 200), torch.randn(200)
    z = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight
    scale = z.abs().amax(1, keepdim=True) / 448
    y = (z / scale).to(torch.float8_e4m3fn)
    assert_norm_close((y, scale), "rmsnorm_quant", x, weight, eps=EPS)
    assert_norm_close({"y": y, "y_scale": scale[:, 0]}, "rmsnorm|quantize(e4m3fn,per_token)", x, weight, eps=EPS)
    with pytest.raises(AssertionError, match=r"y_scale\[\d, 0\] is .* elements are beyond their bound"):
        assert_norm_close((y, scale.roll(1, 0)), "rmsnorm_quant", x, weight, eps=EPS)
    given = torch.tensor([0.02])
    y = (z / given).round().clamp(-128, 127).to(torch.int8)
    assert_norm_close(y, "rmsnorm | quantize(int8)", x, weight, y_scale=given, eps=EPS)
    with pytest.raises(InputError, match="needs y_scale; its inputs are x, weight, y_scale"):
        assert_norm_close(y, "rmsnorm | quantize(int8)", x, weight, eps=EPS)


def test_an_output_without_elements_passes_if_its_shape_and_type_are_right():
    x, weight = torch.empty(0, 8), torch.ones(8)
    assert_norm_close(torch.empty(0, 8), "rmsnorm", x, weight, eps=1e-6)
    for y in (torch.empty(0, 7), torch.empty(0, 8, dtype=torch.float64)):
        with pytest.raises(AssertionError, match="y: expected"):
            assert_norm_close(y, "rmsnorm", x, weight, eps=1e-6)
