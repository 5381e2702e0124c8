"""The differences between two runs, as frozen data: see `verify_norm.report.compare.compare`."""

from dataclasses import dataclass
from typing import Literal

SCHEMA = 2  # of a comparison's JSON

Way = Literal["worse", "better", "changed", "same"]


@dataclass(frozen=True, slots=True)
class Errors:
    """The errors of one output in one type over some cases, in ulp.

    Parameters
    ----------
    typical : whether the cases are an audit's typical data; else they are the cases of the checks.
    elements : the number of elements with a bound.
    ratio : the largest error/bound.
    mean, bias, p99, correct : as in a report.
    capped : the mean error, where an error above 16 ULP counts as 16.
    rms : the root mean square. Both come from the histogram; nan where the histogram has unknown bins.
    """

    output: str
    dtype: str
    typical: bool
    cases: int
    elements: int
    ratio: float
    mean: float
    bias: float
    p99: float
    correct: float
    capped: float
    rms: float


@dataclass(frozen=True, slots=True)
class Row:
    """The errors of one output in one type, in both runs and over the same cases."""

    old: Errors
    new: Errors


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two runs; "same" is a finding that persists.

    Parameters
    ----------
    kind : "finding", "coverage", "errors", "contract", "ladder" or "fingerprint".
    what : the subject, such as "y float16 rounded correctly".
    old, new : in words or numbers.
    why : the reason or the limit; "" where none is needed.
    replay : the command that runs the case of a finding again.
    """

    kind: str
    way: Way
    what: str
    old: str
    new: str
    why: str = ""
    replay: str = ""


@dataclass(frozen=True, slots=True)
class Pair:
    """One kernel in both runs.

    Parameters
    ----------
    kernel, old_kernel : the names; they differ where one kernel is compared with another.
    same_cases : whether the checks saw the same cases. False only between audits: random cases follow a kernel's
        errors, and an audit is compared by its typical data.
    changes : the worse ones first.
    notes : further differences between the runs, a sentence each.
    """

    kernel: str
    old_kernel: str
    op: str
    old_cases: int
    new_cases: int
    same_cases: bool
    changes: tuple[Change, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def of(self, way: Way) -> tuple[Change, ...]:
        """Return the changes of one kind."""
        return tuple(change for change in self.changes if change.way == way)


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Two files of reports: the kernels in both, and the names of those in one file only."""

    pairs: tuple[Pair, ...]
    old_alone: tuple[str, ...] = ()
    new_alone: tuple[str, ...] = ()
    schema: int = SCHEMA

    @property
    def worse(self) -> bool:
        """Whether anything got worse."""
        return any(pair.of("worse") for pair in self.pairs)
