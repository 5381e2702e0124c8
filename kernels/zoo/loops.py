"""Kernels that are right, and whose programs walk over rows in loops: counted in 64 bits, or more in a larger batch."""

import torch
import triton
import triton.language as tl

from verify_norm.kernels.arguments import dense, normalized, split
from verify_norm.kernels.launch import jit, launch, programs

EACH = 4  # rows a program
MANY = 256  # rows from which a program walks over several tiles


@jit
def _rows(X, Y, W, Rstd, M, N, stride, eps, offset, EACH: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * EACH
    for row in range(first, min(first + EACH, M)):
        squares = tl.zeros([BLOCK], tl.float32)
        for start in range(0, N, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            x = tl.load(X + row * stride + cols, mask=cols < N, other=0.0).to(tl.float32)
            squares += x * x
        rstd = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(squares, axis=0) / N + eps))
        tl.store(Rstd + row, rstd)
        for start in range(0, N, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            y = tl.load(X + row * stride + cols, mask=cols < N, other=0.0).to(tl.float32) * rstd
            if W is not None:
                y *= tl.load(W + cols, mask=cols < N, other=0.0).to(tl.float32) + offset
            tl.store(Y + row * N + cols, y, mask=cols < N)


def int64_bounds(x, weight, eps, weight_offset, normalized_shape):
    """The row is an int64 because a bound of the loop is one, so that its product with a stride has room."""
    m, n = split(x, normalized(x, weight, None, normalized_shape))
    x2 = x if x.dim() == 2 and x.stride(1) == 1 and x.shape == (m, n) else x.reshape(m, n).contiguous()
    y, rstd = torch.empty(x.shape, dtype=x.dtype, device=x.device), torch.empty(m, device=x.device)
    block = min(triton.next_power_of_2(n), 1024)
    numbers = (m, n, x2.stride(0), float(eps), float(weight_offset))
    launch(_rows, triton.cdiv(m, EACH), x2, y, dense(weight), rstd, *numbers, EACH=EACH, BLOCK=block)
    return y, rstd


@jit
def _tiles(X, Y, W, Rstd, M, N, stride, eps, offset, programs, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    for tile in range(tl.program_id(0), tl.cdiv(M, BLOCK_M), programs):
        row = (tl.zeros([BLOCK_M], tl.int64) + tile) * BLOCK_M + tl.arange(0, BLOCK_M)
        squares = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in range(0, N, BLOCK_N):
            cols = start + tl.arange(0, BLOCK_N)
            mask = (row < M)[:, None] & (cols < N)[None, :]
            x = tl.load(X + row[:, None] * stride + cols[None, :], mask=mask, other=0.0).to(tl.float32)
            squares += x * x
        rstd = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(squares, axis=1) / N + eps))
        tl.store(Rstd + row, rstd, mask=row < M)
        for start in range(0, N, BLOCK_N):
            cols = start + tl.arange(0, BLOCK_N)
            mask = (row < M)[:, None] & (cols < N)[None, :]
            x = tl.load(X + row[:, None] * stride + cols[None, :], mask=mask, other=0.0).to(tl.float32)
            y = x * rstd[:, None]
            if W is not None:
                y *= (tl.load(W + cols, mask=cols < N, other=0.0).to(tl.float32) + offset)[None, :]
            tl.store(Y + row[:, None] * N + cols[None, :], y, mask=mask)


def programs_by_rows(x, weight, eps, weight_offset, normalized_shape):
    """A program for each tile of rows, and from 256 rows on as many as fill the device: no row's sum depends on it."""
    m, n = split(x, normalized(x, weight, None, normalized_shape))
    x2 = x if x.dim() == 2 and x.stride(1) == 1 and x.shape == (m, n) else x.reshape(m, n).contiguous()
    y, rstd = torch.empty(x.shape, dtype=x.dtype, device=x.device), torch.empty(m, device=x.device)
    tiles = triton.cdiv(m, 16)
    count = tiles if m < MANY else min(tiles, programs(x))
    numbers = (m, n, x2.stride(0), float(eps), float(weight_offset), count)
    launch(_tiles, count, x2, y, dense(weight), rstd, *numbers, BLOCK_M=16, BLOCK_N=1024, num_warps=8)
    return y, rstd
