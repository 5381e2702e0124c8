"""The tolerance tests of Liger-Kernel."""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import base
from verify_norm.core.spec import CaseSpec
from verify_norm.validation.policies import eager, trial
from verify_norm.validation.policies.eager import Eager, Inputs
from verify_norm.validation.policies.trial import Policy, Sample, Subject

EPS = 1e-6
ROWS = ((2, 8, 64), (4, 16, 128), (1, 1, 1023), (3, 7, 256))
RMS = ((2, 128, 512), (5, 123, 123))
# batch, channels, groups, hidden size; Liger draws the last at import, here it is fixed
GROUPS = ((1, 1, 1, 3), (1, 4, 2, 4), (16, 12, 3, 4096), (13, 98, 14, 300))
TOLERANCES = {  # atol, rtol
    "layernorm": {"float32": (1e-5, 1e-5)},
    "groupnorm": {"float32": (1e-4, 1e-4)},
    "rmsnorm": {"float32": (1e-4, 1e-6), "bfloat16": (2e-1, 2e-2)},
    "add_rmsnorm": {"float32": (1e-4, 1e-6), "bfloat16": (2e-1, 2e-2)},
}


def xhat(spec: CaseSpec, inputs: Inputs) -> Tensor:
    """Return x̂ of RMSNorm in float32."""
    x: Tensor = inputs["x"].to(torch.float32)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + spec.eps)


def llama(spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
    """Return RMSNorm as Hugging Face's Llama computes it: x̂ rounded to the type of x, then times weight."""
    return {"y": inputs["weight"] * xhat(spec, inputs).to(inputs["x"].dtype)}


def gemma(spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
    """Return RMSNorm as Hugging Face's Gemma computes it: x̂ times (weight plus 1) in float32, then rounded."""
    return {"y": (xhat(spec, inputs) * (1.0 + inputs["weight"].float())).to(inputs["x"].dtype)}


VARIANTS: dict[str, tuple[float, Eager]] = {"llama": (0.0, llama), "gemma": (1.0, gemma)}


def samples(subject: Subject) -> Iterator[Sample]:
    """Yield samples of normal x and cotangents, weights of ones, biases of zeros."""
    name = base(subject.kernel.op)
    if name not in TOLERANCES:
        raise trial.NotApplicableError(f"it has no test of {name}")
    normal = trial.normal(seed=42 if "rms" in name else 0)
    for spec, variant in _specs(name):
        if subject.device == "cpu" and subject.few and variant == "gemma":
            continue
        dtype, affine = spec.dtype, spec.shape[1:2] if name == "groupnorm" else spec.shape[-1:]
        inputs: dict[str, Any] = {"x": normal(spec.shape, dtype)}
        cotangents = {"y": normal(spec.shape, dtype)}
        if name.startswith("add_"):
            inputs["residual"], cotangents["residual_out"] = normal(spec.shape, dtype), normal(spec.shape, dtype)
        inputs["weight"] = torch.ones(affine, dtype=getattr(torch, dtype))
        inputs["bias"] = torch.zeros(affine, dtype=getattr(torch, dtype)) if spec.bias else None
        yield Sample(spec, inputs, cotangents, variant).to(subject.device)


def _specs(name: str) -> Iterator[tuple[CaseSpec, str]]:
    if name == "groupnorm":
        for batch, channels, groups, hidden in GROUPS:
            yield CaseSpec((batch, channels, hidden), num_groups=groups, eps=EPS), ""
    elif name == "layernorm":
        for shape in ROWS:
            yield CaseSpec(shape, eps=EPS), ""
    else:
        for (variant, (offset, _)), dtype, shape in product(VARIANTS.items(), TOLERANCES[name], RMS):
            yield CaseSpec(shape, dtype, eps=EPS, bias=False, weight_offset=offset), variant


def compare(kernel: Kernel, sample: Sample) -> str | None:
    """Return what torch.allclose refuses; the kernel runs first, but in RMSNorm, which has Liger's own comparison."""
    name = base(kernel.op)
    atol, rtol = TOLERANCES[name][sample.spec.dtype]
    if not sample.variant:
        return trial.first_apart(trial.both(kernel, sample, eager.TORCH[name], kernel_first=True), atol, rtol)
    reference = VARIANTS[sample.variant][1]
    reference = partial(eager.added, reference) if name.startswith("add_") else reference
    for output, got, want in trial.both(kernel, sample, reference, kernel_first=False):
        wide = torch.promote_types(got.dtype, want.dtype)  # types may differ, and NaN equals NaN
        same = got.shape == want.shape
        if not same or not torch.allclose(want.to(wide), got.to(wide), atol=atol, rtol=rtol, equal_nan=True):
            return trial.difference(output, got, want)
    return None


LIGER = Policy(
    "Liger",
    "torch.allclose at a few shapes against torch.nn modules and Hugging Face's RMSNorm",
    "linkedin/Liger-Kernel, test/transformers: test_layer_norm.py at 078e932 (four shapes, float32, 1e-5, 1e-5), "
    "test_group_norm.py at da1e92d (float32, 1e-4, 1e-4), test_rms_norm.py at af35a6c and test_fused_add_rms_norm.py "
    "at f84aa40 (two shapes, float32 1e-4, 1e-6 and bfloat16 2e-1, 2e-2; test_correctness), assert_verbose_allclose of "
    "test/utils.py at 009798e. Shapes, eps = 1e-6, weights of ones and biases of zeros as their modules start, the "
    "order of the calls, and the tolerances. GroupNorm's fourth shape, which Liger draws at each import (hidden size "
    "up to 8192), is 13x98x300 in 14 groups. A kernel has one order of rounding: the references are Llama (no offset) "
    "and Gemma (offset 1, where the kernel takes one), not the third, which computes in the type of x. On a CPU, "
    "kernels with one program a row skip Gemma. Left out: in_place=True, a mode of Liger's kernels; the functional "
    "tests, which compare Liger with itself. torch's CPU generator draws the values in float32, then they are rounded. "
    "Not applicable: BatchNorm (test_batch_norm.py exists in one commit alone, 889b519), InstanceNorm and fused "
    "LayerNorm, which have no test there.",
    samples,
    compare,
)
