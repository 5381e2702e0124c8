"""RMSNorm with scales of blocks, MXFP8, MXFP4 and NVFP4, in eager torch: with one mistake each, and right ones."""

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

LARGEST = {"e4m3fn": (448.0, 8), "e5m2": (57344.0, 15), "e2m1": (6.0, 2)}  # and the binade of it
TYPES = {"e4m3fn": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def normalized(x: Tensor, weight: Tensor | None, eps: float, offset: float, shape: tuple[int, ...]):
    """Return z and rstd, of rows."""
    rows = x.float().reshape(-1, math.prod(shape))
    rstd = torch.rsqrt(rows.square().mean(1, keepdim=True) + eps)
    return rows * rstd * (1.0 if weight is None else weight.float().reshape(-1) + offset), rstd[:, 0]


def most(z: Tensor, length: int) -> Tensor:
    """Return the largest |z| of each block, (M, K)."""
    padded = functional.pad(z, (0, -z.shape[1] % length))
    return padded.reshape(len(z), padded.shape[1] // length, length).abs().amax(2)


def each(scale: Tensor, z: Tensor, length: int) -> Tensor:
    """Return the scale of each element."""
    return scale.repeat_interleave(length, 1)[:, : z.shape[1]]


def power(a: Tensor, form: str, how: str = "floor") -> Tensor:
    """Return the power of two of MX of the largest |z|: 2⁻¹²⁷ of zeros, NaN of NaN."""
    largest, binade = LARGEST[form]
    if how == "rceil":
        mantissa, k = torch.frexp(a / largest)
        k = k - (mantissa == 0.5).int()
    else:
        mantissa, k = torch.frexp(a)
        k = k - 1 - binade
        k = k + (mantissa > 0.5).int() if how == "ceil" else k
        k = k + (mantissa >= 1 - 2.0 ** -({"e4m3fn": 5, "e5m2": 4, "e2m1": 3}[form])).int() if how == "even" else k
        k = k + 1 if how == "one too large" else k - 1 if how == "one too small" else k
    k = torch.where(a == 0, -127, torch.where(torch.isinf(a), 127, k)).clamp(-127, 127)
    exact = ((k.long() + 1023) << 52).view(torch.float64)  # exp2 and log2 of a GPU are not exact at powers of two
    return torch.where(a.isnan(), torch.nan, exact)


def e2m1(y: Tensor, packing: str = "low") -> Tensor:
    """Return two numbers of 4 bits in each byte: rounded to nearest, ties to even, saturated; NaN becomes 6."""
    size = torch.nan_to_num(y.abs(), nan=6.0)
    up = [size > 0.25, size >= 0.75, size > 1.25, size >= 1.75, size > 2.5, size >= 3.5, size > 5.0]
    codes = sum(one.to(torch.uint8) for one in up) + 8 * torch.signbit(y).to(torch.uint8)
    pairs = functional.pad(codes, (0, codes.shape[1] % 2)).reshape(len(y), -1 if codes.numel() else 0, 2)
    if not codes.numel():
        return codes.new_zeros(len(y), -(-y.shape[1] // 2))
    first, second = (pairs[..., 0], pairs[..., 1]) if packing == "low" else (pairs[..., 1], pairs[..., 0])
    return first | (second << 4)


def stored(y: Tensor, form: str, x: Tensor, packing: str = "low", *, saturated: bool = True) -> Tensor:
    """Return y in its type."""
    if form == "e2m1":
        packed = e2m1(y, packing)
        return packed.reshape(*x.shape[:-1], -1) if x.numel() and x.shape[-1] % 2 == 0 else packed
    largest = LARGEST[form][0]
    kept = y.clamp(-largest, largest) if saturated else torch.where(y.abs() > largest, torch.nan, y)
    return kept.float().to(TYPES[form]).reshape(x.shape)


def mx(
    x,
    weight,
    eps,
    weight_offset,
    normalized_shape,
    residual=None,
    *,
    form="e4m3fn",
    how="floor",
    packing="low",
    of=lambda a: a,
    used=lambda s: s,
    saturated=True,
    length=32,
    folded=False,
):
    """RMSNorm in blocks of MX; `of` changes the largest |z|, `used` the scale that y is divided by."""
    h = x if residual is None else x.float() + residual.float()
    z, rstd = normalized(h, weight, eps, weight_offset, normalized_shape)
    scale = power(of(most(z, length)), form, how)
    by = each(used(scale), z, length)
    y = (z * (1 / by).float() if folded else z.double() / by).float()
    bits = torch.where(scale.isnan(), 255, torch.frexp(scale).exponent + 126).to(torch.uint8)
    bits = bits.repeat_interleave(length // 32, 1)[:, : -(-z.shape[1] // 32)]
    summed = () if residual is None else (h.to(residual.dtype),)
    return stored(y, form, x, packing, saturated=saturated), bits, *summed, rstd


def _e4m3(scale: Tensor) -> Tensor:
    return scale.clamp(max=448.0).to(torch.float8_e4m3fn)


def nvfp4(
    x,
    weight,
    global_scale,
    eps,
    weight_offset,
    normalized_shape,
    *,
    packing="low",
    used=lambda s: s,
    length=16,
    typed=_e4m3,
    of_tensor=True,
    guarded=True,
):
    """RMSNorm in blocks of NVFP4, as vLLM's: y = z·(1/(s·(1/g))), and 0 where s is 0."""
    z, rstd = normalized(x, weight, eps, weight_offset, normalized_shape)
    g = global_scale if of_tensor else torch.ones_like(global_scale)
    scale = typed(g * (most(z, length) * (1 / 6)))
    s = used(scale.float())
    inverse = 1 / (s * (1 / global_scale))
    inverse = torch.where(s == 0, 0.0, inverse) if guarded else inverse
    y = z * each(inverse, z, length)
    scale = scale.repeat_interleave(length // 16, 1)[:, : -(-z.shape[1] // 16)]
    return stored(y, "e2m1", x, packing), scale.to(torch.float8_e4m3fn), rstd


def mx_as_e8m0(x, weight, eps, weight_offset, normalized_shape):
    """Right: the scale in torch.float8_e8m0fnu."""
    y, scale, rstd = mx(x, weight, eps, weight_offset, normalized_shape)
    return y, scale.view(torch.float8_e8m0fnu), rstd


def mx_added(x, residual, weight, eps, weight_offset, normalized_shape, *, of=lambda a: a):
    """Right: the same of x + residual."""
    return mx(x, weight, eps, weight_offset, normalized_shape, residual, of=of)


def mx_before_the_addition(x, residual, weight, eps, weight_offset, normalized_shape):
    """Wrong: the scale is that of the norm of x, without the residual."""
    z, _ = normalized(x, weight, eps, weight_offset, normalized_shape)
    return mx_added(x, residual, weight, eps, weight_offset, normalized_shape, of=lambda a: most(z, 32))


mxfp4 = partial(mx, form="e2m1")
mxfp4_high_first = partial(mx, form="e2m1", packing="high")
mx_rceil = partial(mx, how="rceil")
mx_folded = partial(mx, folded=True)
mx_one_too_large = partial(mx, how="one too large")
mx_one_too_small = partial(mx, how="one too small")
mx_of_the_neighbour = partial(mx, used=lambda s: s.roll(1, 1))
mx_of_the_row = partial(mx, of=lambda a: a.amax(1, keepdim=True).expand(a.shape) if a.numel() else a)
mx_of_64 = partial(mx, length=64)
mx_not_saturated = partial(mx, saturated=False)
mxfp4_swapped = partial(mx, form="e2m1", packing="high")
nvfp4_swapped = partial(nvfp4, packing="high")
nvfp4_of_the_neighbour = partial(nvfp4, used=lambda s: s.roll(1, 1))
nvfp4_of_32 = partial(nvfp4, length=32)
nvfp4_without_the_tensor = partial(nvfp4, of_tensor=False)
nvfp4_scale_not_rounded = partial(nvfp4, typed=lambda s: s.clamp(max=448.0))
nvfp4_zero_by_zero = partial(nvfp4, guarded=False)
nvfp4_upwards = partial(
    nvfp4, typed=lambda s: torch.where(s.isnan(), s, (s * 1.0625).clamp(max=448.0)).to(torch.float8_e4m3fn)
)


def mx_zero_by_zero(x, weight, eps, weight_offset, normalized_shape):
    """Wrong: a block of zeros has the scale log2 0 = −∞, which becomes NaN."""
    y, scale, rstd = mx(x, weight, eps, weight_offset, normalized_shape)
    z, _ = normalized(x, weight, eps, weight_offset, normalized_shape)
    return y, torch.where(most(z, 32) == 0, 255, scale).to(torch.uint8), rstd


def mx_before_the_weight(x, weight, eps, weight_offset, normalized_shape):
    """Wrong: the scale is that of x̂, before the weight."""
    xhat, _ = normalized(x, None, eps, 0.0, normalized_shape)
    return mx(x, weight, eps, weight_offset, normalized_shape, of=lambda a: most(xhat, 32))
