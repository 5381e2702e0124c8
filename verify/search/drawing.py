"""The cases of a run after its corner table: random ones, and large ones as far as the kernel's time allows.

A seed draws the same cases, however long they take: sizes are constants, and what is left out changes no later case.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from verify_norm.cases import corners, strategies
from verify_norm.core.geometry import repeated, size
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec, Op
from verify_norm.running.patience import kind
from verify_norm.search.pace import Pace

# Elements of x and rows. A kernel in Triton's interpreter runs usual cases in the time of a run; torch also large ones.
USUAL = {"cpu": (2**14, 300), "cuda": (2**19, 2**16 + 1)}
LARGE = {"cpu": (2**18, 2**16 + 1), "cuda": (2**23, 2**20)}
LARGE_SHARE = 8  # one large case for so many usual ones


def planned(settings: Settings) -> int:
    """Return how many cases `Drawing.run` has."""
    return settings.examples + settings.examples // LARGE_SHARE


@dataclass(frozen=True, slots=True)
class Drawing:
    """Random and large cases of an operator.

    `one` runs a case and returns what random ones maximize; `leave_out` counts one that takes too long, with a reason.
    """

    op: Op
    dtypes: tuple[str, ...]
    settings: Settings
    pace: Pace
    one: Callable[[CaseSpec], Mapping[str, float]]
    leave_out: Callable[[str], None]
    frozen: bool

    def run(self, usual_ones: int) -> None:
        """Run the large cases of a table, so many random cases of usual size, and random large ones."""
        settings, device = self.settings, kind(self.settings.device)
        count, table = settings.examples // LARGE_SHARE, corners.wide(self.op, self.dtypes)
        until = time.perf_counter() + self.pace.wide
        for spec in table[:count]:
            self.large(spec, until)
        usual, large = (
            strategies.specs(self.op, self.dtypes, elements, frozen=self.frozen, rows=rows)
            for elements, rows in (USUAL[device], LARGE[device])
        )
        if usual_ones:
            strategies.explore(usual, self.one, examples=usual_ones, seed=settings.seed)
        if count > len(table):
            large = large.filter(self.is_large)
            strategies.explore(large, self.large, examples=count - len(table), seed=settings.seed)

    def is_large(self, spec: CaseSpec) -> bool:
        """Return whether a case is larger than those of usual size."""
        elements, rows = USUAL[kind(self.settings.device)]
        wanted = size(spec, self.op)
        return wanted[0] > rows or wanted[1] > elements

    def large(self, spec: CaseSpec, until: float = inf) -> Mapping[str, float]:
        """Run a large case if the kernel's time allows it, and if it is not too late; return nothing to maximize."""
        if time.perf_counter() < until and self.pace.fits(size(repeated(spec), self.op)):
            self.one(spec)
        else:
            most, first = self.pace.most, self.pace.wide
            self.leave_out(f"large cases are slow: over {most:.2g} s for one, or over {first:.2g} s for the first ones")
        return {}
