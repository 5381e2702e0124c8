"""GroupNorm's forward loops: groups that a program holds in registers, and groups that many programs share.

x (B, C, S) has any strides. A tile is (groups, channels, positions). INNER names the axis whose elements are adjacent
in memory, "channels" in channels_last, "positions" in contiguous tensors, "" if neither is; runs of VEC elements along
it start at multiples of VEC in every tensor, so that loads can be wide.

**Shared groups.** A unit is one group or, where channels are adjacent, as many as make a line of memory. The members of
a unit sum over their blocks of it; then other programs merge all sums and compute block after block, from the last one
to the first, for that is the most likely to be in the L2 cache still. The host launches both for as many units as the
cache holds, then for the next. No program waits for another, and every sum has its own place and is merged in the order
of places, so that the bits depend neither on who was first nor on how many units there are.
"""

from typing import Any

import triton
import triton.language as tl

from verify_norm.kernels.activation import activate
from verify_norm.kernels.launch import jit

TOGETHER = 2048  # sums that every program of the results may merge for itself


def vectors(function: Any) -> Any:
    """`launch.jit`, but the compiler knows which of the data are aligned to 16 bytes: else no load would be wide."""
    constants = {n for n, t in function.__annotations__.items() if t is tl.constexpr}
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    plain = tuple(n for n in names if n not in constants and n not in ("X", "Y", "DX", "DY"))
    return triton.jit(function, do_not_specialize=plain, do_not_specialize_on_alignment=plain)


@jit
def places(base, c, s, sc, ss, INNER: tl.constexpr, VEC: tl.constexpr):
    """Where positions s (1, 1, S) of channels c (1, C, 1) lie, from `base` (G, 1, 1) on."""
    if INNER == "channels":
        at = tl.multiple_of(base + s.to(tl.int64) * ss + c, [1, VEC, 1])
    elif INNER == "positions":
        at = tl.multiple_of(base + c.to(tl.int64) * sc + s, [1, 1, VEC])
    else:
        at = base + c.to(tl.int64) * sc + s.to(tl.int64) * ss
    return at


@jit
def within(c, s, channels, positions, INNER: tl.constexpr, VEC: tl.constexpr):
    """Whether c < channels and s < positions: of adjacent ones there is a multiple of VEC, masked as vectors."""
    if INNER == "channels":
        channels = channels // VEC * VEC
    elif INNER == "positions":
        positions = positions // VEC * VEC
    return (c < channels) & (s < positions)


@jit
def parameter(P, channel, mask, ABSENT: tl.constexpr):
    """The weight or bias of these channels in float32, ABSENT where there is none."""
    value = tl.full(channel.shape, ABSENT, tl.float32)
    if P is not None:
        value = tl.load(P + channel, mask=mask, other=0.0).to(tl.float32)
    return value


@vectors
def forward_whole(
    X, Y, W, B, Mean, Rstd, M, G, CG, S, sxb, sxc, sxs, syb, syc, sys, eps, ACT: tl.constexpr, INNER: tl.constexpr,
    VEC: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """BLOCK_G groups, each in registers from its one load to its one store."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_G + tl.arange(0, BLOCK_G)
    cols = tl.arange(0, BLOCK_C)
    c, s = cols[None, :, None], tl.arange(0, BLOCK_S)[None, None, :]
    mask = (row < M)[:, None, None] & within(c, s, CG, S, INNER, VEC)
    sample, first = (row // G)[:, None, None], (row % G * CG)[:, None, None]
    x = tl.load(X + places(sample * sxb + first * sxc, c, s, sxc, sxs, INNER, VEC), mask=mask, other=0.0).to(tl.float32)
    N = (CG * S).to(tl.float32)
    mean = tl.div_rn(tl.sum(tl.sum(x, axis=2), axis=1), N)
    xc = tl.where(mask, x - mean[:, None, None], 0.0)  # else every lane beyond the group would add mean²
    variance = tl.div_rn(tl.sum(tl.sum(xc * xc, axis=2), axis=1), N)
    rstd = tl.div_rn(1.0, tl.sqrt_rn(variance + eps))
    tl.store(Mean + row, mean, mask=row < M)
    tl.store(Rstd + row, rstd, mask=row < M)
    channel, there = (row % G * CG)[:, None] + cols[None, :], (row < M)[:, None] & (cols < CG)[None, :]
    w, b = parameter(W, channel, there, 1.0)[:, :, None], parameter(B, channel, there, 0.0)[:, :, None]
    y = activate(xc * rstd[:, None, None] * w + b, ACT)
    tl.store(Y + places(sample * syb + first * syc, c, s, syc, sys, INNER, VEC), y, mask=mask)


@jit
def positions(block, stride, blocks, S, BLOCK_S: tl.constexpr):
    """How many positions are in every stride-th block from this one on."""
    short = tl.where((blocks - 1 - block) % stride == 0, blocks * BLOCK_S - S, 0)
    return tl.cdiv(blocks - block, stride) * BLOCK_S - short


@jit
def unit_of(unit, C, UC):
    """A unit's sample, its first channel there, and how many it has: the last of a sample may have fewer."""
    per = tl.cdiv(C, UC)
    first = unit % per * UC
    return (unit // per).to(tl.int64), first, tl.minimum(UC, C - first)


@vectors
def forward_sums(
    X, P, begin, plane, C, UC, S, members, sxb, sxc, sxs, INNER: tl.constexpr, VEC: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A member: the mean of each of its channels over its blocks into P, the sum of squares around it `plane` later."""
    wide, blocks = tl.cdiv(UC, BLOCK_C), tl.cdiv(S, BLOCK_S)
    unit, rank, stride = begin + tl.program_id(0) // members, tl.program_id(0) % members, members // wide
    sample, first, live = unit_of(unit, C, UC)
    cols, mine = rank % wide * BLOCK_C + tl.arange(0, BLOCK_C), rank // wide
    c, base, own = cols[None, :, None], sample * sxb + first.to(tl.int64) * sxc, tl.cdiv(blocks - mine, stride)
    middle = tl.zeros([1, BLOCK_C, BLOCK_S], tl.float32)  # Welford's of every lane
    around = tl.zeros([1, BLOCK_C, BLOCK_S], tl.float32)
    seen = tl.full([], 0.0, tl.float32)
    for step in tl.range(0, own, num_stages=STAGES):
        s = ((mine + step * stride) * BLOCK_S + tl.arange(0, BLOCK_S))[None, None, :]
        mask = within(c, s, live, S, INNER, VEC)
        x = tl.load(X + places(base, c, s, sxc, sxs, INNER, VEC), mask=mask, other=0.0).to(tl.float32)
        seen += 1.0
        delta = tl.where(mask, x - middle, 0.0)  # in the last block some lanes stay as they are
        middle += delta * tl.div_rn(1.0, seen)
        around += delta * (x - middle)
    beyond = (mine + (own - 1) * stride) * BLOCK_S + tl.arange(0, BLOCK_S) >= S
    count = (own - beyond.to(tl.int32)).to(tl.float32)[None, None, :]
    average = tl.div_rn(tl.sum(count * middle, axis=2), positions(mine, stride, blocks, S, BLOCK_S).to(tl.float32))
    off = middle - average[:, :, None]
    at = (members * BLOCK_C).to(tl.int64) * unit + rank * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    tl.store(P + at, average)
    tl.store(P + plane + at, tl.sum(around + count * off * off, axis=2))


@jit
def parts(first, low, high, members, wide, RANKS: tl.constexpr, COLS: tl.constexpr, BLOCK_C: tl.constexpr):
    """Of members from `first` on: their ranks, where their sums of channels low … high − 1 are, and which there are.

    There is one group from `low` on, or it has several channel tiles and is the only one.
    """
    rank, col = first + tl.arange(0, RANKS)[:, None], low + tl.arange(0, COLS)[None, :]
    return rank, rank * BLOCK_C + col, (rank < members) & (rank % wide * BLOCK_C + col < high)


@jit
def statistics(
    P, plane, Mean, Rstd, saves, unit, number, C, G, CG, UC, S, members, eps, RANKS: tl.constexpr, COLS: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Mean and rstd of one group of a unit, of means and sums of squares of its parts (Chan, Golub, LeVeque)."""
    sample, first, live = unit_of(unit, C, UC)
    low, high = number * CG, tl.minimum(number * CG + CG, live)
    wide, blocks, start = tl.cdiv(UC, BLOCK_C), tl.cdiv(S, BLOCK_S), P + (members * BLOCK_C).to(tl.int64) * unit
    stride, N = members // wide, (CG.to(tl.int64) * S).to(tl.float32)
    total = tl.zeros([RANKS, COLS], tl.float32)
    for rank in range(0, members, RANKS):
        ranks, at, there = parts(rank, low, high, members, wide, RANKS, COLS, BLOCK_C)
        count = positions(ranks // wide, stride, blocks, S, BLOCK_S).to(tl.float32)
        total += tl.where(there, count * tl.load(start + at, mask=there, other=0.0), 0.0)
    mean = tl.div_rn(tl.sum(tl.sum(total, axis=1), axis=0), N)
    total = tl.zeros([RANKS, COLS], tl.float32)
    for rank in range(0, members, RANKS):
        ranks, at, there = parts(rank, low, high, members, wide, RANKS, COLS, BLOCK_C)
        count = positions(ranks // wide, stride, blocks, S, BLOCK_S).to(tl.float32)
        off = tl.load(start + at, mask=there, other=0.0) - mean
        total += tl.where(there, tl.load(start + plane + at, mask=there, other=0.0) + count * off * off, 0.0)
    variance = tl.div_rn(tl.sum(tl.sum(total, axis=1), axis=0), N)
    rstd = tl.div_rn(1.0, tl.sqrt_rn(variance + eps))
    tl.store(Mean + sample * G + first // CG + number, mean, mask=saves & (low < live))
    tl.store(Rstd + sample * G + first // CG + number, rstd, mask=saves & (low < live))
    return mean, rstd


@jit
def forward_merge(
    P, Mean, Rstd, begin, plane, C, G, CG, UC, S, members, eps, RANKS: tl.constexpr, COLS: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """A group's statistics, where not every program of the results merges them for itself."""
    unit, number = begin + tl.program_id(0) // (UC // CG), tl.program_id(0) % (UC // CG)
    statistics(
        P, plane, Mean, Rstd, tl.program_id(0) >= 0, unit, number, C, G, CG, UC, S, members, eps, RANKS, COLS, BLOCK_C,
        BLOCK_S,
    )  # fmt: skip


@vectors
def forward_results(
    X, Y, W, B, Mean, Rstd, P, begin, plane, C, G, CG, UC, S, members, steps, sxb, sxc, sxs, syb, syc, sys, eps,
    ACT: tl.constexpr, INNER: tl.constexpr, VEC: tl.constexpr, RANKS: tl.constexpr, COLS: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """So many steps of blocks of one unit, the last ones first. RANKS is 0 where its statistics are merged already."""
    wide, blocks = tl.cdiv(UC, BLOCK_C), tl.cdiv(S, BLOCK_S)
    each = wide * tl.cdiv(blocks, steps)
    number = tl.num_programs(0) - 1 - tl.program_id(0)
    unit, part = begin + number // each, number % each
    sample, first, live = unit_of(unit, C, UC)
    cols = part % wide * BLOCK_C + tl.arange(0, BLOCK_C)
    c, channel, there = cols[None, :, None], (first + cols)[None, :], (cols < live)[None, :]
    if RANKS > 0:
        mean, rstd = statistics(
            P, plane, Mean, Rstd, part == 0, unit, 0, C, G, CG, UC, S, members, eps, RANKS, COLS, BLOCK_C, BLOCK_S
        )
    else:
        mean = tl.load(Mean + sample * G + channel // CG, mask=there, other=0.0)[:, :, None]
        rstd = tl.load(Rstd + sample * G + channel // CG, mask=there, other=0.0)[:, :, None]
    w, b = parameter(W, channel, there, 1.0)[:, :, None], parameter(B, channel, there, 0.0)[:, :, None]
    from_x, from_y = sample * sxb + first.to(tl.int64) * sxc, sample * syb + first.to(tl.int64) * syc
    end = tl.minimum(part // wide * steps + steps, blocks)
    for step in tl.range(0, end - part // wide * steps, num_stages=STAGES):
        s = ((end - 1 - step) * BLOCK_S + tl.arange(0, BLOCK_S))[None, None, :]
        mask = within(c, s, live, S, INNER, VEC)
        at = places(from_x, c, s, sxc, sxs, INNER, VEC)
        x = tl.load(X + at, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        y = activate((x - mean) * rstd * w + b, ACT)
        at = places(from_y, c, s, syc, sys, INNER, VEC)
        tl.store(Y + at, y, mask=mask, eviction_policy="evict_first")
