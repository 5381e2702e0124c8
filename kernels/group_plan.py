"""How GroupNorm's groups are divided among programs: by their size and layout, and by nothing else.

A group's bits may not depend on how many other groups there are.
"""

import functools
import math
from typing import Any, NamedTuple

import triton
from torch import Tensor

WHOLE = {"cuda": 32768, "cpu": 8192}  # lanes of x, or of x and dy, that a program may hold of whole groups
FEW = {"cuda": 1024, "cpu": 16384}  # lanes that smaller groups fill together
BLOCK = {"cuda": 2048, "cpu": 4096}  # lanes of a block of a shared group
SUMMED, COMPUTED = 8, 4  # blocks that one program sums over, if there are enough, and computes
STAGES = 4  # blocks that are loaded ahead
MEMBERS = 512  # of a unit at most: more than fill a GPU
TOGETHER = 2048  # sums that every program of the results may merge for itself
LINE = 64  # bytes that have to be adjacent, or memory is read at less than its speed


class Plan(NamedTuple):
    """How groups are divided: a unit is so many `groups`, has `wide` tiles of channels and `blocks` of positions.

    So many `members` are programs that sum over it; there are none where a program holds whole groups. `merging` are
    the constants of what merges these sums, and `itself` says that every program of the results does so.
    """

    constants: dict[str, Any]
    groups: int = 1
    wide: int = 1
    blocks: int = 1
    members: int = 0
    merging: dict[str, Any] | None = None
    itself: bool = False


@functools.lru_cache(4096)
def plan(C: int, S: int, G: int, inner: str, vec: int, itemsize: int, arrays: int, device: str) -> Plan:
    """The plan for x (B, C, S) in G groups, of so many bytes an element, where a program holds so many such arrays.

    >>> plan(320, 4096, 32, "positions", 8, 2, 1, "cuda")[1:5]  # of Stable Diffusion: ten channels a group
    (1, 10, 2, 10)
    >>> plan(32, 4096, 8, "positions", 4, 4, 1, "cuda").members  # a group of 16384 values is held as it is
    0
    """
    group = C // G
    channels, positions = triton.next_power_of_2(group), triton.next_power_of_2(max(S, 1))
    if channels * positions * arrays <= WHOLE[device]:
        if channels * positions <= FEW[device]:  # sizes that differ little share one compiled variant
            channels, positions = (n << (n.bit_length() - 1) % 2 for n in (channels, positions))  # powers of four
        few = max(FEW[device] // (channels * positions), 1)
        warps = min(max(few * channels * positions * arrays // 1024, 4), 16)
        vec = math.gcd(vec, group) if inner == "channels" else vec  # groups have to start where vectors do
        constants = {"INNER": inner, "VEC": vec, "BLOCK_C": channels, "BLOCK_S": positions, "num_warps": warps}
        return Plan(constants | {"BLOCK_G": few})
    lanes = BLOCK[device]
    groups, block_c = _unit(C, G, vec, itemsize) if inner == "channels" else (1, _channels(group, S, lanes))
    block_s, width = max(lanes // block_c, 1), groups * group
    wide, blocks = triton.cdiv(width, block_c), triton.cdiv(S, block_s)
    members = wide * min(max(blocks // SUMMED, 1), max(MEMBERS // wide, 1))
    vec = math.gcd(vec, width) if inner == "channels" else vec
    cols = min(channels, block_c)
    ranks = min(16 if members <= 16 else MEMBERS, max(2 * TOGETHER // cols, 1))
    return Plan(
        {"INNER": inner, "VEC": vec, "BLOCK_C": block_c, "BLOCK_S": block_s, "STAGES": STAGES, "num_warps": 4},
        groups, wide, blocks, members,
        {"BLOCK_C": block_c, "RANKS": ranks, "COLS": cols, "num_warps": 8},
        inner != "channels" and members * block_c <= TOGETHER,
    )  # fmt: skip


def _unit(C: int, G: int, vec: int, itemsize: int) -> tuple[int, int]:
    """How many groups are a unit where channels are adjacent, and how many channels a block has.

    So many groups that lines of memory are read, that vectors stay as wide as they are, and that the fewest lanes idle.
    """
    group = C // G
    several = [n for n in range(1, G + 1) if n * group <= 128 and (n * group * itemsize >= LINE or n == G)]
    if not several:
        return 1, min(128, triton.next_power_of_2(group))

    def cost(n: int) -> tuple[int, int, int]:
        return -math.gcd(vec, n * group), triton.cdiv(G, n) * triton.next_power_of_2(n * group), -n

    best = min(several, key=cost)
    return best, triton.next_power_of_2(best * group)


def _channels(group: int, S: int, lanes: int) -> int:
    """How many channels a block of so many lanes has: with the fewest lanes idle, then the fewest channels."""
    powers = [2**k for k in range(lanes.bit_length()) if 2**k <= triton.next_power_of_2(group)]
    return min(powers, key=lambda c: (triton.cdiv(group, c) * triton.cdiv(S, lanes // c), c))


def adjacent(*tensors: Tensor) -> tuple[str, int]:
    """Which axis of all these (B, C, S) has adjacent elements, and of how many from each multiple of it a load can be.

    >>> import torch
    >>> adjacent(torch.empty(2, 4, 6)), adjacent(torch.empty(2, 6, 4).mT), adjacent(torch.empty(2, 4, 6)[..., ::2])
    (('positions', 2), ('channels', 4), ('', 1))
    """
    shape = tensors[0].shape
    for inner, axis, others in (("positions", 2, (0, 1)), ("channels", 1, (0, 2))):
        if shape[axis] > 1 and all(t.stride(axis) == 1 for t in tensors):
            apart = (shape[axis], *(t.stride(other) for t in tensors for other in others if shape[other] > 1))
            aligned = all(t.data_ptr() % 16 == 0 for t in tensors)
            return inner, math.gcd(16 // tensors[0].itemsize, *apart) if aligned else 1
    return "", 1
