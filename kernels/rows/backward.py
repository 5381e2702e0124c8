"""Rows that registers hold: the gradients of every normalization of rows, each element read from memory once.

dweight and dbias are sums down columns, across rows that different programs hold. Every program keeps its own sums in
registers and writes them as a line of a buffer; `fold` adds the lines. One program that has all rows writes the sums
themselves. Without locks and atomics, every run gives the same bits. The names are those of `forward`.
"""

# A tuple grows while it is compiled:
# mypy: disable-error-code="assignment, misc, var-annotated"

from dataclasses import dataclass

import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from verify_norm.kernels.launch import jit
from verify_norm.kernels.rows.forward import ForwardConstants
from verify_norm.kernels.rows.tiles import factor, load, parameter, plus, prefetch, store
from verify_norm.kernels.widening import anew, wide


@dataclass(frozen=True)
class BackwardConstants(ForwardConstants):
    """The constants of `backward`: those of `forward`, and more.

    DWEIGHT, DBIAS : which sums to compute
    RAW : x and dy are kept in their own type and converted twice, where sums leave less room in registers
    AGAIN : what has no room in registers is loaded again, from a cache: 0 nothing, 1 the weight, 2 the row too
    SUMS : sums a column that a program keeps
    STAGES : tiles that are loaded at a time
    """

    DWEIGHT: bool
    DBIAS: bool
    AGAIN: int
    RAW: int
    SUMS: int
    STAGES: int


@dataclass(frozen=True)
class FoldConstants:
    """The constants of `fold`: VEC and PTX as in `forward`, lines and columns of a tile."""

    VEC: int
    PTX: bool
    ROWS: int
    CHUNK: int


@jit
def line_of(Lines, line, NV, cols, VEC: tl.constexpr):
    """Return pointers to columns of a line of sums."""
    p = Lines + (line * (NV * VEC) + cols)
    if VEC > 1:
        p = tl.multiple_of(p, (1, 16))
    return p


@jit
def down(t, SUMS: tl.constexpr):
    """Return the sums down a tile's columns, or the tile itself where so many are kept."""
    if t.shape[0] > SUMS:
        t = tl.sum(t, axis=0)[None, :]
    return t


@jit
def _pairwise(a, b, c, d):
    return a + c, b + d


@jit
def _statistics(Mean, Rstd, row, M):
    """Return mean and rstd of these rows; rstd twice where there is no mean."""
    rstd = tl.load(Rstd + row, mask=row < M, other=0.0)[:, None]
    mean = rstd
    if Mean is not None:
        mean = tl.load(Mean + row, mask=row < M, other=0.0)[:, None]
    return mean, rstd


@jit
def xhat(x, cols, N, mean, rstd, CENTERED: tl.constexpr, INSIDE: tl.constexpr, PTX: tl.constexpr):
    """Return x̂ of a tile of x; 0 in lanes beyond a row.

    There (0 − mean)·rstd may overflow, and infinity times the lane's gradient, 0, is a NaN in the row's sum.
    """
    x = wide(x, PTX)
    if CENTERED:
        x -= mean
    x *= rstd
    if CENTERED and not INSIDE:
        x = tl.where((cols < N)[None, :], x, 0.0)
    return x


@jit
def _again(X, DY, W, row, sxm, sxn, sdm, sdn, cols, M, N, INSIDE: tl.constexpr, VEC: tl.constexpr):
    """Return a chunk of x, dy and the weight. Without ".ca" the compiler would merge these loads with earlier ones."""
    x = load(X, row, sxm, cols, sxn, M, N, INSIDE, VEC, ".ca")
    d = load(DY, row, sdm, cols, sdn, M, N, INSIDE, VEC, ".ca")
    w = d
    if W is not None:
        w = parameter(W, cols, N, INSIDE, VEC)
    return x, d, w


@jit
def _weighted(d, W, ws, c: tl.constexpr, cols, N, offset, SECOND: tl.constexpr, INSIDE: tl.constexpr, K: tl.constexpr):
    """Return dy times the weight, from wherever the plan keeps the weight; SECOND says that the row is known."""
    FAST: tl.constexpr = K.PTX and K.VEC > 1
    g = d
    if W is not None and K.AGAIN > 0:
        g *= factor(W, cols, N, offset, INSIDE, K.VEC, FAST)
    elif W is not None and K.RAW and SECOND:
        g *= plus(anew(ws[c], FAST), offset, False)
    elif W is not None and K.RAW:
        g *= plus(ws[c], offset, FAST)
    elif W is not None:
        g *= ws[c]
    return g


@jit(int64="M NV sdm sdn sxm sxn shm shn")
def backward(DX, DY, X, DH, W, Mean, Rstd, Lines, DW, DB, M, NV, sdm, sdn, sxm, sxn, shm, shn, offset, K: tl.constexpr):
    """Store DX, plus DH if given, and this program's share of dweight and dbias: a line of each in Lines.

    Without Lines it is the only program, and its share, all of dweight and dbias, goes to DW and DB.

    Programs take the tiles in turn, so that all of them read from one region of memory, and keep their sums in
    registers to the end. With one stage the next tile is prefetched into the L2, and its statistics into registers:
    a program would otherwise wait for memory at every tile. With more stages all of it goes to shared memory.
    K is a `BackwardConstants`.
    """
    VEC: tl.constexpr = K.VEC
    PTX: tl.constexpr = K.PTX
    EVEN: tl.constexpr = K.EVEN
    DWEIGHT: tl.constexpr = K.DWEIGHT
    DBIAS: tl.constexpr = K.DBIAS
    AGAIN: tl.constexpr = K.AGAIN
    RAW: tl.constexpr = K.RAW
    ROWS: tl.constexpr = K.ROWS
    CHUNK: tl.constexpr = K.CHUNK
    CHUNKS: tl.constexpr = K.CHUNKS
    SUMS: tl.constexpr = K.SUMS
    STAGES: tl.constexpr = K.STAGES
    FAST: tl.constexpr = PTX and VEC > 1
    N = (NV * VEC).to(tl.int32)
    lane = tl.arange(0, CHUNK)
    if K.JOINT:
        Rstd += M
    dw = ()
    db = ()
    ws = ()
    for c in tl.static_range(CHUNKS):
        if DWEIGHT:
            dw += (tl.zeros([SUMS, CHUNK], tl.float32),)
        if DBIAS:
            db += (tl.zeros([SUMS, CHUNK], tl.float32),)
        if W is not None and RAW:
            ws += (parameter(W, c * CHUNK + lane, N, EVEN or c < CHUNKS - 1, VEC),)
        elif W is not None and AGAIN == 0:
            ws += (factor(W, c * CHUNK + lane, N, offset, EVEN or c < CHUNKS - 1, VEC, False),)

    programs = tl.num_programs(0).to(tl.int64)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    ahead = _statistics(Mean, Rstd, row, M)
    for tile in tl.range(tl.program_id(0).to(tl.int64), (M + ROWS - 1) // ROWS, programs, num_stages=STAGES):
        if FAST and STAGES == 1:
            prefetch(X, tile + programs, sxm, M, NV, VEC, ROWS)
            prefetch(DY, tile + programs, sdm, M, NV, VEC, ROWS)
            if DH is not None:
                prefetch(DH, tile + programs, shm, M, NV, VEC, ROWS)
        row = tile * ROWS + tl.arange(0, ROWS)
        if STAGES == 1:
            mean, rstd = ahead
            ahead = _statistics(Mean, Rstd, row + programs * ROWS, M)
        else:
            mean, rstd = _statistics(Mean, Rstd, row, M)
        along = tl.zeros([ROWS, CHUNK], tl.float32)
        total = tl.zeros([ROWS, CHUNK], tl.float32)
        xs = ()
        ds = ()
        if RAW:  # all of it before anything is computed
            for c in tl.static_range(CHUNKS):
                cols = c * CHUNK + lane
                xs += (load(X, row, sxm, cols, sxn, M, N, EVEN or c < CHUNKS - 1, VEC, ""),)
                ds += (load(DY, row, sdm, cols, sdn, M, N, EVEN or c < CHUNKS - 1, VEC, ""),)
        for c in tl.static_range(CHUNKS):
            cols = c * CHUNK + lane
            if RAW:
                x = xs[c]
                d = ds[c]
            else:
                x = load(X, row, sxm, cols, sxn, M, N, EVEN or c < CHUNKS - 1, VEC, "")
                d = load(DY, row, sdm, cols, sdn, M, N, EVEN or c < CHUNKS - 1, VEC, "")
            x = xhat(x, cols, N, mean, rstd, Mean is not None, EVEN or c < CHUNKS - 1, FAST)
            g = _weighted(wide(d, FAST), W, ws, c, cols, N, offset, False, EVEN or c < CHUNKS - 1, K)
            along += g * x
            total += g
            if not RAW:
                xs += (x,)
                ds += (d,)
        c2 = 0.0
        if Mean is not None:
            c1, c2 = tl.reduce((along, total), 1, _pairwise)  # at once: they wait for the other warps once
            c2 = (c2 / N)[:, None]
        else:
            c1 = tl.sum(along, axis=1)
        if K.FORM != "l2":
            c1 /= N
        c1 = c1[:, None]

        new_dw = ()
        new_db = ()
        if AGAIN == 2:
            chunk = _again(X, DY, W, row, sxm, sxn, sdm, sdn, lane, M, N, EVEN or CHUNKS > 1, VEC)
        for c in tl.static_range(CHUNKS):
            cols = c * CHUNK + lane
            x = xs[c]
            d = ds[c]
            if AGAIN == 2:
                x, d, w = chunk
                x = xhat(x, cols, N, mean, rstd, Mean is not None, EVEN or c < CHUNKS - 1, FAST)
                if c + 1 < CHUNKS:  # before this chunk is stored: the compiler moves no load across a store
                    chunk = _again(X, DY, W, row, sxm, sxn, sdm, sdn, cols + CHUNK, M, N, EVEN or c < CHUNKS - 2, VEC)
            if RAW:
                x = anew(x, FAST)
                x = xhat(x, cols, N, mean, rstd, Mean is not None, EVEN or c < CHUNKS - 1, FAST)
                d = anew(d, FAST)
            else:
                d = wide(d, FAST)
            if DWEIGHT:
                new_dw += (dw[c] + down(d * x, SUMS),)
            if DBIAS:
                new_db += (db[c] + down(d, SUMS),)
            if DX is not None:
                if AGAIN == 2 and W is not None:
                    g = d * plus(w, offset, FAST)
                else:
                    g = _weighted(d, W, ws, c, cols, N, offset, True, EVEN or c < CHUNKS - 1, K)
                dx = rstd * (g - (c2 + x * c1))
                if DH is not None:  # added to the norm's gradient, not to dy, which the norm would project
                    h = load(DH, row, shm, cols, shn, M, N, EVEN or c < CHUNKS - 1, VEC, "")
                    dx += wide(h, FAST)
                store(DX, dx, row, NV, cols, M, N, EVEN or c < CHUNKS - 1, VEC)
        if DWEIGHT:
            dw = new_dw
        if DBIAS:
            db = new_db

    if PTX and Lines is not None:
        gdc_launch_dependents()
    line = tl.program_id(0).to(tl.int64)
    for c in tl.static_range(CHUNKS):
        cols = (c * CHUNK + lane)[None, :]
        if DWEIGHT and Lines is None:
            tl.store(line_of(DW, 0, NV, cols, VEC), down(dw[c], 1), mask=cols < N)
        elif DWEIGHT:
            tl.store(line_of(Lines, line, NV, cols, VEC), down(dw[c], 1), mask=cols < N)
        if DBIAS and Lines is None:
            tl.store(line_of(DB, 0, NV, cols, VEC), down(db[c], 1), mask=cols < N)
        elif DBIAS:
            part = programs if DWEIGHT else 0
            tl.store(line_of(Lines, part + line, NV, cols, VEC), down(db[c], 1), mask=cols < N)


@jit(int64="lines NV")
def fold(Lines, DW, DB, lines, NV, K: tl.constexpr):
    """Store the sums of the lines of both parts, in a fixed order. It starts before all lines are written.

    K is a `FoldConstants`.
    """
    VEC: tl.constexpr = K.VEC
    PTX: tl.constexpr = K.PTX
    ROWS: tl.constexpr = K.ROWS
    CHUNK: tl.constexpr = K.CHUNK
    N = NV * VEC
    blocks = (N + CHUNK - 1) // CHUNK
    part = tl.program_id(0) // blocks
    cols = tl.program_id(0) % blocks * CHUNK + tl.arange(0, CHUNK)
    total = tl.zeros([ROWS, CHUNK], tl.float32)
    if PTX:
        gdc_wait()
    for start in tl.range(0, lines, ROWS, num_stages=1):
        line = start + tl.arange(0, ROWS)
        p = line_of(Lines, (part * lines + line.to(tl.int64))[:, None], NV, cols[None, :], VEC)
        total += tl.load(p, mask=(line < lines)[:, None] & (cols < N)[None, :], other=0.0)
    total = tl.sum(total, axis=0)
    if DW is not None and (DB is None or part == 0):
        tl.store(DW + cols, total, mask=cols < N)
    if DB is not None and (DW is None or part == 1):
        tl.store(DB + cols, total, mask=cols < N)
