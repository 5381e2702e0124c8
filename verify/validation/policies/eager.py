"""Every operator in eager torch, the reference of most tests of kernels: y, and what else it returns, by name."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from verify_norm.core import geometry
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.op import Op
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec

Inputs = Mapping[str, Any]  # tensors by name, None for what is not given
Eager = Callable[[CaseSpec, Inputs], dict[str, Tensor]]


def as_on_gpu(function: Callable[..., Tensor], x: Tensor, *others: Tensor | None) -> Tensor:
    """Return `function` of torch as a GPU computes it: in float32 where the types are narrower, then rounded.

    On a CPU torch sums the gradients of float16 weights in float16: at the tutorial's shape they are 0.08 off, and a
    right kernel would fail a test that it passes on a GPU. Here types may be mixed, which torch does not take.
    """
    given = [t for t in (x, *others) if t is not None]
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    if all(t.dtype == x.dtype for t in given) and (x.dtype == wide or not x.is_cpu):
        return function(x, *others)
    return function(*(None if t is None else t.to(wide) for t in (x, *others))).to(x.dtype)


def affine(norm: Callable[..., Tensor], spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
    """Return y = norm(spec, x, weight, bias)."""
    return {"y": as_on_gpu(partial(norm, spec), inputs["x"], inputs["weight"], inputs["bias"])}


def normalized(spec: CaseSpec) -> tuple[int, ...]:
    """Return the extents of the last dimensions, which are normalized together."""
    return spec.shape[len(spec.shape) - spec.normalized_ndim :]


def weighted(spec: CaseSpec, w: Tensor | None) -> Tensor | None:
    """Return the weight with the offset."""
    return w if w is None or spec.weight_offset == 0.0 else w + spec.weight_offset


layernorm = partial(
    affine, lambda spec, x, w, b: functional.layer_norm(x, normalized(spec), weighted(spec, w), b, spec.eps)
)
groupnorm = partial(affine, lambda spec, x, w, b: functional.group_norm(x, spec.num_groups or 1, w, b, spec.eps))
instancenorm = partial(affine, lambda spec, x, w, b: functional.instance_norm(x, weight=w, bias=b, eps=spec.eps))


def rmsnorm(spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
    """Return functional.rms_norm, its weight with the offset."""

    def norm(x: Tensor, w: Tensor | None) -> Tensor:
        return functional.rms_norm(x, normalized(spec), weighted(spec, w), spec.eps)

    return {"y": as_on_gpu(norm, inputs["x"], inputs["weight"])}


def partial_rmsnorm(spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
    """Return x·(the mean of the first squares + eps)^−½·weight, over the last dimensions."""
    size = geometry.variance_size(spec, OPS["partial_rmsnorm_fwd"])

    def norm(x: Tensor, w: Tensor | None) -> Tensor:
        rows = x.reshape(-1, math.prod(normalized(spec)))
        y = (rows * torch.rsqrt(rows[:, :size].square().mean(1, keepdim=True) + spec.eps)).reshape(x.shape)
        return y if w is None else y * (w + spec.weight_offset)

    return {"y": as_on_gpu(norm, inputs["x"], inputs["weight"])}


def l2norm(spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
    """Return x·(Σx² + eps)^−½ over the last dimensions; functional.normalize has another eps."""

    def norm(x: Tensor) -> Tensor:
        dims = tuple(range(x.dim() - spec.normalized_ndim, x.dim()))
        return x * torch.rsqrt(x.square().sum(dims, keepdim=True) + spec.eps)

    return {"y": as_on_gpu(norm, inputs["x"])}


def batchnorm(spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
    """Return functional.batch_norm, and the running statistics, which change in place."""
    running = {name: t for name in ("running_mean", "running_var") if (t := inputs.get(name)) is not None}
    wide = {name: t.to(torch.promote_types(t.dtype, torch.float32)) for name, t in running.items()}
    moving = wide.get("running_mean"), wide.get("running_var")

    def norm(spec: CaseSpec, x: Tensor, w: Tensor | None, b: Tensor | None) -> Tensor:
        return functional.batch_norm(x, *moving, w, b, spec.training, spec.momentum, spec.eps)

    y = affine(norm, spec, inputs)
    for name, t in running.items():
        if wide[name] is not t:
            t.copy_(wide[name])
    return {**y, **running}


def added(norm: Eager, spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
    """Return the norm of x + residual, and that sum, rounded before the norm."""
    total = inputs["x"] + inputs["residual"]
    return {**norm(spec, {**inputs, "x": total}), "residual_out": total}


def dropped(norm: Eager, spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
    """Return the norm of what the mask leaves of x, over 1 − p, plus residual, each rounded, and that sum."""
    kept = torch.where(inputs["mask"], inputs["x"] / (1.0 - spec.dropout_p), 0.0)
    return added(norm, spec, {**inputs, "x": kept.to(inputs["x"].dtype)})


def into_8_bits(norm: Eager, spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
    """Return y of the norm times a scale, saturated, in float8_e4m3fn, and amax, the largest |y| before the scale."""
    z, largest = norm(spec, inputs)["y"].float(), FORMATS["float8_e4m3fn"].largest
    amax = z.abs().max() if z.numel() else z.new_zeros(())
    return {"y": (z * inputs["scale"]).clamp(-largest, largest).to(torch.float8_e4m3fn), "amax": amax.reshape(1)}


def quantized(norm: Eager, length: int, spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
    """Return y in float8_e4m3fn with a scale of every `length` elements of a row, 0 for the whole row; and the rest."""
    made, n = norm(spec, inputs), math.prod(normalized(spec))
    length, largest = length or n, FORMATS["float8_e4m3fn"].largest
    z = functional.pad(made["y"].float().reshape(-1, n), (0, -n % length)).reshape(-1, -(-n // length), length)
    scale = z.abs().amax(2) / largest
    y = (z / torch.where(scale == 0, 1.0, scale)[:, :, None]).reshape(len(z), z.shape[1] * length)[:, :n]
    return {**made, "y": y.reshape(spec.shape).to(torch.float8_e4m3fn), "y_scale": scale}


def gated(activation: Callable[[Tensor], Tensor], spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
    """Return y of RMSNorm times the activation of the gate, each as a GPU computes it."""
    return {"y": rmsnorm(spec, inputs)["y"] * as_on_gpu(activation, inputs["gate"])}


def of_gate(norm: Eager, spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
    """Return y of the norm of x·SiLU(gate)."""
    return norm(spec, {**inputs, "x": inputs["x"] * as_on_gpu(functional.silu, inputs["gate"])})


def modulated(norm: Eager, spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
    """Return y of the norm times 1 + scale, plus shift, which have a row for each sample or each token."""
    y = norm(spec, inputs)["y"]
    scale, shift = (
        t.reshape(*t.shape[:1], *[1] * (y.dim() - t.dim()), *t.shape[1:]) for t in (inputs["scale"], inputs["shift"])
    )
    return {"y": y * (1 + scale) + shift}


def rotated(norm: Eager, spec: CaseSpec, inputs: Inputs) -> dict[str, Tensor]:
    """Return y of the norm, with the first elements of each head rotated in halves, and the others as they are."""
    y, cos, sin = norm(spec, inputs)["y"], inputs["cos"], inputs["sin"]
    half = cos.shape[-1]
    heads = y.reshape(*cos.shape[:-1], -1, math.prod(normalized(spec)))
    a, b, rest = heads.split((half, half, heads.shape[-1] - 2 * half), -1)
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    return {"y": torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1).reshape(y.shape)}


TORCH: dict[str, Eager] = {
    "layernorm": layernorm,
    "rmsnorm": rmsnorm,
    "l2norm": l2norm,
    "partial_rmsnorm": partial_rmsnorm,
    "layernorm_fp8": partial(into_8_bits, layernorm),
    "rmsnorm_fp8": partial(into_8_bits, rmsnorm),
    "rmsnorm_quant": partial(quantized, rmsnorm, 0),
    "add_rmsnorm_quant": partial(quantized, partial(added, rmsnorm), 0),
    "add_rmsnorm_quant_group": partial(quantized, partial(added, rmsnorm), 128),
    "groupnorm": groupnorm,
    "groupnorm_silu": lambda spec, inputs: {"y": functional.silu(groupnorm(spec, inputs)["y"])},
    "groupnorm_gelu": lambda spec, inputs: {"y": functional.gelu(groupnorm(spec, inputs)["y"])},
    "rmsnorm_silu": lambda spec, inputs: {"y": functional.silu(rmsnorm(spec, inputs)["y"])},
    "gated_rmsnorm": partial(gated, functional.silu),
    "gate_rmsnorm": partial(of_gate, rmsnorm),
    "gated_rmsnorm_sigmoid": partial(gated, torch.sigmoid),
    "qk_norm_rope": partial(rotated, rmsnorm),
    "modulate_layernorm": partial(modulated, layernorm),
    "modulate_rmsnorm": partial(modulated, rmsnorm),
    "batchnorm": batchnorm,
    "instancenorm": instancenorm,
    "add_layernorm": partial(added, layernorm),
    "add_rmsnorm": partial(added, rmsnorm),
    "dropout_add_layernorm": partial(dropped, layernorm),
    "dropout_add_rmsnorm": partial(dropped, rmsnorm),
}


@torch.no_grad()
def statistics(op: Op, spec: CaseSpec, inputs: Inputs) -> tuple[Tensor | None, Tensor]:
    """Return the mean (None in RMSNorm) and rstd of x in the op's shapes; float32, of a float64 x float64."""
    x = inputs["x"]
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if op.view == "channels" and not spec.training:
        mean, var = (inputs[name].to(x.dtype) for name in ("running_mean", "running_var"))
        return mean, (var + spec.eps).rsqrt()
    n = geometry.row_length(spec, op)
    if op.view == "rows":
        x = x.reshape(math.prod(spec.shape[: len(spec.shape) - spec.normalized_ndim]), n)
    elif op.view == "groups":
        x = x.reshape(spec.shape[0], geometry.groups(spec, op), n)
    else:
        x = x.movedim(1, 0).reshape(spec.shape[1], n)
    if not any(tensor.name == "mean" for tensor in op.inputs):
        square = x.square().mean(-1) if op.averages else x.square().sum(-1)
        return None, (square + spec.eps).rsqrt()
    mean = x.mean(-1, keepdim=True)
    return mean.squeeze(-1), ((x - mean).square().mean(-1) + spec.eps).rsqrt()
