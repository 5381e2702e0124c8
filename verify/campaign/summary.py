"""What a store says of a campaign: a row for each kernel, the findings, and how far it is. Reads no whole report."""

import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from verify_norm.campaign.comparison import Compared, compared
from verify_norm.campaign.model import Unit
from verify_norm.campaign.shard import WHOLE, Shard
from verify_norm.campaign.store import Store, in_use
from verify_norm.core.errors import Exit, FindingsError
from verify_norm.core.results import worst_of

RECENT = 64  # units whose speed tells how long the rest takes
LISTED = 6  # missing units that a line names


@dataclass(frozen=True, slots=True)
class Found:
    """One way in which a kernel is wrong: how often, and the command that replays it in the first unit."""

    kernel: str
    op: str
    check: str
    output: str | None
    cases: int
    message: str
    replay: str


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel: its units, those that are done, its cases, findings, largest error/bound, seconds and verdict."""

    kernel: str
    op: str
    units: int
    done: int
    cases: int
    findings: int
    ratio: float | None
    seconds: float
    verdict: Exit


@dataclass(frozen=True, slots=True)
class Worker:
    """What one worker has done: units, their cases and seconds, and when it entered the last one."""

    name: str
    units: int
    cases: int
    seconds: float
    last: float


@dataclass(frozen=True, slots=True)
class Summary:
    """A campaign so far, or a shard of it. `problems` are units without a report, and why; `left` are seconds."""

    path: str
    rows: tuple[Row, ...]
    findings: tuple[Found, ...]
    problems: tuple[tuple[Unit, str], ...]
    missing: tuple[Unit, ...]
    workers: tuple[Worker, ...]
    incomplete: tuple[tuple[Unit, int, int], ...]  # units whose time ran out: corner cases that ran, and all of them
    rate: float  # cases a second
    left: float | None
    running: bool
    versions: dict[str, str] = field(default_factory=dict)
    compared: tuple[Compared, ...] = ()

    @property
    def units(self) -> int:
        """How many units there are."""
        return sum(row.units for row in self.rows)

    @property
    def done(self) -> int:
        """How many units have a report or a finding."""
        return sum(row.done for row in self.rows)

    @property
    def cases(self) -> int:
        """How many cases ran."""
        return sum(row.cases for row in self.rows)

    @property
    def verdict(self) -> Exit:
        """Return the worst verdict on any kernel."""
        return worst_of(row.verdict for row in self.rows)

    @property
    def ok(self) -> bool:
        """Whether all units are done and no kernel has a finding."""
        return self.verdict is Exit.PASS

    def raise_for_findings(self) -> None:
        """Raise FindingsError if the campaign has findings, is incomplete or has units without a report."""
        if self.ok:
            return
        findings = [f"{f.kernel} ({f.op}) {f.check}: {f.message}\n  replay {f.replay}" for f in self.findings]
        problems = [f"{unit}: {problem}" for unit, problem in self.problems]
        raise FindingsError("\n".join([*findings, *problems, *lacking(self)]))


class _Met(NamedTuple):
    """What the store says of one unit that has an outcome."""

    unit: str
    verdict: str
    problem: str
    worker: str
    started: float
    finished: float
    cases: int
    corners: int
    corners_done: int

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.finished - self.started


def lacking(found: Summary) -> list[str]:
    """Return what is not done, a line for each fact; nothing if all is."""
    lines = []
    if found.missing:
        names = [*map(str, found.missing[:LISTED])] + (["…"] if len(found.missing) > LISTED else [])
        lines.append(f"{len(found.missing):,} of {found.units:,} units are missing: {'; '.join(names)}")
    for unit, done, corners in found.incomplete:
        lines.append(f"{unit}: {done} of {corners} corner cases ran; give the plan more seconds")
    return lines


def summarize(store: Store, shard: Shard = WHOLE) -> Summary:
    """Return what the store says of the units of a shard."""

    def of_shard(table: str) -> str:
        return f"FROM {table} JOIN units ON unit = id WHERE number % {shard.n} = {shard.i - 1}"

    units = [unit for unit in store.units() if unit in shard]
    by_id = {unit.id: unit for unit in units}
    columns = ", ".join(_Met._fields)
    outcomes = [_Met(*row) for row in store.query(f"SELECT {columns} {of_shard('outcomes')} ORDER BY number")]
    found = store.query(
        'SELECT min(number), kernel, op, "check", output, sum(cases), message, replay '
        f'{of_shard("findings")} GROUP BY kernel, op, "check", output ORDER BY 1'
    )
    findings = tuple(Found(*row) for _, *row in found)
    largest = store.query(f"SELECT kernel, op, max(ratio) {of_shard('errors')} GROUP BY kernel, op")
    met = {one.unit for one in outcomes}
    rate, left = _speed(outcomes, len(units) - sum(not one.problem for one in outcomes))
    unfinished = [one for one in outcomes if one.verdict == Exit.INCOMPLETE.name]
    return Summary(
        store.path,
        rows=_rows(units, outcomes, findings, {(kernel, op): ratio for kernel, op, ratio in largest}),
        findings=findings,
        problems=tuple((by_id[one.unit], one.problem) for one in outcomes if one.problem),
        missing=tuple(unit for unit in units if unit.id not in met),
        workers=_workers(outcomes),
        incomplete=tuple((by_id[one.unit], one.corners_done, one.corners) for one in unfinished),
        rate=rate,
        left=left,
        running=in_use(store.path),
        versions=json.loads(store.facts()["versions"]),
        compared=compared(store),
    )


def _rows(
    units: Sequence[Unit], outcomes: Sequence[_Met], findings: Sequence[Found], ratios: Mapping[tuple[str, str], float]
) -> tuple[Row, ...]:
    """Return the row of each kernel; `ratios` has the largest error/bound by kernel and operator."""
    by_unit = {one.unit: one for one in outcomes}
    by_kernel: defaultdict[tuple[str, str], list[Unit]] = defaultdict(list)
    for unit in units:
        by_kernel[unit.kernel, unit.op].append(unit)
    rows = []
    for (kernel, op), its_units in by_kernel.items():
        its_outcomes = [by_unit[unit.id] for unit in its_units if unit.id in by_unit]
        row = Row(
            kernel,
            op,
            units=len(its_units),
            done=sum(not one.problem for one in its_outcomes),
            cases=sum(one.cases for one in its_outcomes),
            findings=sum((one.kernel, one.op) == (kernel, op) for one in findings),
            ratio=ratios.get((kernel, op)),
            seconds=sum(one.seconds for one in its_outcomes),
            verdict=_verdict(its_units, by_unit),
        )
        rows.append(row)
    return tuple(rows)


def _verdict(units: Sequence[Unit], outcomes: Mapping[str, _Met]) -> Exit:
    """Return the verdict on one kernel: a block may check nothing, a type or a unit with a problem may not."""
    by_type: defaultdict[str, list[Exit]] = defaultdict(list)
    others = []
    for unit in units:
        met = outcomes.get(unit.id)
        if met is None:
            others.append(Exit.INCOMPLETE)
        elif met.problem:
            others.append(Exit.NOTHING)
        else:
            by_type[unit.dtype].append(Exit[met.verdict])
    return worst_of([*(worst_of(verdicts, every=False) for verdicts in by_type.values()), *others])


def _workers(outcomes: Sequence[_Met]) -> tuple[Worker, ...]:
    """Return what each worker has done, by its name."""
    by_name: defaultdict[str, list[_Met]] = defaultdict(list)
    for one in outcomes:
        by_name[one.worker].append(one)
    workers = []
    for name, its in sorted(by_name.items()):
        cases, seconds = sum(one.cases for one in its), sum(one.seconds for one in its)
        workers.append(Worker(name, len(its), cases, seconds, last=max(one.finished for one in its)))
    return tuple(workers)


def _speed(outcomes: Sequence[_Met], waiting: int) -> tuple[float, float | None]:
    """Return the cases a second of the last units, and the seconds that the rest takes at this speed."""
    last = sorted(outcomes, key=lambda one: one.finished)[-RECENT:]
    busy = sum(one.seconds for one in last)
    if not busy:
        return 0.0, None
    beside = len({one.worker for one in last})
    return beside * sum(one.cases for one in last) / busy, waiting * busy / len(last) / beside


def ago(when: float) -> float:
    """Return the seconds since a time."""
    return max(0.0, time.time() - when)
