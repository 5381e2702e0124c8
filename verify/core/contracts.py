"""Contracts from fields that a user gives, each validated."""

from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

from verify_norm.core.dtypes import ALIASES, FORMATS
from verify_norm.core.errors import UsageError, one_of
from verify_norm.core.spec import Contract

HINTS: dict[str, Any] = get_type_hints(Contract)
_WIDE = ("float64", "float32", "float16", "bfloat16")
_TYPES: dict[str, tuple[str, ...]] = {
    "accumulate": _WIDE,
    "stats": ("x", *_WIDE),
    "xhat": ("none", "x", *_WIDE),
    "partials": ("x", *_WIDE),
    "output": ("none", "promoted", *FORMATS),
}


def make(fields: Mapping[str, object]) -> Contract:
    """Return the contract with these fields, the others strict; raises UsageError for the first wrong one.

    A value may be text, as on a command line: "none", "true", "8", or "bf16" for a type.

    >>> make({"lanes": "8", "xhat": "bf16"}) == Contract(lanes=8, xhat="bfloat16")
    True
    """
    given: dict[str, Any] = {}
    for name, value in fields.items():
        one_of("field of a contract", name, HINTS)
        text = "none" if value is None else str(value).lower() if isinstance(value, bool) else value
        text = ALIASES.get(text, text) if isinstance(text, str) else text
        if HINTS[name] is int:
            value = int(text) if isinstance(text, str) and text.isdecimal() else text
            fits = isinstance(value, int) and value >= 1
        else:
            fits = isinstance(value, tuple) if name == "inplace" else text in _values(name)
            value = value if name == "inplace" else {"none": None, "true": True, "false": False}.get(str(text), text)
        if not fits:
            raise UsageError(f"contract: {name}: expected {allowed(name)}, got {fields[name]!r:.60}")
        given[name] = value
    return Contract(**given)


def allowed(name: str) -> str:
    """Return what a field takes, in words.

    >>> allowed("summation"), allowed("lanes")
    ('blocked, sequential or atomic', 'a whole number of 1 or more')
    """
    if name in ("inplace", "lanes"):
        return "a whole number of 1 or more" if name == "lanes" else 'pairs of an output and an input, as "dx:dy"'
    values = _values(name)
    return f"{', '.join(values[:-1])} or {values[-1]}"


def _values(name: str) -> tuple[str, ...]:
    return _TYPES.get(name) or (("true", "false") if HINTS[name] is bool else get_args(HINTS[name]))
