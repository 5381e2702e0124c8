"""Takes a kernel through the cases of a search: corner table, shapes of models, all pairs of choices, random ones."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from math import inf, prod
from threading import Lock

from verify_norm.cases import covering, further_runs, values
from verify_norm.core import geometry
from verify_norm.core.contract import Contract
from verify_norm.core.coverage import out_of_time
from verify_norm.core.finding import Finding
from verify_norm.core.geometry import repeated, size
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.running import patience
from verify_norm.running.runners import Runner
from verify_norm.search.collector import Collector
from verify_norm.search.crew import Crew, Lane, Over, Part
from verify_norm.search.drawing import OTHERS, Drawing
from verify_norm.search.examine import examine_in
from verify_norm.search.examined import NO_MEMORY, Examined
from verify_norm.search.planning import corner_table, covering_cases, in_order, offered_dtypes

Progress = Callable[[int, int, int], None]  # cases done, cases planned, findings so far
HANGS = 4  # after this many, the run ends
EXPLORATION = 2**16  # more than the times that an exploration draws one case


@dataclass(slots=True)
class Sweep:
    """What cases have shown, the processes that examine them, and what ends them before they are over.

    Once there is a finding, a share of the time is `kept` for what follows. Corner cases that were too slow, as far as
    the cases before them told, are `waiting` for the end of the table.
    """

    state: Collector
    crew: Crew
    progress: Progress
    until: Callable[[Finding], bool] | None
    deadline: float
    kept: float
    met: int = 0  # planned cases
    chosen: set[CaseSpec] = field(default_factory=set)  # those that are not random
    found: bool = False  # perhaps not entered yet
    writing: Lock = field(default_factory=Lock)  # into the journal
    waiting: defaultdict[CaseSpec, list[Part]] = field(default_factory=lambda: defaultdict(list))

    def run(self, first: Iterable[CaseSpec]) -> None:
        """Run the cases of `first`, the table and random ones, until they or the time are over."""
        try:
            self.crew.run(self.parts(first))
            for spec, cases in self.waiting.items():  # began to wait in one process while another ended the table
                for _ in cases:
                    self.leave_corner_out(spec)
        except Over as over:
            self.end(str(over))

    def parts(self, first: Iterable[CaseSpec]) -> Iterator[Part]:
        """Yield the cases of `first` and the tables, those in which all pairs of choices meet, and explorations.

        Counts what is planned before the first of them.
        """
        state, settings = self.state, self.state.settings
        dtypes, op, frozen = offered_dtypes(state), OPS[state.kernel.op], state.kernel.autograd
        corner, large = corner_table(state, dtypes) if settings.tables else ([], [])
        further = bool(dtypes and state.checks and settings.examples)  # cases after the corner table
        if further and settings.tables and settings.shapes != "models":
            state.pairs = covering.Pairs(op, dtypes, frozen=frozen, gpu=settings.device != "cpu")
        table = [*(spec for spec in first if spec.dtype in dtypes), *corner]
        drawing = Drawing(
            op,
            dtypes,
            settings,
            state.pace,
            one=self.drawn,
            leave_out=self.leave_out,
            frozen=frozen,
            others=OTHERS[patience.kind(settings.device)],
            left=self.left,
        )
        state.corners = len(table) + len(large)
        state.planned = state.corners + drawing.planned(settings.examples)
        for spec, slow in in_order(table, large, settings.device):
            run = partial(self.slow_corner, spec=spec) if slow else self.corner
            yield partial(run, case=self.case(spec))
        yield from (partial(self.again, spec=spec) for spec in large)
        if further:
            yield from drawing.first()
        pairs = covering_cases(state, dtypes, (*corner, *large)) if state.pairs else ()
        yield from map(self.case, pairs)
        yield lambda lane: lane.enter(partial(setattr, state, "drawn", True))
        if further:
            random_ones = settings.examples - len(pairs)
            state.planned += len(pairs) + drawing.planned(random_ones) - drawing.planned(settings.examples)
            yield from drawing.parts(random_ones)

    def case(self, spec: CaseSpec) -> Part:
        """Return the part of a case that is not random; one that was chosen before counts alone."""
        spec = self.state.kernel.fitted(spec)
        if spec in self.chosen:
            return lambda lane: lane.enter(self.meet)
        self.chosen.add(spec)
        return partial(self.one, spec=spec)

    def corner(self, lane: Lane, case: Part) -> None:
        """Run a corner case."""
        case(lane)
        lane.enter(self.corner_done)

    def slow_corner(self, lane: Lane, case: Part, spec: CaseSpec) -> None:
        """Run a corner case if the time allows its size; else it waits."""
        if self.allows(spec):
            self.corner(lane, case)
        else:
            self.waiting[spec].append(case)

    def again(self, lane: Lane, spec: CaseSpec) -> None:
        """Run a corner case that waits, or leave it out: by now one with more rows may have told what rows take."""
        if not self.waiting[spec]:
            return
        case = self.waiting[spec].pop()
        if self.allows(spec):
            self.corner(lane, case)
        else:
            lane.enter(partial(self.leave_corner_out, spec))

    def leave_corner_out(self, spec: CaseSpec) -> None:
        """Count a corner case that takes too long."""
        pace = self.state.pace
        self.state.leave_out(f"many rows are slow: one case would take {pace.over(pace.most)}", spec, corners=1)

    def allows(self, spec: CaseSpec) -> bool:
        """Return whether the time allows a case of this size, as far as the cases so far tell."""
        return self.state.pace.allows(size(repeated(spec), OPS[self.state.kernel.op]))

    def corner_done(self) -> None:
        """Count a corner case."""
        self.state.corners_done += 1

    def leave_out(self, lane: Lane, reason: str, spec: CaseSpec) -> None:
        """Count a planned case that takes too long and is no corner case."""
        lane.enter(partial(self.state.leave_out, reason, spec))

    def left(self) -> float:
        """Return the seconds that are left for cases."""
        return self.deadline - self.kept_seconds() - time.perf_counter()

    def kept_seconds(self) -> float:
        """Return the seconds that are kept for what follows the cases: there is a failure to study, or none."""
        return self.state.settings.seconds * self.kept if self.found else 0.0

    def drawn(self, lane: Lane, spec: CaseSpec, others: int = 0) -> dict[str, float]:
        """Run a random case and so many others of its shape and types; return what random cases maximize.

        A case that has been met shows nothing new, but further others do. Of a case that the kernel refuses none run.
        """
        spec = self.state.kernel.fitted(spec)
        met = lane.drawn[spec]  # times
        lane.drawn[spec] += 1
        if met or spec in self.chosen:
            examined = Examined(spec)
            lane.enter(self.meet)
        else:
            examined = self.one(lane, spec)
        if examined.unsupported is not None:
            for _ in range(others):
                lane.enter(self.meet)
            return {"error/bound": 0.0}
        first = (lane.exploration * EXPLORATION + met) * others
        for other in values.others(spec, OPS[self.state.kernel.op], range(first, first + others)):
            self.drawn(lane, other)
        return {"error/bound": examined.ratio}

    def one(self, lane: Lane, spec: CaseSpec) -> Examined:
        """Run one case; raises Over where the time is over."""
        state, settings = self.state, self.state.settings
        if state.interrupted:  # and the exception got lost on its way
            raise KeyboardInterrupt
        if self.left() < 0:
            raise Over(out_of_time(settings.seconds, self.kept_seconds()))
        started = time.perf_counter()
        examined = self.examined(lane, spec)
        self.found |= bool(examined.findings) and not examined.limits
        if examined.tallies:
            batched = not further_runs.BATCHED.isdisjoint(examined.looked)
            seconds = time.perf_counter() - started - examined.compiled.seconds
            seconds = max(seconds, examined.seconds)  # of a case in the journal, those it took
            state.pace.learn(size(repeated(spec) if batched else spec, OPS[state.kernel.op]), seconds, examined.seconds)
        lane.enter(partial(self.enter, examined))
        return examined

    def examined(self, lane: Lane, spec: CaseSpec) -> Examined:
        """Return what the journal has of a case, or what the lane's process finds, and enter that into the journal."""
        state = self.state
        if (refused := geometry.refusal(spec, OPS[state.kernel.op])) is not None:  # nearly what the kernel takes
            return Examined(spec, unsupported=refused)
        examined = state.journal.done.get(spec)
        if examined is None:
            checks = tuple(check.name for check in state.checks)
            slower, rerun_seconds = self.crew.slower, state.pace.rerun_seconds
            call = partial(examine_for, state, lane.runner, spec, checks, slower=slower, rerun_seconds=rerun_seconds)
            try:
                examined = self.crew.examine(call, spec, lane.runner.fresh)
            except MemoryError:  # as we draw it
                examined = Examined(spec, unsupported=NO_MEMORY)
            with self.writing:
                state.journal.enter(examined)
        return examined

    def enter(self, examined: Examined) -> None:
        """Collect the results of a case, and count it; raises Over at the end of the search."""
        state = self.state
        if state.hangs >= HANGS:
            raise Over(f"the kernel had hung {state.hangs} times")
        if examined.spec not in state.entered:  # two explorations may meet one case
            state.entered.add(examined.spec)
            state.enter(examined)
        self.meet()

    def meet(self) -> None:
        """Count a planned case; raises Over once there is the finding that the search is for."""
        self.met += 1
        if self.until is not None and any(self.until(finding) for finding in self.state.findings.values()):
            raise Over("the search was for this finding")
        self.progress(self.state.cases, self.state.planned, len(self.state.findings))

    def end(self, reason: str) -> None:
        """Note why the search ends, and count the planned cases that it has not met."""
        state, left = self.state, self.state.planned - self.met
        if left > 0 and not state.ended:
            state.skipped["cases", reason] += left
        state.ended = state.ended or reason


def examine_for(
    state: Collector,
    runner: Runner,
    spec: CaseSpec,
    checks: tuple[str, ...],
    *,
    slower: float = 1.0,
    left: float = inf,
    contract: Contract | None = None,
    rerun_seconds: float = inf,
) -> Examined:
    """Return what a process of a search finds in a case, which may take as long as the search's settings allow."""
    timeout = slower * patience.of_case(state.settings.timeout, state.settings.device, prod(repeated(spec).shape))
    return examine_in(runner, spec, checks, timeout, contract, left=left, rerun_seconds=rerun_seconds)
