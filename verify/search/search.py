"""One kernel against its checks: the corner table, the models' shapes, then Hypothesis; failures are made small."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf, prod

from verify_norm.cases import covering, turns
from verify_norm.core import geometry
from verify_norm.core.diagnosis import Diagnosis
from verify_norm.core.errors import UsageError
from verify_norm.core.finding import Finding
from verify_norm.core.geometry import repeated, size
from verify_norm.core.ops import OPS
from verify_norm.core.results import Report
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec, Contract, Kernel
from verify_norm.running import patience
from verify_norm.running.isolate import runner
from verify_norm.search.collector import NO_JOURNAL, Collector
from verify_norm.search.diagnosis import Trial
from verify_norm.search.drawing import Drawing, planned
from verify_norm.search.examine import PRELOAD, Examined, examine_in
from verify_norm.search.interruption import interruptible
from verify_norm.search.journal import Journal
from verify_norm.search.planning import corner_table, covering_cases, offered_dtypes
from verify_norm.search.shrink import reduce

Progress = Callable[[int, int, int], None]  # cases done, cases planned, findings so far
REDUCING = 0.2  # the share of the time that is kept for making failures small, once there is one
EXPLAINING = 0.2  # the share that is kept for trying weaker contracts on what failed
HANGS = 4  # after this many, the run ends
ALONE = "alone, in a new process, the case does not show it: a race, or what the kernel keeps from earlier calls"


class Over(BaseException):
    """Ends Hypothesis's run, for a reason. Not an Exception, so that Hypothesis does not take it for a failure."""


@dataclass(slots=True)
class _Search:
    """A search under way: what it has collected, and what ends it."""

    state: Collector
    progress: Progress
    until: Callable[[Finding], bool] | None
    deadline: float
    met: int = 0  # planned cases
    reduced: list[Finding] = field(default_factory=list)

    def run(self, first: Iterable[CaseSpec]) -> None:
        """Run the cases of `first`, the table and random ones, until they or the time are over."""
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
        try:
            for number, spec in enumerate((*table, *large)):
                if number >= len(table) and not state.pace.allows(size(repeated(spec), op)):
                    self.leave_out(f"many rows are slow: one case would take over {state.pace.most:.2g} s")
                    state.corners -= 1
                    continue
                self.one(spec)
                state.corners_done += 1
            pairs = covering_cases(state, dtypes, corner) if state.pairs else ()
            for spec in pairs:
                self.one(spec)
            state.drawn = True
            if further:
                rest = settings.examples - len(pairs)
                Drawing(op, dtypes, settings, state.pace, self.measured, self.leave_out, frozen).run(rest)
        except Over as over:
            self.left_out(str(over))

    def leave_out(self, slow: str) -> None:
        """Count a planned case that takes too long."""
        self.state.skipped["cases", slow] += 1
        self.state.planned -= 1

    def measured(self, spec: CaseSpec) -> dict[str, float]:
        return {"error/bound": self.one(spec)}

    def one(self, spec: CaseSpec) -> float:
        """Run one case and return its largest error/bound; raises Over at the end of the search."""
        state, settings = self.state, self.state.settings
        if state.interrupted:  # and the exception got lost on its way
            raise KeyboardInterrupt
        if time.perf_counter() > self.deadline - settings.seconds * (REDUCING + EXPLAINING) * bool(state.findings):
            raise Over(f"the {settings.seconds:g} s were over")
        if state.hangs >= HANGS:
            raise Over(f"the kernel had hung {state.hangs} times")
        started = time.perf_counter()
        spec = state.kernel.fitted(spec)
        refused = geometry.refusal(spec, OPS[state.kernel.op])  # of a case that nearly is what the kernel takes
        examined = _try(state, spec) if refused is None else Examined(spec, unsupported=refused)
        if examined is not None and refused is not None:
            state.enter(examined)
        if examined is not None and examined.tallies:
            batched = not turns.BATCHED.isdisjoint(examined.looked)
            seconds = max(time.perf_counter() - started, examined.seconds)  # of a case in the journal, those it took
            state.pace.learn(size(repeated(spec) if batched else spec, OPS[state.kernel.op]), seconds, examined.seconds)
        self.met += 1
        if self.until and any(map(self.until, state.findings.values())):
            raise Over("the search was for this finding")
        self.progress(state.cases, state.planned, len(state.findings))
        return 0.0 if examined is None else examined.ratio

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
            return _examine(state, spec, checks, max(self.deadline - time.perf_counter(), 1.0), contract)

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
    searching = _Search(state, progress, until, started + settings.seconds)
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
    return state.report(searching.reduced, time.perf_counter() - started, diagnoses, outside)


def replay(kernel: Kernel, spec: CaseSpec, settings: Settings) -> Report:
    """Run the checks on one case, of whatever type, and reduce nothing.

    Raises UsageError if the spec does not fit the operator.
    """
    started = time.perf_counter()
    state = _collector(kernel, replace(settings, dtypes=(spec.dtype,)))
    state.planned = state.corners = state.corners_done = 1
    try:
        with fitting(spec, kernel.op):
            _try(state, spec, alone=True)
    finally:
        state.runner.close()
    state.settle(alone=True)
    return state.report(state.findings.values(), time.perf_counter() - started)


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
    given = {"isolate": settings.isolate, "untrusted": settings.untrusted}
    where = runner(kernel, settings.device, preload=PRELOAD, **given)
    return Collector(kernel, settings, where, journal)


def _try(state: Collector, spec: CaseSpec, *, alone: bool = False) -> Examined | None:
    """Run one case, collect what it gives, and return it; None for a case that has been run.

    A case `alone` makes all its further runs, however long they take.
    """
    if spec in state.seen:
        return None
    state.seen.add(spec)
    examined = state.journal.done.get(spec)
    if examined is None:
        checks = tuple(check.name for check in state.checks)
        examined = _examine(state, spec, checks, further=inf if alone else state.pace.further)
        state.journal.enter(examined)
    state.enter(examined)
    return examined


def _examine(
    state: Collector,
    spec: CaseSpec,
    checks: tuple[str, ...],
    left: float = inf,
    contract: Contract | None = None,
    further: float = inf,
) -> Examined:
    timeout = patience.of_case(state.settings.timeout, state.settings.device, prod(repeated(spec).shape))
    return examine_in(state.runner, spec, checks, timeout, contract, left=left, further=further)


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
        examined = _examine(state, spec, (finding.during or finding.check,), left)
        same = [f for f in examined.findings if (f.check, f.output) == key and not state.excuse(examined)]
        shown[spec] = same[0] if same else finding
        return bool(same)

    start = next((spec for spec in dict.fromkeys(small) if fails(spec)), finding.spec)
    smallest = reduce(start, OPS[state.kernel.op], fails)
    for spec in dict.fromkeys((smallest, finding.spec)):
        if not state.runner.fresh() or fails(spec) or time.perf_counter() > deadline:
            return state.counted(shown[spec])
    return state.counted(replace(finding, message=f"{finding.message}; {ALONE}"))
