"""GroupNorm's forward of groups that many programs share, in a chain of launches that overlap.

A unit is one group or, where channels are adjacent, as many as fill lines of memory and tiles of channels. The members
of a unit sum over their blocks of it; then other programs merge all sums and compute a few blocks each, the last blocks
first, for they are the most likely to be in the L2 cache still. No program waits for another of its own launch, and
every sum has its own place and is merged in the order of places, so that the bits depend neither on who was first nor
on how many units there are.

A launch of `forward_turn` sums over some units, and computes the results of others, whose sums earlier launches have
made. On sm_90 it begins while the launch before still ends (programmatic dependent launch): what sums has nothing to
wait for and keeps the memory busy, and what computes results waits for the launch before. Three rules make this right:

1. The first launch of a chain is a plain one: everything that the chain reads from outside is there, and nobody else
   uses its buffers any more, before any program of it runs.
2. Every launch but the first has programs that wait for the launch before (`gdc_wait`), those of results: so a launch
   is over only after all that came before it in the chain, and who waits for one launch has waited for all. Whatever
   follows the chain waits for its last launch, be it in a stream, a graph or the caching allocator's reuse of memory.
3. What other launches of the chain have written is read after that wait only, and nothing is written twice.
"""

# A tuple grows while it is compiled:
# mypy: disable-error-code="assignment, misc, unreachable"

import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from verify_norm.kernels.activation import activate
from verify_norm.kernels.group_tiles import (
    below,
    block,
    lines,
    of_member,
    of_results,
    parameter,
    parts,
    places,
    role,
    unit_of,
    within,
)
from verify_norm.kernels.launch import jit


@jit
def member(
    X, P, number, plane, C, UC, S, members, sxb, sxc, sxs, INNER: tl.constexpr, VEC: tl.constexpr,
    SHORT: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Of each channel over its blocks: the mean into P, the sum of squares around it `plane` later, then the count."""
    unit, sample, first, live, rank, mine, stride, cols = of_member(number, members, C, UC, BLOCK_C)
    c, base = cols[:, None], sample * sxb + first.to(tl.int64) * sxc
    own = tl.cdiv(tl.cdiv(S, BLOCK_S) - mine, stride)
    middle = tl.zeros([BLOCK_C, BLOCK_S], tl.float32)  # Welford's of every lane
    around = tl.zeros([BLOCK_C, BLOCK_S], tl.float32)
    seen = tl.full([], 0.0, tl.float32)
    for step in tl.range(0, own, num_stages=STAGES):
        s = ((mine + step * stride) * BLOCK_S + tl.arange(0, BLOCK_S))[None, :]
        seen += 1.0
        x = block(X, base, c, s, sxc, sxs, live, S, INNER, VEC, SHORT == "", "").to(tl.float32)
        delta = x - middle
        if SHORT == "positions":  # in the last block some lanes stay as they are
            delta = tl.where(within(c, s, live, S, INNER, VEC), delta, 0.0)
        middle += delta * tl.div_rn(1.0, seen)
        around += delta * (x - middle)
    count = tl.zeros([1, BLOCK_S], tl.float32) + own.to(tl.float32)
    if SHORT == "positions":
        beyond = (mine + (own - 1) * stride) * BLOCK_S + tl.arange(0, BLOCK_S) >= S
        count -= tl.where(beyond, 1.0, 0.0)[None, :]
    elements = tl.sum(count)
    average = tl.div_rn(tl.sum(count * middle, axis=1), elements)
    off = middle - average[:, None]
    if SHORT == "positions":  # mean² of a lane without an element may be infinite, and meet a 0
        off = tl.where(count > 0.0, off, 0.0)
    squares = tl.sum(around + count * off * off, axis=1)
    at = (members * BLOCK_C).to(tl.int64) * unit + rank * BLOCK_C + tl.arange(0, BLOCK_C)
    tl.store(P + at, average)
    tl.store(P + plane + at, squares)
    tl.store(P + 2 * plane + at, tl.zeros([BLOCK_C], tl.float32) + elements)


@jit
def forward_sums(
    X, P, plane: tl.int64, C: tl.int32, UC: tl.int32, S: tl.int32, members: tl.int32, sxb: tl.int64, sxc: tl.int64,
    sxs: tl.int64, INNER: tl.constexpr, VEC: tl.constexpr, PTX: tl.constexpr, SHORT: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The first launch of a chain: the sums of the first units' members."""
    if PTX:
        gdc_launch_dependents()
    member(X, P, tl.program_id(0), plane, C, UC, S, members, sxb, sxc, sxs, INNER, VEC, SHORT, BLOCK_C, BLOCK_S, STAGES)


@jit
def part(P, at, there, plane):
    """Means, sums of squares and counts of members; a load is from the L2, which other launches' stores are in."""
    average = tl.load(P + at, mask=there, other=0.0, cache_modifier=".cg")
    squares = tl.load(P + plane + at, mask=there, other=0.0, cache_modifier=".cg")
    return average, squares, tl.load(P + 2 * plane + at, mask=there, other=0.0, cache_modifier=".cg")


@jit
def statistics(
    P, plane, Mean, Rstd, saves, unit, number, C, G, CG, UC, S, members, eps, ONCE: tl.constexpr, RANKS: tl.constexpr,
    COLS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Mean and rstd of one group of a unit, of means and sums of squares of its parts (Chan, Golub, LeVeque).

    ONCE says that all of them are loaded at once.
    """
    sample, first, live = unit_of(unit, C, UC)
    low, high = number * CG, tl.minimum(number * CG + CG, live)
    start = P + (members * BLOCK_C).to(tl.int64) * unit
    count, wide, line = lines(members, CG, UC, BLOCK_C)
    N = (CG.to(tl.int64) * S).to(tl.float32)
    if ONCE:
        _, at, there = parts(0, low, high, count, wide, line, RANKS, COLS)
        average, squares, seen = part(start, at, there, plane)
        mean = tl.div_rn(tl.sum(seen * average), N)
        off = tl.where(there, average - mean, 0.0)
        variance = tl.div_rn(tl.sum(squares + seen * off * off), N)
    else:
        total = tl.zeros([RANKS, COLS], tl.float32)
        for rank in range(0, count, RANKS):
            _, at, there = parts(rank, low, high, count, wide, line, RANKS, COLS)
            average, _, seen = part(start, at, there, plane)
            total += seen * average
        mean = tl.div_rn(tl.sum(total), N)
        total = tl.zeros([RANKS, COLS], tl.float32)
        for rank in range(0, count, RANKS):
            _, at, there = parts(rank, low, high, count, wide, line, RANKS, COLS)
            average, squares, seen = part(start, at, there, plane)
            off = tl.where(there, average - mean, 0.0)
            total += squares + seen * off * off
        variance = tl.div_rn(tl.sum(total), N)
    rstd = tl.div_rn(1.0, tl.sqrt_rn(variance + eps))
    tl.store(Mean + sample * G + first // CG + number, mean, mask=saves & (low < live))
    tl.store(Rstd + sample * G + first // CG + number, rstd, mask=saves & (low < live))
    return mean, rstd


@jit
def forward_merge(
    P, Mean, Rstd, plane: tl.int64, C: tl.int32, G: tl.int32, CG: tl.int32, UC: tl.int32, S: tl.int32,
    members: tl.int32, eps: tl.float32, PTX: tl.constexpr, ONCE: tl.constexpr, RANKS: tl.constexpr, COLS: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """A group's statistics, where not every program of the results merges them for itself."""
    if PTX:
        gdc_launch_dependents()
        gdc_wait()
    unit, number = tl.program_id(0) // (UC // CG), tl.program_id(0) % (UC // CG)
    statistics(
        P, plane, Mean, Rstd, tl.program_id(0) >= 0, unit, number, C, G, CG, UC, S, members, eps, ONCE, RANKS, COLS,
        BLOCK_C,
    )  # fmt: skip


@jit
def results(
    X, Y, W, B, Mean, Rstd, P, number, begin, plane, C, G, CG, UC, S, members, sxb, sxc, sxs, syb, syc, sys, eps,
    ACT: tl.constexpr, INNER: tl.constexpr, VEC: tl.constexpr, PTX: tl.constexpr, SHORT: tl.constexpr,
    ONCE: tl.constexpr, RANKS: tl.constexpr, COLS: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr,
    COMPUTED: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """So many blocks of one unit, which are loaded before what they wait for. RANKS is 0 if that is merged already."""
    unit, sample, first, live, turn, cols, along = of_results(number, begin, C, UC, S, BLOCK_C, BLOCK_S, COMPUTED)
    c, channel, there = cols[:, None], first + cols, below(cols, live, INNER, VEC)
    from_x, from_y = sample * sxb + first.to(tl.int64) * sxc, sample * syb + first.to(tl.int64) * syc
    xs = ()
    for i in tl.static_range(COMPUTED):
        s = (along + i * BLOCK_S + tl.arange(0, BLOCK_S))[None, :]
        xs += (block(X, from_x, c, s, sxc, sxs, live, S, INNER, VEC, SHORT == "", EVICT),)
    w = parameter(W, channel, there, 1.0, INNER, VEC)[:, None]
    b = parameter(B, channel, there, 0.0, INNER, VEC)[:, None]
    if PTX:
        gdc_wait()
    if RANKS > 0:
        mean, rstd = statistics(
            P, plane, Mean, Rstd, turn == 0, unit, 0, C, G, CG, UC, S, members, eps, ONCE, RANKS, COLS, BLOCK_C
        )
    else:
        mean = tl.load(Mean + sample * G + channel // CG, mask=there, other=0.0)[:, None]
        rstd = tl.load(Rstd + sample * G + channel // CG, mask=there, other=0.0)[:, None]
    for i in tl.static_range(COMPUTED):
        s = (along + i * BLOCK_S + tl.arange(0, BLOCK_S))[None, :]
        y = activate((xs[i].to(tl.float32) - mean) * rstd * w + b, ACT, PTX)
        p = places(Y, from_y, c, s, syc, sys, INNER, VEC)
        if SHORT == "":
            tl.store(p, y, eviction_policy=EVICT)
        else:
            tl.store(p, y, mask=within(c, s, live, S, INNER, VEC), eviction_policy=EVICT)


@jit
def forward_turn(
    X, Y, W, B, Mean, Rstd, P, summing: tl.int32, summed: tl.int32, begin: tl.int32, plane: tl.int64, C: tl.int32,
    G: tl.int32, CG: tl.int32, UC: tl.int32, S: tl.int32, members: tl.int32, sxb: tl.int64, sxc: tl.int64,
    sxs: tl.int64, syb: tl.int64, syc: tl.int64, sys: tl.int64, eps: tl.float32, ACT: tl.constexpr,
    INNER: tl.constexpr, VEC: tl.constexpr, PTX: tl.constexpr, SHORT: tl.constexpr, ONCE: tl.constexpr,
    RANKS: tl.constexpr, COLS: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr, STAGES: tl.constexpr,
    COMPUTED: tl.constexpr, EVICT: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """Sums of so many members from `summing` on, and results of units from `begin` on."""
    if PTX:
        gdc_launch_dependents()
    sums, number = role(summed, SUMS)
    if sums:
        member(
            X, P, summing + number, plane, C, UC, S, members, sxb, sxc, sxs, INNER, VEC, SHORT, BLOCK_C, BLOCK_S, STAGES
        )
    else:
        results(
            X, Y, W, B, Mean, Rstd, P, number, begin, plane, C, G, CG, UC, S, members, sxb, sxc, sxs, syb, syc, sys,
            eps, ACT, INNER, VEC, PTX, SHORT, ONCE, RANKS, COLS, BLOCK_C, BLOCK_S, COMPUTED, EVICT,
        )  # fmt: skip
