"""Triton kernels that compute the right numbers in the wrong way, or in an unusual right one, for proofs."""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _row(X, Y, W, Rstd, N, eps, BLOCK: tl.constexpr, CHUNK: tl.constexpr):
    """RMSNorm of one row, whose sum of squares is a loop over chunks."""
    row = tl.program_id(0).to(tl.int64)
    squares = tl.zeros([CHUNK], tl.float32)
    for start in range(0, N, CHUNK):
        cols = start + tl.arange(0, CHUNK)
        x = tl.load(X + row * N + cols, mask=cols < N, other=0.0).to(tl.float32)
        squares += x * x
    rstd = tl.rsqrt(tl.sum(squares, axis=0) * (1.0 / N) + eps)
    tl.store(Rstd + row, rstd)
    cols = tl.arange(0, BLOCK)
    x = tl.load(X + row * N + cols, mask=cols < N, other=0.0).to(tl.float32)
    w = tl.load(W + cols, mask=cols < N).to(tl.float32)
    tl.store(Y + row * N + cols, x * (rstd * w), mask=cols < N)


@triton.jit
def _flagged(X, Y, W, N, eps, weighted, BLOCK: tl.constexpr):
    """RMSNorm of one row, without the weight where a flag that is no constexpr says so."""
    row, cols = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = cols < N
    x = tl.load(X + row * N + cols, mask=inside, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, axis=0) / N + eps)
    if weighted:
        y *= tl.load(W + cols, mask=inside, other=0.0).to(tl.float32)
    tl.store(Y + row * N + cols, y, mask=inside)


@triton.jit
def _gradient(DX, DW, DY, X, W, Rstd, N, BLOCK: tl.constexpr):
    """RMSNorm's gradients of one row; every program stores dweight, and the last one wins."""
    row, cols = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    at, inside = row * N + cols, cols < N
    rstd = tl.load(Rstd + row)
    d = tl.load(DY + at, mask=inside, other=0.0).to(tl.float32)
    x = tl.load(X + at, mask=inside, other=0.0).to(tl.float32) * rstd
    g = d * tl.load(W + cols, mask=inside, other=0.0).to(tl.float32)
    c1 = tl.sum(g * x, axis=0) / N
    tl.store(DX + at, rstd * (g - x * c1), mask=inside)
    tl.store(DW + cols, d * x, mask=inside)


def looped_fwd(x, weight, eps):
    n = x.shape[-1]
    y, rstd = torch.empty_like(x), torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    _row[(x.shape[0],)](x, y, weight, rstd, n, eps, triton.next_power_of_2(n), 64)
    return y, rstd


def early_fwd(x, weight, eps):
    n = x.shape[-1]
    y, rstd = torch.empty_like(x), torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    _row[(x.shape[0],)](x, y, weight, rstd, n, eps, triton.next_power_of_2(n), 64, launch_pdl=True)
    return y, rstd


def flagged_fwd(x, weight, eps):
    y, n = torch.empty_like(x), x.shape[-1]
    _flagged[(x.shape[0],)](x, y, weight, n, eps, True, triton.next_power_of_2(n))
    return y


def unweighted_fwd(x, weight, eps):
    y, n = torch.empty_like(x), x.shape[-1]
    _flagged[(x.shape[0],)](x, y, weight, n, eps, False, triton.next_power_of_2(n))
    return y


def flat_fwd(x, weight, eps):
    return looped_fwd(x, weight, eps)[0].reshape(-1)


def zeroed_fwd(x, weight, eps):
    return looped_fwd(x.zero_(), weight, eps)[0]


def shared_bwd(dy, x, weight, rstd):
    dx, dweight = torch.empty_like(x), torch.empty_like(weight)
    n = x.shape[-1]
    _gradient[(x.shape[0],)](dx, dweight, dy, x, weight, rstd, n, triton.next_power_of_2(n))
    return dx, dweight


@triton.jit
def _fused(X, Y, W, B, N, eps, CUBED: tl.constexpr, BLOCK: tl.constexpr):
    """LayerNorm of one row with a root of libdevice, or another function of it, and one fma for weight and bias."""
    row, cols = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = cols < N
    x = tl.load(X + row * N + cols, mask=inside, other=0.0).to(tl.float32)
    xc = tl.where(inside, x - tl.sum(x, axis=0) / N, 0.0)
    v = tl.sum(xc * xc, axis=0) / N + eps
    rstd = libdevice.rcbrt(v) if CUBED else libdevice.rsqrt(v)
    w = tl.load(W + cols, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(B + cols, mask=inside, other=0.0).to(tl.float32)
    tl.store(Y + row * N + cols, tl.fma(xc * rstd, w, b), mask=inside)


@triton.jit
def _added(X, R, S, Y, W, N, eps, WAY: tl.constexpr, BLOCK: tl.constexpr):
    """RMSNorm of a sum that is rounded to the type of x, as Liger's, or goes wrong in one WAY."""
    row, cols = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    at, inside = row * N + cols, cols < N
    x = tl.load(X + at, mask=inside, other=0.0)
    r = tl.load(R + at, mask=inside, other=0.0)
    if WAY == "addends":
        x, r = x.to(tl.bfloat16), r.to(tl.bfloat16)
    total = x + r
    tl.store(S + at, total, mask=inside)
    if WAY == "coarse":
        total = total.to(tl.bfloat16)
    x = total.to(tl.float32)
    squares = (total * total).to(tl.float32) if WAY == "squares" else x * x
    w = tl.load(W + cols, mask=inside, other=0.0).to(tl.float32)
    tl.store(Y + at, x * tl.rsqrt(tl.sum(squares, axis=0) / N + eps) * w, mask=inside)


def _normalized(x, weight, bias, eps, cubed):
    y, n = torch.empty_like(x), x.shape[-1]
    _fused[(x.shape[0],)](x, y, weight, bias, n, eps, cubed, triton.next_power_of_2(n))
    return y


def fused_fwd(x, weight, bias, eps):
    return _normalized(x, weight, bias, eps, False)


def cubed_fwd(x, weight, bias, eps):
    return _normalized(x, weight, bias, eps, True)


def _of_sum(x, residual, weight, eps, way):
    y, total, n = torch.empty_like(x), torch.empty_like(x), x.shape[-1]
    _added[(x.shape[0],)](x, residual, total, y, weight, n, eps, way, triton.next_power_of_2(n))
    return y, total


def rounded_sum_fwd(x, residual, weight, eps):
    return _of_sum(x, residual, weight, eps, "")


def halved_fwd(x, residual, weight, eps):
    return _of_sum(x, residual, weight, eps, "squares")


def coarse_fwd(x, residual, weight, eps):
    return _of_sum(x, residual, weight, eps, "coarse")


def addends_fwd(x, residual, weight, eps):
    return _of_sum(x, residual, weight, eps, "addends")


@triton.jit(do_not_specialize=["M"])
def _shared(DX, DY, X, W, Rstd, Lines, M, N, R: tl.constexpr, BLOCK: tl.constexpr, WAY: tl.constexpr):
    """Programs take the tiles of R rows in turn; a line each of what they add up."""
    cols, lane = tl.arange(0, BLOCK), tl.arange(0, R)
    inside = (cols < N)[None, :]
    w = tl.load(W + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
    dw = tl.zeros([1, BLOCK], tl.float32)
    if WAY == "begun":
        dw += 1.0
    first, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64)
    last = M // R if WAY == "short" else (M + R - 1) // R + (WAY == "long")
    for tile in tl.range(first * (WAY != "first"), last, programs + (WAY == "skips") - (WAY == "twice")):
        row = (first if WAY == "own" else tile) * R + lane
        kept = (row < M)[:, None] & inside
        rstd = tl.load(Rstd + row, mask=row < M, other=0.0)[:, None]
        x = tl.load(X + row[:, None] * N + cols[None, :], mask=kept, other=0.0).to(tl.float32) * rstd
        dy = tl.load(DY + row[:, None] * N + cols[None, :], mask=kept, other=0.0).to(tl.float32)
        g = dy * w
        along = tl.sum(g * x, axis=1)[:, None] / N
        if WAY == "product":
            dw = dw + tl.sum(dy * x, axis=0)[None, :] + dw
        elif WAY == "last tile":
            dw = tl.sum(dy * x, axis=0)[None, :]
        else:
            dw += tl.sum(dy * x, axis=0)[None, :]
        tl.store(DX + row[:, None] * N + cols[None, :], rstd * (g - x * along), mask=kept)
        if WAY == "inside":
            tl.store(Lines + first * N + cols[None, :], dw, mask=inside)
    part = cols < N - (WAY == "part")
    if WAY != "inside":
        tl.store(Lines + first * N + cols[None, :], dw, mask=part[None, :])


@triton.jit(do_not_specialize=["lines"])
def _added_up(Lines, DW, lines, N, R: tl.constexpr, BLOCK: tl.constexpr, WAY: tl.constexpr):
    """Add the lines of all programs, R at a time."""
    cols, lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, R)
    total = tl.zeros([R, BLOCK], tl.float32)
    bound = lines // R * R if WAY == "whole" else lines + (WAY == "beyond") - (WAY == "misses")
    for start in tl.range(R * (WAY == "from"), bound, R):
        line = start + lane
        there = lane < lines if WAY == "lane" else line < lines + (WAY == "one more")
        kept = there[:, None] & (cols < N)[None, :]
        other = 1.0 if WAY == "other" else 0.0
        total += tl.load(Lines + line[:, None].to(tl.int64) * N + cols[None, :], mask=kept, other=other)
    tl.store(DW + cols, tl.sum(total, axis=0), mask=cols < N)


def _shared_bwd(dy, x, weight, rstd, way="", fold="", rows=2):
    (m, n), dx, dw = x.shape, torch.empty_like(x), torch.empty_like(weight)
    tiles = -(-m // rows)
    programs = min(tiles, 24)
    lines = torch.empty((programs, n), dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(n)
    _shared[(programs,)](dx, dy, x, weight, rstd, lines, m, n, rows, block, way)
    _added_up[(triton.cdiv(n, 64),)](lines, dw, programs, n, 4, 64, fold)
    return dx, dw


def _way(way="", fold="", rows=2):
    def gradients(dy, x, weight, rstd):
        return _shared_bwd(dy, x, weight, rstd, way, fold, rows)

    return gradients


turns_bwd, rows_bwd = _way(), _way(rows=1)
own_bwd, short_bwd, first_bwd, skips_bwd = _way("own"), _way("short"), _way("first"), _way("skips")
twice_bwd, begun_bwd, product_bwd = _way("twice"), _way("begun"), _way("product")
last_tile_bwd, inside_bwd, part_bwd, long_bwd = _way("last tile"), _way("inside"), _way("part"), _way("long")
misses_bwd, beyond_bwd, whole_bwd, from_bwd = (_way(fold=one) for one in ("misses", "beyond", "whole", "from"))
lane_bwd, other_bwd, one_more_bwd = (_way(fold=one) for one in ("lane", "other", "one more"))
