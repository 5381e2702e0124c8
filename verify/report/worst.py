"""The worst cases of a report beside what their data do: `verify_norm.checks.condition` says how."""

from collections.abc import Iterator
from dataclasses import dataclass

from verify_norm.core.dtypes import FORMATS
from verify_norm.core.finding import Condition
from verify_norm.core.results import Report
from verify_norm.core.spec import CaseSpec

CONDITION = ("Σ|t|/|Σt|", "|μ|/σ", "var/(var + eps)")  # the fields of Condition


@dataclass(frozen=True, slots=True)
class Worst:
    """The case of an output's largest error in one measure, "error/bound" or "ULP", and the element's condition."""

    output: str
    dtype: str
    measure: str
    error: float
    spec: CaseSpec
    condition: Condition | None

    @property
    def numbers(self) -> list[str]:
        """The numbers that CONDITION names."""
        if self.condition is None:
            return ["–"] * len(CONDITION)
        values = (self.condition.cancellation, self.condition.offset, self.condition.variance)
        return ["–" if value is None else f"{value:.3g}" for value in values]

    @property
    def rounding(self) -> bool:
        """Whether the last rounding alone explains the error."""
        narrow = self.dtype in FORMATS and FORMATS[self.dtype].precision < FORMATS["float32"].precision
        return self.error <= 1 and (narrow or self.measure == "ULP")


def worst_cases(report: Report) -> Iterator[Worst]:
    """Yield the case of the largest error/bound, and of the largest error in ulp, of every output and type."""
    for t in report.tallies:
        if t.worst is not None:
            yield Worst(t.output, t.dtype, "error/bound", t.ratio, t.worst, t.condition)
        if t.farthest is not None:
            yield Worst(t.output, t.dtype, "ULP", t.ulp.maximum, t.farthest.spec, t.farthest.condition)
