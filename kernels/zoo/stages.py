"""What follows a norm, in eager torch: gates and modulations with one mistake each, and right ones that look wrong."""

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional


def _normalized(x: Tensor, weight: Tensor | None, eps: float, offset: float, shape: tuple[int, ...]):
    rows = x.float().reshape(-1, math.prod(shape))
    rstd = torch.rsqrt(rows.square().mean(1, keepdim=True) + eps)
    w = 1.0 if weight is None else weight.float().reshape(-1) + offset
    return rows * rstd * w, rstd[:, 0]


def l2norm(x, eps, normalized_shape):
    """Right: scaled by a power of two first, as BLAS's nrm2, so that no square overflows."""
    rows = x.float().reshape(-1, math.prod(normalized_shape))
    s = torch.exp2(torch.frexp(rows.abs().amax(1, keepdim=True))[1].clamp(-30, 120).float())
    rstd = torch.rsqrt((rows / s).square().sum(1, keepdim=True) + eps / s / s) / s
    return (rows * rstd).reshape(x.shape).to(x.dtype), rstd[:, 0]


def _wrong_l2norm(x, eps, normalized_shape, *, mean):
    rows = x.float().reshape(-1, math.prod(normalized_shape))
    square = rows.square().mean(1, keepdim=True) if mean else rows.square().sum(1, keepdim=True)
    rstd = torch.rsqrt(square + eps) if mean else 1 / (square.sqrt() + eps)
    return (rows * rstd).reshape(x.shape).to(x.dtype), rstd[:, 0]


mean_of_squares = partial(_wrong_l2norm, mean=True)
eps_outside_the_norm = partial(_wrong_l2norm, mean=False)


def l2norm_bwd(dy, x, rstd, eps, normalized_shape, *, averaged=False):
    """Right: r·dy − x·r³·Σ(dy·x), without x̂; wrong with the mean that RMSNorm's has in place of the sum."""
    d, rows = (t.float().reshape(-1, math.prod(normalized_shape)) for t in (dy, x))
    r = rstd.reshape(-1, 1)
    slope = (d * (rows * r)).sum(1, keepdim=True)
    slope = slope / rows.shape[1] if averaged else slope
    return ((r * d - rows * (r * r * slope)).reshape(x.shape).to(x.dtype),)


mean_in_the_gradient = partial(l2norm_bwd, averaged=True)


def _gated(x, gate, weight, eps, weight_offset, normalized_shape, *, activation=functional.silu, first=False):
    given = x.float() * activation(gate.float()) if first else x
    z, rstd = _normalized(given, weight, eps, weight_offset, normalized_shape)
    y = z if first else z * activation(gate.float()).reshape(z.shape)
    return y.reshape(x.shape).to(x.dtype), rstd


gated = _gated
gate_before_the_norm = partial(_gated, first=True)
sigmoid_for_silu = partial(_gated, activation=torch.sigmoid)
coarse_gate = partial(_gated, activation=lambda g: functional.silu(g.bfloat16()).float())


def _of_gate(x, gate, weight, eps, weight_offset, normalized_shape, *, of_x=False, coarse=False):
    """RMSNorm of x·SiLU(gate); `of_x` takes the statistics of x, `coarse` rounds the product to bfloat16."""
    h = x.float() * functional.silu(gate.float())
    h = h.bfloat16().float() if coarse else h
    z, rstd = _normalized(h, weight, eps, weight_offset, normalized_shape)
    if of_x:
        z, rstd = _normalized(x, weight, eps, weight_offset, normalized_shape)
        z = z * functional.silu(gate.float()).reshape(z.shape)
    return z.reshape(x.shape).to(x.dtype), rstd


of_gate = _of_gate
gate_after_the_norm = partial(_of_gate, of_x=True)
coarse_product = partial(_of_gate, coarse=True)


def of_gate_folded(x, gate, weight, eps, weight_offset, normalized_shape):
    """Right: (x·gate)·σ(gate), and rstd meets the weight first."""
    shape = (-1, math.prod(normalized_shape))
    h = ((x.float() * gate.float()) * torch.sigmoid(gate.float())).reshape(shape)
    rstd = torch.rsqrt(h.square().mean(1, keepdim=True) + eps)
    w = 1.0 if weight is None else weight.float().reshape(-1) + weight_offset
    return (h * (rstd * w)).reshape(x.shape).to(x.dtype), rstd[:, 0]


def of_gate_bwd(dy, x, gate, weight, rstd, eps, weight_offset, normalized_shape, *, passed=True):
    """The gradient of the norm goes on through the gate; without `passed` dx is that of the product."""
    shape = (-1, math.prod(normalized_shape))
    d, r, g = (t.float().reshape(shape) for t in (dy, x, gate))
    s = torch.sigmoid(g)
    xhat = r * (g * s) * rstd.reshape(-1, 1)
    w = 1.0 if weight is None else weight.float().reshape(-1) + weight_offset
    dh = rstd.reshape(-1, 1) * (d * w - xhat * (d * w * xhat).mean(1, keepdim=True))
    dx, dgate = dh * (g * s) if passed else dh, dh * r * (s * (1 + g * (1 - s)))
    dw = None if weight is None else (d * xhat).sum(0).reshape(weight.shape).to(weight.dtype)
    return dx.reshape(x.shape).to(x.dtype), dgate.reshape(x.shape).to(x.dtype), dw


gate_missing_in_dx = partial(of_gate_bwd, passed=False)


def gate_meets_weight(x, gate, weight, eps, weight_offset, normalized_shape):
    """Right: g/(1 + 2^(−g·log₂e)), which meets the weight before x̂."""
    z, rstd = _normalized(x, None, eps, 0.0, normalized_shape)
    g = gate.float().reshape(z.shape)
    m = g / (1 + torch.exp2(g * -1.4426950408889634))
    w = 1.0 if weight is None else weight.float().reshape(-1) + weight_offset
    return (z * (m * w)).reshape(x.shape).to(x.dtype), rstd


def gated_bwd(dy, x, gate, weight, rstd, eps, weight_offset, normalized_shape, *, slope="right"):
    """Dgate is dy·z·a'(gate); with the slope "σ", the term gate·σ' is lost."""
    shape = (-1, math.prod(normalized_shape))
    d, r, g = (t.float().reshape(shape) for t in (dy, x, gate))
    xhat, s = r * rstd.reshape(-1, 1), torch.sigmoid(g)
    w = 1.0 if weight is None else weight.float().reshape(-1) + weight_offset
    dgate = d * xhat * w * (s if slope == "σ" else s * (1 + g * (1 - s)))
    dz = d * g * s
    dx = rstd.reshape(-1, 1) * (dz * w - xhat * (dz * w * xhat).mean(1, keepdim=True))
    dw = None if weight is None else (dz * xhat).sum(0).reshape(weight.shape).to(weight.dtype)
    return dx.reshape(x.shape).to(x.dtype), dgate.reshape(x.shape).to(x.dtype), dw


slope_without_its_second_term = partial(gated_bwd, slope="σ")


def _of_rows(t: Tensor, x: Tensor, n: int, *, cycled: bool = False, roll: int = 0) -> Tensor:
    """Return the row of scale or shift of each row of x."""
    own, count = t.float().reshape(-1, n), x.numel() // n
    if len(own) == count:
        return own
    own = own.roll(roll, 0)
    return (
        own[torch.arange(count, device=t.device) % len(own)] if cycled else own.repeat_interleave(count // len(own), 0)
    )


def _modulated(x, weight, scale, shift, eps, weight_offset, normalized_shape, *, one=1.0, **how):
    z, rstd = _normalized(x, weight, eps, weight_offset, normalized_shape)
    m, t = (_of_rows(p, x, z.shape[1], **how) if z.numel() else z for p in (scale, shift))
    return (z * (one + m) + t).reshape(x.shape).to(x.dtype), rstd


modulated = _modulated
one_left_out = partial(_modulated, one=0.0)
token_for_sample = partial(_modulated, cycled=True)
scale_of_the_neighbour = partial(_modulated, roll=-1)


def modulation_folded(x, weight, scale, shift, eps, weight_offset, normalized_shape):
    """Right: z + z·scale + shift, which cancels where scale is −1, by fused additions."""
    z, rstd = _normalized(x, weight, eps, weight_offset, normalized_shape)
    m, t = (_of_rows(p, x, z.shape[1]) if z.numel() else z for p in (scale, shift))
    return torch.addcmul(z + t, z, m).reshape(x.shape).to(x.dtype), rstd


def modulated_bwd(dy, x, weight, scale, shift, rstd, eps, weight_offset, normalized_shape, *, skipped=0):
    """Dscale and dshift are sums over the rows that a row of scale serves; `skipped` leaves out the last of them."""
    n = math.prod(normalized_shape)
    d, r, served = dy.float().reshape(-1, n), x.float().reshape(-1, n), scale.numel() // n
    xhat = r * rstd.reshape(-1, 1)
    w = 1.0 if weight is None else weight.float().reshape(-1) + weight_offset
    each = len(r) // max(served, 1)

    def sums(v):
        return v.reshape(served, each, n)[:, : max(each - skipped, 1)].sum(1).reshape(scale.shape).to(scale.dtype)

    dz = d * (1 + _of_rows(scale, x, n)) if len(r) else d
    dx = rstd.reshape(-1, 1) * (dz * w - xhat * (dz * w * xhat).mean(1, keepdim=True))
    dw = None if weight is None else (dz * xhat).sum(0).reshape(weight.shape).to(weight.dtype)
    return dx.reshape(x.shape).to(x.dtype), dw, sums(d * xhat * w), sums(d)


last_token_left_out = partial(modulated_bwd, skipped=1)


def by_first(x, weight, eps, weight_offset, variance_size, normalized_shape):
    """Right: RMSNorm by the first elements of a row, which a mask selects."""
    r = x.float().reshape(-1, math.prod(normalized_shape))
    first = torch.arange(r.shape[1], device=x.device) < variance_size
    rstd = (torch.where(first, r * r, 0.0).sum(1, keepdim=True) / variance_size + eps).rsqrt()
    y = r * rstd if weight is None else r * rstd * (weight.float().reshape(-1) + weight_offset)
    return y.reshape(x.shape).to(x.dtype), rstd[:, 0]


def partial_ignored(x, weight, eps, weight_offset, variance_size, normalized_shape):
    """Wrong: the statistic of the whole row."""
    return by_first(x, weight, eps, weight_offset, math.prod(normalized_shape), normalized_shape)


def partial_bwd(dy, x, weight, rstd, eps, weight_offset, variance_size, normalized_shape, *, everywhere=False):
    """Right: elements that are not in the statistic lose no x̂·c1."""
    n = math.prod(normalized_shape)
    r, d, s = x.float().reshape(-1, n), dy.float().reshape(-1, n), rstd.reshape(-1, 1)
    xhat, g = r * s, d if weight is None else d * (weight.float().reshape(-1) + weight_offset)
    along = xhat * ((g * xhat).sum(1, keepdim=True) / variance_size)
    first = torch.arange(n, device=x.device) < variance_size
    dx = s * (g - (along if everywhere else torch.where(first, along, 0.0)))
    dweight = None if weight is None else (d * xhat).sum(0).reshape(weight.shape).to(weight.dtype)
    return dx.reshape(x.shape).to(x.dtype), dweight


def partial_gradient_everywhere(dy, x, weight, rstd, eps, weight_offset, variance_size, normalized_shape):
    """Wrong: RMSNorm's dx."""
    return partial_bwd(dy, x, weight, rstd, eps, weight_offset, variance_size, normalized_shape, everywhere=True)
