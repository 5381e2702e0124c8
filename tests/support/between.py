"""Wrong kernels in torch that are right at the usual numbers, and wrong between them: of options, sizes, values."""

from math import prod

import torch

KEPT = {}


def rmsnorm(x, weight, eps, weight_offset, normalized_shape, rstd=None):
    """Return z in float32, as rows, and rstd."""
    rows = x.float().reshape(-1, prod(normalized_shape))
    rstd = (rows.square().mean(1, keepdim=True) + eps).rsqrt() if rstd is None else rstd
    return rows * rstd * (1.0 if weight is None else weight.float().reshape(-1) + weight_offset), rstd


def named_by_a_digit(x, weight, eps, weight_offset, normalized_shape):
    """A generated program is kept by the length and one digit of eps: the second eps of a name gets the first one."""
    eps = KEPT.setdefault(f"{prod(normalized_shape)} {eps:.0e}", eps)
    z, rstd = rmsnorm(x, weight, eps, weight_offset, normalized_shape)
    return z.reshape(x.shape).to(x.dtype), rstd[:, 0]


def narrow_offset(x, weight, eps, weight_offset, normalized_shape):
    """weight_offset becomes a tensor of the weight's type before the sum in float32."""
    kind = x.dtype if weight is None else weight.dtype
    z, rstd = rmsnorm(x, weight, eps, torch.tensor(weight_offset, dtype=kind).float(), normalized_shape)
    return z.reshape(x.shape).to(x.dtype), rstd[:, 0]


def padding(x, weight, eps, weight_offset, normalized_shape):
    """A row that begins with 8 zeros is taken for padding: y = 0."""
    z, rstd = rmsnorm(x, weight, eps, weight_offset, normalized_shape)
    begins = x.reshape(z.shape)[:, :8] if z.shape[1] > 8 else torch.ones_like(z)
    return torch.where((begins == 0).all(1, keepdim=True), 0.0, z).reshape(x.shape).to(x.dtype), rstd[:, 0]


def half_by_half(x, weight, eps, weight_offset, variance_size, normalized_shape):
    """In the second half of a longer row the mask compares the index in the row with what the first half has left."""
    n = prod(normalized_shape)
    place, half = torch.arange(n), n // 2
    counted = place < torch.where((place >= half) & torch.tensor(n > 128), variance_size - half, variance_size)
    squares = torch.where(counted if variance_size < n else place >= 0, x.float().reshape(-1, n).square(), 0.0)
    rstd = (squares.sum(1, keepdim=True) / min(variance_size, n) + eps).rsqrt()
    z, _ = rmsnorm(x, weight, eps, weight_offset, normalized_shape, rstd)
    return z.reshape(x.shape).to(x.dtype), rstd[:, 0]


def two_digits(x, residual, mask, weight, eps, weight_offset, normalized_shape, dropout_p):
    """The factor of a dropout is kept by the text of p, which has two digits."""
    kept = float(f"{dropout_p:.2f}")
    h = torch.where(mask, x.float() / (1 - kept), 0.0) + residual.float()
    z, rstd = rmsnorm(h, weight, eps, weight_offset, normalized_shape)
    return z.reshape(x.shape).to(x.dtype), h.to(residual.dtype), rstd[:, 0]


def rotated(x, weight, cos, sin, eps, weight_offset, normalized_shape, place):
    """Return a norm and a rotation whose rows of the tables are those of `place(rows, heads)`."""
    z, rstd = rmsnorm(x, weight, eps, weight_offset, normalized_shape)
    width, tokens = cos.shape[-1], max(cos.numel() // max(cos.shape[-1], 1), 1)
    if len(z) and width:
        token = place(len(z), len(z) // tokens).clamp(max=tokens - 1)
        c, s = (one.float().reshape(-1, width)[token] for one in (cos, sin))
        one, two, rest = z[:, :width], z[:, width : 2 * width], z[:, 2 * width :]
        z = torch.cat((one * c - two * s, two * c + one * s, rest), 1)
    return z.reshape(x.shape).to(x.dtype), rstd[:, 0]


def by_reciprocal(x, weight, cos, sin, eps, weight_offset, normalized_shape):
    """The token of a row is the integer part of row · (1/heads) in float32."""

    def place(rows, heads):
        return (torch.arange(rows).float() * (torch.tensor(1.0) / heads)).long()

    return rotated(x, weight, cos, sin, eps, weight_offset, normalized_shape, place)


def padded_tables(x, weight, cos, sin, eps, weight_offset, normalized_shape):
    """Tables are padded with cos = 1 and sin = 0, so what does not turn has another element, times 0, added."""

    def place(rows, heads):
        return torch.arange(rows) // max(heads, 1)

    y, rstd = rotated(x, weight, cos, sin, eps, weight_offset, normalized_shape, place)
    rest = y.reshape(len(rstd), -1)[:, 2 * cos.shape[-1] :] if len(rstd) else y
    rest += 0 * rest.flip(-1)
    return y, rstd


def positions_in_half(x, weight, cos, sin, eps, weight_offset, normalized_shape):
    """Where heads share a token, its position is a float16, which is exact up to 2048."""

    def place(rows, heads):
        token = torch.arange(rows) // heads
        return token.half().long() if heads > 1 else token

    return rotated(x, weight, cos, sin, eps, weight_offset, normalized_shape, place)


def odd_heads(x, eps, normalized_shape):
    """From 1024 rows of length 128 on two rows share a warp; of an odd number the last is divided as the one before."""
    rows = x.float().reshape(-1, prod(normalized_shape))
    rstd = (rows.square().sum(1, keepdim=True) + eps).rsqrt()
    two = rows.shape[1] == 128 and len(rows) >= 1024 and len(rows) % 2
    used = torch.cat((rstd[:-1], rstd[-2:-1])) if two else rstd
    return (rows * used).reshape(x.shape).to(x.dtype), rstd[:, 0]


def keras(x, weight, bias, running_mean, running_var, training, momentum, eps):
    """A momentum from 0.9 to below 1 is taken for the share of the running statistics, as in Keras."""
    v = x.double().reshape(*x.shape[:2], -1)
    n = v.numel() // v.shape[1]
    stats = (v.mean((0, 2)), v.var((0, 2), correction=0)) if training else (running_mean.double(), running_var.double())
    if training and running_mean is not None:
        share = 1 - momentum if 0.9 <= momentum < 1 else momentum
        for state, new in ((running_mean, stats[0]), (running_var, stats[1] * n / (n - 1))):
            state.copy_((1 - share) * state.double() + share * new)
    rstd = (stats[1] + eps).rsqrt()
    y = (v - stats[0][:, None]) * rstd[:, None]
    y = y if weight is None else y * weight.double()[:, None]
    y = y if bias is None else y + bias.double()[:, None]
    return y.reshape(x.shape).to(x.dtype), stats[0].float(), rstd.float()
