"""Makes one report of the reports of a kernel's units."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain
from operator import add
from typing import Any, TypeVar

from verify_norm.core.coverage import Coverage, Seen
from verify_norm.core.diagnosis import Diagnosis
from verify_norm.core.finding import Finding
from verify_norm.core.results import Report
from verify_norm.core.tally import CheckResult, Detectable, Skip, Tally
from verify_norm.core.work import NOTHING, Work

T = TypeVar("T")


def merged(reports: Sequence[Report]) -> Report:
    """Return the report of all cases of these reports, of one kernel; each finding has the first case that showed it.

    Errors, counts and coverage are exact. What the cases would have detected is at least as good as what is said.
    """
    first = reports[0]
    settings = replace(
        first.settings,
        dtypes=tuple(dict.fromkeys(dtype for one in reports for dtype in one.settings.dtypes)),
        examples=sum(one.settings.examples for one in reports),
        seconds=sum(one.settings.seconds for one in reports),
        tables=any(one.settings.tables for one in reports),
    )
    diagnoses: dict[str | None, Diagnosis] = {}
    for one in reports:
        for diagnosis in one.diagnoses:
            diagnoses.setdefault(diagnosis.output, diagnosis)
    outside = {one.outside for one in reports if one.findings}
    covered = [one.coverage for one in reports if one.coverage]
    seen = [one.seen for one in reports if one.seen]
    return replace(
        first,
        settings=settings,
        environment=_environment(reports),
        cases=sum(one.cases for one in reports),
        seconds=sum(one.seconds for one in reports),
        seconds_in_kernel=sum(one.seconds_in_kernel for one in reports),
        findings=_by((one.findings for one in reports), ("check", "output"), _finding),
        tallies=_by((one.tallies for one in reports), ("output", "dtype"), Tally.merge),
        checks=_by((one.checks for one in reports), ("name",), _check),
        skipped=_by((one.skipped for one in reports), ("what", "reason", "limit"), _skip),
        layouts=_sums(one.layouts for one in reports),
        detectable=_by((one.detectable for one in reports), ("check", "output", "dtype"), _least),
        interrupted=any(one.interrupted for one in reports),
        diagnoses=tuple(diagnoses.values()),
        outside=outside.pop() if len(outside) == 1 else "",
        coverage=reduce(_coverage, covered) if len(covered) == len(reports) else None,
        seen=reduce(Seen.merge, seen) if len(seen) == len(reports) else None,
        work=_work([one.work for one in reports if one.work]),
    )


def _by(found: Iterable[Sequence[T]], key: tuple[str, ...], merge: Callable[[T, T], T]) -> tuple[T, ...]:
    """Return all that is found, merged where the fields of `key` are equal."""
    kept: dict[tuple[Any, ...], T] = {}
    for one in chain.from_iterable(found):
        its_key = tuple(getattr(one, name) for name in key)
        kept[its_key] = merge(kept[its_key], one) if its_key in kept else one
    return tuple(kept.values())


def _sums(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Return the sums of counts by name, in alphabetical order."""
    sums: Counter[str] = Counter()
    for one in counts:
        sums.update(one)
    return dict(sorted(sums.items()))


def _finding(one: Finding, other: Finding) -> Finding:
    """Return the first finding, with the cases of both."""
    return replace(one, cases=one.cases + other.cases)


def _check(one: CheckResult, other: CheckResult) -> CheckResult:
    counts = {name: getattr(one, name) + getattr(other, name) for name in ("cases", "failed", "held", "observed")}
    return replace(one, **counts, no_data=other.no_data and one.no_data, offered=one.offered or other.offered)


def _skip(one: Skip, other: Skip) -> Skip:
    """Return the cases of both; what is skipped of a run, and not in cases, is skipped once."""
    counted = one.what == "cases" or max(one.cases, other.cases) > 1
    return replace(one, cases=one.cases + other.cases if counted else 1)


def _least(one: Detectable, other: Detectable) -> Detectable:
    """Return the smaller errors: the cases of both detect at least what those of one do."""
    tried = [(each.dropped, each.cases) for each in (one, other) if each.dropped is not None]
    cases = sum(count for _, count in tried)
    dropped = sum(share * count for share, count in tried) / cases if cases else None
    return replace(
        one,
        cases=one.cases + other.cases,
        everything=min(one.everything, other.everything),
        row=_smaller(one.row, other.row),
        element=_smaller(one.element, other.element),
        dropped=dropped,
    )


def _smaller(one: float | None, other: float | None) -> float | None:
    return min((error for error in (one, other) if error is not None), default=None)


def _coverage(one: Coverage, other: Coverage) -> Coverage:
    """Return the coverage of both; pairs of choices are those of the unit that has the tables, in one of its types."""
    names = ("planned", "corners", "corners_done", "refused", "compared")
    counts = {name: getattr(one, name) + getattr(other, name) for name in names}
    most = max(one, other, key=lambda each: each.pairs)
    outputs = _sums((one.outputs, other.outputs))
    return Coverage(**counts, outputs=outputs, ended=one.ended or other.ended, pairs=most.pairs, possible=most.possible)


def _work(works: Sequence[Work]) -> Work | None:
    if not works:
        return None
    return Work(
        workers=max(one.workers for one in works),
        started=sum(one.started for one in works),
        starting=sum(one.starting for one in works),
        compiled=reduce(add, (one.compiled for one in works), NOTHING),
    )


def _environment(reports: Sequence[Report]) -> dict[str, str]:
    """Return the facts of all reports; where they differ, as the dates or devices of several machines, all of them."""
    names = dict.fromkeys(name for one in reports for name in one.environment)
    return {
        name: " and ".join(sorted({one.environment[name] for one in reports if name in one.environment}))
        for name in names
    }
