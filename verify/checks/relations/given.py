"""The bound of a backward that uses the mean and rstd it is given, and the runs that tell whether it does.

A right backward may use them or compute its own; the second may err by a whole sum (`reference.rounding`). Where a run
fits only the bound of the second, the kernel runs twice more in the very case, so a kernel that uses them in some
shapes alone is judged by what it does in this one. In both runs dy is 0 at every other element of a row or group; in
one of them x is half as large there, and mean and rstd stay as given. A dx elsewhere, dweight and dbias then have no
cause to differ but a statistic, or a sum of x, that the kernel makes of x itself: g·x̂ is 0 at those elements either way.
So an output with the same bits in both runs uses what it is given, and another one keeps the wide bound: so does one
that relies on Σ(x − μ) = 0, or that adds in an order of its own at every run.
"""

from dataclasses import replace

import numpy as np

from verify_norm.cases import make, placement
from verify_norm.checks.relations.equations import compared
from verify_norm.checks.relations.rerun import NearbyError, nearby
from verify_norm.checks.relations.stages import given, own_statistics, view_of
from verify_norm.core import geometry, judge
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.spec import Expected, Output, Run


def stricter(run: Run) -> dict[str, tuple[Output, Expected]]:
    """Return the outputs within their bound that use the given statistics and exceed the bound that follows from it.

    Each is judged by that bound. BatchNorm's evaluation is left out, whose statistics are given as running ones.
    """
    case, found = run.case, {}
    if not any(t.role == "saved" for t in case.op.inputs) or run.kernel.autograd or not own_statistics(case):
        return {}
    bounds = make.errors(case.spec, case.op, run.kernel.contract, case.exact, given=True)
    for tensor, delta in zip(case.op.outputs, bounds, strict=True):
        if delta is not None and tensor.name in compared(run):
            output, expected = compared(run)[tensor.name]
            tight = replace(expected, delta=np.minimum(delta, expected.delta))
            ratio = judge.ratio(output.got, tight)
            if output.ratio is not None and output.ratio.max(initial=0.0) <= 1 < ratio.max(initial=0.0):
                found[tensor.name] = replace(output, ratio=ratio), tight
    used = _using(run) if found else set()
    return {name: one for name, one in found.items() if name in used}


def _using(run: Run) -> set[str]:
    """Return the outputs that do not change with x where dy is 0, and so use the given statistics."""
    case = run.case
    name = "residual_out" if "residual_out" in case.exact else "x"
    x, dy = given(case, name), given(case, "dy")
    view = view_of(case, x)
    axis = [axis for axis in view.axes if view.shape[axis] > 1][-1:]
    if not axis:
        return set()
    place = np.arange(view.shape[axis[0]]).reshape([-1 if a == axis[0] else 1 for a in range(len(view.shape))])
    changed = np.broadcast_to(place % 2 == 1, view.shape).reshape(x.shape)
    quiet = {"dy": np.where(changed, 0.0, dy)}
    moved = {**quiet, name: np.where(changed, FORMATS[case.spec.dtype].round(x / 2), x)}
    if not all(_fits(run, n, values) for n, values in moved.items()):
        return set()
    try:
        one, two = (nearby(run, values).outputs for values in (quiet, moved))
    except NearbyError:
        return set()
    kept = {"dx": ~changed}
    return {
        n for n, a in one.items() if a and (b := two.get(n)) and _equal(a.got, b.got, kept.get(n, np.array(True)))
    }


def _fits(run: Run, name: str, values: Array) -> bool:
    """Return whether the tensor's layout holds these values: equal ones along a stride of 0."""
    return bool((placement.shared(values, geometry.layout_of(run.case.spec, name)) == values).all())


def _equal(a: Array, b: Array, where: np.ndarray) -> bool:
    return a.shape == b.shape and bool((~where | (a == b) | (np.isnan(a) & np.isnan(b))).all())
