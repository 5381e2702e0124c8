"""The check `distribution`: kernels that only it convicts, right ones in every arithmetic, and its arithmetic."""

import re
from dataclasses import replace

import pytest
import torch

from verify_norm.cases import make
from verify_norm.checks import CHECKS, distribution
from verify_norm.checks.distribution import excess
from verify_norm.checks.relations.moments import Moments, moments
from verify_norm.core.contract import Contract
from verify_norm.core.finding import Finding, NoData, SmallestError
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.running.execute import execute

TWO_PASS, LLAMA = Contract(variance="two_pass"), Contract(xhat="x")
FAR = CaseSpec((32, 4096), "bfloat16", offset=300.0)  # the bound of an element has δμ in it, which cancels
SUMS = CaseSpec((512, 64), "bfloat16")
NARROW = Contract(partials="x")


def layernorm_fwd(how=""):
    def run(x, weight, bias, eps):
        r = x.float()
        mean = r.mean(1, keepdim=True)
        var = (r - mean).square().mean(1, keepdim=True)
        if how == "n - 1":
            var = var * (r.shape[1] / (r.shape[1] - 1))
        xhat = (r - mean) * (var + eps).rsqrt()
        if how == "grown":
            xhat = xhat * (1 + 2.0**-13)
        return (xhat * weight.float() + bias.float()).to(x.dtype)

    return run


def rmsnorm_fwd():
    def run(x, weight, eps):
        r = x.float()
        xhat = (r * (r.square().mean(1, keepdim=True) + eps).rsqrt()).to(x.dtype)
        return (xhat.float() * weight.float()).to(x.dtype)

    return run


def layernorm_bwd(how=""):
    def run(dy, x, weight, bias, mean, rstd):
        d, xhat = dy.float(), (x.float() - mean[:, None]) * rstd[:, None]
        g = d * weight.float()
        dx = rstd[:, None] * (g - g.mean(1, keepdim=True) - xhat * (g * xhat).mean(1, keepdim=True))
        if how == "last rows":
            xhat[-250:], d[-250:] = 0.0, 0.0
        if how == "stale":
            d = torch.cat((d, d[:250].roll(1, 1)))
            xhat = torch.cat((xhat, xhat[:250].roll(1, 1)))
        return dx.to(x.dtype), narrow(d * xhat, x.dtype, how), narrow(d, x.dtype, how)

    return run


def narrow(terms, dtype, how):
    """A running sum in x's type, or, where `how` says so, one that truncates."""
    total = torch.zeros(terms.shape[1])
    for row in terms:
        total = total + row
        total = (
            (total.view(torch.int32) & -(2**16)).view(torch.float32) if how == "truncated" else total.to(dtype).float()
        )
    return total.to(dtype)


def findings(function, spec, op="layernorm_fwd", contract=None):
    """What all checks say that look at this one run."""
    contract = contract or Contract()
    run = execute(Kernel("k", op, run=function, contract=contract), make.case(spec, OPS[op], contract))
    assert run.problem is None, run.problem
    assert CHECKS["distribution"].looks(run)
    names = ("signature", "accuracy", "statistics", "distribution", "nonfinite", "identities", "degenerate")
    checks = [CHECKS[name] for name in names if CHECKS[name].looks(run)]
    return [f for c in checks for f in c.function(run) if isinstance(f, Finding)]


@pytest.mark.parametrize(
    ("how", "spec", "op", "contract", "output", "words"),
    [
        (layernorm_fwd("n - 1"), FAR, "layernorm_fwd", TWO_PASS, "y", "too small"),
        (
            layernorm_fwd("n - 1"),
            replace(FAR, dtype="float32", offset=1e3),
            "layernorm_fwd",
            TWO_PASS,
            "y",
            "too small",
        ),
        (layernorm_fwd("grown"), FAR, "layernorm_fwd", TWO_PASS, "y", "too large"),
        (layernorm_bwd("last rows"), SUMS, "layernorm_bwd", NARROW, "dweight", "too small"),
        (layernorm_bwd("stale"), SUMS, "layernorm_bwd", NARROW, "dweight", "mean error"),
        (layernorm_bwd("truncated"), SUMS, "layernorm_bwd", NARROW, "dweight", "too small"),
    ],
)
def test_a_wrong_kernel_that_no_other_check_sees(how, spec, op, contract, output, words):
    found = findings(how, spec, op, contract)
    assert {f.check for f in found} == {"distribution"}
    assert output in {f.output for f in found}
    assert any(words in f.message and f.output == output for f in found)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("how", "op", "contract"),
    [
        (layernorm_fwd(), "layernorm_fwd", TWO_PASS),
        (layernorm_fwd(), "layernorm_fwd", Contract()),
        (rmsnorm_fwd(), "rmsnorm_fwd", LLAMA),
        (layernorm_bwd(), "layernorm_bwd", NARROW),
    ],
)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"data": "heavy"},
        {"data": "channel"},
        {"offset": 100.0},
        {"eps": 1e3},
        {"log2_scale": -6},
        {"shape": (1, 16)},
        {"shape": (700, 16)},
        {"weight_data": "some_zero"},
        {"weight_dtype": "float32"},
        {"seed": 8},
    ],
)
def test_a_right_kernel_passes(how, op, contract, dtype, fields):
    spec = replace(CaseSpec((40, 256), dtype, seed=2), **fields)
    assert [f for f in findings(how, spec, op, contract) if f.check == "distribution"] == []


@pytest.mark.parametrize(
    "spec",
    [
        replace(FAR, data="constant"),
        replace(FAR, data="integers"),
        replace(FAR, data="zero"),
        replace(FAR, further=()),
        replace(FAR, x_layout="expanded"),
        replace(FAR, special="nan"),
        replace(FAR, shape=(4, 8)),
        replace(FAR, eps=0.0),
        replace(FAR, shape=(0, 64)),
    ],
)
def test_structured_data_are_not_looked_at(spec):
    case = make.case(spec, OPS["layernorm_fwd"], Contract())
    run = execute(Kernel("k", "layernorm_fwd", run=layernorm_fwd()), case)
    assert not CHECKS["distribution"].looks(run)


def test_an_error_that_every_element_shows_is_found_too():
    """It stands alone: what `accuracy` also finds does not hide from it."""

    def twice(x, weight, bias, eps):
        return 2 * layernorm_fwd()(x, weight, bias, eps)

    found = findings(twice, CaseSpec((16, 64), "bfloat16"))
    assert {f.check for f in found} >= {"accuracy", "distribution"}


def test_sums_of_cases_see_what_no_case_does():
    """N − 1 in cases of four rows each: none shows it, all together do."""
    both = {"right": layernorm_fwd(), "wrong": layernorm_fwd("n - 1")}
    alone, together = {}, {}
    for name, function in both.items():
        ones = []
        for seed in range(0, 24, 2):
            spec = replace(FAR, shape=(4, 4096), offset=400.0, seed=seed)
            kernel = Kernel("k", "layernorm_fwd", run=function, contract=TWO_PASS)
            ones.append(moments(execute(kernel, make.case(spec, OPS["layernorm_fwd"], TWO_PASS)))["y"])
        pooled = Moments("y", "bfloat16")
        for one in ones:
            pooled = pooled.merge(one)
        alone[name], together[name] = any(excess(one) for one in ones), bool(excess(pooled))
        assert pooled.count == sum(one.count for one in ones)
    assert alone == {"right": False, "wrong": False}
    assert together == {"right": False, "wrong": True}


@pytest.mark.parametrize(
    ("op", "applies"),
    [
        ("layernorm_bwd", True),
        ("groupnorm_fwd", True),
        ("rmsnorm_silu_fwd", True),
        ("batchnorm_fwd", False),
        ("gate_rmsnorm_fwd", False),  # a stage before the norm
        ("partial_rmsnorm_fwd", False),
    ],
)
def test_the_operators_whose_errors_have_no_common_sign(op, applies):
    assert CHECKS["distribution"].applies(OPS[op]) == applies


SUMMED = Moments(
    "dweight", "float16", count=10, weight=4.0, size=3.0, systematic=2.0, explained=3.0, smallest=(0.5, 0.25)
)


@pytest.mark.parametrize(
    ("fields", "numbers", "words"),
    [
        ({"signed": 2.0}, (), ""),
        ({"signed": -2.0}, (), ""),
        ({"signed": 2.5}, (0.625, 0.5), "large"),
        ({"signed": -2.5}, (0.625, 0.5), "small"),
        ({"signed": 0.5, "systematic": 0.25}, (0.125, 0.0625), "large"),
        ({"excess": 3.0}, (), ""),
        ({"excess": 3.5}, (0.875, 0.75), "mean error"),
        ({"excess": -9.0}, (), ""),
        ({"signed": 2.5, "excess": 3.5}, (0.625, 0.5), "large"),  # one of both is told
    ],
)
def test_a_sum_exceeds_its_limit_and_says_by_how_many_ulp_of_an_element(fields, numbers, words):
    message = excess(replace(SUMMED, **fields))
    assert bool(message) == bool(numbers)
    assert words in message
    assert [float(n) for n in re.findall(r"\b\d+\.\d+\b", message)] == list(numbers)
    assert not message or {"10", "dweight", "(float16)"} <= set(message.split())


def test_a_finding_has_the_bias_in_ulp_and_a_right_output_the_smallest_errors_that_show(monkeypatch):
    """A sum of elements that are all 0 shows no relative error."""
    run = execute(Kernel("k", "layernorm_fwd", run=layernorm_fwd()), make.case(SUMS, OPS["layernorm_fwd"], Contract()))

    def said(*sums):
        monkeypatch.setattr(distribution, "moments", lambda given: {one.output: one for one in sums if given is run})
        return CHECKS["distribution"].function(run)

    biased, empty = replace(SUMMED, output="dbias", signed=-2.5), replace(SUMMED, output="dx", size=0.0)
    above, below, found = said(SUMMED, biased, empty)
    assert above == SmallestError("dweight", 1, 0.5)
    assert below == SmallestError("dweight", -1, 0.25)
    assert (found.output, found.ulp, found.allowed) == ("dbias", -0.625, 0.5)
    assert said() == (NoData(),)
