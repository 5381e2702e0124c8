"""What one run looked at and another did not, and what else the two differ in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from verify_norm.auditing.model import Audit, Document, report_of
from verify_norm.report.comparison import Change, Limits
from verify_norm.report.model import Report

SURE = 7.0  # cases to be expected: that there is none has a probability of e**-7, below 0.001
UNTOLD = ("date", "isolation")  # of the environment, what no result depends on
OTHERWISE = ("dtypes", "checks", "shapes", "examples", "seed")  # settings that make other cases


def asked(report: Report) -> tuple[str, ...]:
    """The types of x that were asked for and that the kernel offers."""
    refused = {skip.what.removeprefix("dtype ") for skip in report.skipped if skip.what.startswith("dtype ")}
    return tuple(dtype for dtype in report.settings.dtypes if dtype not in refused)


def lost(old: Report, new: Report, limits: Limits) -> Iterator[Change]:
    """What the old run looked at and the new one did not, and the reverse."""
    yield from _checks(old, new, "worse")
    yield from _checks(new, old, "better")
    outputs = [dict.fromkeys(tally.output for tally in report.tallies) for report in (old, new)]
    for way, one, other in (("worse", *outputs), ("better", *reversed(outputs))):
        for name in one:
            if name not in other:
                there = ("compared", "not compared")
                yield Change("coverage", way, f"output {name}", *(there if way == "worse" else there[::-1]))  # type: ignore[arg-type]
    for dtype in asked(old):
        if dtype in new.settings.dtypes and dtype not in asked(new):
            yield Change("coverage", "worse", f"dtype {dtype}", "offered", "not offered")
    if old.interrupted or new.interrupted or new.settings.examples < old.settings.examples or _out_of_time(new):
        return
    if new.cases < limits.cases * old.cases:
        why = f"{100 * limits.cases:.0f} % of them are to be run again"
        yield Change("coverage", "worse", "cases", str(old.cases), str(new.cases), why)


def _out_of_time(report: Report) -> bool:
    """Whether the search ended by its time, which tells more of the machine than of the kernel."""
    return any(skip.what == "cases" and skip.reason.endswith(" s were over") for skip in report.skipped)


def _checks(one: Report, other: Report, way: Any) -> Iterator[Change]:
    """The checks that looked at something in one run, and at nothing in the other, where they surely would have."""
    ran = {check.name: check.cases for check in other.checks}
    for check in one.checks:
        expected = check.cases * other.cases / max(one.cases, 1)
        unasked = check.name not in ran
        if not check.cases or ran.get(check.name) or (expected < SURE and not unasked and other.cases):
            continue
        there, missing = f"{check.cases} cases", "not run" if unasked else "nothing to look at"
        was, now = (there, missing) if way == "worse" else (missing, there)
        yield Change("coverage", way, f"check {check.name}", was, now)


def notes(before: Document, after: Document, *, same: bool) -> Iterator[str]:
    """What else differs, in words, since numbers may differ by it."""
    old, new = report_of(before), report_of(after)
    if old.kernel != new.kernel:
        yield f"another kernel: {old.kernel} → {new.kernel}"
    for field in fields(old.contract):
        was, now = getattr(old.contract, field.name), getattr(new.contract, field.name)
        if was != now:
            yield f"another contract: {field.name}={was} → {now}; error/bound is not compared"
    for name in OTHERWISE:
        was, now = getattr(old.settings, name), getattr(new.settings, name)
        if was != now and not (name == "seed" and same):
            yield f"{name}: {_listed(was)} → {_listed(now)}"
    for name in dict.fromkeys((*old.environment, *new.environment)):
        was, now = old.environment.get(name, "none"), new.environment.get(name, "none")
        if was != now and name not in UNTOLD:
            yield f"{name}: {was} → {now}"
    if isinstance(before, Audit) != isinstance(after, Audit):
        which = "old" if isinstance(before, Audit) else "new"
        yield f"the {which} file has an audit, the other none: the checks' reports are compared"
    for report, which in ((old, "old"), (new, "new")):
        if report.interrupted:
            yield f"the {which} run was interrupted"
        elif _out_of_time(report):
            yield f"the {which} run's time was over after {report.cases} cases"
    if not same:
        both = isinstance(before, Audit) and isinstance(after, Audit)
        finer = "" if both else "; runs with --examples 0, and audits, compare more finely"
        yield f"the checks met other cases, so that errors have to differ much to count{finer}"


def _listed(value: Any) -> str:
    return ", ".join(value) or "all" if isinstance(value, tuple) else str(value)
