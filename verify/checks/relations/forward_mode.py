"""Derivatives of outputs by torch's forward-mode AD, along one direction of all inputs, against the reference's."""

import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from verify_norm.cases import contents, further_runs, make
from verify_norm.checks.relations import stages
from verify_norm.checks.relations.equations import arithmetic_of
from verify_norm.checks.relations.operators import Foreign
from verify_norm.checks.relations.second_order import FLOAT32, cases, format_of
from verify_norm.checks.relations.two_runs import Difference
from verify_norm.core.dtypes import Array, Format
from verify_norm.core.excess import element
from verify_norm.core.finding import NoData
from verify_norm.core.ops import forward_of
from verify_norm.core.run import Case, Run
from verify_norm.loading import gradients
from verify_norm.loading.returned import named
from verify_norm.reference.arithmetic import Arithmetic
from verify_norm.reference.jvp import tangent
from verify_norm.reference.norm import Norm

OF_DATA = ("y", "residual_out")  # outputs in the shape of x
ROUNDED = 4  # roundings to 16 bits of each term: right functions reach 1
STEP = 2.0**-20  # of a difference in float64: it is off by about 2⁻³² of its terms, float32 by 2⁻²⁰ and more


def forward_mode(run: Run) -> Iterator[Difference | NoData]:
    """Yield the outputs whose derivative in forward mode is silently wrong, at benign values.

    It looks in float32 and in the case's types. x, weight, bias and the inputs of stages get tangents
    (`torch.autograd.forward_ad`, as torch.func.jvp does), first all of them, then one alone. Where that raises, as for
    an autograd.Function without jvp, there is nothing to compare; nor where an operator of torch.library runs, for
    torch drops the tangents of its inputs without a word.
    """
    op = run.case.op
    derived = op.lawful and op.before is None and op.dropout is None and op.trained_inputs == op.stage_inputs
    looked = False
    for case in cases(run) if derived else ():
        for names in _moved(case) if stages.own_statistics(case) else ():
            got = _tangents(run, case, names)
            if got:
                looked = True
                yield from _compared(replace(run, case=case), got, names)
    if not looked:
        yield NoData()


def _moved(case: Case) -> tuple[tuple[str, ...], ...]:
    """Return the inputs that get tangents: all, and of several the one whose turn it is, for a rule may lose it."""
    others = ("weight", "bias", *case.op.stage_inputs)
    given = ("x", *(name for name in others if case.arguments.get(name) is not None))
    return (given,) if len(given) == 1 else (given, (further_runs.variant(case.spec, given),))


def _compared(run: Run, got: Mapping[str, torch.Tensor], names: tuple[str, ...]) -> Iterator[Difference]:
    """Yield the derivatives of outputs, by name, that are off."""
    for name, (want, allowed) in _truth(run, names).items():
        if name not in got:
            continue
        value = contents.to_float64(got[name]).reshape(want.shape)
        off = np.where(np.isfinite(want + allowed), ~(np.abs(value - want) <= allowed), False)
        if off.any():
            index = tuple(int(i) for i in np.argwhere(off)[0])
            along = f", along {' and '.join(names)}"
            words = f"the derivative of {element(name, index)} in forward mode is {value[index]:.6g}{along}"
            expected = f"expected {want[index]:.6g} within {allowed[index]:.2g}"
            yield Difference(None, f"{words}, {expected}; {int(off.sum())} elements are wrong")


def _tangents(run: Run, case: Case, names: Collection[str]) -> Mapping[str, torch.Tensor]:
    """Return the tangents of those outputs that have one, by name, where the inputs `names` do."""
    assert run.kernel.forward_run is not None
    forward = forward_of(case.op)
    offer, form = gradients.offered(case.op, case.arguments), format_of(case.spec)
    try:
        with warnings.catch_warnings(), forward_ad.dual_level(), Foreign() as foreign:
            warnings.simplefilter("ignore")  # torch builds its rules of forward mode by torch.jit, which is deprecated
            for name in names:
                change = torch.tensor(_direction(name, offer[name].shape, form)).to(offer[name])
                offer[name] = forward_ad.make_dual(offer[name].detach(), change)
            outputs: Any = named(make.call(run.kernel.forward_run, offer), forward)
            if foreign.ran:
                return {}
            tangents = {n: forward_ad.unpack_dual(t).tangent for n, t in outputs.items() if t is not None}
            return {name: change for name, change in tangents.items() if change is not None}
    except Exception:
        return {}


def _direction(name: str, shape: tuple[int, ...], form: Format = FLOAT32) -> Array:
    """Return the tangent of an input: of both signs, and none of it small."""
    size = int(np.prod(shape))
    rng = np.random.default_rng((size, len(name)))
    return form.round(rng.uniform(0.5, 1.0, shape) * rng.choice((-1.0, 1.0), shape))


def _truth(run: Run, names: Collection[str]) -> dict[str, tuple[Array, Array]]:
    """Return the derivative of each output and the error allowed, each in the shape of its values.

    ẏ = w·rP(ẋ) + ẇ·x̂ + ḃ (`reference.jvp.tangent`) is a sum of terms no larger than t = |w|r(|ẋ| + mean|ẋ| +
    |x̂|·mean|x̂ẋ|) + |ẇx̂| + |ḃ|. Each errs by (4n + 40)(1 + κ)u of that at most, as in `second_order`: n terms of sums,
    rstd by n/2 + 5, x̂ by two more and by κ = r·max|x| from what cancels: that is an error of x̂ near 0 too, so |x̂| is 1
    at least where a mean is subtracted. Where every step is in 16 bits, ROUNDED roundings are added to them. What
    follows the norm is in `_passed`.
    """
    n, a, form = stages.norm(run), arithmetic_of(run), format_of(run.case.spec)
    tx = _direction("x", run.case.spec.shape, form).reshape(n.view.shape) * ("x" in names)
    given = [name for name in ("weight", "bias") if name in names]
    changes = {name: _direction(name, run.case.arguments[name].shape, form).reshape(n.view.affine) for name in given}
    tw, tb = (changes.get(name, np.zeros(n.view.affine)) for name in ("weight", "bias"))
    y, mean, rstd = tangent(n, tx, tw, tb)
    unit = (4 * n.view.count + 40) * max(a.u, FLOAT32.u) + ROUNDED * form.u * (form.u > FLOAT32.u)
    unit = unit * (1 + n.rstd * np.abs(n.x).max(initial=0.0))
    largest = np.maximum(np.abs(n.xhat), float(n.centred))
    size = np.abs(n.weighted(n.rstd * _terms(n, tx))) + np.abs(tw) * largest + np.abs(tb)
    out = _Change(n.y, np.abs(n.weighted(largest)) + np.abs(n.y), y, unit * size)
    for stage in run.case.op.stages:
        own = {name: stages.exact_input(run.case, name) for name in stage.inputs}
        changes = {name: _direction(name, own[name].shape, form) * (name in names) for name in own}
        out = _passed(stage, out, own, changes, unit, a)
    y, allowed = out.tangent, out.allowed
    made = {
        "y": (y, allowed),
        "rstd": (rstd * n.rstd_scale, unit * n.rstd_scale * n.rstd**2 * n.average(np.abs(n.xhat * tx))),
    }
    if n.centred:
        made["mean"] = (mean, unit * n.average(np.abs(tx)))
    if "residual_out" in run.case.exact:
        made["residual_out"] = (tx, form.u * np.abs(tx))
    return {
        name: (_shaped(n, name, value), _shaped(n, name, np.broadcast_to(allowed, value.shape)))
        for name, (value, allowed) in made.items()
    }


@dataclass(frozen=True, slots=True)
class _Change:
    """A value, at least the magnitudes of its terms, its derivative, and the error allowed in that."""

    value: Array
    size: Array
    tangent: Array
    allowed: Array


def _passed(
    stage: Any, z: _Change, given: Mapping[str, Array], changes: Mapping[str, Array], unit: Array, a: Arithmetic
) -> _Change:
    """Return what a stage behind the norm makes of z, whose terms err by `unit`; its inputs change by `changes`.

    An activation multiplies ż by a′(z), which errs by its own error and by a″ times what z errs by. Of a stage with
    inputs of its own, y is linear in z: its derivative is a difference of the reference's in float64, whose terms are
    |∂y/∂z|·ż, and for each input what y changes by where z is the sum of its terms. Each errs by 2·unit.
    """

    def moved(off: Array) -> Array:
        most: Array = stage.moved(z.value, np.asarray(np.inf), off, given)
        return most

    value = stage.value(z.value, given)
    if not stage.inputs:
        slope, off = stage.function.slope(z.value), stage.function.slope_error(z.value, a)
        off = off + stage.function.bend * unit * z.size
        allowed = moved(z.allowed) + off * (z.allowed + np.abs(z.tangent))
        return _Change(value, np.maximum(np.abs(value), moved(z.size)), slope * z.tangent, allowed)

    def change(at: Array, along: Array | float, names: Collection[str]) -> Array:
        ends = []
        for step in (STEP, -STEP):
            others = {name: v + step * changes[name] * (name in names) for name, v in given.items()}
            ends.append(stage.value(at + step * along, others))
        found: Array = (ends[0] - ends[1]) / (2 * STEP)
        return found

    terms = moved(np.abs(z.tangent)) + sum(np.abs(change(z.size, 0.0, [name])) for name in given)
    tangent, allowed = change(z.value, z.tangent, given), moved(z.allowed) + 2 * unit * terms
    return _Change(value, moved(z.size) + np.abs(value), tangent, allowed)


def _shaped(n: Norm, name: str, values: Array) -> Array:
    """Return values of the view in the shape of the output."""
    shaped: Array = values.reshape(n.view.data if name in OF_DATA else n.view.statistic)
    return shaped


def _terms(n: Norm, tx: Array) -> Array:
    """Return the sum of the magnitudes of the terms of P(ẋ)."""
    size: Array = np.abs(tx) + n.average(np.abs(tx)) * n.centred + np.abs(n.xhat) * n.average(np.abs(n.xhat * tx))
    return size
