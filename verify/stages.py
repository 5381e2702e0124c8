"""The stages of the rounding analysis at one case: what a row shares, and what each element is rounded by on its own.

`verify_norm.reference.rounding` bounds how far a kernel is from the truth. Two runs of one kernel may have much in
common, though: where only dy differs, mean, rstd and every x̂' are the same bits, and what these are off by drops out.
With r' = r(1 + ρ'), x̂' = x̂(1 + ρ') + s + e (s and ρ' of the row, e of the element), let `factor` be what of ρ' two
runs may not share: 0, or γ(5) for a reciprocal root that is taken anew of a scaled number. Each run is then within the
analysis with no shift and that factor of what exact operations would make of the common bits. The functions below give
that distance; magnitudes are those of x̂', hence up to (1 + ρ)|x̂| + S.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from verify_norm import data, ops
from verify_norm.dtypes import FORMATS, Array
from verify_norm.reference import batchnorm, layernorm, rmsnorm, rounding
from verify_norm.reference.activation import ACTIVATIONS, Activation, nearby, pulled
from verify_norm.reference.addnorm import nearest
from verify_norm.reference.quantized import product_error
from verify_norm.reference.rounding import Arithmetic, XhatError
from verify_norm.reference.view import View, groups, rows
from verify_norm.spec import Case, Run


@dataclass(frozen=True, slots=True)
class Stages:
    """The exact statistics of one case and their errors, in the shape of `view`."""

    view: View
    arithmetic: Arithmetic
    centred: bool
    rstd: Array
    xhat: Array
    largest: Array  # of |x̂'|
    z: XhatError
    weight: Array | None  # what x̂ is multiplied by, with the offset
    bias: Array | None
    offset: bool
    activation: Activation | None = None
    scale: Array | None = None  # what y is multiplied by after all, where it is quantized

    @property
    def before(self) -> Array:
        """What the activation is applied to, w·x̂ + b."""
        product = self.xhat if self.weight is None else self.weight * self.xhat
        return np.asarray(product if self.bias is None else product + self.bias)

    @property
    def before_error(self) -> Array:
        """How far a kernel may be from it."""
        return rounding.affine_error(self.before, self.xhat, self.rstd, self.weight, self.bias, self.z, self.view,
                                     self.arithmetic, offset=self.offset)  # fmt: skip

    @property
    def root(self) -> float:
        """γ(5): the roundings of eps, of the addition, and of an approximate reciprocal root."""
        return self.arithmetic.gamma(5)

    def common(self, factor: float) -> XhatError:
        """The error of x̂' where a row's shift is common to both runs, and its factor but for this."""
        return replace(self.z, shift=np.zeros_like(self.z.shift), factor=np.full_like(self.z.factor, factor))


class Projection(NamedTuple):
    """What dx consists of, for one dy: dx = r(g − c2 − x̂·c1); c2 is None where there is no mean."""

    g: Array
    c1: Array
    c2: Array | None
    dx: Array


def has_mean(case: Case) -> bool:
    """Whether what is normalized is centred by its own mean."""
    return any(t.name == "mean" for t in (*case.op.inputs, *case.op.outputs)) and own_statistics(case)


def own_statistics(case: Case) -> bool:
    """Whether x is normalized by its own statistics: not in BatchNorm's evaluation."""
    return case.op.view != "channels" or case.spec.training


def view_of(case: Case, x: Array) -> View:
    """How the case's data is seen."""
    if case.op.view == "rows":
        return rows(x, data.affine_shape(case.spec, case.op))
    if case.op.view == "groups":
        return groups(x, data.groups(case.spec, case.op))
    return batchnorm.channels(x, True)


def normalized(run: Run) -> Array:
    """What is normalized: x, or the sum of a fused addition as the contract keeps it."""
    exact = run.case.exact
    x, residual = exact.get("residual_out", exact.get("x")), exact.get("residual")
    assert x is not None
    if residual is None:
        return x
    if run.kernel.contract.residual == "rounded":
        return FORMATS[run.case.spec.dtype].round(x + residual)
    return nearest(x + residual, ops.arithmetic(run.kernel.contract, run.case.spec.dtype))


@np.errstate(all="ignore")
def stages(run: Run) -> Stages:
    """The statistics of a run's case that has its own, and what its kernel's contract says of their errors."""
    case, x = run.case, normalized(run)
    a, view = ops.arithmetic(run.kernel.contract, case.spec.dtype), view_of(case, x)
    offset = case.arguments.get("weight_offset", 0.0)
    weight, bias = view.weight(case.exact.get("weight")), view.weight(case.exact.get("bias"))
    weight = None if weight is None else weight + offset
    centred = has_mean(case)
    statistics: Any
    mean: Array | None
    if centred:
        statistics = layernorm.statistics(view, x, case.spec.eps)
        mean = statistics.mean
        dmean, rho = layernorm.statistics_error(view, x, statistics, a)
        dmean = rounding.saved(mean, dmean, a)
    else:
        statistics = rmsnorm.statistics(view, x, case.spec.eps)
        mean, dmean = None, np.zeros(())
        rho = rounding.rstd_error(*rounding.mean_square_error(statistics.square, view, a), statistics.rstd, a)
    rstd, xhat = statistics.rstd, statistics.xhat
    rho = rounding.saved(rstd, rstd * rho, a) / rstd
    if case.exact.get("residual") is not None:  # a kernel may keep more of the sum than it promises
        lost = FORMATS[case.spec.dtype].u * (np.abs(x) + np.abs(x).max(initial=0.0)).reshape(view.shape)
    else:
        lost = np.zeros(())
    z = rounding.xhat_error(x.reshape(view.shape), mean, dmean, xhat, rstd, rho, a)
    z = replace(z, shift=np.broadcast_to(z.shift, rstd.shape), magnitude=z.magnitude + 2 * rstd * lost)
    largest = np.abs(xhat) * (1.0 + rho) + z.shift + 2 * rstd * lost
    activation = None if case.op.activation is None else ACTIVATIONS[case.op.activation]
    scale = case.exact.get("scale")
    return Stages(view, a, centred, rstd, xhat, largest, z, weight, bias, offset != 0.0, activation, scale)


@np.errstate(all="ignore")
def cotangent(s: Stages, dy: Array) -> tuple[Array, Array | float]:
    """The gradient with respect to w·x̂ + b, and how far a kernel's may be off: dy itself where there is no activation.

    The second is a full bound, also of two runs that have all bits of w·x̂ + b in common.
    """
    if s.activation is None:
        return dy, 0.0
    return pulled(s.activation, dy.reshape(s.view.shape), s.before, s.before_error, s.arithmetic)


@np.errstate(all="ignore")
def projection(s: Stages, dy: Array) -> Projection:
    """The exact gradient with respect to what is normalized, and its parts."""
    g = dy.reshape(s.view.shape) * (1.0 if s.weight is None else s.weight)
    c1 = (g * s.xhat).mean(s.view.axes, keepdims=True)
    c2 = g.mean(s.view.axes, keepdims=True) if s.centred else None
    return Projection(g, c1, c2, s.rstd * (g - (0.0 if c2 is None else c2) - s.xhat * c1))


@np.errstate(all="ignore")
def y_apart(s: Stages, factor: float) -> Array:
    """How far y is from what exact operations make of the common bits, a scale included where it has one."""
    apart = z_apart(s, factor)
    if s.scale is None:
        return apart
    return product_error(
        apart, np.abs(s.before) + 2 * (0.0 if s.bias is None else np.abs(s.bias)), s.scale, s.arithmetic
    )


@np.errstate(all="ignore")
def z_apart(s: Stages, factor: float) -> Array:
    """The same of what a scale multiplies, whose largest magnitude is amax."""
    z, product = s.common(factor), s.largest * (1.0 if s.weight is None else np.abs(s.weight))
    most = product + (0.0 if s.bias is None else np.abs(s.bias))
    apart = rounding.affine_error(most, s.largest, s.rstd, s.weight, s.bias, z, s.view, s.arithmetic, offset=s.offset)
    if s.activation is None:
        return apart
    return s.activation.steepest * apart + nearby(s.activation.value_error, s.before, s.before_error, s.arithmetic)


@np.errstate(all="ignore")
def dx_apart(s: Stages, dy: Array, passed: Array | None, factor: float, *, lost: Array | float = 0.0) -> Array:
    """The same of dx; `passed` is what a fused addition adds to it, `lost` what dy is off by (`cotangent`)."""
    p, a = projection(s, dy), s.arithmetic
    c2 = 0.0 if p.c2 is None else np.abs(p.c2)
    c1 = np.abs(p.c1) * (1.0 + s.z.factor) + s.z.shift * c2
    terms = s.rstd * (1.0 + s.z.factor) * (np.abs(p.g) + c2 + s.largest * c1)
    delta = rounding.projection_error(p.g, c1, p.c2, terms, s.largest, s.rstd, s.weight, s.common(factor), s.view, a,
                                      offset=s.offset, lost=_weighted(s, lost))  # fmt: skip
    if passed is None:
        return delta
    return delta + a.gamma(1) * (terms + delta) + a.gamma(3) * np.abs(passed.reshape(delta.shape)) + 4 * a.tiny


@np.errstate(all="ignore")
def dweight_apart(s: Stages, dy: Array, factor: float, *, lost: Array | float = 0.0) -> Array:
    """The same of dweight, in the shape that the weight is seen in."""
    dy = dy.reshape(s.view.shape)
    return rounding.weight_error(dy, s.largest, s.common(factor), s.view, s.arithmetic, lost=lost)


@np.errstate(all="ignore")
def dbias_apart(s: Stages, dy: Array, *, lost: Array | float = 0.0) -> Array:
    """The same of dbias: all of its rounding, since it has nothing to do with x but through an activation."""
    return rounding.bias_error(dy.reshape(s.view.shape), s.view, s.arithmetic, lost=lost)


def _weighted(s: Stages, lost: Array | float) -> Array | float:
    """What g = w·dy is off by."""
    return lost if s.weight is None else lost * np.abs(s.weight)


@np.errstate(all="ignore")
def sum_error(
    s: Stages, dy: Array, passed: Array | None, delta: Array, phi: Array, *, lost: Array | float = 0.0
) -> Array:
    """How far Σφ·dx over what is normalized together may be off, before dx is rounded into its type.

    dx' = r'(g' − c2' − x̂'·c1'), with c1' = c1 + d1 and c2' = c2 + d2. All that is common to a row meets Σφ, all that
    is proportional to x̂ meets Σφ·x̂, a factor of the row meets Σφ·dx, and the roundings of elements alone Σ|φ|:

        |Σφ(dx' − dx)| ≤ ρ|Σφ·dx| + r(1 + ρ)·(|Σφ|·(δc2 + S·C1) + |Σφ·x̂|·(δc1 + ρ·C1) + Σ|φ|·e) + γ(3)·Σ|φ|(|dx| + δ)

        e = (ε + 2u(1 + ε))|g| + 2u(|c2| + δc2) + ((e_x̂ + 4u(1 + e_x̂))·m + floor)·C1      C1 = |c1| + δc1

    where ε is what g is rounded by, to which `lost` adds what dy is off by, and the stages are those of
    `rounding.projection_error`. With φ = 1 or φ = x̂ two of the three sums vanish, or nearly, so a mean that is off, or
    a c1, no longer excuses all elements.
    """
    p, a, z, axes = projection(s, dy), s.arithmetic, s.z, s.view.axes
    off = np.broadcast_to(_weighted(s, lost), p.g.shape)
    n, size, u = s.view.count, np.abs(p.g) + off, a.u
    eg = rounding.compound(a.gamma((s.weight is not None) + s.offset), a.xhat_u)
    floor = a.tiny + (a.narrow_tiny if a.xhat_u else 0.0)
    mean_g, mean_gm = size.mean(axes, keepdims=True), (size * z.magnitude).mean(axes, keepdims=True)
    floors = (1.0 + eg) * (z.floor * mean_g + floor * (1.0 + z.shift + z.factor) + 3 * a.tiny)
    floors = floors + (off * z.magnitude).mean(axes, keepdims=True)
    c2 = np.zeros_like(p.c1) if p.c2 is None else np.abs(p.c2)
    dc1 = rounding.compound(a.gamma(a.terms(n, products=True) + 2), z.unit, eg) * mean_gm + floors
    dc1 = dc1 + z.factor * np.abs(p.c1) + z.shift * c2
    dc2 = rounding.compound(a.gamma(a.terms(n, products=False) + 2), eg) * mean_g + floor + 3 * a.tiny
    dc2 = dc2 + off.mean(axes, keepdims=True)
    dc2 = dc2 if s.centred else np.zeros_like(dc2)
    most = np.abs(p.c1) + dc1
    e = size * (eg + 2 * u * (1.0 + eg)) + off + 2 * u * (c2 + dc2) + floor + 3 * a.tiny
    e = e + ((z.unit + 4 * u * (1.0 + z.unit)) * z.magnitude + z.floor) * most

    def total(values: Array) -> Array:
        return np.asarray(values.sum(axes, keepdims=True))

    inner = np.abs(total(phi)) * (dc2 + z.shift * most) + np.abs(total(phi * s.xhat)) * (dc1 + z.factor * most)
    bound = z.factor * np.abs(total(phi * p.dx)) + s.rstd * (1.0 + z.factor) * (inner + total(np.abs(phi) * e))
    bound = bound + a.gamma(3) * total(np.abs(phi) * (np.abs(p.dx) + delta)) + 2 * n * a.tiny
    if passed is not None:
        terms = s.rstd * (size + c2 + np.abs(s.xhat * p.c1)) + delta
        bound = bound + total(np.abs(phi) * (a.gamma(1) * terms + a.gamma(3) * np.abs(passed)))
    return np.asarray(bound)
