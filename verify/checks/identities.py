"""What holds of any normalization: sums that vanish, and covariance under scale, shift and order."""

from collections.abc import Iterator

import numpy as np

from verify_norm.cases import further_runs
from verify_norm.checks.check import check, finding
from verify_norm.checks.relations.equations import Equation, compared, judged
from verify_norm.checks.relations.rerun import NearbyError, small
from verify_norm.checks.relations.stages import cotangent, exact_input, own_statistics, stages, sum_error
from verify_norm.checks.relations.symmetries import LAWS
from verify_norm.core.case_words import told_apart
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.excess import element
from verify_norm.core.finding import Finding, NoData
from verify_norm.core.judge import worst
from verify_norm.core.run import Run


def _looks(run: Run) -> bool:
    dx = run.outputs.get(run.case.op.dh)
    looked = bool(further_runs.laws(run.case.spec)) or (dx is not None and dx.ratio is not None)
    return looked and small(run) and own_statistics(run.case)


@check(applies=lambda op: op.lawful, looks=_looks)
def identities(run: Run) -> Iterator[Finding | NoData]:
    """Σdx and Σdx·x̂ are what they must be, and results follow a scale, a shift and an order of rows exactly.

    The sums need no further run, so they are checked in every case that has a dx: Σdx = 0 where there is a mean, and
    Σdx·x̂ = r·c1·N·eps/(var + eps), c1 = mean(g·x̂), since Σx̂² = N·var/(var + eps); for RMSNorm mean x² stands for
    var. What a fused addition passes on is added to both; behind a dropout they hold of dresidual. The laws run the
    kernel near the case, so an ordinary case tries one of them: a power-of-two scale of x and eps, or of dy; linearity
    in dy; a shift of x; the order of rows. BatchNorm's evaluation is left out: it is a multiplication.
    """
    worst_of: dict[str, Equation] = {}
    items = list(_equations(run))
    if not any(isinstance(item, Finding) or np.isfinite(item.tolerance).any() for item in items):
        yield NoData()
    for item in items:
        if isinstance(item, Finding):
            yield item
        elif item.ratio.max(initial=0.0) > 1:
            before = worst_of.get(item.output)
            if before is None or item.ratio.max() > before.ratio.max():
                worst_of[item.output] = item
    for equation in worst_of.values():
        yield _found(run, equation)


def _equations(run: Run) -> Iterator[Equation | Finding]:
    """Yield the sums; every law that the case names; and where none of these applies, the first other one that does.

    A failure of the kernel on a case near this one is a finding, and counts as a law that applies.
    """
    yield from _sums(run)
    named = further_runs.laws(run.case.spec)
    if not named:
        return
    laws, applied = list(LAWS), False
    last = laws.index(named[-1])
    others = [law for law in (*laws[last:], *laws[:last]) if law not in named]
    for law in (*named, *others):
        if applied and law not in named:
            return
        if law in ("scale_dy", "linearity") and "dy" not in run.case.exact:
            continue
        try:
            equations = LAWS[law](run)
        except NearbyError as error:
            if str(error):
                applied = True
                message = f"the kernel fails on a case near this one ({law}): {error}"
                yield finding(run, "identities", None, message, status="error")
            continue
        if equations is not None:
            applied = True
            yield from equations


def _sums(run: Run) -> Iterator[Equation]:
    """Yield the sums of dx over each row or group, Σφ·dx with φ = x̂ and, where there is a mean, φ = 1."""
    dh = run.case.op.dh
    if dh not in compared(run) or run.case.op.before is not None:
        return
    output, expected = compared(run)[dh]
    s, passed = stages(run), run.case.exact.get("dresidual_out")
    n, shape, count, total = s.norm, s.norm.view.shape, s.norm.view.count, s.row_sum
    dx, delta = output.got.reshape(shape), expected.delta.reshape(shape)
    passed = None if passed is None else passed.reshape(shape)
    half = 0.5 * FORMATS[expected.dtype].ulp(np.abs(expected.value) + expected.delta).reshape(shape)
    dy, lost = cotangent(s, exact_input(run.case, "dy"))
    g = n.weighted(dy.reshape(shape))
    c1 = n.average(g * n.xhat)
    by_eps = n.rstd * c1 * count * run.case.spec.eps * n.saved_rstd * n.saved_rstd
    laws = [(f"Σ{dh}·x̂ = r·c1·N·eps/(var + eps)", n.xhat, by_eps)]
    if n.centred:
        laws.append((f"Σ{dh} = 0", np.ones(shape), np.zeros_like(c1)))
    known = np.isfinite(judged(run, dh, np.zeros(()))).reshape(shape).all(n.view.axes, keepdims=True)
    x = exact_input(run.case, "residual_out" if "residual_out" in run.case.exact else "x")
    u = 4 * FORMATS["float64"].u
    xhat_lost = u * (np.abs(n.xhat) + n.rstd * float(np.abs(x).max()))  # by float64, where x is far from 0
    for words, phi, want in laws:
        terms = np.abs(phi) * n.rstd * (np.abs(g) + np.abs(n.xhat * c1) + n.average(np.abs(g)))
        if passed is not None:
            want = want + total(phi * passed)
            terms = terms + np.abs(phi * passed)
        float64_error = u * count * total(terms) + total(np.abs(dx) * xhat_lost)
        tolerance = sum_error(s, dy, passed, delta, phi, lost=lost) + total(np.abs(phi) * half) + float64_error
        tolerance = np.where(known, tolerance, np.inf)
        yield Equation(words, dh, total(phi * dx).ravel(), want.ravel(), tolerance.ravel())


def _found(run: Run, equation: Equation) -> Finding:
    output, ratio, index = equation.output, equation.ratio, worst(equation.ratio)
    got, want, allowed = (float(v[index]) for v in (equation.left, equation.right, equation.tolerance))
    place = f"{output} of row {index[0]}" if equation.name.startswith("Σ") else element(output, index)
    off, most = told_apart(abs(got - want), allowed)
    message = (
        f"{place}: expected {want:.9g}, got {got:.9g}, {off} apart, {most} allowed: "
        f"{equation.name}; {int((ratio > 1).sum())} of {ratio.size} are off"
    )
    return finding(run, "identities", output, message, index=index, got=got, want=want, allowed=allowed)
