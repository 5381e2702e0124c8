"""What GroupNorm's loops share: where a tile of a tensor (B, C, S) of any strides lies, and what a unit of it is.

The constants K are those of `constants`: nothing else about a size, a stride or an address is compiled in. The strides
of a tensor are a tuple (of samples, of channels, of positions).
"""

import triton.language as tl

from verify_norm.kernels.launch import jit


@jit
def origin(sample, first, strides):
    """Return the offset of a channel of a sample."""
    return sample * strides[0] + first.to(tl.int64) * strides[1]


@jit
def places(P, base, c, s, strides, K: tl.constexpr):
    """Return pointers to positions s of channels c, the last two axes, from `base` on."""
    INNER: tl.constexpr = K.INNER
    VEC: tl.constexpr = K.VEC
    _, sc, ss = strides
    size: tl.constexpr = VEC * P.dtype.element_ty.primitive_bitwidth // 8
    if INNER == "channels":
        p = P + (base + s.to(tl.int64) * ss + c)
    elif INNER == "positions":
        p = P + (base + c.to(tl.int64) * sc + s)
    else:
        p = P + (base + c.to(tl.int64) * sc + s.to(tl.int64) * ss)
    if len(s.shape) == 3:
        p = tl.multiple_of(p, (1, size if INNER == "channels" else 1, size if INNER == "positions" else 1))
    else:
        p = tl.multiple_of(p, (size if INNER == "channels" else 1, size if INNER == "positions" else 1))
    return p


@jit
def within(c, s, channels, positions, K: tl.constexpr):
    """Return whether c < channels and s < positions; the count of adjacent ones is a multiple of VEC."""
    if K.INNER == "channels":
        channels = channels // K.VEC * K.VEC
    elif K.INNER == "positions":
        positions = positions // K.VEC * K.VEC
    return (c < channels) & (s < positions)


@jit
def parameter(P, channel, mask, ABSENT: tl.constexpr, INNER: tl.constexpr, VEC: tl.constexpr):
    """Return the weight or bias of these channels in float32, ABSENT without one, in loads as wide as those of x."""
    value = tl.full(channel.shape, ABSENT, tl.float32)
    if P is not None:
        p = P + channel
        if INNER == "channels" and len(channel.shape) == 1:
            p = tl.multiple_of(p, min(VEC * P.dtype.element_ty.primitive_bitwidth // 8, 16))
        value = tl.load(p, mask=mask, other=0.0).to(tl.float32)
    return value


@jit
def own(P, group, channel, mask, ABSENT: tl.constexpr, K: tl.constexpr):
    """Return the weight or bias of these channels; with OWN it is that of their groups."""
    INNER: tl.constexpr = "" if K.OWN else K.INNER
    VEC: tl.constexpr = K.VEC
    if K.OWN:
        channel = group + 0 * channel
    return parameter(P, channel, mask, ABSENT, INNER, VEC)


@jit
def constant(Mean, Var, at, mask, eps):
    """Return mean and rstd of running statistics, of any type, which evaluation normalizes by."""
    mean = tl.load(Mean + at, mask=mask, other=0.0).to(tl.float32)
    variance = tl.load(Var + at, mask=mask, other=1.0).to(tl.float32)
    return mean, tl.div_rn(1.0, tl.sqrt_rn(variance + eps))


@jit
def saved(Mean, Rstd, at, mask, eps):
    """Return mean and rstd: as they were saved or, with an eps, those of running statistics."""
    if eps is None:
        mean = tl.load(Mean + at, mask=mask, other=0.0)
        rstd = tl.load(Rstd + at, mask=mask, other=0.0)
    else:
        mean, rstd = constant(Mean, Rstd, at, mask, eps)
    return mean, rstd


@jit
def move(P, at, momentum, value, mask):
    """Move a running statistic, if there is one, towards that of the batch."""
    if P is not None:
        old = tl.load(P + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(P + at, (1.0 - momentum) * old + momentum * value, mask=mask)


@jit
def below(cols, count, K: tl.constexpr):
    """Return whether cols < count; the count of adjacent channels is a multiple of VEC."""
    return cols < (count // K.VEC * K.VEC if K.INNER == "channels" else count)


@jit
def block(P, base, c, s, strides, channels, positions, EVEN: tl.constexpr, EVICT: tl.constexpr, K: tl.constexpr):
    """Return a block in its own type, 0 outside; EVEN says that no part is outside."""
    p = places(P, base, c, s, strides, K)
    if EVEN:
        x = tl.load(p, eviction_policy=EVICT)
    else:
        x = tl.load(p, mask=within(c, s, channels, positions, K), other=0.0, eviction_policy=EVICT)
    return x


@jit
def unit_of(unit, C, UC):
    """Return a unit's sample, its first channel there, and its channels: the last unit of a sample may have fewer."""
    per = tl.cdiv(C, UC)
    first = unit % per * UC
    return (unit // per).to(tl.int64), first, tl.minimum(UC, C - first)


@jit
def of_member(number, members, C, UC, BLOCK_C: tl.constexpr):
    """Return a member's unit, sample, first channel, channels, rank, first block, step between blocks, and columns."""
    wide = tl.cdiv(UC, BLOCK_C)
    unit, rank = number // members, number % members
    sample, first, live = unit_of(unit, C, UC)
    return unit, sample, first, live, rank, rank // wide, members // wide, rank % wide * BLOCK_C + tl.arange(0, BLOCK_C)


@jit
def of_results(number, begin, C, UC, S, K: tl.constexpr):
    """Return a result program's unit, sample, first channel, channels, number there, columns and first position."""
    wide = tl.cdiv(UC, K.BLOCK_C)
    each = wide * tl.cdiv(tl.cdiv(S, K.BLOCK_S), K.COMPUTED)
    unit, turn = begin + number // each, number % each
    sample, first, live = unit_of(unit, C, UC)
    cols, along = turn % wide * K.BLOCK_C + tl.arange(0, K.BLOCK_C), turn // wide * K.COMPUTED * K.BLOCK_S
    return unit, sample, first, live, turn, cols, along


@jit
def role(summed, SUMS: tl.constexpr):
    """Return whether this program is one of the `summed` that sum, and its number; results are numbered backwards.

    Every other program sums, from the first on, until one kind is used up. Without SUMS none does: what is not compiled
    takes no registers.
    """
    number, results = tl.program_id(0), tl.num_programs(0) - summed
    if not SUMS:
        return False, results - 1 - number
    pairs = tl.minimum(summed, results)
    paired = number < 2 * pairs
    sums = tl.where(paired, number % 2 == 0, summed > results)
    own = tl.where(paired, number // 2, number - pairs)
    return sums, tl.where(sums, own, results - 1 - own)


@jit
def lines(members, CG, UC, BLOCK_C: tl.constexpr):
    """Return how a unit's sums lie: how many lines there are, tiles of channels in each, and sums of a line.

    Of several groups the sums of all tiles are one line, of one group those of each tile: it may have too many.
    """
    wide = tl.cdiv(UC, BLOCK_C)
    together = tl.where(CG < UC, wide, 1)
    return members // together, wide // together, BLOCK_C * together


@jit
def several(number, CG, UC, MANY: tl.constexpr):
    """Return the unit of a program that merges MANY groups, or fewer, and their numbers there."""
    per = tl.cdiv(UC // CG, MANY)
    return number // per, number % per * MANY + tl.arange(0, MANY)


@jit
def parts(first, low, high, count, wide, line, K: tl.constexpr):
    """Return the channels of lines from `first` on, where their sums of channels low … high − 1 lie, and a mask.

    There is a low and a high for every group. The axes are lines, groups and channels, as of `over`.
    """
    rank = first + tl.arange(0, K.RANKS)[:, None, None]
    col = low[None, :, None] + tl.arange(0, K.COLS)[None, None, :]
    channel = rank % wide * line + col
    return channel, rank * line + col, (rank < count) & (channel < high[None, :, None])


@jit
def over(t):
    """Return the sum of every group over its lines and channels."""
    return tl.sum(tl.sum(t, axis=2), axis=0)
