"""The cases of a run after its corner table: random ones, and large ones as far as the kernel's time allows.

A seed draws the same cases, however long they take: sizes are constants, and what is left out changes no later case.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

from hypothesis.strategies import SearchStrategy

from verify_norm.cases import corners, strategies
from verify_norm.core.geometry import repeated, size
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec, Op
from verify_norm.running.patience import kind
from verify_norm.search.crew import Lane, Part
from verify_norm.search.pace import Pace

# Elements of x and rows. A kernel in Triton's interpreter runs usual cases in the time of a run; torch also large ones.
USUAL = {"cpu": (2**14, 300), "cuda": (2**19, 2**16 + 1)}
LARGE = {"cpu": (2**18, 2**16 + 1), "cuda": (2**23, 2**20)}
LARGE_SHARE = 8  # one large case for this number of usual ones
# Cases of one exploration at most. In one that is longer, cases climb higher, and one process runs them all; large ones
# climb nothing.
EXPLORED, EXPLORED_LARGE = 100, 8
SEEDS = 2**32  # between the seeds of two explorations, so that another seed of a run shares none


def planned(settings: Settings) -> int:
    """Return how many cases `Drawing.parts` have."""
    return settings.examples + settings.examples // LARGE_SHARE


@dataclass(slots=True)
class Drawing:
    """Random and large cases of an operator.

    `one` runs a case and returns what random ones maximize; `leave_out` counts one that takes too long, with a reason.
    """

    op: Op
    dtypes: tuple[str, ...]
    settings: Settings
    pace: Pace
    one: Callable[[Lane, CaseSpec], Mapping[str, float]]
    leave_out: Callable[[Lane, str], None]
    frozen: bool
    until: float = inf  # when it is too late for the cases of the table

    def parts(self, usual_ones: int) -> Iterator[Part]:
        """Yield the large cases of a table, `usual_ones` random cases of usual size, and random large ones."""
        device = kind(self.settings.device)
        count = self.settings.examples // LARGE_SHARE
        table = (
            corners.wide(self.op, self.dtypes, frozen=self.frozen, gpu=device != "cpu") if self.settings.tables else []
        )
        for spec in table[:count]:
            yield partial(self.wide, spec=spec)
        usual, large = (
            strategies.specs(self.op, self.dtypes, elements, frozen=self.frozen, gpu=device != "cpu", rows=rows)
            for elements, rows in (USUAL[device], LARGE[device])
        )
        yield from self.explorations(usual, self.one, usual_ones, EXPLORED)
        yield from self.explorations(large.filter(self.is_large), self.large, count - len(table), EXPLORED_LARGE)

    def explorations(
        self, strategy: SearchStrategy[CaseSpec], one: Callable[[Lane, CaseSpec], Any], examples: int, most: int
    ) -> Iterator[Part]:
        """Yield explorations of at most `most` cases, which do not follow each other's errors: each has its seed."""
        for number in range(count := -(-max(examples, 0) // most)):
            share, seed = len(range(number, examples, count)), self.settings.seed + number * SEEDS

            def explore(lane: Lane, share: int = share, seed: int = seed) -> None:
                strategies.explore(strategy, partial(one, lane), examples=share, seed=seed)

            yield explore

    def is_large(self, spec: CaseSpec) -> bool:
        """Return whether a case is larger than those of usual size."""
        elements, rows = USUAL[kind(self.settings.device)]
        wanted = size(spec, self.op)
        return wanted[0] > rows or wanted[1] > elements

    def wide(self, lane: Lane, spec: CaseSpec) -> None:
        """Run a case of the table if the kernel's time allows it, and if it is not too late since the first one."""
        self.until = min(self.until, time.perf_counter() + self.pace.wide)
        self.large(lane, spec, self.until)

    def large(self, lane: Lane, spec: CaseSpec, until: float = inf) -> Mapping[str, float]:
        """Run a large case if the kernel's time allows it, and if it is not too late; return nothing to maximize."""
        if time.perf_counter() < until and self.pace.fits(size(repeated(spec), self.op)):
            self.one(lane, spec)
        else:
            most, first = self.pace.most, self.pace.wide
            reason = f"large cases are slow: over {most:.2g} s for one, or over {first:.2g} s for the first ones"
            self.leave_out(lane, reason)
        return {}
