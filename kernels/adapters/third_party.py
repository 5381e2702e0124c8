"""Norm kernels that other libraries ship, as kernels of our operators: Liger, fla (flash-linear-attention) and quack.

Each is called as the library's users call it, through its own autograd function, so that its backward takes what its
forward saved, and ignores the operator's mean and rstd. A forward also returns what it saved. A library is imported
when one of its kernels is first called: a missing library costs nothing.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from verify_norm.kernels.adapters.torch_native import Gradients, gradients

Outputs = tuple[Tensor | None, ...]


def liger_layernorm_fwd(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Outputs:
    """Return the results of LigerLayerNormFunction: y, and the mean and rstd it saves."""
    from liger_kernel.ops import LigerLayerNormFunction

    (y,), (*_, mean, rstd) = saving(LigerLayerNormFunction.apply, x, weight, bias, eps)
    return y, mean, rstd


def liger_layernorm_bwd(dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Gradients:
    """Return the gradients of LigerLayerNormFunction: dx, dweight, dbias."""
    from liger_kernel.ops import LigerLayerNormFunction

    return gradients(lambda x, w, b: LigerLayerNormFunction.apply(x, w, b, eps), dy, x, weight, bias)


def liger_rmsnorm_llama_fwd(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float) -> Outputs:
    """LigerRMSNormFunction with casting_mode="llama", the default: y, and the rstd it saves."""
    return _liger_rms(x, weight, eps, weight_offset, "llama")


def liger_rmsnorm_llama_bwd(
    dy: Tensor, x: Tensor, weight: Tensor | None, eps: float, weight_offset: float
) -> Gradients:
    """Return the gradients of LigerRMSNormFunction with its defaults, casting_mode "llama", in place: dx, dweight."""
    return _liger_rms_gradients(dy, x, weight, eps, weight_offset, "llama", in_place=True)


def liger_rmsnorm_gemma_fwd(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float) -> Outputs:
    """LigerRMSNormFunction with casting_mode="gemma": y, and the rstd it saves."""
    return _liger_rms(x, weight, eps, weight_offset, "gemma")


def liger_rmsnorm_gemma_bwd(
    dy: Tensor, x: Tensor, weight: Tensor | None, eps: float, weight_offset: float
) -> Gradients:
    """Return the gradients of LigerRMSNormFunction with casting_mode="gemma" and in_place=False: dx, dweight."""
    return _liger_rms_gradients(dy, x, weight, eps, weight_offset, "gemma", in_place=False)


def liger_rmsnorm_none_fwd(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float) -> Outputs:
    """LigerRMSNormFunction with casting_mode="none": y, and the rstd it saves."""
    return _liger_rms(x, weight, eps, weight_offset, "none")


def liger_rmsnorm_none_bwd(dy: Tensor, x: Tensor, weight: Tensor | None, eps: float, weight_offset: float) -> Gradients:
    """Return the gradients of LigerRMSNormFunction with casting_mode="none" and in_place=False: dx, dweight."""
    return _liger_rms_gradients(dy, x, weight, eps, weight_offset, "none", in_place=False)


def liger_groupnorm_fwd(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Outputs:
    """Return the results of LigerGroupNormFunction: y, and the mean and rstd it saves."""
    from liger_kernel.ops import LigerGroupNormFunction

    (y,), (*_, mean, rstd) = saving(LigerGroupNormFunction.apply, x, weight, bias, x.shape[1], num_groups, eps)
    return y, mean, rstd


def liger_groupnorm_bwd(dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Gradients:
    """Return the gradients of LigerGroupNormFunction: dx, dweight, dbias."""
    from liger_kernel.ops import LigerGroupNormFunction

    return gradients(
        lambda x, w, b: LigerGroupNormFunction.apply(x, w, b, x.shape[1], num_groups, eps), dy, x, weight, bias
    )


def liger_add_rmsnorm_fwd(x: Tensor, residual: Tensor, weight: Tensor, eps: float, weight_offset: float) -> Outputs:
    """LigerFusedAddRMSNormFunction with its defaults, casting_mode="llama": y, residual_out, and the rstd it saves."""
    from liger_kernel.ops import LigerFusedAddRMSNormFunction

    (y, summed), (*_, rstd) = saving(LigerFusedAddRMSNormFunction.apply, x, residual, weight, eps, weight_offset)
    return y, summed, rstd


def liger_add_rmsnorm_bwd(
    dy: Tensor, dresidual_out: Tensor | None, residual_out: Tensor, weight: Tensor, eps: float, weight_offset: float
) -> Gradients:
    """Return the gradients of LigerFusedAddRMSNormFunction with its defaults, in_place=False: dx, dweight."""
    from liger_kernel.ops import LigerFusedAddRMSNormFunction

    return gradients_of_sum(
        lambda x, r, w: LigerFusedAddRMSNormFunction.apply(x, r, w, eps, weight_offset),
        dy,
        dresidual_out,
        residual_out,
        weight,
    )


def fla_layernorm_fwd(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Outputs:
    """Return the results of the fla package's layer_norm: y, and the mean and rstd it saves."""
    from fla.modules.norm.layernorm import LayerNormFunction

    (y,), (*_, mean, rstd) = saving(LayerNormFunction.apply, x, weight, bias, None, eps)
    return y, mean, rstd


def fla_layernorm_bwd(dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Gradients:
    """Return the gradients of fla's layer_norm: dx, dweight, dbias."""
    from fla.modules.norm.layernorm import layer_norm

    return gradients(lambda x, w, b: layer_norm(x, w, b, eps=eps), dy, x, weight, bias)


def fla_rmsnorm_fwd(x: Tensor, weight: Tensor | None, eps: float) -> Outputs:
    """Return the results of the fla package's rms_norm without a bias: y, and the rstd it saves."""
    from fla.modules.norm.layernorm import LayerNormFunction

    (y,), (*_, rstd) = saving(LayerNormFunction.apply, x, weight, None, None, eps, False, False, True)
    return y, rstd


def fla_rmsnorm_bwd(dy: Tensor, x: Tensor, weight: Tensor | None, eps: float) -> Gradients:
    """Return the gradients of fla's rms_norm: dx, dweight."""
    from fla.modules.norm.layernorm import rms_norm

    return gradients(lambda x, w: rms_norm(x, w, None, eps=eps), dy, x, weight)


def fla_groupnorm_fwd(x: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int, eps: float) -> Outputs:
    """Return the results of fla's group_norm of (B, C): y, and the mean and rstd it saves.

    It groups the last dimension.
    """
    from fla.modules.norm.layernorm import LayerNormFunction

    every = weight, bias, None, eps, False, False, False, num_groups
    (y,), (*_, mean, rstd) = saving(LayerNormFunction.apply, x, *every)
    return y, *(None if t is None else t.view(x.shape[0], num_groups) for t in (mean, rstd))


def fla_groupnorm_bwd(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int, eps: float
) -> Gradients:
    """Return the gradients of fla's group_norm: dx, dweight, dbias."""
    from fla.modules.norm.layernorm import group_norm

    return gradients(lambda x, w, b: group_norm(x, w, b, eps=eps, num_groups=num_groups), dy, x, weight, bias)


def fla_add_rmsnorm_fwd(x: Tensor, residual: Tensor, weight: Tensor | None, eps: float) -> Outputs:
    """Return the results of fla's rms_norm with a residual and prenorm=True: y, residual_out, and the rstd it saves."""
    from fla.modules.norm.layernorm import LayerNormFunction

    (y, summed), (*_, rstd) = saving(LayerNormFunction.apply, x, weight, None, residual, eps, True, False, True)
    return y, summed, rstd


def fla_add_rmsnorm_bwd(
    dy: Tensor, dresidual_out: Tensor | None, residual_out: Tensor, weight: Tensor | None, eps: float
) -> Gradients:
    """Return the gradients of fla's rms_norm with a residual and prenorm=True: dx, dweight."""
    from fla.modules.norm.layernorm import rms_norm

    return gradients_of_sum(
        lambda x, r, w: rms_norm(x, w, None, residual=r, eps=eps, prenorm=True), dy, dresidual_out, residual_out, weight
    )


def quack_layernorm_fwd(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Outputs:
    """Return the results of the quack package's layernorm_fwd of rows: y, mean and rstd."""
    from quack.rmsnorm import layernorm_fwd

    every = _packed(weight), _packed(bias), eps
    y, rstd, mean = layernorm_fwd(_rows(x), *every, return_rstd=True, return_mean=True)
    return y.view(x.shape), mean, rstd


def quack_layernorm_bwd(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, mean: Tensor, rstd: Tensor
) -> Gradients:
    """Return the gradients of quack's layernorm_bwd, a plain function that takes mean and rstd: dx, dweight, dbias."""
    from quack.rmsnorm import layernorm_bwd

    dx, dw, db = layernorm_bwd(_rows(x), _packed(weight), _rows(dy), rstd, mean, has_bias=bias is not None)
    return dx.view(x.shape), dw, db


def quack_rmsnorm_fwd(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float) -> Outputs:
    """Return the results of the quack package's rmsnorm_fwd of rows: y and rstd."""
    from quack.rmsnorm import rmsnorm_fwd

    y, _, rstd = rmsnorm_fwd(_rows(x), _packed(weight), eps=eps, store_rstd=True, weight_offset=weight_offset)
    return y.view(x.shape), rstd


def quack_rmsnorm_bwd(dy: Tensor, x: Tensor, weight: Tensor | None, eps: float, weight_offset: float) -> Gradients:
    """Return the gradients of quack's rmsnorm: dx, dweight."""
    from quack.rmsnorm import rmsnorm

    return gradients(lambda x, w: rmsnorm(x, w, eps=eps, weight_offset=weight_offset), dy, x, _packed(weight))


def quack_add_rmsnorm_fwd(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, weight_offset: float
) -> Outputs:
    """Return the results of the quack package's rmsnorm with a residual and prenorm=True: y and residual_out."""
    from quack.rmsnorm import rmsnorm

    y, summed = rmsnorm(x, _packed(weight), residual=residual, eps=eps, prenorm=True, weight_offset=weight_offset)
    return y, summed


def quack_add_rmsnorm_bwd(
    dy: Tensor,
    dresidual_out: Tensor | None,
    residual_out: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float,
) -> Gradients:
    """Return the gradients of quack's rmsnorm with a residual and prenorm=True: dx, dweight."""
    from quack.rmsnorm import rmsnorm

    return gradients_of_sum(
        lambda x, r, w: rmsnorm(x, w, residual=r, eps=eps, prenorm=True, weight_offset=weight_offset),
        dy,
        dresidual_out,
        residual_out,
        _packed(weight),
    )


def _liger_rms(x: Tensor, weight: Tensor | None, eps: float, offset: float, mode: str) -> Outputs:
    from liger_kernel.ops import LigerRMSNormFunction

    (y,), (*_, rstd) = saving(LigerRMSNormFunction.apply, x, weight, eps, offset, mode)
    return y, rstd


def _liger_rms_gradients(
    dy: Tensor, x: Tensor, weight: Tensor | None, eps: float, offset: float, mode: str, *, in_place: bool
) -> Gradients:
    from liger_kernel.ops import LigerRMSNormFunction

    return gradients(lambda x, w: LigerRMSNormFunction.apply(x, w, eps, offset, mode, in_place), dy, x, weight)


@torch.compiler.disable  # a function that Dynamo has traced keeps what it saves elsewhere
def saving(function: Callable[..., Any], x: Tensor, *rest: Any) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
    """Return what an autograd function returns, and what it saves for its backward."""
    with torch.enable_grad():
        returned = function(x.detach().requires_grad_(), *rest)
    outputs = returned if isinstance(returned, tuple) else (returned,)
    return tuple(y.detach() for y in outputs), tuple(outputs[0].grad_fn.saved_tensors)


def gradients_of_sum(
    function: Callable[..., Any], dy: Tensor, dsum: Tensor | None, total: Tensor, weight: Tensor | None
) -> Gradients:
    """Return the gradients of a fused addition with respect to x, which the residual's are to equal, and to the weight.

    The backward of the operator knows the sum alone: the sum and nothing is as good as any x and residual.
    """
    leaves = [total.detach().requires_grad_(), torch.zeros_like(total).requires_grad_()]
    leaves += [] if weight is None else [weight.detach().requires_grad_()]
    with torch.enable_grad():
        y, summed = function(*leaves, *([None] if weight is None else []))
    pairs = [(y, dy)] if dsum is None else [(y, dy), (summed, dsum)]
    dx, dresidual, *dweight = torch.autograd.grad([o for o, _ in pairs], leaves, [d for _, d in pairs])
    if not torch.equal(dx.nan_to_num(nan=0.125), dresidual.nan_to_num(nan=0.125)):
        raise ValueError("the gradients of x and of residual differ, which have one: that of their sum")
    return dx, dweight[0] if dweight else None


def _rows(x: Tensor) -> Tensor:
    """Return x as (M, N), packed, as quack's own rmsnorm does before it launches anything."""
    return x.reshape(-1, x.shape[-1]).contiguous()


def _packed(weight: Tensor | None) -> Tensor | None:
    """Return a contiguous parameter: quack is compiled for these."""
    return None if weight is None else weight.contiguous()
