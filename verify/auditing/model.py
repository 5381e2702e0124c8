"""The results of an audit as frozen data: errors in ulp, heat maps, ladders, hunts and the whole audit."""

from dataclasses import dataclass

from verify_norm.auditing.fingerprint.statement import Fingerprint
from verify_norm.core.coverage import barely
from verify_norm.core.errors import Exit
from verify_norm.core.finding import Condition
from verify_norm.core.results import SCHEMA, Report, worst_of
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import Skip, Tally
from verify_norm.core.ulp import HIGHEST, LOWEST, PER_OCTAVE, UlpStats

LOST = "the kernel was lost: "  # begins the reason of a part that is missing


@dataclass(frozen=True, slots=True)
class WorstCase:
    """One element of one case: its errors in ulp and in bounds, its values, its index, the spec, its condition."""

    ulp: float
    ratio: float
    got: float
    want: float
    index: tuple[int, ...]
    spec: CaseSpec
    condition: Condition | None = None


@dataclass(frozen=True, slots=True)
class Averages:
    """Average errors of one output over random data, in ulp, and how large a kernel of this contract may have them."""

    count: int  # elements
    excess: float  # mean of |got − want| − |round(want) − want|, the error beyond one correct rounding
    excess_allowed: float
    bias: float  # mean of (got − round(want))·sgn(want): positive where results are too large in magnitude
    bias_allowed: float


@dataclass(frozen=True, slots=True)
class UlpReport:
    """The errors of one output in one dtype over all cases, in ulp; a quantile is right within 19 %."""

    output: str
    dtype: str
    cases: int
    elements: int
    unjudged: int  # elements without a bound
    maximum: float
    mean: float
    p50: float
    p99: float
    p999: float
    nonfinite: int  # elements that are finite where the truth is not, or the reverse
    correct: float  # fraction of correctly rounded values
    bias: float  # mean signed error: positive where results are too large in magnitude
    ratio: float  # the largest error/bound
    histogram: tuple[tuple[float, int], ...]  # (upper edge, count) of each octave; the last with larger and non-finite
    by_ulp: tuple[WorstCase, ...] = ()  # the worst element of each of the worst cases, worst first
    by_ratio: tuple[WorstCase, ...] = ()
    averages: Averages | None = None  # None if no case was random
    probable: float | None = None  # the largest error over the probable error of a long sum


def summary(tally: Tally) -> UlpReport:
    """Return the report of a tally, without worst cases and averages.

    >>> import numpy as np
    >>> from verify_norm.core.dtypes import FORMATS
    >>> stats = UlpStats.of(np.array([1.0, 1.0078125]), np.array([1.001953125, 1.0]), FORMATS["bfloat16"])
    >>> summary(Tally("y", "bfloat16", 1, 2, ulp=stats)).histogram
    ((0.5, 1), (1.0, 0), (2.0, 1))
    """
    ulp = tally.ulp
    p50, p99, p999 = (ulp.quantile(q) for q in (0.5, 0.99, 0.999))
    counts = tally.output, tally.dtype, tally.cases, tally.elements, tally.unjudged
    errors = ulp.maximum, ulp.mean, p50, p99, p999, ulp.nonfinite, ulp.correctly_rounded, ulp.bias
    values = (*counts, *errors, tally.ratio, _octaves(ulp))
    return UlpReport(*values, probable=tally.probable)


def _octaves(ulp: UlpStats) -> tuple[tuple[float, int], ...]:
    """Return (upper edge, count) of each octave, from the first to the last that is not empty."""
    below, *fine, above = ulp.histogram
    octaves = [sum(fine[first : first + PER_OCTAVE]) for first in range(0, len(fine), PER_OCTAVE)]
    edges = [2.0**power for power in range(LOWEST, HIGHEST + 1)]
    counts = list(zip((*edges, float("inf")), (below, *octaves, above), strict=True))
    filled = [i for i, (_, count) in enumerate(counts) if count]
    return tuple(counts[filled[0] : filled[-1] + 1]) if filled else ()


@dataclass(frozen=True, slots=True)
class Heat:
    """A heat map of one case: the largest error, in ulp, in each cell of a grid over the output."""

    output: str
    dtype: str
    rows: int  # of the output: samples, groups or channels
    columns: int  # elements of a row
    cells: tuple[tuple[float, ...], ...]  # a tuple for each block of rows; inf where a value is NaN
    spec: CaseSpec


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of a ladder: the largest error of a row, and those of textbook algorithms on the same data.

    The error of a row is its root mean square in ulps of the row's root mean square, inf where a value is not a number.
    For dweight and dbias it is the error of all elements together.
    """

    value: float  # of what the ladder changes
    error_ulp: float
    ratio: float  # the largest error/bound of an element; 0 where no element has a bound
    textbook: dict[str, float]
    spec: CaseSpec | None = None  # None where no spec expresses the data


@dataclass(frozen=True, slots=True)
class Ladder:
    """How the error of one output grows with one property of the data."""

    name: str  # of the property
    unit: str
    output: str
    dtype: str
    rungs: tuple[Rung, ...]  # the steps
    first_over: float | None = None  # value of the first step that exceeds its bound
    like: tuple[str, ...] = ()  # textbook algorithms with errors like the kernel's, nearest first
    stopped: str = ""  # why the ladder ends early

    @property
    def resembles(self) -> str | None:
        """The only algorithm in `like`; None if there are none or several."""
        return self.like[0] if len(self.like) == 1 else None


@dataclass(frozen=True, slots=True)
class Worst:
    """The worst case of one output in one measure."""

    output: str
    measure: str  # "ratio" (error/bound) or "ulp"
    value: float
    spec: CaseSpec
    found: str  # in which stage of the hunt: "corpus", "drawn" or "evolved"
    beyond: float  # the error after the hunt also changed the data of the case; at least `value`


@dataclass(frozen=True, slots=True)
class Hunt:
    """The worst cases that a hunt found, and how many cases each of its stages ran."""

    kernel: str
    op: str
    seconds: float
    cases: int
    drawn: int
    evolved: int
    moved: int
    worst: tuple[Worst, ...]
    tried: int = 0  # cases, with those that the kernel does not take
    compared: int = 0  # cases in which an output has a bound
    problem: str = ""  # what the kernel raised, or returned instead of outputs, in the first case without any
    interrupted: bool = False  # by Ctrl-C

    @property
    def verdict(self) -> Exit:
        """FINDINGS where an error exceeds its bound; NOTHING where fewer than a tenth of the cases were compared."""
        if self.ratio() > 1:
            return Exit.FINDINGS
        if self.interrupted:
            return Exit.INCOMPLETE
        return Exit.NOTHING if barely(self.compared, self.tried) else Exit.PASS

    def ratio(self, output: str | None = None) -> float:
        """Return the largest error/bound that a spec replays, of one output or of all."""
        of_output = (one for one in self.worst if output in (None, one.output))
        return max((one.value for one in of_output if one.measure == "ratio"), default=0.0)


@dataclass(frozen=True, slots=True)
class Audit:
    """The results of an audit of one kernel; a part that was skipped is empty or None."""

    report: Report  # of the checks
    ulps: tuple[UlpReport, ...] = ()
    heat: tuple[Heat, ...] = ()
    ladders: tuple[Ladder, ...] = ()
    fingerprint: Fingerprint | None = None
    disagreements: tuple[str, ...] = ()  # a line for each property that the contract excludes
    skipped: tuple[Skip, ...] = ()
    seconds: float = 0.0  # with the time of the checks
    schema: int = SCHEMA

    @property
    def lost(self) -> tuple[str, ...]:
        """The parts in which the kernel crashed or hung, so that they are missing."""
        return tuple(skip.what for skip in self.skipped if skip.reason.startswith(LOST))

    @property
    def verdict(self) -> Exit:
        """The verdict of the checks; with it, a disagreement counts as a finding, and a lost part as incomplete."""
        if self.disagreements:
            return Exit.FINDINGS
        missing = self.lost and not self.report.settings.allow_incomplete
        return worst_of((self.report.verdict, Exit.INCOMPLETE if missing else Exit.PASS))

    @property
    def ok(self) -> bool:
        """Whether the checks pass, the fingerprint agrees with the contract, and no part was lost."""
        return self.verdict is Exit.PASS


Document = Report | Audit


def report_of(document: Document) -> Report:
    """Return the report of the checks in a report or an audit."""
    return document.report if isinstance(document, Audit) else document
