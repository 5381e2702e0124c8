"""What a run spent on other things than cases: compilation, and the start of processes."""

from dataclasses import dataclass, fields

from typing_extensions import Self


@dataclass(frozen=True, slots=True)
class Compiled:
    """What was compiled, in a case or in a run; seconds of processes that run at the same time add up.

    `kernels` counts what Triton compiled, `cached` what it found on disk, `graphs` what torch.compile made; the
    `seconds` of graphs include those of their kernels.
    """

    kernels: int = 0
    cached: int = 0
    graphs: int = 0
    seconds: float = 0.0

    def __add__(self, other: Self) -> Self:
        """Return what was compiled in both."""
        return type(self)(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: Self) -> Self:
        """Return what was compiled since `other`."""
        return type(self)(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))


NOTHING = Compiled()


@dataclass(frozen=True, slots=True)
class Work:
    """How a run shared its work: `workers` is the number of processes that examined cases at the same time.

    `started` counts the processes started for them, for crashes and to make cases small. That took `starting` seconds,
    which add up as those of `compiled`.
    """

    workers: int = 1
    started: int = 0
    starting: float = 0.0
    compiled: Compiled = NOTHING
