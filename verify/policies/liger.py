"""The tolerance tests of Liger-Kernel."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from verify_norm.kernels.zoo import few_rows
from verify_norm.policies import eager
from verify_norm.policies.eager import Eager, Inputs
from verify_norm.policies.trial import NotApplicableError, Policy, Sample, apart, both, family, place
from verify_norm.spec import CaseSpec, Kernel

EPS = 1e-6
ROWS = {"layernorm": ((2, 8, 64), (4, 16, 128), (1, 1, 1023), (3, 7, 256))}
RMS = ((2, 128, 512), (5, 123, 123))
GROUPS = (  # batch, channels, groups, hidden size; the last is drawn at import there, and once here
    (1, 1, 1, 3),
    (1, 4, 2, 4),
    (16, 12, 3, 4096),
    (13, 98, 14, 300),
)
TOLERANCES = {  # atol, rtol
    "layernorm": {"float32": (1e-5, 1e-5)},
    "groupnorm": {"float32": (1e-4, 1e-4)},
    "rmsnorm": {"float32": (1e-4, 1e-6), "bfloat16": (2e-1, 2e-2)},
    "add_rmsnorm": {"float32": (1e-4, 1e-6), "bfloat16": (2e-1, 2e-2)},
}


def llama(spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
    """RMSNorm as Hugging Face's Llama has it: x̂ in float32, rounded to the type of x, then times weight."""
    x = eager.some(inputs, "x")
    wide = x.to(torch.float32)
    xhat = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + spec.eps)
    return {"y": eager.some(inputs, "weight") * xhat.to(x.dtype)}


def gemma(spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
    """RMSNorm as Hugging Face's Gemma has it: all in float32, the weight plus 1, then rounded."""
    x = eager.some(inputs, "x")
    wide = x.to(torch.float32)
    xhat = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + spec.eps)
    return {"y": (xhat * (1.0 + eager.some(inputs, "weight").float())).to(x.dtype)}


VARIANTS: dict[str, tuple[float, Eager]] = {"llama": (0.0, llama), "gemma": (1.0, gemma)}


def samples(kernel: Kernel, device: str) -> Iterator[Sample]:
    """Normal x and cotangents, weights of ones, biases of zeros."""
    name = family(kernel)
    if name not in TOLERANCES:
        raise NotApplicableError(f"it has no test of {name}")
    random = torch.Generator().manual_seed(42 if "rms" in name else 0)

    def normal(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, generator=random).to(dtype)

    slow = device == "cpu" and kernel.unsupported is few_rows  # a program a row
    for spec, variant in _specs(name):
        if slow and variant == "gemma":
            continue
        dtype = getattr(torch, spec.dtype)
        affine = spec.shape[1:2] if name == "groupnorm" else spec.shape[-1:]
        inputs: dict[str, Tensor | None] = {"x": normal(spec.shape, dtype)}
        cotangents = {"y": normal(spec.shape, dtype)}
        if name.startswith("add_"):
            inputs["residual"], cotangents["residual_out"] = normal(spec.shape, dtype), normal(spec.shape, dtype)
        inputs["weight"] = torch.ones(affine, dtype=dtype)
        inputs["bias"] = torch.zeros(affine, dtype=dtype) if spec.bias else None
        yield place(Sample(spec, inputs, cotangents, variant), device)


def _specs(name: str) -> Iterator[tuple[CaseSpec, str]]:
    if name == "groupnorm":
        for batch, channels, groups, hidden in GROUPS:
            yield CaseSpec((batch, channels, hidden), num_groups=groups, eps=EPS), ""
    elif name == "layernorm":
        for shape in ROWS[name]:
            yield CaseSpec(shape, eps=EPS), ""
    else:
        for variant, (offset, _) in VARIANTS.items():
            for dtype in TOLERANCES[name]:
                for shape in RMS:
                    yield CaseSpec(shape, dtype, eps=EPS, bias=False, weight_offset=offset), variant


def test(kernel: Kernel, sample: Sample) -> str | None:
    """torch.allclose of every output, the kernel first; of RMSNorm the reference first, by Liger's own comparison."""
    name = family(kernel)
    atol, rtol = TOLERANCES[name][sample.spec.dtype]
    if not sample.variant:
        for output, got, want in both(kernel, sample, eager.TORCH[name], kernel_first=True):
            if (
                got.dtype != want.dtype
                or got.shape != want.shape
                or not torch.allclose(got, want, atol=atol, rtol=rtol)
            ):
                return apart(output, got, want)
        return None
    reference = VARIANTS[sample.variant][1]
    reference = eager.added(reference) if name.startswith("add_") else reference
    for output, got, want in both(kernel, sample, reference, kernel_first=False):
        wide = torch.promote_types(got.dtype, want.dtype)  # it compares whatever can be subtracted, NaN equal to NaN
        same = got.shape == want.shape
        if not same or not torch.allclose(want.to(wide), got.to(wide), atol=atol, rtol=rtol, equal_nan=True):
            return apart(output, got, want)
    return None


LIGER = Policy(
    "Liger",
    "torch.allclose at a few shapes against torch.nn modules and Hugging Face's RMSNorm",
    "linkedin/Liger-Kernel, test/transformers: test_layer_norm.py at 078e932 (four shapes, float32, 1e-5, 1e-5), "
    "test_group_norm.py at da1e92d (float32, 1e-4, 1e-4), test_rms_norm.py at af35a6c and test_fused_add_rms_norm.py "
    "at f84aa40 (two shapes, float32 1e-4, 1e-6 and bfloat16 2e-1, 2e-2; test_correctness), assert_verbose_allclose of "
    "test/utils.py at 009798e. Shapes, eps = 1e-6, weights of ones and biases of zeros as their modules start, who "
    "comes first, and the tolerances. GroupNorm's fourth shape, there drawn anew at each import (hidden size up to "
    "8192), is 13x98x300 in 14 groups. A kernel has one order of rounding: the references Llama (no offset) and Gemma "
    "(offset 1, where the kernel takes one) are used, not the third, which computes in the type of x; Gemma is left "
    "out for kernels with a program a row on a CPU. Left out: in_place=True, a mode of their "
    "kernels; the functional tests, which compare Liger with itself. Values are drawn "
    "in float32 by torch's CPU generator and rounded. Not applicable: BatchNorm (test_batch_norm.py "
    "was found in one commit alone, 889b519), and InstanceNorm and a fused LayerNorm, of which no test was found.",
    samples,
    test,
)
