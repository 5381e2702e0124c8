"""A kernel's own forward near a case: called at moved inputs, beside the reference and what may lie between them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from verify_norm.cases import make, placement
from verify_norm.checks.relations.equations import arithmetic_of
from verify_norm.checks.relations.rerun import NearbyError, once_more
from verify_norm.core import geometry, judge, ops
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.layouts import layout_of
from verify_norm.core.op import Op
from verify_norm.core.run import Case, Expected, Run
from verify_norm.core.spec import SHARED


@dataclass(frozen=True, slots=True)
class Moved:
    """The change of y between two inputs, as the kernel has it and as the reference does, and what may be off."""

    kernel: Array
    reference: Array
    allowed: Array  # √(a+² + a−²), for random signs
    most: Array  # a+ + a−


def _offered(case: Case, changed: Mapping[str, Array | None]) -> dict[str, Any]:
    attrs = {name: case.arguments[name] for name in case.op.attrs}
    return {**case.exact, **attrs, **changed}


def reference_at(op: Op, case: Case, changed: Mapping[str, Array | None] | None = None) -> Any:
    """Return what the operator's reference returns, with some of the case's inputs changed."""
    return make.call(op.reference, _offered(case, changed or {}))


def expected_at(run: Run, changed: dict[str, Array]) -> Expected:
    """Return the truth about the forward's y there, and what the kernel's contract allows."""
    forward, offered = ops.forward_of(run.case.op), _offered(run.case, changed)
    value = make.call(forward.reference, offered).y
    delta = make.call(forward.error, offered | {"arithmetic": arithmetic_of(run)}).y
    return Expected(value, delta, run.case.spec.dtype)


def move(run: Run, plus: dict[str, Array], minus: dict[str, Array]) -> Moved:
    """Return the change between both ends of a step; raise NearbyError where the kernel's forward fails at one."""
    (F1, f1, a1), (F2, f2, a2) = (_at(run, changed) for changed in (plus, minus))
    return Moved(np.where(np.isfinite(a1 + a2), F1 - F2, 0.0), f1 - f2, np.hypot(a1, a2), a1 + a2)


def overflows(expected: Expected) -> Any:
    """Return where an infinity may be right, or nothing is known."""
    return ~np.isfinite(FORMATS[expected.dtype].round(np.abs(expected.value) + expected.delta))


def _at(run: Run, changed: dict[str, Array]) -> tuple[Array, Array, Array]:
    """Return y of the kernel's forward, y of the reference, and how far apart they may be; raise NearbyError.

    Where y may overflow its type, nothing is known.
    """
    case, spec, forward = run.case, run.case.spec, ops.forward_of(run.case.op)
    offered, truth = _offered(case, changed), expected_at(run, changed)
    expected = {tensor.name: truth if tensor.name == "y" else None for tensor in forward.outputs}
    device = case.device
    arguments = {name: case.arguments[name] for name in forward.attrs}
    arguments |= dict.fromkeys(tensor.name for tensor in forward.inputs)
    wanted = {}
    for tensor in forward.inputs:
        array, dtype = offered[tensor.name], geometry.input_dtype(tensor, spec)
        layout = layout_of(spec, tensor.name)
        if array is not None:
            wanted[tensor.name] = array, dtype, "contiguous" if layout in SHARED else layout  # rows move apart
    arguments |= placement.place_all(wanted, case.poison, device)
    kernel = replace(run.kernel, op=forward.name, run=run.kernel.forward_run)
    result = once_more(run)(kernel, Case(spec, forward, arguments, offered, expected, case.poison))
    y = result.outputs.get("y")
    if y is None or y.ratio is None:
        if result.limits:
            raise NearbyError
        raise NearbyError(result.problem or "it returns no y of the right shape")
    return y.got, truth.value, np.where(overflows(truth), np.inf, judge.allowed(truth))
