"""Derivatives of gradients by torch's autograd, along one direction an input, against differences of the reference."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from math import prod, sqrt
from typing import Any

import numpy as np
import torch

from verify_norm.cases import contents, make
from verify_norm.checks.relations.equations import arithmetic_of
from verify_norm.checks.relations.stages import exact_input
from verify_norm.checks.relations.two_runs import Difference
from verify_norm.core import geometry
from verify_norm.core.dtypes import FORMATS, Array, Format
from verify_norm.core.finding import NoData
from verify_norm.core.run import Case, Run
from verify_norm.core.spec import CaseSpec
from verify_norm.loading import gradients

FLOAT32 = FORMATS["float32"]
TERMS = 16  # of a second derivative: three projections of at most three terms each, and those of an activation
NARROW = 4  # roundings to 16 bits of all terms together: right functions reach 0.8, wrong ones miss by 8 and more
STEP = 2.0**-13  # of an input, divided by r: a difference is then off by about 2⁻²⁶ of the terms
WHY = "differentiate every step of backward, also the statistics, or mark it with once_differentiable"


def second_order(run: Run) -> Iterator[Difference | NoData]:
    """Yield the gradients whose own derivatives are silently wrong, in float32 or the case's types.

    Of L = ⟨v, dx⟩, and the same of dweight and dbias, the derivative along a direction of each input and each cotangent
    is compared with the reference's. Where it raises, or a gradient comes without a graph, which torch refuses to
    differentiate, there is nothing to compare.
    """
    looked, wrong = False, dict[str, Difference]()  # one for each output
    for case in cases(run):
        found = list(_derivatives(run, case))
        looked |= bool(found)
        for output, name, derivative in found:
            for difference in _reference(run, case).compared(output, name, derivative):
                wrong.setdefault(output, difference)
    yield from wrong.values() if looked else [NoData()]


def cases(run: Run) -> Iterator[Case]:
    """Yield the cases of `plain` at benign values, where products of four factors r do not overflow.

    There is none where a contract lets the kernel overwrite dy, or compute in 16 bits.
    """
    contract = run.kernel.contract
    wide = contract.accumulate in ("float32", "float64") and contract.products == "float32"
    if not wide or contract.inplace or not run.case.op.lawful:
        return
    for spec in plain(run):
        case = make.build(spec, run.case.op, contract, run.case.device, benign(run.case, spec))
        terms = prod(spec.shape) * geometry.row_length(spec, run.case.op)  # of a sum of products of sums
        if exact_input(case, "rstd").max(initial=0.0) ** 4 * terms < format_of(spec).largest:
            yield case


def _derivatives(run: Run, case: Case) -> Iterator[tuple[str, str, torch.Tensor | None]]:
    """Yield gradients by name, inputs by name, and the derivatives of one with respect to the other."""
    for name in ("dy", "dresidual_out"):
        if case.arguments.get(name) is not None:
            case.arguments[name].requires_grad_()
    assert run.kernel.forward_run is not None
    call, reference = partial(make.call, run.kernel.forward_run), _reference(run, case)
    try:
        graph = gradients.recorded(call, case.op, case.arguments, case.spec.frozen)
        cotangents = graph.cotangents(case.arguments)
        first = graph.gradients(cotangents, create_graph=True)
    except Exception:
        return
    zero = geometry.summands(case.op)[1]
    of_outputs = {f"d{name}": cotangent for name, cotangent in cotangents.items()}
    sources = {**of_outputs, **{name: leaf for name, leaf in graph.leaves.items() if name != zero}}
    for output, gradient in first.items():
        if gradient is None:
            continue
        v = torch.tensor(reference.direction(output.removeprefix("d"))).to(gradient)
        for source in sources.values():
            source.grad = None
        try:  # backward runs every node, also one that raises and that autograd.grad passes over
            gradient.backward(v, retain_graph=True)
        except Exception:
            continue
        yield from ((output, name, source.grad) for name, source in sources.items())


def plain(run: Run) -> tuple[CaseSpec, ...]:
    """Return the case in float32, and in its own types, if the kernel takes it: all tensors contiguous.

    A layout with shared elements would tie them together. Rows keep their length: a kernel may take another path there.
    """
    spec, kernel = run.case.spec, run.kernel
    layouts: dict[str, Any] = {f.name: "contiguous" for f in fields(CaseSpec) if f.name.endswith("_layout")}
    own = replace(spec, **layouts)
    specs = [own]
    if "float32" in kernel.dtypes:
        specs.insert(0, replace(own, dtype="float32", weight_dtype=None, other_dtype=None))
    accepted = (each for each in specs if kernel.fitted(each) == each and kernel.refuses(each) is None)
    return tuple(dict.fromkeys(accepted))


def format_of(spec: CaseSpec) -> Format:
    """Return the coarser one of the formats of x and of the weights."""
    return max((FORMATS[dtype] for dtype in (spec.dtype, spec.weight_dtype) if dtype), key=lambda form: form.u)


def benign(case: Case, spec: CaseSpec) -> dict[str, Array | None]:
    """Return values at which no gradient and no derivative is small: dy has the sign of x̂, about."""
    rng, form = np.random.default_rng(spec.seed), format_of(spec)
    exact = dict(case.exact)
    x = form.round(rng.uniform(-1.5, 2.0, spec.shape))
    exact["residual_out" if "residual_out" in exact else "x"] = x
    exact["dy"] = form.round(np.copysign(rng.uniform(0.5, 1.0, spec.shape), x - 0.25))
    if exact.get("dresidual_out") is not None:
        exact["dresidual_out"] = np.zeros(spec.shape)  # it is added to dx as it is
    lowest = {"weight": 0.5, "bias": 0.5, "running_mean": -0.5, "running_var": 0.5}  # x − mean has the sign of x, about
    for name, low in lowest.items():
        if exact.get(name) is not None:
            exact[name] = form.round(rng.uniform(low, low + 0.5, geometry.affine_shape(spec, case.op)))
    for tensor in case.op.inputs:
        if tensor.name in case.op.stage_inputs:
            exact[tensor.name] = form.round(rng.uniform(0.5, 1.0, geometry.shape_of(tensor, spec, case.op)))
    return exact | make.saved(spec, case.op, exact)


def _reference(run: Run, case: Case) -> "_Reference":
    r = float(exact_input(case, "rstd").max())
    return _Reference(run, case, r, r * float(np.abs(_exact(case, "x")[1]).max()))


def _exact(case: Case, name: str) -> tuple[str, Array]:
    """Return an input's own name, x and residual being the sum of a fused addition, and its values."""
    own = "residual_out" if name in ("x", "residual") and "residual_out" in case.exact else name
    return own, exact_input(case, own)


@dataclass(frozen=True, slots=True)
class _Reference:
    """The reference's gradients at a case, which it differentiates along directions, and a bound on a kernel's."""

    run: Run
    case: Case
    r: float  # the largest rstd
    kappa: float  # r·max|x|, what cancels in x − mean

    def direction(self, name: str) -> Array:
        """Return the direction of an input, or of its gradient: positive, of x and dy with the signs of dy."""
        values = _exact(self.case, name)[1]
        d = format_of(self.case.spec).round(np.random.default_rng(values.size).uniform(0.5, 1.0, values.shape))
        return np.copysign(d, exact_input(self.case, "dy")) if name in ("x", "residual", "dy") else d

    def compared(self, output: str, name: str, derivative: torch.Tensor | None) -> Iterator[Difference]:
        """Yield whether the derivative of ⟨v, output⟩ with respect to one input is off, along its direction."""
        d = self.direction(name)
        got = 0.0 if derivative is None else float((contents.to_float64(derivative.detach()) * d).sum())
        want, allowed = self._difference(output, name, d), self._allowed(output, name)
        if np.isfinite(want + allowed) and not abs(got - want) <= allowed:
            words = f"the derivative of {output} with respect to {name} is silently wrong: along a direction it is"
            values = f"{got:.6g}, expected {want:.6g} within {allowed:.2g}"
            missing = " (it is not in the graph)" if derivative is None else ""
            yield Difference(output, f"{words} {values}{missing}; {WHY}")

    def _difference(self, output: str, name: str, d: Array) -> float:
        case, (own, values) = self.case, _exact(self.case, name)
        v, step = self.direction(output.removeprefix("d")), STEP / max(self.r, 1.0)
        place = [tensor.name for tensor in case.op.outputs].index(output)

        def at(moved: Array) -> float:
            offered = make.offer(case.spec, case.op, self.run.kernel.contract, {**case.exact, own: moved})
            return float((make.call(case.op.reference, offered)[place] * v).sum())

        return (at(values + step * d) - at(values - step * d)) / (2 * step)

    def _allowed(self, output: str, name: str) -> float:
        """Return the error allowed.

        Derivatives of gradients are sums of products of v, d, dy, w, x̂ and r (`reference.double_backward`). With
        |dy| ≤ 1, |w| ≤ W and |x̂| ≤ 2κ, a term, summed over all elements, is at most r²W²·2κ·‖v‖·‖d‖ by
        Cauchy–Schwarz, where r and 2κ are no less than 1 and norms count a weight once for each element it meets. A
        gate, or 1 + scale, and their derivatives are at most 2. Each
        term errs by (4n + 40)(1 + κ)u of that: n terms of sums, rstd by n/2 + 5, x̂ by two more and by κ from what
        cancels, and no term has more than five such factors.

        In 16 bits each product and each cotangent may be rounded, too coarsely to add up worst cases: of r²W²(1 + κ)·
        ‖v‖·‖d‖ all roundings together may be NARROW units, since they do not have one sign.
        """
        case, size = self.case, prod(self.case.spec.shape)
        v, d = self.direction(output.removeprefix("d")), self.direction(name)
        norms = [float(np.linalg.norm(along)) * sqrt(size / along.size) for along in (v, d)]
        affine = prod(geometry.affine_shape(case.spec, case.op))
        n = geometry.row_length(case.spec, case.op) + size // affine
        scale = max(self.r, 1.0) ** 2 * (1.0 + abs(case.arguments.get("weight_offset", 0.0))) ** 2
        scale *= 2.0 ** sum(bool(stage.inputs) for stage in case.op.stages)
        scale /= 1.0 - case.spec.dropout_p if case.op.dropout is not None else 1.0
        scale *= 4.0 if case.op.before is not None else 1.0  # its a, and x·a' or a''·x beside it, in two places
        u, narrow = max(arithmetic_of(self.run).u, FLOAT32.u), format_of(case.spec).u
        of_term = TERMS * max(2 * self.kappa, 1) * (4 * n + 40) * u + NARROW * narrow * (narrow > FLOAT32.u)
        bound: float = scale * norms[0] * norms[1] * (1.0 + self.kappa) * of_term
        return bound
