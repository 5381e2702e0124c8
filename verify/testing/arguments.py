"""What a test passes: its tensors as exact values, bound to an operator's inputs by place and name, and their case."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from verify_norm.core import geometry
from verify_norm.core.chains import is_chain, operators_of
from verify_norm.core.dtypes import FORMATS, KERNEL_DTYPES, Array
from verify_norm.core.errors import LIST, UsageError, alternatives, one_of, quoted
from verify_norm.core.op import Op, Tensor
from verify_norm.core.ops import OPS, base, resolved
from verify_norm.core.ranges import out_of_range
from verify_norm.core.spec import CaseSpec
from verify_norm.core.user_operators import Operator, is_own

STATISTICS = ("mean", "rstd")  # that a backward may be given


@dataclass(frozen=True, slots=True)
class Values:
    """A tensor's exact values, in its shape, and the name of its type."""

    values: Array
    dtype: str


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operator: its case, the exact values of its inputs, and the statistics that a kernel was given."""

    op: Op
    spec: CaseSpec
    exact: Mapping[str, Array | None]
    given: Mapping[str, Values]


def operator(name: object, direction: str, activation: str | None = None) -> Op:
    """Return the operator of a name, which may lack its direction, "fwd" or "bwd"; raises UsageError.

    >>> operator("groupnorm", "bwd", "silu").name
    'groupnorm_silu_bwd'
    """
    if not isinstance(name, (str, Operator)):
        got = f"{_article(type(name).__name__)}: it follows the results" if hasattr(name, "__array__") else quoted(name)
        raise UsageError(f'operator: expected a name as "layernorm", got {got}')
    name, constants = resolved(name)
    if is_own(name):
        return OPS[f"{base(name)}_{direction}"]
    if constants:
        raise UsageError(f"{name}: expected {constants} as an option of this call, not inside the chain")
    bases = [*dict.fromkeys(map(base, OPS)), *[base(name)] * is_chain(name)]
    one_of("operator", name, (*OPS, *bases, *[name] * is_chain(name)), see=LIST)
    told = name.removeprefix(base(name)).lstrip("_") or direction
    found = base(name) if activation is None else f"{base(name)}_{activation}"
    one_of("operator", found, bases, see=LIST)
    ways = [op.name for op in operators_of(f"{found}_fwd")] if is_chain(found) else OPS
    if f"{found}_{direction}" not in ways:
        raise UsageError(f"{found} has no gradients: its only operator is {found}_fwd")
    if told != direction:
        raise UsageError(f"operator: expected a name that ends in _{direction}, or {base(name)!r}, got {name!r}")
    return OPS[f"{found}_{direction}"]


def read(value: Any, name: str) -> Values:
    """Return the values of a torch tensor on any device, of a NumPy array, or of what NumPy makes an array of.

    Raises UsageError for anything else, and for a tensor or an array whose values cannot be read.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        from verify_norm.cases import contents
        from verify_norm.loading import returned

        value = returned.plain(value)
        if (problem := returned.unreadable(value)) is not None or value.is_meta:
            raise UsageError(f"{name}: expected values that can be compared, got {problem or 'a meta tensor'}")
        return Values(contents.to_float64(value), contents.dtype_name(value))
    if not hasattr(value, "__array__"):
        raise UsageError(f"{name}: expected a torch tensor or a NumPy array, got {_article(type(value).__name__)}")
    array = np.asarray(value)
    if array.dtype.name not in FORMATS and array.dtype.kind not in "biu":
        raise UsageError(f"{name}: expected an array of real numbers, got one of {array.dtype.name}")
    return Values(array.astype(np.float64), array.dtype.name)


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiouAEIOU' else 'a'} {noun}"


def bound(op: Op, tensors: Sequence[Any], options: Mapping[str, Any]) -> Call:
    """Return the call of `op` with these tensors, in the order of its inputs that no option names, and these options.

    Raises UsageError for what the operator lacks or needs, and for a shape, a type or a number that does not fit.
    """
    inputs = {tensor.name: tensor for tensor in op.inputs}
    _refuse_foreign(op, options)
    free = [name for name in inputs if name not in options]
    if len(tensors) > len(free):
        raise UsageError(f"{op.name}: expected at most {len(free)} tensors ({', '.join(free)}), got {len(tensors)}")
    passed = dict(zip(free, tensors, strict=False)) | {name: options[name] for name in inputs if name in options}
    if isinstance(passed.get("scale"), (int, float)):
        passed["scale"] = np.array([passed["scale"]], np.float32)
    given = {name: read(value, name) for name, value in passed.items() if value is not None}
    for name, tensor in inputs.items():
        if name not in given and not tensor.optional and tensor.role != "saved":
            raise UsageError(f"{op.name} needs {name}; its inputs are {', '.join(inputs)}")
    attributes = {name: value for name, value in options.items() if name not in inputs}
    for name in ("eps", "dropout_p"):
        if name in op.attrs and name not in attributes:
            raise UsageError(f"{op.name} needs {name}: pass the kernel's, {name}=…")
    spec = _spec(op, given, attributes)
    for name, one in given.items():
        _refuse_unlike(inputs[name], one, spec, op)
    if reason := geometry.refusal(spec, op):
        raise UsageError(reason if reason.startswith(op.name) else f"{op.name}: {reason}")
    exact = {n: one.values.reshape(-1) if inputs[n].extent == "one" else one.values for n, one in given.items()}
    statistics = {name: given[name] for name in STATISTICS if name in given}
    return Call(op, spec, {name: exact.get(name) for name in inputs if name not in STATISTICS}, statistics)


def _refuse_foreign(op: Op, options: Iterable[str]) -> None:
    """Raise UsageError for an option that is none of the operator's inputs and attributes."""
    names = [tensor.name for tensor in op.inputs] + list(op.attrs)
    for name in options:
        if name in names:
            continue
        others = [o.name for o in OPS.values() if name in ({t.name for t in o.inputs} | {*o.attrs})]
        others = [other for other in others if other[-4:] == op.name[-4:]][:3]
        if others:
            raise UsageError(f"{op.name} takes no {name}; {alternatives(others)} does")
        one_of(f"argument of {op.name}", name, names)


def _spec(op: Op, given: Mapping[str, Values], attributes: Mapping[str, Any]) -> CaseSpec:
    """Return the case: its shape, its types, and what of the operator's options is there."""
    x = given.get("x") or given["residual_out"]
    whose = "x" if "x" in given else "residual_out"
    if x.dtype not in KERNEL_DTYPES:
        known = alternatives(KERNEL_DTYPES)
        also = "; the reference itself computes in float64" * (x.dtype == "float64")
        raise UsageError(f"{whose}: expected {known}, got {x.dtype}{also}")
    shape = x.values.shape
    affine = [name for name in ("weight", "bias", "running_mean", "running_var") if name in given]
    affine = [t.name for t in op.inputs if t.extent == "affine"] if op.user_defined else affine
    kind = next((given[t.name].dtype for t in op.inputs if t.dtype == "weight" and t.name in given), x.dtype)
    if kind not in KERNEL_DTYPES:
        raise UsageError(f"{affine[0]}: expected {alternatives(KERNEL_DTYPES)}, got {kind}")
    if not shape or (op.view != "rows" and len(shape) < 2):
        right = "one or more dimensions" if op.view == "rows" else "the shape (B, C, *spatial)"
        raise UsageError(f"{whose}: expected {right}, got the shape {shape}")
    own = {n: v.item() if isinstance(v, np.generic) else v for n, v in attributes.items() if n != "normalized_shape"}
    for name, value in own.items():
        if reason := out_of_range(name, value):
            raise UsageError(reason)
    if not isinstance(own.get("training", True), bool):
        raise UsageError(f"training: expected True or False, got {own['training']!r:.60}")
    flags: dict[str, Any] = {name: name in given or op.user_defined for name in ("weight", "bias", "dresidual_out")}
    modulation = given.get("scale")
    if modulation is not None and modulation.values.shape == shape and any(t.extent == "sample" for t in op.inputs):
        flags["modulation"] = "token"
    if "cos" in given:  # the part of a row that it turns; `_fit` tells what is expected of another one
        columns, n = given["cos"].values.shape[-1:], shape[-1]
        flags["rotary"] = next((part for part, of in geometry.ROTARY.items() if columns == (n // (2 * of),)), "full")
    flags["running"] = {"running_mean", "running_var"} <= given.keys()
    rank = _normalized(attributes.get("normalized_shape"), given, affine, shape, whose) if op.view == "rows" else 1
    other = next((given[name].dtype for name in op.other_inputs if name in given), x.dtype)
    if other not in KERNEL_DTYPES:
        raise UsageError(f"{op.other_inputs[0]}: expected {alternatives(KERNEL_DTYPES)}, got {other}")
    flags["other_dtype"] = None if other == x.dtype else other
    if op.takes_residual and "residual" in given and given["residual"].dtype == "float32" != x.dtype:
        flags["residual_dtype"] = "float32"
    spec = CaseSpec(shape, x.dtype, None if kind == x.dtype else kind, rank, further=(), **flags, **own)
    channels, groups = shape[min(1, len(shape) - 1)], spec.num_groups
    if groups and channels % groups:
        raise UsageError(f"num_groups: {channels} channels cannot be divided into {groups} groups")
    if (spec.variance_size or 0) > geometry.row_length(spec, op):
        raise UsageError(f"variance_size: expected at most {geometry.row_length(spec, op)}, got {spec.variance_size}")
    if op.view != "channels" and not geometry.row_length(spec, op):
        raise UsageError(f"{whose}: expected at least one element to normalize, got the shape {shape}")
    return spec


def _normalized(
    asked: Any, given: Mapping[str, Values], affine: Sequence[str], shape: tuple[int, ...], whose: str
) -> int:
    """Return how many of the last dimensions are normalized: those of `normalized_shape`, else those of the weight."""
    name = "normalized_shape" if asked is not None else affine[0] if affine else ""
    if not name:
        return 1
    whole = given[name].values.shape if asked is None else asked
    tail = (whole,) if isinstance(whole, int) else tuple(whole)
    if not tail or shape[-len(tail) :] != tail:
        raise UsageError(f"{name}: expected the last dimensions of {whose}'s shape {shape}, got {tail}")
    return len(tail)


def _refuse_unlike(tensor: Tensor, one: Values, spec: CaseSpec, op: Op) -> None:
    """Raise UsageError for an input of another shape or type than the operator has it in."""
    shape, name = one.values.shape, tensor.name
    if tensor.extent in ("statistic", "one"):
        count = 1 if tensor.extent == "one" else geometry.rows(spec, op)
        if one.values.size != count:
            raise UsageError(f"{name}: expected {count} values, got the shape {shape}")
    else:
        want = geometry.shape_of(tensor, spec, op)
        if shape != want:
            raise UsageError(f"{name}: expected the shape {want}, got {shape}")
    kind = geometry.input_dtype(tensor, spec)
    if tensor.extent in ("data", "affine", "sample", "position") and one.dtype != kind:
        of_x = ", the type of x"
        whose = {"x": of_x, "residual": of_x, "weight": ", the type of the weight"}.get(tensor.dtype, "")
        raise UsageError(f"{name}: expected {kind}{whose}, got {one.dtype}")


def outputs(actual: Any, op: Op) -> dict[str, Values | None]:
    """Return the outputs that a test passes: a tensor, several in the operator's order, or a mapping by name.

    Raises UsageError for an output that the operator does not have, and where there is none.
    """
    names = [tensor.name for tensor in op.outputs]
    if isinstance(actual, Mapping):
        found = {one_of(f"output of {op.name}", name, names): value for name, value in actual.items()}
    else:
        several = list(_flat(actual))
        if len(several) > len(names):
            raise UsageError(f"actual: expected at most {len(names)} outputs ({', '.join(names)}), got {len(several)}")
        found = dict(zip(names, several, strict=False))
    if op.forward is None:  # as a shorter tuple
        found = {name: value for name, value in found.items() if value is not None}
    if all(value is None for value in found.values()):
        raise UsageError(f"actual: expected one or more of {', '.join(names)}, got {actual!r:.60}")
    return {name: None if value is None else read(value, name) for name, value in found.items()}


def _flat(actual: Any) -> Iterable[Any]:
    """Yield the members of nested tuples and lists, for example of (y, (mean, rstd))."""
    if not isinstance(actual, (tuple, list)):
        yield actual
        return
    for one in actual:
        yield from _flat(one)
