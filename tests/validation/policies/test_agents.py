"""Benchmarks of agents' kernels: what they compare, by hand, and which cheats pass them."""

import math

import pytest
import torch
from judged import bent, larger

from verify_norm.kernels.zoo import ZOO
from verify_norm.kernels.zoo.cheats import replays
from verify_norm.validation.policies import POLICIES, agents

NAMES = [policy.name for policy in agents.AGENTS]
RIGHT = ("rmsnorm_fwd_torch", "layernorm_fwd_torch", "groupnorm_fwd_torch")


def compared(name, got, want, dtype="float32"):
    """Whether a benchmark refuses a result."""
    return POLICIES[name].test.__self__.apart(dtype)(torch.tensor(got), torch.tensor(want))


@pytest.mark.parametrize(
    ("name", "got", "want", "refused"),
    [
        ("KernelBench", [1.0], [1.00015], False),
        ("KernelBench", [1.0], [1.0003], True),
        ("KernelBench", [math.nan], [math.nan], True),
        ("SOL-ExecBench", [9.0, *[0.0] * 199], [0.0] * 200, False),  # one element in two hundred may be anything
        ("SOL-ExecBench", [9.0, 9.0, 9.0, *[0.0] * 197], [0.0] * 200, True),
        ("SOL-ExecBench", [1.019], [1.0], False),
        ("SOL-ExecBench", [math.nan], [math.nan], True),
        ("flashinfer-bench", [0.009, 100.9], [0.0, 100.0], False),  # below one of both
        ("flashinfer-bench", [1.011], [1.0], True),
        ("flashinfer-bench", [math.inf], [math.inf], True),
        ("gpu-mode", [1.0104], [1.0], False),
        ("gpu-mode", [1.0106], [1.0], True),
        ("gpu-mode", [math.nan], [math.nan], False),
        ("pygpubench", [7.0, 1.0], [math.nan, 1.0], False),
        ("pygpubench", [1.0000011, math.inf], [1.0, math.inf], True),  # infinity is an error, even where it is expected
        ("pygpubench", [5e-7, 100.00005], [0.0, 100.0], False),
    ],
)
def test_its_comparison_by_hand(name, got, want, refused):
    assert compared(name, got, want) is refused


@pytest.mark.parametrize("name", NAMES)
def test_half_more_is_refused_and_a_backward_not_tested(name):
    verdict = POLICIES[name].judge(bent("rmsnorm_fwd_torch", larger))
    assert (verdict.caught, verdict.cases) == (True, 1)
    assert "it tests no backward" in POLICIES[name].judge(bent("rmsnorm_bwd_torch", larger)).detail


@pytest.mark.parametrize("kernel", RIGHT)
@pytest.mark.parametrize("name", NAMES)
def test_right_kernels_pass_where_the_tolerance_is_above_float32(name, kernel):
    verdict = POLICIES[name].judge(bent(kernel, lambda out: out))
    assert verdict.caught in (False, None), verdict.detail
    assert verdict.caught is None or verdict.cases >= 3


@pytest.mark.parametrize(
    ("name", "example", "caught"),
    [
        ("KernelBench", "C14_in_half", True),
        ("KernelBench", "C11_identity", True),
        ("KernelBench", "C06_after_warm_up", False),  # five calls
        ("KernelBench", "C10_zeroes_inputs", True),  # the reference has run before
        ("KernelBench", "C38_sees_stack", False),  # it sees the test
        ("gpu-mode", "C13_without_affine", True),
        ("gpu-mode", "C14_in_half", False),
        ("gpu-mode", "C10_zeroes_inputs", True),
        ("flashinfer-bench", "C25_lazy_class", True),
        ("SOL-ExecBench", "C25_lazy_class", True),
        ("SOL-ExecBench", "C41_timer", False),
        ("pygpubench", "C14_in_half", True),
    ],
)
def test_which_cheats_pass(name, example, caught, monkeypatch):
    monkeypatch.setattr(replays, "_calls", {})  # of other tests: a cheat counts its calls
    verdict = POLICIES[name].judge(ZOO[example].kernel)
    assert verdict.caught is caught, verdict.detail
