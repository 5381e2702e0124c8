"""The test at the end of Triton's LayerNorm tutorial."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import base
from verify_norm.core.spec import CaseSpec
from verify_norm.validation.policies import eager
from verify_norm.validation.policies.trial import NotApplicableError, Policy, Sample, Subject, both, first_apart

M, N = 1151, 8192
OPERATORS = ("layernorm", "rmsnorm", "add_layernorm", "add_rmsnorm", "batchnorm")


def samples(subject: Subject) -> Iterator[Sample]:
    """Yield the one case: 1151 rows of 8192 float16 numbers about −2.3."""
    name = base(subject.kernel.op)
    if name not in OPERATORS:
        raise NotApplicableError(f"its one shape, {M}x{N}, is of rows, and {name} has none")
    random = torch.Generator().manual_seed(0)

    def drawn(distribution: Callable[..., Tensor], *shape: int) -> Tensor:
        return distribution(shape, generator=random).half()

    inputs: dict[str, Any] = {"weight": drawn(torch.rand, N), "bias": None if "rms" in name else drawn(torch.rand, N)}
    inputs["x"] = -2.3 + 0.5 * drawn(torch.randn, M, N)
    cotangents = {"y": 0.1 * drawn(torch.randn, M, N)}
    if name.startswith("add_"):
        inputs["residual"] = -2.3 + 0.5 * drawn(torch.randn, M, N)
        cotangents["residual_out"] = 0.1 * drawn(torch.randn, M, N)
    if name == "batchnorm":
        inputs["running_mean"], inputs["running_var"] = torch.zeros(N).half(), torch.ones(N).half()
    spec = CaseSpec((M, N), "float16", bias=inputs["bias"] is not None)
    yield Sample(spec, inputs, cotangents).to(subject.device)


def compare(kernel: Kernel, sample: Sample) -> str | None:
    """Return what torch.allclose with atol = 1e-2 and rtol = 0 refuses; the kernel runs first, on shared x and dy."""
    reference = eager.TORCH[base(kernel.op)]
    return first_apart(both(kernel, sample, reference, kernel_first=True, shared=True), atol=1e-2, rtol=0)


TUTORIAL = Policy(
    "tutorial",
    "one shape, float16, torch.allclose with atol = 1e-2 and rtol = 0 against eager torch",
    "triton-lang/triton, python/tutorials/05-layer-norm.py at 5456992: test_layer_norm(1151, 8192, torch.float16). "
    "Its shape, type, eps = 1e-5, distributions (x about -2.3 with deviation 0.5, weight and bias uniform in [0, 1), "
    "dy of deviation 0.1), order (the kernel first, and the same dy for both) and tolerances; all rows on a CPU too. "
    "torch's CPU generator draws the values in float32, seed 0; the original sets no seed. On a CPU the float16 "
    "reference is torch's float32 result rounded, as a GPU computes it. The tutorial has LayerNorm alone: RMSNorm, "
    "fused additions (with a residual like x, its cotangent like dy) and BatchNorm are the nearest reading. "
    "Not applicable to GroupNorm and InstanceNorm.",
    samples,
    compare,
)
