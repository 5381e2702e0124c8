"""GroupNorm's forward of groups that many programs share, in a chain of launches that overlap.

A unit is one group or, where channels are adjacent, as many as fill lines of memory and tiles of channels. The members
of a unit sum over their blocks of it; then other programs merge all sums and compute a few blocks each, the last blocks
first, since they are the most likely to be in the L2 cache. No program waits for another of its own launch. Every sum
has its own place, and sums are merged in the order of places, so the bits depend neither on which program is first nor
on how many units there are.

A launch of `forward_turn` sums over some units, and computes the results of others, whose sums earlier launches made.
On sm_90 it begins while the launch before still runs (programmatic dependent launch): programs that sum have nothing to
wait for and keep the memory busy, and programs of results wait for the launch before. Three rules make this right:

1. The first launch of a chain is a plain one: before any of its programs runs, all that the chain reads from outside is
   written, and nothing else uses the chain's buffers.
2. Every launch but the first has programs that wait for the launch before (`gdc_wait`), those of results. So a launch
   ends only after all launches before it in the chain, and a wait for one launch is a wait for all before it. Whatever
   follows the chain waits for its last launch, be it in a stream, a graph or the caching allocator's reuse of memory.
3. What other launches of the chain write is read only after that wait, and nothing is written twice.
"""

# A tuple grows while it is compiled:
# mypy: disable-error-code="assignment, misc, unreachable"

import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from verify_norm.kernels.activation import activate
from verify_norm.kernels.groups.tiles import (
    below,
    block,
    constant,
    lines,
    move,
    of_member,
    of_results,
    origin,
    over,
    own,
    parts,
    places,
    role,
    several,
    unit_of,
    within,
)
from verify_norm.kernels.launch import jit


@jit
def member(X, P, number, plane, C, UC, S, members, sx, K: tl.constexpr):
    """Store statistics of each channel over the member's blocks: the mean in P, `plane` later the sum of squares around
    it, and then the count. K is a `ForwardSums`.
    """
    SHORT: tl.constexpr = K.SHORT
    BLOCK_C: tl.constexpr = K.BLOCK_C
    BLOCK_S: tl.constexpr = K.BLOCK_S
    STAGES: tl.constexpr = K.STAGES
    unit, sample, first, live, rank, mine, stride, cols = of_member(number, members, C, UC, BLOCK_C)
    c, base = cols[:, None], origin(sample, first, sx)
    own = tl.cdiv(tl.cdiv(S, BLOCK_S) - mine, stride)
    middle = tl.zeros([BLOCK_C, BLOCK_S], tl.float32)  # Welford's of every lane
    around = tl.zeros([BLOCK_C, BLOCK_S], tl.float32)
    seen = tl.full([], 0.0, tl.float32)
    for step in tl.range(0, own, num_stages=STAGES):
        s = ((mine + step * stride) * BLOCK_S + tl.arange(0, BLOCK_S))[None, :]
        seen += 1.0
        x = block(X, base, c, s, sx, live, S, SHORT == "", "", K).to(tl.float32)
        delta = x - middle
        if SHORT == "positions":  # in the last block some lanes stay as they are
            delta = tl.where(within(c, s, live, S, K), delta, 0.0)
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


@jit(int64="plane sxb sxc sxs", int32="C UC S members")
def forward_sums(X, P, plane, C, UC, S, members, sxb, sxc, sxs, K: tl.constexpr):
    """Store the sums of the first units' members: the first launch of a chain. K is a `ForwardSums`."""
    if K.PTX:
        gdc_launch_dependents()
    member(X, P, tl.program_id(0), plane, C, UC, S, members, (sxb, sxc, sxs), K)


@jit
def part(P, at, there, plane):
    """Return means, sums of squares and counts of members, from the L2, where the stores of other launches are."""
    average = tl.load(P + at, mask=there, other=0.0, cache_modifier=".cg")
    squares = tl.load(P + plane + at, mask=there, other=0.0, cache_modifier=".cg")
    return average, squares, tl.load(P + 2 * plane + at, mask=there, other=0.0, cache_modifier=".cg")


@jit
def statistics(P, plane, Mean, Rstd, RM, RV, momentum, saves, unit, number, size, eps, K: tl.constexpr):
    """Return mean and rstd of groups of a unit, merged from their parts (Chan, Golub, LeVeque); store them if `saves`.

    Then the running statistics RM and RV, if there are any, move towards them. `number` is that of each group.

    `size` has C, G, channels of a group, channels of a unit, S, and members of a unit.
    """
    RANKS: tl.constexpr = K.RANKS
    MANY: tl.constexpr = K.MANY
    COLS: tl.constexpr = K.COLS
    C, G, CG, UC, S, members = size
    sample, first, live = unit_of(unit, C, UC)
    low, high = number * CG, tl.minimum(number * CG + CG, tl.minimum(live, UC))
    sums = P + (members * K.BLOCK_C).to(tl.int64) * unit
    count, wide, line = lines(members, CG, UC, K.BLOCK_C)
    N = (CG.to(tl.int64) * S).to(tl.float32)
    if K.ONCE:
        _, at, there = parts(0, low, high, count, wide, line, K)
        average, squares, seen = part(sums, at, there, plane)
        mean = tl.div_rn(over(seen * average), N)
        off = tl.where(there, average - mean[None, :, None], 0.0)
        variance = tl.div_rn(over(squares + seen * off * off), N)
    else:
        total = tl.zeros([RANKS, MANY, COLS], tl.float32)
        for rank in range(0, count, RANKS):
            _, at, there = parts(rank, low, high, count, wide, line, K)
            average, _, seen = part(sums, at, there, plane)
            total += seen * average
        mean = tl.div_rn(over(total), N)
        total = tl.zeros([RANKS, MANY, COLS], tl.float32)
        for rank in range(0, count, RANKS):
            _, at, there = parts(rank, low, high, count, wide, line, K)
            average, squares, seen = part(sums, at, there, plane)
            off = tl.where(there, average - mean[None, :, None], 0.0)
            total += squares + seen * off * off
        variance = tl.div_rn(over(total), N)
    rstd = tl.div_rn(1.0, tl.sqrt_rn(variance + eps))
    at, saves = sample * G + first // CG + number, saves & (low < high)
    tl.store(Mean + at, mean, mask=saves)
    tl.store(Rstd + at, rstd, mask=saves)
    move(RM, at, momentum, mean, saves)
    move(RV, at, momentum, variance * tl.div_rn(N, N - 1.0), saves)
    return mean, rstd


@jit(int64="plane", int32="C G CG UC S members", float32="eps")
def forward_merge(P, Mean, Rstd, RM, RV, plane, C, G, CG, UC, S, members, eps, momentum, K: tl.constexpr):
    """Store statistics of MANY groups, where not every program of the results merges its own. K is a `ForwardMerge`."""
    if K.PTX:
        gdc_launch_dependents()
        gdc_wait()
    unit, number = several(tl.program_id(0), CG, UC, K.MANY)
    size = (C, G, CG, UC, S, members)
    statistics(P, plane, Mean, Rstd, RM, RV, momentum, number >= 0, unit, number, size, eps, K)


@jit
def results(X, Y, W, B, Mean, Rstd, RM, RV, P, number, begin, plane, size, sx, sy, eps, momentum, K: tl.constexpr):
    """Store COMPUTED blocks of one unit, which are loaded before the wait for their statistics. K is a `ForwardTurn`.

    `size` is that of `statistics`.
    """
    SHORT: tl.constexpr = K.SHORT
    BLOCK_S: tl.constexpr = K.BLOCK_S
    COMPUTED: tl.constexpr = K.COMPUTED
    ACT: tl.constexpr = K.ACT
    EVICT: tl.constexpr = K.EVICT
    C, G, CG, UC, S, _ = size
    unit, sample, first, live, turn, cols, along = of_results(number, begin, C, UC, S, K)
    c, channel, there = cols[:, None], first + cols, below(cols, live, K)
    from_x, from_y = origin(sample, first, sx), origin(sample, first, sy)
    xs = ()
    for i in tl.static_range(COMPUTED):
        s = (along + i * BLOCK_S + tl.arange(0, BLOCK_S))[None, :]
        xs += (block(X, from_x, c, s, sx, live, S, SHORT == "", EVICT, K),)
    group = sample * G + channel // CG
    w = own(W, group, channel, there, 1.0, K)[:, None]
    b = own(B, group, channel, there, 0.0, K)[:, None]
    if K.PTX:
        gdc_wait()
    if RM is not None and momentum is None:
        mean, rstd = constant(RM, RV, group, there, eps)
        saves = there & (along == 0) & (channel % CG == 0)
        tl.store(Mean + group, mean, mask=saves)
        tl.store(Rstd + group, rstd, mask=saves)
        mean = mean[:, None]
        rstd = rstd[:, None]
    elif K.RANKS > 0:
        alone = tl.zeros([1], tl.int32)
        mean, rstd = statistics(P, plane, Mean, Rstd, RM, RV, momentum, turn == 0, unit, alone, size, eps, K)
        mean = mean[:, None]
        rstd = rstd[:, None]
    else:
        mean = tl.load(Mean + group, mask=there, other=0.0)[:, None]
        rstd = tl.load(Rstd + group, mask=there, other=0.0)[:, None]
    for i in tl.static_range(COMPUTED):
        s = (along + i * BLOCK_S + tl.arange(0, BLOCK_S))[None, :]
        y = activate((xs[i].to(tl.float32) - mean) * rstd * w + b, ACT, K.PTX)
        p = places(Y, from_y, c, s, sy, K)
        if SHORT == "":
            tl.store(p, y, eviction_policy=EVICT)
        else:
            tl.store(p, y, mask=within(c, s, live, S, K), eviction_policy=EVICT)


@jit(int64="plane sxb sxc sxs syb syc sys", int32="summing summed begin C G CG UC S members", float32="eps")
def forward_turn(
    X,
    Y,
    W,
    B,
    Mean,
    Rstd,
    RM,
    RV,
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
    sxb,
    sxc,
    sxs,
    syb,
    syc,
    sys,
    eps,
    momentum,
    K: tl.constexpr,
):
    """Store sums of so many members from `summing` on, and results of units from `begin` on. K is a `ForwardTurn`.

    Running statistics RM and RV move by the momentum; without one they take the place of the groups' own.
    """
    if K.PTX:
        gdc_launch_dependents()
    size, sx, sy = (C, G, CG, UC, S, members), (sxb, sxc, sxs), (syb, syc, sys)
    sums, number = role(summed, K.SUMS)
    if K.SUMS:  # noqa: SIM102  # a constant keeps Triton from compiling what follows, without a P; `sums` does not
        if sums:
            member(X, P, summing + number, plane, C, UC, S, members, sx, K)
    if not sums:
        results(X, Y, W, B, Mean, Rstd, RM, RV, P, number, begin, plane, size, sx, sy, eps, momentum, K)
