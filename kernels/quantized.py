"""LayerNorm and RMSNorm into 8 bits: y = sat(s·z) for z of the norm and a scale s on the device, and amax = max |z|.

The kernel is the row norms' forward (`rows.forward`), which multiplies, saturates and rounds z while z is in registers:
it reads x once and writes a byte an element. amax is the largest of all tiles' maxima, so no order changes a bit. It is
taken before the scale: delayed scaling computes the next step's scale from it.
"""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait

from verify_norm.kernels.arguments import Shape, integers, stored
from verify_norm.kernels.autograd import NAMESPACE
from verify_norm.kernels.launch import Plan, dependent, jit, ptx
from verify_norm.kernels.rows.launch import Form, forward
from verify_norm.kernels.rows.norm import norm_of


class Kind(NamedTuple):
    """Which norm it is, and the type of y."""

    dtype: torch.dtype
    centered: bool = True
    offset: float = 0.0


E4M3FN, E5M2 = Kind(torch.float8_e4m3fn), Kind(torch.float8_e5m2)  # LayerNorm's


def layernorm_fwd_e4m3fn(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    scale: Tensor,
    eps: float,
    normalized_shape: Shape = None,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return LayerNorm of x (…, *normalized_shape), times scale, in float8_e4m3fn: y, amax, mean and rstd.

    Parameters
    ----------
    x, weight, bias, eps, normalized_shape, weight_offset
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
        As `layernorm.layernorm_fwd`, and if scale is not one float32 on x's device.
    """
    y, amax, mean, rstd = quantized(
        x, weight, bias, scale, eps, E4M3FN._replace(offset=weight_offset), normalized_shape
    )
    return y, amax, mean, rstd


def layernorm_fwd_e5m2(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    scale: Tensor,
    eps: float,
    normalized_shape: Shape = None,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what `layernorm_fwd_e4m3fn` does, in float8_e5m2, which saturates at ±57344."""
    y, amax, mean, rstd = quantized(x, weight, bias, scale, eps, E5M2._replace(offset=weight_offset), normalized_shape)
    return y, amax, mean, rstd


def rmsnorm_fwd_e4m3fn(
    x: Tensor,
    weight: Tensor | None,
    scale: Tensor,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return RMSNorm of x, times scale, in float8_e4m3fn: y, amax and rstd, as `layernorm_fwd_e4m3fn`."""
    kind = Kind(torch.float8_e4m3fn, False, weight_offset)
    y, amax, rstd = quantized(x, weight, None, scale, eps, kind, normalized_shape)
    return y, amax, rstd


def rmsnorm_fwd_e5m2(
    x: Tensor,
    weight: Tensor | None,
    scale: Tensor,
    eps: float,
    weight_offset: float = 0.0,
    normalized_shape: Shape = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return RMSNorm of x, times scale, in float8_e5m2: y, amax and rstd, as `layernorm_fwd_e4m3fn`."""
    kind = Kind(torch.float8_e5m2, False, weight_offset)
    y, amax, rstd = quantized(x, weight, None, scale, eps, kind, normalized_shape)
    return y, amax, rstd


@dataclass(frozen=True)
class LargestConstants:
    """The constants of `largest`: whether the target has sm_90's instructions, and numbers loaded at a time."""

    PTX: bool
    BLOCK: int


@jit(int64="tiles")
def largest(Most, Amax, tiles, K: tl.constexpr):
    """Store Amax, the largest of all tiles' maxima. It starts before they are all written, and loads from the L2."""
    BLOCK: tl.constexpr = K.BLOCK
    most = tl.zeros([BLOCK], tl.float32)
    if K.PTX:
        gdc_wait()
    for start in range(0, tiles, BLOCK):
        at = start + tl.arange(0, BLOCK)
        most = tl.maximum(most, tl.load(Most + at, mask=at < tiles, other=0.0, cache_modifier=".cg"))
    tl.store(Amax, tl.max(most, axis=0))


@cache
def largest_plan(device: torch.device) -> Plan:
    """Return a plan of one program: another launch takes longer than to read a number for each of many rows."""
    return Plan(largest, LargestConstants(ptx(device), 8192), device, options={"num_warps": 16} | dependent(device))


@torch.library.custom_op(f"{NAMESPACE}::row_norm_quantized", mutates_args=())
def _operator(  # whose schema is flat
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    scale: Tensor,
    eps: float,
    offset: float,
    normalized_shape: list[int] | None,
    centered: bool,
    dtype: torch.dtype,
) -> list[Tensor]:
    return _launched(x, weight, bias, scale, eps, Kind(dtype, centered, offset), normalized_shape)


@_operator.register_fake
def _(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    scale: Tensor,
    eps: float,
    offset: float,
    normalized_shape: list[int] | None,
    centered: bool,
    dtype: torch.dtype,
) -> list[Tensor]:
    m = norm_of(x, weight, bias, normalized_shape).rows
    statistics = [x.new_empty((m,), dtype=torch.float32) for _ in range(1 + centered)]
    return [x.new_empty(x.shape, dtype=dtype), x.new_empty((1,), dtype=torch.float32), *statistics]


def quantized(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    scale: Tensor,
    eps: float,
    kind: Kind,
    normalized_shape: Shape,
) -> list[Tensor]:
    """Return y, amax, the mean if the norm is centered, and rstd; by an operator in torch.compile."""
    if torch.is_grad_enabled() and isinstance(x, Tensor) and x.requires_grad:
        raise ValueError(
            "a result in 8 bits has no gradient here: call the kernel under torch.no_grad() or with x.detach()"
        )
    if torch.compiler.is_compiling():
        shape = None if normalized_shape is None else list(integers(normalized_shape))
        dtype, centered, offset = kind
        with torch.no_grad():
            return _operator(x, weight, bias, scale, float(eps), float(offset), shape, centered, dtype)
    return _launched(x, weight, bias, scale, eps, kind, normalized_shape)


def _launched(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    scale: Tensor,
    eps: float,
    kind: Kind,
    normalized_shape: Shape,
) -> list[Tensor]:
    norm = norm_of(x, weight, bias, normalized_shape, kind.centered, kind.offset)
    if not isinstance(scale, Tensor):
        raise TypeError(f"scale must be a torch.Tensor of one float32, not {type(scale).__name__}")
    if scale.dtype != torch.float32 or scale.numel() != 1 or scale.device != x.device:
        raise ValueError(
            f"scale must be one float32 on {x.device}, not {scale.numel()} of {scale.dtype} on {scale.device}"
        )
    if torch.version.hip is None and x.is_cuda and torch.cuda.get_device_capability(x.device) < (8, 9):
        raise ValueError("Triton converts to 8 bits from compute capability 8.9 on")
    y, _, mean, rstd, most = forward(x, None, weight, bias, eps, norm, Form(dtype=kind.dtype, scale=stored(scale)))
    amax = rstd.new_empty(1)
    if most is None:
        amax.zero_()
    else:
        largest_plan(x.device).launch(1, most, amax, most.numel())
    return [y, amax, rstd] if mean is None else [y, amax, mean, rstd]
