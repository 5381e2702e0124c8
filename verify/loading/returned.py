"""Names the outputs that a callable returns, and refuses what is no tensor whose values can be read."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from verify_norm.core.dtypes import FORMATS
from verify_norm.core.op import Op
from verify_norm.loading.argument_names import meant

READABLE = {
    *FORMATS,
    *("float4_e2m1fn_x2", "bool", "uint8", "int8", "int16", "int32", "int64"),
}  # what a finding can show the values of
EXACT = (torch.Tensor, torch.nn.Parameter)
PASSIVE = {  # what a class may define anew without a change of what its tensors hold
    *("__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__slots__", "__firstlineno__"),
    *("__new__", "__init__", "__init_subclass__", "__repr__", "__str__", "__hash__", "__reduce__", "__reduce_ex__"),
}


class RefusedError(Exception):
    """The callable does not take the case, which only a call could tell."""


def named(returned: Any, op: Op) -> dict[str, Any] | str:
    """Return the returned values by output name, tensors as plain ones, or what is wrong with them."""
    found = by_name(returned, op)
    return found if isinstance(found, str) else readable(found)


def by_name(returned: Any, op: Op) -> dict[str, Any] | str:
    """Return the returned values by output name, as they came, or what is wrong with them.

    None for what follows y of a forward is left out, as in a shorter tuple. Beyond the operator's outputs a kernel may
    return numbers and None, which are no outputs; of more tensors it is not known which are meant. The fields of a
    dataclass or a named tuple are by name where all are outputs, else in order. Other people's names count too.
    """
    names = [tensor.name for tensor in op.outputs]
    if own := fields_of(returned) or _named_fields(returned):
        own = _ours(own, names)
        returned = own if own.keys() <= set(names) else tuple(own.values())
    if isinstance(returned, Mapping):
        found = _ours(returned, names)
        known = [name for name in found if name in names]
        unknown = [name for name, value in found.items() if name not in names and isinstance(value, torch.Tensor)]
        if unknown or (found and not known):
            wrong = f"it returned {', '.join(map(str, unknown or found))}; {op.name} has {', '.join(names)}"
            order = [name if name in names else "_" for name in found] if known else names[: len(found)]
            return f"{wrong}; {_named_by(order)}"
        found = {name: value for name, value in found.items() if name in names}
    else:
        in_order = _in_order(list(flat(returned)), op)
        if isinstance(in_order, str):
            return in_order
        found = in_order
    if op.forward is None:
        found = {name: value for name, value in found.items() if value is not None or name == names[0]}
    return found


def _ours(returned: Mapping[Any, Any], names: list[str]) -> dict[Any, Any]:
    """Return what came by name, under our names where another one stands for an output that is not there."""
    free = [name for name in names if name not in returned and name != "residual_out"]  # whose others are a y's too
    ours = {key: meant(key, free) for key in returned if isinstance(key, str) and key not in names}
    stands = Counter(ours.values())
    return {(name if (name := ours.get(key)) and stands[name] == 1 else key): value for key, value in returned.items()}


def _in_order(returned: list[Any], op: Op) -> dict[str, Any] | str:
    """Return values by name in the operator's order, or what is wrong with them, with a --bind that names them."""
    names = [tensor.name for tensor in op.outputs]
    values = returned if len(returned) <= len(names) else _tensors(returned)
    found = dict(zip(names, values, strict=False))
    number = next((name for name in list(found)[1:] if not _may_be_output(found[name])), "")
    if len(values) > len(names):
        wrong = f"it returned {len(returned)} values; {op.name} has {len(names)}: {', '.join(names)}"
        rest = iter(names)
        order = [next(rest, "_") if _may_be_output(value) else "_" for value in returned]
    elif number:
        wrong = f"{number} is a {type(found[number]).__name__}, not a tensor"
        order = [name if _may_be_output(value) else "_" for name, value in found.items()]
    else:
        return found
    return f"{wrong}; {_named_by(order)}"


def _named_by(order: list[str]) -> str:
    return f'name what it returns in order, with _ for the rest, such as --bind "-> {", ".join(order)}"'


def fields_of(returned: Any) -> dict[str, Any] | None:
    """Return the fields of a dataclass by name; None for anything else, also for a mapping that is one."""
    if not is_dataclass(returned) or isinstance(returned, (type, Mapping)):
        return None
    return {field.name: getattr(returned, field.name) for field in fields(returned)}


def _named_fields(returned: Any) -> dict[str, Any]:
    """Return the fields of a named tuple by name; none of anything else."""
    names = getattr(returned, "_fields", ()) if isinstance(returned, tuple) else ()
    return dict(zip(names, returned, strict=True)) if names else {}


def readable(found: Mapping[str, Any]) -> dict[str, Any] | str:
    """Return the values with tensors as plain ones, or what is wrong with the first that cannot be read."""
    values = {name: plain(value) for name, value in found.items()}
    problems = ((name, unreadable(value)) for name, value in values.items() if value is not None)
    return next((f"{name} is {problem}" for name, problem in problems if problem is not None), values)


def flat(returned: Any) -> Iterable[Any]:
    """Yield the values of nested tuples and lists, for example of (y, (mean, rstd))."""
    if not isinstance(returned, (tuple, list)):
        yield returned
        return
    for value in returned:
        yield from flat(value)


def _tensors(values: list[Any]) -> list[Any]:
    """Return the values without numbers, texts and types, and without None at the end."""
    kept = [value for value in values if _may_be_output(value)]
    while kept and kept[-1] is None:
        kept.pop()
    return kept


def _may_be_output(value: Any) -> bool:
    return value is None or isinstance(value, torch.Tensor)


def plain(value: Any) -> Any:
    """Return a tensor that is more than one as a plain one on the same memory: what it does when read is not seen.

    One that is negated lazily comes in memory of its own.
    """
    if not isinstance(value, torch.Tensor) or (type(value) in EXACT and not overridden(value) and not value.is_neg()):
        return value
    with torch._C.DisableTorchFunctionSubclass():
        held = torch.Tensor.as_subclass(value, torch.Tensor)
        return torch.resolve_neg(held) if type(held) is torch.Tensor and held.is_neg() else held


def disguise(value: Any) -> str:
    """Return in words how a tensor differs from its memory for who reads it; "" if it does not.

    A subclass that defines nothing of torch.Tensor anew, such as a label, is no disguise. Nor is a new attribute.
    """
    if not isinstance(value, torch.Tensor):
        return ""
    kind = type(value)
    if kind not in EXACT and (names := _redefined(kind)):
        return f"is of {kind.__name__}, a subclass that defines {_listed(names)} of torch.Tensor anew"
    if names := overridden(value):
        return f"has {_listed(names)} of its own, in place of torch.Tensor's"
    return "is negated lazily: its memory holds the opposite sign" if value.is_neg() else ""


def overridden(tensor: torch.Tensor) -> list[str]:
    """Return the attributes of one tensor that hide those of its class."""
    return [name for name in vars(tensor) if hasattr(torch.Tensor, name)]


def _redefined(kind: type) -> list[str]:
    """Return what the classes between a subclass and torch.Tensor define anew."""
    between = kind.__mro__[: kind.__mro__.index(torch.Tensor)]
    return [name for one in between for name in vars(one) if hasattr(torch.Tensor, name) and name not in PASSIVE]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + ", …" * (len(names) > 3)


def unreadable(value: Any) -> str | None:
    """Return what a value is if it is no dense tensor of numbers with memory of its own; None if it is one."""
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}, not a tensor"
    if type(value) not in EXACT:
        return f"a {type(value).__name__}, which has no values of its own"
    kind = str(value.dtype).removeprefix("torch.")
    if value.is_nested or value.layout is not torch.strided:
        return f"a {'nested' if value.is_nested else str(value.layout).removeprefix('torch.')} tensor, not a dense one"
    if kind not in READABLE:
        return f"a tensor of {kind}, whose values cannot be compared"
    try:
        lost = bool(value.numel()) and not value.untyped_storage().data_ptr() and not value.is_meta
    except (RuntimeError, NotImplementedError):
        lost = True
    return "a tensor without memory, for example of a subclass that wraps another" if lost else None
