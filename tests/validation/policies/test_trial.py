"""What the policies share: a kernel that raises, cases that it does not take, and how two results differ."""

from dataclasses import replace

from judged import made, not_applicable

from verify_norm.loading import registry
from verify_norm.validation.policies import POLICIES


def test_a_kernel_that_raises_is_caught_and_one_for_gpus_does_not_apply():
    def raises(x):
        raise IndexError("row 3\nof 2")

    def gpu(x):
        raise RuntimeError("x must be a CUDA tensor")

    verdict = POLICIES["assert_close"].judge(made(raises, "layernorm_fwd"))
    assert verdict.caught is True
    assert verdict.detail.startswith("raised IndexError: row 3, at 1x2x3 float32")
    assert "CPU" in not_applicable(POLICIES["assert_close"].judge(made(gpu, "layernorm_fwd")))


def test_cases_that_the_kernel_does_not_take_are_left_out():
    def none(spec):
        return "one row only" if len(spec.shape) > 1 else None

    kernel = replace(registry.load("layernorm_fwd_torch"), unsupported=none)
    verdict = POLICIES["assert_close"].judge(kernel)
    assert (verdict.caught, verdict.cases) == (False, 3)
    assert "one row only" in verdict.detail
    assert "one row only" in not_applicable(POLICIES["Liger"].judge(kernel))
