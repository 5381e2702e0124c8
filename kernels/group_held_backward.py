"""GroupNorm's backward of groups that registers hold: x and dy are read once. The formulas are in `groups_backward`."""

# A tuple grows while it is compiled:
# mypy: disable-error-code="assignment, misc"

import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from verify_norm.kernels.activation import slope
from verify_norm.kernels.group_tiles import below, block, parameter, places, within
from verify_norm.kernels.launch import anew, jit, wide


@jit
def normal(x, dy, mask, mean, rstd, w, b, ACT: tl.constexpr, PTX: tl.constexpr, EVEN: tl.constexpr):
    """x̂ and g of a tile: 0 where no element is, for (0 − mean)·rstd may overflow there, and meet a 0."""
    g = dy.to(tl.float32)
    xhat = (x.to(tl.float32) - mean) * rstd
    if not EVEN:
        xhat = tl.where(mask, xhat, 0.0)
    if ACT is not None:
        g *= slope(xhat * w + b, ACT, PTX)
    return xhat, g


@jit
def store_dx(
    DX, to, c, s, sgc, sgs, live, S, x, d, mean, rstd, w, b, c1, c2, ACT: tl.constexpr, INNER: tl.constexpr,
    VEC: tl.constexpr, PTX: tl.constexpr, SHORT: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """The gradient of a block, from x and dy."""
    mask = within(c, s, live, S, INNER, VEC)
    xhat, g = normal(x, d, mask, mean, rstd, w, b, ACT, PTX, SHORT != "positions")
    p = places(DX, to, c, s, sgc, sgs, INNER, VEC)
    if SHORT == "":
        tl.store(p, rstd * (g * w - (c2 + xhat * c1)), eviction_policy=EVICT)
    else:
        tl.store(p, rstd * (g * w - (c2 + xhat * c1)), mask=mask, eviction_policy=EVICT)


@jit
def backward_whole(
    DX, DY, X, W, B, Mean, Rstd, DW, DB, M: tl.int64, G: tl.int32, CG: tl.int32, S: tl.int32, sgb: tl.int64,
    sgc: tl.int64, sgs: tl.int64, sdb: tl.int64, sdc: tl.int64, sds: tl.int64, sxb: tl.int64, sxc: tl.int64,
    sxs: tl.int64, ACT: tl.constexpr, INNER: tl.constexpr, VEC: tl.constexpr, PTX: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """BLOCK_G groups as one block: dx, and the sums of their channels."""
    if PTX:
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64) * BLOCK_G + tl.arange(0, BLOCK_G)
    cols = tl.arange(0, BLOCK_C)
    c, s = cols[None, :, None], tl.arange(0, BLOCK_S)[None, None, :]
    mask = (row < M)[:, None, None] & within(c, s, CG, S, INNER, VEC)
    sample, first = (row // G)[:, None, None], (row % G * CG)[:, None, None]
    channel, there = (row % G * CG)[:, None] + cols[None, :], (row < M)[:, None] & (cols < CG)[None, :]
    w, b = parameter(W, channel, there, 1.0, "", 1), parameter(B, channel, there, 0.0, "", 1)
    mean = tl.load(Mean + row, mask=row < M, other=0.0)[:, None, None]
    rstd = tl.load(Rstd + row, mask=row < M, other=0.0)[:, None, None]
    x = tl.load(places(X, sample * sxb + first * sxc, c, s, sxc, sxs, INNER, VEC), mask=mask, other=0.0)
    d = tl.load(places(DY, sample * sdb + first * sdc, c, s, sdc, sds, INNER, VEC), mask=mask, other=0.0)
    xhat, g = normal(x, d, mask, mean, rstd, w[:, :, None], b[:, :, None], ACT, PTX, False)
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
        tl.store(places(DX, sample * sgb + first * sgc, c, s, sgc, sgs, INNER, VEC), dx, mask=mask)


@jit
def backward_held(
    DX, DY, X, W, B, Mean, Rstd, DW, DB, G: tl.int32, CG: tl.int32, S: tl.int32, sgb: tl.int64, sgc: tl.int64,
    sgs: tl.int64, sdb: tl.int64, sdc: tl.int64, sds: tl.int64, sxb: tl.int64, sxc: tl.int64, sxs: tl.int64,
    ACT: tl.constexpr, INNER: tl.constexpr, VEC: tl.constexpr, PTX: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr, WIDE: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """One group, as WIDE·BLOCKS blocks of (channels, positions) of x and dy, kept in their own type until dx."""
    FAST: tl.constexpr = PTX and VEC > 1
    if PTX:
        gdc_launch_dependents()
    group = tl.program_id(0)
    sample, first = (group // G).to(tl.int64), group % G * CG
    cols, along, N = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_S), (CG * S).to(tl.float32)
    from_x, from_d = sample * sxb + first.to(tl.int64) * sxc, sample * sdb + first.to(tl.int64) * sdc
    to = sample * sgb + first.to(tl.int64) * sgc
    mean, rstd = tl.load(Mean + group), tl.load(Rstd + group)
    xs = ()
    ds = ()
    for i in tl.static_range(WIDE * BLOCKS):
        c, s = (i // BLOCKS * BLOCK_C + cols)[:, None], (i % BLOCKS * BLOCK_S + along)[None, :]
        xs += (block(X, from_x, c, s, sxc, sxs, CG, S, INNER, VEC, EVEN, ""),)
        ds += (block(DY, from_d, c, s, sdc, sds, CG, S, INNER, VEC, EVEN, ""),)
    c1 = tl.full([], 0.0, tl.float32)
    c2 = tl.full([], 0.0, tl.float32)
    for i in tl.static_range(WIDE):
        channel = i * BLOCK_C + cols
        there = below(channel, CG, INNER, VEC)
        w = parameter(W, first + channel, there, 1.0, INNER, VEC)
        b = parameter(B, first + channel, there, 0.0, INNER, VEC)[:, None]
        dw = tl.zeros([BLOCK_C, BLOCK_S], tl.float32)
        db = tl.zeros([BLOCK_C, BLOCK_S], tl.float32)
        for j in tl.static_range(BLOCKS):
            mask = within(channel[:, None], (j * BLOCK_S + along)[None, :], CG, S, INNER, VEC)
            x, d = wide(xs[i * BLOCKS + j], FAST), wide(ds[i * BLOCKS + j], FAST)
            xhat, g = normal(x, d, mask, mean, rstd, w[:, None], b, ACT, PTX, EVEN)
            dw += g * xhat
            db += g
        dw = tl.sum(dw, axis=1)
        db = tl.sum(db, axis=1)
        c1 += tl.sum(w * dw)
        c2 += tl.sum(w * db)
        at = group.to(tl.int64) * CG + channel
        if DW is not None:
            tl.store(DW + at, dw, mask=there)
        if DB is not None:
            tl.store(DB + at, db, mask=there)
    c1, c2 = tl.div_rn(c1, N), tl.div_rn(c2, N)
    if DX is not None:
        for i in tl.static_range(WIDE * BLOCKS):
            channel, s = i // BLOCKS * BLOCK_C + cols, (i % BLOCKS * BLOCK_S + along)[None, :]
            there = below(channel, CG, INNER, VEC)
            w = parameter(W, first + channel, there, 1.0, INNER, VEC)[:, None]
            b = parameter(B, first + channel, there, 0.0, INNER, VEC)[:, None]
            store_dx(
                DX, to, channel[:, None], s, sgc, sgs, CG, S, anew(xs[i], FAST), anew(ds[i], FAST), mean, rstd, w, b,
                c1, c2, ACT, INNER, VEC, PTX, "" if EVEN else "positions", "",
            )  # fmt: skip


@jit
def over_samples(
    DW, DB, OutW, OutB, M: tl.int32, C: tl.int32, PTX: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr
):
    """The sums of BLOCK_C channels over all samples. Launched before they are all written."""
    if PTX:
        gdc_wait()
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
