"""Rotations behind an RMSNorm of heads, in eager torch: with one mistake each, and right ones that look wrong."""

import math
from functools import partial

import torch
from torch import Tensor


def _normalized(x: Tensor, weight: Tensor | None, eps: float, offset: float, shape: tuple[int, ...], kind: torch.dtype):
    rows = x.to(kind).reshape(-1, math.prod(shape))
    rstd = torch.rsqrt(rows.square().mean(1, keepdim=True) + eps)
    w = 1.0 if weight is None else weight.to(kind).reshape(-1) + offset
    return rows * rstd * w, rstd[:, 0].float()


def _of_rows(table: Tensor, z: Tensor, *, roll: int = 0, cycled: bool = False) -> Tensor:
    """Return the row of cos or sin of each row of z: a token's serves its heads, one after another."""
    tokens, half = math.prod(table.shape[:-1]), table.shape[-1]
    own = table.to(z.dtype).reshape(tokens, half).roll(roll, 0)
    each = len(z) // max(tokens, 1)
    return own.repeat(each, 1) if cycled else own.repeat_interleave(each, 0)


def _rope(
    x, weight, cos, sin, eps, weight_offset, normalized_shape, *, style="neox", sign=1, kind=torch.float32, **how
):
    """Styles: pairs (i, i + R/2); "interleaved": (2i, 2i + 1); "of the row": (i, i + N/2), also where R < N."""
    z, rstd = _normalized(x, weight, eps, weight_offset, normalized_shape, kind)
    c, s, half = _of_rows(cos, z, **how), sign * _of_rows(sin, z, **how), cos.shape[-1]
    n = torch.arange(half, device=z.device)
    one = {"neox": n, "interleaved": 2 * n, "of the row": n}[style]
    two = {"neox": n + half, "interleaved": 2 * n + 1, "of the row": n + z.shape[1] // 2}[style]
    y, a, b = z.clone(), z[:, one], z[:, two]
    y[:, one], y[:, two] = a * c - b * s, b * c + a * s
    return y.reshape(x.shape).to(x.dtype), rstd


rope = _rope
interleaved_for_neox = partial(_rope, style="interleaved")
wrong_half = partial(_rope, style="of the row")
sign_of_sin = partial(_rope, sign=-1)
position_of_the_neighbour = partial(_rope, roll=1)
token_of_the_head = partial(_rope, cycled=True)
in_float64 = partial(_rope, kind=torch.float64)


def all_of_the_row(x, weight, cos, sin, eps, weight_offset, normalized_shape):
    """A partial rotation ignored: the tail turns too, by the angles of the first columns once more."""
    half = math.prod(normalized_shape) // 2
    index = torch.arange(half, device=x.device) % max(cos.shape[-1], 1)
    wide = (t[..., index] if cos.shape[-1] else t for t in (cos, sin))
    return _rope(x, weight, *wide, eps, weight_offset, normalized_shape)


def rounded_tables(x, weight, cos, sin, eps, weight_offset, normalized_shape):
    """Cos and sin are rounded to the type of x."""
    return _rope(x, weight, cos.to(x.dtype), sin.to(x.dtype), eps, weight_offset, normalized_shape)


def before_the_norm(x, weight, cos, sin, eps, weight_offset, normalized_shape):
    """The heads are rotated, then normalized: the norm is kept, but each weight meets another element."""
    z, _ = _rope(x.float(), None, cos.float(), sin.float(), 1.0, 0.0, normalized_shape)
    _, unit = _normalized(x, None, 1.0, 0.0, normalized_shape, torch.float32)
    turned = z.reshape(len(unit), math.prod(normalized_shape)) / unit[:, None]
    y, rstd = _normalized(turned, weight, eps, weight_offset, normalized_shape, torch.float32)
    return y.reshape(x.shape).to(x.dtype), rstd


def in_complex_numbers(x, weight, cos, sin, eps, weight_offset, normalized_shape):
    """Right: each pair is one complex number, times cos + i·sin."""
    z, rstd = _normalized(x, weight, eps, weight_offset, normalized_shape, torch.float32)
    half = cos.shape[-1]
    turned = torch.complex(z[:, :half], z[:, half : 2 * half]) * torch.complex(_of_rows(cos, z), _of_rows(sin, z))
    y = torch.cat((turned.real, turned.imag, z[:, 2 * half :]), 1)
    return y.reshape(x.shape).to(x.dtype), rstd


def in_place(x, weight, cos, sin, eps, weight_offset, normalized_shape):
    """Right: y is written over x, as in a packed qkv."""
    y, rstd = _rope(x, weight, cos, sin, eps, weight_offset, normalized_shape)
    return x.copy_(y), rstd


def rope_bwd(dy, x, weight, cos, sin, rstd, eps, weight_offset, normalized_shape, *, sign=1):
    """The gradient turns back by the same angle; with `sign` −1 it turns on."""
    rows = (-1, math.prod(normalized_shape))
    d, r, half = dy.float().reshape(rows), x.float().reshape(rows), cos.shape[-1]
    c, s = _of_rows(cos, d), sign * _of_rows(sin, d)
    a, b, rest = d[:, :half], d[:, half : 2 * half], d[:, 2 * half :]
    dz = torch.cat((a * c + b * s, b * c - a * s, rest), 1)
    xhat = r * rstd.reshape(-1, 1)
    g = dz if weight is None else dz * (weight.float().reshape(-1) + weight_offset)
    dx = rstd.reshape(-1, 1) * (g - xhat * (g * xhat).mean(1, keepdim=True))
    dw = None if weight is None else (dz * xhat).sum(0).reshape(weight.shape).to(weight.dtype)
    return dx.reshape(x.shape).to(x.dtype), dw


turned_on = partial(rope_bwd, sign=-1)
