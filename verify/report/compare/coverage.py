"""Whether two runs saw equal cases, and what one checked and the other did not."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from verify_norm.auditing.model import Audit, Document, report_of
from verify_norm.core.check_names import CHECK_NAMES
from verify_norm.core.coverage import ended_by_time
from verify_norm.core.regression import RegressionLimits
from verify_norm.core.results import Report
from verify_norm.report.compare.model import Change, Way

NO_EFFECT = ("date", "isolation")  # of the environment: no result depends on them
# The settings that choose the cases, and their options; the seed and the device choose them too.
OPTIONS = {"dtypes": "--dtype", "shapes": "--shapes", "examples": "--examples"}


def offered(report: Report) -> tuple[str, ...]:
    """Return the types of x that the run asked for and the kernel offers."""
    refused = {skip.what.removeprefix("dtype ") for skip in report.skipped if skip.what.startswith("dtype ")}
    return tuple(dtype for dtype in report.settings.dtypes if dtype not in refused)


def same_cases(old: Report, new: Report) -> bool:
    """Return whether two runs with equal settings saw the same cases, as far as their counts show.

    Runs without random cases do, if they end. Random cases follow a kernel's errors, so they differ between kernels.
    """
    if _out_of_time(old) or _out_of_time(new):
        return False
    if old.settings.examples == new.settings.examples == 0:
        return True
    if old.cases != new.cases or old.layouts != new.layouts:
        return False
    before, after = (
        {(tally.output, tally.dtype): (tally.cases, tally.elements) for tally in report.tallies}
        for report in (old, new)
    )
    return all(before[key] == after[key] for key in before.keys() & after.keys())


def unequal(before: Document, after: Document) -> str:
    """Return why the cases of two runs differ, and what to run to get equal ones; "" where they are equal.

    Two audits may differ in the cases of their checks: they are compared by typical data, which follow from the seed.
    """
    old, new = report_of(before), report_of(after)
    audits = isinstance(before, Audit) and isinstance(after, Audit)
    different = {option: pair for option, pair in _settings(old, new, seeded=audits).items() if pair[0] != pair[1]}
    if different:
        words = ", ".join(f"{option} {was} → {now}" for option, (was, now) in different.items())
        again = " ".join(f"{option} {was}" for option, (was, _) in different.items())
        return f"the runs differ in {words}; make the new run again with {again}"
    surveyed = any(isinstance(document, Audit) and document.ulps for document in (before, after))
    if not surveyed and not old.checked and not new.checked:
        return "neither run checked anything; verify-norm --kernel says why"
    for which, report in (("old", old), ("new", new)):
        if report.interrupted:
            return f"the {which} run was interrupted after {report.cases} cases; run it again"
        if _out_of_time(report) and not audits:
            return f"the {which} run ran out of time after {report.cases} cases; run it again with more --seconds"
    if audits or same_cases(old, new):
        return ""
    counts = f"{old.cases} cases and {new.cases} other cases"
    return f"the runs saw {counts}, because random cases follow a kernel's errors; make both again with --examples 0"


def _settings(old: Report, new: Report, *, seeded: bool) -> dict[str, list[str]]:
    """Return the settings that choose the cases in both runs, by their options; the seed chooses random data only."""
    runs = (old.settings, new.settings)
    values: dict[str, list[Any]] = {option: [getattr(one, name) for one in runs] for name, option in OPTIONS.items()}
    values["--checks"] = _asked(old, new)
    if seeded or any(one.examples for one in runs):
        values["--seed"] = [one.seed for one in runs]
    if len({one.device == "cpu" for one in runs}) == 2:
        values["--device"] = [one.device for one in runs]
    return {option: [_argument(value) for value in pair] for option, pair in values.items()}


def _asked(old: Report, new: Report) -> list[tuple[str, ...]]:
    """Return the checks that both runs asked for; () is all, as is a list of all, and of all that apply."""
    if {check.name for check in old.checks} == {check.name for check in new.checks}:
        return [(), ()]
    return [() if {*CHECK_NAMES} <= {*one.settings.checks} else one.settings.checks for one in (old, new)]


def _argument(value: Any) -> str:
    return ",".join(value) or "''" if isinstance(value, tuple) else str(value)


def _out_of_time(report: Report) -> bool:
    """Return whether the search ended because its time ran out."""
    return any(skip.what == "cases" and ended_by_time(skip.reason) for skip in report.skipped)


def changes(old: Report, new: Report, limits: RegressionLimits, *, same: bool) -> Iterator[Change]:
    """Yield what only one of the two runs checked: checks, outputs, types, cases."""
    yield from _lost(old, new, "worse", same=same)
    yield from _lost(new, old, "better", same=same)
    for dtype in offered(old):
        if dtype not in offered(new):
            yield Change("coverage", "worse", f"dtype {dtype}", "offered", "not offered")
    if new.cases < limits.cases * old.cases and not _out_of_time(new):
        limit = f"the limit is {100 * limits.cases:.0f} % of them"
        yield Change("coverage", "worse", "cases", str(old.cases), str(new.cases), limit)


def _lost(one: Report, other: Report, way: Way, *, same: bool) -> Iterator[Change]:
    """Yield the checks and outputs of `one` that `other` does not have; `other` is the new run where that is worse."""
    ran = {check.name: check.cases for check in other.checks}
    for check in one.checks:
        if check.cases and not ran.get(check.name) and (same or check.name not in ran):
            missing = "nothing to check" if check.name in ran else "not run"
            yield change(way, f"check {check.name}", f"{check.cases} cases", missing)
    compared = {tally.output for tally in other.tallies}
    for output in dict.fromkeys(tally.output for tally in one.tallies):
        if output not in compared:
            yield change(way, f"output {output}", "compared", "not compared")


def change(way: Way, what: str, present: str, absent: str, why: str = "") -> Change:
    """Return a change of coverage: from present to absent where that is worse, the reverse where it is better."""
    old, new = (present, absent) if way == "worse" else (absent, present)
    return Change("coverage", way, what, old, new, why)


def notes(before: Document, after: Document, *, same: bool) -> Iterator[str]:
    """Yield what else differs between two runs, a sentence each."""
    old, new = report_of(before), report_of(after)
    if old.kernel != new.kernel:
        yield f"another kernel: {old.kernel} → {new.kernel}"
    for field in fields(old.contract):
        was, now = getattr(old.contract, field.name), getattr(new.contract, field.name)
        if was != now:
            yield f"another contract: {field.name}={was} → {now}; error/bound is not compared"
    for name in dict.fromkeys((*old.environment, *new.environment)):
        was, now = old.environment.get(name, "none"), new.environment.get(name, "none")
        if was != now and name not in NO_EFFECT:
            yield f"{name}: {was} → {now}"
    if isinstance(before, Audit) != isinstance(after, Audit):
        which = "old" if isinstance(before, Audit) else "new"
        yield f"only the {which} file has an audit: the reports of the checks are compared"
    if not same:
        yield "the checks saw different cases: only typical data is compared; --examples 0 makes their cases equal"
