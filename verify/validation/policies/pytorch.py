"""PyTorch's own tests: torch.testing.assert_close and torch.autograd.gradcheck, at the samples of its OpInfo."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from verify_norm.core import geometry
from verify_norm.core.errors import first_line
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS, base
from verify_norm.core.spec import CaseSpec
from verify_norm.validation.policies import eager, trial
from verify_norm.validation.policies.trial import Policy, Sample, Subject

Samples = tuple[tuple[tuple[int, ...], dict[str, Any]], ...]
# The shape of each sample, and the options that differ from a plain call.
ROWS: Samples = (
    ((1, 2, 3), {"normalized_ndim": 3, "eps": 0.5}),
    ((2, 2, 3), {"normalized_ndim": 2, "eps": -0.5}),
    ((1,), {}),
    ((1, 2), {}),
    ((0, 1), {}),
    ((1, 2), {"weight": False, "bias": False}),
)
GROUPS: Samples = (
    ((1, 6, 3), {"num_groups": 2, "eps": 0.5}),
    ((2, 6, 3), {"num_groups": 2, "eps": -0.5}),
    ((1, 3), {"num_groups": 1}),
    ((0, 2), {"num_groups": 1}),
    ((5, 5, 5), {"num_groups": 1, "eps": 0.5}),
)
SAMPLES: dict[str, Samples] = {
    **dict.fromkeys(("layernorm", "rmsnorm", "add_layernorm", "add_rmsnorm"), ROWS),
    # OpInfo yields each of GROUPS four times: its variants without weight and bias pass both all the same
    "groupnorm": (
        *(sample for sample in GROUPS for _ in range(4)),
        ((1, 2), {"num_groups": 1, "weight": False, "bias": False}),
    ),
    "batchnorm": (
        ((5, 5, 5), {"training": True, "momentum": 0.5, "eps": 0.6}),
        ((3, 2, 4), {"training": False, "momentum": -1.2}),
        ((3, 1), {"training": True, "momentum": 0.0}),
        ((3, 2, 3, 4), {"training": True, "momentum": -1.0, "eps": 0.5}),
        ((3, 2, 3, 4), {"training": False, "momentum": -1.0, "eps": 0.5}),
        ((2, 1), {"training": False}),
        ((2, 1), {"training": True}),
        *[((2, 1), {"training": False})] * 2,
        ((1, 2, 3), {"training": True, "running": False, "weight": False, "bias": False}),
    ),
    "instancenorm": (
        *[((5, 5, 5), {"eps": 0.6})] * 2,
        *[((3, 2, 4), {})] * 2,
        *[((3, 2, 3, 4), {"eps": 0.5})] * 2,
        ((3, 2, 3, 4), {"bias": False}),
        ((3, 2, 3, 4), {"weight": False, "bias": False}),
        ((1, 2, 3), {"weight": False, "bias": False}),
    ),
}
OPINFO = (
    "pytorch/pytorch, torch/testing/_internal/common_methods_invocations.py as torch 2.13.0 ships it: the shapes, eps, "
    "groups, modes and value ranges of sample_inputs_layer_norm, _rms_norm, _group_norm, _batch_norm, _instance_norm "
    "(make_tensor: uniform in [-9, 9), for rms_norm in [-9, 1000), running statistics in [0, 9)), drawn by torch's CPU "
    "generator, seed 0. A default eps is passed explicitly: 1e-5, in rms_norm finfo(dtype).eps. Left out: "
    "batch_norm's samples without channels, of shape (0,), and instance_norm's running statistics, which our operators "
    "do not have. Fused additions have no OpInfo and use the norm's samples, with a residual like x. "
)


def opinfo(subject: Subject, dtypes: tuple[str, ...]) -> Iterator[Sample]:
    """Yield the samples of the kernel's operator in each type."""
    name = base(subject.kernel.op)
    if name not in SAMPLES:
        raise trial.NotApplicableError(f"there is no OpInfo of {name}")
    random = torch.Generator().manual_seed(0)

    def between(low: float, high: float, shape: tuple[int, ...], dtype: str) -> Tensor:
        values = torch.rand(shape, generator=random, dtype=torch.float64)
        return (low + (high - low) * values).to(getattr(torch, dtype))

    outputs = ("y", "residual_out") if name.startswith("add_") else ("y",)
    for dtype in dtypes:
        eps = float(torch.finfo(getattr(torch, dtype)).eps) if "rms" in name else 1e-5
        high = 1000.0 if "rms" in name else 9.0
        for shape, options in SAMPLES[name]:
            spec = CaseSpec(shape, dtype, **{"eps": eps, **options})
            spec = replace(spec, bias=spec.bias and "rms" not in name)
            affine = geometry.affine_shape(spec, OPS[subject.kernel.op])
            inputs: dict[str, Any] = {"x": between(-9.0, high, shape, dtype)}
            if name.startswith("add_"):
                inputs["residual"] = between(-9.0, high, shape, dtype)
            inputs["weight"] = between(-9.0, high, affine, dtype) if spec.weight else None
            inputs["bias"] = between(-9.0, high, affine, dtype) if spec.bias else None
            if name == "batchnorm":
                for running in ("running_mean", "running_var"):
                    inputs[running] = between(0.0, 9.0, affine, dtype) if spec.running else None
            normal = [torch.randn(shape, generator=random, dtype=torch.float64) for _ in outputs]
            cotangents = {output: t.to(getattr(torch, dtype)) for output, t in zip(outputs, normal, strict=True)}
            yield Sample(spec, inputs, cotangents).to(subject.device)


def close(kernel: Kernel, sample: Sample) -> str | None:
    """Return what torch.testing.assert_close refuses; the kernel runs second."""
    for name, got, want in trial.both(kernel, sample, eager.TORCH[base(kernel.op)], kernel_first=False):
        try:
            torch.testing.assert_close(got, want)
        except AssertionError as error:
            lines = [line for line in str(error).splitlines() if line]
            chosen = [line for line in lines if line.startswith("Greatest absolute")] or lines
            return f"{name}: {chosen[0].rstrip('.')}"
    return None


ASSERT_CLOSE = Policy(
    "assert_close",
    "torch.testing.assert_close with its defaults against eager torch in the same type, at OpInfo's samples",
    OPINFO + "Types float32, float16, bfloat16; gradients of a normal dy. Tolerances are the installed torch's: rtol "
    "1.3e-6, 1e-3, 1.6e-2 by type, and atol 1e-5; type and shape are compared too. Eager torch computes narrow types "
    "as a GPU does, in float32, then rounds. Running statistics are compared as well, which a test of batch_norm's "
    "return value would not do.",
    lambda subject: opinfo(subject, ("float32", "float16", "bfloat16")),
    close,
)


def in_float64(subject: Subject) -> Iterator[Sample]:
    """Yield the samples in float64, for a backward that computes in float64."""
    if OPS[subject.kernel.op].forward is None:
        raise trial.NotApplicableError("it checks a backward against its forward, and this is a forward")
    taken = [s for s in opinfo(subject, ("float64",)) if subject.unsupported(s.spec) is None]
    probe = next((s for s in taken if s.inputs["weight"] is not None and len(s.spec.shape) > 2), None)
    if probe is None:
        raise trial.NotApplicableError("it takes none of the cases that show whether it computes in float64")
    try:
        wide = computes_in_float64(subject.kernel, probe)
    except trial.KernelFailedError as failure:
        raise trial.NotApplicableError(f"it does not take float64: {failure}") from failure
    if not wide:
        raise trial.NotApplicableError("it computes in float32")
    yield from taken


def computes_in_float64(kernel: Kernel, sample: Sample) -> bool:
    """Return whether the gradients follow a change of the inputs that float32 cannot hold.

    All inputs move by a part in 2**20 along a random direction, and by a part in 2**36, which changes a smooth function
    2**16 times less. One computed in float32 rounds by a part in 2**24, hundreds of times the smaller change, or does
    not change at all. Half of the larger change separates the two.
    """
    random = torch.Generator().manual_seed(1)
    tensors = [*(t for t in sample.inputs.values() if t is not None), *sample.cotangents.values()]
    directions = [torch.randn(t.shape, generator=random, dtype=t.dtype).to(t.device) for t in tensors]
    found = []
    for step in (0.0, 2.0**-20, 2.0**-36):
        moves = iter(directions)
        inputs = {name: None if t is None else t * (1.0 + step * next(moves)) for name, t in sample.inputs.items()}
        cotangents = {name: t * (1.0 + step * next(moves)) for name, t in sample.cotangents.items()}
        near = replace(sample, inputs=inputs, cotangents=cotangents)
        made = trial.outcome(kernel, near, eager.TORCH[base(kernel.op)], own=True)
        found.append({name: t.double() for name, t in made.items() if t is not None})
    for name, here in found[0].items():
        large, small = found[1][name] - here, (found[2][name] - here) * 2.0**16
        if large.isfinite().all() and (large - small).norm() > 0.5 * large.norm():
            return False
    return True


def checked(kernel: Kernel, sample: Sample, *, fast: bool) -> str | None:
    """Return what torch.autograd.gradcheck refuses in one mode, with its other defaults."""
    names = [name for name in trial.LEAVES if sample.inputs.get(name) is not None]

    def function(*leaves: Tensor) -> tuple[Tensor, ...]:
        inputs = {name: None if t is None else t.clone() for name, t in sample.inputs.items()}
        inputs.update(zip(names, leaves, strict=True))
        made = trial.differentiated(kernel, sample.spec, eager.TORCH[base(kernel.op)], inputs)
        return tuple(made.values())

    leaves = [sample.inputs[name].clone().requires_grad_() for name in names]
    try:
        torch.autograd.gradcheck(function, leaves, fast_mode=fast)
    except RuntimeError as error:  # GradcheckError, and autograd's error about a wrong shape
        return first_line(error).rstrip(".,")
    return None


GRADCHECK = tuple(
    Policy(
        f"gradcheck {mode}",
        f"torch.autograd.gradcheck, {mode} mode, its other arguments at their defaults, in float64 at OpInfo's samples",
        OPINFO + f"torch.autograd.gradcheck(fast_mode={mode == 'fast'}) of the installed torch, with eps = 1e-6, "
        "atol = 1e-5, rtol = 1e-3, nondet_tol = 0, on a torch.autograd.Function of eager torch's float64 forward and "
        "the kernel's backward. PyTorch's own test, test/test_ops_gradients.py, sets more of its arguments. Applies "
        "only to kernels that compute in float64, which a trial run shows.",
        in_float64,
        partial(checked, fast=mode == "fast"),
    )
    for mode in ("slow", "fast")
)
