"""What the cases of a run detect together: `verify_norm.checks.power` says what a case detects.

A run detects by its most sensitive case. All runs of an operator have the same corner cases, so an error of all
elements is detected in every run from the least e of a corner case on. Random cases may detect smaller ones, but the
next run draws others. An error of one row or one element lies somewhere in each case, and elsewhere in another kernel:
RANK cases have to detect e, of different shapes, since Hypothesis makes variants of a case with a large error. Then
another run has RANK such cases in the mean, and by Poisson's law none with a probability of e⁻³ = 5 %.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from verify_norm.core.finding import SIGNS, Sign, SmallestError
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import Detectable

RANK = 3


class ErrorOfCase(NamedTuple):
    """The smallest errors of one sign that a check detects in one case, and whether that is a corner case."""

    error: SmallestError
    spec: CaseSpec
    corner: bool


@dataclass(slots=True)
class DetectedErrors:
    """What the cases so far say of one check and one output in one type."""

    errors: list[ErrorOfCase] = field(default_factory=list)

    def detectable(self, check: str, output: str, dtype: str) -> Detectable:
        """Return what the run detects: for each kind of error the larger e of both signs."""
        dropped = [one.error.dropped for one in self.errors if one.error.dropped is not None]
        return Detectable(
            check,
            output,
            dtype,
            cases=len(self.errors) // len(SIGNS),
            everything=max(self._everywhere(sign) for sign in SIGNS),
            row=self._somewhere("row"),
            element=self._somewhere("element"),
            dropped=sum(dropped) / len(dropped) if dropped else None,
        )

    def _everywhere(self, sign: Sign) -> float:
        """Return the e of all elements: the least of the corner cases; without these, of RANK random ones."""
        of_corners = [one.error.everything for one in self.errors if one.error.sign == sign and one.corner]
        return min(of_corners) if of_corners else _ranked(self._by_shape("everything", sign))

    def _somewhere(self, name: str) -> float | None:
        """Return the e of a "row" or an "element" of RANK cases; None if the check does not tell."""
        by_shape = [self._by_shape(name, sign) for sign in SIGNS]
        return max(map(_ranked, by_shape)) if all(by_shape) else None

    def _by_shape(self, name: str, sign: Sign) -> list[float]:
        """Return the least e of each shape; nothing if the check does not tell."""
        least: dict[tuple[int, ...], float] = {}
        for error, spec, _ in self.errors:
            e = getattr(error, name)
            if error.sign == sign and e is not None:
                least[spec.shape] = min(e, least.get(spec.shape, e))
        return list(least.values())


def _ranked(errors: list[float]) -> float:
    """Return the RANK-th smallest number, or the largest if there are fewer."""
    return sorted(errors)[min(RANK, len(errors)) - 1]
