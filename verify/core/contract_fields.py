"""Contracts from fields that a user gives, each validated by its annotation in `Contract`."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from math import inf
from typing import Any, Literal, get_args, get_origin, get_type_hints

from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import ALIASES
from verify_norm.core.errors import UsageError, alternatives, one_of

HINTS: dict[str, Any] = get_type_hints(Contract)


def make(fields: Mapping[str, object]) -> Contract:
    """Return the contract with these fields, the others strict; raises UsageError for the first wrong one.

    A value may be text, as on a command line: "none", "true", "8", "bf16" for a type, or "dx:dy,y:x" for pairs.

    >>> make({"lanes": "8", "xhat": "bf16"}) == Contract(lanes=8, xhat="bfloat16")
    True
    """
    given: dict[str, Any] = {
        one_of("field of a contract", name, HINTS): _read(name, value) for name, value in fields.items()
    }
    for name in HINTS:
        if name in given and not _right(name, given[name]):
            raise UsageError(f"contract: {name}: expected {allowed(name)}, got {fields[name]!r:.60}")
    return Contract(**given)


def checked(contract: Contract) -> Contract:
    """Return the contract; raises UsageError for its first wrong field."""
    return make(asdict(contract))


def allowed(name: str) -> str:
    """Return what a field takes, in words.

    >>> allowed("summation"), allowed("lanes"), allowed("weight_grad")
    ('blocked, sequential or atomic', 'a whole number of 1 or more', 'none, float64, float32, float16 or bfloat16')
    """
    if values := _values(HINTS[name]):
        return alternatives(values)
    words = {bool: "true or false", int: "a whole number of 1 or more", float: "a number of 0 or more"}
    return words.get(HINTS[name], 'pairs of an output and an input, such as "dx:dy"')


def _values(hint: Any) -> list[str]:
    """Return the values that an annotation lists: those of its Literals, after "none" where it takes None."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    parts = sorted(get_args(hint), key=lambda part: part is not type(None))
    return [value for part in parts for value in (["none"] if part is type(None) else _values(part))]


def _read(name: str, value: object) -> object:
    """Return the value that text stands for; what is no text stays."""
    values = _values(HINTS[name])
    if isinstance(value, list):
        return tuple(value)
    taken = values[1:] if values[:1] == ["none"] else values
    if not isinstance(value, str) or value in taken:
        return value
    if name == "inplace":
        return tuple(pair.strip() for pair in value.split(",") if pair.strip())
    if HINTS[name] is int:
        return int(value) if value.isdecimal() else value
    if HINTS[name] is float:
        with suppress(ValueError):
            return float(value)
        return value
    if HINTS[name] is bool:
        return {"true": True, "false": False}.get(value)  # None is neither
    return None if value in values else ALIASES.get(value, value)


def _right(name: str, value: object) -> bool:
    """Return whether a field takes a value."""
    if values := _values(HINTS[name]):
        return value in values if isinstance(value, str) else value is None and values[0] == "none"
    if name == "inplace":
        pairs = value if isinstance(value, tuple) else (None,)
        return all(isinstance(pair, str) and len([side for side in pair.split(":") if side]) == 2 for pair in pairs)
    if HINTS[name] is float:
        return isinstance(value, (int, float)) and type(value) is not bool and 0 <= value < inf
    return type(value) is HINTS[name] and (HINTS[name] is bool or value >= 1)  # type: ignore[operator]  # an int
