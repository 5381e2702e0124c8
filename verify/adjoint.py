"""A kernel's own forward near a case: called at moved inputs, beside the reference and what may lie between them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from verify_norm import cases, data, execute, judge, memory, ops
from verify_norm.again import device_of
from verify_norm.dtypes import Array
from verify_norm.spec import Case, Expected, Op, Run


@dataclass(frozen=True, slots=True)
class Moved:
    """The change of y between two inputs, as the kernel has it and as the reference does, and what may be off."""

    kernel: Array
    reference: Array
    allowed: Array  # √(a+² + a−²), for random signs
    most: Array  # a+ + a−


class ForwardError(Exception):
    """The kernel's forward failed on an input near to the case's."""


def _offered(case: Case, changed: dict[str, Array]) -> dict[str, Any]:
    attrs = {name: case.arguments[name] for name in case.op.attrs}
    return {**case.exact, **attrs, **changed}


def reference_at(forward: Op, case: Case, changed: dict[str, Array] | None = None) -> Any:
    """What the forward's reference returns, with some of the case's inputs changed."""
    return cases.call(forward.reference, _offered(case, changed or {}))


def expected_at(run: Run, forward: Op, changed: dict[str, Array]) -> Expected:
    """The truth about y there, and what the kernel's contract allows."""
    offered = _offered(run.case, changed)
    value = cases.call(forward.reference, offered).y
    arithmetic = ops.arithmetic(run.kernel.contract, run.case.spec.dtype)
    return Expected(value, cases.call(forward.error, offered | {"arithmetic": arithmetic}).y, run.case.spec.dtype)


def move(run: Run, forward: Op, plus: dict[str, Array], minus: dict[str, Array]) -> Moved:
    """Both ends of a step, through the kernel's forward and through the reference."""
    (F1, f1, a1), (F2, f2, a2) = (_at(run, forward, changed) for changed in (plus, minus))
    return Moved(F1 - F2, f1 - f2, np.hypot(a1, a2), a1 + a2)


def _at(run: Run, forward: Op, changed: dict[str, Array]) -> tuple[Array, Array, Array]:
    case = run.case
    spec = case.spec
    offered = _offered(case, changed)
    truth = expected_at(run, forward, changed)
    expected = {tensor.name: truth if tensor.name == "y" else None for tensor in forward.outputs}
    device = device_of(case)
    arguments = {name: case.arguments[name] for name in forward.attrs}
    for tensor in forward.inputs:
        array = offered[tensor.name]
        dtype = data.input_dtype(tensor, spec)
        layout = data.layout_of(spec, tensor.name)
        layout = "contiguous" if layout in ("expanded", "scalar") else layout  # rows move apart
        arguments[tensor.name] = None if array is None else memory.place(array, dtype, layout, case.poison, device)
    kernel = replace(run.kernel, op=forward.name, run=run.kernel.forward_run)
    result = execute.execute(kernel, Case(spec, forward, arguments, offered, expected, case.poison))
    y = result.outputs.get("y")
    if y is None or y.ratio is None:
        raise ForwardError(result.problem or "it returns no y of the right shape")
    return y.got, truth.value, judge.allowed(truth)
