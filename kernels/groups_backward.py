"""GroupNorm's backward of groups that many programs share: the units, members and chain of launches of `groups`.

With x̂ = (x − mean)·rstd, z = w·x̂ + b and g = dy·act'(z), a channel's sums Σ g·x̂ and Σ g serve all three gradients:
over samples they are dweight and dbias, and weighted over a group they are N·c1 and N·c2 of
dx = rstd·(w·g − c2 − x̂·c1).
"""

# A tuple grows while it is compiled:
# mypy: disable-error-code="assignment, misc"

import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from verify_norm.kernels.group_held_backward import normal, store_dx
from verify_norm.kernels.group_tiles import (
    below,
    block,
    lines,
    of_member,
    of_results,
    parameter,
    parts,
    role,
    unit_of,
    within,
)
from verify_norm.kernels.launch import jit


@jit
def known(Mean, Rstd, W, B, group, channel, there, INNER: tl.constexpr, VEC: tl.constexpr):
    """The statistics and parameters of these channels, for every position."""
    mean = tl.load(Mean + group, mask=there, other=0.0)[:, None]
    rstd = tl.load(Rstd + group, mask=there, other=0.0)[:, None]
    w = parameter(W, channel, there, 1.0, INNER, VEC)[:, None]
    return mean, rstd, w, parameter(B, channel, there, 0.0, INNER, VEC)[:, None]


@jit
def member(
    X, DY, W, B, Mean, Rstd, P, number, plane, C, G, CG, UC, S, members, sdb, sdc, sds, sxb, sxc, sxs,
    ACT: tl.constexpr, INNER: tl.constexpr, VEC: tl.constexpr, PTX: tl.constexpr, SHORT: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Σ g·x̂ of each of its channels over its blocks into P, Σ g `plane` later."""
    unit, sample, first, live, rank, mine, stride, cols = of_member(number, members, C, UC, BLOCK_C)
    c, channel, there = cols[:, None], first + cols, below(cols, live, INNER, VEC)
    mean, rstd, w, b = known(Mean, Rstd, W, B, sample * G + channel // CG, channel, there, INNER, VEC)
    from_x, from_d = sample * sxb + first.to(tl.int64) * sxc, sample * sdb + first.to(tl.int64) * sdc
    along = tl.zeros([BLOCK_C, BLOCK_S], tl.float32)
    total = tl.zeros([BLOCK_C, BLOCK_S], tl.float32)
    for step in tl.range(0, tl.cdiv(tl.cdiv(S, BLOCK_S) - mine, stride), num_stages=STAGES):
        s = ((mine + step * stride) * BLOCK_S + tl.arange(0, BLOCK_S))[None, :]
        mask = within(c, s, live, S, INNER, VEC)
        x = block(X, from_x, c, s, sxc, sxs, live, S, INNER, VEC, SHORT == "", "")
        d = block(DY, from_d, c, s, sdc, sds, live, S, INNER, VEC, SHORT == "", "")
        xhat, g = normal(x, d, mask, mean, rstd, w, b, ACT, PTX, SHORT != "positions")
        along += g * xhat
        total += g
    at = (members * BLOCK_C).to(tl.int64) * unit + rank * BLOCK_C + tl.arange(0, BLOCK_C)
    along = tl.sum(along, axis=1)
    total = tl.sum(total, axis=1)
    tl.store(P + at, along)
    tl.store(P + plane + at, total)


@jit
def backward_sums(
    X, DY, W, B, Mean, Rstd, P, plane: tl.int64, C: tl.int32, G: tl.int32, CG: tl.int32, UC: tl.int32, S: tl.int32,
    members: tl.int32, sdb: tl.int64, sdc: tl.int64, sds: tl.int64, sxb: tl.int64, sxc: tl.int64, sxs: tl.int64,
    ACT: tl.constexpr, INNER: tl.constexpr, VEC: tl.constexpr, PTX: tl.constexpr, SHORT: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The first launch of a chain: the sums of the first units' members."""
    if PTX:
        gdc_launch_dependents()
    member(
        X, DY, W, B, Mean, Rstd, P, tl.program_id(0), plane, C, G, CG, UC, S, members, sdb, sdc, sds, sxb, sxc, sxs,
        ACT, INNER, VEC, PTX, SHORT, BLOCK_C, BLOCK_S, STAGES,
    )  # fmt: skip


@jit
def means(
    P, W, plane, unit, number, C, CG, UC, S, members, RANKS: tl.constexpr, COLS: tl.constexpr, BLOCK_C: tl.constexpr
):
    """c1 and c2 of one group of a unit."""
    _, first, live = unit_of(unit, C, UC)
    low, high = number * CG, tl.minimum(number * CG + CG, live)
    count, wide, line = lines(members, CG, UC, BLOCK_C)
    start, N = P + (members * BLOCK_C).to(tl.int64) * unit, (CG.to(tl.int64) * S).to(tl.float32)
    along = tl.zeros([RANKS, COLS], tl.float32)
    total = tl.zeros([RANKS, COLS], tl.float32)
    for rank in range(0, count, RANKS):
        channel, at, there = parts(rank, low, high, count, wide, line, RANKS, COLS)
        w = parameter(W, first + channel, there, 1.0, "", 1)
        along += w * tl.load(start + at, mask=there, other=0.0, cache_modifier=".cg")
        total += w * tl.load(start + plane + at, mask=there, other=0.0, cache_modifier=".cg")
    return tl.div_rn(tl.sum(along), N), tl.div_rn(tl.sum(total), N)


@jit
def backward_merge(
    P, W, C1, C2, plane: tl.int64, C: tl.int32, G: tl.int32, CG: tl.int32, UC: tl.int32, S: tl.int32,
    members: tl.int32, PTX: tl.constexpr, RANKS: tl.constexpr, COLS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """A group's c1 and c2, where not every program of the results merges them for itself."""
    if PTX:
        gdc_launch_dependents()
        gdc_wait()
    unit, number = tl.program_id(0) // (UC // CG), tl.program_id(0) % (UC // CG)
    c1, c2 = means(P, W, plane, unit, number, C, CG, UC, S, members, RANKS, COLS, BLOCK_C)
    sample, first, live = unit_of(unit, C, UC)
    tl.store(C1 + sample * G + first // CG + number, c1, mask=number * CG < live)
    tl.store(C2 + sample * G + first // CG + number, c2, mask=number * CG < live)


@jit
def results(
    DX, DY, X, W, B, Mean, Rstd, C1, C2, P, number, begin, plane, C, G, CG, UC, S, members, sgb, sgc, sgs, sdb, sdc,
    sds, sxb, sxc, sxs, ACT: tl.constexpr, INNER: tl.constexpr, VEC: tl.constexpr, PTX: tl.constexpr,
    SHORT: tl.constexpr, STREAM: tl.constexpr, RANKS: tl.constexpr, COLS: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_S: tl.constexpr, STAGES: tl.constexpr, COMPUTED: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """So many blocks of one unit, which are loaded before what they wait for, or one by one if there are many more.

    RANKS is 0 if the unit's sums are merged already.
    """
    unit, sample, first, live, _, cols, along = of_results(number, begin, C, UC, S, BLOCK_C, BLOCK_S, COMPUTED)
    c, channel, there = cols[:, None], first + cols, below(cols, live, INNER, VEC)
    from_x, from_d = sample * sxb + first.to(tl.int64) * sxc, sample * sdb + first.to(tl.int64) * sdc
    to = sample * sgb + first.to(tl.int64) * sgc
    xs = ()
    ds = ()
    if not STREAM:
        for i in tl.static_range(COMPUTED):
            s = (along + i * BLOCK_S + tl.arange(0, BLOCK_S))[None, :]
            xs += (block(X, from_x, c, s, sxc, sxs, live, S, INNER, VEC, SHORT == "", EVICT),)
            ds += (block(DY, from_d, c, s, sdc, sds, live, S, INNER, VEC, SHORT == "", EVICT),)
    group = sample * G + channel // CG
    mean, rstd, w, b = known(Mean, Rstd, W, B, group, channel, there, INNER, VEC)
    if PTX:
        gdc_wait()
    if RANKS > 0:
        c1, c2 = means(P, W, plane, unit, 0, C, CG, UC, S, members, RANKS, COLS, BLOCK_C)
    else:
        c1 = tl.load(C1 + group, mask=there, other=0.0)[:, None]
        c2 = tl.load(C2 + group, mask=there, other=0.0)[:, None]
    if STREAM:
        for i in tl.range(0, COMPUTED, num_stages=STAGES):
            s = (along + (COMPUTED - 1 - i) * BLOCK_S + tl.arange(0, BLOCK_S))[None, :]
            x = block(X, from_x, c, s, sxc, sxs, live, S, INNER, VEC, SHORT == "", EVICT)
            d = block(DY, from_d, c, s, sdc, sds, live, S, INNER, VEC, SHORT == "", EVICT)
            store_dx(
                DX, to, c, s, sgc, sgs, live, S, x, d, mean, rstd, w, b, c1, c2, ACT, INNER, VEC, PTX, SHORT, EVICT
            )  # fmt: skip
    else:
        for i in tl.static_range(COMPUTED):
            s = (along + i * BLOCK_S + tl.arange(0, BLOCK_S))[None, :]
            store_dx(
                DX, to, c, s, sgc, sgs, live, S, xs[i], ds[i], mean, rstd, w, b, c1, c2, ACT, INNER, VEC, PTX, SHORT,
                EVICT,
            )  # fmt: skip


@jit
def backward_turn(
    DX, DY, X, W, B, Mean, Rstd, C1, C2, P, summing: tl.int32, summed: tl.int32, begin: tl.int32,
    plane: tl.int64, C: tl.int32, G: tl.int32, CG: tl.int32, UC: tl.int32, S: tl.int32, members: tl.int32,
    sgb: tl.int64, sgc: tl.int64, sgs: tl.int64, sdb: tl.int64, sdc: tl.int64, sds: tl.int64, sxb: tl.int64,
    sxc: tl.int64, sxs: tl.int64, ACT: tl.constexpr, INNER: tl.constexpr, VEC: tl.constexpr, PTX: tl.constexpr,
    SHORT: tl.constexpr, STREAM: tl.constexpr, RANKS: tl.constexpr, COLS: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_S: tl.constexpr, STAGES: tl.constexpr, COMPUTED: tl.constexpr, EVICT: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """Sums of so many members from `summing` on, and results of units from `begin` on."""
    if PTX:
        gdc_launch_dependents()
    sums, number = role(summed, SUMS)
    if sums:
        member(
            X, DY, W, B, Mean, Rstd, P, summing + number, plane, C, G, CG, UC, S, members, sdb, sdc, sds, sxb, sxc,
            sxs, ACT, INNER, VEC, PTX, SHORT, BLOCK_C, BLOCK_S, STAGES,
        )  # fmt: skip
    else:
        results(
            DX, DY, X, W, B, Mean, Rstd, C1, C2, P, number, begin, plane, C, G, CG, UC, S, members, sgb, sgc, sgs,
            sdb, sdc, sds, sxb, sxc, sxs, ACT, INNER, VEC, PTX, SHORT, STREAM, RANKS, COLS, BLOCK_C, BLOCK_S, STAGES,
            COMPUTED, EVICT,
        )  # fmt: skip


@jit
def over_members(
    P, DW, DB, plane: tl.int64, samples: tl.int32, C: tl.int32, UC: tl.int32, members: tl.int32, PTX: tl.constexpr,
    LINES: tl.constexpr, CHANNELS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Sums of all samples' members, in one order: dweight and dbias of so many channels of a unit's tile."""
    if PTX:
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
