"""GroupNorm's backward of groups that registers hold: x and dy are read once. The formulas are in `backward`."""

# A tuple grows while it is compiled:
# mypy: disable-error-code="assignment, misc"

import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from verify_norm.kernels.activation import slope
from verify_norm.kernels.groups.tiles import below, block, origin, own, places, saved, within
from verify_norm.kernels.launch import jit
from verify_norm.kernels.widening import anew, wide


@jit
def normal(x, dy, mask, known, K: tl.constexpr, EVEN: tl.constexpr):
    """Return x̂ and g of a tile: 0 where no element is, for (0 − mean)·rstd may overflow there, and meet a 0.

    `known` has mean, rstd, weight and bias, in shapes that broadcast to the tile's.
    """
    ACT: tl.constexpr = K.ACT
    mean, rstd, w, b = known
    g = dy.to(tl.float32)
    xhat = (x.to(tl.float32) - mean) * rstd
    if not EVEN:
        xhat = tl.where(mask, xhat, 0.0)
    if K.ACT is not None:
        g *= slope(xhat * w + b, ACT, K.PTX)
    return xhat, g


@jit
def store_dx(DX, to, c, s, sg, live, S, x, d, known, means, K: tl.constexpr):
    """Store the gradient of a block, from x, dy and the means c1 and c2. K is a `Held` or a `BackwardTurn`.

    Without `means` mean and rstd are constants, and x does not matter.
    """
    EVICT: tl.constexpr = K.EVICT
    mask = within(c, s, live, S, K)
    xhat, g = normal(x, d, mask, known, K, K.SHORT != "positions")
    _, rstd, w, _ = known
    g *= w
    if means is not None:
        c1, c2 = means
        g -= c2 + xhat * c1
    p = places(DX, to, c, s, sg, K)
    if K.SHORT == "":
        tl.store(p, rstd * g, eviction_policy=EVICT)
    else:
        tl.store(p, rstd * g, mask=mask, eviction_policy=EVICT)


@jit(int64="M sgb sgc sgs sdb sdc sds sxb sxc sxs", int32="G CG S")
def backward_whole(
    DX, DY, X, W, B, Mean, Rstd, DW, DB, M, G, CG, S, sgb, sgc, sgs, sdb, sdc, sds, sxb, sxc, sxs, eps, K: tl.constexpr
):
    """Store dx of BLOCK_G groups as one block, and the sums of their channels, or with OWN of groups. K is a `Whole`.

    With an eps, Mean and Rstd are running statistics: their mean and variance, which are constants to the gradient.
    """
    if K.PTX:
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64) * K.BLOCK_G + tl.arange(0, K.BLOCK_G)
    cols = tl.arange(0, K.BLOCK_C)
    c, s = cols[None, :, None], tl.arange(0, K.BLOCK_S)[None, None, :]
    mask = (row < M)[:, None, None] & within(c, s, CG, S, K)
    sample, first = (row // G)[:, None, None], (row % G * CG)[:, None, None]
    channel, there = (row % G * CG)[:, None] + cols[None, :], (row < M)[:, None] & (cols < CG)[None, :]
    w, b = own(W, row[:, None], channel, there, 1.0, K), own(B, row[:, None], channel, there, 0.0, K)
    mean, rstd = saved(Mean, Rstd, row, row < M, eps)
    mean = mean[:, None, None]
    rstd = rstd[:, None, None]
    x = tl.load(places(X, sample * sxb + first * sxc, c, s, (sxb, sxc, sxs), K), mask=mask, other=0.0)
    d = tl.load(places(DY, sample * sdb + first * sdc, c, s, (sdb, sdc, sds), K), mask=mask, other=0.0)
    xhat, g = normal(x, d, mask, (mean, rstd, w[:, :, None], b[:, :, None]), K, False)
    dw, db = tl.sum(g * xhat, axis=2), tl.sum(g, axis=2)
    at = row[:, None] * CG + cols[None, :]
    if DW is not None and K.OWN:
        tl.store(DW + row, tl.sum(dw, axis=1), mask=row < M)
    elif DW is not None:
        tl.store(DW + at, dw, mask=there)
    if DB is not None and K.OWN:
        tl.store(DB + row, tl.sum(db, axis=1), mask=row < M)
    elif DB is not None:
        tl.store(DB + at, db, mask=there)
    if DX is not None:
        g *= w[:, :, None]
        if eps is None:
            N = (CG * S).to(tl.float32)
            c1 = tl.div_rn(tl.sum(w * dw, axis=1), N)[:, None, None]
            c2 = tl.div_rn(tl.sum(w * db, axis=1), N)[:, None, None]
            g -= c2 + xhat * c1
        tl.store(places(DX, sample * sgb + first * sgc, c, s, (sgb, sgc, sgs), K), rstd * g, mask=mask)


@jit(int64="sgb sgc sgs sdb sdc sds sxb sxc sxs", int32="G CG S")
def backward_held(
    DX, DY, X, W, B, Mean, Rstd, DW, DB, G, CG, S, sgb, sgc, sgs, sdb, sdc, sds, sxb, sxc, sxs, eps, K: tl.constexpr
):
    """Store dx and the sums of one group, as WIDE·BLOCKS blocks of x and dy, kept in their own type. K is a `Held`.

    `eps` is that of `backward_whole`.
    """
    EVEN: tl.constexpr = K.EVEN
    BLOCK_C: tl.constexpr = K.BLOCK_C
    BLOCK_S: tl.constexpr = K.BLOCK_S
    WIDE: tl.constexpr = K.WIDE
    BLOCKS: tl.constexpr = K.BLOCKS
    FAST: tl.constexpr = K.PTX and K.VEC > 1
    sg, sd, sx = (sgb, sgc, sgs), (sdb, sdc, sds), (sxb, sxc, sxs)
    if K.PTX:
        gdc_launch_dependents()
    group = tl.program_id(0)
    sample, first = (group // G).to(tl.int64), group % G * CG
    cols, along, N = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_S), (CG * S).to(tl.float32)
    from_x, from_d, to = origin(sample, first, sx), origin(sample, first, sd), origin(sample, first, sg)
    mean, rstd = saved(Mean, Rstd, group, group >= 0, eps)
    xs = ()
    ds = ()
    for i in tl.static_range(WIDE * BLOCKS):
        c, s = (i // BLOCKS * BLOCK_C + cols)[:, None], (i % BLOCKS * BLOCK_S + along)[None, :]
        xs += (block(X, from_x, c, s, sx, CG, S, EVEN, "", K),)
        ds += (block(DY, from_d, c, s, sd, CG, S, EVEN, "", K),)
    c1 = tl.full([], 0.0, tl.float32)
    c2 = tl.full([], 0.0, tl.float32)
    all_dw = tl.full([], 0.0, tl.float32)
    all_db = tl.full([], 0.0, tl.float32)
    for i in tl.static_range(WIDE):
        channel = i * BLOCK_C + cols
        there = below(channel, CG, K)
        w = own(W, group, first + channel, there, 1.0, K)
        b = own(B, group, first + channel, there, 0.0, K)[:, None]
        dw = tl.zeros([BLOCK_C, BLOCK_S], tl.float32)
        db = tl.zeros([BLOCK_C, BLOCK_S], tl.float32)
        for j in tl.static_range(BLOCKS):
            mask = within(channel[:, None], (j * BLOCK_S + along)[None, :], CG, S, K)
            x, d = wide(xs[i * BLOCKS + j], FAST), wide(ds[i * BLOCKS + j], FAST)
            xhat, g = normal(x, d, mask, (mean, rstd, w[:, None], b), K, EVEN)
            dw += g * xhat
            db += g
        dw = tl.sum(dw, axis=1)
        db = tl.sum(db, axis=1)
        c1 += tl.sum(w * dw)
        c2 += tl.sum(w * db)
        at = group.to(tl.int64) * CG + channel
        if K.OWN:
            all_dw += tl.sum(dw)
            all_db += tl.sum(db)
        if DW is not None and not K.OWN:
            tl.store(DW + at, dw, mask=there)
        if DB is not None and not K.OWN:
            tl.store(DB + at, db, mask=there)
    if DW is not None and K.OWN:
        tl.store(DW + group, all_dw)
    if DB is not None and K.OWN:
        tl.store(DB + group, all_db)
    means = None
    if eps is None:
        means = (tl.div_rn(c1, N), tl.div_rn(c2, N))
    if DX is not None:
        for i in tl.static_range(WIDE * BLOCKS):
            channel, s = i // BLOCKS * BLOCK_C + cols, (i % BLOCKS * BLOCK_S + along)[None, :]
            there = below(channel, CG, K)
            w = own(W, group, first + channel, there, 1.0, K)[:, None]
            b = own(B, group, first + channel, there, 0.0, K)[:, None]
            x, d = anew(xs[i], FAST), anew(ds[i], FAST)
            store_dx(DX, to, channel[:, None], s, sg, CG, S, x, d, (mean, rstd, w, b), means, K)


@jit(int32="M C")
def over_samples(DW, DB, OutW, OutB, M, C, K: tl.constexpr):
    """Store the sums of BLOCK_C channels over all samples. It starts before they are all written."""
    BLOCK_M: tl.constexpr = K.BLOCK_M
    BLOCK_C: tl.constexpr = K.BLOCK_C
    if K.PTX:
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
