"""PyTorch's own means: torch.testing.assert_close and torch.autograd.gradcheck, at the samples of its OpInfo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from verify_norm.policies import eager
from verify_norm.policies.trial import (
    LEAVES,
    ComplaintError,
    NotApplicableError,
    Policy,
    Sample,
    backward,
    both,
    differentiated,
    family,
    outcome,
    place,
    unsupported,
)
from verify_norm.spec import CaseSpec, Kernel

# Of each sample: the shape, and what differs from a plain call. An eps of None is the function's default.
ROWS: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
    ((1, 2, 3), {"normalized_ndim": 3, "eps": 0.5}),
    ((2, 2, 3), {"normalized_ndim": 2, "eps": -0.5}),
    ((1,), {}),
    ((1, 2), {}),
    ((0, 1), {}),
    ((1, 2), {"weight": False, "bias": False}),
)
SAMPLES: dict[str, tuple[tuple[tuple[int, ...], dict[str, Any]], ...]] = {
    "layernorm": ROWS,
    "rmsnorm": ROWS,
    "add_layernorm": ROWS,
    "add_rmsnorm": ROWS,
    "groupnorm": (  # each of the first five four times, since what is to leave out weight and bias does not
        *(
            sample
            for sample in (
                ((1, 6, 3), {"num_groups": 2, "eps": 0.5}),
                ((2, 6, 3), {"num_groups": 2, "eps": -0.5}),
                ((1, 3), {"num_groups": 1}),
                ((0, 2), {"num_groups": 1}),
                ((5, 5, 5), {"num_groups": 1, "eps": 0.5}),
            )
            for _ in range(4)
        ),
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
        ((2, 1), {"training": False}),
        ((2, 1), {"training": False}),
        ((1, 2, 3), {"training": True, "running": False, "weight": False, "bias": False}),
    ),
    "instancenorm": (
        ((5, 5, 5), {"eps": 0.6}),
        ((5, 5, 5), {"eps": 0.6}),
        ((3, 2, 4), {}),
        ((3, 2, 4), {}),
        ((3, 2, 3, 4), {"eps": 0.5}),
        ((3, 2, 3, 4), {"eps": 0.5}),
        ((3, 2, 3, 4), {"bias": False}),
        ((3, 2, 3, 4), {"weight": False, "bias": False}),
        ((1, 2, 3), {"weight": False, "bias": False}),
    ),
}
FOUND = (
    "pytorch/pytorch, torch/testing/_internal/common_methods_invocations.py as torch 2.13.0 ships it: the shapes, eps, "
    "groups, modes and value ranges of sample_inputs_layer_norm, _rms_norm, _group_norm, _batch_norm, _instance_norm "
    "(make_tensor: uniform in [-9, 9), for rms_norm in [-9, 1000), running statistics in [0, 9)), drawn by torch's CPU "
    "generator, seed 0. An eps left at its default is given in full: 1e-5, in rms_norm finfo(dtype).eps. Left out: "
    "batch_norm's samples without channels, of shape (0,), and instance_norm's running statistics, which our operators "
    "do not have. Fused additions, of which there is no OpInfo: those of the norm, with a residual like x. "
)


def opinfo(kernel: Kernel, device: str, dtypes: tuple[str, ...]) -> Iterator[Sample]:
    """The samples of the kernel's operator."""
    name = family(kernel)
    if name not in SAMPLES:
        raise NotApplicableError(f"there is no OpInfo of {name}")
    random = torch.Generator().manual_seed(0)
    for dtype in dtypes:
        form = getattr(torch, dtype)

        def between(low: float, high: float, shape: tuple[int, ...], form: torch.dtype = form) -> Tensor:
            values = torch.rand(shape, generator=random, dtype=torch.float64)
            return (low + (high - low) * values).to(form)

        high = 1000.0 if "rms" in name else 9.0
        for shape, options in SAMPLES[name]:
            default = float(torch.finfo(form).eps) if "rms" in name else 1e-5
            spec = CaseSpec(shape, dtype, **{"eps": default, **options})
            spec = replace(spec, bias=spec.bias and "rms" not in name)
            rows = name in ("layernorm", "rmsnorm", "add_layernorm", "add_rmsnorm")
            affine = eager.normalized(spec) if rows else shape[1:2]
            inputs: dict[str, Tensor | None] = {"x": between(-9.0, high, shape)}
            if name.startswith("add_"):
                inputs["residual"] = between(-9.0, high, shape)
            inputs["weight"] = between(-9.0, high, affine) if spec.weight else None
            inputs["bias"] = between(-9.0, high, affine) if spec.bias else None
            if name == "batchnorm":
                for kept in ("running_mean", "running_var"):
                    inputs[kept] = between(0.0, 9.0, affine) if spec.running else None
            cotangents = {
                output: torch.randn(shape, generator=random, dtype=torch.float64).to(form)
                for output in (("y", "residual_out") if name.startswith("add_") else ("y",))
            }
            yield place(Sample(spec, inputs, cotangents), device)


def close(kernel: Kernel, sample: Sample) -> str | None:
    """torch.testing.assert_close of every output, the kernel's second."""
    for name, got, want in both(kernel, sample, eager.TORCH[family(kernel)], kernel_first=False):
        try:
            torch.testing.assert_close(got, want)
        except AssertionError as error:
            lines = [line for line in str(error).splitlines() if line]
            told = [line for line in lines if line.startswith("Greatest absolute")] or lines[:1]
            return f"{name}: {told[0].rstrip('.')}"
    return None


ASSERT_CLOSE = Policy(
    "assert_close",
    "torch.testing.assert_close with its defaults against eager torch in the same type, at OpInfo's samples",
    FOUND + "Types float32, float16, bfloat16; gradients of a normal dy. Tolerances are the installed torch's: rtol "
    "1.3e-6, 1e-3, 1.6e-2 by type, and atol 1e-5; type and shape are compared too. Eager torch computes narrow types "
    "as a GPU does, in float32, then rounds; its running statistics are compared as well, which a test of what "
    "batch_norm returns would not do.",
    lambda kernel, device: opinfo(kernel, device, ("float32", "float16", "bfloat16")),
    close,
)


def in_float64(kernel: Kernel, device: str) -> Iterator[Sample]:
    """The samples in float64, for a backward that computes in it."""
    if not backward(kernel):
        raise NotApplicableError("it checks a backward against its forward, and this is a forward")
    taken = [s for s in opinfo(kernel, device, ("float64",)) if unsupported(kernel, s.spec) is None]
    probe = next((s for s in taken if s.inputs["weight"] is not None and len(s.spec.shape) > 2), None)
    if probe is None:
        raise NotApplicableError("it takes none of the cases from which to tell whether it computes in float64")
    try:
        wide = computes_in_float64(kernel, probe)
    except ComplaintError as complaint:
        raise NotApplicableError(f"it does not take float64: {complaint}") from complaint
    if not wide:
        raise NotApplicableError("it computes in float32")
    yield from taken


def computes_in_float64(kernel: Kernel, sample: Sample) -> bool:
    """Whether the gradients follow a change of the inputs that float32 cannot hold.

    All inputs move by a part in 2**20 along a random direction, and by a part in 2**36. What is smooth, right or wrong,
    changes 2**16 times less by the second; what is computed in float32 is rounded by a part in 2**24, hundreds of times
    the smaller change, or does not change at all. Half of the change parts the two.
    """
    random = torch.Generator().manual_seed(1)
    tensors = [*(t for t in sample.inputs.values() if t is not None), *sample.cotangents.values()]
    directions = [torch.randn(t.shape, generator=random, dtype=t.dtype).to(t.device) for t in tensors]
    found = []
    for step in (0.0, 2.0**-20, 2.0**-36):
        moves = iter(directions)

        def moved(t: Tensor | None, step: float = step, moves: Iterator[Tensor] = moves) -> Tensor | None:
            return None if t is None else t * (1.0 + step * next(moves))

        inputs = {name: moved(t) for name, t in sample.inputs.items()}
        cotangents = {name: t * (1.0 + step * next(moves)) for name, t in sample.cotangents.items()}
        made = outcome(
            kernel, replace(sample, inputs=inputs, cotangents=cotangents), eager.TORCH[family(kernel)], own=True
        )
        found.append({name: t.double() for name, t in made.items() if t is not None})
    for name, base in found[0].items():
        large, small = found[1][name] - base, (found[2][name] - base) * 2.0**16
        if large.isfinite().all() and (large - small).norm() > 0.5 * large.norm():
            return False
    return True


def checked(fast: bool) -> Callable[[Kernel, Sample], str | None]:
    """torch.autograd.gradcheck with its defaults, but for the mode."""

    def test(kernel: Kernel, sample: Sample) -> str | None:
        names = [name for name in LEAVES if sample.inputs.get(name) is not None]

        def function(*leaves: Tensor) -> tuple[Tensor, ...]:
            inputs = {name: None if t is None else t.clone() for name, t in sample.inputs.items()}
            inputs.update(zip(names, leaves, strict=True))
            made = differentiated(kernel, sample.spec, eager.TORCH[family(kernel)], inputs)
            return tuple(made.values())

        leaves = [eager.some(sample.inputs, name).clone().requires_grad_() for name in names]
        try:
            torch.autograd.gradcheck(function, leaves, fast_mode=fast)
        except RuntimeError as error:  # torch's GradcheckError is one, and what autograd raises at a wrong shape
            return str(error).strip().splitlines()[0].rstrip(".,")
        return None

    return test


GRADCHECK = tuple(
    Policy(
        f"gradcheck {mode}",
        f"torch.autograd.gradcheck, {mode} mode, its other arguments at their defaults, in float64 at OpInfo's samples",
        FOUND + f"torch.autograd.gradcheck(fast_mode={mode == 'fast'}) of the installed torch, with eps = 1e-6, "
        "atol = 1e-5, rtol = 1e-3, nondet_tol = 0, on a torch.autograd.Function of eager torch's float64 forward and "
        "the kernel's backward. PyTorch's own test, test/test_ops_gradients.py, sets more of its arguments. Only where "
        "the kernel computes in float64, which is found by running it; else not applicable.",
        in_float64,
        checked(mode == "fast"),
    )
    for mode in ("slow", "fast")
)
