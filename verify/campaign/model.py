"""The nouns of a campaign: a unit of its work, and what became of it. Loads no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from verify_norm.core.errors import Exit, UsageError
from verify_norm.core.results import Report

LOSSES = 3  # a unit that has ended this number of processes is a finding


class LostError(UsageError):
    """What examines units is gone before all were done; what is entered is kept, and the same campaign goes on."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One kernel in one type and one block of random cases; the first block also has the corner table.

    `id` is a digest of all that determines the cases and their outcomes: the fields below, the settings of the plan and
    the text of the kernel's file, whose digest is `source`. `number` is the place in the plan. `accelerator` is the one
    that it is for, such as "H100"; "" is any.
    """

    id: str
    number: int
    kernel: str
    op: str
    bind: str
    contract: str
    only: str
    dtype: str
    block: int
    seed: int
    examples: int
    source: str
    accelerator: str = ""

    def __str__(self) -> str:
        """Return the unit in words."""
        where = f", on {self.accelerator}" if self.accelerator else ""
        return f"{self.kernel} ({self.op}), {self.dtype}, block {self.block}{where}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a unit, in the process `worker`, from `started` to `finished`, in seconds since 1970.

    One of three: its `report`; the `problem` why there is none, such as a package that is not installed; or how it
    `ended` the process. With a report there may be `traits`, which are compared between accelerators.
    """

    unit: str
    worker: str
    started: float
    finished: float
    report: Report | None = None
    problem: str = ""
    ended: str = ""
    traits: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> Exit:
        """Return the verdict on the unit."""
        if self.report is None:
            return Exit.FINDINGS if self.ended else Exit.NOTHING
        return self.report.verdict
