"""GroupNorm's backward of groups that many programs share: the units, members and chain of launches of `forward`.

With x̂ = (x − mean)·rstd, z = w·x̂ + b and g = dy·act'(z), a channel's sums Σ g·x̂ and Σ g serve all three gradients:
over samples they are dweight and dbias, and weighted over a group they are N·c1 and N·c2 of
dx = rstd·(w·g − c2 − x̂·c1).
"""

# A tuple grows while it is compiled:
# mypy: disable-error-code="assignment, misc"

import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from verify_norm.kernels.groups.held_backward import normal, store_dx
from verify_norm.kernels.groups.tiles import (
    below,
    block,
    lines,
    of_member,
    of_results,
    origin,
    over,
    own,
    parts,
    role,
    saved,
    several,
    unit_of,
    within,
)
from verify_norm.kernels.launch import jit


@jit
def loaded(Mean, Rstd, W, B, sample, G, CG, channel, there, eps, K: tl.constexpr):
    """Return mean, rstd, weight and bias of these channels of a sample, for every position."""
    group = sample * G + channel // CG
    mean, rstd = saved(Mean, Rstd, group, there, eps)
    w = own(W, group, channel, there, 1.0, K)[:, None]
    return mean[:, None], rstd[:, None], w, own(B, group, channel, there, 0.0, K)[:, None]


@jit
def member(DX, X, DY, W, B, Mean, Rstd, P, number, plane, size, strides, eps, K: tl.constexpr):
    """Store Σ g·x̂ of each of the member's channels over its blocks in P, Σ g `plane` later. K is a `BackwardSums`.

    `size` has C, G, channels of a group, channels of a unit, S, and members of a unit; `strides` are those of DX, DY
    and X. With an eps, Mean and Rstd are running statistics, and DX is stored here if given.
    """
    SHORT: tl.constexpr = K.SHORT
    BLOCK_C: tl.constexpr = K.BLOCK_C
    BLOCK_S: tl.constexpr = K.BLOCK_S
    STAGES: tl.constexpr = K.STAGES
    C, G, CG, UC, S, members = size
    sg, sd, sx = strides
    unit, sample, first, live, rank, mine, stride, cols = of_member(number, members, C, UC, BLOCK_C)
    c, channel, there = cols[:, None], first + cols, below(cols, live, K)
    known = loaded(Mean, Rstd, W, B, sample, G, CG, channel, there, eps, K)
    from_x, from_d = origin(sample, first, sx), origin(sample, first, sd)
    along = tl.zeros([BLOCK_C, BLOCK_S], tl.float32)
    total = tl.zeros([BLOCK_C, BLOCK_S], tl.float32)
    for step in tl.range(0, tl.cdiv(tl.cdiv(S, BLOCK_S) - mine, stride), num_stages=STAGES):
        s = ((mine + step * stride) * BLOCK_S + tl.arange(0, BLOCK_S))[None, :]
        mask = within(c, s, live, S, K)
        x = block(X, from_x, c, s, sx, live, S, SHORT == "", "", K)
        d = block(DY, from_d, c, s, sd, live, S, SHORT == "", "", K)
        xhat, g = normal(x, d, mask, known, K, SHORT != "positions")
        along += g * xhat
        total += g
        if eps is not None and DX is not None:
            store_dx(DX, origin(sample, first, sg), c, s, sg, live, S, x, d, known, None, K)
    at = (members * BLOCK_C).to(tl.int64) * unit + rank * BLOCK_C + tl.arange(0, BLOCK_C)
    along = tl.sum(along, axis=1)
    total = tl.sum(total, axis=1)
    tl.store(P + at, along)
    tl.store(P + plane + at, total)


@jit(int64="plane sgb sgc sgs sdb sdc sds sxb sxc sxs", int32="C G CG UC S members")
def backward_sums(
    DX,
    X,
    DY,
    W,
    B,
    Mean,
    Rstd,
    P,
    plane,
    C,
    G,
    CG,
    UC,
    S,
    members,
    sgb,
    sgc,
    sgs,
    sdb,
    sdc,
    sds,
    sxb,
    sxc,
    sxs,
    eps,
    K: tl.constexpr,
):
    """Store the sums of the first units' members: the first launch of a chain. K is a `BackwardSums`."""
    if K.PTX:
        gdc_launch_dependents()
    size, strides = (C, G, CG, UC, S, members), ((sgb, sgc, sgs), (sdb, sdc, sds), (sxb, sxc, sxs))
    member(DX, X, DY, W, B, Mean, Rstd, P, tl.program_id(0), plane, size, strides, eps, K)


@jit
def totals(P, W, DW, DB, plane, saves, unit, number, size, K: tl.constexpr):
    """Return Σ w·g·x̂ and Σ w·g of groups of a unit, where they lie among all groups, and which exist.

    With OWN, Σ g·x̂ and Σ g are dweight and dbias, and stored if they `saves`. `size` is that of `member`.
    """
    RANKS: tl.constexpr = K.RANKS
    MANY: tl.constexpr = K.MANY
    COLS: tl.constexpr = K.COLS
    C, G, CG, UC, _, members = size
    sample, first, live = unit_of(unit, C, UC)
    low, high = number * CG, tl.minimum(number * CG + CG, tl.minimum(live, UC))
    group, exists = sample * G + first // CG + number, low < high
    count, wide, line = lines(members, CG, UC, K.BLOCK_C)
    sums = P + (members * K.BLOCK_C).to(tl.int64) * unit
    along = tl.zeros([RANKS, MANY, COLS], tl.float32)
    total = tl.zeros([RANKS, MANY, COLS], tl.float32)
    for rank in range(0, count, RANKS):
        channel, at, there = parts(rank, low, high, count, wide, line, K)
        w = 1.0
        if not K.OWN:
            w = own(W, group, first + channel, there, 1.0, K)
        along += w * tl.load(sums + at, mask=there, other=0.0, cache_modifier=".cg")
        total += w * tl.load(sums + plane + at, mask=there, other=0.0, cache_modifier=".cg")
    along = over(along)
    total = over(total)
    if K.OWN:
        if DW is not None:
            tl.store(DW + group, along, mask=saves & exists)
        if DB is not None:
            tl.store(DB + group, total, mask=saves & exists)
        w = own(W, group, group, exists, 1.0, K)
        along *= w
        total *= w
    return along, total, group, exists


@jit(int64="plane", int32="C G CG UC S members")
def backward_merge(P, W, C1, C2, DW, DB, plane, C, G, CG, UC, S, members, K: tl.constexpr):
    """Store c1 and c2 of MANY groups, where not every program of the results merges its own. K is a `BackwardMerge`.

    With OWN, dweight and dbias too; without C1 these alone.
    """
    if K.PTX:
        gdc_launch_dependents()
        gdc_wait()
    unit, number = several(tl.program_id(0), CG, UC, K.MANY)
    size = (C, G, CG, UC, S, members)
    along, total, group, exists = totals(P, W, DW, DB, plane, number >= 0, unit, number, size, K)
    if C1 is not None:
        N = (CG.to(tl.int64) * S).to(tl.float32)
        tl.store(C1 + group, tl.div_rn(along, N), mask=exists)
        tl.store(C2 + group, tl.div_rn(total, N), mask=exists)


@jit
def results(DX, DY, X, W, B, Mean, Rstd, C1, C2, DW, DB, P, number, begin, plane, size, strides, K: tl.constexpr):
    """Store dx of COMPUTED blocks of one unit, and what `totals` stores. K is a `BackwardTurn`.

    The blocks are loaded before the wait for c1 and c2, or one by one with STREAM. `size` is that of `member`, and
    `strides` are those of DX, DY and X.
    """
    SHORT: tl.constexpr = K.SHORT
    BLOCK_S: tl.constexpr = K.BLOCK_S
    COMPUTED: tl.constexpr = K.COMPUTED
    EVICT: tl.constexpr = K.EVICT
    STAGES: tl.constexpr = K.STAGES
    C, G, CG, UC, S, _ = size
    sg, sd, sx = strides
    unit, sample, first, live, turn, cols, along = of_results(number, begin, C, UC, S, K)
    c, channel, there = cols[:, None], first + cols, below(cols, live, K)
    from_x, from_d, to = origin(sample, first, sx), origin(sample, first, sd), origin(sample, first, sg)
    xs = ()
    ds = ()
    if not K.STREAM:
        for i in tl.static_range(COMPUTED):
            s = (along + i * BLOCK_S + tl.arange(0, BLOCK_S))[None, :]
            xs += (block(X, from_x, c, s, sx, live, S, SHORT == "", EVICT, K),)
            ds += (block(DY, from_d, c, s, sd, live, S, SHORT == "", EVICT, K),)
    group = sample * G + channel // CG
    known = loaded(Mean, Rstd, W, B, sample, G, CG, channel, there, None, K)
    if K.PTX:
        gdc_wait()
    if K.RANKS > 0:
        alone, N = tl.zeros([1], tl.int32), (CG.to(tl.int64) * S).to(tl.float32)
        c1, c2, _, _ = totals(P, W, DW, DB, plane, turn == 0, unit, alone, size, K)
        c1 = tl.div_rn(c1, N)[:, None]
        c2 = tl.div_rn(c2, N)[:, None]
    else:
        c1 = tl.load(C1 + group, mask=there, other=0.0)[:, None]
        c2 = tl.load(C2 + group, mask=there, other=0.0)[:, None]
    if K.STREAM:
        for i in tl.range(0, COMPUTED, num_stages=STAGES):
            s = (along + (COMPUTED - 1 - i) * BLOCK_S + tl.arange(0, BLOCK_S))[None, :]
            x = block(X, from_x, c, s, sx, live, S, SHORT == "", EVICT, K)
            d = block(DY, from_d, c, s, sd, live, S, SHORT == "", EVICT, K)
            store_dx(DX, to, c, s, sg, live, S, x, d, known, (c1, c2), K)
    else:
        for i in tl.static_range(COMPUTED):
            s = (along + i * BLOCK_S + tl.arange(0, BLOCK_S))[None, :]
            store_dx(DX, to, c, s, sg, live, S, xs[i], ds[i], known, (c1, c2), K)


@jit(int64="plane sgb sgc sgs sdb sdc sds sxb sxc sxs", int32="summing summed begin C G CG UC S members")
def backward_turn(
    DX,
    DY,
    X,
    W,
    B,
    Mean,
    Rstd,
    C1,
    C2,
    DW,
    DB,
    P,
    summing,
    summed,
    begin,
    plane,
    C,
    G,
    CG,
    UC,
    S,
    members,
    sgb,
    sgc,
    sgs,
    sdb,
    sdc,
    sds,
    sxb,
    sxc,
    sxs,
    K: tl.constexpr,
):
    """Store sums of so many members from `summing` on, and results of units from `begin` on. K is a `BackwardTurn`."""
    if K.PTX:
        gdc_launch_dependents()
    size = (C, G, CG, UC, S, members)
    strides = ((sgb, sgc, sgs), (sdb, sdc, sds), (sxb, sxc, sxs))
    sums, number = role(summed, K.SUMS)
    if sums:
        member(None, X, DY, W, B, Mean, Rstd, P, summing + number, plane, size, strides, None, K)
    else:
        results(DX, DY, X, W, B, Mean, Rstd, C1, C2, DW, DB, P, number, begin, plane, size, strides, K)


@jit(int64="plane", int32="samples C UC members")
def over_members(P, DW, DB, plane, samples, C, UC, members, K: tl.constexpr):
    """Store dweight and dbias of CHANNELS channels of a unit's tile: sums of all samples' members, in a fixed order.

    K is an `OverMembers`.
    """
    LINES: tl.constexpr = K.LINES
    CHANNELS: tl.constexpr = K.CHANNELS
    BLOCK_C: tl.constexpr = K.BLOCK_C
    if K.PTX:
        gdc_wait()
    wide, per, pieces = tl.cdiv(UC, BLOCK_C), tl.cdiv(C, UC), BLOCK_C // CHANNELS
    tile, each = tl.program_id(0) // pieces, members // wide
    number, tile = tile // wide, tile % wide
    cols = tl.program_id(0) % pieces * CHANNELS + tl.arange(0, CHANNELS)
    dw = tl.zeros([LINES, CHANNELS], tl.float32)
    db = tl.zeros([LINES, CHANNELS], tl.float32)
    for start in range(0, samples * each, LINES):
        line = start + tl.arange(0, LINES)[:, None]
        unit, rank = (line // each * per + number).to(tl.int64), line % each * wide + tile
        at, mask = (unit * members + rank) * BLOCK_C + cols[None, :], line < samples * each
        dw += tl.load(P + at, mask=mask, other=0.0, cache_modifier=".cg")
        db += tl.load(P + plane + at, mask=mask, other=0.0, cache_modifier=".cg")
    channel = tile * BLOCK_C + cols  # of the unit
    mask = (channel < UC) & (number * UC + channel < C)
    if DW is not None:
        tl.store(DW + number * UC + channel, tl.sum(dw, axis=0), mask=mask)
    if DB is not None:
        tl.store(DB + number * UC + channel, tl.sum(db, axis=0), mask=mask)
