"""LayerNorm with one mistake each; what the right line is, and what it became, stands in each docstring."""

import math
from functools import cache

import torch
import triton
import triton.language as tl

from verify_norm.kernels.arguments import dense, normalized, rows, split
from verify_norm.kernels.launch import jit, launch
from verify_norm.kernels.layernorm import layernorm_bwd
from verify_norm.kernels.zoo import hosts, tutorial


def right_fwd(x, weight, bias, eps, normalized_shape):
    """The host of the forward mistakes without one."""
    return _forward(x, weight, bias, eps, normalized_shape)


def _forward(x, weight, bias, eps, normalized_shape, **mistake):
    return hosts.forward(x, weight, bias, eps, 0.0, normalized_shape, centered=True, **mistake)


def right_bwd(dy, x, weight, bias, mean, rstd, normalized_shape=None):
    """The host of the backward mistakes, as right as the project's own."""
    m, n = split(x, normalized(x, weight, bias, normalized_shape))
    dy2, x2 = rows(dy, m, n), rows(x, m, n)
    dx = hosts.input_gradient(dy2, x2, weight, mean, rstd, torch.empty(x.shape, dtype=x.dtype, device=x.device))
    dw, db = hosts.partial_sums(dy2, x2, mean, rstd)
    return dx, hosts.like(dw.sum(0), weight), hosts.like(db.sum(0), bias)


def offset_in_weight_type(x, weight, bias, eps, weight_offset, normalized_shape):
    """weight.float() + offset became weight + offset: the sum is rounded to the type of the weight."""
    w = None if weight is None else (weight.float() + weight_offset).to(weight.dtype)
    return _forward(x, w, bias, eps, normalized_shape)


def offset_bwd_forgotten(dy, x, weight, bias, mean, rstd, weight_offset, normalized_shape):
    """The factor w + offset of both passes became that of the forward alone."""
    return right_bwd(dy, x, weight, bias, mean, rstd, normalized_shape)


def zero_centered(x, weight, bias, eps, zero_centered_gamma: bool, normalized_shape):
    """1 + w in float32, by a flag, which takes no other offset."""
    if not isinstance(zero_centered_gamma, bool):
        raise TypeError(f"zero_centered_gamma must be a bool, not {zero_centered_gamma!r}")
    w = None if weight is None else weight.float() + zero_centered_gamma
    return _forward(x, w, None if bias is None else bias.float(), eps, normalized_shape)


def masked_variance(x, weight, bias, eps, normalized_shape):
    """Where(mask, x − mean, 0) became x − mean: every lane beyond the row adds mean²."""
    return _forward(x, weight, bias, eps, normalized_shape, variance="unmasked")


def row_tile_unmasked(x, weight, bias, eps, normalized_shape):
    """The mask of a tile of two rows lost its rows: (row < M) & (col < N) became col < N."""
    m, n = split(x, normalized(x, weight, bias, normalized_shape))
    block = {"BLOCK_M": 2 if n <= 32 else 1, "BLOCK_N": min(triton.next_power_of_2(n), 4096)}
    admit = triton.cdiv(m, block["BLOCK_M"]) * block["BLOCK_M"]
    return _forward(x.contiguous(), weight, bias, eps, normalized_shape, admit=admit, block=block)


def cols_beyond_block(x, weight, bias, eps, normalized_shape):
    """The loop over columns became one block of 1024, and nothing refuses a longer row."""
    _, n = split(x, normalized(x, weight, bias, normalized_shape))
    block = {"BLOCK_M": 16, "BLOCK_N": 1024}
    return _forward(x, weight, bias, eps, normalized_shape, walk=min(n, 1024), block=block)


def y_uses_x_stride(x, weight, bias, eps, normalized_shape):
    """The row stride of y became that of x, though y is dense where x is not."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    m, n = split(x, normalized(x, weight, bias, normalized_shape))
    strides = (rows(x, m, n).stride(0), 1)
    y = torch.empty_like(x)
    return _forward(x, weight, bias, eps, normalized_shape, y=y, y_strides=strides)


def onepass_variance(x, weight, bias, eps, normalized_shape):
    """mean((x − mean)²) became mean(x²) − mean²."""
    return _forward(x, weight, bias, eps, normalized_shape, variance="one_pass")


def onepass_variance_clipped(x, weight, bias, eps, normalized_shape):
    """mean((x − mean)²) became max(mean(x²) − mean², 0), which never gives a NaN."""
    return _forward(x, weight, bias, eps, normalized_shape, variance="clipped")


def eps_outside_sqrt(x, weight, bias, eps, normalized_shape):
    """1/√(var + eps) became 1/(√var + eps)."""
    return _forward(x, weight, bias, eps, normalized_shape, place_of_eps="outside")


def default_stream(x, weight, bias, eps, normalized_shape):
    """The launch is in CUDA's default stream, whichever is torch's current one."""
    with torch.cuda.stream(torch.cuda.default_stream(x.device)):
        return _forward(x, weight, bias, eps, normalized_shape)


def stream_not_waited_for(x, weight, bias, eps, normalized_shape):
    """In a stream of its own, which waits for the current one; the current one's wait for it is left out."""
    own = torch.cuda.Stream(x.device)
    own.wait_stream(torch.cuda.current_stream(x.device))
    with torch.cuda.stream(own):
        return _forward(x, weight, bias, eps, normalized_shape)


@cache
def _pinned():
    with torch.inference_mode(False):
        return torch.empty(1, pin_memory=True)


@torch.no_grad()
def eps_staged(x, weight, bias, eps, normalized_shape):
    """One pinned buffer takes eps to the GPU: the next call overwrites it before the copy is made."""
    on_gpu = _pinned().fill_(eps).to(x.device, non_blocking=True)
    dims = tuple(range(-len(normalized_shape), 0))
    xc = x.float() - x.float().mean(dims, keepdim=True)
    rstd = torch.rsqrt(xc.square().mean(dims, keepdim=True) + on_gpu)
    y = xc * rstd
    if weight is not None:
        y = y * weight.float()
    if bias is not None:
        y = y + bias.float()
    return y.to(x.dtype), None, rstd


@jit
def _aligned(X, Y, W, B, Mean, Rstd, N, sxm, eps, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    at = X + row * sxm + cols
    if WIDE:
        x = tl.load(tl.max_contiguous(tl.multiple_of(at, 16), BLOCK)).to(tl.float32)
    else:
        x = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / N
    xc = tl.where(mask, x - mean, 0.0)
    rstd = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(xc * xc, axis=0) / N + eps))
    y = xc * rstd
    if W is not None:
        y *= tl.load(W + cols, mask=mask, other=0.0).to(tl.float32)
    if B is not None:
        y += tl.load(B + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(Mean + row, mean)
    tl.store(Rstd + row, rstd)
    tl.store(Y + row * N + cols, y, mask=mask)


def vec_load_unaligned(x, weight, bias, eps, normalized_shape):
    """The wide path lost its test that the rows of x begin at a multiple of 16 bytes: the compiler is told they do."""
    m, n = split(x, normalized(x, weight, bias, normalized_shape))
    x2 = rows(x if x.stride(-1) == 1 else x.contiguous(), m, n)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mean, rstd = (torch.empty(m, dtype=torch.float32, device=x.device) for _ in range(2))
    block = triton.next_power_of_2(n)
    wide = n == block >= 16 and x2.stride(0) % 16 == 0  # and x2.data_ptr() % 16 == 0
    launch(
        _aligned,
        m,
        x2,
        y,
        dense(weight),
        dense(bias),
        mean,
        rstd,
        n,
        x2.stride(0),
        float(eps),
        BLOCK=block,
        WIDE=wide,
        num_warps=min(max(block // 512, 1), 16),
    )
    return y, mean, rstd


def dw_partials_uninit(dy, x, weight, bias, mean, rstd, normalized_shape):
    """The buffers of partial sums became torch.empty, and all of them are added, also those that no row wrote to."""
    return tutorial.backward(dy, x, weight, bias, mean, rstd, normalized_shape, zeroed=False, flagged=True)


def lock_no_barrier(dy, x, weight, bias, mean, rstd, normalized_shape):
    """The barrier between the stores to a buffer and the release of its lock is gone."""
    return tutorial.backward(dy, x, weight, bias, mean, rstd, normalized_shape, barrier=False, warps=4)


def mem_efficient_gamma0(dy, x, weight, bias, mean, rstd, normalized_shape):
    """x̂ from x became x̂ = (y − bias)/weight from y, the weight held away from 0: 0 where the weight is 0."""
    if weight is None:
        return layernorm_bwd(dy, x, weight, bias, mean, rstd, 0.0, normalized_shape)
    m, n = split(x, normalized(x, weight, bias, normalized_shape))
    w = weight.float().reshape(-1)
    b = 0.0 if bias is None else bias.float().reshape(-1)
    y = (rows(x, m, n).float() - mean.reshape(-1, 1)) * rstd.reshape(-1, 1) * w + b
    xhat = (y - b) / torch.copysign(w.abs().clamp(min=1e-5), w)
    return gradients_from(xhat, dy, x, weight, bias, rstd)


def expanded_xhat(dy, x, weight, bias, mean, rstd, normalized_shape):
    """(x − mean)·rstd became x·rstd − mean·rstd, two numbers that each are rounded before they cancel."""
    m, n = split(x, normalized(x, weight, bias, normalized_shape))
    mean, rstd = mean.reshape(-1, 1), rstd.reshape(-1, 1)
    return gradients_from(rows(x, m, n).float() * rstd - mean * rstd, dy, x, weight, bias, rstd)


def gradients_from(xhat, dy, x, weight, bias, rstd):
    """Return dx, dweight and dbias, in float32 from the x̂ (M, N) of a kernel."""
    g, rstd = rows(dy, *xhat.shape).float(), rstd.reshape(-1, 1)
    wdy = g if weight is None else g * weight.float().reshape(-1)
    dx = (wdy - wdy.mean(1, keepdim=True) - xhat * (wdy * xhat).mean(1, keepdim=True)) * rstd
    return dx.to(x.dtype).reshape(x.shape), hosts.like((g * xhat).sum(0), weight), hosts.like(g.sum(0), bias)


def stats_saved_in_x_dtype(dy, x, weight, bias, mean, rstd, normalized_shape):
    """Mean and rstd are kept between the passes in the type of x, not in float32."""
    mean, rstd = (t.to(x.dtype).float() for t in (mean, rstd))
    return layernorm_bwd(dy, x, weight, bias, mean, rstd, 0.0, normalized_shape)


def stats_returned_in_x_dtype(x, weight, bias, eps, normalized_shape):
    """The forward's half of the same: mean and rstd are returned in the type of x."""
    y, mean, rstd = _forward(x, weight, bias, eps, normalized_shape)
    return y, mean.to(x.dtype), rstd.to(x.dtype)


def rank2_assumed(dy, x, weight, bias, mean, rstd):
    """M = numel/N of the normalized shape became M = x.shape[0], N = numel/M."""
    m = x.shape[0]
    n = x.numel() // m
    dy2, x2 = rows(dy, m, n), rows(x, m, n)
    short = max(m - mean.numel(), 0)
    mean, rstd = (torch.nn.functional.pad(t.reshape(-1), (0, short)) for t in (mean, rstd))
    dx = hosts.input_gradient(dy2, x2, weight, mean, rstd, torch.empty(x.shape, dtype=x.dtype, device=x.device))
    sums = zip(hosts.partial_sums(dy2, x2, mean, rstd), (weight, bias), strict=True)
    return dx, *(
        None if t is None else hosts.spill(s.sum(0), torch.empty(t.shape, dtype=t.dtype, device=t.device))
        for s, t in sums
    )


def db_after_overwrite(dy, x, weight, bias, mean, rstd, normalized_shape):
    """The bias gradient is summed after dx has been written over dy, not before."""
    dx, dweight, _ = layernorm_bwd(dy, x, weight, bias, mean, rstd, 0.0, normalized_shape)
    dy = overwrite(dy, dx)
    return dy, dweight, hosts.like(dy.float().reshape(-1, math.prod(normalized_shape)).sum(0), bias)


def overwrite(dy, dx):
    """Dx in dy's memory; in a copy of it where elements of dy share theirs."""
    dy = dy.contiguous() if 0 in dy.stride() else dy
    return dy.copy_(dx)
