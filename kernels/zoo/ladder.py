"""LayerNorm's forward as the CUDA ladder of seed 004 has it, in Triton: a block's threads are a tile's lanes."""

import torch
import triton
import triton.language as tl

from verify_norm.kernels.arguments import dense, normalized, rows, split
from verify_norm.kernels.launch import jit, launch
from verify_norm.kernels.zoo.layernorm import onepass_variance, right_fwd

WARP = 32
BLOCK = 64  # threads of a block, each with an element: what kernel 2 writes past the end stays in a guard zone


def onepass(x, weight, bias, eps, normalized_shape):
    """Kernels 4 and 5: mean((x − mean)²) became mean(x²) − mean², "a simple change"."""
    return onepass_variance(x, weight, bias, eps, normalized_shape)


@jit
def _apply(X, Y, W, B, Mean, Rstd, total, N, GUARDED: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < total
    kept = mask
    if not GUARDED:
        kept = at >= 0
    row, col = at // N, at % N
    y = tl.load(X + at, mask=mask, other=0.0).to(tl.float32) - tl.load(Mean + row, mask=mask, other=0.0)
    y *= tl.load(Rstd + row, mask=mask, other=0.0)
    if W is not None:
        y *= tl.load(W + col).to(tl.float32)
    if B is not None:
        y += tl.load(B + col).to(tl.float32)
    tl.store(Y + at, y, mask=kept)


def unguarded_tail(x, weight, bias, eps, normalized_shape, *, guarded=False):
    """Kernel 2: `if (idx < B·T·C)` is not there, so the last block writes past the end."""
    m, n = split(x, normalized(x, weight, bias, normalized_shape))
    _, mean, rstd = right_fwd(x, weight, bias, eps, normalized_shape)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    arguments = (x.contiguous(), y, dense(weight), dense(bias), mean, rstd, m * n, n)
    launch(_apply, triton.cdiv(m * n, BLOCK), *arguments, GUARDED=guarded, BLOCK=BLOCK)
    return y, mean, rstd


@jit
def _in_warps(X, Y, W, B, Mean, Rstd, M, N, eps, threads, warps, LANES: tl.constexpr):
    """A row by `threads` threads in warps of 32: each thread sums its columns, and the first `warps` are added."""
    pid = tl.program_id(0).to(tl.int64)
    X += pid * N
    thread = tl.arange(0, LANES)
    total = tl.zeros([LANES], tl.float32)
    for start in range(0, N, threads):
        col = start + thread
        total += tl.load(X + col, mask=(thread < threads) & (col < N), other=0.0).to(tl.float32)
    counted = thread // 32 < warps
    mean = tl.sum(tl.where(counted, total, 0.0), axis=0) / N
    squares = tl.zeros([LANES], tl.float32)
    for start in range(0, N, threads):
        col = start + thread
        mask = (thread < threads) & (col < N)
        x = tl.where(mask, tl.load(X + col, mask=mask, other=0.0).to(tl.float32) - mean, 0.0)
        squares += x * x
    rstd = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(tl.where(counted, squares, 0.0), axis=0) / N + eps))
    tl.store(Mean + pid, mean)
    tl.store(Rstd + pid, rstd)
    for start in range(0, N, LANES):
        col = start + thread
        y = (tl.load(X + col, mask=col < N, other=0.0).to(tl.float32) - mean) * rstd
        if W is not None:
            y *= tl.load(W + col, mask=col < N, other=0.0).to(tl.float32)
        if B is not None:
            y += tl.load(B + col, mask=col < N, other=0.0).to(tl.float32)
        tl.store(Y + pid * N + col, y, mask=col < N)


def dropped_warp(x, weight, bias, eps, normalized_shape, *, threads=100, warps=100 // WARP):
    """Kernel 5: blockDim / 32 warps are added, and of 100 threads the last 4 make up a warp that is not counted."""
    m, n = split(x, normalized(x, weight, bias, normalized_shape))
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mean, rstd = (torch.empty(m, dtype=torch.float32, device=x.device) for _ in range(2))
    launch(
        _in_warps,
        m,
        rows(x, m, n).contiguous(),
        y,
        dense(weight),
        dense(bias),
        mean,
        rstd,
        m,
        n,
        float(eps),
        threads,
        warps,
        LANES=triton.next_power_of_2(threads),
    )
    return y, mean, rstd


@jit
def _halved(X, Mean, N, THREADS: tl.constexpr, LANES: tl.constexpr, EVERY: tl.constexpr):
    """The mean by a tree over 96 threads' sums: 96, 48, 24, 12, 6, 3, and of 3 it adds 1 to 1."""
    pid = tl.program_id(0).to(tl.int64)
    thread = tl.arange(0, LANES)
    total = tl.zeros([LANES], tl.float32)
    for start in range(0, N, THREADS):
        col = start + thread
        total += tl.load(X + pid * N + col, mask=(thread < THREADS) & (col < N), other=0.0).to(tl.float32)
    if not EVERY:
        total = tl.where(thread % 3 < 2, total, 0.0)
    tl.store(Mean + pid, tl.sum(total, axis=0) / N)


def odd_tree(x, weight, bias, eps, normalized_shape, *, every=False):
    """Kernel 2: a tree that halves the number of sums, with a block of 96: of 3 sums the third is left out."""
    m, n = split(x, normalized(x, weight, bias, normalized_shape))
    x2 = rows(x, m, n).contiguous()
    mean = torch.empty(m, dtype=torch.float32, device=x.device)
    launch(_halved, m, x2, mean, n, THREADS=96, LANES=128, EVERY=every)
    xc = x2.float() - mean[:, None]
    rstd = 1 / (xc.square().mean(1) + eps).sqrt()
    y = xc * rstd[:, None]
    if weight is not None:
        y = y * weight.float().reshape(-1)
    if bias is not None:
        y = y + bias.float().reshape(-1)
    return y.to(x.dtype).reshape(x.shape), mean, rstd


def guarded_tail(x, weight, bias, eps, normalized_shape):
    """Kernel 2 with its guard."""
    return unguarded_tail(x, weight, bias, eps, normalized_shape, guarded=True)


def every_warp(x, weight, bias, eps, normalized_shape):
    """Kernel 5 with the incomplete warp counted."""
    return dropped_warp(x, weight, bias, eps, normalized_shape, warps=4)


def whole_tree(x, weight, bias, eps, normalized_shape):
    """Kernel 2 with every sum in its tree."""
    return odd_tree(x, weight, bias, eps, normalized_shape, every=True)
