"""flash-attn's Triton norms (flash_attn.ops.triton.layer_norm) as kernels of our operators, as third_party has others.

They are called through the library's functions, so that a backward takes what its forward saved. The library can be
imported only where torch has CUDA.
"""

from typing import Any

from torch import Tensor

from verify_norm.kernels.adapters.third_party import Outputs, gradients_of_sum, saving
from verify_norm.kernels.adapters.torch_native import Gradients, gradients


def flash_layernorm_fwd(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Outputs:
    """Return the results of layer_norm_fn: y, and the mean and rstd it saves."""
    from flash_attn.ops.triton.layer_norm import layer_norm_fn

    (y,), (*_, mean, rstd) = saving(lambda t: layer_norm_fn(t, weight, bias, eps=eps), x)
    return y, mean, rstd


def flash_layernorm_bwd(dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Gradients:
    """Return the gradients of layer_norm_fn: dx, dweight, dbias."""
    from flash_attn.ops.triton.layer_norm import layer_norm_fn

    return gradients(lambda x, w, b: layer_norm_fn(x, w, b, eps=eps), dy, x, weight, bias)


def flash_rmsnorm_fwd(x: Tensor, weight: Tensor, eps: float, weight_offset: float) -> Outputs:
    """Return the results of rms_norm_fn without a bias: y, and the rstd it saves."""
    (y,), (*_, rstd) = saving(lambda t: _rms(t, weight, eps, weight_offset), x)
    return y, rstd


def flash_rmsnorm_bwd(dy: Tensor, x: Tensor, weight: Tensor, eps: float, weight_offset: float) -> Gradients:
    """Return the gradients of rms_norm_fn: dx, dweight."""
    return gradients(lambda x, w: _rms(x, w, eps, weight_offset), dy, x, weight)


def flash_add_rmsnorm_fwd(x: Tensor, residual: Tensor, weight: Tensor, eps: float, weight_offset: float) -> Outputs:
    """Return the results of rms_norm_fn with a residual and prenorm=True: y, residual_out, and the rstd it saves."""
    (y, total), (*_, rstd) = saving(lambda t: _rms(t, weight, eps, weight_offset, residual=residual, prenorm=True), x)
    return y, total, rstd


def flash_add_rmsnorm_bwd(
    dy: Tensor, dresidual_out: Tensor | None, residual_out: Tensor, weight: Tensor, eps: float, weight_offset: float
) -> Gradients:
    """Return the gradients of rms_norm_fn with a residual and prenorm=True: dx, dweight."""
    return gradients_of_sum(
        lambda x, r, w: _rms(x, w, eps, weight_offset, residual=r, prenorm=True),
        dy,
        dresidual_out,
        residual_out,
        weight,
    )


def _rms(x: Tensor, weight: Tensor, eps: float, offset: float, **more: Any) -> Any:
    """Return the results of rms_norm_fn; its `zero_centered_weight` is an offset of 1."""
    from flash_attn.ops.triton.layer_norm import rms_norm_fn

    return rms_norm_fn(x, weight, None, eps=eps, zero_centered_weight=offset == 1.0, **more)
