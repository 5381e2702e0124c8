"""What checks say of a run: findings, and how far the checks saw. Loads no torch."""

from dataclasses import dataclass
from typing import Literal

from verify_norm.core.spec import CaseSpec

Status = Literal["fail", "error"]
Sign = Literal[1, -1]
SIGNS: tuple[Sign, ...] = (1, -1)  # of an error that is put in


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

    `during` names the check whose extra runs showed it. `cases` counts the cases that showed it, `after` the cases run
    until the first of them. `condition` is that of the element, or of the worst row where no element is named.
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

    `ended`: a thread of the kernel's ended there, so that its process is not as it was.
    """

    way: str
    operators: tuple[str, ...] = ()
    ended: bool = False
