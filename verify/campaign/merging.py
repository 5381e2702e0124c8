"""Makes one report of the reports of a kernel's units."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from functools import reduce
from operator import add
from typing import Any, TypeVar

from verify_norm.core.coverage import Coverage, Seen
from verify_norm.core.diagnosis import Diagnosis
from verify_norm.core.results import Report
from verify_norm.core.tally import CheckResult, Detectable, Skip
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
    for diagnosis in (diagnosis for one in reports for diagnosis in one.diagnoses):
        diagnoses.setdefault(diagnosis.output, diagnosis)
    outside = {one.outside for one in reports if one.findings}
    covered, seen = ([getattr(one, name) for one in reports] for name in ("coverage", "seen"))
    return replace(
        first,
        settings=settings,
        environment=_environment(reports),
        cases=sum(one.cases for one in reports),
        seconds=sum(one.seconds for one in reports),
        seconds_in_kernel=sum(one.seconds_in_kernel for one in reports),
        findings=_by((f for one in reports for f in one.findings), lambda f: (f.check, f.output), _finding),
        tallies=_by(
            (t for one in reports for t in one.tallies), lambda t: (t.output, t.dtype), lambda a, b: a.merge(b)
        ),
        checks=_by((c for one in reports for c in one.checks), lambda c: c.name, _check),
        skipped=_by((s for one in reports for s in one.skipped), lambda s: (s.what, s.reason, s.limit), _skip),
        layouts=_sums(one.layouts for one in reports),
        detectable=_by((d for one in reports for d in one.detectable), lambda d: (d.check, d.output, d.dtype), _least),
        interrupted=any(one.interrupted for one in reports),
        diagnoses=tuple(diagnoses.values()),
        outside=outside.pop() if len(outside) == 1 else "",
        coverage=reduce(_coverage, covered) if all(covered) else None,
        seen=reduce(Seen.merge, seen) if all(seen) else None,
        work=_work([one.work for one in reports if one.work]),
    )


def _by(found: Iterable[T], key: Callable[[T], Any], merge: Callable[[T, T], T]) -> tuple[T, ...]:
    """Return what is found, merged where the keys are equal."""
    kept: dict[Any, T] = {}
    for one in found:
        kept[key(one)] = merge(kept[key(one)], one) if key(one) in kept else one
    return tuple(kept.values())


def _sums(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    kept: dict[str, int] = {}
    for one in counts:
        kept |= {name: kept.get(name, 0) + number for name, number in one.items()}
    return dict(sorted(kept.items()))


def _finding(one: Any, other: Any) -> Any:
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
    told = [each for each in (one, other) if each.dropped is not None]
    cases = sum(each.cases for each in told)
    dropped = sum((each.dropped or 0.0) * each.cases for each in told) / cases if cases else None
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
    compiled = reduce(add, (one.compiled for one in works), NOTHING)
    sums = {
        f.name: sum(getattr(one, f.name) for one in works) for f in fields(Work) if f.name in ("started", "starting")
    }
    return Work(max(one.workers for one in works), **sums, compiled=compiled)


def _environment(reports: Sequence[Report]) -> dict[str, str]:
    """Return the facts of all reports; where they differ, as the dates or devices of several machines, all of them."""
    names = dict.fromkeys(name for one in reports for name in one.environment)
    return {
        name: " and ".join(sorted({one.environment[name] for one in reports if name in one.environment}))
        for name in names
    }
