"""What was made of each finding about other people's kernels, after looking into it: read by third_party.py.

"defect" is said of what breaks the library's documentation, or what its own path of higher precision does; "refusal" of
an error in place of a result; "outside" of what the library does not claim; "open" of what is not settled yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Literal

from verify_norm.spec import Finding


@dataclass(frozen=True)
class Judgement:
    """Of findings whose device, kernel, check and output match: patterns as in a shell."""

    devices: str
    kernel: str
    checks: str
    outputs: str
    verdict: Literal["defect", "refusal", "outside", "open"]
    reason: str

    def about(self, device: str, finding: Finding) -> bool:
        """Whether it is this finding that was judged."""
        texts = (device, finding.kernel, finding.check, finding.output or "none")
        patterns = (self.devices, self.kernel, self.checks, self.outputs)
        return all(
            any(fnmatch(text, one) for one in pattern.split("|")) for text, pattern in zip(texts, patterns, strict=True)
        )


_HALF = "mean and rstd are kept in half precision between forward and backward"

JUDGEMENTS: tuple[Judgement, ...] = (
    # PyTorch on a CPU
    Judgement(
        "cpu",
        "layernorm_bwd_torch",
        "accuracy|identities",
        "dx|dweight",
        "defect",
        f"{_HALF} where x and weight are half, and dweight is summed in half; with float32 statistics, as CUDA has "
        "them and the CPU too for float32 weights, dx is right",
    ),
    Judgement(
        "cpu",
        "layernorm_bwd_torch",
        "accuracy|identities",
        "dbias",
        "defect",
        "dbias is summed in the type of x, even where bias and its gradient are float32; CUDA sums in float32",
    ),
    Judgement(
        "cpu",
        "layernorm_fwd_torch",
        "signature|statistics",
        "mean|rstd",
        "defect",
        "the cause of the above: what native_layer_norm saves is rounded to the type of x; y itself is right",
    ),
    Judgement(
        "cpu",
        "layernorm_bwd_torch_compiled",
        "*",
        "*",
        "defect",
        "torch.compile's decomposition rounds mean and rstd to the type of x on a CPU, for float32 weights too, for "
        "which eager keeps float32; the same code on a GPU passes",
    ),
    Judgement(
        "cpu",
        "groupnorm_fwd_torch",
        "accuracy",
        "y",
        "defect",
        "channels_last alone: the variance is E[x²] − mean², which cancels; the same x, contiguous, is right",
    ),
    Judgement(
        "cpu",
        "groupnorm_bwd_torch",
        "gradient",
        "dx|dbias",
        "defect",
        "channels_last alone, in float32: the forward that it is the gradient of has lost its variance",
    ),
    Judgement(
        "cpu", "groupnorm_fwd_torch", "signature|statistics", "mean|rstd", "defect", f"{_HALF}; y itself is right"
    ),
    Judgement(
        "cpu",
        "groupnorm_bwd_torch",
        "*",
        "*",
        "defect",
        f"{_HALF}: rstd beyond 65504 becomes infinite and dx NaN; with float32 weights they are float32 and it passes",
    ),
    Judgement(
        "cpu",
        "batchnorm_fwd",
        "*",
        "*",
        "defect",
        "all in half: y is made of a mean and rstd that were rounded to half; with float32 parameters it is right",
    ),
    Judgement(
        "cpu",
        "batchnorm_bwd",
        "*",
        "*",
        "defect",
        "all in half: where x and dy are not both contiguous, x̂ and the sums are half too, and lose more than that "
        "allows; contiguous, they pass",
    ),
    Judgement(
        "*",
        "groupnorm_bwd_torch_compiled",
        "*",
        "*",
        "defect",
        "the decomposition rounds mean and rstd to the type of x, as eager keeps them, on any device",
    ),
    Judgement(
        "cpu",
        "batchnorm_bwd_torch_compiled|instancenorm_bwd_torch_compiled",
        "*",
        "*",
        "defect",
        "all in half, on a CPU alone: the decomposition rounds mean and rstd to the type of x; it passes on a GPU",
    ),
    Judgement("cpu", "instancenorm_fwd", "*", "*", "defect", "batch_norm of one sample, with the same half statistics"),
    Judgement(
        "cpu",
        "instancenorm_bwd",
        "*",
        "*",
        "defect",
        "the same half statistics; dbias and dweight are summed over samples in the type of x",
    ),
    # PyTorch on a GPU
    Judgement(
        "h200",
        "groupnorm_?wd_torch",
        "signature",
        "none",
        "refusal",
        "float32 weights with a 16-bit x: RuntimeError on CUDA, where the CPU takes them",
    ),
    Judgement(
        "h200",
        "groupnorm_fwd_torch",
        "*",
        "y|mean|rstd",
        "defect",
        "16 bits: y is made of a mean and rstd that were rounded to the type of x, so that a group with a mean beside "
        "its deviation loses it; under torch.compile, which keeps float32, and in float32 it is right",
    ),
    Judgement("h200", "groupnorm_bwd_torch", "*", "dx|dweight", "defect", f"{_HALF}, as on a CPU"),
    # PyTorch on a GPU
    Judgement(
        "h200",
        "layernorm_?wd_torch",
        "signature",
        "none",
        "refusal",
        "float32 weights with a half x raise on CUDA and work on a CPU",
    ),
    Judgement(
        "h200",
        "batchnorm_bwd|instancenorm_bwd",
        "signature",
        "*",
        "refusal",
        "a bias without a weight has no gradient on CUDA (an error, or one of shape (0,)); on a CPU it has",
    ),
    Judgement(
        "h200",
        "instancenorm_fwd",
        "signature",
        "none",
        "defect",
        "half x at an odd storage offset: a misaligned access ends the CUDA context; every other layout of x works",
    ),
    Judgement(
        "h200",
        "batchnorm_fwd",
        "*",
        "*",
        "defect",
        "half x that is neither contiguous nor channels_last: the mean is rounded to half, and y and running_mean are "
        "made of it; contiguous, it is right (the ∞ in fp32: x near the largest number, which is outside)",
    ),
    Judgement(
        "h200",
        "batchnorm_bwd",
        "accuracy",
        "dx|dweight",
        "outside",
        "|x| at the largest half: Σdy·(x − mean) overflows before it meets rstd",
    ),
    Judgement(
        "h200",
        "batchnorm_bwd",
        "determinism|identities",
        "*",
        "open",
        "an x with a stride beyond 2³¹: other results at another time; not settled",
    ),
    Judgement(
        "h200",
        "instancenorm_bwd",
        "*",
        "*",
        "defect",
        "half x, float32 weights included: gradients like those of half statistics and sums; layer_norm of the same "
        "rows is right on this GPU",
    ),
    # Liger
    Judgement(
        "*",
        "liger_groupnorm_?wd",
        "signature",
        "none",
        "refusal",
        "no samples: a view of 0 elements raises; torch's is empty",
    ),
    Judgement(
        "*",
        "liger_groupnorm_fwd",
        "*",
        "y",
        "defect",
        "the variance is E[x²] − mean², which cancels, in float32 too; in half the squares are half, so that it comes "
        "out negative and y NaN. Its tests are float32 around 0",
    ),
    Judgement("*", "liger_groupnorm_fwd", "*", "mean|rstd", "defect", "the same; and they are saved in the type of x"),
    Judgement(
        "*",
        "liger_groupnorm_bwd",
        "*",
        "dweight|dbias",
        "defect",
        "half: added up by atomics in half, for fp16 after a rounding to bf16 (any type of x but float32 gets it)",
    ),
    Judgement("*", "liger_groupnorm_bwd", "*", "dx", "defect", "made of the forward's mean and rstd, in float32 too"),
    # fla
    Judgement(
        "*", "fla_*_bwd", "signature", "none", "refusal", "no rows: ZeroDivisionError, where its forward returns"
    ),
    # quack
    Judgement(
        "h200",
        "quack_*",
        "signature|gradient",
        "none",
        "refusal",
        "some 16-bit rows, the shortest of one element, do not compile (an internal error of the compiler), and "
        "misaligned tensors raise; no number was wrong",
    ),
)
