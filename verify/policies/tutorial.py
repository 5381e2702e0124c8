"""The test that Triton's LayerNorm tutorial ends with."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from verify_norm.policies import eager
from verify_norm.policies.trial import NotApplicableError, Policy, Sample, apart, both, family, place
from verify_norm.spec import CaseSpec, Kernel

M, N = 1151, 8192
ATOL = 1e-2
FITS = ("layernorm", "rmsnorm", "add_layernorm", "add_rmsnorm", "batchnorm")


def samples(kernel: Kernel, device: str) -> Iterator[Sample]:
    """The one case: 1151 rows of 8192 float16 numbers about −2.3."""
    name = family(kernel)
    if name not in FITS:
        raise NotApplicableError(f"its one shape, {M}x{N}, is of rows, and {name} has none")
    random = torch.Generator().manual_seed(0)

    def uniform() -> Tensor:
        return torch.rand(N, generator=random).half()

    def normal() -> Tensor:
        return torch.randn(M, N, generator=random).half()

    inputs: dict[str, Tensor | None] = {"weight": uniform(), "bias": None if "rms" in name else uniform()}
    inputs["x"] = -2.3 + 0.5 * normal()
    cotangents = {"y": 0.1 * normal()}
    if name.startswith("add_"):
        inputs["residual"], cotangents["residual_out"] = -2.3 + 0.5 * normal(), 0.1 * normal()
    if name == "batchnorm":
        inputs["running_mean"], inputs["running_var"] = torch.zeros(N).half(), torch.ones(N).half()
    spec = CaseSpec((M, N), "float16", bias=inputs["bias"] is not None)
    yield place(Sample(spec, inputs, cotangents), device)


def test(kernel: Kernel, sample: Sample) -> str | None:
    """torch.allclose with atol = 1e-2 and rtol = 0, the kernel first, of the same x, weight and dy."""
    pairs = both(kernel, sample, eager.TORCH[family(kernel)], kernel_first=True, shared=True)
    for name, got, want in pairs:
        if got.dtype != want.dtype or got.shape != want.shape or not torch.allclose(got, want, atol=ATOL, rtol=0):
            return apart(name, got, want)
    return None


TUTORIAL = Policy(
    "tutorial",
    "one shape, float16, torch.allclose with atol = 1e-2 and rtol = 0 against eager torch",
    "triton-lang/triton, python/tutorials/05-layer-norm.py at 5456992: test_layer_norm(1151, 8192, torch.float16). "
    "Its shape, type, eps = 1e-5, distributions (x about -2.3 with deviation 0.5, weight and bias uniform in [0, 1), "
    "dy of deviation 0.1), order (the kernel first, and the same dy for both) and tolerances; all rows on a CPU too. "
    "The values are drawn in float32 by torch's CPU generator, seed 0; the original sets no seed. On a CPU the float16 "
    "reference is torch's float32 result rounded, as a GPU computes it. "
    "RMSNorm, fused additions (with a residual like x, its cotangent like dy) and BatchNorm are the nearest reading: "
    "the tutorial has LayerNorm alone. GroupNorm and InstanceNorm: not applicable.",
    samples,
    test,
)
