"""NaN and infinity: where they come out, and where a number, or another infinity, hides them.

What is right, where the truth at the given inputs is not finite:

- Of a NaN, NaN. All arithmetic passes it on, and no output but amax is a maximum: torch's keeps a NaN, those of C and
  of GPUs pass over it (IEEE 754-2019, maximum and maximumNumber), so amax is left out.
- Of an infinity, NaN or an infinity. The same sums in another order, or in another form as x·a + b for (x − μ)·a, have
  ∞ − ∞ or 0·∞ in other places. But one addition has no other form: y of an infinite bias, residual_out of an infinite
  summand and dx of an infinite dresidual_out are what float64 says, where the other summand cannot overflow. And rstd
  may be 0: an update of Welford's kind makes the variance ∞ where the sum of squares makes it ∞ − ∞; y is NaN in both.
- Of NaN in some elements and infinities in others, NaN in what depends on a NaN: where the truth at a large finite
  number in place of the infinities is NaN.
- An infinity of the sign of the limit. Let the truth at large finite numbers L and 2L in place of the infinity be v ± δ
  and v′ ± δ′, by the bound of the kernel's arithmetic. Where |v′ − v| > δ + δ′, the result grows with L, and the sign
  of v′ − v is that of the infinity that it goes to.
- Anything, in an output of a centred row of one element that does not depend on the input
  (`geometry.constant_output`): x̂ and the gradients are 0 there, and a kernel need not read what it multiplies by 0.

`accuracy` judges what is finite: it sees a leak into other rows, since it allows NaN in none of them. An infinite
argument of an activation, or gate, is judged by nobody (`verify_norm.reference.activation`), nor is a case with
eps = 0: there a row without variance divides zero by zero, and a kernel's rounding may hide that.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from verify_norm.cases import make
from verify_norm.checks.check import check, finding
from verify_norm.checks.relations.equations import compared
from verify_norm.checks.relations.stages import exact_input
from verify_norm.core import geometry, judge
from verify_norm.core.dtypes import Array
from verify_norm.core.excess import element
from verify_norm.core.finding import Finding
from verify_norm.core.judge import worst
from verify_norm.core.op import Op
from verify_norm.core.run import Expected, Run
from verify_norm.core.specials import special_input, special_words
from verify_norm.reference.operations.trial import selects
from verify_norm.reference.stages.quantize import NO_NAN

LARGE = 2.0**60  # in place of an infinity: far from the data, and its products far from float32's largest number
GROWN = 2.0**30  # by what a result that goes to infinity grows at least, from LARGE to twice that
SUMMANDS = {  # of one last addition
    "y": ("bias",),
    "residual_out": ("x", "residual"),
    **dict.fromkeys(("dx", "dresidual"), ("dresidual_out",)),
}


def _looks(run: Run) -> bool:
    known = (expected.value for name, (_, expected) in compared(run).items() if name != "amax")
    return run.case.spec.special is not None and run.case.spec.eps != 0 and any(~np.isfinite(v).all() for v in known)


def _applies(op: Op) -> bool:
    """Not to a user's own operator that takes a maximum or compares: a kernel may pass over NaN there."""
    return not op.user_defined or not selects(op.reference.own)  # type: ignore[attr-defined]  # a Function


@check(applies=_applies, looks=_looks)
def nonfinite(run: Run) -> Iterator[Finding]:
    """NaN or infinity in the input comes out where it must, and never as a plausible number."""
    source = special_words(run.case.spec, run.case.op)
    for name, got, right, wrong in _judged(run):
        if wrong.any():
            index = worst(wrong)
            value, want = float(got[index]), float(right[index])
            message = f"{element(name, index)}: expected {want} because of {source}, got {value:.6g}"
            message += f"; {int(wrong.sum())} elements are wrong"
            yield finding(run, "nonfinite", name, message, index=index, got=value, want=want)


def _judged(run: Run) -> Iterator[tuple[str, Array, Any, Any]]:
    """Yield every output: its name, its values, what is right, and where it breaks the first rule that it breaks."""
    spec, op = run.case.spec, run.case.op
    near = _at(run, LARGE)
    limits = _limits(near, _at(run, 2 * LARGE)) if spec.special != "nan" else {}
    for name, (output, expected) in compared(run).items():
        got, want = output.got, expected.value
        summand = special_input(spec, op) in SUMMANDS.get(name, ())
        if name == "amax" or (geometry.constant_output(name, spec, op) and not summand):
            continue
        got = dequantized(run, got) if name == "y" and op.quantizer is not None else got
        added = summand and not (op.stages or op.user_defined)
        limit, finite = limits.get(name, np.full(want.shape, np.nan)), near[name]
        assert finite is not None  # as the truth itself
        nan = np.isnan(finite.value)
        rules = (
            (want, judge.hidden(name, got, want, nan)),
            (want, np.isinf(want) & np.isnan(got) & added & np.isinf(limit)),
            (limit, np.isinf(got) & (limit == -got)),
        )
        right, wrong = next((rule for rule in rules if rule[1].any()), rules[0])
        yield name, got, right, wrong


def dequantized(run: Run, y: Array) -> Array:
    """Return y, NaN where its scale is no number, or where only a scale that is not returned could tell it."""
    stage, scale = run.case.op.quantizer, compared(run).get("y_scale")
    if scale is None:
        return np.full_like(y, np.nan) if stage.dtype in NO_NAN else y
    n = geometry.row_length(run.case.spec, run.case.op)
    known = stage.spread(np.isfinite(scale[0].got), n).reshape(y.shape)
    return np.where(known, y, np.nan)


def _at(run: Run, large: float) -> dict[str, Expected | None]:
    """Return the truth with a large number in place of the infinities."""
    case, contract = run.case, run.kernel.contract
    name = special_input(case.spec, case.op)
    values = exact_input(case, name)
    exact = {**case.exact, name: np.where(np.isinf(values), np.sign(values) * large, values)}
    return make.truths(case.spec, case.op, contract, exact)


def _limits(near: dict[str, Expected | None], far: dict[str, Expected | None]) -> dict[str, Array]:
    """Return the infinity that each output goes to as the special value grows; NaN where the bound does not tell it."""
    limits = {}
    for output, at_large in near.items():
        at_larger = far[output]
        if at_large is not None and at_larger is not None:
            change = at_larger.value - at_large.value
            grows = np.abs(change) > at_large.delta + at_larger.delta + GROWN
            limits[output] = np.where(grows, np.copysign(np.inf, change), np.nan)
    return limits
