"""Degenerate and special inputs: what a kernel returns for them by rule. Torch's behaviour breaks ties.

Checked here, since no bound says it:

- eps = 0, no variance: rstd, y, dx and dweight of a row of zeros are no numbers, as in torch (0·∞), and dbias is one. A
  guard that returns 0 hides a division by zero. Left out: one element less its mean, where x̂ may be 0 by itself, and
  BatchNorm and InstanceNorm, where torch has one.
- dy = 0: dx = 0 (or what a fused addition passes on), dweight = dbias = 0, exactly: every gradient is linear in dy.
- eps huge, at least (2⁴⁰·max|x|)², so that x̂ vanishes against b: y = b, or what the stages make of b, and
  rstd = 1/√eps; mean and sums as with any eps.
- zeros: +0 where x·w is +0 in y, and where a sum of a fused addition is. IEEE 754 fixes that in any order, also where a
  kernel adds a zero; a −0 that is lost so is right.
- equal rows: equal results, bit by bit, where the contract promises that a row does not depend on the others.

`accuracy` already holds a kernel to the rest: no rows (a sum of no terms has no rounding, so only 0 is allowed), rows
of one or two elements, zero rows, equal elements, zero weights, subnormals (kept or flushed, either is right), the
largest finite values (what overflows is not judged), and with `nonfinite` a NaN or ∞ in one row.

Elsewhere −0 counts as 0. Torch's CPU kernels compute x·a + b, which rounds where N = 1: that is their contract
(`Contract.expanded`), not the rule.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from verify_norm.checks.check import check, finding
from verify_norm.checks.relations.equations import arithmetic_of, compared, format_of, half_ulps, pairs, truth
from verify_norm.checks.relations.rerun import NearbyError, has_rows, nearby, small
from verify_norm.checks.relations.stages import exact_input, has_mean, normalized, own_statistics, stage_inputs, view_of
from verify_norm.core import judge
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.excess import element
from verify_norm.core.finding import Finding, NoData
from verify_norm.core.judge import worst
from verify_norm.core.run import Run
from verify_norm.reference.arithmetic import compound
from verify_norm.reference.quantized import product_error, saturated
from verify_norm.reference.stages.stage import Approximate, passed, rounded

HUGE = 40  # log2 of √eps over the largest |x|: x̂ is then below every rounding of float32
SMALL = 2.0**-10  # of a smaller x nothing is left beside that eps, and a kernel that scales it has room for eps


@dataclass(frozen=True, slots=True)
class Compared:
    """One output beside what is right: where it is wrong, and what is right in words."""

    output: str
    got: Array
    want: Array
    wrong: Any  # booleans, one an element
    words: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table: when it holds, and how a run's outputs compare with it."""

    name: str
    holds: Callable[[Run], bool]
    compare: Callable[[Run], Iterator[Compared]]


def _vanishing(run: Run) -> Any:
    """Return which rows have a variance of exactly 0 in every arithmetic, and not by definition; axes are kept."""
    x = normalized(run)
    view = view_of(run.case, x)
    zero = (x.reshape(view.shape) == 0).all(view.axes, keepdims=True)
    return zero & (view.count > 1 or not has_mean(run.case))


def _no_variance(run: Run) -> bool:
    spec, op = run.case.spec, run.case.op
    by_channel = op.view == "channels" or (op.view == "groups" and "num_groups" not in op.attrs)
    usable = spec.eps == 0 and spec.special is None and not by_channel and op.lawful
    return usable and bool(_vanishing(run).any())


def _numbers_for_zero_by_zero(run: Run) -> Iterator[Compared]:
    rows = _vanishing(run)
    view = view_of(run.case, normalized(run))
    everywhere = np.broadcast_to(rows, view.shape)
    where = {"data": everywhere, "statistic": rows, "affine": everywhere.any(view.shared)}
    extents = {tensor.name: tensor.extent for tensor in run.case.op.outputs}
    for name, (output, expected) in compared(run).items():
        if name == "y" and run.case.op.quantizer is not None:
            continue  # its scale alone may be NaN
        if name in ("y", "dx", "dresidual", "dweight", "rstd"):
            wrong = where[extents[name]].reshape(output.got.shape) & np.isfinite(output.got)
            if _dropped(run, name):
                wrong &= exact_input(run.case, "mask") != 0  # what is dropped is 0
            words = "NaN or infinity, because a row without variance gives 0/0 if eps is 0"
            yield Compared(name, output.got, expected.value, wrong, words)
        elif name == "dbias":
            wrong = ~np.isfinite(output.got) & judge.judged(expected) & (np.abs(expected.value) < 1e4)
            yield Compared(name, output.got, expected.value, wrong, "a finite number, because it does not depend on x")


def _dropped(run: Run, name: str) -> bool:
    """Return whether an output is what a dropout makes of dresidual."""
    return name == "dx" and run.case.op.dropout is not None


def _runs_nearby(run: Run) -> bool:
    """Return whether the kernel runs once more, on a case near the run's."""
    return "degenerate" in run.case.spec.further and small(run)


def _gradient_of_nothing(run: Run) -> Iterator[Compared]:
    passed_on = run.case.exact.get("dresidual_out")
    other = nearby(run, {"dy": np.zeros_like(exact_input(run.case, "dy"))})
    for name, usual, got in pairs(run, other):
        if _dropped(run, name):
            continue
        if name == run.case.op.dh and passed_on is not None:
            want, flushed, what = passed_on, FORMATS["float32"].smallest_normal, "dresidual_out"
        else:
            want, flushed, what = np.zeros_like(usual), 0.0, "0"
        wrong = ~(np.abs(got - want) <= flushed) & judge.judged(truth(run, name))
        yield Compared(name, got, want, wrong, f"{what}, because dy is 0")


def _eps_can_be_huge(run: Run) -> bool:
    contract, case = run.kernel.contract, run.case
    if not _runs_nearby(run) or "dy" in case.exact or not case.op.lawful or not own_statistics(case):
        return False
    wide = contract.accumulate in ("float32", "float64") and contract.stats == "float32"
    most = float(np.abs(normalized(run)).max())
    return wide and most <= 2.0**16 and (contract.deterministic or case.op.view != "channels")


def _eps_decides(run: Run) -> Iterator[Compared]:
    """Compare y with the bias: with √eps = 2^k, x̂ ≤ 2·max|x|/2^k ≤ 2^(1 − HUGE), so y is a rounding of b + w·x̂.

    An activation is applied to that, within its own error bound.
    """
    case, single = run.case, FORMATS["float32"]
    most = max(float(np.abs(normalized(run)).max()), SMALL)
    k = math.ceil(math.log2(most)) + HUGE
    other = nearby(run, {}, replace(case.spec, eps=4.0**k))
    b, tau, amax, amax_off = _bias_alone(run)
    because = f", because x vanishes beside eps = 4^{k}"
    for name, usual, got in pairs(run, other):
        if name == "y_scale":  # of rounding errors, where there is no bias
            continue
        if name == "amax":
            want, words = np.full_like(usual, amax), f"the largest |bias|{because}"
            wrong = ~(np.abs(got - want) <= amax_off + half_ulps(run, name, want + amax_off))
        elif name == "y":
            want, delta = b.reshape(usual.shape), tau.reshape(usual.shape)
            off = ~(np.abs(got - want) <= delta + half_ulps(run, name, np.abs(want) + delta))
            wrong = off & (np.abs(want) < format_of(run, name).largest / 2)
            words = " of ".join([*(stage.name for stage in reversed(case.op.stages)), "the bias"]) + because
            if case.op.quantized:
                words = f"scale times {words}"
        elif name == "rstd":
            want, words = np.full_like(usual, 2.0**-k), f"1/√eps{because}"
            wrong = ~(np.abs(got - want) <= 8 * single.u * want)  # γ(ROOT + DIVISION + 1), and its own last rounding
        else:
            want, words = usual, "the same for any eps"
            wrong = (got != usual) & judge.judged(truth(run, name))
        yield Compared(name, got, want, wrong, words)


def _bias_alone(run: Run) -> tuple[Array, Array, float, float]:
    """Return y where x̂ vanishes, how far off a kernel may be, and the same two of amax.

    |w·x̂| is at most 2^(1 − HUGE)·|w|, also as |x·a| + |mean·a|. It grows by the roundings of the mean, n + 5, of rstd,
    7, and of sums, differences and products, 5 at most, and by what narrow types and matrix products lose. The sum with
    b rounds once, and in x·a + (b − mean·a) twice.
    """
    case, view, a = run.case, view_of(run.case, normalized(run)), arithmetic_of(run)
    weight, bias = view.weight(case.exact.get("weight")), view.weight(case.exact.get("bias"))
    gain = 1.0 if weight is None else np.abs(weight + case.arguments.get("weight_offset", 0.0))
    largest = 2.0 ** (1 - HUGE) * (1 + compound(a.gamma(view.count + 17), a.operand_u, a.xhat_u, a.offset_u))
    b = np.broadcast_to(0.0 if bias is None else bias, view.shape)
    tau = gain * largest + (1 + a.expanded) * a.u * np.abs(b)
    out = Approximate(b, np.broadcast_to(tau, view.shape), np.abs(b) + tau)
    for stage in case.op.stages:
        out = passed(stage, rounded(out, a), stage_inputs(run), a)
    b, tau = out.value, out.delta
    amax, amax_off = float(np.abs(b).max()), float(np.max(tau))
    scale = case.exact.get("scale") if case.op.quantized else None
    if scale is not None:
        tau = product_error(tau, np.abs(b), scale, a)
        b = saturated(b * scale, format_of(run, "y").largest)
    return b, np.broadcast_to(tau, view.shape), amax, amax_off


def _has_zeros(run: Run) -> bool:
    case = run.case
    op = case.op
    plain = op.direct and op.lawful and not (op.stages or op.quantized) and case.spec.special is None
    return plain and "dy" not in case.exact and any(not values.all() for _, values in _summed(run))


def _summed(run: Run) -> Iterator[tuple[str, Array]]:
    """Yield the outputs whose zeros have a sign that is known, with the values that have it: x̂·w has that of x·w."""
    exact, op = run.case.exact, run.case.op
    x, residual = exact_input(run.case, "x"), exact.get("residual")
    total = x if residual is None else x + residual
    if residual is not None:
        yield "residual_out", total
    if not op.centred:
        weight = exact.get("weight")
        gain = np.ones(()) if weight is None else weight + run.case.arguments["weight_offset"]
        yield "y", total * gain  # of the last dimensions


def _signs_of_zeros(run: Run) -> Iterator[Compared]:
    outputs = compared(run)
    for name, values in _summed(run):
        if name in outputs:
            got = outputs[name][0].got
            wrong = (values == 0) & ~np.signbit(values) & (got == 0) & np.signbit(got)
            yield Compared(name, got, np.zeros(got.shape), wrong, "+0, because its factors and sums have that sign")


def _rows_are_equal(run: Run) -> bool:
    case, spec = run.case, run.case.spec
    if not run.kernel.contract.batch_invariant or not has_rows(case) or case.op.view == "channels" or spec.special:
        return False
    inputs = (case.exact[t.name] for t in case.op.inputs if t.extent in ("data", "sample", "position", "statistic"))
    by_row = (values.reshape(spec.shape[0], -1) for values in inputs if values is not None)
    return all(bool((rows == rows[:1]).all()) for rows in by_row)


def _rows_that_differ(run: Run) -> Iterator[Compared]:
    count = run.case.spec.shape[0]
    for tensor in run.case.op.outputs:
        output = run.outputs.get(tensor.name)
        if tensor.extent in ("affine", "one") or output is None or output.ratio is None:
            continue
        rows, shape = output.got.reshape(count, -1), output.got.shape
        first = np.broadcast_to(rows[:1], rows.shape)
        wrong = (rows != first) & ~(np.isnan(rows) & np.isnan(first))
        words = "the bits of the first row, because all rows are equal and the contract promises batch_invariant"
        yield Compared(tensor.name, output.got, first.reshape(shape), wrong.reshape(shape), words)


RULES = (
    Rule("eps = 0, no variance", _no_variance, _numbers_for_zero_by_zero),
    Rule("dy = 0", lambda run: "dy" in run.case.exact and _runs_nearby(run), _gradient_of_nothing),
    Rule("eps huge", _eps_can_be_huge, _eps_decides),
    Rule("the sign of zero", _has_zeros, _signs_of_zeros),
    Rule("equal rows", _rows_are_equal, _rows_that_differ),
)


@check(
    applies=lambda op: op.lawful or op.user_defined or bool(op.forward),  # a forward without laws has no rule
    looks=lambda run: any(rule.holds(run) for rule in RULES),
)
def degenerate(run: Run) -> Iterator[Finding | NoData]:
    """No variance with eps = 0, dy = 0, a huge eps, zeros and equal rows give exactly what they must."""
    reported: set[str] = set()
    looked = False
    for rule in RULES:
        if not rule.holds(run):
            continue
        try:
            comparisons = list(rule.compare(run))
        except NearbyError as error:
            if str(error):
                looked, message = True, f"the kernel fails with {rule.name}: {error}"
                yield finding(run, "degenerate", None, message, status="error")
            continue
        looked = looked or bool(comparisons)
        for comparison in comparisons:
            if comparison.wrong.any() and comparison.output not in reported:
                reported.add(comparison.output)
                yield _found(run, rule, comparison)
    if not looked:
        yield NoData()


def _found(run: Run, rule: Rule, comparison: Compared) -> Finding:
    """Return the finding about an output that breaks a rule."""
    output, wrong = comparison.output, comparison.wrong
    index = worst(wrong)
    got, want = float(comparison.got[index]), float(comparison.want[index])
    message = f"{rule.name}: {element(output, index)}: expected {comparison.words}, got {got:.9g}; "
    message += f"{int(wrong.sum())} of {wrong.size} elements are wrong"
    return finding(run, "degenerate", output, message, index=index, got=got, want=want)
