"""What checks say of a run: findings, and how far the checks saw. Loads no torch."""

from dataclasses import dataclass
from typing import Literal

from verify_norm.core.spec import CaseSpec

Status = Literal["fail", "error"]
Sign = Literal[1, -1]
SIGNS: tuple[Sign, ...] = (1, -1)  # of an error that is put in
OF_SUMS = ("gradient", "identities", "sums")  # the checks that judge sums over rows
SUMMED = ("dx", "dresidual")  # the outputs that they sum


@dataclass(frozen=True, slots=True)
class Condition:
    """What the data of a case do to an element, whatever the kernel: see `verify_norm.checks.condition`.

    Parameters
    ----------
    cancellation : Σ|t|/|Σt|, t the terms that the element is a sum of. It enlarges their relative errors.
    offset : |μ|/σ of the row, group or channel. It enlarges the relative errors of x − μ.
    variance : var/(var + eps): near 1 eps does not matter, near 0 the data do not.

    Each is None where the element has no such number, as dbias = Σdy has no variance.
    """

    cancellation: float | None
    offset: float | None
    variance: float | None

    def __str__(self) -> str:
        """Return the numbers in words."""
        numbers = {"Σ|t|/|Σt|": self.cancellation, "|μ|/σ": self.offset, "var/(var + eps)": self.variance}
        return ", ".join(f"{name} {value:.3g}" for name, value in numbers.items() if value is not None)


@dataclass(frozen=True, slots=True)
class Finding:
    """One way in which a kernel is wrong, with the smallest case that shows it.

    Parameters
    ----------
    kernel : the kernel's name.
    check : the check that found it; "crash" if the process ended, or a tool of compute-sanitizer.
    output : the output that is wrong, None if the finding is about the call.
    status : "fail" if a result is wrong, "error" if there is none.
    message : what is wrong, in words, with the numbers.
    spec : the smallest case that shows it.
    index : the worst element; of a sum over a row, the row's number alone: see `row`.
    got : the value that the kernel returned, or that follows from what it returned.
    want : the value that is expected.
    ulp : how far the output is off, in ULP of its type; None where no such number applies.
    allowed : how far it may be off: in ULP where `ulp` is given, else in the unit of `got` and `want`.
    cases : the number of cases that showed it.
    after : the number of the first of them among the cases run, from 1.
    during : the check whose further run showed it; None if the first run of the case did.
    condition : the condition of the element, or of the worst row where no element is named.
    """

    kernel: str
    check: str
    output: str | None
    status: Status
    message: str
    spec: CaseSpec
    index: tuple[int, ...] | None = None
    got: float | None = None
    want: float | None = None
    ulp: float | None = None
    allowed: float | None = None
    cases: int = 1
    after: int = 1
    during: str | None = None
    condition: Condition | None = None

    @property
    def shown_by(self) -> str:
        """The check that has to run to show it again: that of the further run, for a crash in one."""
        return self.during or self.check

    @property
    def row(self) -> int | None:
        """The row, group or channel whose sum is wrong; None where `index` names an element."""
        of_sums = self.check in OF_SUMS and self.output in SUMMED and self.ulp is None
        if not of_sums or self.index is None or len(self.index) != 1 or len(self.spec.shape) == 1:
            return None
        return self.index[0]


@dataclass(frozen=True, slots=True)
class SmallestError:
    """The smallest errors of an output that a check alone would have detected in one case: see `checks.power`.

    Each is the e of a factor 1 + sign·e before the last rounding: of all elements, of one row, of one element; inf
    where the check detects none, None where it does not tell. `dropped`: whether a term left out of the sums shows.
    """

    output: str
    sign: Sign
    everything: float
    row: float | None = None
    element: float | None = None
    dropped: bool | None = None


@dataclass(frozen=True, slots=True)
class OverProbable:
    """The largest error of an output in one case, over what roundings of random sign explain."""

    output: str
    ratio: float


@dataclass(frozen=True, slots=True)
class Observed:
    """Whether a property held in one case, though the kernel does not promise it."""

    held: bool


@dataclass(frozen=True, slots=True)
class NoData:
    """Says that a check had nothing to look at in one case, which only its further runs could tell."""


@dataclass(frozen=True, slots=True)
class Note:
    """Says what a check noticed in one case that is no finding."""

    words: str


@dataclass(frozen=True, slots=True)
class Tried:
    """Says which of its ways a check took in one case, and which norm operators of torch ran in the kernel there.

    `ended`: a thread of the kernel's ended there, so that its process is not as it was. `refused`: the kernel does not
    run in this way, so nothing was compared.
    """

    way: str
    operators: tuple[str, ...] = ()
    ended: bool = False
    refused: bool = False

    @property
    def words(self) -> str:
        """The way, as a report names it."""
        return f"{self.way} (refused)" if self.refused else self.way
