"""The timed contestants: this project's kernels, a user's kernels, and other libraries on the same work.

A library's forward is called as its users call it. Its backward is torch.autograd.grad after one forward pass, so it
uses its own saved tensors and only the backward is timed. Each contestant has the contract it is verified under.
"""

import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch
import variants
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name
from work import Work

from verify_norm.core import errors
from verify_norm.core.contract import Contract
from verify_norm.core.errors import UsageError
from verify_norm.core.op import Op
from verify_norm.core.ops import OPS
from verify_norm.loading import builtin, registry


@dataclass(frozen=True, slots=True)
class Contestant:
    """One implementation of the work. `prepare` takes the arguments and returns the call to time."""

    name: str
    prepare: Callable[[Mapping[str, Any]], Callable[[], Any]]
    contracts: tuple[Contract, ...]  # a result has to satisfy one of them
    peer: bool = False
    dtypes: Mapping[str, str] = field(default_factory=dict)  # of outputs whose type differs from the operator's


def ours(name: str, op: str) -> Contestant:
    """Return a kernel of the registry or a user's "path.py:attr" for this operator; raise UsageError if unknown."""
    label, _, how = name.partition("@")  # layernorm_fwd_cuda3@256: a step of the ladder at a block size
    kernel = registry.load(label, op)
    run, block = kernel.run, "" if "=" in how else how
    constants = variants.parse(how) if "=" in how else {}
    if block:
        from verify_norm.kernels.variants.cuda import layernorm

        if not label.startswith("layernorm_fwd_cuda") or not block.isdigit():
            raise UsageError(
                f"{name!r}: expected a step of the CUDA ladder at a block size, like layernorm_fwd_cuda3@256"
            )
        step, size = int(label[-1]), int(block)

        def run(x: Tensor, weight: Tensor, bias: Tensor, eps: float, normalized_shape: Any) -> Any:
            return layernorm.forward(step, x, weight, bias, eps, normalized_shape, block=size)

    def prepare(given: Mapping[str, Any]) -> Callable[[], Any]:
        takes = inspect.signature(run).parameters
        every = any(p.kind is p.VAR_KEYWORD for p in takes.values())
        bound = {key: value for key, value in given.items() if every or key in takes}
        variants.plan_by(constants)
        return lambda: run(**bound)

    return Contestant(name, prepare, (kernel.contract,))


def _stock(base: str) -> Callable[..., Any]:
    """Return the function that a user of stock torch writes; it returns y, or y and the sum."""

    def norm(x: Tensor, residual: Tensor | None, weight: Tensor, bias: Any, shape: Any, groups: Any, eps: float) -> Any:
        total = x if residual is None else x + residual
        if base.startswith("groupnorm"):
            y = F.group_norm(total, groups, weight, bias, eps)
            y = {"groupnorm_silu": F.silu, "groupnorm_gelu": F.gelu}.get(base, lambda y: y)(y)
        elif base == "batchnorm":
            y = F.batch_norm(total, None, None, weight, bias, True, 0.0, eps)
        elif base == "instancenorm":
            y = F.instance_norm(total, None, None, weight, bias, True, 0.0, eps)
        elif base.endswith("rmsnorm"):
            y = F.rms_norm(total, shape, weight, eps)
        else:
            y = F.layer_norm(total, shape, weight, bias, eps)
        return y if residual is None else (y, total)

    return norm


def _stock_fp8(base: str) -> Callable[..., Any]:
    """Return stock torch's norm with 8-bit output, in float32: a rounding to 16 bits first would round twice."""

    def norm(x: Tensor, scale: Tensor, weight: Tensor, bias: Any, shape: Any, eps: float) -> Any:
        if base.startswith("rmsnorm"):
            z = F.rms_norm(x.float(), shape, weight.float(), eps)
        else:
            z = F.layer_norm(x.float(), shape, weight.float(), bias.float(), eps)
        return (z * scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn), z.abs().amax().reshape(1)

    return norm


def _gated(x: Tensor, gate: Tensor, weight: Tensor, shape: Any, eps: float) -> Tensor:
    return (F.rms_norm(x.float(), shape, weight.float(), eps) * F.silu(gate.float())).to(x.dtype)


def _modulated(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, scale: Tensor, shift: Tensor, shape: Any, eps: float
) -> Tensor:
    line = (x.shape[0], *[1] * (x.dim() - 2), x.shape[-1])
    affine = (None if one is None else one.float() for one in (weight, bias))
    z = F.layer_norm(x.float(), shape, *affine, eps)
    return (z * (1.0 + scale.float().reshape(line)) + shift.float().reshape(line)).to(x.dtype)


def _l2(x: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)).to(x.dtype)


def _rotated(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, shape: Any, eps: float) -> Tensor:
    half = cos.shape[-1]
    z = F.rms_norm(x.float(), shape, weight.float(), eps).reshape(*cos.shape[:-1], -1, x.shape[-1])
    a, b, rest = z.split((half, half, z.shape[-1] - 2 * half), -1)
    cos, sin = cos.float().unsqueeze(-2), sin.float().unsqueeze(-2)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1).reshape(x.shape).to(x.dtype)


def _scaled(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return z in 8 bits over a scale of each run along the last axis, and these scales."""
    scale = z.abs().amax(-1, keepdim=True) / 448.0
    scale = torch.where(scale == 0.0, 1.0, scale)
    return (z / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn), scale


def _quantized(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return _scaled(F.rms_norm(x.float(), x.shape[-1:], weight.float(), eps))


def _row_scales(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    total = x.float() + residual.float()
    y, scale = _scaled(F.rms_norm(total, x.shape[-1:], weight.float(), eps))
    return y, scale, total.to(x.dtype)


def _group_scales(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    total, n = x.float() + residual.float(), x.shape[-1]
    z = F.rms_norm(total, x.shape[-1:], weight.float(), eps)
    y, scale = _scaled(F.pad(z, (0, -n % 128)).unflatten(-1, (-1, 128)))
    return y.flatten(-2)[..., :n], scale.flatten(-2), total.to(x.dtype)


CHAINS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {  # in float32 with one rounding, and their arguments
    "gated_rmsnorm": (_gated, ("x", "gate", "weight", "normalized_shape", "eps")),
    "modulate_layernorm": (_modulated, ("x", "weight", "bias", "scale", "shift", "normalized_shape", "eps")),
    "l2norm": (_l2, ("x", "eps")),
    "qk_norm_rope": (_rotated, ("x", "weight", "cos", "sin", "normalized_shape", "eps")),
    "rmsnorm_quant": (_quantized, ("x", "weight", "eps")),
    "add_rmsnorm_quant": (_row_scales, ("x", "residual", "weight", "eps")),
    "add_rmsnorm_quant_group": (_group_scales, ("x", "residual", "weight", "eps")),
}


def _function(base: str, change: Callable[[Any], Any] = lambda function: function) -> Callable[[Any], Any]:
    """Return stock torch's call, or `change` of it, as a function of a namespace of arguments."""
    own = base.endswith("_fp8")
    names = ("x", "scale" if own else "residual", "weight", "bias", "normalized_shape")
    names += ("eps",) if own else ("num_groups", "eps")
    made = _stock_fp8(base) if own else _stock(base)
    if base in CHAINS:
        made, names = CHAINS[base]
    norm = change(made)
    return lambda t: norm(*(getattr(t, name, None) for name in names))


def _torch(base: str) -> Callable[[Any], Any]:
    return _function(base)


def _compiled(base: str) -> Callable[[Any], Any]:
    """Return stock torch's call under torch.compile for this exact size, its best case."""
    torch._dynamo.reset()  # torch compiles a function for eight sizes at most
    return _function(base, lambda norm: torch.compile(norm, dynamic=False, fullgraph=True))


def _liger(base: str) -> Callable[[Any], Any]:
    from liger_kernel import ops

    return {
        "layernorm": lambda t: ops.LigerLayerNormFunction.apply(t.x, t.weight, t.bias, t.eps),
        "rmsnorm": lambda t: ops.LigerRMSNormFunction.apply(t.x, t.weight, t.eps, 0.0, "llama", False),
        "groupnorm": lambda t: ops.LigerGroupNormFunction.apply(
            t.x, t.weight, t.bias, t.x.shape[1], t.num_groups, t.eps
        ),
        "add_rmsnorm": lambda t: ops.LigerFusedAddRMSNormFunction.apply(t.x, t.residual, t.weight, t.eps, 0.0),
    }[base]


def _fla(base: str) -> Callable[[Any], Any]:
    from fla.modules.norm.fused_norm_gate import rms_norm_gated
    from fla.modules.norm.l2norm import l2norm
    from fla.modules.norm.layernorm import layer_norm, rms_norm

    return {
        "gated_rmsnorm": lambda t: rms_norm_gated(t.x, t.gate, t.weight, None, activation="swish", eps=t.eps),
        "l2norm": lambda t: l2norm(t.x, t.eps),
        "layernorm": lambda t: layer_norm(t.x, t.weight, t.bias, eps=t.eps),
        "rmsnorm": lambda t: rms_norm(t.x, t.weight, None, eps=t.eps),
        "add_rmsnorm": lambda t: rms_norm(t.x, t.weight, None, residual=t.residual, eps=t.eps, prenorm=True),
    }[base]


def _quack(base: str) -> Callable[[Any], Any]:
    from quack.rmsnorm import rmsnorm

    return {
        "rmsnorm": lambda t: rmsnorm(t.x, t.weight, eps=t.eps),
        "add_rmsnorm": lambda t: rmsnorm(t.x, t.weight, residual=t.residual, eps=t.eps, prenorm=True),
    }[base]


def _quack_layernorm(op: str) -> Callable[[Mapping[str, Any]], Callable[[], Any]]:
    """Return the preparation of quack's LayerNorm: no autograd, float32 parameters; it is not timed."""
    from quack.rmsnorm import layernorm_bwd, layernorm_fwd

    def prepare(given: Mapping[str, Any]) -> Callable[[], Any]:
        x, weight, bias = given["x"], given["weight"].float(), given["bias"].float()
        if op == "layernorm_bwd":
            dy, mean, rstd = given["dy"], given["mean"], given["rstd"]
            return lambda: layernorm_bwd(x, weight, dy, rstd, mean, has_bias=True)

        def forward() -> Any:
            y, rstd, mean = layernorm_fwd(x, weight, bias, given["eps"], return_rstd=True, return_mean=True)
            return y, mean, rstd

        return forward

    return prepare


def _apex(base: str) -> Callable[[Any], Any]:
    from apex.normalization.fused_layer_norm import fused_layer_norm_affine, fused_rms_norm_affine

    return {
        "layernorm": lambda t: fused_layer_norm_affine(t.x, t.weight, t.bias, t.normalized_shape, t.eps),
        "rmsnorm": lambda t: fused_rms_norm_affine(t.x, t.weight, t.normalized_shape, t.eps),
    }[base]


NORMS = (
    "layernorm",
    "rmsnorm",
    "groupnorm",
    "add_layernorm",
    "add_rmsnorm",
    "layernorm_fp8",
    "rmsnorm_fp8",
    "groupnorm_silu",
    "groupnorm_gelu",
    "batchnorm",
    "instancenorm",
    *CHAINS,
)
PEERS: dict[str, tuple[str, tuple[str, ...], Callable[[str], Callable[[Any], Any]] | None]] = {
    "torch": ("torch", NORMS, _torch),
    "compile": ("torch", NORMS, _compiled),
    "liger": ("liger_kernel", ("layernorm", "rmsnorm", "groupnorm", "add_rmsnorm"), _liger),
    "fla": ("fla", ("layernorm", "rmsnorm", "add_rmsnorm", "gated_rmsnorm", "l2norm"), _fla),
    "quack": ("quack", ("layernorm", "rmsnorm", "add_rmsnorm"), _quack),
    "apex": ("apex", ("layernorm", "rmsnorm"), _apex),
}


def missing(name: str) -> str | None:
    """Return why a peer cannot take part here; raise UsageError for an unknown name."""
    module = PEERS[errors.one_of("peer", name, PEERS)][0]
    return None if importlib.util.find_spec(module) is not None else f"{module} is not installed here"


def peer(name: str, work: Work) -> Contestant | None:
    """Return the peer's implementation, or None; `prepare` imports its library."""
    _, offered, make = PEERS[name]
    if work.base not in offered:
        return None
    # Stock torch rounds the norm's dx to 16 bits before it adds dresidual_out: other work than a fused kernel's.
    if name == "torch" and work.op.startswith("add_") and work.op.endswith("_bwd") and work.dtype != "float32":
        return None
    contracts = _contracts(name, work)
    if (name, work.base) == ("quack", "layernorm"):
        wide = {"dweight": "float32", "dbias": "float32"}
        return Contestant(name, lambda given: _quack_layernorm(work.op)(given), contracts, True, wide)
    return Contestant(name, lambda given: _through_autograd(make(work.base), given, OPS[work.op]), contracts, True)


def _contracts(name: str, work: Work) -> tuple[Contract, ...]:
    way = work.op.rpartition("_")[2]
    stem = {"liger": {"rmsnorm": "rmsnorm_llama"}.get(work.base, work.base)}.get(name, work.base)
    op = work.op.replace("_silu", "").replace("_gelu", "")  # the norm without its activation
    known = {"torch": f"{op}_torch", "compile": f"{op}_torch_compiled"}.get(name, f"{name}_{stem}_{way}")
    found = (builtin.BUILTIN | builtin.PEERS).get(known)
    contract = Contract() if found is None else found.contract
    unfused = name in ("torch", "compile") and work.base.startswith("add_")  # it may or may not round the sum first
    return (contract, replace(contract, residual="rounded")) if unfused else (contract,)


def _through_autograd(function: Callable[[Any], Any], given: Mapping[str, Any], op: Op) -> Callable[[], Any]:
    """Return the call to time: the forward, or the gradients of one forward pass in the operator's order."""
    if op.forward is None:
        t = SimpleNamespace(**given)
        return lambda: function(t)
    own = {name: value for name, value in given.items() if name in ("x", "gate", "weight", "bias")}
    if "residual_out" in given:  # the sum and zero stand for x and residual
        own = {"x": given["residual_out"], "residual": torch.zeros_like(given["residual_out"]), **own}
    leaves = {name: value.detach().requires_grad_() for name, value in own.items()}
    with torch.enable_grad():
        results = function(SimpleNamespace(**{**given, **leaves}))
    outputs = results if isinstance(results, tuple) else (results,)
    cotangents = [given["dy"], given.get("dresidual_out")][: len(outputs)]

    def backward() -> Any:
        dx, *rest = torch.autograd.grad(outputs, tuple(leaves.values()), cotangents, retain_graph=True)
        return (dx, *(rest[1:] if "residual" in leaves else rest))

    return backward
