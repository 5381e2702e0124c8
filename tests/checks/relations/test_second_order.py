"""Derivatives of gradients: the reference's differences, and how far right functions are from them."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

from verify_norm.cases import make
from verify_norm.checks.relations import second_order
from verify_norm.core import geometry
from verify_norm.core.contract import Contract
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.loading.registry import load_directions
from verify_norm.running.execute import execute

ROWS, CHANNELS = CaseSpec((6, 20)), CaseSpec((3, 4, 5))
LOOSE = Contract(expanded=True, summation="sequential")


def silu(x, weight, bias, num_groups, eps):
    return functional.silu(functional.group_norm(x, num_groups, weight, bias, eps))


def gelu(x, weight, bias, num_groups, eps):
    return functional.gelu(functional.group_norm(x, num_groups, weight, bias, eps))


def add_layernorm(x, residual, weight, bias, eps):
    return functional.layer_norm(x + residual, x.shape[-1:], weight, bias, eps), x + residual


FUNCTIONS = [
    (functional.layer_norm, "layernorm", ROWS),
    (functional.rms_norm, "rmsnorm", ROWS),
    (functional.group_norm, "groupnorm", replace(CHANNELS, num_groups=2)),
    (silu, "groupnorm_silu", replace(CHANNELS, num_groups=2)),
    (gelu, "groupnorm_gelu", replace(CHANNELS, num_groups=1)),
    (functional.batch_norm, "batchnorm", CHANNELS),
    (functional.batch_norm, "batchnorm", replace(CHANNELS, training=False)),
    (functional.instance_norm, "instancenorm", CHANNELS),
    (add_layernorm, "add_layernorm", ROWS),
]


def run_of(function, op, spec):
    *_, kernel = load_directions(function, op, contract=LOOSE)
    return execute(kernel, make.case(kernel.fit(spec), OPS[kernel.op], kernel.contract))


@pytest.mark.parametrize(("function", "op", "spec"), FUNCTIONS)
def test_the_second_derivatives_of_torchs_operators(function, op, spec, monkeypatch):
    run = run_of(function, op, spec)
    assert run.problem is None
    assert list(second_order.second_order(run)) == []
    monkeypatch.setattr(second_order, "TERMS", 16 / 100)  # right ones need less than a hundredth of the bound
    assert list(second_order.second_order(run)) == []
    monkeypatch.setattr(second_order, "TERMS", 16 / 1e6)
    assert list(second_order.second_order(run)) != []


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (3, 2)])
def test_running_means_far_from_x_do_not_count(shape):
    """x − mean would lose as many digits as the running mean is above x̂, which no bound of κ = r·max|x| allows for."""

    def batchnorm(x, weight, bias, running_mean, running_var, eps, training):
        mean, var = (running_mean, running_var) if not training else (x.mean(0), x.var(0, correction=0))
        return (x - mean) * torch.rsqrt(var + eps) * weight + bias

    *_, kernel = load_directions(batchnorm, "batchnorm")
    for seed in range(6):
        spec = CaseSpec(shape, training=False, offset=1e4, seed=seed)
        run = execute(kernel, make.case(kernel.fit(spec), OPS[kernel.op], kernel.contract))
        assert run.problem is None
        assert list(second_order.second_order(run)) == []


@pytest.mark.parametrize(("function", "op", "spec"), FUNCTIONS)
def test_an_error_of_a_half_shows(function, op, spec, monkeypatch):
    run = run_of(function, op, spec)

    derivatives = second_order._derivatives

    def scaled(*arguments):
        found = list(derivatives(*arguments))
        assert len({output for output, _, _ in found}) == len(set(run.outputs))
        yield from ((o, name, None if d is None else d * 1.5) for o, name, d in found)

    monkeypatch.setattr(second_order, "_derivatives", scaled)
    assert {difference.output for difference in second_order.second_order(run)} >= {"dx"}


def test_a_kernel_of_16_bits_alone_and_infinite_roots():
    for spec, looked in (
        (replace(ROWS, dtype="bfloat16"), True),
        (replace(ROWS, shape=(4, 1), eps=0.0), False),
        (replace(ROWS, shape=(4, 1), eps=1e-5, dtype="float16"), False),  # products of r overflow
    ):
        run = run_of(functional.layer_norm, "layernorm", spec)
        alone = replace(run, kernel=replace(run.kernel, dtypes=(spec.dtype,)))
        assert list(second_order.second_order(alone)) == ([] if looked else [second_order.NoData()])
    assert torch.is_grad_enabled()


BENIGN = [
    ("layernorm_bwd", CaseSpec((40, 50))),
    ("add_layernorm_bwd", CaseSpec((40, 50))),
    ("gated_rmsnorm_bwd", CaseSpec((40, 50))),
    ("modulate_layernorm_bwd", CaseSpec((40, 50), modulation="token")),
    ("batchnorm_bwd", CaseSpec((10, 40, 5), training=False)),
]


@pytest.mark.parametrize(("op", "spec"), BENIGN)
def test_the_values_at_which_no_gradient_is_small(op, spec):
    case = make.case(spec, OPS[op], Contract())
    exact = second_order.benign(case, spec)
    x = exact["residual_out" if op.startswith("add_") else "x"]
    assert -1.5 <= x.min() < -1.4 < 1.9 < x.max() <= 2.0
    assert np.array_equal(np.sign(exact["dy"]), np.where(x < 0.25, -1.0, 1.0))
    ranges = {"dy": (0.5, 1.0), "weight": (0.5, 1.0), "bias": (0.5, 1.0), "running_var": (0.5, 1.0)}
    ranges |= {"running_mean": (-0.5, 0.0)} | dict.fromkeys(OPS[op].stage_inputs, (0.5, 1.0))
    shapes = {tensor.name: geometry.shape_of(tensor, spec, OPS[op]) for tensor in OPS[op].inputs}
    for name, (least, largest) in ranges.items():
        if name in shapes:
            values = np.abs(exact[name]) if name == "dy" else exact[name]
            assert values.shape == shapes[name], name
            assert least <= values.min() < least + 0.1, name
            assert largest - 0.1 < values.max() <= largest, name
    if "dresidual_out" in shapes:
        assert not exact["dresidual_out"].any()
    want = make.saved(spec, OPS[op], exact)
    assert all(np.array_equal(exact[name], want[name], equal_nan=True) for name in want)
    again, other = second_order.benign(case, spec), second_order.benign(case, replace(spec, seed=1))
    assert np.array_equal(again["dy"], exact["dy"])
    assert not np.array_equal(other["dy"], exact["dy"])


def taken(spec, op="layernorm_bwd", refuses=lambda spec: False, **fields):
    """The shapes and types of the cases that are differentiated."""
    kernel = Kernel("k", op, unsupported=lambda spec: "no" if refuses(spec) else None, **fields)
    found = second_order.plain(SimpleNamespace(case=SimpleNamespace(spec=spec, op=OPS[op]), kernel=kernel))
    assert all(one.x_layout == one.dy_layout == one.weight_layout == "contiguous" for one in found)
    return [(one.shape, one.dtype, one.weight_dtype) for one in found]


def test_rows_keep_their_length_and_types_are_float32_and_their_own():
    spec = CaseSpec((3, 5, 650), "float16", "float32", x_layout="far", dy_layout="offset", weight_layout="own")
    for op, one in (("layernorm_bwd", spec), ("groupnorm_bwd", replace(spec, num_groups=5))):
        assert taken(one, op) == [(spec.shape, "float32", None), (spec.shape, "float16", "float32")]
    assert taken(replace(spec, dtype="float32", weight_dtype=None)) == [(spec.shape, "float32", None)]
    assert taken(spec, dtypes=("float16",)) == [(spec.shape, "float16", "float32")]
    assert taken(spec, refuses=lambda spec: spec.dtype == "float32") == [(spec.shape, "float16", "float32")]
    assert taken(spec, fit=lambda spec: replace(spec, dtype="float32", weight_dtype=None)) == [
        (spec.shape, "float32", None)
    ]


class ConstantRoot(torch.autograd.Function):
    """RMSNorm whose backward takes rstd for a constant where rows are long: second derivatives lack its part."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return functional.rms_norm(x, x.shape[-1:], weight, eps)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        rstd = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + ctx.eps)
        rstd = rstd.detach() if x.shape[-1] > 128 else rstd
        xhat, g = x.float() * rstd, dy.float() * weight.float()
        dx = (g - xhat * (g * xhat).mean(-1, keepdim=True)) * rstd
        return dx.to(x.dtype), (dy.float() * xhat).sum(0).to(weight.dtype), None


@pytest.mark.parametrize(("shape", "dtype"), [((4, 1000), "float32"), ((1, 4096), "bfloat16"), ((6, 20), "float32")])
def test_second_derivatives_of_long_rows(shape, dtype):
    run = run_of(lambda x, weight, eps: ConstantRoot.apply(x, weight, eps), "rmsnorm", CaseSpec(shape, dtype=dtype))
    found = {difference.output for difference in second_order.second_order(run)}
    assert found == ({"dx", "dweight"} if shape[-1] > 128 else set())
    right = run_of(functional.rms_norm, "rmsnorm", CaseSpec(shape, dtype=dtype))
    assert list(second_order.second_order(right)) == []


def allowed(op="rmsnorm_bwd", spec=ROWS, r=1.0, kappa=3.0, output="dx", name="x"):
    """How far a derivative may be off, along directions of ones."""
    case = make.case(spec, OPS[op], Contract())
    run = SimpleNamespace(kernel=Kernel("k", op), case=case)
    along = SimpleNamespace(run=run, case=case, r=r, kappa=kappa, direction=lambda name: np.ones(shape_of(case, name)))
    return second_order._Reference._allowed(along, output, name)


def shape_of(case, name):
    return second_order._exact(case, name)[1].shape


def test_what_a_second_derivative_may_be_off_is_counted():
    """Of (6, 20) elements in float32: n = 20 + 6 terms, κ = 3."""
    u, elements = 2.0**-24, 120
    usual = 16 * 6 * (4 * 26 + 40) * u * elements * 4
    assert allowed() == pytest.approx(usual, rel=1e-12)
    assert allowed(kappa=0.25) == pytest.approx(usual / 6 / 4 * 1.25, rel=1e-12)
    assert allowed(r=0.5) == allowed()
    assert allowed(r=3.0) == pytest.approx(9 * usual, rel=1e-12)
    assert allowed(name="weight") == pytest.approx(usual, rel=1e-12)  # a weight counts once for each element
    for op, more, spec in (
        ("rmsnorm_bwd", 1.25**2, replace(ROWS, weight_offset=-0.25)),
        ("layernorm_bwd", 1.25**2, replace(ROWS, weight_offset=-0.25)),
        ("modulate_rmsnorm_bwd", 2, ROWS),
        ("gate_rmsnorm_bwd", 4, ROWS),
        ("rmsnorm_silu_bwd", 1, ROWS),
    ):
        assert allowed(op, spec) == pytest.approx(more * usual, rel=1e-12), op
    dropped = CaseSpec((6, 20), dropout_p=0.5)
    case = {"output": "dresidual", "name": "weight"}
    assert allowed("dropout_add_rmsnorm_bwd", dropped, **case) == pytest.approx(2 * usual, rel=1e-12)
    narrow = replace(ROWS, dtype="bfloat16")
    assert allowed(spec=narrow) == pytest.approx(usual + 4 * 2.0**-8 * elements * 4, rel=1e-12)
