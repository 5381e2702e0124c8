"""PyTorch's gradcheck: to which kernels it applies, and what it detects in float64."""

import pytest
from judged import bent, larger, made, not_applicable

from verify_norm.kernels.adapters import torch_native
from verify_norm.loading import registry
from verify_norm.validation.policies import POLICIES
from verify_norm.validation.policies.pytorch import computes_in_float64, opinfo
from verify_norm.validation.policies.trial import Subject

GRADCHECKS = ("gradcheck slow", "gradcheck fast")


@pytest.mark.parametrize("policy", GRADCHECKS)
@pytest.mark.parametrize("name", ["layernorm_bwd_torch", "rmsnorm_bwd_torch"])
def test_gradcheck_in_float64(policy, name):
    right = POLICIES[policy].judge(registry.load(name))
    assert right.caught is False, right.detail
    wrong = POLICIES[policy].judge(bent(name, larger))
    assert wrong.caught is True
    assert "Jacobian mismatch" in wrong.detail


@pytest.mark.parametrize("policy", GRADCHECKS)
def test_gradcheck_gives_the_reason_where_it_does_not_apply(policy):
    assert "float64" in not_applicable(POLICIES[policy].judge(registry.load("layernorm_bwd")))
    assert "forward" in not_applicable(POLICIES[policy].judge(registry.load("layernorm_fwd")))

    def narrow(dy, x, weight, bias, eps, normalized_shape):
        given = (None if t is None else t.float() for t in (dy, x, weight, bias))
        found = torch_native.layernorm_bwd_torch(*given, eps, normalized_shape)
        return tuple(None if t is None else t.double() for t in found)

    assert "computes in float32" in not_applicable(POLICIES[policy].judge(made(narrow, "layernorm_bwd")))


def test_a_wrong_gradient_in_float64_counts_as_one_in_float64():
    sample = next(opinfo(Subject(registry.load("layernorm_bwd_torch")), ("float64",)))
    assert computes_in_float64(bent("layernorm_bwd_torch", lambda g: (g[0] ** 2, *g[1:])), sample)
