"""flash-attention's tests: an error at most a few times eager torch's own, both measured against float32."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS, base
from verify_norm.core.spec import CaseSpec
from verify_norm.validation.policies import eager, trial
from verify_norm.validation.policies.eager import Inputs
from verify_norm.validation.policies.trial import Policy, Sample, Subject

OPERATORS = ("layernorm", "rmsnorm", "add_layernorm", "add_rmsnorm")
BATCH, LENGTH = 8, 512
SHORT = 32  # the length on a CPU: 256 rows, the most partial sums that the tutorial's kernels have
HIDDEN = (192, 2048, 2560, 3000, 4096)
EPS = 1e-6
NARROW = (("float16", "float32"), ("float16", "float16"), ("bfloat16", "float32"), ("bfloat16", "bfloat16"))

Norm = Callable[[CaseSpec, Inputs, bool], Tensor]


def layernorm(spec: CaseSpec, inputs: Inputs, upcast: bool) -> Tensor:
    """Return functional.layer_norm in the weight's type, or in float32."""
    wide = torch.float32 if upcast else inputs["weight"].dtype
    w, b = (None if t is None else t.to(wide) for t in (inputs["weight"], inputs["bias"]))
    x: Tensor = inputs["x"].to(wide)
    return eager.as_on_gpu(lambda x, w, b: functional.layer_norm(x, spec.shape[-1:], w, b, spec.eps), x, w, b)


def rmsnorm(spec: CaseSpec, inputs: Inputs, upcast: bool) -> Tensor:
    """Return RMSNorm by its formula, operation by operation, in the types of the inputs or in float32."""
    x: Tensor = inputs["x"].float() if upcast else inputs["x"]
    w: Tensor = inputs["weight"].float() if upcast else inputs["weight"]
    return x * (1 / torch.sqrt(x.square().mean(-1, keepdim=True) + spec.eps)) * w


def reference(norm: Norm, upcast: bool, spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
    """Return y in the type of x, and the sum with a residual, in float32 if `upcast`."""
    x, residual = inputs["x"], inputs.get("residual")
    if residual is None:
        return {"y": norm(spec, inputs, upcast).to(x.dtype)}
    total = x.float() + residual.float() if upcast else x + residual
    return {"y": norm(spec, {**inputs, "x": total}, upcast).to(x.dtype), "residual_out": total}


def gated(outputs: Mapping[str, Tensor], cotangents: Mapping[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return y·σ(sum) and its cotangent, so that both outputs have a gradient."""
    gate = torch.sigmoid(outputs["residual_out"].to(outputs["y"].dtype))
    return [outputs["y"] * gate], [cotangents["y"]]


def samples(subject: Subject) -> Iterator[Sample]:
    """Yield normal inputs in 8 sequences of 512 positions (32 on a CPU), dy an eighth of that."""
    name, on_cpu = base(subject.kernel.op), subject.device == "cpu"
    if name not in OPERATORS:
        raise trial.NotApplicableError(f"it has no test of {name}")
    normal = trial.normal(seed=0)
    sizes = (HIDDEN[0], HIDDEN[-1]) if on_cpu and subject.few else HIDDEN
    for turn, size in enumerate(sizes):
        narrow = NARROW[turn % len(NARROW) :][:1] if on_cpu else NARROW
        shape = (BATCH, SHORT if on_cpu else LENGTH, size)
        for dtype, weight in (("float32", "float32"), *narrow):
            inputs: dict[str, Any] = {"x": normal(shape, dtype)}
            if name.startswith("add_"):
                inputs["residual"] = normal(shape, dtype)
            inputs["weight"] = normal(shape[-1:], weight)
            inputs["bias"] = None if "rms" in name else normal(shape[-1:], weight)
            cotangents = {"y": normal(shape, dtype) / BATCH}
            spec = CaseSpec(shape, dtype, None if weight == dtype else weight, eps=EPS, bias="rms" not in name)
            modes = ("prenorm", "") if name.startswith("add_") and OPS[subject.kernel.op].forward else ("",)
            for mode in modes[:1] if on_cpu and turn else modes:
                yield Sample(spec, inputs, cotangents, mode).to(subject.device)


def compare(kernel: Kernel, sample: Sample) -> str | None:
    """Return the first output where max |kernel − float32| > 2·max |eager − float32| + atol; the kernel runs first."""
    norm = rmsnorm if "rms" in kernel.op else layernorm
    loss = gated if sample.variant == "prenorm" else trial.linear
    made = trial.outcome(kernel, sample, partial(reference, norm, False), own=True, loss=loss)
    plain = trial.outcome(kernel, sample, partial(reference, norm, False), own=False, loss=loss)
    truth = trial.outcome(kernel, sample, partial(reference, norm, True), own=False, loss=loss)
    types = (sample.spec.dtype, sample.spec.weight_dtype)
    atol = 5e-2 if "bfloat16" in types else 1e-2 if "float16" in types else 1e-4
    for output, want in truth.items():
        if want is None:
            continue
        got, eagers = trial.present(output, made[output]), trial.present(output, plain[output])
        if got.shape != want.shape:
            raise trial.KernelFailedError(f"{output} has shape {tuple(got.shape)}, expected {tuple(want.shape)}")
        if OPS[kernel.op].forward is None and got.dtype != eagers.dtype:
            raise trial.KernelFailedError(f"{output} is {got.dtype}, expected {eagers.dtype}")
        number = ~eagers.isnan()
        theirs = float((eagers - want)[number].abs().max())
        if theirs == 0.0:
            theirs = float((eagers * 0.3 / 0.3 - want)[number].abs().max())
        ours = float((got - want).abs().max())
        if not ours <= 2.0 * theirs + atol:
            return f"{output} is {ours:.3g} off, eager {theirs:.3g}: more than 2 times that and {atol:g}"
    return None


FLASH = Policy(
    "flash-attention",
    "an error at most 2 times eager torch's against float32, plus 1e-4, 1e-2 or 5e-2 by type",
    "Dao-AILab/flash-attention, tests/ops/triton/test_layer_norm.py at 01d6dd1: test_layer_norm, with layer_norm_ref "
    "and rms_norm_ref of flash_attn/ops/triton/layer_norm.py at fd2fc9d for eager and, upcast, for the truth. Batch 8, "
    "hidden sizes 192, 2048, 2560, 3000, 4096, eps = 1e-6, normal inputs, dy/8, prenorm (y times the sum's sigmoid) "
    "and not, k = 2, atol 1e-4, 1e-2 where a type is float16, 5e-2 where one is bfloat16; the kernel first. torch's "
    "CPU generator draws the values in float32, seed 0, then they are rounded. On a CPU length 512 becomes 32, each "
    "size runs in float32 and one narrow pair of types in turn, size 192 alone runs without prenorm, and a kernel with "
    "one program a row runs at sizes 192 and 4096. Types: x and residual alike, the weight like them or float32. Left "
    "out: a residual wider than x, a float16 weight of bfloat16 inputs, narrow weights of float32 inputs, dropout, row "
    "scales, a second input x1 or weight1; our operators have none of these.",
    samples,
    compare,
)
