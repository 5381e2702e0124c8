"""The checks `accuracy` and `statistics`: wrong kernels that they detect, and correct but unusual ones that pass."""

from dataclasses import replace

import pytest
import torch
from checking import SPEC, audit, findings, layernorm_fwd
from norms import rmsnorm

from verify_norm.cases import make
from verify_norm.checks import CHECKS, values
from verify_norm.checks.relations.equations import compared
from verify_norm.core.contract import Contract
from verify_norm.core.finding import Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.running.execute import execute

FIFTH = slice(0, None, 5)  # of the corner table, with cases of each type


@pytest.mark.nightly
@pytest.mark.slow
def test_a_right_kernel_passes_everywhere():
    assert audit(layernorm_fwd, examples=20) == set()


def test_accuracy_catches_one_element_one_ulp_off():
    def nudged(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = layernorm_fwd(x, weight, bias, eps, normalized_shape)
        if y.numel():
            flat = y.view(-1).view(torch.int16)
            flat[-1] += 1
        return y, mean, rstd

    assert findings(nudged, replace(SPEC, further=())) == {("accuracy", "y")}


def test_accuracy_catches_a_leak_between_rows():
    def leaking(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = layernorm_fwd(x, weight, bias, eps, normalized_shape)
        return y + 0 * x.sum().to(y.dtype), mean, rstd

    assert findings(leaking) == set()
    assert findings(leaking, replace(SPEC, special="nan")) == {("accuracy", "y")}


def test_accuracy_catches_saturation_and_passes_overflow():
    spec = replace(SPEC, dtype="float16", dy_log2_scale=13, shape=(640, 6))
    largest = torch.finfo(torch.float16).max

    def backward(dy, x, weight, bias, eps, normalized_shape):
        leaves = [t.double().requires_grad_() for t in (x, weight, bias)]
        y = torch.nn.functional.layer_norm(leaves[0], normalized_shape, *leaves[1:], eps)
        return [g.to(x.dtype) for g in torch.autograd.grad(y, leaves, dy.double())]

    def saturating(dy, x, weight, bias, eps, normalized_shape):
        return [g.clamp(-largest, largest) for g in backward(dy, x, weight, bias, eps, normalized_shape)]

    assert findings(backward, spec, "layernorm_bwd") == set()
    assert ("accuracy", "dbias") in findings(saturating, spec, "layernorm_bwd")


WIDER = {(check, output) for check in ("signature", "statistics") for output in ("mean", "rstd")}


@pytest.mark.slow
def test_statistics_catches_what_y_does_not_show():
    def rounded(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = layernorm_fwd(x, weight, bias, eps, normalized_shape)
        return y, mean, rstd.bfloat16().float()

    promised = Contract(stats="bfloat16")
    assert findings(rounded) == {("statistics", "rstd")}
    assert findings(rounded, contract=promised) == WIDER - {("statistics", "rstd")}


def test_saved_statistics_are_rounded_once():
    def saving(x, weight, bias, eps, normalized_shape, ulps=0):
        y, mean, rstd = layernorm_fwd(x, weight, bias, eps, normalized_shape)
        rstd = (rstd.bfloat16().view(torch.int16) + ulps).view(torch.bfloat16)
        return y, mean.bfloat16(), rstd

    def rounded_up(x, weight, bias, eps, normalized_shape):
        return saving(x, weight, bias, eps, normalized_shape, ulps=1)

    promised = Contract(stats="bfloat16")
    assert (
        findings(
            lambda x, weight, bias, eps, normalized_shape: saving(x, weight, bias, eps, normalized_shape),
            contract=promised,
        )
        == set()
    )
    assert ("statistics", "rstd") in findings(rounded_up, contract=promised)


def run_of(function):
    kernel = Kernel("k", "layernorm_fwd", run=function)
    return execute(kernel, make.case(SPEC, OPS[kernel.op], kernel.contract))


def test_a_check_looks_at_its_own_outputs():
    alone, whole = run_of(lambda **given: layernorm_fwd(**given)[0]), run_of(layernorm_fwd)
    assert [values._judged(alone, statistics=statistics) for statistics in (False, True)] == [True, False]
    assert [values._judged(whole, statistics=statistics) for statistics in (False, True)] == [True, True]


def test_a_result_of_given_statistics_is_told_from_a_wrong_one(monkeypatch):
    run = run_of(lambda **given: [t + 1 for t in layernorm_fwd(**given)])
    said = {one.output: one.message for one in values._compare(run, "accuracy") if isinstance(one, Finding)}
    monkeypatch.setattr(values.given, "stricter", lambda run: {n: compared(run)[n] for n in ("y", "mean")})
    stricter = {one.output: one.message for one in values._compare(run, "accuracy") if isinstance(one, Finding)}
    assert stricter.keys() == said.keys() == {"y"}
    assert "the kernel uses the given" not in said["y"]
    assert stricter["y"].startswith(f"{said['y']}: the kernel uses the given")
    monkeypatch.setattr(values.given, "stricter", None)
    assert {one.output for one in values._compare(run, "statistics") if isinstance(one, Finding)} == {"mean", "rstd"}


@pytest.mark.slow
def test_a_declared_rounding_order_is_no_error_and_an_undeclared_one_is(few_corners, unexplained):
    few_corners(FIFTH)
    assert audit(rmsnorm("llama"), "rmsnorm_fwd", 0, contract=Contract(xhat="x")) == set()
    assert audit(rmsnorm("llama"), "rmsnorm_fwd", 0) == {("accuracy", "y"), ("distribution", "y")}


@pytest.mark.nightly
@pytest.mark.slow
def test_more_accurate_than_declared_is_no_error(few_corners):
    few_corners(FIFTH)
    for contract in (
        Contract(accumulate="float16"),
        Contract(xhat="x", stats="float32"),
        Contract(summation="sequential"),
    ):
        assert audit(layernorm_fwd, examples=0, contract=contract) == set()


def add_rmsnorm_fwd(x, residual, weight, eps, normalized_shape, *, rounded=False):
    """Right: the sum is normalized as it is, and rounded only where it is returned."""
    summed = x.double() + residual.double()
    kept = summed.to(residual.dtype)
    h = kept.double() if rounded else summed
    dims = tuple(range(x.dim() - len(normalized_shape), x.dim()))
    y = h * torch.rsqrt(h.square().mean(dims, keepdim=True) + eps)
    return (y if weight is None else y * weight.double()).to(x.dtype), kept


def add_rmsnorm_bwd(dy, dresidual_out, residual_out, weight, eps, normalized_shape, *, early=False):
    """Right: what comes from the residual stream is added to dx, not to dy."""
    h = residual_out.double().requires_grad_()
    w = None if weight is None else weight.double().requires_grad_()
    passed = 0.0 if dresidual_out is None else dresidual_out.double()
    y = torch.nn.functional.rms_norm(h, normalized_shape, w, eps)
    given = dy.double() + passed if early else dy.double()
    dx, *dweight = torch.autograd.grad(y, [t for t in (h, w) if t is not None], given)
    dx = dx if early else dx + passed
    return dx.to(dy.dtype), dweight[0].to(weight.dtype) if dweight else None


@pytest.mark.nightly
@pytest.mark.slow
def test_fused_addition_normalizes_the_sum_or_says_that_it_rounds_it(few_corners, unexplained):
    few_corners(FIFTH)
    unoffset = {"unsupported": lambda spec: "no weight_offset" if spec.weight_offset else None}

    def rounding(x, residual, weight, eps, normalized_shape):
        return add_rmsnorm_fwd(x, residual, weight, eps, normalized_shape, rounded=True)

    def exact(x, residual, weight, eps, normalized_shape):
        return add_rmsnorm_fwd(x, residual, weight, eps, normalized_shape)

    assert audit(exact, "add_rmsnorm_fwd", 0, **unoffset) == set()
    assert ("accuracy", "y") in audit(rounding, "add_rmsnorm_fwd", 0, **unoffset)  # vLLM issue 52104
    for function in (exact, rounding):
        assert audit(function, "add_rmsnorm_fwd", 0, contract=Contract(residual="rounded"), **unoffset) == set()


@pytest.mark.nightly
@pytest.mark.slow
def test_the_residual_gradient_is_added_after_the_norm(few_corners, unexplained):
    few_corners(slice(0, None, 3))
    unoffset = {"unsupported": lambda spec: "no weight_offset" if spec.weight_offset else None}

    def right(dy, dresidual_out, residual_out, weight, eps, normalized_shape):
        return add_rmsnorm_bwd(dy, dresidual_out, residual_out, weight, eps, normalized_shape)

    def early(dy, dresidual_out, residual_out, weight, eps, normalized_shape):  # quack issue 53
        return add_rmsnorm_bwd(dy, dresidual_out, residual_out, weight, eps, normalized_shape, early=True)

    assert audit(right, "add_rmsnorm_bwd", 0, **unoffset) == set()
    assert ("accuracy", "dx") in audit(early, "add_rmsnorm_bwd", 0, **unoffset)


@pytest.mark.parametrize(
    ("op", "outputs", "lacks"),
    [
        ("layernorm_fwd", ("y",), "mean or rstd"),
        ("layernorm_fwd", ("y", "rstd"), None),
        ("layernorm_fwd", ("mean",), None),
        ("rmsnorm_fwd", ("y",), "return rstd"),
        ("rmsnorm_fwd", (), "return rstd"),
    ],
)
def test_statistics_needs_one_of_those_that_the_operator_has(op, outputs, lacks):
    said = CHECKS["statistics"].lacks(Kernel("k", op), outputs)
    assert said == "" if lacks is None else said.endswith(lacks)
