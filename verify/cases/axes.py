"""The axes of an operator's cases: each choice of a case that can matter, as named values.

`verify_norm.cases.covering` makes the cases in which any two values of different axes meet.
"""

from collections.abc import Callable, Iterable, Sequence

from verify_norm.cases import further_runs, placement
from verify_norm.cases.axes_of_values import of_values
from verify_norm.cases.axis import Axis, Choices, of_classes, of_field
from verify_norm.cases.corner_lines import STATISTICS, UNTRACKED
from verify_norm.cases.corners import frozen_alike
from verify_norm.cases.sizes import Classes, classes, instances, sizes
from verify_norm.core import ways
from verify_norm.core.geometry import shape_of
from verify_norm.core.layouts import aliases, chunks, layout_of, layouts_drawn, one_tensor
from verify_norm.core.only import applies
from verify_norm.core.op import Op, Tensor
from verify_norm.core.spec import LAYOUTS, WEIGHTS, CaseSpec

EPS = Classes(
    "eps", (0.0, 1e-7, 1e-4, 0.1), ((0.0,), (1e-12, 3e-8), (1e-5, 1e-6, 1.5e-5), (1e-3, 1e-1, 2.0**-7), (1e3,))
)
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


def axes(op: Op, dtypes: Sequence[str], *, frozen: bool = False, gpu: bool = False) -> tuple[Axis, ...]:
    """Return the axes of an operator's cases, those of the shape first.

    `frozen` adds which inputs need no gradient, and the ways of torch's autograd; `gpu` those of a GPU.
    """
    options = _options(op)
    inputs = frozen_alike(op) if frozen else ()
    if inputs:
        options.append(of_field("frozen", ((), *inputs)))
    shape, type_of_x = _shape(op), of_field("dtype", dtypes)
    free = [*shape, type_of_x, *options, *of_values(op), *_memory(op)]
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
    result = [
        of_classes(EPS, "eps"),
        Axis("weight", weights, lambda spec: f"weight {spec.weight_data}" if spec.weight else "no weight"),
        _type_beside_x("weights", "weights", "weight_dtype", WEIGHT_TYPES),
    ]
    if applies("other_dtype", op):
        result.append(_type_beside_x("other inputs", "others", "other_dtype"))
    if applies("residual_dtype", op):
        result.append(_type_beside_x("residual", "residual", "residual_dtype"))
    optional = ("dresidual_out",) if op.user_defined else ("bias", "dresidual_out")
    result += [of_field(name, (True, False)) for name in optional if name in names]
    if "weight_offset" in op.attrs:
        result.append(of_field("weight_offset", (0.0, 1.0)))
    if op.view == "channels":
        kinds = {(way["training"], way["running"]): name for name, way in STATISTICS.items()}
        choices = {name: [way] for name, way in STATISTICS.items()}
        result.append(Axis("statistics", choices, lambda spec: kinds.get((spec.training, spec.running))))
    return result


def _type_beside_x(name: str, words: str, field: str, types: Iterable[str] = ("float32",)) -> Axis:
    """Return the axis of the type of some tensors beside x, which these words name: that of x, or one of `types`."""
    alike = f"{words} of x's type"

    def read(spec: CaseSpec) -> str:
        dtype = getattr(spec, field)
        return alike if dtype in (None, spec.dtype) else f"{dtype} {words}"

    return Axis(f"type of {name}", {alike: [{}]} | {f"{t} {words}": [{field: t}] for t in types}, read)


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
