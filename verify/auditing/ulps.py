"""The report of errors: for every output and type how far its values are from the truth, and in which cases most."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from verify_norm import cases, judge
from verify_norm.auditing.model import Averages, UlpReport, WorstCase
from verify_norm.auditing.moments import Moments, moments
from verify_norm.dtypes import FORMATS
from verify_norm.execute import execute, worst
from verify_norm.ops import OPS
from verify_norm.report.model import Tally
from verify_norm.spec import CaseSpec, Kernel, Op, Run
from verify_norm.ulp import HIGHEST, LOWEST, PER_OCTAVE, UlpStats, distance

WORST = 5  # cases of each kind


@dataclass(slots=True)
class Survey:
    """Gathers the errors of runs of one kernel."""

    kernel: Kernel
    tallies: dict[tuple[str, str], Tally]
    by_ulp: dict[tuple[str, str], list[WorstCase]]
    by_ratio: dict[tuple[str, str], list[WorstCase]]
    sums: dict[tuple[str, str], Moments]

    @classmethod
    def of(cls, kernel: Kernel) -> Survey:
        """One that has gathered nothing yet."""
        return cls(kernel, {}, {}, {}, {})

    def enter(self, run: Run) -> None:
        """Add what one run returned; a run that failed has nothing to add."""
        for name, output in run.outputs.items():
            expected = run.case.expected.get(name)
            if output is None or expected is None or output.ratio is None or output.dtype != expected.dtype:
                continue
            key, known = (name, expected.dtype), judge.judged(expected)
            form, spec = FORMATS[expected.dtype], run.case.spec
            stats = UlpStats.of(output.got[known], expected.value[known], form)
            ratio = float(output.ratio.max(initial=0.0))
            one = Tally(name, expected.dtype, 1, known.size, int(known.size - known.sum()), stats, ratio,
                        spec if ratio > 0 else None, worst(output.ratio) if ratio > 0 else None)  # fmt: skip
            self.tallies[key] = self.tallies[key].merge(one) if key in self.tallies else one
            if not known.any():
                continue
            ulps = np.where(known, distance(output.got, expected.value, form), 0.0)
            for kept, errors in ((self.by_ulp, ulps), (self.by_ratio, output.ratio)):
                at = worst(errors)
                case = WorstCase(float(ulps[at]), float(output.ratio[at]), float(output.got[at]),
                                 float(expected.value[at]), at, spec)  # fmt: skip
                _keep(kept.setdefault(key, []), case, by_ulp=kept is self.by_ulp)
        for name, one_sum in moments(run).items():
            key = (name, one_sum.dtype)
            self.sums[key] = self.sums[key].merge(one_sum) if key in self.sums else one_sum

    def reports(self) -> tuple[UlpReport, ...]:
        """What was gathered, in the order of the operator's outputs."""
        names = [tensor.name for tensor in OPS[self.kernel.op].outputs]
        order = sorted(self.tallies, key=lambda key: (names.index(key[0]), list(FORMATS).index(key[1])))
        return tuple(
            replace(
                summary(self.tallies[key]),
                by_ulp=tuple(self.by_ulp.get(key, ())),
                by_ratio=tuple(self.by_ratio.get(key, ())),
                averages=averages(self.sums[key]) if key in self.sums else None,
            )
            for key in order
        )


def _keep(kept: list[WorstCase], case: WorstCase, *, by_ulp: bool) -> None:
    kept.append(case)
    kept.sort(key=lambda one: -(one.ulp if by_ulp else one.ratio))
    del kept[WORST:]


def survey(
    kernel: Kernel, specs: Iterable[CaseSpec], device: str = "cpu", *, seconds: float = inf
) -> tuple[UlpReport, ...]:
    """Run `kernel` in this process on these cases, and report the errors of every output and type.

    Cases that the kernel does not take are left out; none is begun when the `seconds` are over. Raises ValueError where
    a spec is not one of the operator.
    """
    gathered, began = Survey.of(kernel), time.perf_counter()
    for spec in specs:
        if time.perf_counter() - began > seconds:
            break
        if kernel.unsupported is None or kernel.unsupported(spec) is None:
            gathered.enter(execute(kernel, cases.make(spec, OPS[kernel.op], kernel.contract, device)))
    return gathered.reports()


def typical(op: Op, dtypes: tuple[str, ...], device: str, seed: int, count: int) -> Iterator[CaseSpec]:
    """`count` cases such as networks have: random rows of usual lengths, around 0 or some deviations from it.

    Averages of errors mean something over such data; what is hardest for a kernel is for the checks and the hunt.
    """
    rng = np.random.default_rng(seed)
    rows = 4 if device == "cpu" else 64  # Triton's interpreter takes milliseconds a program
    for index in range(count):
        n = int(rng.choice([64, 100, 256, 768, 1000, 1024]) if device == "cpu" else rng.choice([768, 1000, 4096, 8192]))
        groups = int(rng.choice([2, 4]))
        shape: tuple[int, ...] = (rows, n)
        if op.view == "groups":
            shape = (max(rows // 4, 1), 2 * groups, max(n // 32, 4), 16)
        elif op.view == "channels":
            shape = (rows, 8, max(n // 16, 4), 4)
        grouped = "num_groups" in op.attrs
        yield CaseSpec(
            shape, dtypes[index % len(dtypes)], weight_dtype="float32" if rng.random() < 0.3 else None,
            num_groups=groups if grouped else None, eps=float(rng.choice([1e-6, 1e-5])),
            data=str(rng.choice(["normal", "channel", "heavy"], p=[0.7, 0.2, 0.1])),
            offset=float(rng.choice([0.0, 0.0, 1.0, -10.0])), log2_scale=int(rng.integers(-4, 5)),
            seed=int(rng.integers(2**32)),
        )  # fmt: skip


def summary(tally: Tally) -> UlpReport:
    """The numbers of a tally, of any run; its worst cases and sums are for `Survey` to add.

    >>> from verify_norm.ulp import UlpStats
    >>> stats = UlpStats.of(np.array([1.0, 1.0078125]), np.array([1.001953125, 1.0]), FORMATS["bfloat16"])
    >>> summary(Tally("y", "bfloat16", 1, 2, ulp=stats)).histogram
    ((0.5, 1), (1.0, 0), (2.0, 1))
    """
    ulp = tally.ulp
    quantiles: Any = {name: ulp.quantile(q) for name, q in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))}
    return UlpReport(
        tally.output, tally.dtype, tally.cases, tally.elements, tally.unjudged, ulp.maximum, ulp.mean, **quantiles,
        nonfinite=ulp.nonfinite, correct=ulp.correctly_rounded, bias=ulp.bias, ratio=tally.ratio,
        histogram=octaves(ulp),
    )  # fmt: skip


def averages(sums: Moments) -> Averages:
    """The sums, an element."""
    weight = sums.weight or 1.0
    return Averages(
        sums.count, *(v / weight for v in (sums.excess, sums.excess_allowed, sums.signed, sums.bias_allowed))
    )


def octaves(ulp: UlpStats) -> tuple[tuple[float, int], ...]:
    """The histogram by octaves, from the first that holds anything to the last: (upper edge, count)."""
    fine = ulp.histogram
    counts = [(2.0**LOWEST, fine[0])]
    for octave in range(HIGHEST - LOWEST):
        first = 1 + octave * PER_OCTAVE
        counts.append((2.0 ** (LOWEST + octave + 1), sum(fine[first : first + PER_OCTAVE])))
    counts.append((float("inf"), fine[-1]))
    held = [i for i, (_, count) in enumerate(counts) if count]
    return tuple(counts[held[0] : held[-1] + 1]) if held else ()
