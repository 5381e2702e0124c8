"""The ranges of a case's numbers: those that annotate the fields of CaseSpec."""

from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np

from verify_norm.core.intervals import LARGEST
from verify_norm.core.spec import CaseSpec

_RANGES = {
    name: part
    for name, hint in get_type_hints(CaseSpec, include_extras=True).items()
    for part in (hint, *get_args(hint))
    if get_origin(part) is Annotated
}


def out_of_range(name: str, value: Any) -> str | None:
    """Return why a field of CaseSpec cannot have a value; None if it can, or if the field has no range.

    A flag counts as 0 or 1, as in unit_offset=True.

    >>> out_of_range("eps", -1), out_of_range("eps", 0.0)
    ('eps: expected a finite number of 0 or more, got -1', None)
    >>> out_of_range("weight_offset", 0.1)
    'weight_offset: expected a number of float32, such as 0.10000000149011612, got 0.1'
    """
    if name not in _RANGES or value is None:
        return None
    kind, bounds, *single = get_args(_RANGES[name])
    least, most = bounds.ge, LARGEST if bounds.le is None else bounds.le
    if isinstance(value, int if kind is int else (int, float)) and least <= value <= most:
        near = _single(value) if single else value
        return None if near == value else f"{name}: expected a number of float32, such as {near!r}, got {value!r:.60}"
    words = "a whole number" if kind is int else "a finite number"
    if most < LARGEST:
        words += f" from {least} to {most}"
    elif least > -LARGEST:
        words += f" of {least} or more"
    return f"{name}: expected {words}, got {value!r:.60}"


def _single(value: float) -> float:
    """Return the nearest number of float32; the largest one of the sign beyond its range."""
    most = float(np.finfo(np.float32).max)
    return float(np.float32(min(max(value, -most), most)))
