"""The cases of a run after its corner table: random ones, and large ones as far as the kernel's time allows.

A seed draws the same cases, however long they take: sizes are constants, and what is left out changes no later case.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import zip_longest
from math import inf
from typing import Any

from hypothesis.strategies import SearchStrategy

from verify_norm.cases import corners, strategies
from verify_norm.cases.exploration import explore
from verify_norm.core.geometry import repeated, size
from verify_norm.core.op import Op
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.running.patience import kind
from verify_norm.search.crew import Lane, Part
from verify_norm.search.pace import SPARE, Pace, Size, cost

# Elements of x and rows, at most, of small, middle and large cases. A kernel in Triton's interpreter runs small ones in
# the time of a run, where there are none of middle size; torch also runs large ones.
SMALL = {"cpu": (2**14, 300), "cuda": (2**14, 2**14)}
MIDDLE = {"cpu": SMALL["cpu"], "cuda": (2**19, 2**16 + 1)}
LARGE = {"cpu": (2**18, 2**16 + 1), "cuda": (2**23, 2**20)}
LARGE_SHARE = 5  # one large case for this number of other ones, or for twice as many if small ones come with others
MIDDLE_SHARE = 16  # one case of middle size for this number of random ones that are not large
# A small random case comes with others of its shape and types, for which nothing is built anew, and without further
# runs. NumPy judges each in some milliseconds; of a larger shape, another one costs as much as another small shape.
OTHERS = {"cpu": 3, "cuda": 7}
# Shapes of one exploration at most. In a longer one, cases climb higher, and one process runs them all; large ones
# climb nothing.
EXPLORED, EXPLORED_LARGE = {"cpu": 100, "cuda": 12}, 8
SEEDS = 2**32  # between the seeds of two explorations, so that another seed of a run shares none


def larger(elements: int, rows: int, op: Op) -> Callable[[CaseSpec], bool]:
    """Return a function that tells whether a case has more elements of x, or more rows.

    Hypothesis makes the `repr` of a filter at each case that it rejects, so this is no method of an object that holds
    the results of a run.
    """

    def is_larger(spec: CaseSpec) -> bool:
        wanted = size(spec, op)
        return wanted[0] > rows or wanted[1] > elements

    return is_larger


@dataclass
class Drawing:
    """Random and large cases of an operator.

    `one` runs a case and so many others of its shape and types, and returns what random ones maximize: small ones have
    `others`. `leave_out` counts a case that takes too long, with a reason; `left` returns the seconds that
    the run has left. Cases of the table for which it is too late at first are `waiting` for the end of the random ones.
    """

    op: Op
    dtypes: tuple[str, ...]
    settings: Settings
    pace: Pace
    one: Callable[[Lane, CaseSpec, int], Mapping[str, float]]
    leave_out: Callable[[Lane, str, CaseSpec], None]
    frozen: bool
    others: int = 0
    left: Callable[[], float] = lambda: inf
    until: float = inf  # when it is too late for the cases of the table, at first
    waiting: set[CaseSpec] = field(default_factory=set)

    @cached_property
    def table(self) -> list[CaseSpec]:
        """The large cases of a table: those that cost little come first, so that time that is short leaves out few."""
        if not self.settings.tables:
            return []
        on_gpu = kind(self.settings.device) != "cpu"
        first = corners.wide(self.op, self.dtypes, frozen=self.frozen, gpu=on_gpu)[: self.large_ones]
        return sorted(first, key=lambda spec: cost(self.size(spec)))

    def first(self) -> Iterator[Part]:
        """Yield the large cases of the table, as far as their share of the time suffices; the others wait."""
        for spec in self.table:
            yield partial(self.wide, spec=spec)

    def parts(self, usual_ones: int) -> Iterator[Part]:
        """Yield `usual_ones` random cases that are not large, and random large ones.

        What waits of the table has another share of the time in their midst, and what is left behind them.
        """
        explored = EXPLORED[kind(self.settings.device)]
        small = self.explorations(self.specs(SMALL), self.small, self.shapes(usual_ones), explored)
        of_middle_size = self.specs(MIDDLE, above=SMALL)
        middle = self.explorations(of_middle_size, self.alone, self.middle_ones(usual_ones), explored)
        usual = [part for pair in zip_longest(small, middle) for part in pair if part is not None]  # by turns
        half = len(usual) // 2
        yield from usual[:half]
        for number, spec in enumerate(self.table):
            yield partial(self.again, spec=spec, anew=number == 0)
        yield from usual[half:]
        for spec in self.table:
            yield partial(self.late, spec=spec)
        large = self.specs(LARGE, above=MIDDLE)
        yield from self.explorations(large, self.large, self.large_ones - len(self.table), EXPLORED_LARGE)

    def specs(
        self, most: Mapping[str, tuple[int, int]], above: Mapping[str, tuple[int, int]] | None = None
    ) -> SearchStrategy[CaseSpec]:
        """Return the strategy of random cases of a size, by the kind of device; `above` another one, if given."""
        device = kind(self.settings.device)
        elements, rows = most[device]
        of_size = strategies.specs(self.op, self.dtypes, elements, frozen=self.frozen, gpu=device != "cpu", rows=rows)
        return of_size.filter(larger(*above[device], self.op)) if above else of_size

    @property
    def large_ones(self) -> int:
        """The number of large cases."""
        return self.settings.examples // (LARGE_SHARE * (2 if self.others else 1))

    def middle_ones(self, usual_ones: int) -> int:
        """Return how many of so many random cases that are not large are of middle size."""
        device = kind(self.settings.device)
        return max(usual_ones, 0) // MIDDLE_SHARE if MIDDLE[device] != SMALL[device] else 0

    def shapes(self, usual_ones: int) -> int:
        """Return how many small shapes are drawn for so many random cases that are not large."""
        return -(-(max(usual_ones, 0) - self.middle_ones(usual_ones)) // (1 + self.others))

    def planned(self, usual_ones: int) -> int:
        """Return how many cases `parts` have."""
        return self.shapes(usual_ones) * (1 + self.others) + self.middle_ones(usual_ones) + self.large_ones

    def small(self, lane: Lane, spec: CaseSpec) -> Mapping[str, float]:
        """Run a small random case, with others of its shape and types."""
        return self.one(lane, spec, self.others)

    def alone(self, lane: Lane, spec: CaseSpec) -> Mapping[str, float]:
        """Run a random case without others."""
        return self.one(lane, spec, 0)

    def explorations(
        self, strategy: SearchStrategy[CaseSpec], one: Callable[[Lane, CaseSpec], Any], examples: int, most: int
    ) -> Iterator[Part]:
        """Yield explorations of at most `most` cases, which do not follow each other's errors: each has its seed.

        Together they have `examples` cases, in shares that differ by one case at most.
        """

        def exploration(number: int, share: int) -> Part:
            def run(lane: Lane) -> None:
                lane.exploration = number
                explore(strategy, partial(one, lane), examples=share, seed=self.settings.seed + number * SEEDS)

            return run

        count = -(-max(examples, 0) // most)
        for number in range(count):
            yield exploration(number, share=len(range(number, examples, count)))

    def size(self, spec: CaseSpec) -> Size:
        """Return the rows and elements of a case of the table, with its batch."""
        return size(repeated(spec), self.op)

    def wide(self, lane: Lane, spec: CaseSpec) -> None:
        """Run a case of the table if it ends early enough after the first one began; else it waits."""
        now, wanted = time.perf_counter(), self.size(spec)
        self.until = min(self.until, now + self.pace.wide)
        if self.pace.fits(wanted) and now + self.pace.expected(wanted) <= self.until:
            self.one(lane, spec, 0)
        else:
            self.waiting.add(spec)

    def again(self, lane: Lane, spec: CaseSpec, *, anew: bool) -> None:
        """Do as `wide` with a case that waits; the time of such cases begins `anew` with the first of them."""
        if anew:
            self.until = inf
        if spec in self.waiting:
            self.waiting.remove(spec)
            self.wide(lane, spec)

    def late(self, lane: Lane, spec: CaseSpec) -> None:
        """Run a case of the table that waits, if the time that is left suffices."""
        if spec not in self.waiting:
            return
        spare = self.left() - self.settings.seconds * SPARE
        if spare < self.pace.expected(self.size(spec)):
            self.leave_out(lane, f"no time was left for large cases in {self.settings.seconds:g} s (--seconds)", spec)
        else:
            self.large(lane, spec)

    def large(self, lane: Lane, spec: CaseSpec) -> Mapping[str, float]:
        """Run a large case if the kernel's time allows it; return nothing to maximize."""
        if self.pace.fits(self.size(spec)):
            self.one(lane, spec, 0)
        else:
            self.leave_out(lane, f"a large case would take {self.pace.over(self.pace.most)}", spec)
        return {}
