"""One kernel against its checks in many cases; failures are made small, and explained."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from verify_norm.core.contract import Contract
from verify_norm.core.diagnosis import Diagnosis
from verify_norm.core.errors import UsageError
from verify_norm.core.finding import Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.results import Report
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.running.runners import runner
from verify_norm.search import PRELOAD
from verify_norm.search.collector import NO_JOURNAL, Collector
from verify_norm.search.crew import Crew, usual
from verify_norm.search.diagnosing import Trial
from verify_norm.search.examined import Examined
from verify_norm.search.interruption import interruptible
from verify_norm.search.journal import Journal
from verify_norm.search.reporting import report
from verify_norm.search.shrink import reduce
from verify_norm.search.sweep import Progress, Sweep, examine_for

REDUCING = 0.2  # the share of the time that is kept for making failures small, once there is one
EXPLAINING = 0.2  # the share that is kept for trying weaker contracts on what failed
ALONE = (
    "it does not recur when the case runs alone in a new process: look for a race, or for state that the kernel keeps "
    "between calls"
)


@dataclass(slots=True)
class _Search:
    """A search under way: its cases, and what follows where they have shown something."""

    state: Collector
    sweep: Sweep
    reduced: list[Finding] = field(default_factory=list)

    def reported(self) -> list[Finding]:
        """Return the findings to report; if the search was for certain findings and has some, these alone."""
        found, until = list(self.state.findings.values()), self.sweep.until
        wanted = [finding for finding in found if until(finding)] if until else []
        return wanted or found

    def reduce_all(self) -> None:
        """Make the findings small that are reported."""
        self.state.settle()
        deadline = self.sweep.deadline - self.state.settings.seconds * EXPLAINING
        for finding in self.reported():
            small = [other.spec for other in self.reduced]
            self.reduced.append(_reduced(self.state, finding, deadline, small))

    def explain(self) -> tuple[Diagnosis, ...]:
        """Return which weaker contracts explain the findings; nothing in a search for certain findings."""
        state = self.state
        if self.sweep.until or state.hangs:
            return ()

        def judge(spec: CaseSpec, checks: tuple[str, ...], contract: Contract) -> Examined:
            left = max(self.sweep.deadline - time.perf_counter(), 1.0)
            return _again(state, spec, checks, left=left, contract=contract)

        checks, worst = tuple(check.name for check in state.checks), defaultdict[str, list[CaseSpec]](list)
        for tally in state.tallies.values():
            if tally.worst and tally.ratio > 1:
                worst[tally.output].append(tally.worst)
        trial = Trial(state.kernel, checks, state.failing, worst, judge, state.settings.seed, self.sweep.deadline)
        return trial.diagnoses(self.reduced)

    def interrupt(self) -> None:
        """Keep the findings that are not small yet as they are."""
        self.state.interrupted = True
        self.state.settle()
        self.sweep.end("the run was interrupted")
        rest = self.reported()[len(self.reduced) :]
        self.reduced += [self.state.counted(finding) for finding in rest]


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
    sweep = Sweep(state, crew, progress, until, started + settings.seconds, REDUCING + EXPLAINING)
    searching = _Search(state, sweep)
    try:
        with interruptible(state):
            sweep.run(first)
            if state.interrupted:  # and the exception got lost on its way, in the last case
                raise KeyboardInterrupt
            searching.reduce_all()
            diagnoses = searching.explain()
    except KeyboardInterrupt:
        searching.interrupt()
    finally:
        state.runner.close()
        journal.close(complete=not state.interrupted and state.corners_done == state.corners)
    outside = "" if any(one.contract for one in diagnoses) else state.outside()
    seconds = time.perf_counter() - started
    return report(state, searching.reduced, seconds, crew.work(state.compiled), diagnoses, outside)


def replay(kernel: Kernel, spec: CaseSpec, settings: Settings) -> Report:
    """Run the checks on one case, of whatever type, and reduce nothing.

    Raises UsageError if the spec does not fit the operator.
    """
    started = time.perf_counter()
    state = _collector(kernel, replace(settings, dtypes=(spec.dtype,)))
    state.planned = state.corners = state.corners_done = 1
    try:
        with fitting(spec, kernel.op):
            state.enter(examine_for(state, state.runner, spec, tuple(check.name for check in state.checks)))
    finally:
        state.runner.close()
    state.settle(alone=True)
    seconds = time.perf_counter() - started
    return report(state, state.findings.values(), seconds, Crew(state.runner).work(state.compiled))


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
    where = runner(kernel, settings.device, preload=PRELOAD, isolate=settings.isolate, untrusted=settings.untrusted)
    return Collector(kernel, settings, where, journal)


def _again(state: Collector, spec: CaseSpec, checks: tuple[str, ...], **options: Any) -> Examined:
    """Examine a case whose results are not collected, after all others."""
    examined = examine_for(state, state.runner, spec, checks, **options)
    state.compiled += examined.compiled
    return examined


def _reduced(state: Collector, finding: Finding, deadline: float, small: list[CaseSpec]) -> Finding:
    """Return the same finding on the smallest case that shows it, if possible in a process that has run nothing else.

    The small cases of other findings are tried first, since one mistake often shows in several outputs or checks.
    """
    key = (finding.check, finding.output)
    shown = {finding.spec: finding}

    def fails(spec: CaseSpec) -> bool:
        if time.perf_counter() > deadline or spec.dtype not in state.settings.dtypes:
            return False
        left = max(deadline - time.perf_counter(), 1.0)
        examined = _again(state, spec, (finding.shown_by,), left=left)
        same = next((one for one in examined.findings if (one.check, one.output) == key), None)
        if same is None or state.excuse(examined):
            shown[spec] = finding
            return False
        shown[spec] = same
        return True

    start = next((spec for spec in dict.fromkeys(small) if fails(spec)), finding.spec)
    smallest = reduce(start, OPS[state.kernel.op], fails, finding.shown_by)
    for spec in dict.fromkeys((smallest, finding.spec)):
        if not state.runner.fresh() or fails(spec) or time.perf_counter() > deadline:
            return state.counted(shown[spec])
    return state.counted(replace(finding, message=f"{finding.message}; {ALONE}"))
