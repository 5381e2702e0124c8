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
    found: dict[str, Equation] = {}
    equations = list(_equations(run))
    if not any(isinstance(one, Finding) or np.isfinite(one.tolerance).any() for one in equations):
        yield NoData()
    for one in equations:
        if isinstance(one, Finding):
            yield one
        elif one.ratio.max(initial=0.0) > 1:
            found[one.output] = max(found.get(one.output, one), one, key=lambda e: float(e.ratio.max()))
    for e in found.values():
        yield _found(run, e)


def _equations(run: Run) -> Iterator[Equation | Finding]:
    """Yield the sums; every law that the case names; and where none of these applies, the first other one that does."""
    yield from _sums(run)
    named, applied = further_runs.laws(run.case.spec), False
    first = list(LAWS).index(named[-1]) if named else 0
    others = [law for law in (*list(LAWS)[first:], *list(LAWS)[:first]) if law not in named] if named else []
    for law in (*named, *others):
        if applied and law not in named:
            return
        if law in ("scale_dy", "linearity") and "dy" not in run.case.exact:
            continue
        try:
            equations = LAWS[law](run)
        except NearbyError as error:
            if str(error):
                message = f"the kernel fails on a case near this one ({law}): {error}"
                yield finding(run, "identities", None, message, status="error")
            applied = applied or bool(str(error))
            continue
        applied = applied or equations is not None
        yield from equations or ()


def _sums(run: Run) -> Iterator[Equation]:
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
    laws = [
        (
            f"Σ{dh}·x̂ = r·c1·N·eps/(var + eps)",
            n.xhat,
            n.rstd * c1 * count * run.case.spec.eps * n.saved_rstd * n.saved_rstd,
        )
    ]
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


def _found(run: Run, e: Equation) -> Finding:
    index = worst(e.ratio)
    got, want, allowed = float(e.left[index]), float(e.right[index]), float(e.tolerance[index])
    place = f"{e.output} of row {index[0]}" if e.name.startswith("Σ") else element(e.output, index)
    off, most = told_apart(abs(got - want), allowed)
    message = (
        f"{place}: expected {want:.9g}, got {got:.9g}, {off} apart, {most} allowed: "
        f"{e.name}; {int((e.ratio > 1).sum())} of {e.ratio.size} are off"
    )
    return finding(run, "identities", e.output, message, index=index, got=got, want=want, allowed=allowed)
