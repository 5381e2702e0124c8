"""LayerNorm and RMSNorm into 8 bits: y = sat(s·z) for z of the norm and a scale s on the device, and amax = max |z|.

It is the row norms' forward (`rows`), which multiplies, saturates and rounds z while it is in registers: x is read once
and a byte an element is written. amax is the largest of every tile's, a maximum of which no order changes a bit. It is
that of z before the scale, which tells the scale of the next step where scaling is delayed.
"""

from functools import cache

import torch
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait

from verify_norm.kernels import row_norm
from verify_norm.kernels.launch import integers, jit, stored
from verify_norm.kernels.row_norm import Shape
from verify_norm.kernels.row_ops import NAMESPACE
from verify_norm.kernels.row_plan import Plan, dependent

TYPES = (torch.float8_e4m3fn, torch.float8_e5m2)


def layernorm_fwd_e4m3fn(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, scale: Tensor, eps: float, normalized_shape: Shape = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """LayerNorm of x (…, *normalized_shape), times scale, in float8_e4m3fn: y, amax, mean and rstd.

    Parameters
    ----------
    x, weight, bias, eps, normalized_shape
        As in `layernorm.layernorm_fwd`.
    scale : Tensor
        float32, one element: what z = x̂·w + b is multiplied by.

    Returns
    -------
    y : Tensor
        Of x's shape, contiguous; beyond ±448 it saturates, NaN stays.
    amax : Tensor
        float32 of shape (1,): the largest |z|, before the scale; 0 of no elements.
    mean, rstd : Tensor
        float32 of shape (M,), one a row.

    Raises
    ------
    ValueError, TypeError
        As in `layernorm.layernorm_fwd`, and if scale is not one float32 on x's device.
    """
    y, amax, mean, rstd = quantized(x, weight, bias, scale, eps, 0.0, normalized_shape, True, TYPES[0])
    return y, amax, mean, rstd


def layernorm_fwd_e5m2(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, scale: Tensor, eps: float, normalized_shape: Shape = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `layernorm_fwd_e4m3fn`, in float8_e5m2, which saturates at ±57344."""
    y, amax, mean, rstd = quantized(x, weight, bias, scale, eps, 0.0, normalized_shape, True, TYPES[1])
    return y, amax, mean, rstd


def rmsnorm_fwd_e4m3fn(
    x: Tensor, weight: Tensor | None, scale: Tensor, eps: float, weight_offset: float = 0.0,
    normalized_shape: Shape = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """RMSNorm of x, times scale, in float8_e4m3fn: y, amax and rstd, as `layernorm_fwd_e4m3fn`."""
    y, amax, rstd = quantized(x, weight, None, scale, eps, weight_offset, normalized_shape, False, TYPES[0])
    return y, amax, rstd


def rmsnorm_fwd_e5m2(
    x: Tensor, weight: Tensor | None, scale: Tensor, eps: float, weight_offset: float = 0.0,
    normalized_shape: Shape = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """RMSNorm of x, times scale, in float8_e5m2: y, amax and rstd, as `layernorm_fwd_e4m3fn`."""
    y, amax, rstd = quantized(x, weight, None, scale, eps, weight_offset, normalized_shape, False, TYPES[1])
    return y, amax, rstd


@jit
def largest(Most, Amax, tiles: tl.int64, PTX: tl.constexpr, BLOCK: tl.constexpr):
    """Amax, the largest of all tiles'. Launched before they are all written; a load is from the L2, where they are."""
    most = tl.zeros([BLOCK], tl.float32)
    if PTX:
        gdc_wait()
    for start in range(0, tiles, BLOCK):
        at = start + tl.arange(0, BLOCK)
        most = tl.maximum(most, tl.load(Most + at, mask=at < tiles, other=0.0, cache_modifier=".cg"))
    tl.store(Amax, tl.max(most, axis=0))


@cache
def largest_plan(device: torch.device) -> Plan:
    """One program: to begin another launch takes longer than to read a number for each of many rows."""
    return Plan(largest, {"BLOCK": 8192, "num_warps": 16} | dependent(device), device, 1, 1)


@torch.library.custom_op(f"{NAMESPACE}::row_norm_quantized", mutates_args=())
def _operator(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, scale: Tensor, eps: float, offset: float,
    normalized_shape: list[int] | None, centered: bool, dtype: torch.dtype,
) -> list[Tensor]:  # fmt: skip
    return _launched(x, weight, bias, scale, eps, offset, normalized_shape, centered, dtype)


@_operator.register_fake
def _(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, scale: Tensor, eps: float, offset: float,
    normalized_shape: list[int] | None, centered: bool, dtype: torch.dtype,
) -> list[Tensor]:  # fmt: skip
    m = row_norm.geometry(x, weight, bias, normalized_shape)[0]
    statistics = [x.new_empty((m,), dtype=torch.float32) for _ in range(1 + centered)]
    return [x.new_empty(x.shape, dtype=dtype), x.new_empty((1,), dtype=torch.float32), *statistics]


def quantized(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, scale: Tensor, eps: float, offset: float,
    normalized_shape: Shape, centered: bool, dtype: torch.dtype,
) -> list[Tensor]:  # fmt: skip
    """Y, amax, the mean if the norm is `centered`, and rstd; an operator where torch.compile looks on."""
    if torch.is_grad_enabled() and isinstance(x, Tensor) and x.requires_grad:
        raise ValueError(
            "what is rounded to 8 bits has no gradient here: call it under torch.no_grad() or with x.detach()"
        )
    if torch.compiler.is_compiling():
        shape = None if normalized_shape is None else list(integers(normalized_shape))
        with torch.no_grad():
            return _operator(x, weight, bias, scale, float(eps), float(offset), shape, centered, dtype)
    return _launched(x, weight, bias, scale, eps, offset, normalized_shape, centered, dtype)


def _launched(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, scale: Tensor, eps: float, offset: float,
    normalized_shape: Shape, centered: bool, dtype: torch.dtype,
) -> list[Tensor]:  # fmt: skip
    shape = row_norm.geometry(x, weight, bias, normalized_shape)
    if not isinstance(scale, Tensor):
        raise TypeError(f"scale must be a torch.Tensor of one float32, not {type(scale).__name__}")
    if scale.dtype != torch.float32 or scale.numel() != 1 or scale.device != x.device:
        raise ValueError(
            f"scale must be one float32 on {x.device}, not {scale.numel()} of {scale.dtype} on {scale.device}"
        )
    if torch.version.hip is None and x.is_cuda and torch.cuda.get_device_capability(x.device) < (8, 9):
        raise ValueError("Triton converts to 8 bits from compute capability 8.9 on")
    scale = stored(scale)
    y, _, mean, rstd, most = row_norm.forward(x, None, weight, bias, eps, offset, shape, centered, scale, dtype)
    amax = rstd.new_empty(1)
    if most is None:
        amax.zero_()
    else:
        largest_plan(x.device).launch(1, most, amax, most.numel())
    return [y, amax, rstd] if mean is None else [y, amax, mean, rstd]
