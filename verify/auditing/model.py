"""What an audit finds, as frozen data: errors in ulp, a map of them over the rows, ladders, hunts, and the whole."""

from __future__ import annotations

from dataclasses import dataclass

from verify_norm.fingerprint.statement import Fingerprint
from verify_norm.report.model import SCHEMA, Report, Skip
from verify_norm.spec import CaseSpec


@dataclass(frozen=True, slots=True)
class WorstCase:
    """One element of one case: its error in ulp and against its bound, where it is, and the case that replays it."""

    ulp: float
    ratio: float
    got: float
    want: float
    index: tuple[int, ...]
    spec: CaseSpec


@dataclass(frozen=True, slots=True)
class Averages:
    """Averages over the elements of one output in random data, in ulp, and what rounding and the bound explain of them.

    Parameters
    ----------
    count : elements.
    excess : mean of |got − want| − |round(want) − want|: what the errors have beyond the one unavoidable rounding.
    excess_allowed : the largest that a kernel of this contract has.
    bias : mean signed error, beyond that rounding; positive where results are too large in magnitude.
    bias_allowed : the largest in magnitude.
    """

    count: int
    excess: float
    excess_allowed: float
    bias: float
    bias_allowed: float


@dataclass(frozen=True, slots=True)
class UlpReport:
    """The errors of one output in one type, over all cases.

    Parameters
    ----------
    cases, elements, unjudged : how much was looked at, and to how many elements no bound applies.
    maximum, mean, p50, p99, p999 : in ulp; quantiles are right within 19 %.
    nonfinite : elements that are finite where the truth is not, or the reverse.
    correct : share of the values that are the nearest number of their type.
    bias : mean signed error in ulp, positive where results are too large in magnitude.
    ratio : the largest error/bound.
    histogram : how many errors lie below each power of 2 (the first number of each pair) and not below the one before;
        the last holds what is larger or not finite.
    by_ulp, by_ratio : the worst cases, an element of each, the worst first.
    averages : the mean error and the bias in random data; None where none was random.
    """

    output: str
    dtype: str
    cases: int
    elements: int
    unjudged: int
    maximum: float
    mean: float
    p50: float
    p99: float
    p999: float
    nonfinite: int
    correct: float
    bias: float
    ratio: float
    histogram: tuple[tuple[float, int], ...]
    by_ulp: tuple[WorstCase, ...] = ()
    by_ratio: tuple[WorstCase, ...] = ()
    averages: Averages | None = None


@dataclass(frozen=True, slots=True)
class Heat:
    """Where in its rows one case is wrong: the largest error, in ulp, in each cell of a grid over the output.

    Parameters
    ----------
    rows, columns : the output's size as rows (samples, groups or channels) of elements.
    cells : of each block of rows one tuple, with a number for each block of columns; NaN errors are infinite.
    """

    output: str
    dtype: str
    rows: int
    columns: int
    cells: tuple[tuple[float, ...], ...]
    spec: CaseSpec


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of a ladder.

    Parameters
    ----------
    value : what changes.
    error_ulp : the error of the worst row, its Euclidean norm over √N, in ulps of the row's root mean square; inf where
        there is no number. Of dweight and dbias, of all elements together.
    ratio : the largest error/bound of any element; 0 where none is judged.
    textbook : the same error for each algorithm.
    spec : the case, where a spec says it.
    """

    value: float
    error_ulp: float
    ratio: float
    textbook: dict[str, float]
    spec: CaseSpec | None = None


@dataclass(frozen=True, slots=True)
class Ladder:
    """How the error of one output grows.

    Parameters
    ----------
    name, unit : what changes, and what it is measured in.
    first_over : the value of the first rung beyond its bound; None where all are within.
    like : the algorithms whose errors the kernel's resemble, the nearest first; several where they cannot be told
        apart, none where it is like none.
    stopped : why the ladder ends before its last rung; "" where it does not.
    """

    name: str
    unit: str
    output: str
    dtype: str
    rungs: tuple[Rung, ...]
    first_over: float | None = None
    like: tuple[str, ...] = ()
    stopped: str = ""

    @property
    def resembles(self) -> str | None:
        """The one algorithm that the kernel is like; None where it is like none, or like several."""
        return self.like[0] if len(self.like) == 1 else None


@dataclass(frozen=True, slots=True)
class Worst:
    """The worst case of one output: by error/bound, or in ulp.

    `found` tells by which stage: "corpus", "drawn" or "evolved". `beyond` is what moving the data made of it: as large
    or larger.
    """

    output: str
    measure: str  # "ratio" or "ulp"
    value: float
    spec: CaseSpec
    found: str
    beyond: float


@dataclass(frozen=True, slots=True)
class Hunt:
    """What a hunt found: for each output the worst case in either measure, and how much was tried."""

    kernel: str
    op: str
    seconds: float
    cases: int
    drawn: int
    evolved: int
    moved: int
    worst: tuple[Worst, ...]

    def ratio(self, output: str | None = None) -> float:
        """The largest error/bound that a spec replays, of one output or of any."""
        return max((w.value for w in self.worst if w.measure == "ratio" and output in (None, w.output)), default=0.0)


@dataclass(frozen=True, slots=True)
class Audit:
    """All that an audit finds of one kernel.

    Parameters
    ----------
    report : the checks' verdict, as an ordinary run has it.
    ulps, heat, ladders, fingerprint : as their types say; empty, or None, where that part was not done.
    disagreements : what the kernel does that its contract excludes, a line each.
    skipped : the parts that were not done, and why.
    seconds : of all of it.
    """

    report: Report
    ulps: tuple[UlpReport, ...] = ()
    heat: tuple[Heat, ...] = ()
    ladders: tuple[Ladder, ...] = ()
    fingerprint: Fingerprint | None = None
    disagreements: tuple[str, ...] = ()
    skipped: tuple[Skip, ...] = ()
    seconds: float = 0.0
    schema: int = SCHEMA

    @property
    def ok(self) -> bool:
        """Whether the checks pass, and the arithmetic that shows is what the contract says."""
        return self.report.ok and not self.disagreements


Document = Report | Audit


def report_of(document: Document) -> Report:
    """The report, also of an audit."""
    return document.report if isinstance(document, Audit) else document
