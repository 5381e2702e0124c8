"""Takes two kernels through the corner table and random cases, and keeps what differs."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod

from verify_norm.core.coverage import Coverage, out_of_time
from verify_norm.core.geometry import size
from verify_norm.core.kernel import Kernel
from verify_norm.core.op import Op
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.equality import onset
from verify_norm.equality.model import Gap, Side, Tally, Unstable
from verify_norm.equality.pair import Returned, called, gaps
from verify_norm.running import patience
from verify_norm.running.runners import Runner
from verify_norm.search import planning, sweep
from verify_norm.search.crew import Lane, Over, at_once
from verify_norm.search.drawing import Drawing
from verify_norm.search.pace import Pace
from verify_norm.search.sweep import Progress

SIDES: tuple[Side, Side] = ("A", "B")
TWICE = ("one run", "the next")
FOUND = 0.6  # the share of the time after which the cases end once there is a difference: the rest makes it small
Key = tuple[str | None, str]  # an output, None where a kernel fails, and the type of x


@dataclass(frozen=True, slots=True)
class Looked:
    """One case: the outputs that were compared, and what differs; or why nothing was compared."""

    outputs: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()
    refused: str = ""  # a kernel does not take the case
    failed: str = ""  # both kernels fail

    def gap(self, output: str | None) -> Gap | None:
        """Return what differs in this output; None if nothing does."""
        return next((gap for gap in self.gaps if gap.output == output), None)


@dataclass(slots=True)
class Walk:
    """What two kernels have shown so far. `differing` holds the cases in which an output differs."""

    op: Op
    settings: Settings
    runners: tuple[Runner, Runner]
    progress: Progress = lambda done, planned, found: None
    started: float = field(default_factory=time.perf_counter)
    interrupted: bool = False
    seen: dict[CaseSpec, Looked] = field(default_factory=dict)
    compared: Counter[tuple[str, str]] = field(default_factory=Counter)  # cases by output and type of x
    gaps: Counter[Key] = field(default_factory=Counter)
    zeros: Counter[Key] = field(default_factory=Counter)
    differing: defaultdict[Key, list[CaseSpec]] = field(default_factory=lambda: defaultdict(list))
    unstable: dict[tuple[Side, str | None], Unstable] = field(default_factory=dict)
    skipped: Counter[tuple[str, str]] = field(default_factory=Counter)
    too_slow: defaultdict[str, list[CaseSpec]] = field(default_factory=lambda: defaultdict(list))
    outputs: Counter[str] = field(default_factory=Counter)
    cases: int = 0  # that both kernels take
    cases_compared: int = 0
    refused: int = 0
    planned: int = 0
    corners: int = 0
    corners_done: int = 0
    met: int = 0
    hangs: int = 0
    ended: str = ""
    pace: Pace = field(init=False)

    def __post_init__(self) -> None:
        self.pace = Pace.of(self.settings, self.op)

    @property
    def kernels(self) -> tuple[Kernel, Kernel]:
        """Both kernels."""
        return self.runners[0].kernel, self.runners[1].kernel

    def until(self, share: float) -> float:
        """Return the time at which this share of the run is over."""
        return self.started + share * self.settings.seconds

    def left(self) -> float:
        """Return the seconds that are left for cases."""
        return self.until(FOUND if self.differing else 1) - time.perf_counter()

    def run(self) -> None:
        """Compare over the corner table and random cases, until they or the time are over."""
        settings, op, dtypes = self.settings, self.op, tuple(self._dtypes())
        frozen = any(kernel.autograd for kernel in self.kernels)
        corner, shaped, left_out = planning.table_of(op, settings, dtypes, frozen=frozen)
        for name in left_out:
            self.skipped[f"model {name}", planning.TOO_LARGE] += 1
        table, large = self.pace.parted((replace(spec, batch=0) for spec in corner), op)
        table += [*shaped, *onset.scan(op, dtypes, settings.device)]
        self.corners = len(table) + len(large)
        drawing = Drawing(
            op,
            dtypes,
            settings,
            self.pace,
            one=lambda lane, spec, others: self.one(spec),
            leave_out=lambda lane, reason, spec: self.leave_out(reason, spec),
            frozen=frozen,
            left=self.left,
        )
        self.planned = self.corners
        if dtypes:
            self.planned += drawing.planned(settings.examples)
        try:
            for number, spec in enumerate((*table, *large)):
                if number >= len(table) and not self.pace.allows(size(spec, op)):
                    why = f"many rows are slow: one case would take {self.pace.over(self.pace.most)}"
                    self.leave_out(why, spec)
                    self.corners -= 1
                    continue
                self.one(spec)
                self.corners_done += 1
            if dtypes and settings.examples:
                for part in (*drawing.first(), *drawing.parts(settings.examples)):
                    part(Lane(self.runners[0], at_once))
        except Over as over:
            self.end(str(over))

    def leave_out(self, reason: str, spec: CaseSpec) -> None:
        """Count a planned case that takes too long."""
        self.skipped["cases", reason] += 1
        self.too_slow[reason].append(spec)
        self.planned -= 1

    def _dtypes(self) -> Iterator[str]:
        """Yield the types of x that are asked for and that both kernels offer; note the others."""
        for dtype in self.settings.dtypes:
            lacking = [side for side, kernel in zip(SIDES, self.kernels, strict=True) if dtype not in kernel.dtypes]
            if lacking:
                self.skipped[f"dtype {dtype}", f"not offered by {' and '.join(lacking)}"] += 1
            else:
                yield dtype

    def end(self, reason: str) -> None:
        """Note why the cases end early, and count those that were not met."""
        if self.planned > self.met and not self.ended:
            self.skipped["cases", reason] += self.planned - self.met
        self.ended = self.ended or reason

    def one(self, spec: CaseSpec) -> dict[str, float]:
        """Compare one case and count it; raises Over at the end of the cases."""
        if self.interrupted:  # and the exception got lost on its way
            raise KeyboardInterrupt
        if self.left() < 0:
            raise Over(out_of_time(self.settings.seconds))
        if self.hangs >= sweep.HANGS:
            raise Over(f"the kernels had hung {self.hangs} times")
        self.met += 1
        spec = self.fitted(spec)
        if spec not in self.seen:
            begun = time.perf_counter()
            self._count(spec, self.look(spec))
            self.pace.learn(size(spec, self.op), time.perf_counter() - begun)
        self.progress(self.met, self.planned, len({output for output, _ in self.differing}))
        return {}

    def fitted(self, spec: CaseSpec) -> CaseSpec:
        """Return the nearest case that both kernels take, if they say which they take."""
        for kernel in self.kernels:
            spec = kernel.fitted(spec)
        return spec

    def _count(self, spec: CaseSpec, looked: Looked) -> None:
        """Add the results of a case."""
        if looked.refused:
            self.skipped["cases", looked.refused] += 1
            self.refused += 1
            return
        self.cases += 1
        if looked.failed:
            self.skipped["cases", looked.failed] += 1
        self.cases_compared += bool(looked.outputs or looked.gaps)
        self.outputs.update(looked.outputs)
        self.compared.update((output, spec.dtype) for output in looked.outputs)
        for gap in looked.gaps:
            key = (gap.output, spec.dtype)
            self.differing[key].append(spec)
            self.gaps[key] += 1
            self.zeros[key] += gap.zeros

    def look(self, spec: CaseSpec) -> Looked:
        """Return what differs in a case. Both kernels run again if the case says so, or if a new output differs."""
        if spec not in self.seen:
            first = self.returned(spec)
            looked = self.seen[spec] = self.between(first)
            new = any((gap.output, spec.dtype) not in self.differing for gap in looked.gaps)
            if new or ("determinism" in spec.further and looked.outputs):
                self.steady(spec, first, self.returned(spec))
        return self.seen[spec]

    def returned(self, spec: CaseSpec) -> tuple[Returned, Returned]:
        """Return what both kernels return on a case; the second does not run where the first refuses."""
        timeout = patience.of_case(self.settings.timeout, self.settings.device, prod(spec.shape))
        a = called(self.runners[0], spec, timeout)
        b = Returned() if a.refused else called(self.runners[1], spec, timeout)
        self.hangs += a.hung + b.hung
        return a, b

    def between(self, pair: tuple[Returned, Returned]) -> Looked:
        """Return what differs between the kernels."""
        for side, one in zip(SIDES, pair, strict=True):
            if one.refused:
                return Looked(refused=f"{side} does not take it: {one.refused}")
        a, b = pair
        if a.problem and b.problem:
            return Looked(failed=f"both fail, A with: {a.problem}")
        if not (a.problem or b.problem):
            for side, one, other in (("A", a, b), ("B", b, a)):
                for name in other.outputs.keys() - one.outputs.keys():
                    self.skipped[f"output {name}", f"{side} does not return it"] = 1
        there = {name for name, value in a.outputs.items() if value is not None or b.outputs.get(name) is not None}
        outputs = tuple(tensor.name for tensor in self.op.outputs if tensor.name in there & b.outputs.keys())
        return Looked(outputs, tuple(gaps(a, b, self.op)))

    def steady(self, spec: CaseSpec, first: tuple[Returned, Returned], again: tuple[Returned, Returned]) -> None:
        """Note each output in which a kernel differs from itself between two runs of a case."""
        for side, one, other in zip(SIDES, first, again, strict=True):
            for gap in gaps(one, other, self.op, TWICE):
                self.unstable.setdefault((side, gap.output), Unstable(side, gap, spec))

    def steady_keys(self) -> list[Key]:
        """Return the outputs, by type of x, that differ between the kernels though neither differs from itself."""
        moving = {output for _, output in self.unstable}
        return [key for key in self.differing if key[0] not in moving]

    def tallies(self) -> tuple[Tally, ...]:
        """Return how often each output differs, by type of x."""
        names, dtypes = [tensor.name for tensor in self.op.outputs], list(self.settings.dtypes)
        keys = sorted(self.compared, key=lambda key: (names.index(key[0]), dtypes.index(key[1])))
        return tuple(Tally(*key, self.compared[key], self.gaps[key], self.zeros[key]) for key in keys)

    def coverage(self) -> Coverage:
        """Return how much of the run was done."""
        counts = (self.planned, self.corners, self.corners_done, self.refused, self.cases_compared)
        return Coverage(*counts, dict(self.outputs), self.ended)
