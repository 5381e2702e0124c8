"""One kernel against its checks: the corner table, the models' shapes, then Hypothesis; failures are made small."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, prod
from threading import Lock
from typing import Any

from verify_norm.cases import covering, turns
from verify_norm.core.diagnosis import Diagnosis
from verify_norm.core.errors import UsageError
from verify_norm.core.finding import Finding
from verify_norm.core.geometry import repeated, size
from verify_norm.core.ops import OPS
from verify_norm.core.results import Report
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec, Contract, Kernel
from verify_norm.running import patience
from verify_norm.running.isolate import Runner, runner
from verify_norm.search.collector import NO_JOURNAL, Collector
from verify_norm.search.crew import Crew, Lane, Over, Part, usual
from verify_norm.search.diagnosis import Trial
from verify_norm.search.drawing import Drawing, planned
from verify_norm.search.examine import PRELOAD, Examined, examine_in
from verify_norm.search.interruption import interruptible
from verify_norm.search.journal import Journal
from verify_norm.search.pace import Size
from verify_norm.search.planning import corner_table, covering_cases, offered_dtypes
from verify_norm.search.shrink import reduce

Progress = Callable[[int, int, int], None]  # cases done, cases planned, findings so far
REDUCING = 0.2  # the share of the time that is kept for making failures small, once there is one
EXPLAINING = 0.2  # the share that is kept for trying weaker contracts on what failed
HANGS = 4  # after this many, the run ends
ALONE = "alone, in a new process, the case does not show it: a race, or what the kernel keeps from earlier calls"


@dataclass(slots=True)
class _Search:
    """A search under way: what it has collected, the processes that examine its cases, and what ends it."""

    state: Collector
    crew: Crew
    progress: Progress
    until: Callable[[Finding], bool] | None
    deadline: float
    met: int = 0  # planned cases
    chosen: set[CaseSpec] = field(default_factory=set)  # those that are not random
    found: bool = False  # perhaps not entered yet
    writing: Lock = field(default_factory=Lock)  # into the journal
    reduced: list[Finding] = field(default_factory=list)

    def run(self, first: Iterable[CaseSpec]) -> None:
        """Run the cases of `first`, the table and random ones, until they or the time are over."""
        try:
            self.crew.run(self.parts(first))
        except Over as over:
            self.left_out(str(over))

    def parts(self, first: Iterable[CaseSpec]) -> Iterator[Part]:
        """Yield the cases of `first` and the table, those in which all pairs of choices meet, and explorations."""
        state, settings = self.state, self.state.settings
        dtypes, op = offered_dtypes(state), OPS[state.kernel.op]
        table, large = corner_table(state, dtypes)
        corner, frozen = (*table, *large), state.kernel.autograd
        further = bool(dtypes and state.checks and settings.examples)
        if further and settings.shapes != "models":
            state.pairs = covering.Pairs(op, dtypes, frozen=frozen)
        table = [*(spec for spec in first if spec.dtype in dtypes), *table]
        state.corners = len(table) + len(large)
        state.planned = state.corners + planned(settings)
        yield from (partial(self.corner, case=self.case(spec)) for spec in table)
        yield from (partial(self.corner, case=self.case(spec), slow=size(repeated(spec), op)) for spec in large)
        pairs = covering_cases(state, dtypes, corner) if state.pairs else ()
        yield from map(self.case, pairs)
        yield lambda lane: lane.enter(partial(setattr, state, "drawn", True))
        if further:
            drawing = Drawing(op, dtypes, settings, state.pace, self.drawn, self.leave_out, frozen)
            yield from drawing.parts(settings.examples - len(pairs))

    def case(self, spec: CaseSpec) -> Part:
        """Return the part of a case that is not random; one that was chosen before counts alone."""
        spec = self.state.kernel.fitted(spec)
        if spec in self.chosen:
            return lambda lane: lane.enter(self.meet)
        self.chosen.add(spec)
        return partial(self.one, spec=spec)

    def corner(self, lane: Lane, case: Part, slow: Size | None = None) -> None:
        """Run a corner case, unless it is `slow` for its size."""
        state = self.state
        if slow and not state.pace.allows(slow):
            self.leave_out(lane, f"many rows are slow: one case would take over {state.pace.most:.2g} s", corners=1)
            return
        case(lane)
        lane.enter(self.corner_done)

    def corner_done(self) -> None:
        """Count a corner case."""
        self.state.corners_done += 1

    def leave_out(self, lane: Lane, slow: str, corners: int = 0) -> None:
        """Count a planned case that takes too long."""
        lane.enter(partial(self.state.leave_out, slow, corners))

    def drawn(self, lane: Lane, spec: CaseSpec) -> dict[str, float]:
        """Run a random case, and return what they maximize; a case that an exploration has met shows nothing new."""
        spec = self.state.kernel.fitted(spec)
        if spec in self.chosen or spec in lane.drawn:
            lane.enter(self.meet)
            return {"error/bound": 0.0}
        lane.drawn.add(spec)
        return {"error/bound": self.one(lane, spec)}

    def one(self, lane: Lane, spec: CaseSpec) -> float:
        """Run one case, and return its largest error/bound; raises Over where the time is over."""
        state, settings = self.state, self.state.settings
        if state.interrupted:  # and the exception got lost on its way
            raise KeyboardInterrupt
        if time.perf_counter() > self.deadline - settings.seconds * (REDUCING + EXPLAINING) * self.found:
            raise Over(f"the {settings.seconds:g} s were over")
        started = time.perf_counter()
        examined = self.examined(lane, spec)
        self.found |= bool(examined.findings) and not examined.limits
        if examined.tallies:
            batched = not turns.BATCHED.isdisjoint(examined.looked)
            seconds = max(time.perf_counter() - started, examined.seconds)  # of a case in the journal, those it took
            state.pace.learn(size(repeated(spec) if batched else spec, OPS[state.kernel.op]), seconds, examined.seconds)
        lane.enter(partial(self.enter, examined))
        return examined.ratio

    def examined(self, lane: Lane, spec: CaseSpec) -> Examined:
        """Return what the journal has of a case, or what the lane's process finds, and enter that into the journal."""
        state = self.state
        examined = state.journal.done.get(spec)
        if examined is None:
            checks = tuple(check.name for check in state.checks)
            call = partial(_examine, state, lane.runner, spec, checks, slower=self.crew.slower)
            examined = self.crew.examine(partial(call, further=state.pace.further))
            with self.writing:
                state.journal.enter(examined)
        return examined

    def enter(self, examined: Examined) -> None:
        """Collect the results of a case, and count it; raises Over at the end of the search."""
        state = self.state
        if state.hangs >= HANGS:
            raise Over(f"the kernel had hung {state.hangs} times")
        if examined.spec not in state.seen:  # two explorations may meet one case
            state.seen.add(examined.spec)
            state.enter(examined)
        self.meet()

    def meet(self) -> None:
        """Count a planned case; raises Over once there is the finding that the search is for."""
        self.met += 1
        if self.until and any(map(self.until, self.state.findings.values())):
            raise Over("the search was for this finding")
        self.progress(self.state.cases, self.state.planned, len(self.state.findings))

    def reduce_all(self) -> None:
        """Make the findings small, or the wanted ones where there are such."""
        self.state.settle()
        found, deadline = self.state.findings.values(), self.deadline - self.state.settings.seconds * EXPLAINING
        wanted = [finding for finding in found if self.until and self.until(finding)]
        for finding in wanted or found:
            small = [other.spec for other in self.reduced]
            self.reduced.append(_reduced(self.state, finding, deadline, small))

    def explain(self) -> tuple[Diagnosis, ...]:
        """Return which weaker contracts explain the findings; nothing in a search for certain findings."""
        state = self.state
        if self.until or state.hangs:
            return ()

        def judge(spec: CaseSpec, checks: tuple[str, ...], contract: Contract) -> Examined:
            left = max(self.deadline - time.perf_counter(), 1.0)
            return _again(state, spec, checks, left=left, contract=contract)

        checks, worst = tuple(check.name for check in state.checks), defaultdict[str, list[CaseSpec]](list)
        for tally in state.tallies.values():
            worst[tally.output] += [tally.worst] if tally.worst and tally.ratio > 1 else []
        trial = Trial(state.kernel, checks, state.failing, worst, judge, state.settings.seed, self.deadline)
        return trial.diagnoses(self.reduced)

    def interrupt(self) -> None:
        """Keep the findings as they are."""
        self.state.interrupted = True
        self.state.settle()
        self.left_out("the run was interrupted")
        rest = list(self.state.findings.values())[len(self.reduced) :]
        self.reduced += [self.state.counted(finding) for finding in rest]

    def left_out(self, reason: str) -> None:
        """Note why the search ends, and count the planned cases that it has not met."""
        state, left = self.state, self.state.planned - self.met
        if left > 0 and not state.ended:
            state.skipped["cases", reason] += left
        state.ended = state.ended or reason


def search(
    kernel: Kernel,
    settings: Settings,
    progress: Progress = lambda done, planned, found: None,
    journal: Journal = NO_JOURNAL,
    until: Callable[[Finding], bool] | None = None,
    first: Iterable[CaseSpec] = (),
) -> Report:
    """Run the checks over the cases of `first`, the corner table and random cases; make failures small; explain them.

    The same kernel, settings and versions give the same cases. The search ends after `settings.seconds`, or once the
    kernel has hung four times; interrupted (Ctrl-C), it reports what it has. Cases in `journal` are not run again; it
    keeps them unless the corner table is complete.
    `until` ends the search at the first finding for which it is true; then only such findings are reported.
    """
    started = time.perf_counter()
    state = _collector(kernel, settings, journal)
    diagnoses: tuple[Diagnosis, ...] = ()
    crew = Crew(state.runner, settings.workers or usual(settings.device))
    searching = _Search(state, crew, progress, until, started + settings.seconds)
    try:
        with interruptible(state):
            searching.run(first)
            searching.reduce_all()
            diagnoses = searching.explain()
    except KeyboardInterrupt:
        searching.interrupt()
    finally:
        state.runner.close()
        journal.close(complete=not state.interrupted and state.corners_done == state.corners)
    outside = "" if any(one.contract for one in diagnoses) else state.outside()
    seconds = time.perf_counter() - started
    return state.report(searching.reduced, seconds, crew.work(state.compiled), diagnoses, outside)


def replay(kernel: Kernel, spec: CaseSpec, settings: Settings) -> Report:
    """Run the checks on one case, of whatever type, and reduce nothing.

    Raises UsageError if the spec does not fit the operator.
    """
    started = time.perf_counter()
    state = _collector(kernel, replace(settings, dtypes=(spec.dtype,)))
    state.planned = state.corners = state.corners_done = 1
    try:
        with fitting(spec, kernel.op):
            state.enter(_examine(state, state.runner, spec, tuple(check.name for check in state.checks)))
    finally:
        state.runner.close()
    state.settle(alone=True)
    seconds = time.perf_counter() - started
    return state.report(state.findings.values(), seconds, Crew(state.runner).work(state.compiled))


@contextmanager
def fitting(spec: CaseSpec, op: str) -> Iterator[None]:
    """Raise UsageError if a user's spec does not fit the operator, or this machine."""
    if spec.num_groups is not None and "num_groups" not in OPS[op].attrs:
        raise UsageError(f"the spec does not fit {op}, which has no num_groups")
    try:
        yield
    except ValueError as error:  # the reference refuses shapes that do not fit the operator
        raise UsageError(f"the spec does not fit {op}: {error}") from error
    except MemoryError as error:
        raise UsageError(f"the spec's shape is too large for this machine: {error}") from error


def _collector(kernel: Kernel, settings: Settings, journal: Journal = NO_JOURNAL) -> Collector:
    where = runner(kernel, settings.device, isolate=settings.isolate, preload=PRELOAD)
    return Collector(kernel, settings, where, journal)


def _examine(
    state: Collector,
    runner: Runner,
    spec: CaseSpec,
    checks: tuple[str, ...],
    *,
    slower: float = 1.0,
    left: float = inf,
    contract: Contract | None = None,
    further: float = inf,
) -> Examined:
    timeout = slower * patience.of_case(state.settings.timeout, state.settings.device, prod(repeated(spec).shape))
    return examine_in(runner, spec, checks, timeout, contract, left=left, further=further)


def _again(state: Collector, spec: CaseSpec, checks: tuple[str, ...], **options: Any) -> Examined:
    """Examine a case whose results are not collected, after all others."""
    examined = _examine(state, state.runner, spec, checks, **options)
    state.compiled += examined.compiled
    return examined


def _reduced(state: Collector, finding: Finding, deadline: float, small: list[CaseSpec]) -> Finding:
    """Return the same finding on the smallest case that shows it, if possible in a process that has run nothing else.

    The small cases of other findings are tried first, since one mistake often shows in several outputs or checks.
    """
    key = (finding.check, finding.output)
    shown = {finding.spec: finding}

    def fails(spec: CaseSpec) -> bool:
        if time.perf_counter() > deadline:
            return False
        left = max(deadline - time.perf_counter(), 1.0)
        examined = _again(state, spec, (finding.during or finding.check,), left=left)
        same = [f for f in examined.findings if (f.check, f.output) == key and not state.excuse(examined)]
        shown[spec] = same[0] if same else finding
        return bool(same)

    start = next((spec for spec in dict.fromkeys(small) if fails(spec)), finding.spec)
    smallest = reduce(start, OPS[state.kernel.op], fails)
    for spec in dict.fromkeys((smallest, finding.spec)):
        if not state.runner.fresh() or fails(spec) or time.perf_counter() > deadline:
            return state.counted(shown[spec])
    return state.counted(replace(finding, message=f"{finding.message}; {ALONE}"))
