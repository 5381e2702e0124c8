"""What a case can choose, by the declarations of operators, fields and axes: not by the code that draws."""

from functools import cache
from itertools import combinations
from math import prod
from random import Random
from typing import get_args, get_type_hints

import pytest
from hypothesis.internal.conjecture.data import ConjectureData

from verify_norm.cases import axes, covering, placement
from verify_norm.cases.corner_lines import THIRD
from verify_norm.cases.exploration import whatever_is_imported
from verify_norm.core import geometry
from verify_norm.core.dtypes import FORMATS, KERNEL_DTYPES
from verify_norm.core.layouts import layout_of
from verify_norm.core.settings import Settings
from verify_norm.core.spec import COTANGENTS, FAMILIES, FURTHER, LAYOUTS, WEIGHTS, CaseSpec, Special
from verify_norm.core.specials import special_input
from verify_norm.search.planning import table_of

HINTS = get_type_hints(CaseSpec)
OF_WEIGHT = ("contiguous", "every_other", "offset", "own", "scalar")  # a weight of channels has one dimension
FLAGS = ("weight", "bias", "dresidual_out", "training", "running")
VALUES = (
    "modulation",
    "rotary",
    "other_dtype",
    "residual_dtype",
    "dtype",
    "data",
    "dy_data",
    "weight_data",
    "poison",
    "special",
    "frozen",
    "weight_offset",
    *FLAGS,
)
OPTIONS = 10  # directions of a check in one case, at most: `variant` chooses


def axes_of(op):
    """Return the axes of a run in all types, where torch's autograd makes a backward."""
    return axes.axes(op, KERNEL_DTYPES, frozen=bool(op.forward))


def declarations(op):
    """Return what has to be drawn: the values of each choice, by its name."""
    inputs, names = {tensor.name: tensor for tensor in op.inputs}, geometry.differentiable(op)
    of_dy = {"scale_dy", "linearity"} if op.forward is None else set()
    sizes = range(len(names)) if len(names) < 4 else (0, 1, len(names) - 1)
    some = [some for size in sizes for some in combinations(names, size)]
    choices = {
        "dtype": KERNEL_DTYPES,
        "type of weights": ("narrower", "that of x", "wider"),
        "data": FAMILIES,
        "dy_data": COTANGENTS if "dy" in inputs else COTANGENTS[:1],
        "weight_data": WEIGHTS,
        "special": (*get_args(get_args(HINTS["special"])[0]), None),
        "special_in": [name for name in get_args(Special) if name in inputs and inputs[name].extent != "one"],
        "special_at": get_args(HINTS["special_at"]),
        "poison": get_args(HINTS["poison"]),
        "further": [name for name in FURTHER if name not in of_dy],
        "variant": range(OPTIONS),
        "frozen": some if op.forward else ((),),
        "batch": (False, True) if op.view != "channels" else (False,),
        "empty": (False, True),
        "sign of offset": (-1, 0, 1),
        "sign of log2_scale": (-1, 0, 1),
        "sign of dy_log2_scale": (-1, 0, 1) if "dy" in inputs else (0,),
        "weight_offset": (0.0, THIRD, 1.0) if "weight_offset" in op.attrs else (0.0,),
        "momentum": ("0", "between", "1") if "momentum" in op.attrs else (),
        "scale": ("small", "1", "large") if op.scaled else (),
        "modulation": get_args(HINTS["modulation"]) if "shift" in inputs else (),
        "rotary": get_args(HINTS["rotary"]) if "cos" in inputs else (),
        "residual_dtype": (None, "float32") if "residual" in inputs and op.forward is None else (None,),
        "other_dtype": (None, "float32") if any(t.dtype == "other" for t in op.inputs) else (None,),
    }
    given = {"training", "running"} if op.view == "channels" else inputs.keys()
    choices |= {name: (False, True) if name in (given | {"weight"}) else (True,) for name in FLAGS}
    for name, tensor in inputs.items():
        if tensor.extent in ("data", "sample", "position"):
            not_drawn = {"heads_first"} if tensor.extent == "position" else set()  # it has fewer dimensions than x
            not_drawn |= set() if tensor.role == "cotangent" else {"scalar"}
            choices[f"{name}_layout"] = [one for one in LAYOUTS if one not in not_drawn]
            if tensor.role == "cotangent":
                choices[f"{name}_layout, and another of x"] = LAYOUTS
        elif tensor.role == "weight":
            choices[f"{name}_layout"] = (*OF_WEIGHT, *["transposed"] * (op.view == "rows"))
    return choices


def declared(op):
    """Return what has to be drawn, and every value of every axis, as (choice, value)."""
    of_axes = {(axis.name, value) for axis in axes_of(op) for value in axis.choices}
    return of_axes | {(choice, value) for choice, values in declarations(op).items() for value in values}


def chosen(spec, op, its_axes):
    """Return what a case has, as (choice, value); a special value and a layout count where there is a tensor for it."""
    found = {(axis.name, axis.read(spec)) for axis in its_axes}
    found |= {(name, getattr(spec, name)) for name in VALUES} | {("further", name) for name in spec.further}
    of_x, of_weight = (FORMATS[name].dtype.itemsize for name in (spec.dtype, spec.weight_dtype or spec.dtype))
    width = "narrower" if of_weight < of_x else "wider" if of_weight > of_x else "that of x"
    found |= {("type of weights", width), ("variant", spec.variant % OPTIONS), ("batch", spec.batch > 0)}
    found |= {("empty", not prod(spec.shape)), ("momentum", {0: "0", 1: "1"}.get(spec.momentum, "between"))}
    found.add(("scale", "1" if spec.scale == 1 else "large" if spec.scale > 1 else "small"))
    found |= {(f"sign of {name}", (getattr(spec, name) > 0) - (getattr(spec, name) < 0))
              for name in ("offset", "log2_scale", "dy_log2_scale")}  # fmt: skip
    if spec.special:
        found |= {("special_in", special_input(spec, op)), ("special_at", spec.special_at)}
    summed = any(tensor.name == "residual_out" for tensor in op.inputs)
    x = layout_of(spec, "residual_out" if summed else "x")
    for tensor in op.inputs:
        layout = layout_of(spec, tensor.name)
        shape = geometry.shape_of(tensor, spec, op)
        if getattr(spec, tensor.name, True) and (layout == "contiguous" or placement.applies(layout, shape)):
            found.add((f"{tensor.name}_layout", layout))
            if layout != x:
                found.add((f"{tensor.name}_layout, and another of x", layout))
    return found


def missing(op, specs):
    """Return what has to be drawn and is in none of the cases."""
    left, its_axes = declared(op), axes_of(op)
    for spec in specs:
        left -= chosen(spec, op, its_axes)
    return sorted(map(str, left))


def fits(spec, op, elements):
    """Return whether a case is one of the operator, with at most about so many elements."""
    if geometry.refusal(spec, op) or min(spec.shape) < 0 or prod(spec.shape) > 4 * elements:
        return False
    if op.view == "rows":
        affine = spec.shape[len(spec.shape) - spec.normalized_ndim :]
        return spec.num_groups is None and 1 <= len(affine) <= len(spec.shape) <= 5 and min(affine) > 0
    grouped = "num_groups" in op.attrs
    divides = spec.shape[1] % spec.num_groups == 0 if grouped else spec.num_groups is None
    return divides and len(spec.shape) >= 2 and spec.shape[1] > 0


@cache
def in_a_hurry(op, table, *, frozen):
    """Return the cases of a covering array beside a table, with one try for each pair: nearly all fail."""
    with pytest.MonkeyPatch.context() as patch:
        for tries in ("TRIES", "LAST_TRIES"):
            patch.setattr(covering, tries, 1)
        return covering.array.__wrapped__(op, KERNEL_DTYPES, table, frozen=frozen).rows


def default_run(op, *, frozen):
    """Yield the cases of a default run that are not random: the corner table, then a covering array."""
    table = tuple(table_of(op, Settings(), KERNEL_DTYPES, frozen=frozen)[0])
    yield from table
    yield from in_a_hurry(op, table, frozen=frozen)


def drawn(strategy, count):
    """Return what a strategy draws, each anew."""
    numbers = Random(0)
    with whatever_is_imported:
        return [ConjectureData(random=numbers).draw(strategy) for _ in range(count)]
