"""Instances of dataclasses, drawn from their types alone: a new field is drawn the day it exists."""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from math import inf, nan
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from verify_norm.auditing.fingerprint.statement import Tree
from verify_norm.core.contract import Pair

Given = Mapping[tuple[type, str], st.SearchStrategy[Any]]  # a field of a class, which takes these values only
VALUES: dict[Any, tuple[Any, ...]] = {  # few of each type: a document has thousands, and Hypothesis bounds its choices
    bool: (False, True),
    int: (0, 1, -7, 2**53 + 1),
    float: (0.0, -0.0, 0.1, 1.0, -5e-324, 1.7e308, inf, -inf, nan),
    str: ("a", "", '"\\\n', "x̂ ≤ 1", "</script>"),
    Pair: ("y:x", "dx:dy"),
    Tree: (3, (0, 1), ((0, 2), (1, (3, 4)))),
}


def instances(cls: type, given: Given | None = None) -> st.SearchStrategy[Any]:
    """Return a strategy of instances, no field of which has its default, at any depth: a lost field shows."""
    hints, given, made = get_type_hints(cls, include_extras=True), given or {}, dict[str, st.SearchStrategy[Any]]()
    for f in fields(cls):
        default = f.default if f.default_factory is MISSING else f.default_factory()
        made[f.name] = given[cls, f.name] if (cls, f.name) in given else _values(hints[f.name], given, default)
    return st.builds(cls, **made)


def _values(hint: Any, given: Given, default: Any = MISSING) -> st.SearchStrategy[Any]:
    """Return a strategy of values of a type: small, never empty, and not the default."""
    origin, inner = get_origin(hint), get_args(hint)
    listed = inner if origin is Literal else (None,) if hint is type(None) else VALUES.get(hint)
    if listed is not None:
        return st.sampled_from([value for value in listed if value != default])
    if is_dataclass(hint):
        return instances(hint, given)
    if origin in (Union, UnionType):
        return st.one_of(
            [_values(one, given, default) for one in inner if one is not type(None) or default is not None]
        )
    if origin is tuple and inner[-1] is not ...:
        return st.tuples(*(_values(one, given) for one in inner))
    if origin is tuple:
        return st.lists(_values(inner[0], given), min_size=1, max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(*(_values(one, given) for one in inner), min_size=1, max_size=2)
    return st.from_type(hint).filter(lambda value: value != default)


def content(value: Any) -> str:
    """Return all fields in words, at every depth: NaN equals NaN there, and −0 is not 0."""
    return f"{type(value).__name__} {asdict(value)!r}"
