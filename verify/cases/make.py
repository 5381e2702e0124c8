"""CaseSpec -> Case: arguments in hostile memory, and the truth with its error bound."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from verify_norm.core import geometry, ops, promises
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.known import overwritten
from verify_norm.core.layouts import chunks, layout_field, layout_of, one_tensor
from verify_norm.core.op import Op, Tensor
from verify_norm.core.run import Case, Expected
from verify_norm.core.spec import SHARED, CaseSpec
from verify_norm.reference.statistics_rounding import Given

Exact = Mapping[str, Array | None]
JUDGES = frozenset({"cuda"})  # the types of devices that compute truth and bound, where NumPy takes longer
LARGE = 2**17  # elements of x: a GPU starts some 200 operations, and takes 3 ms for it, which NumPy takes for these
KEPT = 2**25 - 2**16  # bytes: just under the largest block that moves glibc's thresholds
POISONS = {"nan": np.nan, "finite": 4096.0}  # in gaps, guards and fresh allocations: code may pass over NaN


def case(spec: CaseSpec, op: Op, contract: Contract, device: str = "cpu") -> Case:
    """Return the case of `op` that `spec` describes, its arguments on `device`, with the truth of each output.

    The inputs are first rounded to their types; the reference is evaluated at the rounded values. Raises ValueError if
    the operator has no such case, for example with a shape that does not fit it.
    """
    return build(spec, op, contract, device, exact_inputs(spec, op, device), truth=True)


def judge_of(spec: CaseSpec, op: Op, device: str) -> str | None:
    """Return the device whose memory holds a case's truth, bound and errors; None is NumPy, as of a user's operator."""
    return device if prod(spec.shape) >= LARGE and device.split(":")[0] in JUDGES and not op.user_defined else None


def exact_inputs(spec: CaseSpec, op: Op, device: str = "cpu") -> dict[str, Array | None]:
    """Return the exact values of every input: drawn, or computed by the reference for what a forward saves.

    Raises ValueError if the operator has no such case.
    """
    from verify_norm.cases import draw  # truths of given values need no data, and no torch

    refused = geometry.refusal(spec, op)
    if refused is not None:
        raise ValueError(refused)
    judge = judge_of(spec, op, device)
    pair = one_tensor(spec, op)
    drawn = [tensor for tensor in op.inputs if tensor.role != "saved" and (pair is None or tensor.name != pair[1])]
    exact = {tensor.name: draw.exact_values(spec, op, tensor, judge) for tensor in drawn}
    if pair is not None:
        exact[pair[1]] = exact[pair[0]]
    return exact | saved(spec, op, exact)


def saved(spec: CaseSpec, op: Op, exact: Exact) -> dict[str, Array | None]:
    """Return the exact values of what a forward saves of these inputs, by the names of inputs of `op`."""
    names = [tensor.name for tensor in op.inputs if tensor.role == "saved"]
    if not names:
        return {}
    forward = ops.forward_of(op)
    summed = exact.get("residual_out")  # a fused addition saves the statistics of the sum
    inputs = exact if summed is None else {**exact, **summed_alone(op, summed)}
    with np.errstate(all="ignore"):
        statistics = call(forward.reference, {**inputs, **attributes(spec, forward)})
    return {name: FORMATS["float32"].round(getattr(statistics, name)) for name in names}


def summed_alone(op: Op, summed: Array) -> dict[str, Array]:
    """Return x and residual of a fused addition whose sum is this, one of them 0, by name."""
    one, zero = geometry.summands(op)
    return {one: summed, zero: np.zeros_like(summed)}


def build(
    spec: CaseSpec,
    op: Op,
    contract: Contract,
    device: str,
    exact: Exact,
    *,
    truth: bool = False,
    poison: float | None = None,
) -> Case:
    """Return a case with these exact values, which the formats of `spec` hold; `truth` adds the expected outputs."""
    from verify_norm.cases import placement
    from verify_norm.cases.device_array import in_memory, on_device

    poison = POISONS[spec.poison] if poison is None else poison
    judge = judge_of(spec, op, device)
    tensors: dict[str, Any] = dict.fromkeys(tensor.name for tensor in op.inputs)
    one, two = _one_tensor(spec, op, contract, exact)
    if judge is None:
        exact = in_memory(exact)
    else:
        exact = {name: None if values is None else on_device(values, judge) for name, values in exact.items()}
    wanted: dict[str, tuple[Any, str, str]] = {}
    for tensor in op.inputs:
        values, dtype = exact[tensor.name], geometry.input_dtype(tensor, spec)
        layout = layout_of(spec, tensor.name)
        if values is not None:
            own = op.user_defined and layout_field(tensor.name) == "other_layout"  # a forward's own statistic
            if tensor.role == "saved" and (own or (layout in SHARED and (values != values.flat[:1]).any())):
                layout = "contiguous"
            wanted[tensor.name] = values, dtype, layout
    together = chunks(spec, op, [argument for _, argument in overwritten(contract)])
    tensors |= placement.place_all(wanted, poison, device, together or ())
    if two:
        tensors[two] = tensors[one]
    expected = truths(spec, op, contract, exact) if truth else {}
    return Case(spec, op, {**tensors, **attributes(spec, op)}, exact, expected, poison, contract)


def _one_tensor(spec: CaseSpec, op: Op, contract: Contract, exact: Exact) -> tuple[str, str]:
    """Return the two inputs that are one tensor, where they have one array of values; else no names."""
    pair = one_tensor(spec, op, [argument for _, argument in overwritten(contract)])
    return pair if pair is not None and exact[pair[0]] is exact[pair[1]] else ("", "")


def truths(spec: CaseSpec, op: Op, contract: Contract, exact: Exact) -> dict[str, Expected | None]:
    """Return the truth of every output at these exact inputs, with its error bound; None where there is no output."""
    _keep_freed_memory()
    with np.errstate(all="ignore"):  # the inputs contain NaN, infinities and overflow; the checks judge them
        values = call(op.reference, offer(spec, op, contract, exact))
    deltas = errors(spec, op, contract, exact)
    return {
        tensor.name: None
        if value is None or tensor.name.removeprefix("d") in spec.frozen
        else Expected(value, delta, _dtype(tensor, contract, spec), contract.saturate)
        for tensor, value, delta in zip(op.outputs, values, deltas, strict=True)
    }


@cache
def _keep_freed_memory() -> None:
    """Make the C library keep the memory of freed arrays for the next ones, once for the process.

    NumPy makes an array of every intermediate. By default glibc returns the memory of each large one to the system, and
    a page fault for every 4 KB of the next costs more than the arithmetic. Freeing one block raises the sizes from
    which it does so (M_MMAP_THRESHOLD of mallopt(3)). Nothing touches this block, so it takes no memory. Elsewhere this
    does nothing.
    """
    np.empty(KEPT, np.uint8)


def errors(spec: CaseSpec, op: Op, contract: Contract, exact: Exact, *, given: bool = False) -> tuple[Any, ...]:
    """Return the error bound of each output, absolute and before the last rounding; None for an output that is None.

    If `given`, it is the bound of a kernel that uses the saved statistics.
    """
    arithmetic = promises.arithmetic(contract, spec.dtype, spec.weight_dtype)
    offered = {**offer(spec, op, contract, exact), "arithmetic": arithmetic}
    if given and not op.user_defined:
        offered["given"] = Given(offered.get("mean"), offered["rstd"])
    with np.errstate(all="ignore"):
        return tuple(call(op.error, offered))


def _dtype(tensor: Tensor, contract: Contract, spec: CaseSpec) -> str:
    weighted = spec.weight or tensor.extent == "affine"  # without a weight, y cannot have its type
    weight_dtype = spec.weight_dtype if weighted else None
    return promises.output_dtype(tensor, contract, spec.dtype, weight_dtype, spec.other_dtype, spec.residual_dtype)


def offer(spec: CaseSpec, op: Op, contract: Contract, exact: Exact) -> dict[str, Any]:
    """Return the arguments that a reference may take: inputs, attributes, and how the contract rounds."""
    return {**exact, **attributes(spec, op), **roundings(spec, op, contract)}


def roundings(spec: CaseSpec, op: Op, contract: Contract) -> dict[str, Any]:
    """Return how the contract rounds a fused sum and the first output of a case, as `promises.roundings` does."""
    return promises.roundings(contract, geometry.sum_dtype(spec), _dtype(op.outputs[0], contract, spec))


def call(function: Callable[..., Any], offered: Mapping[str, Any]) -> Any:
    """Call `function` with those of the offered arguments that it names, and return its result."""
    return function(**named(function, offered))


def named(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the offered arguments that the function's signature names; all of them for **kwargs."""
    own = inspect.unwrap(function, stop=_signed)  # as `inspect.signature` does: a kernel has another clock in each case
    try:
        names = _parameters[own]
    except (KeyError, TypeError):  # a TypeError of what has no hash, or no weak reference
        names = _names(own)
        with suppress(TypeError):
            _parameters[own] = names
    return {name: value for name, value in offered.items() if names is None or name in names}


def _signed(function: Callable[..., Any]) -> bool:
    return hasattr(function, "__signature__")


def _names(function: Callable[..., Any]) -> frozenset[str] | None:
    """Return the names of a function's parameters; None if it takes any."""
    parameters = inspect.signature(function).parameters
    every = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return None if every else frozenset(parameters)


# Of functions that were looked at: `inspect.signature` takes 20 µs.
_parameters: WeakKeyDictionary[Callable[..., Any], frozenset[str] | None] = WeakKeyDictionary()


def attributes(spec: CaseSpec, op: Op) -> dict[str, Any]:
    """Return the arguments that are not tensors, by name, such as eps."""
    derived = {"normalized_shape": geometry.affine_shape, "variance_size": geometry.variance_size}
    return {name: derived[name](spec, op) if name in derived else getattr(spec, name) for name in op.attrs}
