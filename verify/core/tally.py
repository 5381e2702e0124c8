"""What a run counts: errors of each output, cases of each check, and what was not checked."""

from dataclasses import dataclass, field, replace

import numpy as np
from typing_extensions import Self

from verify_norm.core.dtypes import FORMATS
from verify_norm.core.finding import Condition
from verify_norm.core.judge import judged, ulps, worst
from verify_norm.core.run import Expected, Output
from verify_norm.core.spec import CaseSpec
from verify_norm.core.ulp import UlpStats


@dataclass(frozen=True, slots=True)
class Place:
    """One element of an output in one case, and its condition."""

    spec: CaseSpec
    index: tuple[int, ...]
    condition: Condition | None = None


@dataclass(frozen=True, slots=True)
class Tally:
    """The errors of one output in one type over all cases, in ulp, and the worst error relative to its bound.

    `unjudged` counts elements without a bound, because the truth or the declared arithmetic overflows. `worst` and
    `index` are where error/bound is largest, with the `condition` there; `farthest` is where the error in ulp is.
    `probable` is the largest error over the probable error of a long sum (`verify_norm.reference.probable`), as the
    check `sums` judges it; None where it judges no case.
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
    condition: Condition | None = None
    farthest: Place | None = None
    probable: float | None = None

    @classmethod
    def of(cls, name: str, output: Output, expected: Expected, spec: CaseSpec) -> Self:
        """Return the tally of one output in one case; `output.ratio` is not None."""
        assert output.ratio is not None
        known, ratio, form = judged(expected), float(output.ratio.max(initial=0.0)), FORMATS[expected.dtype]
        count, off = int(known.sum()), np.where(known, ulps(output.got, expected), 0.0)
        got, want, errors = output.got, expected.value, off
        if count < known.size:
            got, want, errors = got[known], want[known], off[known]
        ulp = UlpStats.of(got, want, form, expected.saturate, errors)
        return cls(
            name,
            expected.dtype,
            cases=1,
            elements=known.size,
            unjudged=known.size - count,
            ulp=ulp,
            ratio=ratio,
            worst=spec if ratio > 0 else None,
            index=worst(output.ratio) if ratio > 0 else None,
            farthest=Place(spec, worst(off)) if ulp.maximum > 0 else None,
        )

    def merge(self, other: Self) -> Self:
        """Return the errors of both sets of cases together."""
        worse = other if other.ratio > self.ratio else self
        farther = other if other.ulp.maximum > self.ulp.maximum else self
        return replace(
            worse,
            cases=self.cases + other.cases,
            elements=self.elements + other.elements,
            unjudged=self.unjudged + other.unjudged,
            ulp=self.ulp.merge(other.ulp),
            farthest=farther.farthest,
            probable=max((r for r in (self.probable, other.probable) if r is not None), default=None),
        )


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check over a run: the cases in which it had something to look at, and those in which it found something.

    `no_data` says why there is no such case; `offered` is False if the kernel does not offer what the check needs, as
    statistics that it does not return. For a property that the kernel does not promise, `observed` counts the cases
    that tell whether it holds, and `held` those in which it does.
    """

    name: str
    summary: str
    cases: int
    failed: int
    held: int = 0
    observed: int = 0
    no_data: str = ""
    offered: bool = True


@dataclass(frozen=True, slots=True)
class Detectable:
    """The smallest errors of one output in one type that one check alone would have detected in the run.

    Each is the e of a factor 1 ± e before the last rounding (`verify_norm.checks.power` derives it): of `everything`,
    or in every case of one `row` or one `element`; inf where the check detects none, None where it does not tell.
    `cases` could tell. `dropped` is the share of the cases that detect a term left out of the sums, None if not tried.
    """

    check: str
    output: str
    dtype: str
    cases: int
    everything: float
    row: float | None = None
    element: float | None = None
    dropped: float | None = None


@dataclass(frozen=True, slots=True)
class Skip:
    """What was not checked, why, and in how many cases; a `limit` is one that the kernel stated when it was called."""

    what: str
    reason: str
    cases: int = 1
    limit: bool = False
