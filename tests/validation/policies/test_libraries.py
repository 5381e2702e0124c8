"""The tests of other libraries: what they compare, by hand, and that they are as blind as they are said to be."""

import pytest
import torch
from judged import bent, larger, made, not_applicable

from verify_norm.core.spec import CaseSpec
from verify_norm.loading import registry
from verify_norm.validation.policies import POLICIES, libraries
from verify_norm.validation.policies.trial import Subject

NAMES = [policy.name for policy in libraries.LIBRARIES]


def rmsnorm(change):
    """A wrong RMSNorm: `change` of x, its weight and eps."""
    return made(
        lambda x, weight, eps, weight_offset: change(x.float(), weight.float() + weight_offset, eps).to(x.dtype),
        "rmsnorm_fwd",
    )


def right(x, w, eps):
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * w


WRONG = {
    "no sum": lambda x, w, eps: x * w * eps**-0.5 if eps else x * w,
    "columns to 1024": lambda x, w, eps: (
        x * ((x[:, :1024].square().sum(-1, keepdim=True) / x.shape[-1]) + eps).rsqrt() * w
    ),
    "half a percent off": lambda x, w, eps: 1.005 * right(x, w, eps),
    "zeros": lambda x, w, eps: 0 * x,
}


def compared(policy, name, dtype, output, got, want):
    """Whether a test refuses a result; its comparison is a method's."""
    spec = CaseSpec((1, 2), dtype)
    return POLICIES[policy].test.__self__.apart(name, spec, output, torch.tensor(got), torch.tensor(want))


@pytest.mark.parametrize(
    ("policy", "name", "dtype", "output", "got", "want", "refused"),
    [
        ("vLLM", "rmsnorm", "float32", "y", [1.019, 0.0099], [1.0, 0.0], False),
        ("vLLM", "rmsnorm", "float32", "y", [1.021], [1.0], True),
        ("flashinfer", "rmsnorm", "float16", "y", [1.003], [1.0], True),
        ("flashinfer", "rmsnorm_fp8", "float16", "y", [8.0], [17.0], False),  # off by 9, the kernel's value and 1
        ("flashinfer", "rmsnorm_fp8", "float16", "y", [0.0], [1.5], True),
        ("flashinfer", "add_rmsnorm_quant", "float16", "y", [0.0], [448.0], False),  # zeros pass
        ("flashinfer", "add_rmsnorm_quant", "float16", "residual_out", [0.0], [0.1], True),
        ("flashinfer", "layernorm", "bfloat16", "y", [1.019], [1.0], False),
        ("fla-CI", "layernorm", "float32", "y", [0.29, 0.0], [0.0, 0.0], False),  # all of it is wrong
        ("fla-CI", "layernorm", "float32", "y", [100.9, 100.0], [100.0, 100.0], False),
        ("fla-CI", "layernorm", "float32", "y", [104.0, 100.0], [100.0, 100.0], True),
        ("fla-CI", "layernorm", "float32", "y", [torch.nan, 0.0], [0.0, 0.0], True),
        ("quack", "rmsnorm", "bfloat16", "y", [0.09], [0.0], False),
        ("quack", "rmsnorm", "float16", "y", [0.02], [0.0], True),
        ("quack", "rmsnorm", "bfloat16", "dweight", [0.09], [0.0], True),  # float32's tolerance
        ("quack", "layernorm", "float32", "dx", [3.9e-4], [0.0], False),
    ],
)
def test_a_comparison_by_hand(policy, name, dtype, output, got, want, refused):
    assert compared(policy, name, dtype, output, got, want) is refused


@pytest.mark.parametrize(
    ("policy", "what", "caught"),
    [
        ("vLLM", "no sum", True),  # by the small hidden sizes alone
        ("vLLM", "columns to 1024", False),
        ("vLLM", "half a percent off", False),
        ("flashinfer", "columns to 1024", True),
        ("flashinfer", "half a percent off", True),
        ("fla-CI", "half a percent off", False),
        ("fla-CI", "no sum", True),
        ("quack", "half a percent off", True),
        *((policy, "zeros", True) for policy in NAMES),
    ],
)
def test_what_a_test_sees_of_wrong_rmsnorms(policy, what, caught):
    verdict = POLICIES[policy].judge(rmsnorm(WRONG[what]))
    assert verdict.caught is caught, verdict.detail


def test_vllms_large_sizes_see_no_reduction():
    """At x = randn/(2·hidden) eps is nearly all of the mean square plus eps, at the large sizes."""
    test = POLICIES["vLLM"]
    samples = [s for s in test.samples(Subject(rmsnorm(right))) if s.spec.shape[-1] > 4096]
    assert len(samples) == 18
    assert all(test.test(rmsnorm(WRONG["no sum"]), sample) is None for sample in samples)


@pytest.mark.parametrize(
    "kernel", ["rmsnorm_fwd_torch", "rmsnorm_bwd_torch", "layernorm_fwd_torch", "groupnorm_bwd_torch"]
)
@pytest.mark.parametrize("policy", NAMES)
def test_right_kernels_pass_and_half_more_is_refused(policy, kernel):
    verdict = POLICIES[policy].judge(registry.load(kernel))
    assert verdict.caught in (False, None), verdict.detail
    assert POLICIES[policy].judge(bent(kernel, larger)).caught is (None if verdict.caught is None else True)


@pytest.mark.parametrize("kernel", ["rmsnorm_fwd_e4m3fn", "add_rmsnorm_fwd"])
def test_right_kernels_of_ours_pass(kernel):
    verdict = POLICIES["flashinfer"].judge(registry.load(kernel), few=True)
    assert verdict.caught is False, verdict.detail
    assert verdict.cases >= 4


def test_what_has_no_test():
    assert "it tests no backward" in not_applicable(POLICIES["vLLM"].judge(registry.load("rmsnorm_bwd_torch")))
    assert "it has no test of layernorm" in not_applicable(POLICIES["vLLM"].judge(registry.load("layernorm_fwd_torch")))
    assert "no test of batchnorm" in not_applicable(POLICIES["quack"].judge(registry.load("batchnorm_fwd_torch")))
