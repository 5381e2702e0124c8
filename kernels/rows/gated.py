"""The gradients of a gated RMSNorm, y = x̂·w·SiLU(gate), of rows that registers hold.

With a = SiLU(gate) and e = dy·a, dx and dweight are RMSNorm's for e: dx = rstd·(w·e − x̂·mean(w·e·x̂)) and
dweight = Σ e·x̂ over the rows; dgate = dy·x̂·w·SiLU'(gate). The names, tiles and lines of sums are those of `backward`.
"""

# A tuple grows while it is compiled:
# mypy: disable-error-code="assignment, misc, var-annotated"

import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from verify_norm.kernels.activation import activate, slope
from verify_norm.kernels.launch import jit
from verify_norm.kernels.rows.backward import down, line_of
from verify_norm.kernels.rows.tiles import factor, load, prefetch, store
from verify_norm.kernels.widening import anew, wide


@jit(int64="M NV sdm sdn sxm sxn sgm sgn")
def backward(DX, DG, DY, X, Gate, W, Rstd, Lines, M, NV, sdm, sdn, sxm, sxn, sgm, sgn, offset, K: tl.constexpr):
    """Store DX, DG and this program's share of dweight, a line of Lines. K is a `BackwardConstants`."""
    VEC: tl.constexpr = K.VEC
    PTX: tl.constexpr = K.PTX
    EVEN: tl.constexpr = K.EVEN
    ROWS: tl.constexpr = K.ROWS
    CHUNK: tl.constexpr = K.CHUNK
    CHUNKS: tl.constexpr = K.CHUNKS
    SUMS: tl.constexpr = K.SUMS
    STAGES: tl.constexpr = K.STAGES
    FAST: tl.constexpr = PTX and VEC > 1
    N = (NV * VEC).to(tl.int32)
    lane = tl.arange(0, CHUNK)
    dw = ()
    for _ in tl.static_range(CHUNKS):
        dw += (tl.zeros([SUMS, CHUNK], tl.float32),)
    programs = tl.num_programs(0).to(tl.int64)
    for tile in tl.range(tl.program_id(0).to(tl.int64), (M + ROWS - 1) // ROWS, programs, num_stages=STAGES):
        if FAST and STAGES == 1:
            prefetch(X, tile + programs, sxm, M, NV, VEC, ROWS)
            prefetch(DY, tile + programs, sdm, M, NV, VEC, ROWS)
            prefetch(Gate, tile + programs, sgm, M, NV, VEC, ROWS)
        row = tile * ROWS + tl.arange(0, ROWS)
        rstd = tl.load(Rstd + row, mask=row < M, other=0.0)[:, None]
        loaded = ()
        for c in tl.static_range(CHUNKS):  # all of it before anything is stored: the compiler moves no load across that
            cols = c * CHUNK + lane
            x = load(X, row, sxm, cols, sxn, M, N, EVEN or c < CHUNKS - 1, VEC, "")
            d = load(DY, row, sdm, cols, sdn, M, N, EVEN or c < CHUNKS - 1, VEC, "")
            g = load(Gate, row, sgm, cols, sgn, M, N, EVEN or c < CHUNKS - 1, VEC, "")
            loaded += ((x, d, g),)
        along = tl.zeros([ROWS, CHUNK], tl.float32)
        es = ()
        new_dw = ()
        for c in tl.static_range(CHUNKS):
            cols = c * CHUNK + lane
            x = wide(loaded[c][0], FAST) * rstd
            d = wide(loaded[c][1], FAST)
            g = wide(loaded[c][2], FAST)
            e = d * activate(g, "silu", PTX)
            d *= x * slope(g, "silu", PTX)
            new_dw += (dw[c] + down(e * x, SUMS),)
            if W is not None:
                w = factor(W, cols, N, offset, EVEN or c < CHUNKS - 1, VEC, FAST)
                e *= w
                d *= w
            along += e * x
            es += (e,)
            store(DG, d, row, NV, cols, M, N, EVEN or c < CHUNKS - 1, VEC)
        dw = new_dw
        c1 = (tl.sum(along, axis=1) / N)[:, None]
        for c in tl.static_range(CHUNKS):
            x = anew(loaded[c][0], FAST) * rstd  # of what is narrower, which stays in half the registers
            store(DX, rstd * (es[c] - x * c1), row, NV, c * CHUNK + lane, M, N, EVEN or c < CHUNKS - 1, VEC)
    if PTX:
        gdc_launch_dependents()
    if K.DWEIGHT:
        line = tl.program_id(0).to(tl.int64)
        for c in tl.static_range(CHUNKS):
            cols = (c * CHUNK + lane)[None, :]
            tl.store(line_of(Lines, line, NV, cols, VEC), down(dw[c], 1), mask=cols < N)
