"""Sums of errors: what they leave out, what they are for a right kernel, and the bound on sums of random terms."""

import doctest
from dataclasses import replace

import numpy as np
import pytest
import torch
from checking import run_of

from verify_norm.cases import make
from verify_norm.checks.relations import moments as module
from verify_norm.checks.relations.moments import L, Moments, bernstein, moments
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec, Contract, Kernel
from verify_norm.running.execute import execute


def test_values_like_ties_are_not_judged():
    """y = x̂·w + b where x̂·w vanishes beside b, and b lies between two numbers of the output's type."""
    spec = CaseSpec((64, 64), "bfloat16", weight_dtype="float32", eps=1e30, weight=False, seed=2)
    drawn = make.exact_inputs(spec, OPS["layernorm_fwd"])
    middle = 1.0 + 2.0**-8  # a tie of bfloat16
    case = make.build(spec, OPS["layernorm_fwd"], Contract(), "cpu", drawn | {"bias": np.full(64, middle)}, truth=True)

    def nudged(x, bias):
        return torch.full(x.shape, 1 + 2.0**-7).to(x.dtype)

    run = execute(Kernel("k", "layernorm_fwd", run=nudged), case)
    assert run.outputs["y"].ratio.max() <= 1
    assert moments(run) == {}


def test_what_is_exact_is_left_out():
    """Elements on a grid of 1/4096 ulp are no random numbers: half of them, or all."""
    run = run_of(lambda x: x, CaseSpec((8, 512)))
    stages, expected = module.stages.stages(run), run.case.expected["y"]
    exact = FORMATS["float32"].round(expected.value)
    for share, count in ((0, 8), (4, 4), (8, 0)):
        value = np.where(np.arange(8)[:, None] < share, exact, expected.value)
        one = module._of(run, stages, "y", run.outputs["y"], replace(expected, value=value))
        assert (one.count if one else 0) == pytest.approx(count * 512, rel=0.01)


def test_correct_rounding_of_the_truth_has_no_excess_and_no_bias():
    def exact(x, weight, bias, eps):
        r = x.double()
        xhat = (r - r.mean(1, keepdim=True)) / (r.var(1, correction=0, keepdim=True) + eps).sqrt()
        y = (xhat * weight.double() + bias.double()).numpy()
        return torch.from_numpy(FORMATS["bfloat16"].round(y)).to(x.dtype)

    run = run_of(exact, CaseSpec((32, 4096), "bfloat16"))
    one = moments(run)["y"]
    assert abs(one.signed) < 1
    assert 0 <= one.excess < 1
    assert one.count > 0.9 * 32 * 4096


@pytest.mark.parametrize("p", [0.5, 0.01, 1e-4])
def test_bernstein_bounds_what_it_is_to_bound(p):
    """Of 2000 sums of 10,000 signs that are 0 but with probability p, none comes near."""
    rng = np.random.default_rng(0)
    sums = rng.binomial(10_000, p / 2, 2000) - rng.binomial(10_000, p / 2, 2000)
    allowed = bernstein(10_000 * p, 1.0)
    assert np.abs(sums).max() < allowed < np.sqrt(2 * L * 10_000 * p) + L


def test_doctests():
    assert doctest.testmod(module).failed == 0


def test_sums_merge_and_the_largest_element_stays_the_largest():
    one = Moments("y", "float32", count=3, weight=2.0, signed=-1.0, systematic=4.0, alike=0.5, largest=2.0)
    both = one.merge(replace(one, count=5, signed=3.0, alike=0.25, largest=7.0))
    assert (both.output, both.count, both.weight, both.signed, both.systematic) == ("y", 8, 4.0, 2.0, 8.0)
    assert (both.alike, both.largest) == (0.5, 7.0)


def test_what_averages_out_counts_by_its_root_and_what_has_one_sign_in_full():
    averaging = Moments("y", "float32", averaging=1.0)
    assert replace(averaging, averaging=100.0).bias_allowed == pytest.approx(10 * averaging.bias_allowed)
    assert Moments("y", "float32", systematic=7.0).bias_allowed == 7.0
    assert Moments("y", "float32", explained=5.0).excess_allowed == 5.0


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, True),
        ({"data": "integers"}, False),
        ({"eps": 0.0}, False),
        ({"shape": (4, 15)}, False),
        ({"dy_layout": "scalar"}, False),
        ({"special": "inf"}, False),
        ({"shape": (0, 64)}, False),
    ],
)
def test_which_data_are_random(fields, expected):
    spec = replace(CaseSpec((4, 64)), **fields)
    assert module.random(make.case(spec, OPS["layernorm_bwd"], Contract())) == expected


@pytest.mark.parametrize("seed", [2, 116])
def test_the_last_rounding_of_a_product_of_narrow_numbers_is_no_bias_of_the_kernel(seed):
    """x is far from 0, so x̂ takes few values: rounding w·x̂ makes |y| smaller by 0.01 ULP in the mean."""

    def rmsnorm_fwd(x, weight, eps):
        wide = x.double()
        xhat = (wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + eps)).to(x.dtype)
        return xhat * weight

    def towards_zero(x, weight, eps):
        y = rmsnorm_fwd(x, weight, eps)
        return torch.where(torch.arange(y.numel()).reshape(y.shape) % 50 == 0, torch.nextafter(y, 0 * y), y)

    spec, contract = CaseSpec(shape=(3252, 254), dtype="bfloat16", offset=10.0, seed=seed), Contract(xhat="x")
    case = make.case(spec, OPS["rmsnorm_fwd"], contract)
    right, wrong = (
        moments(execute(Kernel("k", "rmsnorm_fwd", run=run, contract=contract), case))["y"]
        for run in (rmsnorm_fwd, towards_zero)
    )
    assert abs(right.signed) > 0.9 * right.systematic
    assert abs(right.signed) < 0.6 * right.bias_allowed
    assert abs(wrong.signed) > wrong.bias_allowed
