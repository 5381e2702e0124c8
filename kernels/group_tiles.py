"""What GroupNorm's loops share: where a tile of a tensor (B, C, S) of any strides lies, and what a unit of it is.

INNER names the axis whose elements are adjacent in memory, "channels" in channels_last, "positions" in contiguous
tensors, "" if neither is; runs of VEC elements along it start at multiples of VEC in every tensor and of as many
elements' bytes in memory, so that loads can be wide. Nothing else about a size, a stride or an address is compiled in.
SHORT tells what the blocks of shared groups lack: "" nothing; "channels" channels, or all of a block: what is loaded
there is 0, as statistics and parameters are, and nothing of it is used; "positions" a part of the positions too, which
a sum has to leave out. PTX says that the target has sm_90's instructions, which the interpreter and other GPUs have
not.
"""

import triton.language as tl

from verify_norm.kernels.launch import jit


@jit
def places(P, base, c, s, sc, ss, INNER: tl.constexpr, VEC: tl.constexpr):
    """Pointers to positions s of channels c, the last two axes, from `base` on; the compiler is told in bytes."""
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
def within(c, s, channels, positions, INNER: tl.constexpr, VEC: tl.constexpr):
    """Whether c < channels and s < positions: of adjacent ones there is a multiple of VEC, masked as vectors."""
    if INNER == "channels":
        channels = channels // VEC * VEC
    elif INNER == "positions":
        positions = positions // VEC * VEC
    return (c < channels) & (s < positions)


@jit
def parameter(P, channel, mask, ABSENT: tl.constexpr, INNER: tl.constexpr, VEC: tl.constexpr):
    """The weight or bias of these channels in float32, ABSENT where there is none; as wide loads as those of x."""
    value = tl.full(channel.shape, ABSENT, tl.float32)
    if P is not None:
        p = P + channel
        if INNER == "channels" and len(channel.shape) == 1:
            p = tl.multiple_of(p, min(VEC * P.dtype.element_ty.primitive_bitwidth // 8, 16))
        value = tl.load(p, mask=mask, other=0.0).to(tl.float32)
    return value


@jit
def below(cols, count, INNER: tl.constexpr, VEC: tl.constexpr):
    """Whether cols < count: of adjacent channels there is a multiple of VEC."""
    return cols < (count // VEC * VEC if INNER == "channels" else count)


@jit
def block(
    P, base, c, s, sc, ss, channels, positions, INNER: tl.constexpr, VEC: tl.constexpr, EVEN: tl.constexpr,
    EVICT: tl.constexpr,
):  # fmt: skip
    """A block in its own type, 0 outside; EVEN says that nothing of it is."""
    p = places(P, base, c, s, sc, ss, INNER, VEC)
    if EVEN:
        x = tl.load(p, eviction_policy=EVICT)
    else:
        x = tl.load(p, mask=within(c, s, channels, positions, INNER, VEC), other=0.0, eviction_policy=EVICT)
    return x


@jit
def unit_of(unit, C, UC):
    """A unit's sample, its first channel there, and how many it has: the last of a sample may have fewer."""
    per = tl.cdiv(C, UC)
    first = unit % per * UC
    return (unit // per).to(tl.int64), first, tl.minimum(UC, C - first)


@jit
def of_member(number, members, C, UC, BLOCK_C: tl.constexpr):
    """A member's unit, sample and rank, its first block and the way to the next, and its channels in the unit."""
    wide = tl.cdiv(UC, BLOCK_C)
    unit, rank = number // members, number % members
    sample, first, live = unit_of(unit, C, UC)
    return unit, sample, first, live, rank, rank // wide, members // wide, rank % wide * BLOCK_C + tl.arange(0, BLOCK_C)


@jit
def of_results(number, begin, C, UC, S, BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr, COMPUTED: tl.constexpr):
    """Of a program that computes: its unit, sample and number there, its channels in the unit, its first position."""
    wide = tl.cdiv(UC, BLOCK_C)
    each = wide * tl.cdiv(tl.cdiv(S, BLOCK_S), COMPUTED)
    unit, turn = begin + number // each, number % each
    sample, first, live = unit_of(unit, C, UC)
    cols, along = turn % wide * BLOCK_C + tl.arange(0, BLOCK_C), turn // wide * COMPUTED * BLOCK_S
    return unit, sample, first, live, turn, cols, along


@jit
def role(summed, SUMS: tl.constexpr):
    """Whether this program is one of the `summed` that sum, and its number; results are numbered backwards.

    Every other program sums, from the first on, until one kind is used up. SUMS says whether any does: what is not
    compiled takes no registers.
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
    """How a unit's sums lie: in so many lines, of so many tiles of channels each, one line so long.

    Of several groups the sums of all tiles are one line, of one group those of each tile: it may have too many.
    """
    wide = tl.cdiv(UC, BLOCK_C)
    together = tl.where(CG < UC, wide, 1)
    return members // together, wide // together, BLOCK_C * together


@jit
def parts(first, low, high, count, wide, line, RANKS: tl.constexpr, COLS: tl.constexpr):
    """Of lines from `first` on: their channels, where their sums of channels low … high − 1 are, which there are."""
    rank, col = first + tl.arange(0, RANKS)[:, None], low + tl.arange(0, COLS)[None, :]
    channel = rank % wide * line + col
    return channel, rank * line + col, (rank < count) & (channel < high)
