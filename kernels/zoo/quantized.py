"""Quantized norms in eager torch: with one mistake each, and right ones that look wrong."""

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

E4M3FN, E4M3FNUZ = 448.0, 240.0  # the largest numbers of two types of 8 bits, one of NVIDIA and one of AMD
_bounds: dict[int, Tensor] = {}


def _normalized(h: Tensor, weight: Tensor | None, eps: float, offset: float, shape: tuple[int, ...]):
    rows = h.float().reshape(-1, math.prod(shape))
    rstd = torch.rsqrt(rows.square().mean(1, keepdim=True) + eps)
    return rows * rstd * (1.0 if weight is None else weight.float().reshape(-1) + offset), rstd[:, 0]


def _most(z: Tensor, length: int) -> Tensor:
    """Return the largest |z| of each block of a row, (M, K)."""
    blocks = functional.pad(z, (0, -z.shape[1] % length))
    return blocks.reshape(len(z), blocks.shape[1] // length, length).abs().amax(2)


def _divided(z: Tensor, scale: Tensor, length: int) -> Tensor:
    return z / scale.repeat_interleave(length, 1)[:, : z.shape[1]]


def _nonzero(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, 1.0, scale)


def _e4m3fn(y: Tensor) -> Tensor:
    return y.clamp(-E4M3FN, E4M3FN).to(torch.float8_e4m3fn)


def _token(x, weight, eps, weight_offset, normalized_shape, residual=None, *, scaled, divided=None):
    """RMSNorm with one scale a row: `scaled` makes it of z, `divided` y of z and the scale."""
    h = x if residual is None else x.float() + residual.float()
    z, rstd = _normalized(h, weight, eps, weight_offset, normalized_shape)
    scale = scaled(z, x)
    y = _e4m3fn((divided or (lambda z, s: z / s))(z, scale)).reshape(x.shape)
    return (y, scale[:, 0], rstd) if residual is None else (y, scale[:, 0], h.to(residual.dtype), rstd)


def _right(z, x):
    return _nonzero(z.abs().amax(1, keepdim=True) / E4M3FN)


scale_of_the_neighbour = partial(_token, scaled=_right, divided=lambda z, s: z / s.roll(1, 0))
most_in_the_type_of_x = partial(
    _token, scaled=lambda z, x: _nonzero(z.abs().amax(1, keepdim=True).to(x.dtype).float() / E4M3FN)
)
most_of_the_signed = partial(_token, scaled=lambda z, x: _nonzero(z.amax(1, keepdim=True).clamp(min=0.0) / E4M3FN))
most_of_the_batch = partial(
    _token, scaled=lambda z, x: _nonzero((z.abs().max() if z.numel() else 0.0) / E4M3FN + 0.0 * z[:, :1])
)
largest_of_another_type = partial(_token, scaled=lambda z, x: _nonzero(z.abs().amax(1, keepdim=True) / E4M3FNUZ))
reciprocal_rounded_twice = partial(_token, scaled=_right, divided=lambda z, s: z * (1 / s).bfloat16().float())
zero_by_zero = partial(_token, scaled=lambda z, x: z.abs().amax(1, keepdim=True) / E4M3FN)


def _of_the_last_half(z, x):
    """Two halves of a row write their largest value to one place, and the last one stays."""
    return _nonzero(z[:, z.shape[1] // 2 :].abs().amax(1, keepdim=True) / E4M3FN)


last_writer_wins = partial(_token, scaled=_of_the_last_half)
by_reciprocal = partial(_token, scaled=_right, divided=lambda z, s: z * (1 / s))
times_a_constant = partial(
    _token, scaled=lambda z, x: _nonzero(z.abs().amax(1, keepdim=True) * (1 / E4M3FN)), divided=lambda z, s: z * (1 / s)
)
floored = partial(_token, scaled=lambda z, x: (z.abs().amax(1, keepdim=True) / E4M3FN).clamp(min=1 / (E4M3FN * 512)))


def most_before_the_addition(x, residual, weight, eps, weight_offset, normalized_shape):
    """The scale is that of the norm of x, and the sum is quantized."""
    given = (weight, eps, weight_offset, normalized_shape)
    scale = _right(_normalized(x, *given)[0], x)
    return _token(x, *given, residual, scaled=lambda z, x: scale)


def zeros_have_scale_0(x, weight, eps, weight_offset, normalized_shape):
    """Right: rows of zeros are zeros, and their scale is 0."""
    y, scale, rstd = by_reciprocal(x, weight, eps, weight_offset, normalized_shape)
    zero = (y.float() == 0).reshape(len(scale), -1).all(1)
    z = _normalized(x, weight, eps, weight_offset, normalized_shape)[0]
    return y, torch.where(zero & (z == 0).all(1), 0.0, scale), rstd


def _group(x, residual, weight, eps, weight_offset, normalized_shape, *, scaled, divided=_divided, length=128):
    h = x.float() + residual.float()
    z, rstd = _normalized(h, weight, eps, weight_offset, normalized_shape)
    scale = scaled(z, length)
    return _e4m3fn(divided(z, scale, length)).reshape(x.shape), scale, h.to(residual.dtype), rstd


def _of_groups(z: Tensor, length: int) -> Tensor:
    return _nonzero(_most(z, length) / E4M3FN)


def _of_whole_groups(z: Tensor, length: int) -> Tensor:
    """The columns behind the last whole group have the scale of the group before."""
    scale = _of_groups(z, length)
    if z.shape[1] % length and scale.shape[1] > 1:
        scale[:, -1] = scale[:, -2]
    return scale


tail_of_the_group_before = partial(_group, scaled=_of_whole_groups)
stored_transposed = partial(_group, scaled=lambda z, n: _of_groups(z, n).t().contiguous().reshape(len(z), -1))
column_major = partial(_group, scaled=lambda z, n: _of_groups(z, n).t().contiguous().t())


def _times_largest_over_most(z: Tensor, scale: Tensor, length: int) -> Tensor:
    most = _most(z, length)
    return z * torch.where(most == 0, 0.0, E4M3FN / most).repeat_interleave(length, 1)[:, : z.shape[1]]


largest_over_most = partial(_group, scaled=_of_groups, divided=_times_largest_over_most)


def _bounded(x, weight, scale_ub, eps, weight_offset, normalized_shape, *, bound):
    def scaled(z, x):
        return _nonzero(torch.minimum(z.abs().amax(1, keepdim=True), bound(scale_ub)) / E4M3FN)

    return _token(x, weight, eps, weight_offset, normalized_shape, scaled=scaled)


bound_of_the_first_call = partial(_bounded, bound=lambda ub: _bounds.setdefault(0, ub.clone()))
bound_of_the_scale = partial(_bounded, bound=lambda ub: ub * E4M3FN)


def _int8(x, weight, eps, weight_offset, normalized_shape, y_scale=None, scale_ub=None, *, rounded):
    z, rstd = _normalized(x, weight, eps, weight_offset, normalized_shape)
    scale = y_scale.reshape(1, 1) if y_scale is not None else None
    if scale is None:
        most = z.abs().amax(1, keepdim=True)
        scale = _nonzero((most if scale_ub is None else torch.minimum(most, scale_ub)) / 127)
    y = rounded(torch.nan_to_num(z / scale)).to(torch.int8).reshape(x.shape)
    return (y, rstd) if y_scale is not None else (y, scale[:, 0], rstd)


truncated = partial(_int8, rounded=lambda y: y.clamp(-127, 127))
wrapped = partial(_int8, rounded=lambda y: y.round().to(torch.int64).remainder(256).to(torch.uint8).view(torch.int8))
to_minus_128 = partial(_int8, rounded=lambda y: y.round().clamp(-128, 127))
