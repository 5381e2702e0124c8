"""Degenerate and special inputs: what a kernel is to return, written down once. Torch's behaviour breaks ties.

Checked here, since no bound says it:

=====================  ==========================================================  ===================================
case                   what is right                                               why
=====================  ==========================================================  ===================================
eps = 0, no variance   rstd, y, dx and dweight of a row of zeros are no numbers;   0·∞; as torch. A guard that returns
                       dbias is one. Not of one element less its mean, where x̂     0 hides a division by zero; in
                       may be 0 by itself; nor of BatchNorm and InstanceNorm       these two, torch has one
dy = 0                 dx = 0 (or what a fused addition passes on), dweight =      every gradient is linear in dy
                       dbias = 0, exactly
eps huge               y = b, or the activation of b, rstd = 1/√eps; mean and      x̂ vanishes against b, for
                       sums as with any eps                                        eps ≥ (2⁴⁰·max|x|)²
equal rows             equal results, bit by bit, where the contract promises      the same numbers, the same
                       that a row does not depend on the others                    operations
=====================  ==========================================================  ===================================

Left to other checks, which already say as much:

=====================  ==========================================================  ===================================
no rows (M = 0)        dweight = dbias = 0, running statistics as they were        `accuracy`: a sum of no terms has no
                                                                                   rounding, so only 0 is allowed
N = 1, with a mean     x̂ = 0, so y = b, mean = x, rstd = 1/√eps                    `accuracy`: allows less than an ulp
N = 1, gradients       dweight = 0; dx = 0, but that a fused multiply-add may      `accuracy`: allows just that
                       keep the rounding of r·w·dy
N = 2, groups of one   as any other row, and as N = 1                              `accuracy`
zero rows              mean = 0, y = b, rstd = 1/√eps                              `accuracy`, `statistics`
equal elements         x̂ = 0 but for the rounding of the mean                      `accuracy`
zero weights           y = b, dx = 0                                               `accuracy`: the bounds are 0
subnormals             kept or flushed, either is right                            `accuracy`: a floor in the bounds
largest finite values  what fits is right, what overflows is not judged            `accuracy`
NaN, ∞ in one row      NaN there, and in no other row                              `nonfinite`, `accuracy`
=====================  ==========================================================  ===================================

−0 counts as 0 throughout. Torch's CPU kernels compute x·a + b, which rounds where N = 1: that is their contract
(`Contract.expanded`), not the rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from verify_norm import judge, ops
from verify_norm.checks import check, finding
from verify_norm.checks.invariance import has_rows, same_rows
from verify_norm.dtypes import FORMATS, Array
from verify_norm.nearby import NearbyError, format_of, half_ulps, pairs, rerun
from verify_norm.reference.activation import ACTIVATIONS, pushed
from verify_norm.reference.quantized import product_error, saturated
from verify_norm.spec import Finding, Run
from verify_norm.stages import has_mean, normalized, own_statistics, view_of

ELEMENTS = 4096  # of x, at most, where the kernel is run again
EVERY = 4  # one case of so many is run again, by its seed
HUGE = 40  # log2 of √eps over the largest |x|: x̂ is then below every rounding of float32
Wrong = tuple[str, Array, Array, Any, str]  # output, got, want, where it is wrong, what is right


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table: when it holds, and what of a run it finds wrong."""

    name: str
    holds: Callable[[Run], bool]
    wrong: Callable[[Run], Iterator[Wrong]]


def _vanishing(run: Run) -> Any:
    """Which rows have a variance of exactly 0 in every arithmetic, and not by definition, kept as axes of size 1."""
    x = normalized(run)
    view = view_of(run.case, x)
    zero = (x.reshape(view.shape) == 0).all(view.axes, keepdims=True)
    return zero & (view.count > 1 or not has_mean(run.case))


def _no_variance(run: Run) -> bool:
    spec = run.case.spec
    op = run.case.op
    by_channel = op.view == "channels" or (op.view == "groups" and "num_groups" not in op.attrs)
    usable = spec.eps == 0 and spec.special is None and prod(spec.shape) > 0 and not by_channel
    return usable and bool(_vanishing(run).any())


def _numbers_for_zero_by_zero(run: Run) -> Iterator[Wrong]:
    rows = _vanishing(run)
    view = view_of(run.case, normalized(run))
    everywhere = np.broadcast_to(rows, view.shape)
    extents = {tensor.name: tensor.extent for tensor in run.case.op.outputs}
    for name, output in run.outputs.items():
        expected = run.case.expected[name]
        if output is None or output.ratio is None or expected is None:
            continue
        if name == "dweight" or name in ("y", "dx", "rstd"):
            where = {"data": everywhere, "statistic": rows, "affine": everywhere.any(view.shared, keepdims=True)}
            there = where[extents[name]].reshape(output.got.shape)
            what = "no number: a row without variance divides 0 by 0 where eps is 0"
            yield name, output.got, expected.value, there & np.isfinite(output.got), what
        elif name == "dbias":
            bad = ~np.isfinite(output.got) & judge.judged(expected) & (np.abs(expected.value) < 1e4)
            yield name, output.got, expected.value, bad, "finite: it does not depend on x"


def _again(run: Run) -> bool:
    spec = run.case.spec
    return spec.seed % EVERY == 1 and spec.special is None and 0 < prod(spec.shape) <= ELEMENTS


def _gradient_of_nothing(run: Run) -> Iterator[Wrong]:
    dy, passed = run.case.exact["dy"], run.case.exact.get("dresidual_out")
    assert dy is not None
    other = rerun(run, {"dy": np.zeros_like(dy)})
    for name, left, right in pairs(run, other):
        expected = run.case.expected[name]
        assert expected is not None
        want = np.zeros_like(left) if passed is None or name != "dx" else passed
        flushed = FORMATS["float32"].smallest_normal if name == "dx" and passed is not None else 0.0
        wrong = ~(np.abs(right - want) <= flushed) & judge.judged(expected)
        what = "0: dy is 0" if passed is None or name != "dx" else "dresidual_out: dy is 0"
        yield name, right, want, wrong, what


def _eps_can_be_huge(run: Run) -> bool:
    contract, case = run.kernel.contract, run.case
    if not _again(run) or "dy" in case.exact or not own_statistics(case):
        return False
    wide = contract.accumulate in ("float32", "float64") and contract.stats == "float32"
    most = float(np.abs(normalized(run)).max(initial=0.0))
    return wide and most <= 2.0**16 and (contract.deterministic or case.op.view != "channels")


def _eps_decides(run: Run) -> Iterator[Wrong]:
    """With √eps = 2^k, x̂ ≤ 2·max|x|/2^k ≤ 2^(1 − HUGE), so y is a rounding of b + w·x̂, by way of float32.

    An activation is applied to that, and to be evaluated as its error bound says.
    """
    case, x, contract = run.case, normalized(run), run.kernel.contract
    most = max(float(np.abs(x).max(initial=0.0)), 1.0)
    k = math.ceil(math.log2(most)) + HUGE
    other = rerun(run, {}, replace(case.spec, eps=4.0**k))
    view, single = view_of(case, x), FORMATS["float32"]
    weight, bias = view.weight(case.exact.get("weight")), view.weight(case.exact.get("bias"))
    gain = 1.0 if weight is None else np.abs(weight + case.arguments.get("weight_offset", 0.0))
    tau = gain * 2.0 ** (2 - HUGE)  # twice x̂'s bound: room for every rounding of x̂ itself
    if contract.expanded:  # x·a + (b − mean·a)
        tau = 2 * tau
    b = np.broadcast_to(0.0 if bias is None else bias, view.shape)
    tau = tau + single.u * np.abs(b)
    if case.op.activation is not None:
        act = ACTIVATIONS[case.op.activation]
        b, tau = act.value(b), pushed(act, b, tau, ops.arithmetic(contract, case.spec.dtype))
    before, off = np.abs(b).max(initial=0.0), np.max(tau, initial=0.0)
    scale = case.exact.get("scale")
    if scale is not None:
        tau = product_error(tau, np.abs(b), scale, ops.arithmetic(contract, case.spec.dtype))
        b = saturated(b * scale, format_of(run, "y").largest)
    for name, left, right in pairs(run, other):
        if name == "amax":
            want = np.full_like(left, before)
            wrong = ~(np.abs(right - want) <= off + half_ulps(run, name, want + off))
            yield name, right, want, wrong, f"the largest |bias|: eps is 4^{k}, beside which x vanishes"
        elif name == "y":
            want = b.reshape(left.shape)
            delta = np.broadcast_to(tau, view.shape).reshape(left.shape)
            wrong = ~(np.abs(right - want) <= delta + half_ulps(run, name, np.abs(want) + delta))
            wrong = wrong & (np.abs(want) < format_of(run, name).largest / 2)
            what = "the bias" if case.op.activation is None else f"{case.op.activation} of the bias"
            what = what if scale is None else f"scale times {what}"
            yield name, right, want, wrong, f"{what}: eps is 4^{k}, beside which x vanishes"
        elif name == "rstd":
            want = np.full_like(left, 2.0**-k)
            wrong = ~(np.abs(right - want) <= 8 * single.u * want)  # γ(5), and its own last rounding
            yield name, right, want, wrong, f"1/√eps: eps is 4^{k}, beside which x vanishes"
        else:
            known = judge.judged(run.case.expected[name])  # type: ignore[arg-type]  # `pairs` has seen it
            yield name, right, left, (right != left) & known, "the same for any eps"


def _rows_are_equal(run: Run) -> bool:
    case, spec = run.case, run.case.spec
    if not run.kernel.contract.batch_invariant or not has_rows(case) or case.op.view == "channels" or spec.special:
        return False
    inputs = {t.name: case.exact[t.name] for t in case.op.inputs if t.extent in ("data", "statistic")}
    leading = {
        name: None if a is None else a.reshape(spec.shape[0], -1) for name, a in inputs.items()
    }  # fmt: skip
    return same_rows(leading)


def _rows_that_differ(run: Run) -> Iterator[Wrong]:
    count = run.case.spec.shape[0]
    for tensor in run.case.op.outputs:
        output = run.outputs.get(tensor.name)
        if tensor.extent in ("affine", "one") or output is None or output.ratio is None:
            continue
        rows = output.got.reshape(count, -1)
        first = np.broadcast_to(rows[:1], rows.shape)
        wrong = (rows != first) & ~(np.isnan(rows) & np.isnan(first))
        shape = output.got.shape
        what = "that of the first row: all rows are one, and a row's bits do not depend on the others"
        yield tensor.name, output.got, first.reshape(shape), wrong.reshape(shape), what


RULES = (
    Rule("eps = 0, no variance", _no_variance, _numbers_for_zero_by_zero),
    Rule("dy = 0", lambda run: "dy" in run.case.exact and _again(run), _gradient_of_nothing),
    Rule("eps huge", _eps_can_be_huge, _eps_decides),
    Rule("equal rows", _rows_are_equal, _rows_that_differ),
)


def _looks(run: Run) -> bool:
    return run.problem is None and any(rule.holds(run) for rule in RULES)


@check(looks=_looks)
def degenerate(run: Run) -> Iterator[Finding]:
    """No variance with eps = 0, dy = 0, a huge eps and equal rows give exactly what they must."""
    told: set[str] = set()
    for rule in RULES:
        if not rule.holds(run):
            continue
        try:
            with np.errstate(all="ignore"):
                wrong = list(rule.wrong(run))
        except NearbyError as error:
            if str(error):
                yield finding(run, "degenerate", None, f"it fails with {rule.name}: {error}", status="error")
            continue
        for name, got, want, where, what in wrong:
            if where.any() and name not in told:
                told.add(name)
                yield _found(run, rule.name, name, got, want, where, what)


def _found(run: Run, rule: str, name: str, got: Array, want: Array, where: Any, what: str) -> Finding:
    index = tuple(int(i) for i in np.argwhere(where)[0])
    message = (
        f"{rule}: {name}[{', '.join(map(str, index))}] is {got[index]:.9g}; it is to be {what}; "
        f"{int(where.sum())} of {where.size} elements are wrong"
    )
    return replace(finding(run, "degenerate", name, message), index=index, got=float(got[index]),
                   want=float(want[index]))  # fmt: skip
