"""What the cases of a run detect together: `verify_norm.checks.power` says what a case detects.

A run detects by its most sensitive case. All runs of an operator have the same corner cases, so an error of all
elements is detected in every run from the least e of a corner case on. Random cases may detect smaller ones, but the
next run draws others. An error of one row or one element lies somewhere in each case, and elsewhere in another kernel:
RANK cases have to detect e, of different shapes, since Hypothesis makes variants of a case with a large error. Then
another run has RANK such cases in the mean, and by Poisson's law none with a probability of e⁻³ = 5 %.
"""

from dataclasses import dataclass, field

from verify_norm.core.finding import SIGNS, Sign, SmallestError
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import Detectable

RANK = 3


@dataclass(slots=True)
class DetectedErrors:
    """What the cases so far say of one check and one output in one type."""

    errors: list[tuple[SmallestError, CaseSpec, bool]] = field(default_factory=list)  # the last: it is a corner case

    def detectable(self, check: str, output: str, dtype: str) -> Detectable:
        """Return what the run detects: for each kind of error the larger e of both signs."""
        dropped = [error.dropped for error, *_ in self.errors if error.dropped is not None]
        everything = max(map(self._of_all, SIGNS))
        row, element = (self._somewhere(name) for name in ("row", "element"))
        share = sum(dropped) / len(dropped) if dropped else None
        return Detectable(check, output, dtype, len(self.errors) // len(SIGNS), everything, row, element, share)

    def _of_all(self, sign: Sign) -> float:
        corner = [error.everything for error, _, corner in self.errors if error.sign == sign and corner]
        return min(corner) if corner else _ranked(self._by_shape("everything", sign))

    def _somewhere(self, name: str) -> float | None:
        by_shape = [self._by_shape(name, sign) for sign in SIGNS]
        return max(map(_ranked, by_shape)) if all(by_shape) else None

    def _by_shape(self, name: str, sign: Sign) -> list[float]:
        """Return the least e of each shape; nothing if the check does not tell."""
        least: dict[tuple[int, ...], float] = {}
        for error, spec, _ in self.errors:
            if error.sign == sign and (e := getattr(error, name)) is not None:
                least[spec.shape] = min(e, least.get(spec.shape, e))
        return list(least.values())


def _ranked(errors: list[float]) -> float:
    return sorted(errors)[min(RANK, len(errors)) - 1]
