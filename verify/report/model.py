"""The Report: all that a run found, as frozen data."""

from __future__ import annotations

from dataclasses import dataclass, field

from verify_norm.spec import CaseSpec, Contract, Finding
from verify_norm.ulp import UlpStats

SCHEMA = 1


class FindingsError(AssertionError):
    """A kernel has findings, or nothing of it could be checked: what a test fails with."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What one output in one type came to, over all cases: its errors in ulp, and the worst error against its bound.

    `unjudged` counts elements to which no bound applies, because the truth or the declared arithmetic overflows.
    """

    output: str
    dtype: str
    cases: int = 0
    elements: int = 0
    unjudged: int = 0
    ulp: UlpStats = field(default_factory=UlpStats)
    ratio: float = 0.0
    worst: CaseSpec | None = None
    index: tuple[int, ...] | None = None

    def merge(self, other: Tally) -> Tally:
        """Both sets of cases together."""
        worse = other if other.ratio > self.ratio else self
        return Tally(
            self.output,
            self.dtype,
            self.cases + other.cases,
            self.elements + other.elements,
            self.unjudged + other.unjudged,
            self.ulp.merge(other.ulp),
            worse.ratio,
            worse.worst,
            worse.index,
        )


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check over a run: the cases in which it had something to look at, and those in which it found something.

    `power` is the smallest relative error that it would have caught in a typical comparison, where that varies. Of a
    property that the kernel does not promise, `held` counts the cases in which it held, of `observed`.
    """

    name: str
    summary: str
    cases: int
    failed: int
    power: float | None = None
    held: int = 0
    observed: int = 0


@dataclass(frozen=True, slots=True)
class Power:
    """The smallest errors of one output in one type that would have shown, by errors put into what was returned.

    Medians over `cases` cases, so what a typical one shows: `element` is the error of one element in units of its
    bound, `row` the relative error of all elements of one row, `bias` that of all elements; `least` is the smallest
    such bias that any case shows. `dropped` is the share of the cases in which a term left out of the sums shows, None
    where that was not tried.
    """

    output: str
    dtype: str
    cases: int
    element: float
    row: float
    bias: float
    least: float
    dropped: float | None


@dataclass(frozen=True, slots=True)
class Skip:
    """Something that was not checked, and why."""

    what: str
    reason: str
    cases: int = 1


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for."""

    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")
    checks: tuple[str, ...] = ()
    examples: int = 400
    seconds: float = 55.0
    seed: int = 0
    device: str = "cpu"
    shapes: str = "fuzz"
    timeout: float | None = None  # seconds for one case, more for larger ones; None: the device's (search.TIMEOUT)
    isolate: bool = True


@dataclass(frozen=True, slots=True)
class Report:
    """The verdict on one kernel, and everything that it rests on."""

    kernel: str
    op: str
    target: str
    backend: str
    contract: Contract
    settings: Settings
    environment: dict[str, str]
    cases: int
    seconds: float
    seconds_in_kernel: float
    findings: tuple[Finding, ...]
    tallies: tuple[Tally, ...]
    checks: tuple[CheckResult, ...]
    skipped: tuple[Skip, ...]
    layouts: dict[str, int]
    power: tuple[Power, ...] = ()
    interrupted: bool = False
    bind: str = ""
    schema: int = SCHEMA

    def raise_for_findings(self) -> None:
        """Raise FindingsError, which tells all of them, where there are findings, or nothing was checked."""
        from verify_norm.report.text import failures

        if said := failures(self):
            raise FindingsError(said)

    @property
    def checked(self) -> bool:
        """Whether any check had anything to look at."""
        return any(check.cases for check in self.checks)

    @property
    def ok(self) -> bool:
        """Whether something was checked, to the end, and nothing was found."""
        return self.checked and not self.findings and not self.interrupted
