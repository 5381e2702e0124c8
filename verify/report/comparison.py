"""What two runs differ in, as frozen data: see `verify_norm.report.compare`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SCHEMA = 1  # of a comparison's JSON

Way = Literal["worse", "better", "changed", "same"]
Footing = Literal["the same cases", "typical data", "other cases"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a number may get worse: `[tool.verify-norm.compare]` in pyproject.toml sets any of them.

    Parameters
    ----------
    ratio : factor of error/bound, over the same cases.
    mean : factor of the mean error, in which no error counts as more than 16 ULP; nor does less than 0.05 ULP count.
    bias : of the mean signed error, in ULP.
    p99 : factor of the 99th percentile.
    share : part of a narrow output's elements that may cease to be rounded right.
    ratio_elsewhere, share_elsewhere : the same where the runs met other cases.
    cases : part of the cases that there are to be again, where as many were asked for.
    """

    ratio: float = 1.5
    mean: float = 1.5
    bias: float = 0.05
    p99: float = 2.0
    share: float = 0.01
    ratio_elsewhere: float = 8.0
    share_elsewhere: float = 0.5
    cases: float = 0.5


@dataclass(frozen=True, slots=True)
class Errors:
    """The errors of one output in one type over some cases, in ulp.

    Parameters
    ----------
    typical : whether the cases are an audit's typical data, not those of the checks.
    elements : those judged.
    ratio : the largest error/bound.
    mean, bias, p99, correct : as a report has them.
    capped, rms, capped_rms : the mean, with errors above 16 ULP counted as 16; the root mean square without and with
        that. Read off a histogram, nan where it is none that can be read.
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
    capped_rms: float


@dataclass(frozen=True, slots=True)
class Row:
    """Both runs' errors of one output in one type, and on what footing they are compared."""

    old: Errors
    new: Errors
    footing: Footing


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is not as it was; "same" is a finding that persists.

    Parameters
    ----------
    kind : "finding", "coverage", "errors", "contract", "ladder" or "fingerprint".
    what : what it is about, as "y float16 rounded right".
    old, new : in words or numbers.
    why : what makes it count, or why it may be chance; "" where that needs no word.
    replay : the command that runs its case again.
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
    kernel, old_kernel : their names, which are the same but where one kernel is compared with another.
    same_cases : whether both ran the same cases.
    changes : the worse first.
    notes : what else the two differ in.
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
        """The changes of that way."""
        return tuple(change for change in self.changes if change.way == way)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two files of reports: the kernels that are in both, and the names of those that are in one alone."""

    pairs: tuple[Pair, ...]
    old_alone: tuple[str, ...] = ()
    new_alone: tuple[str, ...] = ()
    schema: int = SCHEMA

    @property
    def worse(self) -> bool:
        """Whether anything got worse."""
        return any(pair.of("worse") for pair in self.pairs)
