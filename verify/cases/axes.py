"""The axes of an operator's cases: each choice of a case that can matter, as named values.

`verify_norm.cases.covering` makes the cases in which any two values of different axes meet.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, get_args, get_type_hints

from verify_norm.cases import further_runs, placement
from verify_norm.cases.corner_lines import (
    DROPOUTS,
    FAINT,
    LARGEST,
    LONG,
    OUTPUT_SCALES,
    STATISTICS,
    STRONG,
    SUBNORMAL,
    UNTRACKED,
)
from verify_norm.cases.corners import exponent, frozen_alike
from verify_norm.cases.sizes import Classes, classes, instances, sizes
from verify_norm.core import ways
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.geometry import ROTARY, shape_of
from verify_norm.core.layouts import aliases, chunks, layout_of, layouts_drawn, one_tensor
from verify_norm.core.only import applies
from verify_norm.core.op import Op, Tensor
from verify_norm.core.spec import COTANGENTS, FAMILIES, LAYOUTS, WEIGHTS, CaseSpec
from verify_norm.core.specials import specials

Read = Callable[[CaseSpec], str | None]
Choices = Mapping[str, Sequence[Any]]  # by value
EPS = Classes(
    "eps", (0.0, 1e-7, 1e-4, 0.1), ((0.0,), (1e-12, 3e-8), (1e-5, 1e-6, 1.5e-5), (1e-3, 1e-1, 2.0**-7), (1e3,))
)
OFFSET = Classes("|offset|", (0.0, 10.0, 100.0), ((0.0,), (1.0, -10.0), (100.0, -100.0), (1e4, -1e3)))
MOMENTUM = Classes("momentum", (0.0, 0.99), ((0.0,), (0.1, 0.3, 1e-3, 0.9), (1.0,)))
SCALES = {"usual x": 0, "small x": -8, "subnormal x": SUBNORMAL, "large x": 7, "largest x": LARGEST}
DY_SCALES: dict[str, int | str] = {
    "usual dy": 0,
    "small dy": -12,
    "faint dy": FAINT,
    "large dy": 10,
    "strong dy": STRONG,
}
MODULATIONS = get_args(get_type_hints(CaseSpec)["modulation"])
WEIGHT_TYPES = ("float32", "float16", "bfloat16")
OF_FEW_SHAPES = ("loose", "heads_first")  # layouts of the corners and of random cases, no axis
MEETING = ("mode", "call", "autograd")  # fields whose ways meet types, shapes and options; those of others meet types
# Values that hide all other choices: there is no result, it is b or a constant times x, or it overflows.
HIDING = frozenset(
    {
        *("rows ≤ 0", "samples ≤ 0", "N ≤ 1", "eps > 0.1", "data zero", "data constant", "weight zero"),
        *("subnormal x", "largest x", "dy_data zero", "special_in weight"),
        *("expanded_last x", "expanded_last residual", "expanded_last residual_out"),
        *("expanded_inner x", "expanded_inner residual", "expanded_inner residual_out"),
    }
)


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: its values by name, each with the `choices` that give it, of which a case takes one.

    A choice is a number for an axis of the shape, else fields of a CaseSpec. Values of an axis that is not `free`
    follow from those of others: their choice is a tuple of these. `read` returns the value of a case, None if the axis
    does not apply to it. Values `of_memory` say where elements lie. Each value meets those of the axes `beside`, or of
    all axes if that is empty.
    """

    name: str
    choices: Choices
    read: Read
    of_memory: bool = False
    beside: tuple[str, ...] = ()
    free: bool = True


def axes(op: Op, dtypes: Sequence[str], *, frozen: bool = False, gpu: bool = False) -> tuple[Axis, ...]:
    """Return the axes of an operator's cases, those of the shape first.

    `frozen` adds which inputs need no gradient, and the ways of torch's autograd; `gpu` those of a GPU.
    """
    options = _options(op)
    inputs = frozen_alike(op) if frozen else ()
    if inputs:
        options.append(_field("frozen", ((), *inputs)))
    shape, type_of_x = _shape(op), _field("dtype", dtypes)
    free = [*shape, type_of_x, *options, *_data(op), *_memory(op)]
    checks = [_check_axis(name, free) for name in further_runs.checks(op)]
    of_ways = []
    for field, names in ways.offered(op, autograd=frozen, gpu=gpu).items():
        beside = (type_of_x, *shape, *options) if field in MEETING else (type_of_x,)
        for way in names:
            types = _types(way, dtypes)
            if types:
                of_ways.append(_way_axis(field, way, types, beside))
    return (*free, _type_and_length(op, dtypes, options), *checks, *of_ways)


def layouts(tensor: Tensor, op: Op) -> tuple[str, ...]:
    """Return the layouts that a tensor may have: a weight of channels has one dimension, a scalar x has no variance.

    A scalar weight is one number expanded, for example for a norm without parameters.
    """
    one_dimensional = ("contiguous", "every_other", "offset", "own")
    if tensor.role == "weight":
        return (*one_dimensional, "scalar", "transposed") if op.view == "rows" else (*one_dimensional, "scalar")
    if tensor.extent not in ("data", "sample", "position"):
        return one_dimensional
    left_out = {"heads_first"} if tensor.extent == "position" else set()  # it has fewer dimensions than x
    if tensor.role != "cotangent":
        left_out.add("scalar")
    return tuple(layout for layout in LAYOUTS if layout not in left_out)


def _field(field: str, values: Iterable[Any]) -> Axis:
    """Return the axis of a field of CaseSpec, with a value for each of these."""
    return Axis(field, {f"{field} {value}": [{field: value}] for value in values}, _reader(field))


def _reader(field: str) -> Read:
    return lambda spec: f"{field} {getattr(spec, field)}"


def _classes(numbers: Classes, field: str) -> Axis:
    """Return the axis of the classes of a field's magnitude."""
    choices = {name: [{field: value} for value in examples] for name, examples in numbers.items()}
    return Axis(numbers.of_what, choices, lambda spec: numbers.of(abs(getattr(spec, field))))


def _shape(op: Op) -> list[Axis]:
    """Return the axes of the sizes, in their order, and of the numbers of dimensions, as `sizes.shaped` takes them."""

    def axis(place: int, numbers: Classes) -> Axis:
        return Axis(numbers.of_what, dict(numbers.items()), lambda spec: numbers.of(sizes(spec, op)[place]))

    def dimensions(which: str, counts: Iterable[int], count: Callable[[CaseSpec], int]) -> Axis:
        return Axis(
            f"{which} dimensions",
            {f"{n} {which} dimensions": [n] for n in counts},
            lambda spec: f"{count(spec)} {which} dimensions",
        )

    of_sizes = [axis(place, numbers) for place, numbers in enumerate(classes(op))]
    if op.view == "rows":
        leading = dimensions("leading", (0, 1, 2, 3), lambda spec: len(spec.shape) - spec.normalized_ndim)
        return [*of_sizes, leading, dimensions("normalized", (1, 2, 3), lambda spec: spec.normalized_ndim)]
    return [
        *of_sizes,
        dimensions("leading", (2,), lambda spec: 2),
        dimensions("spatial", (0, 1, 2, 3)[instances(op) :], lambda spec: len(spec.shape) - 2),
    ]


def _options(op: Op) -> list[Axis]:
    """Return the axes of what the code of a kernel branches on."""
    names = {tensor.name for tensor in op.inputs}
    without = {} if op.user_defined else {"no weight": [{"weight": False}]}
    weights: Choices = without | {f"weight {data}": [{"weight_data": data}] for data in WEIGHTS}
    types: Choices = {"weights of x's type": [{}]} | {f"{t} weights": [{"weight_dtype": t}] for t in WEIGHT_TYPES}
    result = [
        _classes(EPS, "eps"),
        Axis("weight", weights, lambda spec: f"weight {spec.weight_data}" if spec.weight else "no weight"),
        Axis("type of weights", types, _type_of_weights),
    ]
    if applies("other_dtype", op):
        result.append(
            Axis(
                "type of other inputs",
                {"others of x's type": [{}], "float32 others": [{"other_dtype": "float32"}]},
                _type_of_others,
            )
        )
    if op.takes_residual:
        residuals: Choices = {"residual of x's type": [{}], "float32 residual": [{"residual_dtype": "float32"}]}
        result.append(Axis("type of residual", residuals, _type_of_residual))
    optional = ("dresidual_out",) if op.user_defined else ("bias", "dresidual_out")
    result += [_field(name, (True, False)) for name in optional if name in names]
    if "weight_offset" in op.attrs:
        result.append(_field("weight_offset", (0.0, 1.0)))
    if op.view == "channels":
        kinds = {(way["training"], way["running"]): name for name, way in STATISTICS.items()}
        choices = {name: [way] for name, way in STATISTICS.items()}
        result.append(Axis("statistics", choices, lambda spec: kinds.get((spec.training, spec.running))))
    return result


def _type_of_weights(spec: CaseSpec) -> str:
    return "weights of x's type" if spec.weight_dtype in (None, spec.dtype) else f"{spec.weight_dtype} weights"


def _type_of_others(spec: CaseSpec) -> str:
    return "others of x's type" if spec.other_dtype in (None, spec.dtype) else f"{spec.other_dtype} others"


def _type_of_residual(spec: CaseSpec) -> str:
    return "residual of x's type" if spec.residual_dtype in (None, spec.dtype) else f"{spec.residual_dtype} residual"


def _data(op: Op) -> list[Axis]:
    """Return the axes of values."""
    scales = {name: [{"log2_scale": value}] for name, value in SCALES.items()}
    result = [_field("data", FAMILIES), _classes(OFFSET, "offset"), Axis("scale of x", scales, _scale)]
    result += [*_special(op), _field("poison", ("nan", "finite"))]
    if op.forward:
        scales = {name: [{"dy_log2_scale": value}] for name, value in DY_SCALES.items()}
        result += [
            _field("dy_data", COTANGENTS),
            Axis("scale of dy", scales, lambda spec: _dy_scale(spec.dtype, spec.dy_log2_scale)),
        ]
    if "momentum" in op.attrs:
        result.append(_classes(MOMENTUM, "momentum"))
    if op.scaled:
        result.append(_field("scale", OUTPUT_SCALES))
    if any(tensor.extent == "sample" for tensor in op.inputs):
        result.append(_field("modulation", MODULATIONS))
    if "dropout_p" in op.attrs:
        result.append(_field("dropout_p", DROPOUTS))
    if "variance_size" in op.attrs:
        parts = {None: "half of a row", 1: "its first element", LONG: "the whole row"}
        choices = {words: [{"variance_size": size}] for size, words in parts.items()}
        result.append(Axis("variance_size", choices, lambda spec: parts.get(spec.variance_size)))
    if any(tensor.extent == "position" for tensor in op.inputs):
        result.append(_field("rotary", ROTARY))
    return result


def _special(op: Op) -> list[Axis]:
    """Return the axes of special values: which, in which input, and where. They meet types, sizes and each other."""
    inputs = specials(op)
    beside = ("dtype", "special", "special_in", "special_at", *(c.of_what for c in classes(op)))

    def where(field: str, values: Iterable[str]) -> Axis:
        axis = _field(field, values)
        return replace(axis, beside=beside, read=lambda spec: axis.read(spec) if spec.special else None)

    places = get_args(get_type_hints(CaseSpec)["special_at"])
    return [
        _field("special", (None, "nan", "inf", "-inf", "nan+inf")),
        where("special_in", inputs),
        where("special_at", places),
    ]


def _scale(spec: CaseSpec) -> str:
    form, power = FORMATS[spec.dtype], spec.log2_scale
    if power == 0:
        return "usual x"
    if power > 0:
        return "largest x" if power >= form.emax else "large x"
    return "subnormal x" if power <= form.emin else "small x"


@cache
def _dy_scale(dtype: str, log2_scale: int) -> str:
    exponents = {name: exponent(value, dtype) for name, value in DY_SCALES.items()}
    return min(exponents, key=lambda name: abs(exponents[name] - log2_scale))


def _memory(op: Op) -> list[Axis]:
    """Return the axes of layouts, and of inputs that are one tensor."""

    def axis(field: str, tensor: Tensor) -> Axis:
        name = tensor.name

        def read(spec: CaseSpec) -> str | None:
            if tensor.optional and not getattr(spec, "running" if name.startswith("running_") else name):
                return None
            layout, shape = layout_of(spec, name), shape_of(tensor, spec, op)
            return f"{layout if placement.applies(layout, shape) else 'contiguous'} {name}"

        drawn = [layout for layout in layouts(tensor, op) if layout not in OF_FEW_SHAPES]
        return Axis(field, {f"{layout} {name}": [{field: layout}] for layout in drawn}, read, of_memory=True)

    of_layouts = [axis(field, tensor) for field, tensor in layouts_drawn(op).items()]
    choices = {"inputs apart": [{"alias": ""}]} | {f"one tensor {pair}": [{"alias": pair}] for pair in aliases(op)}

    def read(spec: CaseSpec) -> str:
        return f"one tensor {spec.alias}" if one_tensor(spec, op) or chunks(spec, op) else "inputs apart"

    if len(choices) == 1:
        return of_layouts
    beside = ("dtype", *(c.of_what for c in classes(op)))
    return [*of_layouts, Axis("alias", choices, read, of_memory=True, beside=beside)]


def _type_and_length(op: Op, dtypes: Sequence[str], options: Iterable[Axis]) -> Axis:
    """Return the axis of types and lengths together, for which a kernel is compiled: they meet each option."""
    last = classes(op)[-1]
    choices = {
        f"{dtype}, {name}": [(f"dtype {dtype}", name)] for dtype in dtypes for name in last.names if name not in HIDING
    }

    def read(spec: CaseSpec) -> str:
        return f"{spec.dtype}, {last.of(sizes(spec, op)[-1])}"

    return Axis("type and length", choices, read, beside=tuple(axis.name for axis in options), free=False)


def _check_axis(name: str, beside: Iterable[Axis]) -> Axis:
    """Return the axis of a check that runs the kernel again, which has one value."""

    def read(spec: CaseSpec) -> str | None:
        return name if name in spec.further else None

    return Axis(f"check {name}", {name: [()]}, read, beside=tuple(axis.name for axis in beside), free=False)


def _types(way: str, dtypes: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the choice of a way: the types that a case has with it; empty if several fit. Nothing if none fits."""
    if way == ways.UNTRACKED:
        return [(UNTRACKED,)]
    pairs = [(dtype, weights) for dtype in dtypes for weights in (None, *WEIGHT_TYPES) if weights != dtype]
    fit = [(d, weights) for d, weights in pairs if ways.fits(way, CaseSpec((2,), d, weight_dtype=weights))]
    if len(fit) != 1:
        return [()] if fit else []
    ((dtype, weights),) = fit
    return [(f"dtype {dtype}", f"{weights} weights" if weights else "weights of x's type")]


def _way_axis(field: str, name: str, types: Sequence[tuple[str, ...]], beside: Iterable[Axis]) -> Axis:
    """Return the axis of a way that a check takes, which has one value: a case may take several."""
    value = f"{field} {name}"

    def read(spec: CaseSpec) -> str | None:
        asked = ways.CHECKS[field] in spec.further and ways.taken(spec, field, (name,))
        return value if asked and ways.fits(name, spec) else None

    return Axis(value, {value: types}, read, beside=tuple(axis.name for axis in beside), free=False)
