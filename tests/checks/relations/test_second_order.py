"""Derivatives of gradients: the reference's differences, and how far right functions are from them."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from verify_norm.cases import make
from verify_norm.checks.relations import second_order
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec, Contract
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
