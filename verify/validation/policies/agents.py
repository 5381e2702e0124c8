"""How benchmarks judge kernels that agents write: a few draws of one shape, and one tolerance for all elements."""

import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS, base
from verify_norm.core.spec import CaseSpec
from verify_norm.validation.policies import eager
from verify_norm.validation.policies.trial import (
    JUDGED,
    KernelFailedError,
    NotApplicableError,
    Policy,
    Sample,
    Subject,
    call,
    difference,
    present,
)

Apart = Callable[[Tensor, Tensor], bool]  # whether a result, and what is expected, are too far from each other
ELAPSED = torch.cuda.Event.elapsed_time
# Problems 33, 34, 35, 36 and 40 of KernelBench's level 1, made small: sizes on a CPU, and on a GPU.
IMAGES = {
    "batchnorm": ((8, 64, 16, 16), (64, 64, 512, 512)),
    "instancenorm": ((8, 64, 16, 16), (16, 64, 512, 512)),
    "groupnorm": ((8, 64, 16, 16), (16, 64, 512, 512)),
    "rmsnorm": ((8 * 16 * 16, 64), (16 * 512 * 512, 64)),
    "layernorm": ((8, 64, 16, 16), (16, 64, 256, 256)),
}
ROWS = {"cpu": (64, 4096), "cuda": (4096, 4096)}
OF_ROWS = ("layernorm", "rmsnorm", "add_layernorm", "add_rmsnorm")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """How one of them draws, calls and compares.

    `specs` are the cases of an operator on a kind of device. In each of so many `trials` x is drawn, uniform in [0, 1)
    or normal; weights are `drawn` too, or ones and zeros as in a new module. The kernel gets the tensors of the
    reference, which ran before it, or (`cloned`) copies, and the reference runs after it. `exact` looks at types too.
    `guarded`: outputs are exactly torch.Tensor, no thread is left, and torch's clock is the one that was imported.
    """

    specs: Callable[[str, str], list[CaseSpec]]
    apart: Callable[[str], Apart]
    trials: int
    uniform: bool = False
    drawn: bool = True
    cloned: bool = False
    exact: bool = True
    guarded: bool = False
    seed: int = 42

    def samples(self, subject: Subject) -> Iterator[Sample]:
        """Yield the trials of each case."""
        name = base(subject.kernel.op)
        if OPS[subject.kernel.op].forward:
            raise NotApplicableError("it tests no backward")
        specs = self.specs(name, "cpu" if subject.device == "cpu" else "cuda")
        if not specs:
            raise NotApplicableError(f"it has no problem of {name}")
        random = torch.Generator().manual_seed(self.seed)
        for spec in specs:
            for trial in range(self.trials):
                inputs = self._inputs(spec, name, random)
                yield Sample(spec, inputs, {}, f"trial {trial + 1}").to(subject.device)

    def _inputs(self, spec: CaseSpec, name: str, random: torch.Generator) -> dict[str, Any]:
        dtype, affine = getattr(torch, spec.dtype), eager.normalized(spec) if name in OF_ROWS else spec.shape[1:2]

        def draw(shape: tuple[int, ...]) -> Tensor:
            return (torch.rand if self.uniform else torch.randn)(shape, generator=random).to(dtype)

        inputs: dict[str, Any] = {"x": draw(spec.shape)}
        if name.startswith("add_"):
            inputs["residual"] = draw(spec.shape)
        for argument, new, there in (("weight", torch.ones, spec.weight), ("bias", torch.zeros, spec.bias)):
            made = draw(affine) if self.drawn else new(affine, dtype=dtype)
            inputs[argument] = made if there else None
        if name == "batchnorm":
            inputs |= {"running_mean": torch.zeros(affine, dtype=dtype), "running_var": torch.ones(affine, dtype=dtype)}
        return inputs

    def test(self, kernel: Kernel, sample: Sample) -> str | None:
        """Return what is wrong in one trial, or None; raises KernelFailedError."""
        spec, inputs = sample.spec, dict(sample.inputs)
        copies = {name: None if t is None else t.clone() for name, t in inputs.items()}
        reference = eager.TORCH[base(kernel.op)]
        want = None if self.cloned else reference(spec, inputs)
        made = _guarded(kernel, spec, inputs) if self.guarded else call(kernel, spec, copies if self.cloned else inputs)
        want = want or reference(spec, inputs)
        for name in (name for name in JUDGED if name in want and not name.startswith("running")):
            got = present(name, made.get(name))
            wrong = got.shape != want[name].shape or (self.exact and got.dtype != want[name].dtype)
            if wrong or self.apart(spec.dtype)(got, want[name]):
                return difference(name, got, want[name].to(got.dtype if not self.exact else want[name].dtype))
        return None


def _guarded(kernel: Kernel, spec: CaseSpec, inputs: dict[str, Any]) -> dict[str, Tensor | None]:
    """Return the outputs; raises KernelFailedError for a lazy one, a thread that is left, and a patched clock."""
    function, seen, threads = kernel.run, list[Any](), threading.active_count()
    assert function is not None

    @functools.wraps(function)
    def run(**given: Any) -> Any:
        seen.append(function(**given))
        return seen[0]

    made = call(replace(kernel, run=run), spec, inputs)
    returned = seen[0] if isinstance(seen[0], (tuple, list)) else [seen[0]]
    if lazy := [type(one).__name__ for one in returned if one is not None and type(one) is not Tensor]:
        raise KernelFailedError(f"lazy evaluation: an output is a {lazy[0]}, not torch.Tensor")
    if threading.active_count() > threads:
        raise KernelFailedError(f"{threading.active_count()} threads after the call, {threads} before")
    if torch.cuda.Event.elapsed_time is not ELAPSED:
        raise KernelFailedError("torch.cuda.Event.elapsed_time is patched")
    return made


def _images(name: str, kind: str) -> list[CaseSpec]:
    if name not in IMAGES:
        return []
    shape = IMAGES[name][kind != "cpu"]
    affine = name not in ("instancenorm", "rmsnorm")
    spec = CaseSpec(shape, weight=affine, bias=affine, num_groups=8 if name == "groupnorm" else None)
    return [replace(spec, normalized_ndim=3) if name == "layernorm" else spec]


def _rows(dtypes: tuple[str, ...], operators: tuple[str, ...]) -> Callable[[str, str], list[CaseSpec]]:
    def specs(name: str, kind: str) -> list[CaseSpec]:
        made = [CaseSpec(ROWS[kind], dtype, eps=1e-6, bias="rms" not in name) for dtype in dtypes]
        return made if name in operators else []

    return specs


def _allclose(tolerances: dict[str, float]) -> Callable[[str], Apart]:
    """Return torch.allclose with one number for both tolerances."""
    return lambda dtype: lambda got, want: not torch.allclose(want, got, atol=tolerances[dtype], rtol=tolerances[dtype])


def _matched(rtol: float, atol: float, share: float) -> Callable[[str], Apart]:
    """Return that more than a share of elements is beyond atol + rtol·|expected|, or not finite."""

    def apart(got: Tensor, want: Tensor) -> bool:
        error = (got.float() - want.float()).abs()
        beyond = (error > atol + rtol * want.float().abs()) | ~error.isfinite()
        return 1.0 - float(beyond.sum()) / max(1, beyond.numel()) < share

    return lambda _: apart


def _either(rtol: float, atol: float, *, finite: bool) -> Callable[[str], Apart]:
    """Return that an element is beyond both tolerances; NaN in what is expected allows anything, unless `finite`."""

    def apart(got: Tensor, want: Tensor) -> bool:
        a, b = want.float(), got.float()
        if finite and not b.isfinite().all():
            return True
        both = ((a - b).abs() > atol) & ((a - b).abs() > rtol * a.abs())
        odd = (~a.isfinite() & (a != b)) | ~b.isfinite()
        return bool(((both | odd) & ~a.isnan()).any())

    return lambda _: apart


def _verbose(rtol: float, atol: float) -> Callable[[str], Apart]:
    """Return gpu-mode's verbose_allclose."""
    return lambda _: lambda got, want: not torch.allclose(got, want.to(got), rtol=rtol, atol=atol, equal_nan=True)


def _policy(name: str, summary: str, source: str, made: Benchmark) -> Policy:
    return Policy(name, summary, source, made.samples, made.test)


AGENTS = (
    _policy(
        "KernelBench",
        "one shape, five draws of uniform numbers, weights of ones, torch.allclose with 1e-4 in float32",
        "ScalingIntelligence/KernelBench, src/kernelbench/eval.py at 0d12226: run_and_check_correctness (five seeds "
        "from 42, the reference first, on the same tensors, under no_grad) and get_tolerance_for_precision. Problems "
        "33, 34, 35, 36 and 40 of level 1 with eps = 1e-5; the batch is 8 and an image 16x16 on a CPU, the batch at "
        "most 64 on a GPU. Weights and biases are those of a new module; InstanceNorm and RMSNorm have none. Of the "
        "dtype nothing is compared there but by torch.allclose, which refuses another one. Left out: timing, its "
        "static checker of the source, problem 39.",
        Benchmark(_images, _allclose({"float32": 1e-4}), trials=5, uniform=True, drawn=False),
    ),
    _policy(
        "SOL-ExecBench",
        "one shape of normal numbers, 99 % of elements within 1e-2 + 1e-2·|expected|; plain tensors, no thread left",
        "NVIDIA/SOL-ExecBench, src/sol_execbench/bench/correctness.py at 266784c (compute_error_stats), "
        "evaluators/reward_hack.py at c720752 (check_lazy_outputs, check_thread_injection, check_monkey_patch), and "
        "docs/workload.md for the defaults 1e-2, 1e-2 and 0.99. Its problems are data: here 64x4096 (4096x4096 on a "
        "GPU) in bfloat16. Left out: check_stream_injection, which compares times.",
        Benchmark(_rows(("bfloat16",), OF_ROWS), _matched(1e-2, 1e-2, 0.99), trials=3, guarded=True),
    ),
    _policy(
        "flashinfer-bench",
        "one shape of normal numbers in bfloat16, three draws, an error below 1e-2 or below 1e-2·|expected|",
        "flashinfer-ai/flashinfer-bench, bench/evaluators/default.py at 06323a4 (check_correctness) and bench/utils.py "
        "at 00a1ec8 (compute_error_stats, gen_inputs), bench/config.py at 1039e39 (three trials, 1e-2, 1e-2). Shapes, "
        "types and finite values are compared. RMSNorm and fused additions with it, in 64x4096 (4096x4096 on a GPU).",
        Benchmark(_rows(("bfloat16",), ("rmsnorm", "add_rmsnorm")), _either(1e-2, 1e-2, finite=True), trials=3),
    ),
    _policy(
        "gpu-mode",
        "one shape of normal numbers, 5e-4 + 1e-2·|expected|, NaN equals NaN; the kernel gets a copy",
        "gpu-mode/reference-kernels, problems/amd/utils.py at e8b115b (verbose_allclose, match_reference) with the "
        "tolerances of problems/amd/fp8-mm/reference.py at 9254197; it has no norm. The kernel gets a clone, and the "
        "reference runs after it. The type is not compared. Float32, 64x4096 (4096x4096 on a GPU).",
        Benchmark(_rows(("float32",), OF_ROWS), _verbose(1e-2, 5e-4), trials=3, cloned=True, exact=False),
    ),
    _policy(
        "pygpubench",
        "one shape of normal numbers, an error below 1e-6 or below 1e-6·|expected|, NaN in the reference is a wildcard",
        "gpu-mode/pygpubench, csrc/check.cu at 49897e5 (check_approx_match_kernel) with the tolerances of "
        "test/grayscale.py at 4489ee8; float32, 64x4096 (4096x4096 on a GPU), five draws. Left out: its supervisor, "
        "canaries in the inputs, timing. It draws its cases in secret, and so may not be passed by who knows a seed.",
        Benchmark(_rows(("float32",), OF_ROWS), _either(1e-6, 1e-6, finite=False), trials=5),
    ),
)
