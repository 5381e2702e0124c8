"""The survey of errors: how far every output is from the truth in each dtype, in which cases most, and where in one."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from verify_norm.auditing import textbook
from verify_norm.auditing.model import Averages, Heat, UlpReport, WorstCase, summary
from verify_norm.cases import make
from verify_norm.checks.condition import condition
from verify_norm.checks.relations.moments import Moments, moments
from verify_norm.core import judge
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.judge import worst
from verify_norm.core.kernel import Kernel
from verify_norm.core.op import Op
from verify_norm.core.ops import OPS
from verify_norm.core.run import Expected, Output, Run
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import Tally
from verify_norm.running.execute import execute

WORST = 5  # cases that are kept for each measure
MOST_ROWS, MOST_COLUMNS = 32, 64  # cells of a heat map


@dataclass(slots=True)
class _Errors:
    """The errors of one output in one dtype, over the runs so far."""

    tally: Tally
    by_ulp: list[WorstCase] = field(default_factory=list)
    by_ratio: list[WorstCase] = field(default_factory=list)
    moments: Moments | None = None

    def enter(self, output: Output, expected: Expected, spec: CaseSpec) -> None:
        """Add one run of the case `spec`."""
        self.tally = self.tally.merge(Tally.of(self.tally.output, output, expected, spec))
        known, ratios = judge.judged(expected), np.asarray(output.ratio)
        if not known.any():
            return
        ulps = np.where(known, judge.ulps(output.got, expected), 0.0)

        def case(errors: Array) -> WorstCase:
            index = worst(errors)
            ulp, ratio, got, want = (float(a[index]) for a in (ulps, ratios, output.got, expected.value))
            return WorstCase(ulp, ratio, got, want, index, spec)

        self.by_ulp = sorted([*self.by_ulp, case(ulps)], key=lambda one: -one.ulp)[:WORST]
        self.by_ratio = sorted([*self.by_ratio, case(ratios)], key=lambda one: -one.ratio)[:WORST]

    def report(self, kernel: Kernel) -> UlpReport:
        """Return the numbers, the worst cases with their conditions, and the averages."""

        def conditioned(cases: list[WorstCase]) -> tuple[WorstCase, ...]:
            output = self.tally.output
            return tuple(replace(c, condition=condition(kernel, c.spec, output, c.index)) for c in cases)

        sums, averages = self.moments, None
        if sums is not None:
            parts = (sums.excess, sums.excess_allowed, sums.signed, sums.bias_allowed)
            averages = Averages(sums.count, *(part / (sums.weight or 1.0) for part in parts))
        by_ulp, by_ratio = conditioned(self.by_ulp), conditioned(self.by_ratio)
        return replace(summary(self.tally), by_ulp=by_ulp, by_ratio=by_ratio, averages=averages)


def survey(
    kernel: Kernel, specs: Iterable[CaseSpec], device: str = "cpu", *, seconds: float = inf
) -> tuple[UlpReport, ...]:
    """Return the errors of every output and dtype on these cases; the kernel runs in this process.

    Cases that the kernel does not take are left out, and no case starts after `seconds`.

    Raises ValueError: the operator has no such case.
    """
    found: dict[tuple[str, str], _Errors] = {}
    op, began = OPS[kernel.op], time.perf_counter()
    for spec in specs:
        if time.perf_counter() - began > seconds:
            break
        if kernel.refuses(spec) is None:
            _enter(execute(kernel, make.case(spec, op, kernel.contract, device)), found)
    names = [tensor.name for tensor in op.outputs]
    order = sorted(found, key=lambda key: (names.index(key[0]), list(FORMATS).index(key[1])))
    return tuple(found[key].report(kernel) for key in order)


def _enter(run: Run, found: dict[tuple[str, str], _Errors]) -> None:
    """Add what one run returned; a run that failed returned nothing."""
    for name, output in run.outputs.items():
        expected = run.case.expected.get(name)
        if output is None or expected is None or output.ratio is None or output.dtype != expected.dtype:
            continue
        errors = found.setdefault((name, expected.dtype), _Errors(Tally(name, expected.dtype)))
        errors.enter(output, expected, run.case.spec)
    for name, sums in moments(run).items():
        errors = found[name, sums.dtype]
        errors.moments = sums if errors.moments is None else errors.moments.merge(sums)


def typical(op: Op, dtypes: tuple[str, ...], device: str, seed: int, count: int) -> Iterator[CaseSpec]:
    """Yield `count` cases like those of networks: random rows of usual lengths, with a mean near 0.

    Only over such data are average errors meaningful; the checks and the hunt look for the hardest cases.
    """
    rng = np.random.default_rng(seed)
    rows = 4 if device == "cpu" else 64  # Triton's interpreter takes milliseconds a program
    lengths = [64, 100, 256, 768, 1000, 1024] if device == "cpu" else [768, 1000, 4096, 8192]
    for index in range(count):
        n = int(rng.choice(lengths))
        groups = int(rng.choice([2, 4]))
        shape: tuple[int, ...] = (rows, n)
        if op.view == "groups":
            shape = (max(rows // 4, 1), 2 * groups, max(n // 32, 4), 16)
        elif op.view == "channels":
            shape = (rows, 8, max(n // 16, 4), 4)
        yield CaseSpec(
            shape,
            dtypes[index % len(dtypes)],
            weight_dtype="float32" if rng.random() < 0.3 else None,
            num_groups=groups if "num_groups" in op.attrs else None,
            eps=float(rng.choice([1e-6, 1e-5])),
            data=str(rng.choice(["normal", "channel", "heavy"], p=[0.7, 0.2, 0.1])),
            offset=float(rng.choice([0.0, 0.0, 1.0, -10.0])),
            log2_scale=int(rng.integers(-4, 5)),
            seed=int(rng.integers(2**32)),
        )


def heat(run: Run, name: str) -> Heat | None:
    """Return the errors of the output `name`, in ulp, by row and place in the row; None if it was not returned.

    A row is what is normalized together. Statistics, dweight and dbias are one row.
    """
    output, expected = run.outputs.get(name), run.case.expected.get(name)
    if output is None or expected is None or output.ratio is None or not output.got.size:
        return None
    ulps = judge.ulps(output.got, expected)
    view = textbook.view_of(run.case)
    by_row = ulps.size == np.prod(view.shape) and name not in ("mean", "rstd")
    grid = textbook.as_rows(ulps.reshape(view.shape), view.axes) if by_row else ulps.reshape(1, -1)
    rows, columns = grid.shape
    for axis, most in ((0, MOST_ROWS), (1, MOST_COLUMNS)):
        edges = np.unique(np.linspace(0, grid.shape[axis], most, endpoint=False).astype(int))
        grid = np.maximum.reduceat(grid, edges, axis)
    return Heat(name, expected.dtype, rows, columns, tuple(map(tuple, grid.tolist())), run.case.spec)
