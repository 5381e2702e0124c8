"""What holds of any normalization: sums that vanish, and covariance under scale, shift and order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod

import numpy as np

from verify_norm import judge
from verify_norm.checks import check, finding
from verify_norm.checks.invariance import has_rows, taken
from verify_norm.covariance import gradient_apart, linearity, scale, scale_dy, shift
from verify_norm.dtypes import FORMATS, Array
from verify_norm.nearby import Equation, Equations, NearbyError, half_ulps, judged, pairs, rerun
from verify_norm.spec import Finding, Run
from verify_norm.stages import cotangent, own_statistics, stages, sum_error

ELEMENTS = 4096  # of x, at most: an identity runs the kernel once or twice more


def permutation(run: Run) -> Equations:
    """The kernel on the same rows in another order."""
    case, contract = run.case, run.kernel.contract
    if not has_rows(case):
        return None
    order = np.random.Generator(np.random.Philox(key=[case.spec.seed, 0xC0FFEE])).permutation(case.spec.shape[0])
    other, found = rerun(run, taken(case, order)), []
    extents = {tensor.name: tensor.extent for tensor in case.op.outputs}
    by_row = contract.batch_invariant and case.op.view != "channels"
    for name, left, right in pairs(run, other):
        expected, dy = case.expected[name], case.exact.get("dy")
        assert expected is not None
        rows = extents[name] == "data" or (extents[name] == "statistic" and case.op.view != "channels")
        tolerance = 2 * judge.allowed(expected)
        if rows:
            first = left.reshape(case.spec.shape[0], -1)[order].reshape(left.shape)
            tolerance = tolerance.reshape(case.spec.shape[0], -1)[order].reshape(left.shape)
            known = judged(run, name, np.zeros(())).reshape(case.spec.shape[0], -1)[order].reshape(left.shape)
            tolerance = np.where(np.isfinite(known), 0.0 if by_row else tolerance, np.inf)
        else:
            first = left
            if by_row and extents[name] == "one":
                tolerance = np.zeros(left.shape)  # a maximum rounds nothing
            elif by_row and dy is not None:  # the terms are the same bits, in another order
                s = stages(run)
                apart = gradient_apart(s, name, *cotangent(s, dy), None).reshape(left.shape)
                tolerance = 2 * apart + half_ulps(run, name, np.abs(left) + apart, np.abs(right) + apart)
            tolerance = judged(run, name, tolerance)
        found.append(Equation("its rows in another order are to give it in that order", name, first, right, tolerance))
    return found


FORWARD: tuple[Callable[[Run], Equations], ...] = (scale, shift, permutation)
BACKWARD: tuple[Callable[[Run], Equations], ...] = (scale, scale_dy, linearity, shift, permutation)


def _looks(run: Run) -> bool:
    spec = run.case.spec
    if run.problem is not None or spec.special is not None or not 0 < prod(spec.shape) <= ELEMENTS:
        return False
    dx = run.outputs.get("dx")
    return own_statistics(run.case) and (spec.seed % 2 == 0 or (dx is not None and dx.ratio is not None))


@check(looks=_looks)
def identities(run: Run) -> Iterator[Finding]:
    """Σdx and Σdx·x̂ are what they must be, and results follow a scale, a shift and an order of rows exactly.

    The sums need no further run, and are looked at in every case that has a dx: Σdx = 0 where there is a mean, and
    Σdx·x̂ = r·c1·N·eps/(var + eps), c1 = mean(g·x̂), since Σx̂² = N·var/(var + eps); for RMSNorm mean x² stands for
    var. What a fused addition passes on is added to both. Of the others one a case is tried, and in every other case:
    a power-of-two scale of x and eps, or of dy; linearity in dy; a shift of x; the order of rows. BatchNorm's
    evaluation is left out, for it is no more than a multiplication.
    """
    with np.errstate(all="ignore"):
        try:
            equations = [*_sums(run), *_chosen(run)]
        except NearbyError as error:
            if str(error):
                yield finding(run, "identities", None, f"it fails on a case near by: {error}", status="error")
            return
    worst: dict[str, Equation] = {}
    for e in equations:
        if e.ratio.max(initial=0.0) > 1 and (e.output not in worst or e.ratio.max() > worst[e.output].ratio.max()):
            worst[e.output] = e
    for e in worst.values():
        yield _found(run, e)


def _chosen(run: Run) -> list[Equation]:
    """The identity that the seed names, or the next one that has something to say of this case."""
    seed, backward = run.case.spec.seed, "dy" in run.case.exact
    if seed % 2:
        return []
    laws = BACKWARD if backward else FORWARD
    turn = (seed // 2 + seed // 6) % len(laws)  # seed // 6: the corner table's types go round with the seed, by three
    found = (law(run) for law in (*laws[turn:], *laws[:turn]))
    return next((equations for equations in found if equations is not None), [])


def _sums(run: Run) -> Iterator[Equation]:
    output, expected, dy = run.outputs.get("dx"), run.case.expected.get("dx"), run.case.exact.get("dy")
    if output is None or output.ratio is None or expected is None or dy is None:
        return
    s, passed = stages(run), run.case.exact.get("dresidual_out")
    shape, axes = s.view.shape, s.view.axes
    dx, delta = output.got.reshape(shape), expected.delta.reshape(shape)
    passed = None if passed is None else passed.reshape(shape)
    half = 0.5 * FORMATS[expected.dtype].ulp(np.abs(expected.value) + expected.delta).reshape(shape)
    dy, lost = cotangent(s, dy)
    g = dy.reshape(shape) * (1.0 if s.weight is None else s.weight)
    c1 = (g * s.xhat).mean(axes, keepdims=True)
    along = s.rstd * c1 * s.view.count * run.case.spec.eps * s.rstd * s.rstd
    laws = [("Σdx·x̂ is to be r·c1·N·eps/(var + eps)", s.xhat, along)]
    if s.centred:
        laws.append(("Σdx is to be 0", np.ones(shape), np.zeros_like(along)))
    known = np.isfinite(judged(run, "dx", np.zeros(()))).reshape(shape).all(axes, keepdims=True)
    for words, phi, want in laws:
        terms = np.abs(phi) * s.rstd * (np.abs(g) + np.abs(s.xhat * c1) + np.abs(g).mean(axes, keepdims=True))
        if passed is not None:
            want = want + (phi * passed).sum(axes, keepdims=True)
            terms = terms + np.abs(phi * passed)
        crumbs = 4 * s.view.count * FORMATS["float64"].u * terms.sum(axes, keepdims=True)  # float64's own
        crumbs = crumbs + (np.abs(dx) * _float64_xhat(s.xhat, s.rstd, run)).sum(axes, keepdims=True)
        tolerance = (
            sum_error(s, dy, passed, delta, phi, lost=lost) + (np.abs(phi) * half).sum(axes, keepdims=True) + crumbs
        )
        left = (phi * dx).sum(axes, keepdims=True)
        yield Equation(words, "dx", left.ravel(), want.ravel(), np.where(known, tolerance, np.inf).ravel())


def _float64_xhat(xhat: Array, rstd: Array, run: Run) -> Array:
    """What float64 may have lost of x̂ itself, where x is far from 0."""
    x = run.case.exact.get("residual_out", run.case.exact.get("x"))
    assert x is not None
    return 4 * FORMATS["float64"].u * (np.abs(xhat) + rstd * float(np.abs(x).max(initial=0.0)))


def _found(run: Run, e: Equation) -> Finding:
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(e.ratio)), e.ratio.shape))
    got, want, allowed = float(e.left[index]), float(e.right[index]), float(e.tolerance[index])
    place = f"row {index[0]}" if e.identity.startswith("Σ") else f"{e.output}[{', '.join(map(str, index))}]"
    message = (
        f"{e.output}: {e.identity}; at {place} the two sides are {got:.9g} and {want:.9g}, "
        f"{abs(got - want):.3g} apart, {allowed:.3g} allowed; {int((e.ratio > 1).sum())} of {e.ratio.size} are off"
    )
    return replace(finding(run, "identities", e.output, message), index=index, got=got, want=want, allowed=allowed)
