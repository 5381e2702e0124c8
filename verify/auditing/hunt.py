"""The hunt: a search for the inputs on which a kernel's error is largest, against its bound and in ulp.

Three stages share the time. Hypothesis draws specs as an ordinary run does and steers by `target`. A differential
evolution (scipy) then moves the numbers of the worst specs, offset, scale, eps and size, each trial with data of
another seed; and last the data themselves are moved: signs, exchanges, and steps along random directions, which no spec
can say, so that what is gained there is told as a number. Errors in 16 bits are mostly the last rounding, half an ulp,
which the bound has too: they come near 1 in any kernel, and tell nothing. So float32 is searched, where a kernel offers
it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from math import inf, isfinite, log2, prod
from typing import Any

import hypothesis
import numpy as np
from scipy import optimize

from verify_norm import cases, data, judge, strategies
from verify_norm.auditing import moves
from verify_norm.auditing.model import Hunt, Worst
from verify_norm.corners import corners
from verify_norm.dtypes import FORMATS, Array
from verify_norm.execute import execute
from verify_norm.ops import OPS
from verify_norm.spec import CaseSpec, Kernel
from verify_norm.ulp import distance

ELEMENTS = {"cpu": 2**11, "cuda": 2**17}  # of x: the more cases, the better
SHARES = (0.25, 0.85)  # of the time: when drawing ends, and when specs are left for their data
FIRST = 16  # lines of the corner table, so that there is something to begin with
KEPT = 6  # worst specs of each measure
POPULATION, GENERATIONS = 10, 8
MOST = 1e6  # more is as good
Measure = dict[str, tuple[float, float]]  # output: error/bound, ULP


class _OverError(BaseException):
    """The time is over: not an Exception, so that Hypothesis does not take it for a failure."""


@dataclass(slots=True)
class _Chase:
    """What has been found so far."""

    kernel: Kernel
    device: str
    outputs: tuple[str, ...]
    deadline: float
    stage: str = "corpus"
    counts: dict[str, int] = field(default_factory=lambda: {"corpus": 0, "drawn": 0, "evolved": 0, "moved": 0})
    best: dict[tuple[str, str], list[tuple[float, CaseSpec, str]]] = field(default_factory=dict)

    def measured(self, spec: CaseSpec) -> Measure:
        """Run one case, and remember it where it is among the worst; raises _OverError when the time is over."""
        if time.perf_counter() > self.deadline:
            raise _OverError
        op, kernel = OPS[self.kernel.op], self.kernel
        near = {f.name: "contiguous" for f in fields(spec) if f.name.endswith("_layout")}
        shared = {name: getattr(spec, name) for name in near if getattr(spec, name) in ("expanded", "scalar")}
        spec = replace(spec, **(near | shared))  # elsewhere a layout changes no value
        spec = spec if kernel.fit is None else kernel.fit(spec)
        if data.refusal(spec, op) or (kernel.unsupported is not None and kernel.unsupported(spec)):
            return {}
        self.counts[self.stage] += 1
        found = measure(kernel, cases.make(spec, op, kernel.contract, self.device), self.outputs)
        for output, values in found.items():
            for name, value in zip(("ratio", "ulp"), values, strict=True):
                self._enter((output, name), value, spec)
        return found

    def _enter(self, key: tuple[str, str], value: float, spec: CaseSpec) -> None:
        kept = self.best.setdefault(key, [])
        if value > 0 and (len(kept) < KEPT or value > kept[-1][0]) and all(spec != other for _, other, _ in kept):
            kept.append((value, spec, self.stage))
            kept.sort(key=lambda one: -one[0])
            del kept[KEPT:]


def measure(kernel: Kernel, case: Any, outputs: tuple[str, ...]) -> Measure:
    """The largest error/bound and the largest distance in ulp of every output of one case, of what is judged."""
    run = execute(kernel, case)
    found: Measure = {}
    for name, output in run.outputs.items():
        expected = case.expected[name]
        if name not in outputs or output is None or expected is None or output.ratio is None or not output.got.size:
            continue
        known = judge.judged(expected)
        if known.any():
            ulps = distance(output.got[known], expected.value[known], FORMATS[expected.dtype])
            found[name] = float(output.ratio.max()), float(ulps.max())
    return found


def hunt(
    kernel: Kernel, seconds: float, output: str | None = None, device: str = "cpu", seed: int = 0, *,
    dtypes: tuple[str, ...] | None = None, corpus: Iterable[CaseSpec] = (), elements: int | None = None,
) -> Hunt:  # fmt: skip
    """Search for `seconds` the inputs on which the errors of `kernel` are largest.

    Parameters
    ----------
    kernel
        ready to run, as `registry.load` returns it; it runs in this process.
    seconds
        of the search; the corpus is run first, whatever it takes.
    output
        the one that counts; all, if none is named.
    device
        where it runs.
    seed
        of the search; with the same seed the same cases are drawn, as far as the time goes.
    dtypes
        of x; float32 where the kernel offers it, else all that it does.
    corpus
        cases that are run first (`corpus.load`).
    elements
        of x, at most about; few on a CPU, since cases are worth more than elements.

    Raises
    ------
    ValueError : the operator has no such output.
    """
    op, started = OPS[kernel.op], time.perf_counter()
    names = tuple(tensor.name for tensor in op.outputs)
    if output is not None and output not in names:
        raise ValueError(f"{op.name} has no output {output!r}; it has {', '.join(names)}")
    dtypes = dtypes or (("float32",) if "float32" in kernel.dtypes else kernel.dtypes)
    elements = elements or ELEMENTS["cpu" if device == "cpu" else "cuda"]
    chase = _Chase(kernel, device, (output,) if output else names, inf)
    for spec in corpus:
        chase.measured(spec)
    first, left = corners(op, dtypes)[:FIRST], max(seconds - (time.perf_counter() - started), 0.0)
    if left:  # whatever is imported or compiled once is not the search's
        chase.stage = "drawn"
        chase.measured(first[0])
    began = time.perf_counter()
    rng = np.random.default_rng(seed)
    moved: dict[tuple[str, str], float] = {}
    stages: tuple[tuple[str, float, Callable[[], None]], ...] = (
        (
            "drawn",
            SHARES[0],
            lambda: _draw(chase, corners(op, dtypes)[:FIRST], strategies.specs(op, dtypes, elements), seed),
        ),
        ("evolved", SHARES[1], lambda: _evolve(chase, rng, elements)),
        ("moved", 1.0, lambda: _move(chase, rng, moved)),
    )
    for stage, share, act in stages:
        chase.stage, chase.deadline = stage, began + share * left
        try:
            act()
        except _OverError:
            continue
    worst = []
    for (name, what), kept in sorted(chase.best.items(), key=lambda item: (names.index(item[0][0]), item[0][1])):
        if kept:
            value, spec, found = kept[0]
            worst.append(Worst(name, what, value, spec, found, max(moved.get((name, what), 0.0), value)))
    counts, took = chase.counts, time.perf_counter() - started
    return Hunt(kernel.name, kernel.op, took, sum(counts.values()), counts["drawn"], counts["evolved"],
                counts["moved"], tuple(worst))  # fmt: skip


def _draw(chase: _Chase, first: list[CaseSpec], strategy: Any, seed: int) -> None:
    """Let Hypothesis draw specs and steer towards the largest error of each output, in either measure."""
    for spec in first:
        chase.measured(spec)

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=10**6,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.target),
        suppress_health_check=list(hypothesis.HealthCheck),
        verbosity=hypothesis.Verbosity.quiet,
    )
    @hypothesis.given(strategy)
    def attempt(spec: CaseSpec) -> None:
        found = chase.measured(spec)
        for name, (ratio, ulp) in found.items():
            hypothesis.target(min(ratio, MOST), label=f"{name} error/bound")
            hypothesis.target(log2(min(max(ulp, 2.0**-9), MOST)), label=f"{name} ulp")

    with strategies.whatever_is_imported():
        while True:
            attempt()


def _evolve(chase: _Chase, rng: np.random.Generator, elements: int) -> None:
    """Differential evolution over the numbers of the worst specs, by turns; every trial has data of its own."""
    turn = 0
    while True:
        keys = [key for key, kept in chase.best.items() if kept and kept[0][0] < MOST]
        keys = [key for key in keys if key[1] == "ratio"] * 2 + [key for key in keys if key[1] == "ulp"]
        keys = keys or [key for key, kept in chase.best.items() if kept]
        if not keys:
            raise _OverError
        key = keys[turn % len(keys)]
        start = chase.best[key][min(int(rng.exponential(1.5)), len(chase.best[key]) - 1)][1]
        turn += 1

        def cost(v: Array, key: tuple[str, str] = key, start: CaseSpec = start) -> float:
            return -_value(chase, moves.spec_near(start, v, rng, elements), key)

        optimize.differential_evolution(
            cost,
            optimize.Bounds(moves.LOWS, moves.LOWS + moves.WIDTHS),
            maxiter=GENERATIONS, popsize=1, init=rng.random((POPULATION, len(moves.LOWS))) * moves.WIDTHS + moves.LOWS,
            polish=False, tol=0.0, mutation=(0.4, 0.9), rng=rng,
        )  # fmt: skip


def _value(chase: _Chase, spec: CaseSpec, key: tuple[str, str]) -> float:
    found = chase.measured(spec).get(key[0], (0.0, 0.0))[key[1] == "ulp"]
    return min(found, MOST) if isfinite(found) else MOST


def _move(chase: _Chase, rng: np.random.Generator, moved: dict[tuple[str, str], float]) -> None:
    """Move the data of the worst specs, a few elements or one direction at a time, and keep what is worse."""
    worst = {
        key: kept[0]
        for key, kept in chase.best.items()
        if kept and kept[0][0] < MOST and kept[0][1].special is None and prod(kept[0][1].shape) > 0
    }
    state: dict[tuple[str, str], tuple[float, dict[str, Array | None]]] = {}
    op = OPS[chase.kernel.op]
    while worst:
        for key, (value, spec, _) in worst.items():
            if time.perf_counter() > chase.deadline:
                return
            at, exact = state.get(key) or (value, cases.draw(spec, op))
            trial = moves.other_data(spec, exact, rng)
            trial |= cases.saved(spec, op, trial)
            case = cases.build(spec, op, chase.kernel.contract, chase.device, trial, truth=True)
            chase.counts["moved"] += 1
            found = measure(chase.kernel, case, (key[0],)).get(key[0], (0.0, 0.0))[key[1] == "ulp"]
            state[key] = (found, trial) if found > at else (at, exact)
            moved[key] = state[key][0]
