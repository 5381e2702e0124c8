"""flash-attention's tests: an error no worse than a few times eager torch's own, against float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from verify_norm.kernels.zoo import few_rows
from verify_norm.policies import eager
from verify_norm.policies.eager import Eager, Inputs
from verify_norm.policies.trial import (
    ComplaintError,
    NotApplicableError,
    Policy,
    Sample,
    backward,
    family,
    linear,
    outcome,
    place,
    present,
)
from verify_norm.spec import CaseSpec, Kernel

FITS = ("layernorm", "rmsnorm", "add_layernorm", "add_rmsnorm")
BATCH, LENGTH = 8, 512
SHORT = 32  # the length on a CPU: 256 rows, as many as the tutorial's kernels have partial sums at most
NARROW = ("float16", "bfloat16")


def layernorm(spec: CaseSpec, inputs: Inputs, upcast: bool) -> Tensor:
    """functional.layer_norm in the weight's type, or in float32."""
    x, w, b = eager.some(inputs, "x"), eager.some(inputs, "weight"), inputs["bias"]
    wide = torch.float32 if upcast else w.dtype
    given = x.to(wide), w.to(wide), None if b is None else b.to(wide)
    return eager.stock(lambda x, w, b: functional.layer_norm(x, spec.shape[-1:], w, b, spec.eps), *given)


def rmsnorm(spec: CaseSpec, inputs: Inputs, upcast: bool) -> Tensor:
    """The formula, operation by operation, in the types that the inputs have, or in float32."""
    x, w = eager.some(inputs, "x"), eager.some(inputs, "weight")
    x, w = (x.float(), w.float()) if upcast else (x, w)
    return x * (1 / torch.sqrt(x.square().mean(-1, keepdim=True) + spec.eps)) * w


def reference(norm: Callable[[CaseSpec, Inputs, bool], Tensor], upcast: bool) -> Eager:
    """What returns y in the type of x, and the sum where there is a residual, in float32 if `upcast`."""

    def of(spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
        x, residual = eager.some(inputs, "x"), inputs.get("residual")
        if residual is None:
            return {"y": norm(spec, inputs, upcast).to(x.dtype)}
        total = x.float() + residual.float() if upcast else x + residual
        return {"y": norm(spec, {**inputs, "x": total}, upcast).to(x.dtype), "residual_out": total}

    return of


def gated(outputs: Mapping[str, Tensor], cotangents: Mapping[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """y·σ(sum), so that both outputs have a cotangent."""
    gate = torch.sigmoid(outputs["residual_out"].to(outputs["y"].dtype))
    return [outputs["y"] * gate], [cotangents["y"]]


def samples(kernel: Kernel, device: str, hidden: tuple[int, ...], eps: float,
            types: Mapping[str, tuple[str, ...]]) -> Iterator[Sample]:  # fmt: skip
    """Normal inputs in 8 sequences of 512 positions (32 on a CPU), dy an eighth of that."""
    name = family(kernel)
    if name not in FITS:
        raise NotApplicableError(f"it has no test of {name}")
    random = torch.Generator().manual_seed(0)
    on_cpu = device == "cpu"
    if on_cpu and kernel.unsupported is few_rows:  # a program a row
        hidden = hidden[:1] + hidden[-1:]
    pairs = [(dtype, weight) for dtype, weights in types.items() for weight in weights]
    wide, narrow = pairs[:1], pairs[1:]
    for turn, size in enumerate(hidden):
        for dtype, weight in [*wide, narrow[turn % len(narrow)]] if on_cpu else pairs:
            shape, form = (BATCH, SHORT if on_cpu else LENGTH, size), getattr(torch, dtype)

            def normal(shape: tuple[int, ...], form: torch.dtype) -> Tensor:
                return torch.randn(shape, generator=random).to(form)

            inputs: dict[str, Tensor | None] = {"x": normal(shape, form)}
            if name.startswith("add_"):
                inputs["residual"] = normal(shape, form)
            inputs["weight"] = normal(shape[-1:], getattr(torch, weight))
            inputs["bias"] = None if "rms" in name else normal(shape[-1:], getattr(torch, weight))
            cotangents = {"y": normal(shape, form) / BATCH}
            spec = CaseSpec(shape, dtype, None if weight == dtype else weight, eps=eps, bias="rms" not in name)
            both = name.startswith("add_") and backward(kernel)
            for mode in ("prenorm", "")[: 1 if on_cpu and turn else 2] if both else ("",):
                yield place(Sample(spec, inputs, cotangents, mode), device)


Slack = Callable[[str, Sample], tuple[float, float]]


def test(kernel: Kernel, sample: Sample, slack: Slack) -> str | None:
    """For every output, max |kernel − float32| ≤ k·max |eager − float32| + atol; dy shared, the kernel first."""
    name = family(kernel)
    norm = rmsnorm if "rms" in name else layernorm
    loss = gated if sample.variant == "prenorm" else linear
    made = outcome(kernel, sample, reference(norm, upcast=False), own=True, loss=loss)
    plain = outcome(kernel, sample, reference(norm, upcast=False), own=False, loss=loss)
    truth = outcome(kernel, sample, reference(norm, upcast=True), own=False, loss=loss)
    for output, want in truth.items():
        if want is None:
            continue
        got, eagers = present(output, made[output]), present(output, plain[output])
        if got.shape != want.shape:
            raise ComplaintError(f"{output} has shape {tuple(got.shape)}, not {tuple(want.shape)}")
        if not backward(kernel) and got.dtype != eagers.dtype:
            raise ComplaintError(f"{output} is {got.dtype}, not {eagers.dtype}")
        k, atol = slack(output, sample)
        number = ~eagers.isnan()
        theirs = float((eagers - want)[number].abs().max())
        if theirs == 0.0:
            theirs = float((eagers * 0.3 / 0.3 - want)[number].abs().max())
        ours = float((got - want).abs().max())
        if not ours <= k * theirs + atol:
            return f"{output} is {ours:.3g} off, eager {theirs:.3g}: more than {k:.0f} times that and {atol:g}"
    return None


def by_type(output: str, sample: Sample) -> tuple[float, float]:
    """Twice, and what the narrowest type of the inputs says."""
    types = (sample.spec.dtype, sample.spec.weight_dtype or sample.spec.dtype)
    return 2.0, 5e-2 if "bfloat16" in types else 1e-2 if "float16" in types else 1e-4


FLASH = Policy(
    "flash-attention",
    "an error at most 2 times eager torch's against float32, plus 1e-4, 1e-2 or 5e-2 by type",
    "Dao-AILab/flash-attention, tests/ops/triton/test_layer_norm.py at 01d6dd1: test_layer_norm, with layer_norm_ref "
    "and rms_norm_ref of flash_attn/ops/triton/layer_norm.py at fd2fc9d for eager and, upcast, for the truth. Batch 8, "
    "hidden sizes 192, 2048, 2560, 3000, 4096, eps = 1e-6, normal inputs, dy/8, prenorm (y times the sum's sigmoid) "
    "and not, k = 2, atol 1e-4, 1e-2 where a type is float16, 5e-2 where one is bfloat16; the kernel first. Values are "
    "drawn in float32 by torch's CPU generator, seed 0, and rounded. On a CPU length 512 becomes 32, "
    "each size meets float32 and one of the narrow pairs of types in turn, not prenorm is for size 192 alone, and a "
    "kernel with a program a row meets sizes 192 and 4096. Types: x and residual alike, the weight like them "
    "or float32; left out are a residual wider than x, a float16 weight of bfloat16 inputs, narrow weights of float32 "
    "ones, dropout, row scales, a second input x1 or weight1, none of which our operators have.",
    partial(
        samples, hidden=(192, 2048, 2560, 3000, 4096), eps=1e-6,
        types={"float32": ("float32",), "float16": ("float32", "float16"), "bfloat16": ("float32", "bfloat16")},
    ),
    partial(test, slack=by_type),
)  # fmt: skip
