"""Determinism: the same case gives the same bits, at once and after a case of another shape."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch

from verify_norm.cases import make
from verify_norm.checks.check import check, finding
from verify_norm.checks.relations.rerun import (
    Difference,
    cheap,
    crowded,
    differences,
    has_rows,
    on_rows,
    other_shape,
    rerun,
)
from verify_norm.core import packages
from verify_norm.core.finding import Finding
from verify_norm.core.run import Run

NOT_ALWAYS = "a replay may take several tries to show it"  # where values differ, which may be a race
WHY = "a launch is not in torch's current stream, or does not wait for the one before"
RUNS = 16  # of a large case: triton issue 6307's race shows in one of tens


def _looks(run: Run) -> bool:
    spec = run.case.spec
    return crowded(run) or ("determinism" in spec.further and (spec.batch > 0 or cheap(run)))


@check(looks=_looks)
def determinism(run: Run) -> Iterable[Finding]:
    """The same inputs in fresh buffers give the same bits, also when a case of another shape came between.

    A large case runs several times instead: a race needs many programs, and does not show in each run. A case whose
    rows are repeated into a large batch runs twice. On an NVIDIA GPU the inputs also arrive late once, in a busy
    stream: that shows a kernel that relies on a slow host.

    If the contract has `deterministic=false`, sums over rows may differ by what another order of the sum may round, and
    nothing else may.
    """  # `relations.rerun.differences` derives how much
    found: list[Difference] = []
    for _ in range(RUNS if crowded(run) else 1):
        seen = differences(run, rerun(run), ("in one run", "in the next"))
        found = [replace(d, words=f"{d.words}; {NOT_ALWAYS}") if d.index is not None else d for d in seen]
        if found:
            break
    found = found or list(_late(run)) or list(_batch(run))
    other = None if found or crowded(run) else other_shape(run)
    if other is not None:
        rerun(run, make.exact_inputs(other, run.case.op, run.case.device), spec=other)
        between = f"a run of shape {other.shape}"
        found = list(differences(run, rerun(run), (f"before {between}", f"after {between}")))
    for difference in found:
        yield finding(run, "determinism", difference.output, difference.words)


def _batch(run: Run) -> Iterator[Difference]:
    """Yield what differs between two runs of the batch that the case names."""
    spec = run.case.spec
    if not spec.batch or not has_rows(run.case):
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
        late = rerun(run, within=delayed_inputs.arriving)
        for found in differences(run, late, ("as usual", "where its inputs arrive late")):
            yield replace(found, words=f"{found.words}; {WHY}")
