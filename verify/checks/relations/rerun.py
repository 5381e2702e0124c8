"""Further runs of a kernel: the same case again, or with other values, rows or poison; and which a case can afford."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from verify_norm.cases import further_runs, make
from verify_norm.core import geometry
from verify_norm.core.dtypes import Array
from verify_norm.core.run import Case, Run
from verify_norm.core.spec import CaseSpec
from verify_norm.running.execute import execute, results
from verify_norm.running.state import OF_IMPORTS

# Elements of x: up to this number a case always runs again; a larger one does where that takes little time.
ELEMENTS = {"cpu": 2**12, "cuda": 2**19}
# Checks that leave out a further run of a large case that takes long.
TIMED = ("memory", "determinism", "batch_invariance", "calls", "effects", "modes", "honesty")
CROWDED = {"cuda": 2**23}  # elements of x, see `crowded`; none on a CPU, where programs run one after another


class NearbyError(Exception):
    """The kernel fails on a case near the run's; the message says why. Without a message it does not offer the case."""


def cheap(run: Run) -> bool:
    """Return whether x is so small that a few more runs cost little, or the run was so fast.

    Only here a measured time decides what is checked: which cases there are never depends on one.
    """
    return few(run) or run.seconds < run.rerun_seconds


def few(run: Run) -> bool:
    """Return whether x has so few elements that every kernel runs again."""
    return prod(run.case.spec.shape) <= ELEMENTS[torch.device(run.case.device).type]


def slow(run: Run) -> tuple[str, ...]:
    """Return the checks whose further runs the case names, and which leave them out because they take long."""
    if cheap(run) or run.problem is not None:
        return ()
    anyway: Collection[str] = ()
    if run.case.spec.batch:
        anyway = further_runs.BATCHED
    elif crowded(run):
        anyway = ("determinism",)
    return tuple(name for name in TIMED if name in run.case.spec.further and name not in anyway)


def small(run: Run, most: int = 2**12) -> bool:
    """Return whether the kernel ran, on a case without NaN or infinity and with 1 to `most` elements of x."""
    spec = run.case.spec
    return run.problem is None and spec.special is None and 0 < prod(spec.shape) <= most


def crowded(run: Run) -> bool:
    """Return whether x has more elements than `few`, but so few that its truth takes less time than several runs."""
    return crowds(run.case.spec, run.case.device)


def crowds(spec: CaseSpec, device: str) -> bool:
    """Return whether the run of a case would be `crowded` on a device."""
    kind = torch.device(device).type
    return ELEMENTS[kind] < prod(spec.shape) <= CROWDED.get(kind, 0)


def has_rows(case: Case) -> bool:
    """Return whether the first dimension of x counts rows, more than one."""
    spec = case.spec
    inner = spec.normalized_ndim if case.op.view == "rows" else 1
    return len(spec.shape) > inner and spec.shape[0] > 1 and all(spec.shape)


def rows_of(case: Case, index: Any) -> dict[str, Array | None]:
    """Return the case's inputs with these rows alone, in this order: `index` into the first dimension of x.

    Saved statistics are those of the rows, not computed anew; in BatchNorm a statistic belongs to no row.
    """
    count = case.spec.shape[0]

    def rows(values: Array | None, extent: str) -> Array | None:
        if values is None or extent in ("affine", "one") or (extent == "statistic" and case.op.view == "channels"):
            return values
        chosen: Array
        if extent in ("data", "sample", "position"):
            chosen = values[index]
        else:
            chosen = values.reshape(count, -1)[index].reshape(-1, *values.shape[1:])
        return chosen

    return {tensor.name: rows(case.exact[tensor.name], tensor.extent) for tensor in case.op.inputs}


def other_values(run: Run) -> dict[str, Array | None]:
    """Return other exact values of the case's inputs, of the same shapes, types and layouts."""
    spec = run.case.spec
    return make.exact_inputs(replace(spec, seed=spec.seed ^ 1), run.case.op, run.case.device)


def rerun(
    run: Run,
    exact: Mapping[str, Array | None] | None = None,
    *,
    spec: CaseSpec | None = None,
    poison: float | None = None,
    truth: bool = False,
    within: Callable[[Case], AbstractContextManager[None]] | None = None,
    whole: bool = False,
) -> Run:
    """Run the kernel once more, from fresh buffers; with other values, on another shape or in other poison if given.

    `exact` holds what differs from the run's inputs, fits `spec` and is exact in its formats. Only with `truth` are the
    outputs judged; otherwise they hold their values alone. `within` makes of a case the context to run it in. Only the
    `whole` run has damage, effects and operators; a kernel that is known for effects makes no other.
    """
    case, contract = run.case, run.kernel.contract
    values, poison = {**case.exact, **(exact or {})}, case.poison if poison is None else poison
    same_truth = exact is None and spec is None and contract == case.contract and bool(case.expected)
    compute_truth = truth and not same_truth
    built = make.build(spec or case.spec, case.op, contract, case.device, values, truth=compute_truth, poison=poison)
    if truth and same_truth:
        built = replace(built, expected=case.expected)
    return once_more(run, whole=whole)(run.kernel, built, within(built) if within else None)


def once_more(run: Run, *, whole: bool = False) -> Callable[..., Run]:
    """Return the function that runs a kernel and a case once more, as `rerun` does."""
    return execute if whole or run.effects else results


def lasting(words: Collection[str], again: Callable[[], Run]) -> tuple[str, ...]:
    """Return the effects of a call without those that an import, or a compiler of torch, has in a first call alone.

    `again` makes the same call once more; it is asked only where there may be such effects.
    """
    of_imports = [word for word in words if word.startswith(OF_IMPORTS)]
    if not of_imports:
        return tuple(words)
    effects_again = again().effects
    return tuple(word for word in words if word not in of_imports or word in effects_again)


def on_rows(run: Run, index: NDArray[np.intp]) -> Run | None:
    """Run the kernel on these rows of the case alone, in this order; None where it does not take so many.

    Rows may repeat, as in `np.arange(4096) % count`: a batch of any size needs no more data and no other truth.
    """
    spec = replace(run.case.spec, shape=(len(index), *run.case.spec.shape[1:]))
    if run.kernel.refuses(spec) is not None:
        return None
    return rerun(run, rows_of(run.case, index), spec=spec)


def other_shape(run: Run) -> CaseSpec | None:
    """Return a case of more rows, of longer ones, or of both; None where the kernel or the operator has no such case.

    A cache may be keyed by either. They are more, not fewer: a smaller case finds what a larger one has left behind.
    """
    spec, op = run.case.spec, run.case.op
    single_row = op.view == "rows" and len(spec.shape) == spec.normalized_ndim
    channels = op.view != "rows" and len(spec.shape) == 2  # they stay divisible by the groups
    for way in further_runs.from_variant(spec, ("rows", "length", "both")):
        shape = [1, *spec.shape] if single_row else list(spec.shape)
        if way != "length":
            shape[0] = 2 * shape[0] + 1
        if way != "rows":
            shape[-1] = 2 * shape[-1] + (0 if channels else 1)
        other = replace(spec, shape=tuple(shape), seed=spec.seed ^ 2)  # of the same seed it begins like the run's
        if (geometry.refusal(other, op) or run.kernel.refuses(other)) is None:
            return other
    return None


def nearby(run: Run, exact: Mapping[str, Array | None], spec: CaseSpec | None = None, *, truth: bool = False) -> Run:
    """Return `rerun` on a case near the run's; raise NearbyError where the kernel fails or does not offer it."""
    if spec is not None and run.kernel.refuses(spec) is not None:
        raise NearbyError
    result = rerun(run, exact, spec=spec, truth=truth)
    if result.problem is not None:
        raise NearbyError if result.limits else NearbyError(result.problem)
    return result
