"""How GroupNorm's groups are divided among programs: by their size and layout, and by what the device has.

A group's bits may not depend on how many other groups there are. What a device limits is given for an H200, on which it
was measured; another has it in proportion to the cache, registers or multiprocessors that limit it.
"""

import functools
import math
from typing import Any, NamedTuple

import triton

from verify_norm.kernels.launch import H200, Room

FEW = {"cuda": 1024, "cpu": 16384}  # lanes that small groups fill together
WHOLE = {"cuda": 32768, "cpu": 8192}  # lanes of x and dy, or of x unaligned, that a program may hold of whole groups
HELD = {"cuda": 96 << 10, "cpu": 32 << 10}  # bytes of x that a program may hold, as blocks, of an H200's registers
BOTH = {"cuda": 96 << 10, "cpu": 64 << 10}  # bytes of x and dy, and a third more of idle lanes
REGISTERS = 20  # of a thread that hold a group, or up to twice as many
BLOCK = {"cuda": 2048, "cpu": 4096}  # lanes of a block of a shared group; in channels_last of 4 bytes of all inputs
SUMMED = 32 << 10  # bytes of each input that a program sums over, if there are enough; in channels_last 64 KiB of all
MEMBERS = 512  # of a unit at most: more than fill an H200
COMPUTED = 4  # blocks that a program computes: 64 of a thread's registers hold them
TOGETHER = 2048  # sums that every program of the results may merge for itself
FILLING = 256  # groups of a sample from which on one program merges several: of fewer, too few programs would run
THIN = 8  # adjacent bytes of a group; one that has fewer is loaded together with its neighbours
LINE = 64  # bytes that have to be adjacent, or memory is read at less than its speed
USUAL, WIDEST = 128, 512  # channels of a tile, at most, and where vectors would be narrower
RUN = 128  # adjacent bytes of a block with adjacent positions, at least
TILED = 1024  # channels of a unit that several tiles fill, at most
BATCH = 18 << 20  # bytes of units whose sums are made while the results of as many before are computed, of an H200's L2
LARGE = 40 << 20  # bytes of a unit, of which its L2 would not keep enough until the results are computed
LOADING = 3  # programs that sum on a multiprocessor at a time, at least: its shared memory has their tiles


class Division(NamedTuple):
    """How groups are divided among programs.

    constants : of the kernels that read x
    groups, wide, blocks : groups of a unit, its tiles of channels, and blocks of positions
    members : programs that sum over a unit; 0 where a program holds whole groups
    merging : constants of what merges these sums
    itself : every program of the results merges them itself
    """

    constants: dict[str, Any]
    groups: int = 1
    wide: int = 1
    blocks: int = 1
    members: int = 0
    merging: dict[str, Any] | None = None
    itself: bool = False


class Turn(NamedTuple):
    """A launch that sums over `summed` members from `summing` on, and computes results of `units` from `begin` on."""

    summing: int
    summed: int
    begin: int
    units: int


@functools.lru_cache(4096)
def plan(
    size: tuple[int, int, int], inner: str, vec: int, itemsize: int, arrays: int, room: Room, spare: bool = True
) -> Division:
    """Return how groups are divided; `size` is C and S of x (B, C, S), and the number of groups.

    An element has `itemsize` bytes, and a program holds so many `arrays`. `spare` says that beside x and dy, kept in
    their own type, there are registers for what a backward computes.

    >>> plan((320, 4096, 32), "positions", 8, 2, 1, H200).constants["WIDE"]  # Stable Diffusion: ten channels a group
    10
    >>> plan((128, 512 * 512, 32), "positions", 8, 2, 1, H200)[1:5]
    (1, 4, 128, 64)
    """
    device = room.kind
    C, S, G = size
    group = C // G
    channels, positions = triton.next_power_of_2(group), triton.next_power_of_2(S)
    lanes, least = channels * positions, 1
    if inner == "channels" and group * itemsize < THIN:
        least = min(triton.next_power_of_2(triton.cdiv(LINE, group * itemsize)), triton.next_power_of_2(G))
    elif inner == "channels" and group % 2:  # a vector would reach into the next group
        least = min(vec, triton.next_power_of_2(G))
    if least == 1 and lanes > FEW[device] and (arrays == 1 or (lanes * arrays > WHOLE[device] and spare)):
        held = math.gcd(vec, group) if inner == "channels" else vec
        constants = _held(group, S, inner, held, itemsize, arrays, room)
        if constants is not None:
            return Division(constants)
    elif least * lanes * arrays <= WHOLE[device]:
        if least == 1 and lanes <= FEW[device]:  # sizes that differ little share one compiled variant
            channels, positions = (n << (n.bit_length() - 1) % 2 for n in (channels, positions))  # powers of four
        few = max(FEW[device] // (channels * positions), least)
        warps = min(max(few * channels * positions * arrays // (32 * room.warp), 4), 16)
        vec = math.gcd(vec, group) if inner == "channels" else vec  # groups have to start where vectors do
        constants = {"INNER": inner, "VEC": vec, "BLOCK_C": channels, "BLOCK_S": positions, "num_warps": warps}
        return Division(constants | {"BLOCK_G": few})
    lanes = BLOCK[device]
    if inner == "channels":
        lanes, summed = lanes * 4 // (itemsize * arrays), 2 * SUMMED
        groups, block_c = _unit(C, G, vec, itemsize)
    else:
        lanes, summed = lanes // 2 if lanes <= S < COMPUTED * lanes else lanes, SUMMED * arrays
        groups, block_c = 1, _channels(group, S, lanes, itemsize)
    block_s, width = max(lanes // block_c, 1), groups * group
    wide, blocks = triton.cdiv(width, block_c), triton.cdiv(S, block_s)
    filling = _members(room)
    most = filling // wide
    if inner == "channels":  # all programs that sum a sample, as the one of BatchNorm, run at the same time
        most = min(most, round(LOADING * room.multiprocessors / (triton.cdiv(G, groups) * wide)))
    members = wide * min(max(blocks // max(summed // (lanes * itemsize * arrays), 1), 1), max(most, 1))
    large = width * S * itemsize * arrays > _share(LARGE, room.l2, H200.l2)
    computed = min(COMPUTED if large else COMPUTED // arrays, triton.next_power_of_2(blocks))
    itself = inner != "channels" and members * block_c <= TOGETHER
    lines, cols = (members, min(channels, block_c)) if groups == 1 else (members // wide, channels)
    ranks = next((n for n in (16, 64, 256) if lines <= n), filling)
    ranks = ranks if itself else min(ranks, max(2 * TOGETHER // cols, 1))
    even = S % (block_s * computed) == 0 and width % block_c == 0 and C % width == 0
    tiles = room.shared // (LOADING * block_c * block_s * itemsize * arrays)  # one a stage but the last
    constants = {
        "INNER": inner,
        "VEC": math.gcd(vec, width) if inner == "channels" else vec,
        "SHORT": "positions" if S % block_s else "" if even else "channels",
        "BLOCK_C": block_c,
        "BLOCK_S": block_s,
        "STAGES": min(4 if inner != "channels" and (large or arrays == 1) else 3, 1 + max(tiles, 1)),
        "COMPUTED": computed,
        "STREAM": large,
        "EVICT": "" if large and arrays == 1 else "evict_first",
        "num_warps": 4,
    }
    many = 1 if G < FILLING else min(2 * TOGETHER // (ranks * cols), triton.next_power_of_2(groups), 32)
    merging = {"RANKS": ranks, "COLS": cols, "ONCE": lines <= ranks, "MANY": many}
    return Division(constants, groups, wide, blocks, members, merging, itself)


def _share(of_h200: int, has: int, h200_has: int) -> int:
    """Return what is `of_h200` there, for a device that has so much of what limits it."""
    return of_h200 * has // h200_has


def _members(room: Room) -> int:
    """Return how many programs sum over a unit at most: a power of two, since their sums are loaded together.

    >>> [_members(H200._replace(multiprocessors=n)) for n in (58, 108, 132, 148, 304)]
    [256, 512, 512, 512, 1024]
    """
    return 1 << round(math.log2(MEMBERS * room.multiprocessors / H200.multiprocessors))


def _held(group: int, S: int, inner: str, vec: int, itemsize: int, arrays: int, room: Room) -> dict[str, Any] | None:
    """Return the constants of one group that a program holds as blocks, or None where registers cannot hold it.

    The blocks have the fewest idle lanes, then a vector for every thread. Where loads are not of vectors, or a group is
    small, there is one block: few sizes, since each is compiled anew. Of x and dy such a block would spill.
    """
    device = room.kind
    held, both = (_share(t[device], room.registers, H200.registers) for t in (HELD, BOTH))
    channels, positions = triton.next_power_of_2(group), triton.next_power_of_2(S)
    vectors = vec * itemsize >= 8 and group * S >= 2 * FEW[device]
    size = (group * S if vectors else channels * positions) * itemsize * arrays
    if arrays > 1 and (not vectors or size > both):
        return None
    warps = min(max(triton.next_power_of_2(triton.cdiv(size, 4 * room.warp * REGISTERS)), 2), 16)
    blocks = [(channels, positions)] if channels * positions <= WHOLE[device] else []
    if vectors:
        fewest = channels if inner == "channels" else 1  # adjacent ones are loaded together
        rows = [2**i for i in range(channels.bit_length()) if 2**i >= fewest]
        blocks = [(c, 2**i) for c in rows for i in range(positions.bit_length())]

    def many(block: tuple[int, int]) -> tuple[int, int]:
        return triton.cdiv(group, block[0]), triton.cdiv(S, block[1])

    def cost(block: tuple[int, int]) -> tuple[int, float]:
        return math.prod(many(block)) * math.prod(block), abs(math.log2(math.prod(block) / (room.warp * warps * vec)))

    most = held if arrays == 1 else both * 4 // 3
    blocks = [b for b in blocks if math.prod(many(b)) <= 20 and cost(b)[0] * itemsize * arrays <= most]
    if not blocks:
        return None
    best = min(blocks, key=cost)
    limit = {"maxnreg": 64} if warps == 16 and arrays == 1 else {}  # so that a multiprocessor has two programs
    return limit | {
        "INNER": inner,
        "VEC": vec,
        "BLOCK_C": best[0],
        "BLOCK_S": best[1],
        "WIDE": many(best)[0],
        "BLOCKS": many(best)[1],
        "EVEN": cost(best)[0] == group * S,
        "num_warps": warps,
    }


def _unit(C: int, G: int, vec: int, itemsize: int) -> tuple[int, int]:
    """Return how many groups are a unit where channels are adjacent, and how many channels a block has.

    A unit has so many groups that whole lines of memory are read, vectors stay as wide, and the fewest lanes idle; then
    the fewest tiles of channels, of the most groups. Several tiles of several groups have no idle lane; one group that
    is too large for that has the largest tiles. Tiles are larger than usual where else vectors would be narrower.
    """
    group = C // G

    def cost(unit: tuple[int, int]) -> tuple[int, int, int, int]:
        n, tile = unit
        wide = triton.cdiv(n * group, tile)
        return -math.gcd(vec, n * group), triton.cdiv(G, n) * wide * tile, wide, -n

    def best(widest: int) -> tuple[int, int]:
        most = min(widest, triton.next_power_of_2(C))
        tiles = [2**k for k in range(most.bit_length()) if 2**k * itemsize >= LINE] or [most]
        several = [
            (n, tile)
            for n in range(1, G + 1)
            for tile in tiles
            if (n * group <= tile or (n * group % tile == 0 and n * group <= TILED))
            and (n * group * itemsize >= LINE or n == G)
        ]
        return min(several, key=cost, default=(1, most))

    usual, widest = best(USUAL), best(WIDEST)
    return widest if cost(widest)[0] < cost(usual)[0] else usual


def _channels(group: int, S: int, lanes: int, itemsize: int) -> int:
    """Return how many channels a block of so many lanes has: with the fewest idle lanes, then the fewest channels.

    Its positions fill a RUN of memory, if there are enough.
    """
    run = min(S, RUN // itemsize)
    powers = [2**k for k in range(lanes.bit_length()) if 2**k <= triton.next_power_of_2(group) and lanes >> k >= run]
    return min(powers, key=lambda c: (triton.cdiv(group, c) * triton.cdiv(S, lanes // c), c))


def turns(p: Division, units: int, size: int, room: Room) -> tuple[int, list[Turn]]:
    """Return how many members the first launch of a chain sums over, and the turns after it; a unit has `size` bytes.

    While a batch's results are computed, the next batch is summed: the memory always has work, and a batch is in the L2
    cache when its turn comes. Units too large for that, or whose sums are merged by a launch, are one batch. So are all
    where the L2 is too small for what two batches that fill the device read at a time, as that of an MI300X.

    >>> first, after = turns(Division({}, members=4, itself=True), 3, BATCH, H200)
    >>> first, [tuple(turn) for turn in after]
    (4, [(4, 4, 0, 1), (8, 4, 1, 1), (12, 0, 2, 1)])
    >>> turns(Division({}, members=4, itself=True), 2, LARGE + 1, H200)
    (8, [Turn(summing=8, summed=0, begin=0, units=2)])
    """
    batch, large = (_share(t, room.l2, H200.l2) for t in (BATCH, LARGE))
    cached = room.l2 >= 2 * SUMMED * room.multiprocessors
    most = max(batch // size, 1) if p.itself and cached and size <= large else units
    many = triton.cdiv(units, triton.cdiv(units, most))
    ends = [min(begin + many, units) for begin in range(0, units, many)]
    return p.members * many, [
        Turn(p.members * end, p.members * (min(end + many, units) - end), begin, end - begin)
        for begin, end in zip(range(0, units, many), ends, strict=True)
    ]


def adjacent(aligned: int, itemsize: int, shape: tuple[int, ...], *strides: tuple[int, ...]) -> tuple[str, int]:
    """Return which axis of all tensors (B, C, S) has adjacent elements, and how many one load can take.

    All addresses are multiples of `aligned` bytes, up to 16. The distance of samples counts also if there is only one:
    bits may depend on the width of loads, so a single sample may not have wider loads than it would have among others.

    >>> adjacent(16, 4, (2, 4, 6), (24, 6, 1)), adjacent(16, 4, (2, 4, 6), (24, 1, 4), (24, 1, 4))
    (('positions', 2), ('channels', 4))
    >>> adjacent(16, 4, (2, 4, 6), (48, 12, 2)), adjacent(8, 4, (1, 4, 6), (24, 1, 4))
    (('', 1), ('channels', 2))
    """
    for inner, axis, other in (("positions", 2, 1), ("channels", 1, 2)):
        if shape[axis] > 1 and all(t[axis] == 1 for t in strides):
            apart = [shape[axis], *(t[0] for t in strides), *(t[other] for t in strides if shape[other] > 1)]
            return inner, math.gcd(aligned // itemsize, *apart)
    return "", 1
