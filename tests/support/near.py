"""RMSNorm in two launches, and kernels that differ from it in one place, for proofs."""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _roots(Rstd, X, M, N, eps, R: tl.constexpr, BLOCK: tl.constexpr, WAY: tl.constexpr):
    """Store 1/√(mean(x²) + eps) of R rows."""
    row, cols = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R), tl.arange(0, BLOCK)
    rows, inside = (row < M)[:, None], (cols < N)[None, :]
    if WAY == "a_column_less":
        inside = (cols < N - 1)[None, :]
    at = row[:, None] * N + cols[None, :]
    if WAY == "another_stride":
        at = row[:, None] * (N + 1) + cols[None, :]
    if WAY == "lanes_of_1":
        x = tl.load(X + at, mask=rows & inside, other=1.0).to(tl.float32)
    elif WAY == "lanes_of_garbage":
        x = tl.load(X + at, mask=rows & inside).to(tl.float32)
    elif WAY == "from_the_next_row":
        x = tl.load(X + at, mask=rows, other=0.0).to(tl.float32)
    else:
        x = tl.load(X + at, mask=rows & inside, other=0.0).to(tl.float32)
    squares = x * x
    if WAY == "sum_in_bfloat16":
        total = tl.sum(squares.to(tl.bfloat16), axis=1).to(tl.float32)
    else:
        total = tl.sum(squares, axis=1)
    if WAY == "bessel":
        rstd = tl.rsqrt(total / (N - 1) + eps)
    elif WAY == "eps_outside":
        rstd = 1.0 / (tl.sqrt(total / N) + eps)
    elif WAY == "m_for_n":
        rstd = tl.rsqrt(total / M + eps)
    else:
        rstd = tl.rsqrt(total / N + eps)
    gdc_launch_dependents()
    if WAY == "last_row_missing":
        tl.store(Rstd + row, rstd, mask=row < M - 1)
    else:
        tl.store(Rstd + row, rstd, mask=row < M)


@triton.jit(do_not_specialize=["zero"])
def _rows(Y, X, W, Z, Rstd, M, N, zero, R: tl.constexpr, BLOCK: tl.constexpr, WAY: tl.constexpr):
    """Store x·rstd·w of R rows."""
    row, cols = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R), tl.arange(0, BLOCK)
    rows, inside = (row < M)[:, None], (cols < N)[None, :]
    at = row[:, None] * N + cols[None, :]
    x = tl.load(X + at, mask=rows & inside, other=0.0).to(tl.float32)
    if WAY == "one_weight":
        w = tl.load(W + (cols & zero), mask=cols < N, other=0.0).to(tl.float32)
    elif WAY == "bits_of_columns":
        w = tl.load(W + (cols & (BLOCK - 1 + zero)), mask=cols < N, other=0.0).to(tl.float32)
    elif WAY == "last_weight_again":
        w = tl.load(W + tl.minimum(cols, N - 1)).to(tl.float32)
    else:
        w = tl.load(W + cols, mask=cols < N, other=0.0).to(tl.float32)
    if WAY == "zeros_added" or WAY == "half_zeroed":
        w += tl.load(Z + cols, mask=cols < N, other=0.0)
    if WAY != "no_wait":
        gdc_wait()
    if WAY == "row_before":
        rstd = tl.load(Rstd + tl.maximum(row - 1, 0), mask=row < M, other=0.0)[:, None]
    else:
        rstd = tl.load(Rstd + row, mask=row < M, other=0.0)[:, None]
    x *= rstd
    if WAY == "two_types_midway":
        x = tl.where((cols < N // 2)[None, :], x.to(tl.bfloat16).to(tl.float32), x.to(tl.float16).to(tl.float32))
    y = x * w[None, :]
    if WAY == "over_the_next_row":
        tl.store(Y + at, y, mask=rows)
    elif WAY == "a_row_too_many":
        tl.store(Y + at, y, mask=(row <= M)[:, None] & inside)
    else:
        tl.store(Y + at, y, mask=rows & inside)


def _way(way):
    def rmsnorm_fwd(x, weight, eps):
        m, n = x.numel() // x.shape[-1], x.shape[-1]
        y, rstd = torch.empty_like(x), torch.empty(m, dtype=torch.float32, device=x.device)
        grid, cut = (triton.cdiv(m, 2),), (2, triton.next_power_of_2(n), way)
        _roots[grid](rstd, x, m, n, eps, *cut)
        zeros = torch.zeros(n, dtype=torch.float32, device=x.device)
        if way == "half_zeroed":
            zeros = torch.empty_like(zeros)
            zeros.narrow(0, 0, n // 2).zero_()
        _rows[grid](y, x, weight, zeros, rstd, m, n, 0, *cut, launch_pdl=way != "zeros_added" and way != "half_zeroed")
        if way == "doubled_after":
            torch._foreach_mul_([y], 2.0)
        return y, rstd

    return rmsnorm_fwd


WAYS = """
plain bits_of_columns last_weight_again zeros_added
a_column_less another_stride lanes_of_1 lanes_of_garbage from_the_next_row sum_in_bfloat16 bessel eps_outside m_for_n
last_row_missing one_weight no_wait row_before two_types_midway over_the_next_row a_row_too_many half_zeroed
doubled_after
"""
globals().update({way: _way(way) for way in WAYS.split()})
