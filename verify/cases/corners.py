"""The corner table, which always runs first: the lines of an operator's view, as its cases."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, count, zip_longest
from math import ceil, log2, prod
from typing import Any, Literal

from verify_norm.cases import corner_channels as channels
from verify_norm.cases import corner_groups as groups
from verify_norm.cases import corner_large as large
from verify_norm.cases import corner_rows as rows
from verify_norm.cases import dispatch, further_runs
from verify_norm.cases.corner_lines import (
    DROPOUTS,
    FAINT,
    LARGEST,
    LONG,
    OUTPUT_SCALES,
    STRONG,
    SUBNORMAL,
    THIRD,
    Row,
    Topics,
)
from verify_norm.core import ways
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.geometry import differentiable, needed, refusal, row_length, thawed
from verify_norm.core.layouts import aliased, aliases, layouts_drawn
from verify_norm.core.only import applies
from verify_norm.core.op import Op
from verify_norm.core.spec import LAYOUTS, CaseSpec, Special

ROTARIES: tuple[Literal["full", "half", "quarter"], ...] = ("full", "half", "full", "quarter")
AT_EVERY_SIZE = ("memory", "determinism", "batch_invariance")  # further runs whose bugs have thresholds of size
MANY = 2**18  # elements, beyond which half of the cases also have inputs that require gradients


def corners(op: Op, dtypes: tuple[str, ...], *, frozen: bool = False, gpu: bool = False) -> list[CaseSpec]:
    """Return the corner cases of an operator; the dtypes take turns.

    `frozen` adds cases with inputs that need no gradient, for a backward by torch's autograd. `gpu` adds cases that are
    too large for a CPU, and puts layout "far" into 16-bit types, which take the least memory. MANY_ROWS, of a backward,
    and the batches of serving are last: where an interpreter runs a program for each row they take minutes, and a
    search leaves them out.
    """
    narrow = [dtype for dtype in dtypes if FORMATS[dtype].dtype.itemsize == 2] or dtypes
    specs: list[tuple[int, CaseSpec]] = []  # each with its turn among the types
    for number, (turn, (shape, options)) in enumerate((*_table(op), *enumerate(_large(op, gpu)))):
        among = narrow if gpu and "far" in options.values() else dtypes
        if options.get("weight_dtype") == "bfloat16" and "float32" in dtypes:
            among = ("float32",)
        dtype = among[turn % len(among)]
        specs.append((turn, _of(op, CaseSpec(shape=shape, dtype=dtype, seed=number, **scaled(options, dtype)), number)))
    usual = next(spec for _, spec in specs if spec.weight and spec.bias and len(spec.shape) > 2)
    for number, inputs in enumerate(freezable(op) if frozen else (), len(specs)):
        specs.append((number, replace(usual, dtype=dtypes[number % len(dtypes)], frozen=inputs, seed=number)))
    met = [count() for _ in dtypes]
    turned = [further_runs.of_type(spec, next(met[turn % len(met)]), turn % len(met), op) for turn, spec in specs]
    parameters = tuple(name for name in ways.PARAMETERS if frozen and name in differentiable(op))
    if parameters:  # of so few elements that `autograd` takes all its ways
        few = replace(usual, shape=(*usual.shape[:-1], 4), dtype=dtypes[0], frozen=parameters, seed=len(turned))
        turned.append(further_runs.also(further_runs.of_type(few, len(turned), 0, op), ("autograd",)))
    found = further_runs.in_turn(turned, ways.offered(op, autograd=frozen, gpu=gpu))
    if parameters and op.view == "rows":  # all ways of autograd in long rows, for which a rule may have another path
        found.append(needed(CaseSpec((2, 1000), dtypes[0], seed=len(found), further=("autograd",)), op))
    return found


def wide(op: Op, dtypes: tuple[str, ...], *, frozen: bool = False, gpu: bool = False) -> list[CaseSpec]:
    """Return corner cases that are larger than any of `corners` in rows, length or elements; the dtypes take turns.

    Those of `dispatch`, in which a size meets any two choices, come last. A torch kernel runs one in a tenth of a
    second, an interpreter in seconds; each meets as many as its time allows.
    """
    plain, other = {
        "rows": (rows.WIDE_ROWS, large.LARGE_ROWS),
        "groups": (groups.WIDE_GROUPS, large.LARGE_GROUPS),
        "channels": (channels.WIDE_CHANNELS, large.LARGE_CHANNELS),
    }[op.view]
    specs, offered = [], ways.offered(op, autograd=frozen, gpu=gpu)
    recorded = tuple(mode for mode in offered["mode"] if mode in ways.RECORDED)
    for number, (place, (shape, options)) in enumerate((*enumerate(plain), *enumerate(other))):
        turn = place % len(dtypes)
        spec = CaseSpec(shape=shape, dtype=dtypes[turn], seed=number, **scaled(options, dtypes[turn]))
        spec = further_runs.of_type(_of(op, spec, number), number // len(dtypes), turn, op)
        of_modes = ("modes",) if recorded and prod(shape) >= MANY and number % 2 else ()
        specs.append(further_runs.also(spec, (*AT_EVERY_SIZE, *of_modes)))
    few = [spec for spec in specs if prod(spec.shape) < MANY]
    many = [spec for spec in specs if prod(spec.shape) >= MANY]
    met = list[CaseSpec]()
    for number, spec in enumerate(dispatch.large(op, dtypes), len(specs)):
        of_modes = ("modes",) if recorded and number % 2 else ()
        of_sizes = AT_EVERY_SIZE if number % 3 == 0 else ()
        inputs = freezable(op) if frozen and number % 3 == 1 else ()  # one needs no gradient, of many rows
        spec = replace(spec, seed=number, frozen=inputs[number // 3 % len(inputs)] if inputs else ())
        met.append(further_runs.also(thawed(spec, differentiable(op)), (*of_modes, *of_sizes)))
    quick = (mode for mode in offered["mode"] if mode != ways.COMPILED)
    modes = {**offered, "mode": (*recorded, *recorded, *quick)}  # the others have their turns behind these
    turned = (
        *further_runs.in_turn(few, offered),
        *(s for some in (many, met) for s in further_runs.in_turn(some, modes)),
    )
    return sorted(turned, key=lambda spec: spec.seed)


def enormous(op: Op, dtypes: tuple[str, ...]) -> list[CaseSpec]:
    """Return the case of a batch with more than 2^31 elements of x; none of BatchNorm, whose rows depend on others.

    It has the type with the fewest bits, bfloat16 rather than float16, in which sums of so many rows overflow.
    """
    lines: dict[str, Row] = {
        "rows": ((512, 4096), {"batch": 512 * 1025}),
        "groups": ((8, 32, 64, 64), {"batch": 8 * 2049, "num_groups": 8}),
    }
    if op.view not in lines or not dtypes:
        return []
    (shape, options), formats = lines[op.view], {dtype: FORMATS[dtype] for dtype in dtypes}
    dtype = min(formats, key=lambda name: (formats[name].dtype.itemsize, -formats[name].largest))
    return [_of(op, CaseSpec(shape, dtype, further=("batch_invariance",), **options), 0)]


def _of(op: Op, spec: CaseSpec, number: int) -> CaseSpec:
    """Return the case with what the operator takes; its number decides what only some operators have."""
    names = {tensor.name for tensor in op.inputs}
    layout = "contiguous" if spec.batch else LAYOUTS[number % 5]
    absent = [n for n in ("bias", "mean", "rstd", "running_mean", "running_var") if n not in names]
    spec = replace(spec, **{f"{n}_layout": "contiguous" for n in absent})  # type: ignore[arg-type]
    if "bias" not in names:
        spec = replace(spec, bias=True)
    spec = needed(spec, op)
    if "other_layout" in layouts_drawn(op):
        spec = replace(spec, other_layout=layout)
    if "dy" not in names:
        spec = replace(spec, dy_data="random")
    if "residual" in names:
        spec = replace(spec, residual_layout=spec.x_layout, x_layout=layout)
    if "residual_out" in names:
        spec = replace(spec, residual_out_layout=spec.x_layout, x_layout="contiguous", dresidual_out=number % 5 > 0)
        spec = replace(spec, dresidual_out_layout=spec.dy_layout, dy_layout=layout)
    if "weight_offset" in op.attrs and number % 4 == 3:
        spec = replace(spec, weight_offset={3: THIRD, 11: -0.25}.get(number % 16, 1.0))  # Gemma's is 1
    if "mask" in names:
        spec = replace(spec, mask_layout=layout, dropout_p=DROPOUTS[number % len(DROPOUTS)])
    if "gate" in names:
        spec = replace(spec, gate_layout=layout)
    if "shift" in names:
        spec = _modulated(spec, (number + number // 3) % 3)
        spec = replace(spec, scale_layout=layout)
        spec = replace(spec, shift_layout="contiguous" if spec.batch else LAYOUTS[(number + 2) % 5])
    if "cos" in names:
        other = "contiguous" if spec.batch else LAYOUTS[(number + 2) % 5]
        stays = bool(spec.special) and spec.special_in == "weight"  # the special value, behind what turns
        rotary = "half" if stays else ROTARIES[number % len(ROTARIES)]
        spec = replace(spec, rotary=rotary, cos_layout=layout, sin_layout=other)
    if applies("other_dtype", op) and spec.dtype != "float32" and number // 3 % 3 == 0:
        spec = replace(spec, other_dtype="float32")  # as tables and modulations often are
    if op.takes_residual and spec.dtype != "float32" and number // 3 % 4 == 1:
        spec = replace(spec, residual_dtype="float32")  # as a stream that adds up many layers often is
    if "variance_size" in op.attrs:
        spec = replace(spec, variance_size=(None, 1, most_of(row_length(spec, op)), 7, LONG)[number % 5])
    if op.scaled:
        spec = replace(spec, scale=OUTPUT_SCALES[number % len(OUTPUT_SCALES)])
    if "num_groups" not in op.attrs:
        spec = replace(spec, num_groups=None)  # InstanceNorm
    if spec.alias and (pairs := aliases(op)):
        spec = aliased(replace(spec, alias=spec.alias if spec.alias in pairs else pairs[number % len(pairs)]), op)
    elif spec.alias:
        spec = replace(spec, alias="")
    return _specially(op, spec) if spec.special else spec


def most_of(length: int) -> int:
    """Return three quarters of the length of a row: a variance_size that is more than half."""
    return max(3 * length // 4, 1)


def _modulated(spec: CaseSpec, kind: int) -> CaseSpec:
    """Return the case with a scale and a shift for each token, for each row of x, or for all rows, which are tokens."""
    leading = len(spec.shape) - spec.normalized_ndim
    if kind == 1:
        return replace(spec, modulation="token" if leading else "sample")
    loose = "loose" in (spec.x_layout, spec.dy_layout)
    samples = 2 if spec.shape[0] % 2 == 0 else 1
    many = kind == 2 and leading == 1 and not spec.batch and not loose
    return replace(spec, shape=(samples, spec.shape[0] // samples, *spec.shape[1:])) if many else spec


def _specially(op: Op, spec: CaseSpec) -> CaseSpec:
    """Return the case with its special value in an input that it has; those of a fused addition come first."""
    instead: dict[Special, tuple[Special, ...]] = {
        "x": (),
        "dy": ("dy", "residual"),
        "bias": ("dresidual_out", "bias", "residual"),
    }
    names: tuple[Special, ...] = (*instead.get(spec.special_in, (spec.special_in,)), "residual_out", "x")
    return next(one for name in names if refusal(one := replace(spec, special_in=name), op) is None)


def freezable(op: Op) -> tuple[tuple[str, ...], ...]:
    """Return the sets of inputs of a backward that may need no gradient: neither none nor all of them.

    Of four and more inputs, one, two, or all but one, and the parameters or the data alone.
    """
    names = differentiable(op)
    pairs = tuple(combinations(names, 2)) if len(names) > 3 else ()
    return tuple(dict.fromkeys((*frozen_alike(op), *pairs)))


def frozen_alike(op: Op) -> tuple[tuple[str, ...], ...]:
    """Return those of `freezable` that meet all other choices: of many inputs no pairs, which are many."""
    names = differentiable(op)
    if len(names) < 4:
        return tuple(some for size in range(1, len(names)) for some in combinations(names, size))
    parts = (tuple(name for name in names if (name in ways.PARAMETERS) is so) for so in (True, False))
    few = tuple(some for size in (1, len(names) - 1) for some in combinations(names, size))
    return tuple(dict.fromkeys((*few, *(some for some in parts if some))))


def _table(op: Op) -> list[tuple[int, Row]]:
    """Return the lines of an operator in their order, each with its turn among the types."""
    if op.view != "channels":
        return list(_in_turn(rows.ROW_CORNERS if op.view == "rows" else groups.GROUP_CORNERS))
    training = list(_in_turn(channels.CHANNEL_CORNERS))
    fixed = [(turn + 1, (shape, o | {"training": False})) for turn, (shape, o) in training if "running" not in o]
    one = (0, ((1, 3, 1), {"training": False}))  # one value a channel: training has no variance
    return [*training, *fixed, one]


def _in_turn(topics: Topics) -> Iterator[tuple[int, Row]]:
    """Yield the first line of every topic, then the second ones, …; neighbours in a topic are one turn apart."""
    for place, lines in enumerate(zip_longest(*topics.values())):
        yield from ((place + topic, line) for topic, line in enumerate(lines) if line is not None)


def _large(op: Op, gpu: bool) -> tuple[Row, ...]:
    """Return the lines that may take long."""
    if op.view == "rows":
        many = rows.MANY_ROWS if op.forward else ()
        crowded = rows.CROWDED_ROWS if op.forward and gpu else ()
        on_gpu = rows.GPU_ROW_CORNERS + rows.GPU_SERVING_ROWS if gpu else ()
        return (*many, *rows.SERVING_ROWS, *crowded, *on_gpu)
    return (*groups.SERVING_GROUPS, *(groups.GPU_GROUP_CORNERS if gpu else ())) if op.view == "groups" else ()


def exponent(scale: int | str, dtype: str) -> int:
    """Return a scale, perhaps a named one, as an exponent of 2 in a type.

    Most values are subnormal, or ±1 scaled to the largest number; a gradient is far from 1, but not beyond the type.
    """
    if isinstance(scale, int):
        return scale
    form = FORMATS[dtype]
    faint, strong = (-60, 60) if form.emin < -60 else (-20, 13)
    return {SUBNORMAL: form.emin - 1, LARGEST: ceil(log2(form.largest)), FAINT: faint, STRONG: strong}[scale]


def scaled(options: dict[str, Any], dtype: str) -> dict[str, Any]:
    """Return the options with named scales as exponents."""
    scales = {name: exponent(options.get(name, 0), dtype) for name in ("log2_scale", "dy_log2_scale")}
    narrow = {"weight_dtype": "float32"} if "weight_dtype" in options and dtype != "float32" else {}
    return options | narrow | scales
