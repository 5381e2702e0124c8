"""Rows that registers hold: every normalization of rows, forward and backward, each element read from memory once.

A program takes a tile of ROWS rows at a time, in CHUNKS chunks of CHUNK columns: a tuple of tensors, since a tensor's
extents are powers of two and a row's length is not. Only the last chunk can be short, and only it is masked. What is
optional is None: a residual R to add first, the weight W, the bias B, the mean (RMSNorm subtracts none).

VEC is how many elements make the 16 bytes of a vector load, where rows are dense and each begins at a multiple of 16
bytes; else it is 1. Lengths and strides come counted in such vectors, so that the compiler can see what divides them;
nothing else about a size, a stride or an address is compiled in. What differs between tiles and between programs is
only who computes which rows: a row's bits are the same whatever the others are.

PTX says that the target has sm_90's instructions, which the interpreter and other GPUs have not.
"""

import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from verify_norm.kernels.launch import jit


@jit
def wide(t, PTX: tl.constexpr):
    """float32 values. Triton unpacks a pair of bfloat16 in three instructions; that they are float32's high half, in two."""
    if PTX and t.dtype == tl.bfloat16:
        asm: tl.constexpr = "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;"
        w = tl.inline_asm_elementwise(asm, "=f,=f,r", [t], dtype=tl.float32, is_pure=True, pack=2)
    else:
        w = t.to(tl.float32)
    return w


@jit
def prefetch(P, tile, stride, M, NV, VEC: tl.constexpr, ROWS: tl.constexpr):
    """Ask for a whole tile to be in the L2 soon, where its rows are adjacent: one instruction of one thread.

    The memory then has work while the program reduces, which no load in flight would need registers for.
    """
    if (tile + 1) * ROWS <= M and (ROWS == 1 or stride == NV):
        asm: tl.constexpr = """{
            .reg .pred first; .reg .u32 thread;
            mov.u32 thread, %tid.x; setp.eq.u32 first, thread, 0;
            @first cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }"""
        p = (P + tile * ROWS * (stride * VEC)).to(tl.int64, bitcast=True)
        size = (ROWS * 16 * NV).to(tl.int32)
        tl.inline_asm_elementwise(asm, "=r,l,r", [p, size], dtype=tl.int32, is_pure=False, pack=1)


@jit
def _addresses(P, row, stride, cols, step, VEC: tl.constexpr):
    along = cols
    if VEC == 1:
        along = cols.to(tl.int64) * step
    p = P + (row.to(tl.int64)[:, None] * stride * VEC + along[None, :])
    if VEC > 1:
        p = tl.multiple_of(p, (1, 16))  # in bytes
    return p


@jit
def load(P, row, stride, cols, step, M, N, INSIDE: tl.constexpr, VEC: tl.constexpr, CACHE: tl.constexpr):
    """A tile in its own type, 0 outside; INSIDE says that all these columns are columns of the row."""
    p = _addresses(P, row, stride, cols, step, VEC)
    if row.shape[0] > 1 and INSIDE:
        t = tl.load(p, mask=(row < M)[:, None], other=0.0, cache_modifier=CACHE)
    elif row.shape[0] > 1:
        t = tl.load(p, mask=(row < M)[:, None] & (cols < N)[None, :], other=0.0, cache_modifier=CACHE)
    elif INSIDE:  # a tile of one row is a row
        t = tl.load(p, cache_modifier=CACHE)
    else:
        t = tl.load(p, mask=(cols < N)[None, :], other=0.0, cache_modifier=CACHE)
    return t


@jit
def store(P, value, row, stride, cols, M, N, INSIDE: tl.constexpr, VEC: tl.constexpr):
    """Write a tile of a tensor with adjacent columns."""
    p = _addresses(P, row, stride, cols, 1, VEC)
    if row.shape[0] > 1 and INSIDE:
        tl.store(p, value, mask=(row < M)[:, None])
    elif row.shape[0] > 1:
        tl.store(p, value, mask=(row < M)[:, None] & (cols < N)[None, :])
    elif INSIDE:
        tl.store(p, value)
    else:
        tl.store(p, value, mask=(cols < N)[None, :])


@jit
def parameter(P, cols, N, INSIDE: tl.constexpr, VEC: tl.constexpr):
    """These columns of a dense weight or bias, as one row, in its own type."""
    p = P + cols[None, :]
    if VEC > 1:
        p = tl.multiple_of(p, (1, 16))
    if INSIDE:
        t = tl.load(p, eviction_policy="evict_last")  # every row needs it again
    else:
        t = tl.load(p, mask=(cols < N)[None, :], other=0.0, eviction_policy="evict_last")
    return t


@jit
def factor(W, cols, N, offset, INSIDE: tl.constexpr, VEC: tl.constexpr, PTX: tl.constexpr):
    """What x̂ is multiplied by: these columns of the weight, and its offset, in float32."""
    w = wide(parameter(W, cols, N, INSIDE, VEC), PTX)
    if offset is not None:
        w += offset
    return w


@jit
def forward(
    X, R, H, Y, W, B, Mean, Rstd, M: tl.int64, NV: tl.int64, sxm: tl.int64, sxn: tl.int64, srm: tl.int64,
    srn: tl.int64, ahead: tl.int64, eps: tl.float32, offset,
    VEC: tl.constexpr, PTX: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
):  # fmt: skip
    """Y, Mean and Rstd of a tile of X, or of X + R, which goes to H. EVEN says that CHUNK divides a row."""
    N = (NV * VEC).to(tl.int32)
    tile = tl.program_id(0).to(tl.int64)
    row = tile * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, CHUNK)
    if PTX and VEC > 1:
        prefetch(X, tile + ahead, sxm, M, NV, VEC, ROWS)
        if R is not None:
            prefetch(R, tile + ahead, srm, M, NV, VEC, ROWS)
    xs = ()
    for c in tl.static_range(CHUNKS):
        cols = c * CHUNK + lane
        x = wide(load(X, row, sxm, cols, sxn, M, N, EVEN or c < CHUNKS - 1, VEC, ""), PTX and VEC > 1)
        if R is not None:
            x += wide(load(R, row, srm, cols, srn, M, N, EVEN or c < CHUNKS - 1, VEC, ""), PTX and VEC > 1)
            store(H, x, row, NV, cols, M, N, EVEN or c < CHUNKS - 1, VEC)
        xs = xs + (x,)
    if Mean is not None:
        total = xs[0]
        for c in tl.static_range(1, CHUNKS):
            total += xs[c]
        mean = tl.sum(total, axis=1) / N
        tl.store(Mean + row, mean, mask=row < M)
        centered = ()
        for c in tl.static_range(CHUNKS):
            x = xs[c] - mean[:, None]
            if not EVEN and c == CHUNKS - 1:
                x = tl.where((c * CHUNK + lane < N)[None, :], x, 0.0)  # else each lane beyond the row adds mean²
            centered = centered + (x,)
        xs = centered
    squares = xs[0] * xs[0]
    for c in tl.static_range(1, CHUNKS):
        squares += xs[c] * xs[c]
    rstd = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(squares, axis=1) / N + eps))
    tl.store(Rstd + row, rstd, mask=row < M)
    for c in tl.static_range(CHUNKS):
        cols = c * CHUNK + lane
        y = xs[c] * rstd[:, None]
        if W is not None:
            y *= factor(W, cols, N, offset, EVEN or c < CHUNKS - 1, VEC, False)
        if B is not None:
            y += parameter(B, cols, N, EVEN or c < CHUNKS - 1, VEC).to(tl.float32)
        store(Y, y, row, NV, cols, M, N, EVEN or c < CHUNKS - 1, VEC)


@jit
def _line(Lines, line, NV, cols, VEC: tl.constexpr):
    p = Lines + (line * (NV * VEC) + cols)
    if VEC > 1 and len(cols.shape) == 2:
        p = tl.multiple_of(p, (1, 16))
    elif VEC > 1:
        p = tl.multiple_of(p, 16)
    return p


@jit
def _down(t, SUMS: tl.constexpr):
    if SUMS < t.shape[0]:
        t = tl.sum(t, axis=0)[None, :]
    return t


@jit
def _pairwise(a, b, c, d):
    return a + c, b + d


@jit
def xhat(X, row, sxm, cols, sxn, M, N, mean, rstd, CENTERED: tl.constexpr, INSIDE: tl.constexpr, VEC: tl.constexpr,
         PTX: tl.constexpr, CACHE: tl.constexpr):  # fmt: skip
    """x̂ of a tile; 0 in lanes beyond a row.

    There (0 − mean)·rstd may overflow, and infinity times the lane's gradient, 0, is a NaN in the row's sum.
    """
    x = wide(load(X, row, sxm, cols, sxn, M, N, INSIDE, VEC, CACHE), PTX)
    if CENTERED:
        x -= mean
    x *= rstd
    if CENTERED and not INSIDE:
        x = tl.where((cols < N)[None, :], x, 0.0)
    return x


@jit
def _weighted(d, W, ws, c: tl.constexpr, cols, N, offset, AGAIN: tl.constexpr, INSIDE: tl.constexpr,
              VEC: tl.constexpr, PTX: tl.constexpr):  # fmt: skip
    g = d
    if W is not None and AGAIN > 0:
        g *= factor(W, cols, N, offset, INSIDE, VEC, PTX)
    elif W is not None:
        g *= ws[c]
    return g


@jit
def backward(
    DX, DY, X, DH, W, Mean, Rstd, Lines, M: tl.int64, NV: tl.int64, sdm: tl.int64, sdn: tl.int64, sxm: tl.int64,
    sxn: tl.int64, shm: tl.int64, shn: tl.int64, offset,
    VEC: tl.constexpr, PTX: tl.constexpr, EVEN: tl.constexpr, DWEIGHT: tl.constexpr, DBIAS: tl.constexpr,
    AGAIN: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, SUMS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """DX, with DH added where there is one, and this program's share of dweight and dbias: a line of each in Lines.

    Programs take the tiles by turns, so that all of them read from one region of memory, and keep their sums in
    registers to the end, SUMS for every column. What those leave no room for is loaded AGAIN, from a cache: 1, the weight;
    2, the row too. With one stage the next tile is prefetched into the L2, with more into shared memory.
    """
    N = (NV * VEC).to(tl.int32)
    lane = tl.arange(0, CHUNK)
    dw = ()
    db = ()
    ws = ()
    for c in tl.static_range(CHUNKS):
        if DWEIGHT:
            dw = dw + (tl.zeros([SUMS, CHUNK], tl.float32),)
        if DBIAS:
            db = db + (tl.zeros([SUMS, CHUNK], tl.float32),)
        if W is not None and AGAIN == 0:
            ws = ws + (factor(W, c * CHUNK + lane, N, offset, EVEN or c < CHUNKS - 1, VEC, False),)

    programs = tl.num_programs(0).to(tl.int64)
    for tile in tl.range(tl.program_id(0).to(tl.int64), (M + ROWS - 1) // ROWS, programs, num_stages=STAGES):
        if PTX and VEC > 1 and STAGES == 1:
            prefetch(X, tile + programs, sxm, M, NV, VEC, ROWS)
            prefetch(DY, tile + programs, sdm, M, NV, VEC, ROWS)
            if DH is not None:
                prefetch(DH, tile + programs, shm, M, NV, VEC, ROWS)
        row = tile * ROWS + tl.arange(0, ROWS)
        rstd = tl.load(Rstd + row, mask=row < M, other=0.0)[:, None]
        mean = rstd
        if Mean is not None:
            mean = tl.load(Mean + row, mask=row < M, other=0.0)[:, None]
        along = tl.zeros([ROWS, CHUNK], tl.float32)
        total = tl.zeros([ROWS, CHUNK], tl.float32)
        xs = ()
        ds = ()
        for c in tl.static_range(CHUNKS):
            cols = c * CHUNK + lane
            x = xhat(X, row, sxm, cols, sxn, M, N, mean, rstd, Mean is not None, EVEN or c < CHUNKS - 1, VEC,
                      PTX and VEC > 1, "")  # fmt: skip
            d = load(DY, row, sdm, cols, sdn, M, N, EVEN or c < CHUNKS - 1, VEC, "")
            g = _weighted(wide(d, PTX and VEC > 1), W, ws, c, cols, N, offset, AGAIN, EVEN or c < CHUNKS - 1, VEC,
                          PTX and VEC > 1)  # fmt: skip
            along += g * x
            total += g
            xs = xs + (x,)
            ds = ds + (d,)
        c2 = 0.0
        if Mean is not None:
            c1, c2 = tl.reduce((along, total), 1, _pairwise)  # at once: they wait for the other warps once
            c2 = (c2 / N)[:, None]
        else:
            c1 = tl.sum(along, axis=1)
        c1 = (c1 / N)[:, None]

        new_dw = ()
        new_db = ()
        for c in tl.static_range(CHUNKS):
            cols = c * CHUNK + lane
            x = xs[c]
            d = ds[c]
            if AGAIN == 2:  # with ".ca" it is another load than the first, or the compiler would merge them
                x = xhat(X, row, sxm, cols, sxn, M, N, mean, rstd, Mean is not None, EVEN or c < CHUNKS - 1, VEC,
                          PTX and VEC > 1, ".ca")  # fmt: skip
                d = load(DY, row, sdm, cols, sdn, M, N, EVEN or c < CHUNKS - 1, VEC, ".ca")
            d = wide(d, PTX and VEC > 1)
            if DWEIGHT:
                new_dw = new_dw + (dw[c] + _down(d * x, SUMS),)
            if DBIAS:
                new_db = new_db + (db[c] + _down(d, SUMS),)
            if DX is not None:
                g = _weighted(d, W, ws, c, cols, N, offset, AGAIN, EVEN or c < CHUNKS - 1, VEC, PTX and VEC > 1)
                dx = rstd * (g - (c2 + x * c1))
                if DH is not None:  # added to the norm's gradient, not to dy, which the norm would project
                    h = load(DH, row, shm, cols, shn, M, N, EVEN or c < CHUNKS - 1, VEC, "")
                    dx += wide(h, PTX and VEC > 1)
                store(DX, dx, row, NV, cols, M, N, EVEN or c < CHUNKS - 1, VEC)
        if DWEIGHT:
            dw = new_dw
        if DBIAS:
            db = new_db

    if PTX:
        gdc_launch_dependents()
    line = tl.program_id(0).to(tl.int64)
    for c in tl.static_range(CHUNKS):
        cols = c * CHUNK + lane
        if DWEIGHT:
            tl.store(_line(Lines, line, NV, cols, VEC), tl.sum(dw[c], axis=0), mask=cols < N)
        if DBIAS:
            part = programs if DWEIGHT else 0
            tl.store(_line(Lines, part + line, NV, cols, VEC), tl.sum(db[c], axis=0), mask=cols < N)


@jit
def fold(
    Lines, DW, DB, lines: tl.int64, NV: tl.int64,
    VEC: tl.constexpr, PTX: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Sums of the lines of both parts, in one order, whoever wrote them first. Launched before they are all written."""
    N = NV * VEC
    blocks = (N + CHUNK - 1) // CHUNK
    part = tl.program_id(0) // blocks
    cols = tl.program_id(0) % blocks * CHUNK + tl.arange(0, CHUNK)
    total = tl.zeros([ROWS, CHUNK], tl.float32)
    if PTX:
        gdc_wait()
    for start in tl.range(0, lines, ROWS, num_stages=1):
        line = start + tl.arange(0, ROWS)
        p = _line(Lines, (part * lines + line.to(tl.int64))[:, None], NV, cols[None, :], VEC)
        total += tl.load(p, mask=(line < lines)[:, None] & (cols < N)[None, :], other=0.0)
    total = tl.sum(total, axis=0)
    if DW is not None and (DB is None or part == 0):
        tl.store(DW + cols, total, mask=cols < N)
    if DB is not None and (DW is None or part == 1):
        tl.store(DB + cols, total, mask=cols < N)
