"""The stages of the rounding analysis at one case: what a row shares, and what each element is rounded by on its own.

`verify_norm.reference.rounding` bounds how far a kernel is from the truth. Two runs of one kernel may have much in
common, though: where only dy differs, mean, rstd and every x̂' are the same bits, and what these are off by drops out.
With r' = r(1 + ρ'), x̂' = x̂(1 + ρ') + s + e (s and ρ' of the row, e of the element), let `factor` be what of ρ' two
runs may not share: 0, or γ(7) for a reciprocal root that is taken anew of a scaled number. Each run is then within the
analysis with no shift and that factor of what exact operations would make of the common bits. The functions below give
that distance; magnitudes are those of x̂', hence up to (1 + ρ)|x̂| + S.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from verify_norm.cases import make
from verify_norm.checks.relations.equations import arithmetic_of
from verify_norm.core import geometry
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.run import Case, Run
from verify_norm.reference import batchnorm, layernorm, rmsnorm, rounding, statistics_rounding
from verify_norm.reference.arithmetic import DIVISION, Arithmetic, nearest
from verify_norm.reference.norm import Norm
from verify_norm.reference.quantized import product_error
from verify_norm.reference.residual_sum import addition_error, joined
from verify_norm.reference.rounding import XhatError
from verify_norm.reference.stages.stage import Inputs, apart, exactly, rounded_off
from verify_norm.reference.stages.steps import Steps, steps
from verify_norm.reference.view import View, groups, rows


@dataclass(frozen=True, slots=True)
class Stages:
    """The exact normalization of one case and its errors, in the shape of its view."""

    norm: Norm
    arithmetic: Arithmetic
    largest: Array  # of |x̂'|
    z: XhatError
    stages: tuple[Any, ...] = ()  # behind the norm
    given: Inputs = field(default_factory=dict)  # their own inputs
    before: Any = None  # the stage before the norm, or before an addition, and its x
    x: Array | None = None
    scale: Array | None = None  # multiplies y last, where y is quantized

    @property
    def before_error(self) -> Array:
        """How far a kernel may be from w·x̂ + b, the input of the first stage behind it."""
        return rounding.affine_error(self.norm, self.z, self.arithmetic)

    @property
    def steps(self) -> Steps:
        """The result of each stage behind the norm, and how far a kernel's may be off."""
        return steps(self.stages, self.norm, self.before_error, self.given, self.arithmetic)

    def row_sum(self, values: Array) -> Array:
        """Return the sums over what is normalized together; axes are kept."""
        summed: Array = np.broadcast_to(values, self.norm.view.shape).sum(self.norm.view.axes, keepdims=True)
        return summed

    def common(self, factor: float) -> XhatError:
        """Return the error of x̂' where two runs share a row's shift, and its factor up to this one."""
        return replace(self.z, shift=np.zeros_like(self.z.shift), factor=np.full_like(self.z.factor, factor), off=None)


def exact_input(case: Case, name: str) -> Array:
    """Return the exact values of an input that the case has."""
    values = case.exact[name]
    assert values is not None, name
    return values


def stage_inputs(run: Run) -> dict[str, Any]:
    """Return what the stages of a case take beside z: their own inputs, and what the contract says of them."""
    case = run.case
    inputs: dict[str, Any] = {name: exact_input(case, name) for name in case.op.stage_inputs}
    if case.op.dropout is not None:
        inputs |= {name: case.arguments[name] for name in case.op.dropout.options}
    if case.op.quantizer is not None:
        inputs |= make.roundings(case.spec, case.op, run.kernel.contract)
    return inputs


def has_mean(case: Case) -> bool:
    """Return whether a mean of its own is subtracted from x."""
    return case.op.centred and own_statistics(case)


def own_statistics(case: Case) -> bool:
    """Return whether x is normalized by its own statistics: not in BatchNorm's evaluation."""
    return case.op.view != "channels" or case.spec.training


def view_of(case: Case, x: Array) -> View:
    """Return the view of the case's data: which elements are normalized together."""
    if case.op.view == "rows":
        return rows(x, geometry.affine_shape(case.spec, case.op))
    if case.op.view == "groups":
        return groups(x, geometry.groups(case.spec, case.op))
    return batchnorm.channels(x, False)  # one value a channel is enough in evaluation


def summand(case: Case) -> Array:
    """Return what residual is added to: x, or what a dropout leaves of it."""
    x, dropout = exact_input(case, "x"), case.op.dropout
    if dropout is None:
        return x
    dropped: Array = dropout.value(x, {**case.arguments, **case.exact})
    return dropped


def normalized(run: Run) -> Array:
    """Return x, or the sum of a fused addition as the contract keeps it."""
    exact = run.case.exact
    x, residual = exact.get("residual_out", exact.get("x")), exact.get("residual")
    assert x is not None
    if residual is None:
        return x if run.case.op.chain is None else run.case.op.chain.given(x, exact)
    h = summand(run.case) + residual
    rounded = run.kernel.contract.residual == "rounded"
    return FORMATS[geometry.sum_dtype(run.case.spec)].round(h) if rounded else nearest(h, arithmetic_of(run))


def norm(run: Run) -> Norm:
    """Return the exact normalization of a case that has its own statistics."""
    case, x = run.case, normalized(run)
    if case.op.chain is not None:
        chain, values = case.op.chain, {**case.arguments, **case.exact}
        of_chain: Norm
        if chain.before is None:
            of_chain = chain.base.norm(x, values)
        else:
            of_chain = chain.normalized(values["x"], values, arithmetic_of(run))
        return of_chain
    view, weight, bias = view_of(case, x), case.exact.get("weight"), case.exact.get("bias")
    eps, offset = case.spec.eps, case.arguments.get("weight_offset", 0.0)
    if has_mean(case):
        return layernorm.norm(view, x, weight, bias, eps, offset)
    return rmsnorm.norm(view, x, weight, eps, offset)


def stages(run: Run) -> Stages:
    """Return the statistics of a case that has its own, and their errors under the kernel's contract."""
    case, n, a = run.case, norm(run), arithmetic_of(run)
    e = statistics_rounding.saved_error(n, a)
    if case.exact.get("residual") is not None:  # a kernel may keep more of the sum than it promises
        lost = FORMATS[geometry.sum_dtype(case.spec)].u * (np.abs(n.x) + np.abs(n.x).max(initial=0.0))
        if case.op.dropout is not None:  # … and is off by the dropout's own roundings
            lost = lost + case.op.chain.summand({**case.arguments, **case.exact}, a).delta.reshape(n.view.shape)
    else:
        lost = np.zeros(())
    z = rounding.xhat_error(n, e, a)
    z = replace(z, magnitude=z.magnitude + 2 * n.rstd * lost)
    largest = np.abs(n.xhat) * (1.0 + e.rho) + z.shift + 2 * n.rstd * lost
    if z.off is not None:
        largest = largest + z.off
    scale = case.exact.get("scale") if case.op.quantized else None
    first, x = case.op.before or case.op.dropout, case.exact.get("x", case.exact.get("residual_out"))
    return Stages(n, a, largest, z, case.op.stages, stage_inputs(run), first, x, scale)


def cotangent(s: Stages, dy: Array) -> tuple[Array, Array | float]:
    """Return the gradient with respect to w·x̂ + b, and how far a kernel's may be off: dy itself without a stage.

    The second is a full bound, also of two runs that have all bits of w·x̂ + b in common.
    """
    if not s.stages:
        return dy, 0.0
    return s.steps.pulled_error(dy.reshape(s.norm.view.shape), s.given, s.arithmetic)[:2]


def y_apart(s: Stages, factor: float) -> Array:
    """Return how far y is from what exact operations make of the common bits, with a scale where it has one."""
    off, n = z_apart(s, factor), s.norm
    most = np.abs(n.y) + 2 * (0.0 if n.bias is None else np.abs(n.bias))
    return off if s.scale is None else product_error(off, most, s.scale, s.arithmetic)


def z_apart(s: Stages, factor: float) -> Array:
    """Return the same of the values before the scale, whose largest magnitude is amax."""
    n = s.norm
    weight, bias = (None if p is None else np.abs(p) for p in (n.weight, n.bias))
    off = rounding.affine_error(replace(n, xhat=s.largest, weight=weight, bias=bias), s.common(factor), s.arithmetic)
    for stage, z in zip(s.stages, s.steps.zs, strict=False):
        off = apart(stage, z, rounded_off(z.value, off, s.arithmetic), s.given, s.arithmetic)
    return off


def gradient_apart(
    s: Stages, name: str, dy: Array, lost: Array | float = 0.0, passed: Array | None = None, factor: float = 0.0
) -> Array:
    """Return the same of dx, dweight or dbias, a parameter's in the shape that it is seen in.

    `lost` is what dy is off by (`cotangent`), `passed` what a fused addition adds to dx. All of dbias's rounding
    counts, since only an activation ties it to x.
    """
    dy, a = dy.reshape(s.norm.view.shape), s.arithmetic
    if name == "dbias":
        return rounding.bias_error(s.norm, dy, a, lost=lost)
    largest, common = replace(s.norm, xhat=s.largest), s.common(factor)
    if name == "dweight":
        return rounding.weight_error(largest, dy, common, a, lost=lost)
    p = s.norm.gradient(dy)
    c2 = 0.0 if p.c2 is None else np.abs(p.c2)
    c1 = np.abs(p.c1) * (1.0 + s.z.factor) + s.z.shift * c2
    terms = s.norm.rstd * (1.0 + s.z.factor) * (np.abs(p.g) + c2 + s.largest * c1)
    delta = rounding.projection_error(largest, replace(p, c1=c1, dx=terms), common, a, lost=lost)
    delta = delta + rounding.coefficient_error(largest, dy, s.z, a, lost=lost)
    if passed is None:
        return delta
    delta = rounded_off(p.dx, delta, a)
    together: Array = delta + addition_error(s.norm, terms + delta, passed.reshape(delta.shape), a)
    return together


def apart_of(s: Stages, name: str, dy: Array, passed: Array | None, factor: float = 0.0) -> Array:
    """Return `gradient_apart` of any gradient, for the dy that the kernel is given.

    Those of the stages' own inputs have all of their bound.
    """
    source = name.removeprefix("d")
    if s.before is not None and (name == "dx" or source in s.before.inputs):
        return _before_apart(s, name, dy, passed, factor)
    if any(source in stage.inputs for stage in s.stages):
        errors = s.steps.pulled_error(dy.reshape(s.norm.view.shape), s.given, s.arithmetic)[2]
        return errors[source]
    return gradient_apart(s, name, *cotangent(s, dy), passed, factor)


def _before_apart(s: Stages, name: str, dy: Array, passed: Array | None, factor: float) -> Array:
    """Return the same of the gradients behind a stage before the norm: that stage's own roundings come last."""
    dz, lost = cotangent(s, dy)
    dh = joined(s.norm.gradients(dz)[0], passed)
    off = gradient_apart(s, "dx", dz, lost, passed, factor).reshape(dh.shape)
    assert s.x is not None
    pulled = s.before.pull_error(dh, rounded_off(dh, off, s.arithmetic), exactly(s.x), s.given, s.arithmetic)
    distance: Array = pulled.lost if name == "dx" else pulled.gradients[name.removeprefix("d")]
    return distance


def sum_error(
    s: Stages, dy: Array, passed: Array | None, delta: Array, phi: Array, *, lost: Array | float = 0.0
) -> Array:
    """Return how far Σφ·dx over a row or group may be off, before dx is rounded into its type.

    dx' = r'(g' − c2' − x̂'·c1'), with c1' = c1 + d1 and c2' = c2 + d2. All that is common to a row meets Σφ, all that
    is proportional to x̂ meets Σφ·x̂, a factor of the row meets Σφ·dx, and the roundings of elements alone Σ|φ|. A row
    has one r/n, so with R = (1 + ρ)(1 + γ(4)) the last difference and the last product of each element are left:

        |Σφ(dx' − dx)| ≤ (R − 1)|Σφ·dx| + rR·(|Σφ|·(δc2 + S·C1) + |Σφ·x̂|·(δc1 + ρ·C1) + Σ|φ|·e) + γ(2)·Σ|φ|(|dx| + δ)

        e = (ε + 2u(1 + ε))|g| + 2u(|c2| + δc2) + ((e_x̂ + 4u(1 + e_x̂))·m + floor)·C1      C1 = |c1| + δc1

    where ε is what g is rounded by, to which `lost` adds what dy is off by, and the stages are those of
    `rounding.projection_error`. With φ = 1 or φ = x̂ two of the three sums vanish, or nearly, so a mean that is off, or
    a c1, no longer excuses all elements.
    """
    n, a, z, total = s.norm, s.arithmetic, s.z, s.row_sum
    dy = dy.reshape(n.view.shape)
    p = n.gradient(dy)
    d, u = rounding.means_error(n, p, z, a, lost), a.u
    c2 = np.zeros_like(p.c1) if p.c2 is None else np.abs(p.c2)
    most = np.abs(p.c1) + d.dc1
    e = d.size * (d.unit + 2 * u * (1.0 + d.unit)) + d.lost + 2 * u * (c2 + d.dc2) + d.floor + 3 * a.tiny
    e = e + ((z.unit + 4 * u * (1.0 + z.unit)) * z.magnitude + z.floor) * most
    inner = np.abs(total(phi)) * (d.dc2 + z.shift * most) + np.abs(total(phi * n.xhat)) * (d.dc1 + z.factor * most)
    row = (1.0 + z.factor) * (1.0 + a.gamma(DIVISION))
    bound = (row - 1.0) * np.abs(total(phi * p.dx)) + n.rstd * row * (inner + total(np.abs(phi) * e))
    bound = bound + a.gamma(2) * total(np.abs(phi) * (np.abs(p.dx) + delta)) + 2 * n.view.count * a.tiny
    bound = bound + total(np.abs(phi) * rounding.coefficient_error(n, dy, z, a, lost=lost))
    if passed is not None:
        terms = n.rstd * (d.size + c2 + np.abs(n.xhat * p.c1)) + delta
        lost_before = a.between(np.abs(p.dx) + delta)
        bound = bound + total(np.abs(phi) * (addition_error(n, terms, passed, a) + lost_before))
    error: Array = bound
    return error
