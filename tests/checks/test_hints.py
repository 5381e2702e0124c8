"""The option that would make a wrong output right is named in its finding; a mistake that none mends gets no hint."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import two_conversions
from checking import layernorm_fwd
from counted import run_of

from verify_norm.cases import make
from verify_norm.checks import CHECKS, hints
from verify_norm.core.contract import Contract
from verify_norm.core.finding import Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.run import Expected
from verify_norm.core.spec import CaseSpec
from verify_norm.loading.registry import load
from verify_norm.running.execute import execute

SPEC = CaseSpec((5, 24), eps=1e-3)


def messages(function, op, spec=SPEC):
    """The messages of accuracy and statistics about one case."""
    kernel = Kernel("k", op, run=function)
    ran = execute(kernel, make.case(spec, OPS[op], kernel.contract))
    said = [item for name in ("accuracy", "statistics") for item in CHECKS[name].function(ran)]
    return {item.output: item.message for item in said if isinstance(item, Finding)}


def rmsnorm(x, weight, eps):
    return (x.double() * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def test_outputs_in_another_order_are_named():
    def swapped(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = layernorm_fwd(x, weight, bias, eps, normalized_shape)
        return y, rstd, mean

    found = messages(swapped, "layernorm_fwd")
    assert set(found) == {"mean", "rstd"}
    assert found["mean"].endswith('it is a right rstd: name what the kernel returns, such as --bind "-> y, rstd, mean"')

    def without_mean(x, weight, bias, eps, normalized_shape):
        y, _, rstd = layernorm_fwd(x, weight, bias, eps, normalized_shape)
        return y, rstd

    assert messages(without_mean, "layernorm_fwd")["mean"].endswith('--bind "-> y, rstd"')


def test_outputs_of_which_two_would_be_one_are_not_named():
    """An order that names an output twice loses another."""

    def twice(x, weight, bias, eps, normalized_shape):
        y, mean, _ = layernorm_fwd(x, weight, bias, eps, normalized_shape)
        return y, mean, mean

    assert "name what the kernel returns" not in messages(twice, "layernorm_fwd")["rstd"]


def test_zeros_are_not_taken_for_another_output():
    """The mean of rows of zeros is 0, as is what a wrong kernel returns."""

    def wrong(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = layernorm_fwd(x, weight, bias, eps, normalized_shape)
        return y, mean + 1, 0 * rstd

    found = messages(wrong, "layernorm_fwd", CaseSpec((5, 24), eps=1e-3, data="zero"))
    assert {"mean", "rstd"} <= {*found}
    assert not any("name what the kernel returns" in message for message in found.values())


def test_gemmas_offset_and_another_eps_are_named():
    gemma = messages(lambda x, weight, eps: rmsnorm(x, 1 + weight.double(), eps), "rmsnorm_fwd")["y"]
    assert gemma.endswith(
        "; this output is right with weight_offset=1. If the kernel always adds it to its weight, pass --bind "
        "weight_offset=1"
    )
    own = messages(lambda x, weight: rmsnorm(x, weight, 1e-6), "rmsnorm_fwd")["y"]
    assert "right with eps=1e-06" in own
    assert own.endswith(". If the kernel always uses that eps, pass --bind eps=1e-06")


def test_what_no_option_makes_right_has_no_hint():
    for wrong in (lambda x, w, eps: rmsnorm(x, w, eps) * 1.01, lambda x, w, eps: rmsnorm(x, 1 + w, eps) * 1.01):
        found = messages(lambda x, weight, eps, wrong=wrong: wrong(x, weight, eps), "rmsnorm_fwd")["y"]
        assert found.endswith("beyond their bound")


def test_a_rounding_that_looks_like_another_eps_in_short_rows_has_no_hint():
    """x̂ of a row of one element is ±1 with any small eps, and rounded to 16 bits it is that with each."""

    def early(x, weight, eps):
        xhat = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
        return xhat.bfloat16().float() * weight

    def own(x, weight):
        return rmsnorm(x, weight, 1e-6)

    for spec in (CaseSpec((1,)), CaseSpec((3, 1))):
        assert "right with" not in messages(early, "rmsnorm_fwd", spec)["y"]
        assert "right with eps=1e-06. " in messages(own, "rmsnorm_fwd", spec)["y"]


def test_outputs_that_are_no_other_are_left_unnamed():
    def partly(x, weight, bias, eps, normalized_shape):
        y, _, rstd = layernorm_fwd(x, weight, bias, eps, normalized_shape)
        return y + 1, rstd, rstd + 1

    assert messages(partly, "layernorm_fwd")["mean"].endswith('--bind "-> _, rstd, _"')


def test_each_eps_with_which_it_is_right_is_named():
    own = messages(lambda x, weight: rmsnorm(x, weight, 1e-12), "rmsnorm_fwd")["y"]
    assert own.endswith("--bind eps=1e-06")
    assert "right with eps=1e-06 or 1e-08 or 1e-12 or " in own


# Its parts alone, on runs that are made by hand.


def true_run(op="rmsnorm_fwd", spec=SPEC, unsupported=None):
    run = run_of(make.case(spec, OPS[op], Contract()), Contract())
    return replace(run, kernel=replace(run.kernel, unsupported=unsupported))


@pytest.mark.parametrize(("elements", "told"), [(hints.ELEMENTS, True), (hints.ELEMENTS + 1, False)])
def test_a_hint_is_made_of_few_elements(elements, told):
    run = true_run(spec=CaseSpec((1, elements), eps=1e-3))
    other = make.truths(replace(run.case.spec, eps=1e-6), run.case.op, Contract(), run.case.exact)["y"].value
    wrong = replace(run, outputs=run.outputs | {"y": replace(run.outputs["y"], got=other)})
    assert ("eps=1e-06" in hints.hint(wrong, "y")) == told
    assert told or hints.hint(wrong, "y") == ""
    assert hints.hint(replace(run, outputs=run.outputs | {"y": None}), "y") == ""


@pytest.mark.parametrize(("ratio", "right"), [(1.0, True), (1.5, False)])
def test_a_value_at_its_bound_is_right(monkeypatch, ratio, right):
    monkeypatch.setattr(hints.judge, "ratio", lambda got, expected: np.array([0.0, ratio]))
    assert hints._is(np.ones(2), Expected(np.ones(2), np.ones(2), "float32")) == right


def test_values_are_compared_in_the_shape_of_the_truth_and_infinities_without_a_warning():
    assert hints._is(np.ones(4), Expected(np.ones((2, 2)), np.zeros((2, 2)), "float32"))
    unbounded = Expected(np.array([1.0, np.inf]), np.array([0.5, np.inf]), "float32")
    assert hints._is(np.array([1.0, -np.inf]), unbounded)  # only the first is judged


@pytest.mark.parametrize(
    ("op", "name", "values"),
    [
        ("rmsnorm_fwd", "eps", [eps for eps in hints.EPS if eps != SPEC.eps]),
        ("rmsnorm_fwd", "weight_offset", [1.0]),
        ("rmsnorm_bwd", "weight_offset", [1.0]),
        ("rmsnorm_bwd", "eps", []),  # dx of a short row is near 0 with any
        ("layernorm_fwd", "weight_offset", [1.0]),
        ("layernorm_bwd", "weight_offset", [1.0]),
        ("l2norm_fwd", "weight_offset", []),
    ],
)
def test_which_other_values_of_an_attribute_are_tried(op, name, values):
    output = "y" if op.endswith("fwd") else "dx"
    assert [value for value, _ in hints._others(true_run(op), name, output)] == values


def test_no_value_makes_an_output_right_that_is_missing():
    assert hints._right(replace(true_run(), outputs={}), "eps", "y") == []


@pytest.mark.parametrize(
    ("shape", "values", "left"),
    [
        ((2, hints.LONG), [1e-6], [1e-6]),
        ((2, hints.LONG + 1), [1e-6], [1e-6]),
        ((2, hints.LONG - 1), [1e-6], []),  # the kernel takes no longer rows
        ((2, hints.LONG - 1), [], []),
    ],
)
def test_only_short_rows_are_tried_again(shape, values, left):
    run = true_run(spec=CaseSpec(shape), unsupported=lambda spec: f"too long: {spec.shape}")
    assert hints._longer(run, "eps", "y", values) == left


def test_a_longer_case_has_the_rows_and_the_device_of_the_short_one(monkeypatch):
    asked, made = [], make.exact_inputs

    def exact_inputs(spec, op, device=None):
        asked.append((spec.shape, device))
        return made(spec, op)

    monkeypatch.setattr(make, "exact_inputs", exact_inputs)
    seen = []
    run = true_run(spec=CaseSpec((2, 3, 4)), unsupported=lambda spec: seen.append(spec.shape))
    asked.clear()
    own = replace(run.kernel, run=lambda x, weight, normalized_shape: rmsnorm(x, weight, 1e-2))
    assert hints._longer(replace(run, kernel=own), "eps", "y", [1e-6]) == []
    assert seen == [(2, 3, 4 * hints.LONG)]
    assert asked == [((2, 3, 4 * hints.LONG), "cpu")]


def test_an_output_of_none_is_left_unnamed():
    run = true_run("layernorm_fwd")
    mean, rstd = run.outputs["mean"], run.outputs["rstd"]
    outputs = {"y": None, "mean": replace(mean, got=rstd.got), "rstd": replace(rstd, got=mean.got)}
    found = hints.hint(replace(run, outputs=outputs, returned=dict.fromkeys(outputs)), "mean")
    assert found.endswith('--bind "-> _, rstd, mean"')


@pytest.mark.parametrize("inplace", [False, True])
def test_running_statistics_that_stay_as_they_were_are_told_from_wrong_ones(inplace):
    def batchnorm(x, weight, bias, running_mean, running_var, training, momentum, eps):
        x = x.double()
        mean, var = x.mean((0, 2)), x.var((0, 2), correction=0)
        for state, new in ((running_mean, mean), (running_var, var)):
            moved = (
                1 - momentum
            ) * state.double() + momentum * 2 * new  # a factor too large, where anything is written
            if inplace:
                state.copy_(moved)
        rstd = torch.rsqrt(var + eps)
        y = (x - mean[:, None]) * (rstd * weight.double())[:, None] + bias.double()[:, None]
        return y.float(), mean.float(), rstd.float()

    found = messages(batchnorm, "batchnorm_fwd", CaseSpec((5, 3, 8)))
    assert found.keys() == {"running_mean", "running_var"}
    for name, message in found.items():
        assert (f"; it is as it was before the call: expected {name} to be updated in place" in message) != inplace


@pytest.mark.parametrize(
    ("name", "dtype", "uses"), [("Twice", "bfloat16", 2), ("Twice", "float32", 0), ("Once", "bfloat16", 0)]
)
def test_uses_of_x_whose_gradients_cancel_are_counted(name, dtype, uses):
    kernel = load(f"{Path(two_conversions.__file__)}:{name}", "rmsnorm_bwd")
    run = execute(kernel, make.case(CaseSpec((5, 24), dtype), OPS[kernel.op], kernel.contract))
    words = f"; autograd rounds the gradients of {uses} uses of x to {dtype}, and adds them: convert x once"
    assert hints.hint(run, "dx").startswith(words) == bool(uses)
    assert (hints.hint(run, "dx") == "") == (not uses)
    found = [item.message for item in CHECKS["accuracy"].function(run) if isinstance(item, Finding)]
    assert [words in message for message in found] == [True] * bool(uses)
