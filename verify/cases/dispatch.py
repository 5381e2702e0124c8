"""Cases for a kernel's dispatch: it may have a path of its own for any combination of types, layouts and sizes.

In the tiny cases any four choices meet, in the larger ones any three, sizes beyond usual thresholds among them. In rows
of the lengths of models, and in images of their sides and channels, each meets any other choice. Each is a greedy
covering array: the next case is the one in which most sets of choices meet for the first time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations, product
from typing import Any

from verify_norm.cases.corner_lines import STATISTICS
from verify_norm.core.geometry import needed, refusal
from verify_norm.core.op import Op
from verify_norm.core.spec import CaseSpec

STRENGTH, LARGE_STRENGTH, LENGTH_STRENGTH = 4, 3, 2
EPS = 0.03  # unlike any default: a path that uses an eps of its own shows, in 16 bits too
Choices = Sequence[Mapping[str, Any]]
LEADING, LENGTHS = ((1,), (17,)), ((20,), (1088,))
SAMPLES, POSITIONS = (1, 5), ((2, 3), (33, 33), (2, 3, 2))
CHANNELS, GROUPS = 4, 2
# Beyond 4096 rows, 8192 elements of a row, 256 rows of 1024, and 16384 of one row; of each a length of whole vectors,
# and another one. There the rows, and the one row, are also beyond 65,535 and 32,768.
LARGE_ROWS = (((4112, 24), (65541, 6)), ((33, 8200), (34, 8204)), ((264, 1048), (258, 1044)), ((1, 16400), (1, 33002)))
# A few tokens of each hidden size, and of each size of a head: a kernel may have a path of its own for one alone.
HIDDEN: tuple[int, ...] = (384, 512, 768, 896, 1024, 1280, 1536, 2048, 2560, 3072, 3584, 3840, 4096, 5120, 6144, 7168)
HIDDEN += (8192, 10240, 12288, 15360, 16384, 640, 1152, 1600, 2304, 2880, 4608, 5376, 6656)
HEADS = (64, 80, 96, 128, 256)
# Sides of square images, and channels of models, which 32 groups divide.
SIDES = (4, 7, 8, 14, 16, 28, 32, 56, 64, 112)
WIDTHS, OF_MODELS = (64, 128, 256, 320, 512, 640, 960, 1024, 1280, 1920, 2048, 2560), 32
# Samples, channels and positions: many of each, one sample of many channels, and sequences. No tile divides them.
LARGE_GROUPS = ((130, 8, (4, 5)), (2, 6, (131, 130)), (3, 518, (5, 6)), (1, 1032, (7, 9)), (2, 40, (4102,)))
LARGE_CHANNELS = ((1030, 18, ()), (2, 6, (183, 182)), (3, 1030, (4, 6)), (66, 44, (2, 3)))


@cache
def tiny(op: Op, dtypes: tuple[str, ...], seed: int = 0) -> tuple[CaseSpec, ...]:
    """Return the tiny cases; the same arguments give the same ones, and another seed gives them other data."""
    return _covering(op, _axes(op, dtypes), STRENGTH, seed)


@cache
def large(op: Op, dtypes: tuple[str, ...]) -> tuple[CaseSpec, ...]:
    """Return the larger cases: of each two choices one has every size, in each type."""
    specs = _covering(op, _large_axes(op, dtypes), LARGE_STRENGTH, 0)
    return tuple(replace(spec, offset=100.0 if number % 4 == 3 else 0.0) for number, spec in enumerate(specs))


@cache
def lengths(op: Op, dtypes: tuple[str, ...], seed: int = 0) -> tuple[CaseSpec, ...]:
    """Return a few rows of each length that models have, which meets each type, layout, and what may be None.

    Of images it is each side of a square that models have, and each number of channels, with few of the other.
    """
    shapes: list[dict[str, Any]]
    if op.view == "rows":
        shapes = [{"outer": (2, 3, 4), "inner": (length,)} for length in HEADS]
        shapes += [{"outer": (3,), "inner": (length,)} for length in HIDDEN]
        return _covering(op, [shapes, *_options(op, dtypes), *_of_rows(op)], LENGTH_STRENGTH, seed)
    shapes = [{"outer": (2, CHANNELS), "inner": (side, side)} for side in SIDES]
    groups = {"num_groups": OF_MODELS} if "num_groups" in op.attrs else {}
    shapes += [{"outer": (2, channels), "inner": (2, 3), **groups} for channels in WIDTHS]
    axes = [shapes, *_options(op, dtypes), _layouts(op, "channels_last")]
    if op.view == "channels":
        axes.append(list(STATISTICS.values()))
    return _covering(op, axes, LENGTH_STRENGTH, seed)


def _covering(op: Op, axes: Sequence[Choices], strength: int, seed: int) -> tuple[CaseSpec, ...]:
    """Return cases in which any `strength` choices meet that the operator has together."""
    rows = [row for row in product(*(range(len(axis)) for axis in axes)) if _spec(op, axes, row) is not None]
    bits: dict[tuple[tuple[int, int], ...], int] = {}  # the number of each combination of (axis, choice)
    covered = []  # by row: the set of its combinations, one bit for each
    for row in rows:
        combined = combinations(tuple(enumerate(row)), min(strength, len(axes)))
        covered.append(sum(1 << bits.setdefault(combination, len(bits)) for combination in combined))
    missing, specs = (1 << len(bits)) - 1, list[CaseSpec]()
    while missing:
        best = max(range(len(rows)), key=lambda place: (covered[place] & missing).bit_count())
        spec = _spec(op, axes, rows[best])
        assert spec is not None
        specs.append(replace(spec, seed=(seed * 2**16 + len(specs)) % 2**64))
        missing &= ~covered[best]
    return tuple(specs)


def _options(op: Op, dtypes: Sequence[str]) -> list[Choices]:
    """Return the axes of types, and of what may be None: the fields of each choice."""
    names = {tensor.name for tensor in op.inputs}
    axes: list[Choices] = [[{"dtype": dtype} for dtype in dtypes]]
    if "weight" in names:
        none = [] if op.user_defined else [{"weight": False}]
        axes.append([*none, {}, {"weight_dtype": "other"}])
    if "bias" in names and not op.user_defined:
        axes.append([{"bias": True}, {"bias": False}])
    return axes


def _axes(op: Op, dtypes: Sequence[str]) -> list[Choices]:
    """Return the axes of tiny cases; fields "outer" and "inner" are parts of the shape."""
    axes = _options(op, dtypes)
    if op.view == "rows":
        axes += [[{"outer": shape} for shape in LEADING], [{"inner": shape} for shape in LENGTHS]]
        return [*axes, *_of_rows(op)]
    axes.append(_layouts(op, "channels_last"))
    axes += [[{"outer": (n, CHANNELS)} for n in SAMPLES], [{"inner": shape} for shape in POSITIONS]]
    if op.view == "channels":
        axes.append(list(STATISTICS.values()))
    return axes


def _of_rows(op: Op) -> list[Choices]:
    """Return what else a kernel of rows dispatches on: layouts, and an offset of the weight."""
    axes: list[Choices] = [_layouts(op, "row_strided")]
    if "weight_offset" in op.attrs:
        axes.append([{"weight_offset": 0.0}, {"weight_offset": 1.0}])
    return axes


def _large_axes(op: Op, dtypes: Sequence[str]) -> list[Choices]:
    """Return the axes of larger cases; "split" leading dimensions are two: a few samples, or one token of each."""
    axes = _options(op, dtypes)
    samples = any(tensor.extent == "sample" for tensor in op.inputs)
    if samples and len(axes) > 2:  # a modulation is that of a norm with weight and bias, or without both
        axes[1:] = [[{"weight": False, "bias": False}, *axes[1][1:]]]
    if op.view == "rows":
        axes.append([*_layouts(op, "row_strided"), {"apart": True}])
        axes.append([{"sizes": sizes} for sizes in LARGE_ROWS])
        axes.append([{"whole": True}, {"whole": False}])
        if samples:  # many tokens a sample
            return [*axes, [{"split": "tokens"}, {"split": "tokens", "normalized_ndim": 2}]]
        return [*axes, [{}, {"normalized_ndim": 2}, {"split": "any"}]]
    axes.append([*_layouts(op, "channels_last"), {"apart": True}])
    sizes = LARGE_CHANNELS if op.view == "channels" else LARGE_GROUPS
    axes.append([{"outer": (samples, channels), "inner": space} for samples, channels, space in sizes])
    if op.view == "channels":
        return [*axes, list(STATISTICS.values())]
    return [*axes, [{"groups": how} for how in ("one", "some", "all")]] if "num_groups" in op.attrs else axes


def _layouts(op: Op, layout: str) -> list[dict[str, Any]]:
    """Return two choices: all data contiguous, and all in this layout."""
    return [{f"{name}_layout": each for name in _data(op)} for each in ("contiguous", layout)]


def _apart(op: Op, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a layout of all data but x, for example of dy; of x where there is no other data."""
    others = [name for name in _data(op) if name != "x"]
    if op.view != "rows":
        layout = "channels_last" if others else "row_strided"
    elif fields["whole"]:
        layout = "transposed"
    else:
        layout = "expanded" if others else "every_other"
    return {f"{name}_layout": layout for name in others or ["x"]}


def _data(op: Op) -> list[str]:
    """Return the names of the inputs that have the shape of x, without saved ones."""
    return [t.name for t in op.inputs if t.extent == "data" and t.role != "saved"]


def _spec(op: Op, axes: Sequence[Choices], row: Sequence[int]) -> CaseSpec | None:
    """Return the case of a choice on each axis; None if the operator has none."""
    fields: dict[str, Any] = {"num_groups": GROUPS} if "num_groups" in op.attrs else {}
    for axis, choice in zip(axes, row, strict=True):
        fields |= axis[choice]
    if fields.pop("apart", False):
        fields |= _apart(op, fields)
    fields["shape"] = _shape(fields)
    if fields.get("weight_dtype"):
        fields["weight_dtype"] = "bfloat16" if fields["dtype"] == "float32" else "float32"
    spec = needed(CaseSpec(**fields, eps=EPS, further=()), op)
    return None if refusal(spec, op) else spec


def _shape(fields: dict[str, Any]) -> tuple[int, ...]:
    """Return the shape of a case. Takes the choices that decide it out of `fields`, and adds "num_groups"."""
    if "sizes" in fields:
        whole, split = fields.pop("whole"), fields.pop("split", "")
        rows, length = fields.pop("sizes")[0 if whole else 1]
        leading: tuple[int, ...] = (rows,)
        if split:
            leading = (rows, 1) if split == "any" and not whole else _factors(rows)
        normalized = _factors(length) if fields.get("normalized_ndim") == 2 else (length,)
        return (*leading, *normalized)
    outer, inner = fields.pop("outer"), fields.pop("inner")
    if "groups" in fields:
        fields["num_groups"] = {"one": 1, "some": GROUPS, "all": outer[1]}[fields.pop("groups")]
    return (*outer, *inner)


def _factors(number: int) -> tuple[int, int]:
    """Return a number as a product of two, the first of which is small.

    >>> _factors(20), _factors(27), _factors(1)
    ((2, 10), (3, 9), (1, 1))
    """
    first = next(n for n in (2, 3, 1) if number % n == 0)
    return first, number // first
