"""Condition numbers: what the data of a case do to an element, whatever the kernel. They stand beside its error.

Terms t that err by a relative ε each make their sum err by up to ε·Σ|t|/|Σt|. The terms of an element are

    y               w·r·x, −w·r·μ, b; with an activation those of its argument
    residual_out    x, residual
    mean            x/N
    rstd            (x − μ)²/N, which never cancel
    dx              r·g, −r·c2, −r·x̂·c1, dresidual_out
    dweight, dbias  dy·x̂ and dy of all that one weight serves
    others          dy, and its products with the terms of what the stage is applied to; of a stage before the norm,
                    the terms of dx, which it multiplies

with the names of `verify_norm.reference.norm`. |μ|/σ is how much x − μ enlarges the relative error of μ; as σ² is var,
RMSNorm, which subtracts no mean, has none. var/(var + eps) is how much of a relative change of var reaches 1/rstd².
A parameter's gradient has many rows: the worst of each number counts, the largest |μ|/σ and the smallest of the other.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from math import prod
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from verify_norm.cases import make
from verify_norm.checks.relations.stages import cotangent, exact_input, norm, own_statistics, stages, summand
from verify_norm.core import geometry
from verify_norm.core.dtypes import Array
from verify_norm.core.finding import Condition, Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.op import Extent
from verify_norm.core.ops import OPS
from verify_norm.core.run import Case, Run
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import Tally
from verify_norm.reference.norm import Norm
from verify_norm.reference.stages.modulate import grouped

LARGE = 2**22  # elements of x: of larger cases one is looked at at a time, since each takes some twenty arrays
T = TypeVar("T", Finding, Tally)
_alone = Lock()


def each(of: Callable[[Kernel, T], T], kernel: Kernel, items: Iterable[T]) -> tuple[T, ...]:
    """Return `of(kernel, item)` of each item, in their order: in threads, since nearly all of it is NumPy's work."""
    with ThreadPoolExecutor() as threads:
        return tuple(threads.map(partial(of, kernel), items))


def of_tally(kernel: Kernel, tally: Tally) -> Tally:
    """Return the tally with the conditions of its worst elements."""
    worst, farthest = None, tally.farthest
    if tally.worst is not None:
        worst = condition(kernel, tally.worst, tally.output, tally.index)
    if farthest is not None:
        farthest = replace(farthest, condition=condition(kernel, farthest.spec, tally.output, farthest.index))
    return replace(tally, condition=worst, farthest=farthest)


def of_finding(kernel: Kernel, finding: Finding) -> Finding:
    """Return the finding with its condition, if it is about values."""
    if finding.output is None or (finding.index is None and finding.ulp is None):
        return finding
    return replace(finding, condition=condition(kernel, finding.spec, finding.output, finding.index))


def condition(kernel: Kernel, spec: CaseSpec, output: str, index: tuple[int, ...] | None) -> Condition | None:
    """Return the condition of one element of an output, or of the worst row where `index` is that of no element.

    None where x is not normalized by its own statistics, in a user's own operator, and for what is no output. Raises
    ValueError if the spec does not fit the operator.
    """
    if OPS[kernel.op].user_defined:
        return None
    with np.errstate(all="ignore"), _alone if prod(spec.shape) > LARGE else nullcontext():
        return _condition(kernel, spec, output, index)


def _condition(kernel: Kernel, spec: CaseSpec, output: str, index: tuple[int, ...] | None) -> Condition | None:
    op = OPS[kernel.op]
    tensor = next((tensor for tensor in op.outputs if tensor.name == output), None)
    run = Run(kernel, Case(spec, op, make.attributes(spec, op), make.exact_inputs(spec, op), {}), {})
    if tensor is None or not own_statistics(run.case) or not prod(spec.shape):
        return None
    n, extent = norm(run), tensor.extent
    served = run.case.exact.get(output.removeprefix("d")) if extent == "sample" else None
    shape = geometry.shape_of(tensor, spec, op)
    place = index if index is not None and len(index) == len(shape) and np.all(np.less(index, shape)) else None
    at = None if place is None else int(np.ravel_multi_index(place, shape))

    def statistic(values: Array, worst: Any) -> float:
        if served is not None:
            by_element = worst(grouped(np.broadcast_to(values, n.view.shape), served), axis=1)
        else:
            by_element = _by_element(values, n, extent, worst)
            if extent == "block":
                by_element = np.broadcast_to(by_element, shape)
        return float(worst(by_element) if at is None else by_element.ravel()[at])

    cancellation = None if at is None else _cancellation(run, n, output, at)
    offset: float | None = None
    variance: float | None = None
    if output not in ("dbias", "dshift", "residual_out") or not op.linear:  # else x̂ has no part in it
        variance = statistic(n.var / (n.var + spec.eps * n.rstd_scale**2), np.min)
        if n.centred:
            size = np.abs(n.mean)
            offset = statistic(np.where(size == 0, 0.0, size / np.sqrt(n.var)), np.max)
    return Condition(cancellation, offset, variance)


def _cancellation(run: Run, n: Norm, output: str, at: int) -> float | None:
    """Return Σ|t|/|Σt| of one element, 1 where all terms are 0; None for what is no such sum."""
    terms = _terms(run, n, output)
    if terms is None:
        return None
    whole, left = (part.ravel()[at] for part in terms)
    return float(whole / np.abs(left)) if whole else 1.0


def _by_element(values: Array, n: Norm, extent: Extent, worst: Any) -> Array:
    """Return a statistic for each element of an output: the worst one where it depends on several."""
    if extent == "data":
        return np.broadcast_to(values, n.view.shape)
    if extent == "affine":
        values = worst(np.broadcast_to(values, n.view.shape), axis=n.view.shared)
    whole: Array = values if extent in ("affine", "statistic", "block") else worst(values)
    return whole


def _terms(run: Run, n: Norm, output: str) -> tuple[Array, Array] | None:
    """Return Σ|t| and Σt of every element of an output, in the view's order; None for what is no such sum."""
    exact, shape = run.case.exact, n.view.shape
    if output == "y":
        return _of_y(n), n.y
    if output == "residual_out":
        parts = summand(run.case), exact_input(run.case, "residual")
        return np.abs(parts[0]) + np.abs(parts[1]), parts[0] + parts[1]
    if output == "mean":
        return n.average(np.abs(n.x)), n.mean
    if output == "rstd":
        return n.var, n.var
    if "dy" not in exact:
        return None
    dy = exact_input(run.case, "dy").reshape(shape)
    if run.case.op.stages:
        dy = cotangent(stages(run), dy)[0]
    before = run.case.op.before
    if output in ("dx", "dresidual") or (before is not None and output.removeprefix("d") in before.inputs):
        p, passed = n.gradient(dy), exact.get("dresidual_out")
        passed = np.zeros(shape) if passed is None else passed.reshape(shape)
        size = np.abs(p.g) + (0.0 if p.c2 is None else np.abs(p.c2)) + np.abs(n.share * n.xhat * p.c1)
        parts = n.rstd * size, np.abs(passed)
        whole, left = parts[0] + parts[1], p.dx + passed
        return (whole, left) if before is None else (_before(run, output, whole), _before(run, output, left))
    if output not in ("dweight", "dbias"):
        return _own_terms(run, output)
    terms = dy * n.xhat if output == "dweight" else dy
    return n.total(np.abs(terms)), n.total(terms)


def _of_y(n: Norm) -> Array:
    """Return the sum of the magnitudes of the terms of w·x̂ + b."""
    size: Array = n.rstd * (np.abs(n.x) + np.abs(n.mean))
    if n.weight is not None:
        size = size * np.abs(n.weight)
    if n.bias is not None:
        size = size + np.abs(n.bias)
    return size


def _before(run: Run, output: str, dh: Array) -> Array:
    """Return |gradient| of x, or of an own input, where the result of the stage before the norm has the gradient dh."""
    x = exact_input(run.case, "x")
    dx, own = run.case.op.before.pull(dh.reshape(x.shape), x, run.case.exact)
    gradient: Array = dx if output == "dx" else own[output.removeprefix("d")]
    return np.abs(gradient)


def _own_terms(run: Run, output: str) -> tuple[Array, Array] | None:
    """Return the same of the gradient of a stage's own input: its terms are products of dy and those of z."""
    s, name = stages(run), output.removeprefix("d")
    dy = exact_input(run.case, "dy").reshape(s.norm.view.shape)
    applied, size = [], _of_y(s.norm)
    for stage, z in zip(s.stages, s.steps.zs[:-1], strict=True):
        applied.append((stage, z.value, size))  # size: the sum of the magnitudes of z's terms
        size = stage.size(z._replace(size=size), s.given)
    for stage, value, size in reversed(applied):
        before, own = stage.pull(dy, value, s.given)
        if name in own:
            return np.abs(stage.pull(np.abs(dy), size, s.given)[1][name]), own[name]
        dy = before
    return None
