"""Determinism: the same case gives the same bits, at once and after a case of another shape."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from verify_norm.cases import make
from verify_norm.checks import sums
from verify_norm.checks.check import check, finding
from verify_norm.checks.relations.enormous import enormous
from verify_norm.checks.relations.equations import pairs
from verify_norm.checks.relations.rerun import cheap, crowded, has_rows, on_rows, other_shape, other_values, rerun
from verify_norm.checks.relations.two_runs import Difference, differences, first_that_differs
from verify_norm.core import judge, packages
from verify_norm.core.case_words import told_apart
from verify_norm.core.excess import element
from verify_norm.core.finding import Finding
from verify_norm.core.run import Output, Run
from verify_norm.running.calling import bound
from verify_norm.running.clock import untimed

NOT_ALWAYS = "a replay may take several tries to show it"  # where values differ, which may be a race
WHY = (
    "a launch is not in torch's current stream, does not wait for the one before, or is not waited for; or the next "
    "call changes what this one still reads"
)
OTHER_EPS = 0.5  # of the next call
RUNS = 16  # of a large case: triton issue 6307's race shows in one of tens


def _looks(run: Run) -> bool:
    spec = run.case.spec
    return crowded(run) or ("determinism" in spec.further and (spec.batch > 0 or cheap(run)))


@check(looks=_looks)
def determinism(run: Run) -> Iterable[Finding]:
    """The same inputs in fresh buffers give the same bits, also when a case of another shape came between.

    A large case runs several times instead: a race needs many programs, and does not show in each run. A case whose
    rows are repeated into a large batch runs twice. On an NVIDIA GPU the inputs also arrive late once, in a busy
    stream, and its next work reads the results and is another call: that shows a kernel that relies on a slow host.

    If the contract has `deterministic=false`, sums over rows may differ by what another order of the sum may round, and
    nothing else may; long sums of random data by what `sums` allows.
    """  # `relations.two_runs.differences` derives how much
    for difference in first_that_differs(_comparisons(run)):
        yield finding(run, "determinism", difference.output, difference.words)


def _comparisons(run: Run) -> Iterator[Iterator[Difference]]:
    """Yield the comparisons of runs, each of which is made only if none before it differs."""
    for _ in range(RUNS if crowded(run) else 1):
        second = rerun(run)
        yield _noting_races(differences(run, second, ("in one run", "in the next")))
        yield _noting_races(_lost(run, second))
    yield _late(run)
    yield _batch(run)
    other = None if crowded(run) else other_shape(run)
    if other is not None:
        rerun(run, make.exact_inputs(other, run.case.op, run.case.device), spec=other)
        between = f"a run of shape {other.shape}"
        yield differences(run, rerun(run), (f"before {between}", f"after {between}"))


def _noting_races(found: Iterable[Difference]) -> Iterator[Difference]:
    """Yield the differences; those of values may be a race, and say so."""
    for difference in found:
        if difference.index is None:
            yield difference
        else:
            yield replace(difference, words=f"{difference.words}; {NOT_ALWAYS}")


def _lost(run: Run, second: Run) -> Iterator[Difference]:
    """Yield the long sums that are off in another run by more than the roundings of random data come to.

    Where orders may differ, the worst case of another order may be larger than a term that a race has lost.
    """
    if run.kernel.contract.deterministic or not sums.told(run):
        return
    outputs = {**run.outputs, **_with_results_of(run, second)}
    for before, now in zip(sums.equations(run), sums.equations(replace(run, outputs=outputs)), strict=True):
        if isinstance(now, sums.LongSum) and (now.ratio > 1).any() and (before.ratio <= 1).all():
            index, count = judge.worst(now.ratio), int((now.ratio > 1).sum())
            off, most = told_apart(float(abs(now.left[index] - now.right[index])), float(now.tolerance[index]))
            words = f"{element(now.output, index)} is {off} from the truth in the next run, {most} allowed"
            yield Difference(now.output, f"{words} in random data; {count} of {now.ratio.size} are off", index, count)


def _with_results_of(run: Run, second: Run) -> dict[str, Output]:
    """Return the outputs of a run that a second one has in the same form, with the values of the second."""
    outputs = {}
    for name, _, got in pairs(run, second):
        output = run.outputs[name]
        assert output is not None
        outputs[name] = replace(output, got=got)
    return outputs


def _batch(run: Run) -> Iterator[Difference]:
    """Yield what differs between two runs of the batch that the case names."""
    spec = run.case.spec
    if not spec.batch or enormous(run) or not has_rows(run.case):
        return
    index = np.arange(spec.batch) % spec.shape[0]
    first, second = on_rows(run, index), on_rows(run, index)
    if first is not None and second is not None and first.problem is None:  # `batch_invariance` reports a failure
        yield from differences(first, second, (f"in one run of {spec.batch} rows", "in the next"))


def _late(run: Run) -> Iterator[Difference]:
    """Yield what differs where the inputs arrive late."""
    if torch.device(run.case.device).type != "cuda" or packages.without_triton():  # a kernel of Triton delays them
        return
    from verify_norm.running import delayed_inputs  # Triton is not imported before its interpreter may be enabled

    if delayed_inputs.possible(run.case):
        rerun(run, other_values(run))  # its results stay in memory that a stream of the kernel's own allocates next
        assert run.kernel.run is not None
        at_once = replace(run.kernel, run=delayed_inputs.read_at_once(untimed(run.kernel.run), _next_call(run)))
        late = rerun(replace(run, kernel=at_once), within=delayed_inputs.arriving)
        for found in differences(run, late, ("as usual", "where its inputs arrive late")):
            yield replace(found, words=f"{found.words}; {WHY}")


def _next_call(run: Run) -> Callable[[], object]:
    """Return a call of the kernel on tensors of their own, with other values and, where it takes one, another eps."""
    case, kernel = run.case, run.kernel
    other = replace(case.spec, seed=case.spec.seed ^ 1, eps=OTHER_EPS)
    spec = other if kernel.refuses(other) is None else replace(other, eps=case.spec.eps)
    values = make.exact_inputs(spec, case.op, case.device)
    built = make.build(spec, case.op, kernel.contract, case.device, values)
    assert kernel.run is not None
    return partial(untimed(kernel.run), **bound(kernel, built))
