"""How two runs of one case differ: in bits, or by more than another order of sums explains."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from verify_norm.cases import make
from verify_norm.checks.relations.equations import arithmetic_of, truth
from verify_norm.checks.relations.rerun import rerun
from verify_norm.checks.relations.stages import cotangent, exact_input, stages
from verify_norm.core import judge, ops
from verify_norm.core.case_words import told_apart
from verify_norm.core.dtypes import FORMATS, Array, Format
from verify_norm.core.excess import element
from verify_norm.core.judge import identical
from verify_norm.core.run import Output, Run


@dataclass(frozen=True, slots=True)
class Difference:
    """An output in which two runs of one case differ: the worst element, how many there are, and both in words."""

    output: str | None  # None: one of the two runs has failed
    words: str
    index: tuple[int, ...] | None = None
    count: int = 0


def steady(run: Run) -> bool:
    """Return whether the kernel gives the same bits in a second run, in fresh memory; if not, `determinism` says so."""
    return not any(differences(run, rerun(run), ("in one run", "in the next")))


def first_that_differs(comparisons: Iterable[Iterable[Difference]]) -> Iterator[Difference]:
    """Yield the differences of the first comparison that has any; what comes later is not compared."""
    for comparison in comparisons:
        found = list(comparison)
        if found:
            yield from found
            return


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
    explained = f", where another order of the sum explains {most}" if reordered else ""
    count = int(wrong.sum())
    words = (
        f"{element(name, index)} is {a[flat]:.9g} {names[0]}, {b[flat]:.9g} {names[1]}, {apart} apart{explained}; "
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
    dy = exact_input(case, "dy")
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
