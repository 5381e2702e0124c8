"""Other projects' tests, emulated: right kernels pass them, obviously wrong ones do not."""

from contextlib import suppress

import pytest
from judged import bent, larger, made, not_applicable

from verify_norm.core.ops import OPS
from verify_norm.kernels.zoo import ZOO
from verify_norm.loading import registry
from verify_norm.validation.policies import POLICIES
from verify_norm.validation.policies.trial import NotApplicableError, Subject

QUICK = ("assert_close", "Liger")
AGENTS = ("ScalingIntelligence/", "NVIDIA/", "flashinfer-ai/", "gpu-mode/", "vllm-project/", "fla-org/")


@pytest.mark.slow
@pytest.mark.parametrize("policy", QUICK)
@pytest.mark.parametrize("kernel", ["layernorm_fwd", "layernorm_bwd", "rmsnorm_fwd", "rmsnorm_bwd"])
def test_right_kernels_pass_the_quick_policies(policy, kernel):
    verdict = POLICIES[policy].judge(registry.load(kernel))
    assert verdict.caught is False, verdict.detail
    assert verdict.cases >= 4


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["tutorial", "flash-attention"])
@pytest.mark.parametrize("kernel", ["layernorm_fwd_torch", "rmsnorm_fwd_torch"])
def test_right_kernels_pass_the_large_policies(policy, kernel):
    verdict = POLICIES[policy].judge(registry.load(kernel))
    assert verdict.caught is False, verdict.detail


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["tutorial", "assert_close", "Liger", "flash-attention"])
@pytest.mark.parametrize("name", ["layernorm_fwd_torch", "layernorm_bwd_torch", "rmsnorm_fwd_torch"])
def test_a_factor_of_one_and_a_half_is_caught_at_the_first_case(policy, name):
    verdict = POLICIES[policy].judge(bent(name, larger))
    assert verdict.caught is True
    assert verdict.cases == 1
    assert ("dx" if "bwd" in name else "y") in verdict.detail


def test_operators_that_a_policy_has_no_test_of():
    for policy, name in (
        ("tutorial", "groupnorm_fwd"),
        ("Liger", "batchnorm_fwd"),
        ("flash-attention", "groupnorm_bwd"),
    ):
        assert name[:9] in not_applicable(POLICIES[policy].judge(registry.load(name)))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("op", OPS)
def test_a_policy_has_samples_of_every_operator_or_does_not_apply(policy, op):
    samples = POLICIES[policy].samples(Subject(made(lambda **arguments: None, op)))
    with suppress(NotApplicableError):
        assert next(iter(samples)).inputs["x"] is not None


@pytest.mark.parametrize(
    ("policy", "name", "caught"),
    [
        ("Liger", "A31_dx_over_dy", False),  # its reference comes first, and has read dy
        ("Liger", "A32_db_after_overwrite", True),
        ("Liger", "A11_offset_bwd_forgotten", True),  # through Gemma's offset
        ("Liger", "A10_mem_efficient_gamma0", False),  # its weights are ones
        ("assert_close", "A35_empty_rows_launch", True),  # OpInfo has an empty sample
        ("assert_close", "A17_onepass_variance", False),  # and none with an offset
        ("assert_close", "A37_running_var_biased", True),
        ("assert_close", "A25_eps_none_low_precision", None),
    ],
)
def test_verdicts_that_follow_from_what_a_policy_does(policy, name, caught):
    assert POLICIES[policy].judge(ZOO[name].kernel, few=ZOO[name].few).caught is caught


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
def test_each_policy_names_its_source(policy):
    assert policy.summary
    assert any(project in policy.source for project in ("triton-lang/", "pytorch/", "linkedin/", "Dao-AILab/", *AGENTS))
