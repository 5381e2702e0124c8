"""The constants that GroupNorm's kernels are compiled with: one frozen dataclass for each kernel, its parameter K.

ACT : the activation, or None
INNER : the axis whose elements are adjacent in memory: "channels" in channels_last, "positions", or "" if neither is
VEC : elements of a vector load: runs along INNER start at multiples of VEC in every tensor, and in memory
OWN : a group has the weight and bias, not a channel: a channel of BatchNorm is a group here
PTX : the target has sm_90's instructions, which the interpreter and other GPUs do not have
SHORT : what the blocks of shared groups lack: "" nothing; "channels" channels, or whole blocks: what is loaded there is
    0, as are statistics and parameters, and nothing of it is used; "positions" also a part of the positions, which a
    sum has to leave out
EVEN : no block of a held group is short
BLOCK_G, BLOCK_C, BLOCK_S : groups, channels and positions of a block
WIDE, BLOCKS : tiles of channels and blocks of positions of a held group
STAGES : blocks that are loaded at a time
COMPUTED : blocks that a program of the results computes
STREAM : they are loaded one by one
EVICT : the eviction policy of their loads and stores
SUMS : some programs of the launch sum
ONCE : a group's sums are loaded all at once
RANKS, COLS : lines of sums, and sums of a line, that are loaded at a time; RANKS is 0 if sums are merged already
MANY : groups that are merged at a time
LINES, CHANNELS, BLOCK_M : lines, channels and samples of a block of the last sums
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Whole:
    """Of `held.forward_whole` and `held_backward.backward_whole`."""

    ACT: str | None
    INNER: str
    VEC: int
    OWN: bool
    PTX: bool
    BLOCK_G: int
    BLOCK_C: int
    BLOCK_S: int


@dataclass(frozen=True)
class Held:
    """Of `held.forward_held` and `held_backward.backward_held`."""

    ACT: str | None
    INNER: str
    VEC: int
    OWN: bool
    PTX: bool
    EVEN: bool
    BLOCK_C: int
    BLOCK_S: int
    WIDE: int
    BLOCKS: int

    EVICT = ""

    @property
    def SHORT(self) -> str:
        """What the blocks lack, in the words of shared groups."""
        return "" if self.EVEN else "positions"


@dataclass(frozen=True)
class OverSamples:
    """Of `held_backward.over_samples`."""

    PTX: bool
    BLOCK_M: int
    BLOCK_C: int


@dataclass(frozen=True)
class ForwardSums:
    """Of `forward.forward_sums`."""

    INNER: str
    VEC: int
    PTX: bool
    SHORT: str
    BLOCK_C: int
    BLOCK_S: int
    STAGES: int


@dataclass(frozen=True)
class ForwardMerge:
    """Of `forward.forward_merge`."""

    PTX: bool
    ONCE: bool
    RANKS: int
    COLS: int
    MANY: int
    BLOCK_C: int


@dataclass(frozen=True)
class ForwardTurn(ForwardSums):
    """Of `forward.forward_turn`."""

    ACT: str | None
    OWN: bool
    ONCE: bool
    RANKS: int
    COLS: int
    MANY: int
    COMPUTED: int
    EVICT: str
    SUMS: bool


@dataclass(frozen=True)
class BackwardSums(ForwardSums):
    """Of `backward.backward_sums`."""

    ACT: str | None
    OWN: bool
    EVICT: str


@dataclass(frozen=True)
class BackwardMerge:
    """Of `backward.backward_merge`."""

    OWN: bool
    INNER: str
    VEC: int
    PTX: bool
    RANKS: int
    COLS: int
    MANY: int
    BLOCK_C: int


@dataclass(frozen=True)
class BackwardTurn(BackwardSums):
    """Of `backward.backward_turn`."""

    STREAM: bool
    RANKS: int
    COLS: int
    MANY: int
    COMPUTED: int
    SUMS: bool


@dataclass(frozen=True)
class OverMembers:
    """Of `backward.over_members`."""

    PTX: bool
    LINES: int
    CHANNELS: int
    BLOCK_C: int
