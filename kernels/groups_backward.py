"""GroupNorm's backward loops, with the tiles, units and members of `groups`.

With x̂ = (x − mean)·rstd, z = w·x̂ + b and g = dy·act'(z), a channel's sums Σ g·x̂ and Σ g serve all three gradients:
over samples they are dweight and dbias, and weighted over a group they are N·c1 and N·c2 of
dx = rstd·(w·g − c2 − x̂·c1).
"""

import triton.language as tl

from verify_norm.kernels.activation import slope
from verify_norm.kernels.groups import parameter, parts, places, unit_of, vectors, within
from verify_norm.kernels.launch import jit


@jit
def normal(X, DY, at_x, at_d, mask, mean, rstd, w, b, ACT: tl.constexpr):
    """x̂ and g of a tile: 0 where no element is, for (0 − mean)·rstd may overflow there, and meet a 0."""
    x = tl.load(X + at_x, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(DY + at_d, mask=mask, other=0.0).to(tl.float32)
    xhat = tl.where(mask, (x - mean) * rstd, 0.0)
    if ACT is not None:
        g *= slope(xhat * w + b, ACT)
    return xhat, g


@vectors
def backward_whole(
    DX, DY, X, W, B, Mean, Rstd, DW, DB, M, G, CG, S, sgb, sgc, sgs, sdb, sdc, sds, sxb, sxc, sxs, ACT: tl.constexpr,
    INNER: tl.constexpr, VEC: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """BLOCK_G groups, read once: dx, and the sums of their channels."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_G + tl.arange(0, BLOCK_G)
    cols = tl.arange(0, BLOCK_C)
    c, s = cols[None, :, None], tl.arange(0, BLOCK_S)[None, None, :]
    mask = (row < M)[:, None, None] & within(c, s, CG, S, INNER, VEC)
    sample, first = (row // G)[:, None, None], (row % G * CG)[:, None, None]
    channel, there = (row % G * CG)[:, None] + cols[None, :], (row < M)[:, None] & (cols < CG)[None, :]
    w, b = parameter(W, channel, there, 1.0), parameter(B, channel, there, 0.0)
    mean = tl.load(Mean + row, mask=row < M, other=0.0)[:, None, None]
    rstd = tl.load(Rstd + row, mask=row < M, other=0.0)[:, None, None]
    at_x = places(sample * sxb + first * sxc, c, s, sxc, sxs, INNER, VEC)
    at_d = places(sample * sdb + first * sdc, c, s, sdc, sds, INNER, VEC)
    xhat, g = normal(X, DY, at_x, at_d, mask, mean, rstd, w[:, :, None], b[:, :, None], ACT)
    dw, db = tl.sum(g * xhat, axis=2), tl.sum(g, axis=2)
    at = row[:, None] * CG + cols[None, :]
    if DW is not None:
        tl.store(DW + at, dw, mask=there)
    if DB is not None:
        tl.store(DB + at, db, mask=there)
    if DX is not None:
        N = (CG * S).to(tl.float32)
        c1 = tl.div_rn(tl.sum(w * dw, axis=1), N)[:, None, None]
        c2 = tl.div_rn(tl.sum(w * db, axis=1), N)[:, None, None]
        dx = rstd * (g * w[:, :, None] - (c2 + xhat * c1))
        tl.store(DX + places(sample * sgb + first * sgc, c, s, sgc, sgs, INNER, VEC), dx, mask=mask)


@vectors
def backward_sums(
    X, DY, W, B, Mean, Rstd, P, begin, plane, C, G, CG, UC, S, members, sxb, sxc, sxs, sdb, sdc, sds, ACT: tl.constexpr,
    INNER: tl.constexpr, VEC: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A member: Σ g·x̂ of each of its channels over its blocks into P, Σ g `plane` later."""
    wide, blocks = tl.cdiv(UC, BLOCK_C), tl.cdiv(S, BLOCK_S)
    unit, rank, stride = begin + tl.program_id(0) // members, tl.program_id(0) % members, members // wide
    sample, first, live = unit_of(unit, C, UC)
    cols, mine = rank % wide * BLOCK_C + tl.arange(0, BLOCK_C), rank // wide
    c, channel, there = cols[None, :, None], (first + cols)[None, :], (cols < live)[None, :]
    mean, rstd, w, b = known(Mean, Rstd, W, B, sample * G + channel // CG, channel, there)
    from_x, from_d = sample * sxb + first.to(tl.int64) * sxc, sample * sdb + first.to(tl.int64) * sdc
    dw = tl.zeros([1, BLOCK_C, BLOCK_S], tl.float32)
    db = tl.zeros([1, BLOCK_C, BLOCK_S], tl.float32)
    for step in tl.range(0, tl.cdiv(blocks - mine, stride), num_stages=STAGES):
        s = ((mine + step * stride) * BLOCK_S + tl.arange(0, BLOCK_S))[None, None, :]
        mask = within(c, s, live, S, INNER, VEC)
        at_x, at_d = places(from_x, c, s, sxc, sxs, INNER, VEC), places(from_d, c, s, sdc, sds, INNER, VEC)
        xhat, g = normal(X, DY, at_x, at_d, mask, mean, rstd, w, b, ACT)
        dw += g * xhat
        db += g
    at = (members * BLOCK_C).to(tl.int64) * unit + rank * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    tl.store(P + at, tl.sum(dw, axis=2))
    tl.store(P + plane + at, tl.sum(db, axis=2))


@jit
def known(Mean, Rstd, W, B, group, channel, there):
    """The statistics and parameters of these channels."""
    mean = tl.load(Mean + group, mask=there, other=0.0)[:, :, None]
    rstd = tl.load(Rstd + group, mask=there, other=0.0)[:, :, None]
    return mean, rstd, parameter(W, channel, there, 1.0)[:, :, None], parameter(B, channel, there, 0.0)[:, :, None]


@jit
def backward_merge(
    P, W, DW, DB, Along, Total, begin, plane, C, G, CG, UC, members, RANKS: tl.constexpr, COLS: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """A group's Σ w·g·x̂ and Σ w·g; and Σ g·x̂ and Σ g of its channels, of one tile of these if it has several."""
    wide, several = tl.cdiv(UC, BLOCK_C), UC // CG
    unit, number = begin + tl.program_id(0) // (wide * several), tl.program_id(0) // wide % several
    tile = tl.program_id(0) % wide
    sample, first, live = unit_of(unit, C, UC)
    low, high = number * CG, tl.minimum(number * CG + CG, live)
    start = P + (members * BLOCK_C).to(tl.int64) * unit
    along = tl.zeros([RANKS, COLS], tl.float32)
    total = tl.zeros([RANKS, COLS], tl.float32)
    dw = tl.zeros([RANKS, COLS], tl.float32)
    db = tl.zeros([RANKS, COLS], tl.float32)
    for member in range(0, members, RANKS):
        ranks, at, there = parts(member, low, high, members, wide, RANKS, COLS, BLOCK_C)
        dw_part = tl.load(start + at, mask=there, other=0.0)
        db_part = tl.load(start + plane + at, mask=there, other=0.0)
        w = parameter(W, first + ranks % wide * BLOCK_C + low + tl.arange(0, COLS)[None, :], there, 1.0)
        along += w * dw_part
        total += w * db_part
        dw += tl.where(ranks % wide == tile, dw_part, 0.0)
        db += tl.where(ranks % wide == tile, db_part, 0.0)
    channel = tile * BLOCK_C + low + tl.arange(0, COLS)
    if DW is not None:
        tl.store(DW + sample * C + first + channel, tl.sum(dw, axis=0), mask=channel < high)
    if DB is not None:
        tl.store(DB + sample * C + first + channel, tl.sum(db, axis=0), mask=channel < high)
    saves, group = (tile == 0) & (low < live), sample * G + first // CG + number
    tl.store(Along + group, tl.sum(tl.sum(along, axis=1), axis=0), mask=saves)
    tl.store(Total + group, tl.sum(tl.sum(total, axis=1), axis=0), mask=saves)


@vectors
def backward_results(
    DX, DY, X, W, B, Mean, Rstd, Along, Total, begin, C, G, CG, UC, S, steps, sgb, sgc, sgs, sdb, sdc, sds, sxb, sxc,
    sxs, ACT: tl.constexpr, INNER: tl.constexpr, VEC: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """So many steps of blocks of one unit, the last blocks first."""
    wide, blocks = tl.cdiv(UC, BLOCK_C), tl.cdiv(S, BLOCK_S)
    each = wide * tl.cdiv(blocks, steps)
    number = tl.num_programs(0) - 1 - tl.program_id(0)
    unit, part = begin + number // each, number % each
    sample, first, live = unit_of(unit, C, UC)
    cols = part % wide * BLOCK_C + tl.arange(0, BLOCK_C)
    c, channel, there = cols[None, :, None], (first + cols)[None, :], (cols < live)[None, :]
    group, N = sample * G + channel // CG, (CG.to(tl.int64) * S).to(tl.float32)
    mean, rstd, w, b = known(Mean, Rstd, W, B, group, channel, there)
    c1 = tl.div_rn(tl.load(Along + group, mask=there, other=0.0), N)[:, :, None]
    c2 = tl.div_rn(tl.load(Total + group, mask=there, other=0.0), N)[:, :, None]
    from_x, from_d = sample * sxb + first.to(tl.int64) * sxc, sample * sdb + first.to(tl.int64) * sdc
    to, end = sample * sgb + first.to(tl.int64) * sgc, tl.minimum(part // wide * steps + steps, blocks)
    for step in tl.range(0, end - part // wide * steps, num_stages=STAGES):
        s = ((end - 1 - step) * BLOCK_S + tl.arange(0, BLOCK_S))[None, None, :]
        mask = within(c, s, live, S, INNER, VEC)
        at_x, at_d = places(from_x, c, s, sxc, sxs, INNER, VEC), places(from_d, c, s, sdc, sds, INNER, VEC)
        xhat, g = normal(X, DY, at_x, at_d, mask, mean, rstd, w, b, ACT)
        at = places(to, c, s, sgc, sgs, INNER, VEC)
        tl.store(DX + at, rstd * (g * w - (c2 + xhat * c1)), mask=mask, eviction_policy="evict_first")


@jit
def over_samples(DW, DB, OutW, OutB, M, C, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):
    """The sums of BLOCK_C channels over all samples."""
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    dw = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    db = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    for start in range(0, M, BLOCK_M):
        sample = (start + tl.arange(0, BLOCK_M)).to(tl.int64)
        at, mask = sample[:, None] * C + c[None, :], (sample < M)[:, None] & (c < C)[None, :]
        if OutW is not None:
            dw += tl.load(DW + at, mask=mask, other=0.0)
        if OutB is not None:
            db += tl.load(DB + at, mask=mask, other=0.0)
    if OutW is not None:
        tl.store(OutW + c, tl.sum(dw, axis=0), mask=c < C)
    if OutB is not None:
        tl.store(OutB + c, tl.sum(db, axis=0), mask=c < C)
