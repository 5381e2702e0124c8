"""The tests of vLLM, flashinfer, flash-linear-attention and quack: sizes, draws and tolerances, one row each."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close

from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS, base
from verify_norm.core.spec import CaseSpec
from verify_norm.validation.policies import eager, trial
from verify_norm.validation.policies.eager import Eager, Inputs
from verify_norm.validation.policies.trial import NotApplicableError, Policy, Sample, Subject

Draw = Callable[[tuple[int, ...], str], Tensor]  # normal numbers of a shape and a type
THREE = ("float16", "bfloat16", "float32")
LLAMA = partial(CaseSpec, bias=False, eps=1e-6)  # RMSNorm as these projects call it
QUANT_SCALES = (0.01, 1.0, 10.0)  # of flashinfer, which divides by them


def divided(spec: CaseSpec, normal: Draw) -> dict[str, Tensor]:
    """Return vLLM's inputs: x and residual over twice the hidden size, a weight around 1."""
    small = 1 / (2 * spec.shape[-1])
    weight = normal(spec.shape[-1:], "float32") * 0.1 + (0.0 if spec.weight_offset else 1.0)
    made = {name: normal(spec.shape, spec.dtype) * small for name in ("x", "residual")}
    return made | {"weight": weight.to(getattr(torch, spec.dtype))}


def plain(spec: CaseSpec, normal: Draw) -> dict[str, Tensor]:
    """Return normal inputs, weight and bias, and a scale by its reciprocal."""
    shape = spec.shape[1:2] if spec.num_groups else spec.shape[-1:]
    affine = {name: normal(shape, spec.weight_dtype or spec.dtype) for name in ("weight", "bias")}
    made = {name: normal(spec.shape, spec.dtype) for name in ("x", "residual")}
    return made | affine | {"scale": torch.tensor([spec.scale])}


def in_float32(spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
    """Return RMSNorm as vLLM's and flashinfer's references have it, of the float32 sum where there is a residual."""
    x, residual = inputs["x"].float(), inputs.get("residual")
    total = x if residual is None else x + residual.float()
    y = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + spec.eps)
    y = (y * (inputs["weight"].float() + spec.weight_offset)).to(inputs["x"].dtype)
    return {"y": y} if residual is None else {"y": y, "residual_out": total.to(inputs["x"].dtype)}


def refused(got: Tensor, want: Tensor, atol: float, rtol: float) -> bool:
    """Return whether torch.testing.assert_close refuses a result, with its shape and type."""
    try:
        assert_close(got, want, atol=atol, rtol=rtol)
    except AssertionError:
        return True
    return False


@dataclass(frozen=True, slots=True)
class Library:
    """One project's test: cases by operator and device, how it draws them, and what it refuses.

    `cases` has the specs of an operator, for a CPU the small ones. `apart` gets the operator, the case, the name of an
    output or gradient, what the kernel returned, and what is expected. `summed`: gradients are those of y.sum().
    """

    cases: Callable[[str, bool], list[CaseSpec]]
    draw: Callable[[CaseSpec, Draw], dict[str, Tensor]]
    apart: Callable[[str, CaseSpec, str, Tensor, Tensor], bool]
    reference: Eager | None = None  # of RMSNorm; None, and for others: eager torch's
    backward: bool = True
    summed: bool = False
    kernel_first: bool = False
    seed: int = 0

    def samples(self, subject: Subject) -> Iterator[Sample]:
        """Yield its cases; raises NotApplicableError where it has none."""
        op, on_cpu = OPS[subject.kernel.op], subject.device == "cpu"
        name = base(op.name)
        if op.forward and not self.backward:
            raise NotApplicableError("it tests no backward")
        specs = self.cases(name, on_cpu)
        if not specs:
            raise NotApplicableError(f"it has no test of {name}")
        normal = trial.normal(self.seed)
        taken = {tensor.name for tensor in (OPS[op.forward] if op.forward else op).inputs}
        for spec in specs[:: 4 if on_cpu and subject.few else 1]:
            made: dict[str, Any] = {key: t for key, t in self.draw(spec, normal).items() if key in taken}
            made |= {key: None for key in ("weight", "bias") if key in made and not getattr(spec, key)}
            dy = torch.ones_like(made["x"]) if self.summed else normal(spec.shape, spec.dtype)
            yield Sample(spec, made, {"y": dy}).to(subject.device)

    def test(self, kernel: Kernel, sample: Sample) -> str | None:
        """Return what the test refuses in one case, or None; raises KernelFailedError."""
        name = base(kernel.op)
        own = self.reference if name in ("rmsnorm", "add_rmsnorm") else None
        reference = own or eager.TORCH[name]
        for output, got, want in trial.both(kernel, sample, reference, kernel_first=self.kernel_first):
            if got.shape != want.shape or self.apart(name, sample.spec, output, got, want):
                return trial.difference(output, got, want)
        return None


def _vllm(name: str, on_cpu: bool) -> list[CaseSpec]:
    if name not in ("rmsnorm", "add_rmsnorm"):
        return []
    sizes = product((7,) if on_cpu else (7, 83, 4096), (8, 768, 769, 5120, 5125, 8192), THREE, (0.0, 1.0))
    return [LLAMA((tokens, hidden), dtype, weight_offset=offset) for tokens, hidden, dtype, offset in sizes]


def _near_vllm(name: str, spec: CaseSpec, output: str, got: Tensor, want: Tensor) -> bool:
    return refused(got, want, 1e-2, 1e-2)


def _flashinfer(name: str, on_cpu: bool) -> list[CaseSpec]:
    batches = (1, 19, 99, 989)[: 2 if on_cpu else None]
    sizes = (111, 500, 1024, 3072, 3584, 4096, 8192, 16384)[: 4 if on_cpu else None]
    if name == "rmsnorm_fp8":
        every = product(batches, sizes, THREE[:2], QUANT_SCALES)
        return [LLAMA((b, n), dtype, scale=1 / scale) for b, n, dtype, scale in every]
    if name == "add_rmsnorm_quant":
        return [LLAMA((b, n), dtype) for b, n, dtype in product(batches, sizes, THREE[:2])]
    if name in ("rmsnorm", "add_rmsnorm"):
        return [LLAMA((b, n), "float16", weight_offset=g) for b, n, g in product(batches, sizes, (0.0, 1.0))]
    if name == "layernorm":
        lengths = (128, 129, 1024, 16384)[: 3 if on_cpu else None]
        return [CaseSpec((b, n), "bfloat16", "float32", eps=1e-6) for b, n in product((1, 2, 3, 128), lengths)]
    return []


def _near_flashinfer(name: str, spec: CaseSpec, output: str, got: Tensor, want: Tensor) -> bool:
    """Return flashinfer's comparison; without an addition, 8-bit results are what the tolerance is relative to."""
    if output == "y" and name == "rmsnorm_fp8":
        return refused(want.float(), got.float(), 1.0, 1.0)
    if output == "y" and name == "add_rmsnorm_quant":
        return refused(got.float(), want.float(), 1.0, 1.0)
    tolerance = 1e-2 if name == "layernorm" else 1e-3
    return refused(got, want, tolerance, tolerance)


def _fla(name: str, on_cpu: bool) -> list[CaseSpec]:
    tokens = 16 if on_cpu else 512
    if name == "layernorm":
        forms = product((50, 64, 128), ((False, False), (True, False), (True, True)))
        return [CaseSpec((2, 2, tokens, n), weight=weight, bias=bias) for n, (weight, bias) in forms]
    if name == "rmsnorm":
        return [LLAMA((2, 2, tokens, n), eps=0.0) for n in (50, 64, 128, 256)]
    if name == "groupnorm":
        return [CaseSpec((2 * tokens, n), num_groups=g) for n, g in product((64, 128, 512, 1024, 2048, 2052), (1, 4))]
    return []


def near_fla(name: str, spec: CaseSpec, output: str, got: Tensor, want: Tensor) -> bool:
    """Return fla's assert_close with a ratio of 1e-3 and FLA_CI_ENV set, where most errors only warn."""
    off = (want - got).flatten()
    largest, ratio = float(off.abs().max()), float(off.square().mean().sqrt() / (want.square().mean().sqrt() + 1e-8))
    if largest <= 1e-6:
        return False
    warns = ratio < 0.01 or largest <= 0.3
    return bool(want.isnan().any() or got.isnan().any()) or not (warns or ratio < 1e-3)


def _quack(name: str, on_cpu: bool) -> list[CaseSpec]:
    rows = (1, 37) if on_cpu else (1, 37, 199, 8192)
    lengths = (192, 256, 512, 760, 1024, 1128, 2048, 4096, 8192, 16384)[: 7 if on_cpu else None]
    types = [(x, weight) for x in THREE for weight in (*THREE, None)]
    if name == "add_rmsnorm":
        return [LLAMA((32, 1024), "float16", "float32")]
    if name == "layernorm":
        every = product(rows[:2], lengths[1:], THREE)
        return [CaseSpec((m, n), x, "float32", bias=False) for m, n, x in every]
    if name != "rmsnorm":
        return []
    if on_cpu:  # each size in some of the types, in turn
        pairs = list(product(rows, lengths))
        made = [(m, n, *types[(5 * i + more) % len(types)]) for i, (m, n) in enumerate(pairs) for more in (0, 2)]
    else:
        made = [(m, n, *form) for m, n, form in product(rows, lengths, types)]
    return [CaseSpec((m, n), x, w, bias=False, weight=w is not None, eps=1e-5) for m, n, x, w in made]


def _near_quack(name: str, spec: CaseSpec, output: str, got: Tensor, want: Tensor) -> bool:
    """Return quack's comparison: atol by the type of x, of dweight by its own."""
    if name == "layernorm":
        of_x = {"bfloat16": 1e-2, "float16": 1e-3, "float32": 1e-4}[spec.dtype] * (4 if output.startswith("d") else 1)
        return refused(got, want, of_x, of_x)
    atol = {"bfloat16": 1e-1, "float16": 1e-2, "float32": 1e-4}[spec.dtype]
    if output == "dweight" and name == "rmsnorm":
        narrow = want.dtype != torch.float32
        atol = 2 * float((want + 0.3 - 0.3 - want).abs().max()) if narrow else 1e-4
    return refused(got, want, atol, 1e-3)


def _policy(name: str, summary: str, source: str, made: Library) -> Policy:
    return Policy(name, summary, source, made.samples, made.test)


LIBRARIES = (
    _policy(
        "vLLM",
        "x of randn/(2·hidden), so that eps is most of the variance; assert_close with 1e-2, 1e-2",
        "vllm-project/vllm, tests/kernels/core/test_layernorm.py at 041b9f5: test_rms_norm, test_gemma_rms_norm, with "
        "and without a residual, hidden sizes 8, 768, 769, 5120, 5125, 8192, eps = 1e-6, weights of mean 1 "
        "(Gemma: 0) and deviation 0.1; the reference first. 7, 83 and 4096 tokens, on a CPU 7. Left out: strided "
        "inputs, opcheck, test_rms_norm_weightless, quantized outputs (whose truth is vLLM's own kernels).",
        Library(_vllm, divided, _near_vllm, in_float32, backward=False),
    ),
    _policy(
        "flashinfer",
        "normal inputs in float16 with 1e-3; of 8-bit outputs an absolute and relative error of 1",
        "flashinfer-ai/flashinfer, tests/utils/test_norm.py at 01fcf9d: test_norm, test_gemma_norm, "
        "test_fused_add_rmsnorm, test_gemma_fused_add_rmsnorm (float16, 1e-3), test_layernorm (bfloat16, 1e-2), "
        "test_norm_quant (scales 0.01, 1, 10, rtol = atol = 1; the kernel's value stands for the expected one), and "
        "test_fused_add_rmsnorm_quant with the scales of rows for its static ones (rtol = atol = 1: zeros pass). "
        "Batches 1, 19, 99, 989 and eight hidden sizes; on a CPU two and four. Left out: strides, "
        "test_qknorm.",
        Library(_flashinfer, plain, _near_flashinfer, in_float32, backward=False),
    ),
    _policy(
        "fla-CI",
        "float32, the gradients of y.sum(); errors below 1 % of the mean square, or 0.3, only warn",
        "fla-org/flash-linear-attention, fla/utils/testing.py at e683ef8 (assert_close with FLA_CI_ENV, as its "
        "workflows set it) and tests/modules/test_layernorm.py at 00759f7: test_layernorm, test_rmsnorm (eps = 0), "
        "test_groupnorm, ratio 1e-3. 2 batches of 2 heads of 512 tokens, on a CPU of 16. Left out: linear layers.",
        Library(_fla, plain, near_fla, summed=True),
    ),
    _policy(
        "quack",
        "assert_close with atol 1e-1 in bfloat16, 1e-2 in float16 and 1e-4 in float32, rtol 1e-3",
        "Dao-AILab/quack, tests/test_rmsnorm.py at 05bce72 (test_rmsnorm_forward_backward, test_rmsnorm_with_residual) "
        "and tests/test_layernorm.py at 57f46d5 (1e-2, 1e-3, 1e-4; four times that for gradients); the kernel first. "
        "Rows 1, 37, 199, 8192 and ten lengths from 192 to 16384, all types of x and weight; on a CPU 1 and 37 rows, "
        "seven lengths, each in two pairs of types. Left out: longer rows, torch.compile, eps = 1e-6, strided inputs.",
        Library(_quack, plain, _near_quack, kernel_first=True),
    ),
)
