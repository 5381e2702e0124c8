"""The hunt: a search for the inputs with the largest errors of a kernel, by error/bound and in ulp.

Three stages share the time. Hypothesis draws specs like an ordinary run, steered by `hypothesis.target`. A differential
evolution (scipy) then changes offset, scales, eps and size of the worst specs, with a new seed for every trial. Last,
the data of the worst specs change: signs, exchanged elements, steps in random directions. No spec expresses such data,
so the result holds only how far the error grew. The hunt uses float32 if the kernel takes it: an error in 16 bits is
mostly the last rounding, which the bound contains too, so error/bound is near 1 for any kernel.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import count, product
from math import inf, isfinite, log2, prod
from typing import Any

import numpy as np

from verify_norm.auditing.model import Hunt, Worst
from verify_norm.auditing.near import LIMITS, other_data, spec_near
from verify_norm.cases import further_runs, make, strategies
from verify_norm.cases.corners import corners
from verify_norm.cases.exploration import MOST, explore
from verify_norm.core import geometry, judge, packages
from verify_norm.core.dtypes import Array
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.run import Case, Run
from verify_norm.core.spec import SHARED, CaseSpec
from verify_norm.running import child
from verify_norm.running.execute import execute

ELEMENTS = {"cpu": 2**11, "cuda": 2**17}  # of x; small, because many cases find more than large ones
DRAWN, EVOLVED = 0.25, 0.85  # fractions of the time at which these stages end
FIRST = 16  # lines of the corner table to start from
KEPT = 6  # worst specs of each output and measure
POPULATION, GENERATIONS = 10, 8
Key = tuple[str, str]  # output, and "ratio" (error/bound) or "ulp"


@dataclass(frozen=True, slots=True)
class HuntOptions:
    """The options of a hunt."""

    seconds: float  # of the search, after the corpus
    output: str | None = None  # the only output whose error counts
    device: str = "cpu"
    seed: int = 0
    dtypes: tuple[str, ...] = ()  # of x; by default float32 if the kernel takes it, else all that it takes
    corpus: tuple[CaseSpec, ...] = ()  # cases to run first


class _TimeIsUpError(BaseException):
    """The stage ends. It is no Exception, because Hypothesis takes an Exception for a failure of the test."""


@dataclass(slots=True)
class _Search:
    """The state of a hunt: the worst specs so far, each with its error and the stage that found it.

    `moved` has the largest errors for other data of these specs.
    """

    kernel: Kernel
    device: str
    outputs: tuple[str, ...]
    rng: np.random.Generator
    elements: int  # the largest size of x
    deadline: float = inf
    stage: str = "corpus"
    counts: Counter[str] = field(default_factory=Counter)
    best: dict[Key, list[tuple[float, CaseSpec, str]]] = field(default_factory=dict)
    moved: dict[Key, float] = field(default_factory=dict)
    tried: int = 0
    compared: int = 0
    problem: str = ""  # of the first case in which nothing was compared
    interrupted: bool = False

    def check_time(self) -> None:
        """Raise _TimeIsUpError after the deadline, or once the user has interrupted the hunt."""
        self.interrupted |= child.asked_to_end()
        if self.interrupted or time.perf_counter() > self.deadline:
            raise _TimeIsUpError

    def run(self, spec: CaseSpec) -> dict[Key, float]:
        """Run one case and keep it if it is among the worst; return nothing if the kernel does not take it."""
        self.check_time()
        op, kernel = OPS[self.kernel.op], self.kernel
        layouts = [f.name for f in fields(spec) if f.name.endswith("_layout")]
        plain: Any = {name: "contiguous" for name in layouts if getattr(spec, name) not in SHARED}
        # These layouts do not change the values.
        spec = kernel.fitted(replace(spec, **(plain | further_runs.EVERYTHING)))
        if geometry.refusal(spec, op):
            return {}
        self.tried += 1
        if kernel.refuses(spec):
            return {}
        self.counts[self.stage] += 1
        case = make.case(spec, op, kernel.contract, self.device)
        ran = execute(kernel, case)
        found = _measured(ran, case, self.outputs)
        self.compared += bool(found)
        self.problem = self.problem or ("" if found else ran.problem or "")
        for key, value in found.items():
            kept = self.best.setdefault(key, [])
            if value > 0 and all(spec != other for _, other, _ in kept):
                kept.append((value, spec, self.stage))
                kept.sort(key=lambda one: -one[0])
                del kept[KEPT:]
        return found

    def worst(self) -> Iterator[Worst]:
        """Yield the worst case of each output in each measure."""
        for key in product(self.outputs, ("ratio", "ulp")):
            kept = self.best.get(key)
            if kept:
                value, spec, stage = kept[0]
                yield Worst(*key, value, spec, stage, max(self.moved.get(key, 0.0), value))


def measure(kernel: Kernel, case: Case, outputs: tuple[str, ...]) -> dict[Key, float]:
    """Return the largest error/bound and the largest error in ulp of these outputs, over the elements with a bound."""
    return _measured(execute(kernel, case), case, outputs)


def _measured(run: Run, case: Case, outputs: tuple[str, ...]) -> dict[Key, float]:
    found: dict[Key, float] = {}
    for name, output in run.outputs.items():
        expected = case.expected[name]
        if name not in outputs or output is None or expected is None or output.ratio is None or not output.got.size:
            continue
        known = judge.judged(expected)
        if known.any():
            ulps = judge.ulps(output.got, expected)[known]
            found |= {(name, "ratio"): float(output.ratio.max()), (name, "ulp"): float(ulps.max())}
    return found


def hunt(kernel: Kernel, options: HuntOptions) -> Hunt:
    """Return the inputs with the largest errors that a search finds; the kernel runs in this process.

    The same seed draws the same cases, as far as the time goes.

    Raises ValueError: the operator has no output `options.output`. UsageError: SciPy is not installed.
    """
    packages.need("hunt", "scipy")
    op, started = OPS[kernel.op], time.perf_counter()
    names = tuple(tensor.name for tensor in op.outputs)
    if options.output is not None and options.output not in names:
        raise ValueError(f"{op.name} has no output {options.output!r}; it has {', '.join(names)}")
    dtypes = options.dtypes or (("float32",) if "float32" in kernel.dtypes else kernel.dtypes)
    outputs = (options.output,) if options.output else names
    elements = ELEMENTS["cpu" if options.device == "cpu" else "cuda"]
    search = _Search(kernel, options.device, outputs, np.random.default_rng(options.seed), elements)
    try:
        with suppress(_TimeIsUpError):
            _run_stages(search, options, dtypes, started + options.seconds)
    except KeyboardInterrupt:  # in this process; that of a kernel is asked to end
        search.interrupted = True
    counts, seconds = search.counts, time.perf_counter() - started
    return Hunt(
        kernel.name,
        kernel.op,
        seconds,
        counts.total(),
        drawn=counts["drawn"],
        evolved=counts["evolved"],
        moved=counts["moved"],
        worst=tuple(search.worst()),
        tried=search.tried,
        compared=search.compared,
        problem=search.problem,
        interrupted=search.interrupted,
    )


def _run_stages(search: _Search, options: HuntOptions, dtypes: tuple[str, ...], end: float) -> None:
    """Run the corpus, then each stage up to its share of the time that is left."""
    for spec in options.corpus:
        search.run(spec)
    first = corners(OPS[search.kernel.op], dtypes)[:FIRST]
    left = max(end - time.perf_counter(), 0.0)
    search.stage = "drawn"
    if left:
        search.run(first[0])  # imports and compilation do not count as search time
    began = time.perf_counter()
    stages: tuple[tuple[str, float, Callable[[], None]], ...] = (
        ("drawn", DRAWN, partial(_draw, search, first, dtypes, options.seed)),
        ("evolved", EVOLVED, partial(_evolve, search)),
        ("moved", 1.0, partial(_move, search)),
    )
    for name, share, stage in stages:
        search.stage, search.deadline = name, began + share * left
        with suppress(_TimeIsUpError):
            stage()


def _draw(search: _Search, first: list[CaseSpec], dtypes: tuple[str, ...], seed: int) -> None:
    """Let Hypothesis draw specs, with the errors of every output as its targets."""
    for spec in first:
        search.run(spec)

    def targets(spec: CaseSpec) -> dict[str, float]:
        return {
            f"{name} {what}": value if what == "ratio" else log2(min(max(value, 2.0**-9), MOST))
            for (name, what), value in search.run(spec).items()
        }

    strategy = strategies.specs(OPS[search.kernel.op], dtypes, search.elements)
    while True:
        explore(strategy, targets, examples=10**6, seed=seed)


def _evolve(search: _Search) -> None:
    """Run a differential evolution near one of the worst specs of each output and measure in turn, until time is up."""
    from scipy import optimize

    rng = search.rng
    for turn in count():
        keys = _by_turns(search)
        if not keys:
            return
        key = keys[turn % len(keys)]
        kept = search.best[key]
        _, start, _ = kept[min(int(rng.exponential(1.5)), len(kept) - 1)]  # mostly one of the worst

        def cost(v: Array, key: Key = key, start: CaseSpec = start) -> float:
            value = search.run(spec_near(start, v, rng, search.elements)).get(key, 0.0)
            return -min(value, MOST) if isfinite(value) else -MOST

        optimize.differential_evolution(
            cost,
            optimize.Bounds(-LIMITS, LIMITS),
            maxiter=GENERATIONS,
            popsize=1,
            init=rng.random((POPULATION, len(LIMITS))) * 2 * LIMITS - LIMITS,
            polish=False,
            tol=0.0,
            mutation=(0.4, 0.9),
            rng=rng,
        )


def _by_turns(search: _Search) -> list[Key]:
    """Return the outputs and measures that have a turn each, error/bound two: those whose worst error is below MOST.

    If there are none, return all that have a case.
    """
    with_cases = [key for key, kept in search.best.items() if kept]
    finite = [key for key in with_cases if search.best[key][0][0] < MOST]
    ratios, ulps = ([key for key in finite if key[1] == measure] for measure in ("ratio", "ulp"))
    return [*ratios, *ratios, *ulps] or with_cases


def _move(search: _Search) -> None:
    """Change the data of the worst specs step by step, and keep a change that enlarges the error, until time is up."""
    kernel, op = search.kernel, OPS[search.kernel.op]
    worst: dict[Key, tuple[float, CaseSpec]] = {}
    for key, kept in search.best.items():
        if kept:
            value, spec, _ = kept[0]
            if value < MOST and spec.special is None and prod(spec.shape) > 0:
                worst[key] = value, spec
    state: dict[Key, tuple[float, dict[str, Array | None]]] = {}  # the largest error, and the inputs that have it
    while worst:
        for key, (value, spec) in worst.items():
            search.check_time()
            largest, exact = state.get(key) or (value, make.exact_inputs(spec, op))
            trial = other_data(spec, exact, search.rng)
            trial |= make.saved(spec, op, trial)
            case = make.build(spec, op, kernel.contract, search.device, trial, truth=True)
            search.counts[search.stage] += 1
            found = measure(kernel, case, (key[0],)).get(key, 0.0)
            state[key] = (found, trial) if found > largest else (largest, exact)
            search.moved[key] = state[key][0]
