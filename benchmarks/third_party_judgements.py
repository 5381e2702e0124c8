"""The judgement of each finding about third-party kernels, after inspection; third_party.py reads it.

A "defect" contradicts the library's documentation, or its own path of higher precision. A "refusal" is an error in
place of a result. "outside" is beyond what the library claims. "open" is not settled yet.
"""

from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Literal

from verify_norm.core.finding import Finding


@dataclass(frozen=True)
class Judgement:
    """A judgement of the findings whose device, kernel, check and output match shell patterns."""

    devices: str
    kernel: str
    checks: str
    outputs: str
    verdict: Literal["defect", "refusal", "outside", "open"]
    reason: str

    def about(self, device: str, finding: Finding) -> bool:
        """Return whether this judgement applies to a finding."""
        texts = (device, finding.kernel, finding.check, finding.output or "none")
        patterns = (self.devices, self.kernel, self.checks, self.outputs)
        return all(
            any(fnmatch(text, one) for one in pattern.split("|")) for text, pattern in zip(texts, patterns, strict=True)
        )


_HALF = "mean and rstd are stored in half precision between forward and backward"

JUDGEMENTS: tuple[Judgement, ...] = (
    # PyTorch on a CPU
    Judgement(
        "cpu",
        "layernorm_bwd_torch",
        "*",
        "dx|dweight",
        "defect",
        f"{_HALF} if x and weight are half, and dweight is summed in half. With float32 statistics (on CUDA, and on a "
        "CPU with float32 weights) dx is right",
    ),
    Judgement(
        "cpu",
        "layernorm_bwd_torch",
        "*",
        "dbias",
        "defect",
        "dbias is summed in the type of x, even if bias and its gradient are float32; CUDA sums in float32",
    ),
    Judgement(
        "cpu",
        "layernorm_fwd_torch",
        "signature|statistics|sums",
        "mean|rstd",
        "defect",
        "the cause of the wrong dx: native_layer_norm rounds the statistics that it saves to the type of x; y is right",
    ),
    Judgement(
        "cpu",
        "layernorm_bwd_torch_compiled",
        "*",
        "*",
        "defect",
        "on a CPU, torch.compile's decomposition rounds mean and rstd to the type of x, also with float32 weights, for "
        "which eager keeps float32; the same code passes on a GPU",
    ),
    Judgement(
        "cpu",
        "groupnorm_fwd_torch",
        "accuracy|identities|distribution",
        "y",
        "defect",
        "only in channels_last: the variance is E[x²] − mean², which cancels; the same x in contiguous layout is right",
    ),
    Judgement("cpu", "groupnorm_fwd_torch", "*", "mean|rstd", "defect", f"{_HALF}; y is right"),
    Judgement(
        "cpu",
        "groupnorm_bwd_torch",
        "*",
        "*",
        "defect",
        f"{_HALF}: rstd above 65504 becomes infinite and dx NaN. With float32 weights they are float32, and it passes",
    ),
    Judgement(
        "cpu",
        "batchnorm_fwd_torch",
        "*",
        "*",
        "defect",
        "x and parameters in half: y uses a mean and rstd rounded to half; with float32 parameters it is right",
    ),
    Judgement(
        "cpu",
        "batchnorm_bwd_torch",
        "*",
        "*",
        "defect",
        "all tensors in half: unless x and dy are both contiguous, x̂ and the sums are half too and exceed the bound; "
        "contiguous tensors pass",
    ),
    Judgement(
        "*",
        "groupnorm_bwd_torch_compiled",
        "*",
        "*",
        "defect",
        "the decomposition rounds mean and rstd to the type of x on every device, as eager does",
    ),
    Judgement(
        "cpu",
        "batchnorm_bwd_torch_compiled|instancenorm_bwd_torch_compiled",
        "*",
        "*",
        "defect",
        "all tensors in half, only on a CPU: the decomposition rounds mean and rstd to the type of x; a GPU passes",
    ),
    Judgement(
        "cpu",
        "instancenorm_fwd_torch",
        "*",
        "*",
        "defect",
        "it is batch_norm of one sample, with the same half statistics",
    ),
    Judgement(
        "cpu",
        "instancenorm_bwd_torch",
        "*",
        "*",
        "defect",
        "the same half statistics; dbias and dweight are summed over samples in the type of x",
    ),
    # PyTorch on a GPU
    Judgement(
        "gpu",
        "groupnorm_fwd_torch",
        "*",
        "y|mean|rstd",
        "defect",
        "16 bits: y uses a mean and rstd rounded to the type of x, so a group whose mean is large beside its deviation "
        "loses accuracy. It is right in float32, and under torch.compile, which keeps float32",
    ),
    Judgement("gpu", "groupnorm_bwd_torch", "*", "dx|dweight", "defect", f"{_HALF}, as on a CPU"),
    Judgement(
        "gpu",
        "layernorm_bwd_torch|rmsnorm_bwd_torch",
        "accuracy|sums|identities|distribution|gradient|batch_invariance",
        "dweight|dbias",
        "defect",
        "more than 65,536 rows of few columns, 16 bits: partial sums of dweight and dbias are kept in the type of the "
        "weight, one for each 32 rows or more (`dgamma_blocks` in layer_norm_kernel.cu); fewer rows are summed in "
        "float32",
    ),
    Judgement(
        "gpu",
        "rmsnorm_bwd_torch_compiled",
        "batch_invariance",
        "*",
        "open",
        "float32, one row of 4096 with a mean of 100, where the same row beside another is right: rstd is off as by a "
        "sum in 8 lanes. Inductor times several programs on the machine and takes one; in a process that ran this "
        "shape alone, all were right",
    ),
    Judgement(
        "gpu",
        "batchnorm_bwd_torch|instancenorm_bwd_torch",
        "signature",
        "*",
        "refusal",
        "a bias without a weight gets no gradient on CUDA (an error, or a shape of (0,)); on a CPU it gets one",
    ),
    Judgement(
        "gpu",
        "batchnorm_fwd_torch|instancenorm_fwd_torch",
        "signature",
        "none",
        "refusal",
        "a weight of a narrower type than x raises on CUDA (cuDNN's, as torch says) and works on a CPU",
    ),
    Judgement(
        "gpu",
        "batchnorm_fwd_torch",
        "*",
        "*",
        "defect",
        "half x that is neither contiguous nor channels_last: the mean is rounded to half, and y and running_mean use "
        "it; contiguous x is right (the ∞ in fp32 is outside: x is near the largest number)",
    ),
    Judgement(
        "gpu",
        "batchnorm_bwd_torch",
        "accuracy",
        "dx|dweight",
        "outside",
        "|x| at the largest half number: Σdy·(x − mean) overflows before it is multiplied by rstd",
    ),
    Judgement(
        "gpu",
        "batchnorm_bwd_torch",
        "determinism|identities",
        "*",
        "open",
        "x with a stride beyond 2³¹: results differ from call to call; the cause is not settled",
    ),
    Judgement(
        "gpu",
        "batchnorm_bwd_torch",
        "modes",
        "none",
        "open",
        "in a CUDA graph no memory was left: what an earlier case had taken was kept from the graph, which has changed "
        "since",
    ),
    Judgement(
        "gpu",
        "instancenorm_bwd_torch",
        "*",
        "*",
        "defect",
        "half x, also with float32 weights: the gradients are like those of half statistics and half sums; layer_norm "
        "of the same rows is right on this GPU",
    ),
    # Liger
    Judgement(
        "*",
        "liger_groupnorm_?wd",
        "signature",
        "none",
        "refusal",
        "no samples: a view of 0 elements raises; torch returns an empty tensor",
    ),
    Judgement(
        "gpu",
        "liger_groupnorm_?wd",
        "batch_invariance",
        "none",
        "defect",
        "2³¹ elements: the kernel multiplies tl.program_id(0), of 32 bits, by the stride of a sample; its RMSNorm "
        "casts it to 64 bits (linkedin/Liger-Kernel#804)",
    ),
    Judgement(
        "*",
        "liger_groupnorm_fwd",
        "*",
        "y",
        "defect",
        "the variance is E[x²] − mean², which cancels, also in float32; in half the squares are half, so it becomes "
        "negative and y NaN. The library tests float32 data around 0",
    ),
    Judgement("*", "liger_groupnorm_fwd", "*", "mean|rstd", "defect", "the same; they are also saved in the type of x"),
    Judgement(
        "*",
        "liger_groupnorm_bwd",
        "*",
        "dweight|dbias",
        "defect",
        "half: atomics add it up in half, for fp16 after a rounding to bf16 (which every x but float32 gets)",
    ),
    Judgement("*", "liger_groupnorm_bwd", "*", "dx", "defect", "it uses the forward's mean and rstd, also in float32"),
    # fla
    Judgement(
        "*", "fla_*_bwd", "signature", "none", "refusal", "no rows: ZeroDivisionError, though its forward returns"
    ),
    # quack
    Judgement(
        "gpu",
        "quack_*",
        "signature|gradient",
        "none",
        "refusal",
        "some 16-bit rows, the shortest of one element, do not compile (an internal compiler error), and misaligned "
        "tensors raise; no number was wrong",
    ),
)
