"""Kernels and checks as tests get them."""

import pytest

from verify_norm.pytest_plugin.items import NormCheck, NormKernel, ids

KERNEL = NormKernel("norms:k")


def answered(outcome, reason="", others=""):
    return {KERNEL: {"verdicts": {"accuracy": {"outcome": outcome, "reason": reason}}, "others": others}}


def test_ids_tell_kernels_apart():
    kernels = [NormKernel(target) for target in ("a:norm", "b:norm", "c.py:other", "layernorm_fwd")]
    assert list(ids(kernels)) == ["a:norm", "b:norm", "other", "layernorm_fwd"]
    assert list(ids([NormKernel("a:norm", "rmsnorm_fwd"), NormKernel("a:norm", "rmsnorm_bwd")])) == [
        "a:norm(rmsnorm_fwd)",
        "a:norm(rmsnorm_bwd)",
    ]


def test_a_check_fails_skips_or_returns():
    NormCheck("accuracy", answered("passed"))(KERNEL)
    with pytest.raises(pytest.fail.Exception, match="y is wrong"):
        NormCheck("accuracy", answered("failed", "y is wrong"))(KERNEL)
    with pytest.raises(pytest.skip.Exception, match="does not apply"):
        NormCheck("accuracy", answered("skipped", "does not apply"))(KERNEL)
    with pytest.raises(pytest.fail.Exception, match="it crashed"):
        NormCheck("accuracy", answered("passed", others="it crashed"))(KERNEL)
    with pytest.raises(TypeError, match="expected the kernel that the test was given, got '"):
        NormCheck("accuracy", answered("passed"))("norms:k")


def test_an_expected_failure_that_passes_fails_where_failures_are_expected():
    with pytest.raises(pytest.fail.Exception, match=r"expected to fail \(a factor\) but passes: nothing found"):
        NormCheck("accuracy", answered("passed", "nothing found"), "a factor")(KERNEL)
    NormCheck("accuracy", answered("passed", "nothing found"), "a factor", strict=False)(KERNEL)
