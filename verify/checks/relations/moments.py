"""Sums of errors over many elements, and how large they may be: an average shows what no maximum does.

Let ε be the error of one element, in ulp of its truth, before its last rounding; the error bound says |ε| ≤ δ. The
reference is known in float64, and so is its own rounding, so nothing is assumed of that: errors are counted beyond it.
Elements count by ω = ulp/max(ulp, ulp of the output's root mean square), so that small ones, whose ulp is small beside
what their row shares, do not drown the rest.

**Bias.** T = Σ φ·(got − round(want)), φ = ω·sgn(want)/ulp, has the mean Σ ω·sgn·ε where the fraction of want in its
ulp is uniform. The analysis of `verify_norm.reference.rounding` tells what of ε a row shares, its factor ρ' and its
shift S, and what each element has alone, e. A row's share meets sums of φ, in which signs cancel, and not sums of |φ|:

    y        |ET| ≤ Σ rows ρ|Σφ·w·x̂| + S|Σφ·w|  +  Σ|φ|·e
    dx       `stages.sum_error`, with this φ
    dweight  |ET| ≤ Σ rows ρ|Σφ·dy·x̂| + S|Σφ·dy|  +  Σ|φ|·e

S is large where x is far from 0, and cancels: a wrong scale, which does not, shows where the bound of each element
hides it. Elsewhere the systematic part is Σ|φ|δ.

**What averages out.** Where the contract rounds x̂ to a narrow type, the roundings of the elements have no common sign:
by Hoeffding's inequality a sum of terms within ±c exceeds √(2L·Σc²) with a probability below α, L = ln(2/α). Equal x̂
are rounded alike, and count as one term; and since nearly equal ones are too (the large channel's x̂ is nearly √N in
every row), what the roundings of the exact x̂ and w·dy add up to is allowed besides. In y that includes the last
rounding: of a product of two narrow numbers the fraction in its ulp is not uniform. (The roundings of rstd to a narrow
type are not like that: rows of one distribution have nearly one rstd. They stay in ρ.) Narrow partial sums of dweight
and dbias: the roundings of s_k = Σ_{i≤k} t_i are martingale differences within ±u|s_k|, by Azuma's inequality as good
as independent. In a random order the mean of s_k² is below k/R·Σt² + (k/R)²·s_R², so that of Σs_k² about
R·(Σt²/2 + s_R²/3); V = u²R·(Σt² + s_R²) is about twice that, where the bound of each element takes u²R²·(Σ|t|)².

The last rounding makes of ε a whole number of ulps with that mean, a variance of at most min(δ, ¼), and within 1 of it:
Bernstein's inequality (Boucheron, Lugosi & Massart, Concentration Inequalities, 2013, section 2.8) allows
L·m/3 + √((L·m/3)² + 2L·v) more, with m the most elements of one value.

That the fraction is uniform is tested on the truth: no more elements may lie within δ of a tie than 2δ each and
Bernstein explain; what lies on a grid of 1/4096 ulp is left out, for it is exact.

**Mean.** excess = Σ (|got − want| − |round(want) − want|)/ulp ≥ 0. An element that is rounded otherwise than the truth
was within |ε| of a tie, so it gains at most 2|ε|, and in the mean over the fraction min(ε², |ε|). With |ε| ≤ δ, or for
narrow partial sums E|ε| ≤ δ without them + √V, and √(8L·ΣV) for the deviation of the sum of |ε|.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import log, prod, sqrt
from typing import Any

import numpy as np

from verify_norm.checks.relations import stages
from verify_norm.checks.relations.equations import arithmetic_of, compared
from verify_norm.core import geometry, judge
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.finding import SIGNS
from verify_norm.core.layouts import layout_of
from verify_norm.core.run import Case, Expected, Output, Run
from verify_norm.core.spec import SHARED
from verify_norm.reference import rounding

ALPHA = 1e-9  # probability of a false alarm, of each sum
L = log(2 / ALPHA)
GRID = 4096  # parts of an ulp
FAMILIES = ("normal", "heavy", "channel")  # random ones
SHORTEST = 16  # elements normalized together: fewer leave x̂ few values, as ±1 of two


@dataclass(frozen=True, slots=True)
class Moments:
    """Sums over the elements of one output, in ulp, that can be added up over cases."""

    output: str
    dtype: str
    count: int = 0  # elements that entered
    weight: float = 0.0  # Σω
    size: float = 0.0  # Σω|want|/ulp: what a relative error of all elements is multiplied by
    signed: float = 0.0  # Σω·sgn(want)·(got − round(want))/ulp
    systematic: float = 0.0  # the part of |signed| that may have one sign
    averaging: float = 0.0  # Σc² of what averages out
    rounding: float = 0.0  # variance of the last roundings
    alike: float = 0.0  # the most that elements of one value count
    excess: float = 0.0  # Σω(|got − want| − |round(want) − want|)/ulp
    explained: float = 0.0  # its mean, at most
    spread: float = 0.0  # variance of its last roundings, or of what they may come to
    partial: float = 0.0  # ΣV of narrow partial sums
    largest: float = 0.0  # the most that one element may gain
    smallest: tuple[float, ...] = (np.inf,) * len(SIGNS)  # the e of a factor 1 + sign·e that shows in either sum

    @property
    def bias_allowed(self) -> float:
        """The largest |signed| that a kernel of this contract has."""
        return self.systematic + sqrt(2 * L * self.averaging) + bernstein(self.rounding, self.alike)

    @property
    def excess_allowed(self) -> float:
        """The largest excess."""
        return self.explained + sqrt(8 * L * self.partial) + bernstein(self.spread, self.largest)

    def merge(self, other: Moments) -> Moments:
        """Return the sums over both sets of elements."""
        sums: dict[str, Any] = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)[2:-1]}
        most = {"alike": max(self.alike, other.alike), "largest": max(self.largest, other.largest)}
        return replace(self, **(sums | most), smallest=tuple(map(min, self.smallest, other.smallest)))


def bernstein(variance: float, largest: float) -> float:
    """Return what a sum of independent terms of mean 0, none above `largest`, exceeds with a probability below α.

    >>> round(bernstein(100.0, 1.0), 1), bernstein(0.0, 0.0)
    (73.0, 0.0)
    """
    third = L * largest / 3
    return third + sqrt(third * third + 2 * L * variance)


def random(case: Case) -> bool:
    """Return whether errors in the data of a case have no common cause except the kernel."""
    return independent(case) and geometry.row_length(case.spec, case.op) >= SHORTEST


def independent(case: Case) -> bool:
    """Return whether the data of a case with its own statistics are random numbers, finite, and none is repeated."""
    spec, op = case.spec, case.op
    layouts = {layout_of(spec, tensor.name) for tensor in op.inputs if tensor.extent == "data"}
    plain = (
        spec.data in FAMILIES and spec.dy_data == "random" and spec.special is None and spec.eps > 0 and not spec.alias
    )
    return plain and prod(spec.shape) > 0 and not layouts & SHARED and stages.own_statistics(case)


@np.errstate(all="ignore")
def moments(run: Run) -> dict[str, Moments]:
    """Return the sums of every output of a run that is no statistic and has elements to add up.

    Outputs that are not finite are left out, since other checks report them. So are elements that may overflow or be
    subnormal.
    """
    sums_of: dict[str, Moments] = {}
    if run.problem is not None or not random(run.case):
        return sums_of
    known, outputs = stages.stages(_under(run, xhat=None)), compared(run)
    added = [
        t.name for t in run.case.op.outputs if t.extent in ("data", "affine") and not t.name.startswith("running_")
    ]
    for name in (name for name in added if name in outputs):
        output, expected = outputs[name]
        if output.dtype != expected.dtype or not np.isfinite(output.got).all():
            continue
        sums = _of(run, known, name, output, expected)
        if sums is not None:
            sums_of[name] = sums
    return sums_of


def _of(run: Run, s: stages.Stages, name: str, output: Output, expected: Expected) -> Moments | None:
    """Return one output's sums; None where nothing is left, or the truth is not like random numbers."""
    form, want = FORMATS[expected.dtype], expected.value
    size, unit = np.abs(want), form.ulp(want)
    delta = expected.delta / unit
    keep = judge.judged(expected) & (size > 4 * form.smallest_normal) & (size + expected.delta < form.largest / 4)
    keep &= np.rint(want / unit * GRID) != want / unit * GRID
    if not keep.any():
        return None
    nearest = form.round(want)
    off = np.abs(nearest - want) / unit
    near, expects = np.count_nonzero(keep & (0.5 - off <= delta)), np.minimum(2 * delta, 1.0)[keep]
    if near > expects.sum() + bernstein(float(expects.sum()), 1.0):
        return None
    typical = form.ulp(np.sqrt(np.mean(np.square(want[keep]))))
    omega = np.where(keep, unit / np.maximum(unit, typical), 0.0)
    phi = omega * np.sign(want) / unit
    systematic, averaging = _together(run, s, name, phi, expected)
    partial = _partial(run, s, name, want.shape) / (unit * unit)
    least = np.minimum(delta, _without(run, name, want.shape) / unit) if partial.any() else delta
    mean = (least + np.sqrt(partial))[keep]
    explained = np.where(partial[keep] > 0, mean, np.minimum(mean * mean, mean))
    value = np.unique(size[keep], return_inverse=True)[1].ravel()
    times = np.bincount(value)[value]
    gain = (np.abs(output.got - want) / unit - off)[keep]
    partial, delta, omega = partial[keep], delta[keep], omega[keep]
    most = 2 * np.minimum(delta, mean + 1)
    sums = Moments(
        name,
        expected.dtype,
        count=len(gain),
        weight=float(omega.sum()),
        size=float((np.abs(phi * want)).sum()),
        signed=float((phi * (output.got - nearest)).sum()),
        systematic=float(min(systematic, (omega * delta).sum())),
        averaging=averaging + float((omega * omega * partial).sum()),
        rounding=float((times * omega * omega * np.minimum(delta, 0.25)).sum()),
        alike=float((times * omega).max()),
        excess=float((omega * gain).sum()),
        explained=float((omega * explained).sum()),
        spread=float((times * omega * omega * most * explained).sum()),
        partial=float((omega * omega * partial).sum()),
        largest=float((times * omega * most).max()),
    )
    placed = ((np.abs(nearest) - size) / unit)[keep]
    return replace(sums, smallest=tuple(_smallest(sums, sign, placed, (size / unit)[keep], omega) for sign in SIGNS))


def _smallest(sums: Moments, sign: int, placed: Array, size: Array, omega: Array) -> float:
    """Return the e of a factor 1 + sign·e on all elements that would have shown in one of the sums.

    `size` is |want| in ulp, `placed` where its rounding lies beside it. While the factor moves elements by less than
    an ulp, each is rounded to the next number beyond its tie, in turn. That adds ω to the bias and ω·gain to the
    excess. Where elements move farther, the bias grows by e·Σω·size.
    """
    tie = 0.5 + sign * placed
    order = np.argsort(tie / size)
    biased = sign * sums.signed + np.cumsum(omega[order]) > sums.bias_allowed
    off = sums.excess + np.cumsum((omega * np.minimum(2 * tie, 1.0))[order]) > sums.excess_allowed
    shown = np.flatnonzero(biased | off)
    rounded = float((tie / size)[order][shown[0]]) if len(shown) else np.inf
    return min(rounded, max((sums.bias_allowed - sign * sums.signed) / sums.size, sums.weight / sums.size))


def _together(run: Run, s: stages.Stages, name: str, phi: Array, expected: Expected) -> tuple[float, float]:
    """Return how much of Σφ·(error) may have one sign, inf where only Σ|φ|δ is known, and Σc² of what averages out."""
    case, n, view = run.case, s.norm, s.norm.view
    dropped = name == "dx" and case.op.dropout is not None  # a product with a factor that is rounded once
    if case.exact.get("residual") is not None or view.axes == view.shared or s.stages or dropped:
        return np.inf, 0.0  # other sums: of a fused addition, BatchNorm; or bent
    dy, phi = case.exact.get("dy"), phi.reshape(view.shape if name in ("y", case.op.dh) else view.affine)
    dy = np.zeros(view.shape) if dy is None else dy.reshape(view.shape)
    still = replace(s, arithmetic=replace(s.arithmetic, partials_u=0.0))
    if name == "dbias":
        return float((np.abs(phi) * stages.gradient_apart(still, name, dy)).sum()), 0.0
    promised, kept = arithmetic_of(run), run.kernel.contract.xhat
    least = promised.narrow_tiny if promised.xhat_u else 0.0  # what a rounding loses of a subnormal
    rounded = promised.xhat_u * s.largest + least  # of x̂
    form = FORMATS[case.spec.dtype if kept == "x" else kept] if kept is not None and promised.xhat_u else None

    def lost(values: Array) -> Array:
        return np.zeros(values.shape) if form is None else form.round(values) - values

    if name == case.op.dh:
        passed = case.exact.get("dresidual_out")
        passed = None if passed is None else passed.reshape(view.shape)
        delta = np.where(phi != 0, expected.delta.reshape(view.shape), 0.0)
        rows = np.where(s.row_sum(np.abs(phi)) > 0, stages.sum_error(s, dy, passed, delta, phi), 0.0)
        p, mean, slope = n.gradient(dy), s.row_sum(phi) / view.count, s.row_sum(phi * n.xhat) / view.count
        one, two = np.abs(mean), np.abs(slope)
        c = rounded * (np.abs(phi * p.c1) + two * np.abs(p.g))
        c = c + (promised.xhat_u * np.abs(p.g) + least) * (np.abs(phi) + one + two * s.largest)
        alike = np.abs((n.rstd * (phi * p.c1 + p.g * slope) * lost(n.xhat)).sum())
        alike = alike + np.abs((n.rstd * (phi - (mean if n.centred else 0.0) - n.xhat * slope) * lost(p.g)).sum())
        return float(rows.sum() + alike), _grouped(c * n.rstd * (1.0 + s.z.factor), n.xhat)
    if name == "y":
        alone = np.where(phi != 0, np.abs(phi) * stages.y_apart(s, 0.0), 0.0)
        along = n.weighted(phi if s.scale is None else phi * s.scale)
        y = n.weighted(n.xhat + lost(n.xhat)) + (0.0 if n.bias is None else n.bias)
        y, last = y if s.scale is None else y * s.scale, FORMATS[expected.dtype]
        exact = expected.value.reshape(view.shape)
        alike = np.abs(np.where(phi != 0, phi * (last.round(y) - last.round(exact)), 0.0).sum()) if form else 0.0
    else:
        alone, along = np.abs(phi) * stages.gradient_apart(still, name, dy), phi * dy
        alike = np.abs((along * lost(n.xhat)).sum())
    rows = s.z.factor * np.abs(s.row_sum(along * n.xhat)) + s.z.shift * np.abs(s.row_sum(along))
    return float(rows.sum() + alone.sum() + alike), _grouped(np.abs(along) * rounded, n.xhat)


def _grouped(c: Array, xhat: Array) -> float:
    """Return Σc² where elements of one |x̂| are rounded alike."""
    if not c.any():
        return 0.0
    value = np.unique(np.abs(xhat), return_inverse=True)[1].ravel()
    return float(np.square(np.bincount(value, np.broadcast_to(c, xhat.shape).ravel())).sum())


def _partial(run: Run, s: stages.Stages, name: str, shape: tuple[int, ...]) -> Array:
    """Return V of every element: 0 where partial sums are as wide as the rest."""
    u, dy, view = s.arithmetic.partials_u, run.case.exact.get("dy"), s.norm.view
    if not u or dy is None or name not in ("dweight", "dbias"):
        return np.zeros(shape)
    dy = dy.reshape(view.shape)
    terms, signed = (dy * s.largest, dy * s.norm.xhat) if name == "dweight" else (dy, dy)
    squares, floor = np.square(terms).sum(view.shared), view.repeats * s.arithmetic.narrow_tiny**2
    variance: Array = view.repeats * (u * u * (squares + np.square(signed.sum(view.shared))) + floor)
    return variance.reshape(shape)


def _without(run: Run, name: str, shape: tuple[int, ...]) -> Array:
    """Return δ of dweight or dbias as if partial sums were wide."""
    s, dy = stages.stages(_under(run, partials="float32")), stages.exact_input(run.case, "dy")
    if name == "dbias":
        return stages.gradient_apart(s, name, dy).reshape(shape)
    return rounding.weight_error(s.norm, dy.reshape(s.norm.view.shape), s.z, s.arithmetic).reshape(shape)


def _under(run: Run, **changed: Any) -> Run:
    """Return the run as if its kernel had another contract."""
    return replace(run, kernel=replace(run.kernel, contract=replace(run.kernel.contract, **changed)))
