"""The bound of a backward that uses the mean and rstd it is given, and the runs that tell whether it does.

A right backward may use them or compute its own, and its own may err by a whole sum (`reference.rounding`). Where a run
fits only the second bound, the kernel runs again in the very case, so a kernel that uses them in some shapes alone is
judged by what it does in this one. In all these runs dy is 0 at every other element of a row or group.

1. mean and rstd as given.
2. x is changed where dy is 0, so that its own mean and rstd would be far from the given ones. All g·x̂ stay the same. So
   dweight, dbias and the other elements of dx can differ from run 1 only if the kernel makes a statistic, or any sum of
   x, from x itself.
3. x is as in 1, and the given mean and rstd are those of 2.

An output with the bits of run 1 in run 2, and with others in run 3, uses what it is given. Any other keeps the wide
bound: that of a kernel with a mean of its own, or that sums x − μ, or that adds in another order at every run.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from verify_norm.cases import make, placement
from verify_norm.checks.relations.equations import compared
from verify_norm.checks.relations.rerun import NearbyError, nearby, small
from verify_norm.checks.relations.stages import exact_input, own_statistics, view_of
from verify_norm.core import judge
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.layouts import layout_of
from verify_norm.core.op import Op
from verify_norm.core.run import Expected, Output, Run

ELEMENTS = 2**23  # of x: beyond it more runs take too long
FAR = 1 / 8  # of 1/rstd and of rstd: more than any type of an output hides


def names(op: Op) -> str:
    """Return the names of the statistics that an operator is given; "" for a forward."""
    return " and ".join(tensor.name for tensor in op.inputs if tensor.role == "saved")


def stricter(run: Run) -> dict[str, tuple[Output, Expected]]:
    """Return the outputs within their bound that use the given statistics and exceed the bound that follows from it.

    Each is judged by that bound. BatchNorm's evaluation is left out, whose statistics are given as running ones, and a
    user's own operator, which has one bound.
    """
    case = run.case
    has_bound = case.op.lawful and names(case.op) and own_statistics(case) and not run.kernel.autograd
    if not has_bound or not small(run, ELEMENTS):
        return {}
    deltas = make.errors(case.spec, case.op, run.kernel.contract, case.exact, given=True)
    bounds = dict(zip((tensor.name for tensor in case.op.outputs), deltas, strict=True))
    beyond = {}
    for name, (output, expected) in compared(run).items():
        if output.ratio is None or output.ratio.max() > 1:
            continue
        tight = replace(expected, delta=bounds[name])
        ratio = judge.ratio(output.got, tight)
        if ratio.max() > 1:
            beyond[name] = replace(output, ratio=ratio), tight
    used = _using(run) if beyond else set()
    return {name: judged for name, judged in beyond.items() if name in used}


def _using(run: Run) -> set[str]:
    """Return the outputs that change with the given statistics, and not with x where dy is 0."""
    case = run.case
    name = "residual_out" if "residual_out" in case.exact else "x"
    x, changed = _changed(run, exact_input(case, name))
    quiet = {"dy": np.where(changed, 0.0, exact_input(case, "dy"))}
    layouts = {n: layout_of(case.spec, n) for n in (name, "dy")}
    if any((placement.shared(v, layouts[n]) != v).any() for n, v in {**quiet, name: x}.items()):
        return set()  # elements along a stride of 0 cannot differ
    others = {n: v for n, v in make.saved(case.spec, case.op, {**case.exact, name: x}).items() if v is not None}
    scale = {"mean": 1 / exact_input(case, "rstd"), "rstd": exact_input(case, "rstd")}
    if not all((np.abs(exact_input(case, n) - other) >= FAR * scale[n]).all() for n, other in others.items()):
        return set()  # eps is far larger than x², or a row is zero
    try:
        first, second = nearby(run, quiet), nearby(run, {**quiet, name: x})
        used = {n for n in first.outputs if _same(first, second, n, ~changed)}
        third = nearby(run, {**quiet, **others}) if used else first
        return {n for n in used if not _same(first, third, n, ~changed)}
    except NearbyError:
        return set()


def _changed(run: Run, x: Array) -> tuple[Array, Any]:
    """Return x with every other element of a row or group changed, and where.

    Of its axes the last that is longer than one counts. The changed elements are 4 times the largest |x|, with the sign
    that their mean has not. So mean, variance, and the variance about the old mean all change.
    """
    view = view_of(run.case, x)
    last = max((axis for axis in view.axes if view.shape[axis] > 1), default=view.axes[0])
    mask = np.arange(view.shape[last]).reshape([-1 if axis == last else 1 for axis in range(len(view.shape))]) % 2 == 1
    rows = x.reshape(view.shape)
    total = np.where(mask, rows, 0.0).sum(view.axes, keepdims=True)
    value = -np.copysign(4 * np.abs(rows).max(view.axes, keepdims=True), total)
    moved = np.where(mask, FORMATS[run.case.spec.dtype].round(value), rows)
    return moved.reshape(x.shape), np.broadcast_to(mask, view.shape).reshape(x.shape)


def _same(run: Run, other: Run, name: str, kept: Any) -> bool:
    """Return whether two runs have the same bits in an output, of dx and dresidual where it is `kept`."""
    a, b = run.outputs[name], other.outputs.get(name)
    if a is None or b is None or a.got.shape != b.got.shape:
        return False
    equal = (a.got == b.got) | (np.isnan(a.got) & np.isnan(b.got))
    return bool(equal[kept].all() if name in ("dx", "dresidual") else equal.all())
