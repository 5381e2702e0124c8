"""Rows that registers hold: every normalization of rows, each element read from memory once. Here, the forward.

A program takes a tile of ROWS rows at a time, in CHUNKS chunks of CHUNK columns: a tuple of tensors, since a tensor's
extents are powers of two and a row's length is not. Only the last chunk can be short, and only it is masked. What is
optional is None: a residual R to add first, the weight W, the bias B, the mean (RMSNorm subtracts none).

Tiles and programs differ only in which rows they compute: a row's bits do not depend on the other rows.
"""

# A tuple grows while it is compiled:
# mypy: disable-error-code="assignment, misc"

from dataclasses import KW_ONLY, dataclass

import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from verify_norm.kernels.activation import activate
from verify_norm.kernels.launch import jit
from verify_norm.kernels.rows.tiles import load, parameter, plus, prefetch, saturated, store
from verify_norm.kernels.widening import wide


@dataclass(frozen=True)
class ForwardConstants:
    """The constants of `forward`.

    VEC : elements of a vector load of 16 bytes, where rows are dense and begin at multiples of 16 bytes; else 1
    PTX : the target has sm_90's instructions, which the interpreter and other GPUs do not have
    EVEN : CHUNK divides a row
    ROWS : rows of a tile
    CHUNK, CHUNKS : columns of a chunk, and chunks of a row
    FORM : "gate" if R is one, y times SiLU of it; "l2" if squares are added up, not averaged; "rows" if every row has a
        scale of its own, so that its largest magnitude is the largest of 8 bits; else ""
    JOINT : mean and rstd are one tensor, given as both: first all means
    GROUP : columns that have such a scale together, a divisor of CHUNK; else 0
    """

    VEC: int
    PTX: bool
    EVEN: bool
    ROWS: int
    CHUNK: int
    CHUNKS: int
    _: KW_ONLY
    FORM: str = ""
    GROUP: int = 0
    JOINT: bool = False


@jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@jit
def row_scale(most):
    """Return the scale of rows of these largest magnitudes into e4m3fn, and a power of two and a factor in its place.

    A number times both is the number over the scale, also where the scale has no reciprocal in float32. The scale is 1
    where it would be 0.
    """
    scale = tl.div_rn(most, 448.0)
    scale = tl.where(scale == 0.0, 1.0, scale)
    power = tl.where(scale < 2.0**-64, 2.0**64, 1.0)
    return scale, power, tl.div_rn(1.0, scale * power)


@jit
def by_groups(y, GROUP: tl.constexpr):
    """Return a tile divided by the scale of every GROUP columns, and these scales."""
    t = tl.reshape(y, [y.shape[0], y.shape[1] // GROUP, GROUP])
    own, power, inverse = row_scale(tl.reduce(tl.abs(t), 2, _larger))
    return tl.reshape(t * power[:, :, None] * inverse[:, :, None], y.shape), own


@jit(int64="M NV sxm sxn srm srn ahead per", float32="eps")
def forward(
    X,
    R,
    H,
    Y,
    W,
    B,
    Mean,
    Rstd,
    Scale,
    Most,
    Factor,
    Shift,
    M,
    NV,
    sxm,
    sxn,
    srm,
    srn,
    ahead,
    per,
    eps,
    offset,
    K: tl.constexpr,
):
    """Store Y, Mean and Rstd of a tile of X, or of X + R, which goes to H. K is a `ForwardConstants`.

    With a Scale, Y is multiplied by it and saturates, and the largest magnitude before that goes to Most, one a tile;
    in the form "rows" the scales of rows do, with a GROUP those of all groups of a row. With a Factor and a Shift,
    dense, of which `per` rows have a line each, Y is multiplied by 1 plus the one, and the other is added.
    """
    VEC: tl.constexpr = K.VEC
    PTX: tl.constexpr = K.PTX
    EVEN: tl.constexpr = K.EVEN
    ROWS: tl.constexpr = K.ROWS
    CHUNK: tl.constexpr = K.CHUNK
    CHUNKS: tl.constexpr = K.CHUNKS
    FORM: tl.constexpr = K.FORM
    GROUP: tl.constexpr = K.GROUP
    FAST: tl.constexpr = PTX and VEC > 1
    LEAST: tl.constexpr = FAST and (
        Scale is not None or GROUP > 0
    )  # instructions: into 8 bits they are the limit, not the memory
    LONGEST: tl.constexpr = 1024 if Factor is None else 8192  # columns whose parameters are held too
    EARLY: tl.constexpr = VEC > 1 and CHUNKS * CHUNK <= LONGEST  # so that memory is waited for once
    N = (NV * VEC).to(tl.int32)
    tile = tl.program_id(0).to(tl.int64)
    row = tile * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, CHUNK)
    if K.JOINT:
        Rstd += M
    scale = 1.0
    if Scale is not None:
        scale = tl.load(Scale)
        if PTX:
            gdc_launch_dependents()  # of what takes the largest of Most
    if FAST:
        prefetch(X, tile + ahead, sxm, M, NV, VEC, ROWS)
        if R is not None:
            prefetch(R, tile + ahead, srm, M, NV, VEC, ROWS)
    loaded = ()
    for c in tl.static_range(CHUNKS):  # all of them before anything is stored: the compiler moves no load across that
        cols = c * CHUNK + lane
        x = load(X, row, sxm, cols, sxn, M, N, EVEN or c < CHUNKS - 1, VEC, "")
        r = x
        if R is not None:
            r = load(R, row, srm, cols, srn, M, N, EVEN or c < CHUNKS - 1, VEC, "")
        loaded += ((x, r),)
    ws = ()
    bs = ()
    for c in tl.static_range(CHUNKS if EARLY else 0):
        if W is not None:
            ws += (parameter(W, c * CHUNK + lane, N, EVEN or c < CHUNKS - 1, VEC),)
        if B is not None:
            bs += (parameter(B, c * CHUNK + lane, N, EVEN or c < CHUNKS - 1, VEC),)
    fs = ()
    if Factor is not None:
        sample = tl.minimum(row, M - 1) // per  # here, since a division takes as long as a load
        for c in tl.static_range(CHUNKS if EARLY else 0):
            cols = c * CHUNK + lane
            f = load(Factor, sample, NV, cols, 1, M, N, EVEN or c < CHUNKS - 1, VEC, "")
            s = load(Shift, sample, NV, cols, 1, M, N, EVEN or c < CHUNKS - 1, VEC, "")
            fs += ((f, s),)
    xs = ()
    for c in tl.static_range(CHUNKS):
        x = wide(loaded[c][0], FAST)
        if R is not None and FORM != "gate":
            x += wide(loaded[c][1], FAST)
            store(H, x, row, NV, c * CHUNK + lane, M, N, EVEN or c < CHUNKS - 1, VEC)
        xs += (x,)
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
            centered += (x,)
        xs = centered
    squares = xs[0] * xs[0]
    for c in tl.static_range(1, CHUNKS):
        squares += xs[c] * xs[c]
    square = tl.sum(squares, axis=1)
    if FORM != "l2":
        square /= N
    rstd = tl.div_rn(1.0, tl.sqrt_rn(square + eps))
    tl.store(Rstd + row, rstd, mask=row < M)
    most = tl.zeros([ROWS, CHUNK], tl.float32)
    ys = ()
    for c in tl.static_range(CHUNKS):
        cols = c * CHUNK + lane
        y = xs[c] * rstd[:, None]
        if W is not None:
            y *= plus(ws[c] if EARLY else parameter(W, cols, N, EVEN or c < CHUNKS - 1, VEC), offset, LEAST)
        if B is not None:
            y += wide(bs[c] if EARLY else parameter(B, cols, N, EVEN or c < CHUNKS - 1, VEC), LEAST)
        if FORM == "gate":
            y *= activate(wide(loaded[c][1], FAST), "silu", PTX)
        if Factor is not None:
            if EARLY:
                f, s = fs[c]
            else:
                f = load(Factor, sample, NV, cols, 1, M, N, EVEN or c < CHUNKS - 1, VEC, "")
                s = load(Shift, sample, NV, cols, 1, M, N, EVEN or c < CHUNKS - 1, VEC, "")
            y *= 1.0 + wide(f, FAST)
            y += wide(s, FAST)
        if Scale is not None:
            most = tl.maximum(most, tl.abs(y))
            y = saturated(y * scale, Y, PTX)
        if GROUP > 0:
            y, own = by_groups(y, GROUP)
            y = saturated(y, Y, PTX)
            group = c * (CHUNK // GROUP) + tl.arange(0, CHUNK // GROUP)
            groups = tl.cdiv(N, GROUP)
            at = row[:, None] * groups + group[None, :]
            tl.store(Most + at, own, mask=(row < M)[:, None] & (group < groups)[None, :])
        if FORM == "rows":
            most = _larger(most, tl.abs(y))
            ys += (y,)
        else:
            store(Y, y, row, NV, cols, M, N, EVEN or c < CHUNKS - 1, VEC)
    if FORM == "rows":
        own, power, inverse = row_scale(tl.reduce(most, 1, _larger))
        tl.store(Most + row, own, mask=row < M)
        for c in tl.static_range(CHUNKS):
            y = saturated(ys[c] * power[:, None] * inverse[:, None], Y, PTX)
            store(Y, y, row, NV, c * CHUNK + lane, M, N, EVEN or c < CHUNKS - 1, VEC)
    if Scale is not None:
        tl.store(Most + tile, tl.max(tl.max(tl.where((row < M)[:, None], most, 0.0), axis=1), axis=0))
