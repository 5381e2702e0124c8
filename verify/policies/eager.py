"""Eager torch for every operator, as tests of kernels use it for a reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from verify_norm import data
from verify_norm.dtypes import FORMATS
from verify_norm.spec import CaseSpec, Op

Inputs = Mapping[str, Tensor | None]
Eager = Callable[[CaseSpec, Inputs], dict[str, Tensor]]


def stock(function: Callable[..., Tensor], x: Tensor, *others: Tensor | None) -> Tensor:
    """`function` of torch's own, as a GPU computes it: in float32 where the types are narrower, then rounded.

    On a CPU torch sums the gradients of float16 weights in float16: at the tutorial's shape they are 0.08 off, and a
    right kernel with them would fail a test that it passes on a GPU. Types may be mixed, which torch does not take.
    """
    given = [t for t in (x, *others) if t is not None]
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    if all(t.dtype == x.dtype for t in given) and (x.dtype == wide or not x.is_cpu):
        return function(x, *others)
    return function(*(None if t is None else t.to(wide) for t in (x, *others))).to(x.dtype)


def some(inputs: Inputs, name: str) -> Tensor:
    """An input that there is."""
    tensor = inputs[name]
    assert tensor is not None
    return tensor


def normalized(spec: CaseSpec) -> tuple[int, ...]:
    """The dimensions that are normalized together, where these are the last."""
    return spec.shape[len(spec.shape) - spec.normalized_ndim :]


def layernorm(spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
    """functional.layer_norm."""
    about = some(inputs, "x"), inputs["weight"], inputs["bias"]
    return {"y": stock(lambda x, w, b: functional.layer_norm(x, normalized(spec), w, b, spec.eps), *about)}


def rmsnorm(spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
    """functional.rms_norm, its weight with the offset."""

    def norm(x: Tensor, w: Tensor | None) -> Tensor:
        w = w if w is None or spec.weight_offset == 0.0 else w + spec.weight_offset
        return functional.rms_norm(x, normalized(spec), w, spec.eps)

    return {"y": stock(norm, some(inputs, "x"), inputs["weight"])}


def groupnorm(spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
    """functional.group_norm."""
    assert spec.num_groups is not None
    groups = spec.num_groups
    about = some(inputs, "x"), inputs["weight"], inputs["bias"]
    return {"y": stock(lambda x, w, b: functional.group_norm(x, groups, w, b, spec.eps), *about)}


def batchnorm(spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
    """functional.batch_norm, and the running statistics, which change in place."""
    running = {name: t for name in ("running_mean", "running_var") if (t := inputs.get(name)) is not None}
    wide = {name: t.to(torch.promote_types(t.dtype, torch.float32)) for name, t in running.items()}
    moving = wide.get("running_mean"), wide.get("running_var")

    def norm(x: Tensor, w: Tensor | None, b: Tensor | None) -> Tensor:
        return functional.batch_norm(x, *moving, w, b, spec.training, spec.momentum, spec.eps)

    y = stock(norm, some(inputs, "x"), inputs["weight"], inputs["bias"])
    for name, t in running.items():
        if wide[name] is not t:
            t.copy_(wide[name])
    return {"y": y, **running}


def instancenorm(spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
    """functional.instance_norm."""
    about = some(inputs, "x"), inputs["weight"], inputs["bias"]
    return {"y": stock(lambda x, w, b: functional.instance_norm(x, weight=w, bias=b, eps=spec.eps), *about)}


def added(norm: Eager) -> Eager:
    """The same of a sum, which is returned too, and rounded first."""

    def of_sum(spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
        total = some(inputs, "x") + some(inputs, "residual")
        return {**norm(spec, {**inputs, "x": total}), "residual_out": total}

    return of_sum


def activated(norm: Eager, activation: Callable[[Tensor], Tensor]) -> Eager:
    """The norm, and an activation of its y."""
    return lambda spec, inputs: {"y": activation(norm(spec, inputs)["y"])}


def into_8_bits(norm: Eager) -> Eager:
    """The norm, its y times a scale and saturated, and the largest magnitude before that."""

    def scaled(spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
        z, largest = norm(spec, inputs)["y"].float(), FORMATS["float8_e4m3fn"].largest
        amax = z.abs().max() if z.numel() else z.new_zeros(())
        y = (z * some(inputs, "scale")).clamp(-largest, largest).to(torch.float8_e4m3fn)
        return {"y": y, "amax": amax.reshape(1)}

    return scaled


TORCH: dict[str, Eager] = {
    "layernorm": layernorm,
    "rmsnorm": rmsnorm,
    "layernorm_fp8": into_8_bits(layernorm),
    "rmsnorm_fp8": into_8_bits(rmsnorm),
    "groupnorm": groupnorm,
    "groupnorm_silu": activated(groupnorm, functional.silu),
    "groupnorm_gelu": activated(groupnorm, functional.gelu),
    "batchnorm": batchnorm,
    "instancenorm": instancenorm,
    "add_layernorm": added(layernorm),
    "add_rmsnorm": added(rmsnorm),
}


@torch.no_grad()
def statistics(op: Op, spec: CaseSpec, inputs: Inputs) -> tuple[Tensor | None, Tensor]:
    """The mean, None where the op has none, and rstd of x, in float32 (float64 of float64), in the op's shapes."""
    x = some(inputs, "x").detach()
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if op.view == "channels" and not spec.training:
        mean, var = (some(inputs, name).to(x.dtype) for name in ("running_mean", "running_var"))
        return mean, (var + spec.eps).rsqrt()
    n = data.row_length(spec, op)
    if op.view == "rows":
        x = x.reshape(math.prod(spec.shape[: len(spec.shape) - spec.normalized_ndim]), n)
    elif op.view == "groups":
        x = x.reshape(spec.shape[0], data.groups(spec, op), n)
    else:
        x = x.movedim(1, 0).reshape(spec.shape[1], n)
    if not any(tensor.name == "mean" for tensor in op.inputs):
        return None, (x.square().mean(-1) + spec.eps).rsqrt()
    mean = x.mean(-1, keepdim=True)
    return mean.squeeze(-1), ((x - mean).square().mean(-1) + spec.eps).rsqrt()
