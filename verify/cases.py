"""CaseSpec -> Case: arguments in hostile memory, and the truth with its error bound."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from verify_norm import data, memory, ops
from verify_norm.dtypes import FORMATS, Array
from verify_norm.spec import Case, CaseSpec, Contract, Expected, Op


def make(spec: CaseSpec, op: Op, contract: Contract, device: str = "cpu") -> Case:
    """Build the arguments of `op` that `spec` describes, on `device`, and what is to come out.

    The inputs are rounded to their types first, and the reference is evaluated at what they then are. Raises ValueError
    where the spec is not one of the operator: a shape that does not fit it.
    """
    return build(spec, op, contract, device, draw(spec, op), truth=True)


def draw(spec: CaseSpec, op: Op) -> dict[str, Array | None]:
    """The exact values of every input: drawn, and for what a forward has saved, by the reference."""
    refused = data.refusal(spec, op)
    if refused is not None:
        raise ValueError(refused)
    exact = {tensor.name: data.draw(spec, op, tensor) for tensor in op.inputs if tensor.role != "saved"}
    return exact | saved(spec, op, exact)


def saved(spec: CaseSpec, op: Op, exact: Mapping[str, Array | None]) -> dict[str, Array | None]:
    """The exact values of what a forward has saved of these inputs; nothing where `op` takes nothing saved."""
    names = [tensor.name for tensor in op.inputs if tensor.role == "saved"]
    if not names:
        return {}
    forward = ops.OPS[str(op.forward)]
    summed = exact.get("residual_out")  # what a fused addition has saved is its sum
    inputs = exact if summed is None else {**exact, "x": summed, "residual": np.zeros_like(summed)}
    with np.errstate(all="ignore"):
        statistics = call(forward.reference, {**inputs, **attributes(spec, forward)})
    return {name: FORMATS["float32"].round(getattr(statistics, name)) for name in names}


def build(
    spec: CaseSpec,
    op: Op,
    contract: Contract,
    device: str,
    exact: Mapping[str, Array | None],
    *,
    truth: bool = False,
    poison: float | None = None,
) -> Case:
    """A case of these exact values, which the formats of `spec` hold; with what is to come out if `truth` is asked."""
    poison = poison_of(spec) if poison is None else poison
    tensors = {
        tensor.name: None
        if (array := exact[tensor.name]) is None
        else memory.place(array, data.input_dtype(tensor, spec), data.layout_of(spec, tensor.name), poison, device)
        for tensor in op.inputs
    }
    expected = _truth(spec, op, contract, exact) if truth else {}
    return Case(spec, op, {**tensors, **attributes(spec, op)}, exact, expected, poison)


def _truth(spec: CaseSpec, op: Op, contract: Contract, exact: Mapping[str, Array | None]) -> dict[str, Expected | None]:
    offered = offer(spec, op, contract, exact)
    with np.errstate(all="ignore"):  # NaN, infinities and overflow are among the inputs, and the checks judge them
        values = call(op.reference, offered)
        deltas = call(op.error, {**offered, "arithmetic": ops.arithmetic(contract, spec.dtype)})
    return {
        tensor.name: None
        if value is None or tensor.name.removeprefix("d") in spec.frozen
        else Expected(value, delta, ops.output_dtype(tensor, contract, spec.dtype, spec.weight_dtype))
        for tensor, value, delta in zip(op.outputs, values, deltas, strict=True)
    }


def offer(spec: CaseSpec, op: Op, contract: Contract, exact: Mapping[str, Array | None]) -> dict[str, Any]:
    """What a reference may take: the inputs, the attributes, and what the contract says of roundings."""
    first = ops.output_dtype(op.outputs[0], contract, spec.dtype, spec.weight_dtype)
    return {**exact, **attributes(spec, op), **ops.roundings(contract, spec.dtype, first)}


def call(function: Callable[..., Any], offered: Mapping[str, Any]) -> Any:
    """Call `function` with those of the offered arguments that it names."""
    return function(**{name: offered[name] for name in inspect.signature(function).parameters if name in offered})


def poison_of(spec: CaseSpec) -> float:
    """What gaps, guards and fresh allocations hold: NaN, or in odd seeds a number that NaN-tolerant code meets too."""
    return np.nan if spec.seed % 2 == 0 else 4096.0


def attributes(spec: CaseSpec, op: Op) -> dict[str, Any]:
    """The arguments that are no tensors."""
    offered = {
        "eps": spec.eps,
        "num_groups": spec.num_groups,
        "weight_offset": spec.weight_offset,
        "normalized_shape": data.affine_shape(spec, op),
        "training": spec.training,
        "momentum": spec.momentum,
    }
    return {name: offered[name] for name in op.attrs}
