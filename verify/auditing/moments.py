"""Sums of errors over many elements, and how large they may be: what an average tells that no maximum does.

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
every row), what the roundings of the exact x̂ and w·dy add up to is allowed besides. (The roundings of rstd to a narrow
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

from verify_norm import data, judge, ops
from verify_norm.dtypes import FORMATS, Array
from verify_norm.reference import rounding
from verify_norm.spec import CaseSpec, Expected, Op, Output, Run
from verify_norm.stages import (
    Stages,
    dbias_apart,
    dweight_apart,
    own_statistics,
    projection,
    stages,
    sum_error,
    y_apart,
)  # fmt: skip

ALPHA = 1e-9  # probability of a false alarm, of each sum
L = log(2 / ALPHA)
GRID = 4096  # parts of an ulp
FAMILIES = ("normal", "heavy", "channel")  # random ones
SHORTEST = 16  # elements normalized together: fewer leave x̂ few values, as ±1 of two


@dataclass(frozen=True, slots=True)
class Moments:
    """Sums over the elements of one output, in ulp, that can be added up over cases.

    Parameters
    ----------
    count : elements that entered.
    weight : Σω.
    size : Σω|want|/ulp: what a relative error of all elements is multiplied by.
    signed : Σω·sgn(want)·(got − round(want))/ulp.
    systematic : the part of |signed| that may have one sign.
    averaging : Σc² of what averages out.
    rounding : variance of the last roundings.
    alike : the most that elements of one value count.
    excess : Σω(|got − want| − |round(want) − want|)/ulp.
    explained : its mean, at most.
    spread : variance of its last roundings, or of what they may come to.
    partial : ΣV of narrow partial sums.
    largest : the most that one element may gain.
    """

    output: str
    dtype: str
    count: int = 0
    weight: float = 0.0
    size: float = 0.0
    signed: float = 0.0
    systematic: float = 0.0
    averaging: float = 0.0
    rounding: float = 0.0
    alike: float = 0.0
    excess: float = 0.0
    explained: float = 0.0
    spread: float = 0.0
    partial: float = 0.0
    largest: float = 0.0

    @property
    def bias_allowed(self) -> float:
        """The largest |signed| that a kernel of this contract has."""
        return self.systematic + sqrt(2 * L * self.averaging) + bernstein(self.rounding, self.alike)

    @property
    def excess_allowed(self) -> float:
        """The largest excess."""
        return self.explained + sqrt(8 * L * self.partial) + bernstein(self.spread, self.largest)

    def merge(self, other: Moments) -> Moments:
        """Both sets of elements together."""
        sums: dict[str, Any] = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)[2:]}
        most = {"alike": max(self.alike, other.alike), "largest": max(self.largest, other.largest)}
        return replace(self, **(sums | most))


def bernstein(variance: float, largest: float) -> float:
    """What a sum of independent terms of mean 0, none above `largest`, exceeds with a probability below α.

    >>> round(bernstein(100.0, 1.0), 1), bernstein(0.0, 0.0)
    (73.0, 0.0)
    """
    third = L * largest / 3
    return third + sqrt(third * third + 2 * L * variance)


def random(spec: CaseSpec, op: Op) -> bool:
    """Whether the data of a case are such that errors have no common cause but the kernel."""
    layouts = {data.layout_of(spec, tensor.name) for tensor in op.inputs if tensor.extent == "data"}
    plain = spec.data in FAMILIES and spec.special is None and spec.eps > 0 and prod(spec.shape) > 0
    return plain and not layouts & {"expanded", "scalar"} and data.row_length(spec, op) >= SHORTEST


@np.errstate(all="ignore")
def moments(run: Run) -> dict[str, Moments]:
    """Of every output of a run that is not a statistic, and has something to add up.

    Outputs with an element beyond its own bound are left out: `accuracy` says as much. So are elements that may
    overflow or be subnormal.
    """
    found: dict[str, Moments] = {}
    if run.problem is not None or not random(run.case.spec, run.case.op) or not own_statistics(run.case):
        return found
    plain = replace(run, kernel=replace(run.kernel, contract=replace(run.kernel.contract, xhat=None)))
    known = stages(plain)
    for tensor in run.case.op.outputs:
        output, expected = run.outputs.get(tensor.name), run.case.expected.get(tensor.name)
        usual = tensor.extent in ("data", "affine") and not tensor.name.startswith("running_")
        if not usual or output is None or expected is None or output.ratio is None or output.ratio.max(initial=0) > 1:
            continue
        if output.dtype == expected.dtype:
            one = _of(run, known, tensor.name, output, expected)
            if one is not None:
                found[tensor.name] = one
    return found


def _of(run: Run, s: Stages, name: str, output: Output, expected: Expected) -> Moments | None:
    """One output's; None where nothing is left, or the truth is not like random numbers."""
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
    usual = form.ulp(np.sqrt(np.mean(np.square(want[keep]))))
    omega = np.where(keep, unit / np.maximum(unit, usual), 0.0)
    phi = omega * np.sign(want) / unit
    systematic, averaging = _together(run, s, name, phi, expected)
    partial = _partial(run, s, name, want.shape) / (unit * unit)
    least = np.minimum(delta, _without(run, s, name, want.shape) / unit) if partial.any() else delta
    mean = (least + np.sqrt(partial))[keep]
    explained = np.where(partial[keep] > 0, mean, np.minimum(mean * mean, mean))
    value = np.unique(size[keep], return_inverse=True)[1].ravel()
    times = np.bincount(value)[value]
    partial, delta, omega, gain = (
        partial[keep],
        delta[keep],
        omega[keep],
        (np.abs(output.got - want) / unit - off)[keep],
    )
    most = 2 * np.minimum(delta, mean + 1)
    return Moments(
        name, expected.dtype, len(gain), float(omega.sum()), float((np.abs(phi * want)).sum()),
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
    )  # fmt: skip


def _together(run: Run, s: Stages, name: str, phi: Array, expected: Expected) -> tuple[float, float]:
    """What of Σφ·(error) may have one sign, and Σc² of what averages out; inf where only Σ|φ|δ is known."""
    case, view, axes = run.case, s.view, s.view.axes
    dy, a = case.exact.get("dy"), s.arithmetic
    promised = ops.arithmetic(run.kernel.contract, case.spec.dtype)
    least = promised.narrow_tiny if promised.xhat_u else 0.0  # what a rounding loses of a subnormal
    rounded = promised.xhat_u * s.largest + least  # of x̂
    kept = run.kernel.contract.xhat
    form = FORMATS[case.spec.dtype if kept == "x" else kept] if kept is not None and promised.xhat_u else None

    def lost(values: Array) -> Array:
        return np.zeros(values.shape) if form is None else form.round(values) - values

    weight = 1.0 if s.weight is None else s.weight
    if case.exact.get("residual") is not None or view.axes == view.shared or s.activation is not None:
        return np.inf, 0.0  # other sums: of a fused addition, BatchNorm; or bent

    def total(values: Array) -> Array:
        return np.asarray(np.broadcast_to(values, view.shape).sum(axes, keepdims=True))

    def coherent(along: Array, across: Array) -> Any:
        return (s.z.factor * np.abs(total(along)) + s.z.shift * np.abs(total(across))).sum()

    if name == "y":
        phi = phi.reshape(view.shape)
        alone = np.where(phi != 0, np.abs(phi) * y_apart(s, 0.0), 0.0)
        phi = phi if s.scale is None else phi * s.scale
        c = np.abs(phi * weight) * rounded
        alike = np.abs((phi * weight * lost(s.xhat)).sum())
        return float(coherent(phi * weight * s.xhat, phi * weight) + alone.sum() + alike), _grouped(c, s.xhat)
    assert dy is not None
    dy = dy.reshape(view.shape)
    if name == "dx":
        phi, passed = phi.reshape(view.shape), case.exact.get("dresidual_out")
        passed = None if passed is None else passed.reshape(view.shape)
        delta = np.where(phi != 0, expected.delta.reshape(view.shape), 0.0)
        rows = np.where(total(np.abs(phi)) > 0, sum_error(s, dy, passed, delta, phi), 0.0)
        p, n = projection(s, dy), view.count
        one, two = np.abs(total(phi)) / n, np.abs(total(phi * s.xhat)) / n
        c = rounded * (np.abs(phi * p.c1) + two * np.abs(p.g))
        c = c + (promised.xhat_u * np.abs(p.g) + least) * (np.abs(phi) + one + two * s.largest)
        mean, slope = total(phi) / n, total(phi * s.xhat) / n
        alike = np.abs((s.rstd * (phi * p.c1 + p.g * slope) * lost(s.xhat)).sum())
        alike = alike + np.abs((s.rstd * (phi - (mean if s.centred else 0.0) - s.xhat * slope) * lost(p.g)).sum())
        return float(rows.sum() + alike), _grouped(c * s.rstd * (1.0 + s.z.factor), s.xhat)
    phi = phi.reshape(view.affine)
    if name == "dweight":
        still = replace(s, arithmetic=replace(a, partials_u=0.0))
        alone = dweight_apart(still, dy, 0.0)
        c = np.abs(phi * dy) * rounded
        alike = np.abs((phi * dy * lost(s.xhat)).sum())
        return float(coherent(phi * dy * s.xhat, phi * dy) + (np.abs(phi) * alone).sum() + alike), _grouped(c, s.xhat)
    return float((np.abs(phi) * dbias_apart(replace(s, arithmetic=replace(a, partials_u=0.0)), dy)).sum()), 0.0


def _grouped(c: Array, xhat: Array) -> float:
    """Σc² where elements of one |x̂| are rounded alike."""
    if not c.any():
        return 0.0
    value = np.unique(np.abs(xhat), return_inverse=True)[1].ravel()
    return float(np.square(np.bincount(value, np.broadcast_to(c, xhat.shape).ravel())).sum())


def _partial(run: Run, s: Stages, name: str, shape: tuple[int, ...]) -> Array:
    """V of every element: 0 where partial sums are as wide as the rest."""
    u, dy = s.arithmetic.partials_u, run.case.exact.get("dy")
    if not u or dy is None or name not in ("dweight", "dbias"):
        return np.zeros(shape)
    terms = dy.reshape(s.view.shape) * (s.largest if name == "dweight" else 1.0)
    signed = dy.reshape(s.view.shape) * (s.xhat if name == "dweight" else 1.0)
    squares, shared = np.square(terms).sum(s.view.shared), s.view.shared
    floor = s.view.repeats * s.arithmetic.narrow_tiny**2
    return np.asarray(s.view.repeats * (u * u * (squares + np.square(signed.sum(shared))) + floor)).reshape(shape)


def _without(run: Run, s: Stages, name: str, shape: tuple[int, ...]) -> Array:
    """δ of dweight or dbias as if partial sums were wide."""
    contract = replace(run.kernel.contract, partials="float32")
    wide = stages(replace(run, kernel=replace(run.kernel, contract=contract)))
    dy = run.case.exact["dy"]
    assert dy is not None
    dy = dy.reshape(s.view.shape)
    if name == "dbias":
        return np.asarray(dbias_apart(wide, dy)).reshape(shape)
    return np.asarray(rounding.weight_error(dy, wide.xhat, wide.z, wide.view, wide.arithmetic)).reshape(shape)
