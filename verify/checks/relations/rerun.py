"""Further runs of a kernel: the same case again, or with other values, rows or poison; and how two runs differ."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from verify_norm.cases import further_runs, make
from verify_norm.checks.relations.equations import arithmetic_of, truth
from verify_norm.checks.relations.stages import cotangent, given, stages
from verify_norm.core import geometry, judge, ops
from verify_norm.core.case_words import told_apart
from verify_norm.core.dtypes import FORMATS, Array, Format
from verify_norm.core.excess import element
from verify_norm.core.judge import identical
from verify_norm.core.run import Case, Output, Run
from verify_norm.core.spec import CaseSpec
from verify_norm.running.execute import execute, results
from verify_norm.running.state import OF_IMPORTS

ELEMENTS = {
    "cpu": 2**12,
    "cuda": 2**19,
}  # of x: up to this number a case always runs again; a larger one does where that takes little time
TIMED = (
    "memory",
    "determinism",
    "batch_invariance",
    "calls",
    "effects",
    "modes",
    "honesty",
)  # checks that ask what it takes
CROWDED = {"cuda": 2**23}  # the interpreter runs one program after another


class NearbyError(Exception):
    """The kernel fails on a case near the run's: why; without words, it does not offer that case."""


@dataclass(frozen=True, slots=True)
class Difference:
    """An output in which two runs of one case differ: the worst element, how many there are, and both in words."""

    output: str | None  # None: one of the two runs has failed
    words: str
    index: tuple[int, ...] | None = None
    count: int = 0


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
    anyway = further_runs.BATCHED if run.case.spec.batch else ("determinism",) if crowded(run) else ()
    names = (name for name in TIMED if name in run.case.spec.further and name not in anyway)
    return () if cheap(run) or run.problem is not None else tuple(names)


def small(run: Run, most: int = 2**12) -> bool:
    """Return whether the kernel ran on a case without NaN or infinity, of so few elements, and of some."""
    spec = run.case.spec
    return run.problem is None and spec.special is None and 0 < prod(spec.shape) <= most


def crowded(run: Run) -> bool:
    """Return whether x has more elements than that, but so few that its truth takes less time than several runs."""
    return not few(run) and prod(run.case.spec.shape) <= CROWDED.get(torch.device(run.case.device).type, 0)


def has_rows(case: Case) -> bool:
    """Return whether the first dimension of x counts rows, more than one."""
    spec = case.spec
    inner = spec.normalized_ndim if case.op.view == "rows" else 1
    return len(spec.shape) > inner and spec.shape[0] > 1 and all(spec.shape)


def taken(case: Case, index: Any) -> dict[str, Array | None]:
    """Return the case's inputs with these rows alone, in this order: `index` into the first dimension of x.

    What has been saved is taken with its row, not computed anew; in BatchNorm a statistic belongs to no row.
    """
    count = case.spec.shape[0]

    def of(values: Array | None, extent: str) -> Array | None:
        if values is None or extent in ("affine", "one") or (extent == "statistic" and case.op.view == "channels"):
            return values
        rows = values if extent in ("data", "sample", "position") else values.reshape(count, -1)
        picked: Array = rows[index]
        return picked if rows is values else picked.reshape(-1, *values.shape[1:])

    return {tensor.name: of(case.exact[tensor.name], tensor.extent) for tensor in case.op.inputs}


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
    case = run.case
    values, poison = {**case.exact, **(exact or {})}, case.poison if poison is None else poison
    device, contract = case.device, run.kernel.contract
    known = case.expected if exact is None and spec is None and contract == case.contract else {}
    anew = truth and not known  # of the same values the truth is the run's
    built = make.build(spec or case.spec, case.op, contract, device, values, truth=anew, poison=poison)
    built = replace(built, expected=known) if truth and known else built
    return once_more(run, whole=whole)(run.kernel, built, within(built) if within else None)


def once_more(run: Run, *, whole: bool = False) -> Callable[..., Run]:
    """Return the function that runs a kernel and a case once more, as `rerun` does."""
    return execute if whole or run.effects else results


def lasting(words: Collection[str], again: Callable[[], Run]) -> tuple[str, ...]:
    """Return the effects of a call without those that an import, or a compiler of torch, has in a first call alone.

    `again` makes the same call once more; it is asked only where there may be such effects.
    """
    first = [word for word in words if word.startswith(OF_IMPORTS)]
    stay = again().effects if first else ()
    return tuple(word for word in words if word not in first or word in stay)


def on_rows(run: Run, index: NDArray[np.intp]) -> Run | None:
    """Run the kernel on these rows of the case alone, in this order; None where it does not take so many.

    Rows may repeat, as in `np.arange(4096) % count`: a batch of any size needs no more data and no other truth.
    """
    spec = replace(run.case.spec, shape=(len(index), *run.case.spec.shape[1:]))
    return None if run.kernel.refuses(spec) is not None else rerun(run, taken(run.case, index), spec=spec)


def other_shape(run: Run) -> CaseSpec | None:
    """Return a case of more rows, of longer ones, or of both; None where the kernel or the operator has no such case.

    A cache may be keyed by either. They are more, not fewer: a smaller case finds what a larger one has left behind.
    """
    spec, op = run.case.spec, run.case.op
    one = op.view == "rows" and len(spec.shape) == spec.normalized_ndim
    channels = op.view != "rows" and len(spec.shape) == 2  # they stay divisible by the groups
    for way in further_runs.from_variant(spec, ("rows", "length", "both")):
        shape = [1, *spec.shape] if one else list(spec.shape)
        if way != "length":
            shape[0] = 2 * shape[0] + 1
        if way != "rows":
            shape[-1] = 2 * shape[-1] + (not channels)
        other = replace(spec, shape=tuple(shape), seed=spec.seed ^ 2)  # of the same seed it begins like the run's
        if (geometry.refusal(other, op) or run.kernel.refuses(other)) is None:
            return other
    return None


def steady(run: Run) -> bool:
    """Return whether the kernel gives the same bits in a second run, in fresh memory; if not, `determinism` says so."""
    return not any(differences(run, rerun(run), ("in one run", "in the next")))


def nearby(run: Run, exact: Mapping[str, Array | None], spec: CaseSpec | None = None, *, truth: bool = False) -> Run:
    """Return `rerun` on a case near the run's; raise NearbyError where the kernel fails or does not offer it."""
    if spec is not None and run.kernel.refuses(spec) is not None:
        raise NearbyError
    other = rerun(run, exact, spec=spec, truth=truth)
    if other.problem is not None:
        raise NearbyError(*[other.problem] * (not other.limits))
    return other


def differences(first: Run, second: Run, names: tuple[str, str]) -> Iterator[Difference]:
    """Yield where two runs of one case differ in bits, or by more than a contract without determinism allows.

    `names` says in words which run is which. NaN equals NaN, and 0 does not equal −0.
    """
    if second.problem is not None:
        yield Difference(None, f"{names[1]} it fails: {second.problem}")
        return
    for output in (tensor.name for tensor in first.case.op.outputs):
        one, two = first.outputs.get(output), second.outputs.get(output)
        if _form(one) != _form(two):
            yield Difference(output, f"{output} is {_form(one)} {names[0]}, {_form(two)} {names[1]}")
        elif one is not None and two is not None:
            yield from _values(first, output, (one, two), names)


def beyond(first: Run, second: Run, names: tuple[str, str]) -> Iterator[Difference]:
    """Yield where two runs of one case differ and the second, of known truth, is beyond its bound, but not the first.

    Bits alone may differ: torch takes another path for a gradient of another layout, for example if y is a view. A
    type or a shape may not.
    """
    for difference in differences(first, second, names):
        outputs = (run.outputs.get(difference.output or "") for run in (first, second))
        ratios = [output.ratio for output in outputs if output is not None and output.ratio is not None]
        if len(ratios) < 2 or difference.index is None or ((ratios[1] > 1) & ~(ratios[0] > 1)).any():
            yield difference


def _form(output: Output | None) -> str:
    return "missing" if output is None else f"{output.dtype} {output.shape}"


def _values(first: Run, name: str, outputs: tuple[Output, Output], names: tuple[str, str]) -> Iterator[Difference]:
    a, b = (output.got.ravel() for output in outputs)
    if np.array_equal(a.view(np.int64), b.view(np.int64)):  # as almost always, at a tenth of the time
        return
    with np.errstate(all="ignore"):
        off = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
        off = np.where(np.isnan(off), np.inf, off)
        over_rows = any(t.name == name and t.extent in ("affine", "sample", "one") for t in first.case.op.outputs)
        summed = over_rows and (first.case.op.user_defined or "dy" in first.case.exact)
        reordered = not first.kernel.contract.deterministic and summed
        allowed = reordering(first, name, outputs[0].dtype, a, b) if reordered else np.zeros(a.shape)
    wrong = off > allowed if reordered else ~identical(a, b)
    if not wrong.any():
        return
    flat = int(np.argmax(np.where(wrong, off, -1.0)))
    index = tuple(int(i) for i in np.unravel_index(flat, outputs[0].shape))
    apart, most = told_apart(float(off[flat]), float(allowed[flat]))
    beyond = f", where another order of the sum explains {most}" if reordered else ""
    count = int(wrong.sum())
    words = (
        f"{element(name, index)} is {a[flat]:.9g} {names[0]}, {b[flat]:.9g} {names[1]}, {apart} apart{beyond}; "
        f"{count} of {a.size} elements differ"
    )
    yield Difference(name, words, index, count)


def reordering(run: Run, output: str, dtype: str, a: Array, b: Array, repeated: int = 1) -> Array:
    """Return how far apart two sums over rows may be where each adds them up in an order of its own.

    Each row is there `repeated` times at most, and dy holds its multiple: the sum has `repeated` times as many terms.

    Each order errs by at most γ(h)·Σ|t| (`reference.rounding`), so two of them are at most twice that apart, and one
    ulp more once each is rounded to the output's type. The terms are the kernel's own, dy·x̂′ or dy, the same in both:
    |x̂′| ≤ |x̂| + δx̂.
    """
    case, arithmetic = run.case, arithmetic_of(run)
    if output in ("dscale", "dshift") or case.op.user_defined:
        allowed = 2 * judge.allowed(truth(run, output)).ravel()  # each is within its bound
        return np.where(_overflow(FORMATS[dtype], a, b, allowed), np.inf, allowed)
    dy = given(case, "dy")
    terms: Array = np.abs(dy)
    s = stages(run) if case.op.stages else None
    if s is not None:
        dz, off = cotangent(s, dy)
        terms = (np.abs(dz) + off).reshape(dy.shape)
    if output == "dweight":
        terms = terms * (_largest_xhat(run) if s is None else s.largest.reshape(dy.shape))
    rows = case.op.view == "rows"
    total = terms.reshape(-1, a.size).sum(0) if rows else terms.reshape(*terms.shape[:2], -1).sum((0, 2))
    count = dy.size // max(a.size, 1) * repeated
    lost = (
        arithmetic.gamma(arithmetic.over_rows.terms(count, products=output == "dweight"))
        + count * arithmetic.partials_u
    )
    allowed = 2 * (lost * total + count * (2 * arithmetic.tiny + arithmetic.narrow_tiny))
    form = FORMATS[dtype]
    reached = _overflow(form, a, b, allowed)
    allowed = allowed + form.ulp(np.fmax(np.abs(a), np.abs(b)))
    return np.where(reached | ~(total < arithmetic.huge), np.inf, allowed)


def _overflow(form: Format, a: Array, b: Array, allowed: Array) -> Any:
    """Return where one is an infinity, and a rounding of something within reach of the other is that infinity too."""
    reached = np.isinf(b) & (form.round(a + np.copysign(allowed, b)) == b)
    return reached | (np.isinf(a) & (form.round(b + np.copysign(allowed, a)) == a))


def _largest_xhat(run: Run) -> Any:
    """Return |x̂| + δx̂: what the forward without weight and bias gives, and how far that may be off."""
    case = run.case
    forward = ops.forward_of(case.op)
    summed = case.exact.get("residual_out")
    values = {**case.exact, **make.attributes(case.spec, forward), "weight": None, "bias": None}
    if summed is not None:
        values |= make.summed_alone(case.op, summed)
    values["arithmetic"] = arithmetic_of(run)
    return np.abs(make.call(forward.reference, values).y) + make.call(forward.error, values).y
