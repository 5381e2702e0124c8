"""Tiny cases in which any four choices meet on which a kernel dispatches: it may have a path of its own for them.

A greedy covering array of strength 4: each case is the one in which most sets of choices meet for the first time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations, product
from typing import Any

from verify_norm.cases.axes import STATISTICS
from verify_norm.core.geometry import needed, refusal
from verify_norm.core.spec import CaseSpec, Op

STRENGTH = 4
Choices = Sequence[Mapping[str, Any]]
LEADING, LENGTHS = ((1,), (17,)), ((20,), (1088,))
SAMPLES, POSITIONS = (1, 5), ((2, 3), (33, 33))
CHANNELS, GROUPS = 4, 2


@cache
def array(op: Op, dtypes: tuple[str, ...], seed: int = 0) -> tuple[CaseSpec, ...]:
    """Return the cases; the same arguments give the same ones, and another seed gives them other data."""
    axes = _axes(op, dtypes)
    rows = [row for row in product(*(range(len(axis)) for axis in axes)) if _spec(op, axes, row) is not None]
    numbers: dict[tuple[tuple[int, int], ...], int] = {}
    sets = [
        sum(
            1 << numbers.setdefault(some, len(numbers))
            for some in combinations(tuple(enumerate(row)), min(STRENGTH, len(axes)))
        )
        for row in rows
    ]
    left, chosen = (1 << len(numbers)) - 1, list[CaseSpec]()
    while left:
        best = max(range(len(rows)), key=lambda place: (sets[place] & left).bit_count())
        spec = _spec(op, axes, rows[best])
        assert spec is not None
        chosen.append(replace(spec, seed=(seed * 2**16 + len(chosen)) % 2**64))
        left &= ~sets[best]
    return tuple(chosen)


def _axes(op: Op, dtypes: Sequence[str]) -> list[Choices]:
    """Return the axes: the fields of each choice; those of "outer" and "inner" are parts of the shape."""
    names = {tensor.name for tensor in op.inputs}
    axes: list[Choices] = [[{"dtype": dtype} for dtype in dtypes]]
    if "weight" in names:
        none = [] if op.user_defined else [{"weight": False}]
        axes.append([*none, {}, {"weight_dtype": "other"}])
    if "bias" in names and not op.user_defined:
        axes.append([{"bias": True}, {"bias": False}])
    if op.view == "rows":
        axes.append([{f"{name}_layout": layout for name in _data(op)} for layout in ("contiguous", "row_strided")])
        axes += [[{"outer": shape} for shape in LEADING], [{"inner": shape} for shape in LENGTHS]]
        if "weight_offset" in op.attrs:
            axes.append([{"weight_offset": 0.0}, {"weight_offset": 1.0}])
        return axes
    axes.append([{f"{name}_layout": layout for name in _data(op)} for layout in ("contiguous", "channels_last")])
    axes += [[{"outer": (n,)} for n in SAMPLES], [{"inner": shape} for shape in POSITIONS]]
    if op.view == "channels":
        axes.append(list(STATISTICS.values()))
    return axes


def _data(op: Op) -> list[str]:
    return [t.name for t in op.inputs if t.extent == "data" and t.role != "saved"]


def _spec(op: Op, axes: Sequence[Choices], row: Sequence[int]) -> CaseSpec | None:
    """Return the case of a choice on each axis; None if the operator has none."""
    fields: dict[str, Any] = {}
    for axis, choice in zip(axes, row, strict=True):
        fields |= axis[choice]
    outer, inner = fields.pop("outer"), fields.pop("inner")
    shape = (*outer, *inner) if op.view == "rows" else (*outer, CHANNELS, *inner)
    if "num_groups" in op.attrs:
        fields["num_groups"] = GROUPS
    if fields.get("weight_dtype"):
        fields["weight_dtype"] = "bfloat16" if fields["dtype"] == "float32" else "float32"
    spec = needed(CaseSpec(shape, **fields, further=()), op)
    return None if refusal(spec, op) else spec
