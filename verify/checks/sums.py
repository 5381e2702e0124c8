"""Long sums beside their probable error: what hides in a worst case that grows with the number of terms."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from verify_norm.checks.check import check, finding
from verify_norm.checks.power import crossings
from verify_norm.checks.relations.equations import (
    Equation,
    arithmetic_of,
    compared,
    confidence,
    format_of,
    judged,
    truth,
)
from verify_norm.checks.relations.moments import independent
from verify_norm.checks.relations.stages import Stages, cotangent, exact_input, stages
from verify_norm.core import geometry, judge
from verify_norm.core.case_words import told_apart
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.excess import element
from verify_norm.core.finding import SIGNS, Finding, OverProbable, SmallestError
from verify_norm.core.kernel import Kernel
from verify_norm.core.op import Op
from verify_norm.core.ops import OPS
from verify_norm.core.run import Run
from verify_norm.reference import probable, rounding, statistics_rounding

LONG = 256  # terms: the worst case of a shorter sum is near its probable error
FEW_LANES = 20  # times the tolerance: what a sum in fewer runs than declared may come to
EXPONENTS = 20  # of x and dy: beyond them float32 may underflow


@dataclass(frozen=True, slots=True)
class LongSum(Equation):
    """An output beside the truth; `delta` is what it may be off by, by chance, before its last rounding."""

    delta: Array

    def smallest(self, run: Run) -> Iterator[SmallestError]:
        """Yield the smallest errors of all elements that show in one of them."""
        live, form = np.isfinite(self.tolerance) & (self.right != 0), format_of(run, self.output)
        if live.any():
            for sign, errors in zip(SIGNS, crossings(self.right, self.delta, form, live), strict=True):
                yield SmallestError(self.output, sign, float(errors.min()) + arithmetic_of(run).u)


def _applies(op: Op) -> bool:
    """Not behind a stage before the norm, or a dropout: its errors have a common sign, those of elements are random.

    Nor to a user's own operator, whose sums are not known.
    """
    return op.direct and op.lawful


def _narrow(kernel: Kernel, _: Collection[str] = ()) -> str:
    """Return which fields of the contract may round what a sum adds to fewer bits; "" if none does."""
    names = ("partials", "xhat", "stats", "z") if OPS[kernel.op].forward else ("partials", "xhat", "stats")
    fields = ((name, getattr(kernel.contract, name)) for name in names)
    narrow = [f"{name}={value}" for name, value in fields if value not in (None, "float32", "float64")]
    if not narrow:
        return ""
    return f"roundings inside a sum have no random sign, and the contract has {', '.join(narrow)}"


def looks(run: Run) -> bool:
    """Return whether a run has long sums of random data, and rounds nothing inside them to a narrower type."""
    spec, op, a = run.case.spec, run.case.op, arithmetic_of(run)
    repeats = prod(spec.shape) // max(prod(geometry.affine_shape(spec, op)), 1) if op.forward else 0
    long = max(geometry.row_length(spec, op), repeats) >= LONG
    near_one = max(abs(spec.log2_scale), abs(spec.dy_log2_scale)) <= EXPONENTS
    wide = run.problem is None and not (a.partials_u or a.xhat_u or a.stats_u or (a.z_u and op.forward))
    return wide and long and near_one and bool(compared(run)) and independent(run.case)


def told(run: Run) -> bool:
    """Return whether `equations` say something of a run: whether `sums` applies to it, and looks at it."""
    return _applies(run.case.op) and not _narrow(run.kernel) and looks(run)


@check(applies=_applies, looks=looks, lacks=_narrow)
def sums(run: Run) -> Iterator[Finding | SmallestError | OverProbable]:
    """Long sums are no further from the truth than rounding errors of random sign explain.

    In random data the roundings of a sum of n terms add up like √n, the bound of `accuracy` like n. This looks at
    mean, rstd, dweight and dbias of 256 terms and more, and at Σdx and Σdx·x̂ of long rows, in which an error of the
    means c1 = mean(g·x̂) and c2 = mean g adds up (g = weight·dy). The tolerance follows from `lanes` and `summation` of
    the contract; a right kernel exceeds it with a probability of 1e-9 in each case.
    """  # derived in `verify_norm.reference.probable`
    for equation in equations(run):
        largest = float(equation.ratio.max(initial=0.0))
        if isinstance(equation, LongSum):
            yield OverProbable(equation.output, largest)
        if largest > 1:
            yield _found(run, equation)
        elif isinstance(equation, LongSum):
            yield from equation.smallest(run)


def equations(run: Run) -> Iterator[Equation]:
    """Yield the outputs that are long sums beside the truth, and the sums over long rows that dx implies, by name."""
    s, outputs = stages(run), compared(run)
    n, a = s.norm, s.arithmetic
    lam = confidence(sum(o.got.size for o, _ in outputs.values()))
    # A sum of one sign: beside few large terms, or in one long run, all others may be rounded to one side. So may
    # squares of few digits: of 16-bit numbers, unless they are less a mean that is near 0.
    even = run.case.spec.data == "normal" and a.variance != "shifted" and a.summation == "blocked"
    even &= (n.centred and run.case.spec.offset == 0) or FORMATS[run.case.spec.dtype].dtype.itemsize > 2
    error = probable.statistics_error(n, a, lam) if even else statistics_rounding.statistics_error(n, a)
    z = rounding.xhat_error(n, error, a)
    if n.view.count >= LONG and even:
        for name, kept, delta in (("mean", n.mean, error.mean), ("rstd", n.saved_rstd, n.saved_rstd * error.rho)):
            if name in outputs:  # the contract may keep a rounded sum of a fused addition, whose statistics differ
                yield _of(run, name, delta + np.abs(kept - truth(run, name).value.reshape(kept.shape)))
    if "dy" not in run.case.exact:
        return
    dy, lost = cotangent(s, exact_input(run.case, "dy"))
    dy = dy.reshape(n.view.shape)
    if n.view.repeats >= LONG:
        if "dweight" in outputs:
            yield _of(run, "dweight", probable.weight_error(n, dy, z, a, lam) + n.total(lost * z.magnitude))
        if "dbias" in outputs:
            yield _of(run, "dbias", probable.bias_error(n, dy, a, lam) + n.total(np.broadcast_to(lost, dy.shape)))
    added = run.case.exact.get("residual_out") is not None  # of every backward of a fused addition
    single = "dx" in outputs and outputs["dx"][1].dtype == "float32"  # the last rounding to 16 bits hides the rest
    if n.view.count >= LONG and single and not (a.expanded or added or s.stages):
        yield from _of_dx(run, s, dy, z, lam)


def _of(run: Run, name: str, delta: Array) -> LongSum:
    output, expected = compared(run)[name]
    delta = np.minimum(delta.reshape(expected.value.shape), expected.delta)
    rounded = 0.5 * FORMATS[expected.dtype].ulp(np.abs(expected.value) + delta)
    return LongSum("", name, output.got, expected.value, judged(run, name, delta + rounded), delta)


def _of_dx(run: Run, s: Stages, dy: Array, z: rounding.XhatError, lam: float) -> Iterator[Equation]:
    n, (output, expected) = s.norm, compared(run)["dx"]
    want, got = (v.reshape(n.view.shape) for v in (expected.value, output.got))
    half = 0.5 * FORMATS[expected.dtype].ulp(np.abs(want) + expected.delta.reshape(n.view.shape))
    known = np.isfinite(judged(run, "dx", np.zeros(()))).reshape(n.view.shape).all(n.view.axes, keepdims=True)
    for words, phi in (("Σdx", np.ones_like(want)), ("Σdx·x̂", n.xhat)):
        if words == "Σdx" and not n.centred:
            continue
        delta = probable.row_sum_error(n, dy, z, s.arithmetic, lam, phi)
        tolerance = delta + lam * np.sqrt(s.row_sum((phi * half) ** 2))
        left, right = s.row_sum(phi * got), s.row_sum(phi * want)
        yield Equation(words, "dx", left.ravel(), right.ravel(), np.where(known, tolerance, np.inf).ravel())


def _found(run: Run, equation: Equation) -> Finding:
    """Return the finding about an output, in ulp, or about a sum over a row, which has a name."""
    output, ratio, index = equation.output, equation.ratio, judge.worst(equation.ratio)
    got, want, allowed = (float(v[index]) for v in (equation.left, equation.right, equation.tolerance))
    place = f"{equation.name} of row {index[0]}" if equation.name else element(output, index)
    off, most = told_apart(abs(got - want), allowed)
    message = (
        f"{place}: expected {want:.9g}, got {got:.9g}, {off} apart, {most} allowed in "
        f"random data; {int((ratio > 1).sum())} of {ratio.size} are off"
    )
    if not equation.name and ratio[index] < FEW_LANES:
        message += ". If the kernel adds in few running sums, declare lanes, such as --contract lanes=8; if in one, "
        message += "--contract summation=sequential"
    ulp = None
    if not equation.name:
        unit = float(FORMATS[truth(run, output).dtype].ulp(np.array(want)))
        ulp, allowed = abs(got - want) / unit, allowed / unit
    return finding(run, "sums", output, message, index=index, got=got, want=want, allowed=allowed, ulp=ulp)
