"""The axes of cases: which choices an operator has, and that a case shows the value that it was made with."""

from dataclasses import replace

import pytest

from verify_norm.cases.axes import HIDING, axes, layouts
from verify_norm.cases.corners import scaled
from verify_norm.cases.sizes import classes, shaped
from verify_norm.core import ways
from verify_norm.core.layouts import aliased
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec

TYPES = ("float32", "bfloat16")
DATA = "data, |offset|, scale of x, special, special_in, special_at, poison"
OF_DY = f"{DATA}, dy_data, scale of dy"
ROWS = "rows, N, leading dimensions, normalized dimensions, dtype, eps, weight, type of weights"
CHANNELS = "samples, channels, positions, leading dimensions, spatial dimensions, dtype, eps, weight, type of weights"
GROUPS = CHANNELS.replace("channels", "groups, C/G")
RUNNING = "running_mean_layout, running_var_layout"
AXES = {
    "layernorm_fwd": f"{ROWS}, bias, weight_offset, {DATA}, x_layout, weight_layout, bias_layout, alias",
    "rmsnorm_bwd": f"{ROWS}, weight_offset, {OF_DY}, dy_layout, x_layout, weight_layout, alias",
    "partial_rmsnorm_fwd": f"{ROWS}, weight_offset, {DATA}, variance_size, x_layout, weight_layout",
    "dropout_add_rmsnorm_bwd": f"{ROWS}, dresidual_out, weight_offset, {OF_DY}, dropout_p, dy_layout, "
    "dresidual_out_layout, residual_out_layout, mask_layout, weight_layout, alias",
    "add_rmsnorm_fwd": f"{ROWS}, type of residual, weight_offset, {DATA}, x_layout, residual_layout, weight_layout"
    ", alias",
    "qk_norm_rope_fwd": f"{ROWS}, type of other inputs, weight_offset, {DATA}, rotary, x_layout, weight_layout, "
    "cos_layout, sin_layout, alias",
    "modulate_rmsnorm_fwd": f"{ROWS}, type of other inputs, weight_offset, {DATA}, modulation, x_layout, "
    "weight_layout, scale_layout, shift_layout, alias",
    "rmsnorm_fp8_fwd": f"{ROWS}, weight_offset, {DATA}, scale, x_layout, weight_layout",
    "groupnorm_bwd": f"{GROUPS}, bias, {OF_DY}, dy_layout, x_layout, weight_layout, bias_layout, alias",
    "batchnorm_fwd": f"{CHANNELS}, bias, statistics, {DATA}, momentum, x_layout, weight_layout, bias_layout, {RUNNING}"
    ", alias",
    "batchnorm_bwd": f"{CHANNELS}, bias, statistics, {OF_DY}, dy_layout, x_layout, weight_layout, bias_layout, "
    f"{RUNNING}, alias",
    "instancenorm_fwd": f"{CHANNELS}, bias, {DATA}, x_layout, weight_layout, bias_layout, alias",
}
# Every layout of data applies to these shapes.
USUAL = {
    "rows": CaseSpec((2, 3, 4, 64), normalized_ndim=2, dtype="float16"),
    "groups": CaseSpec((2, 6, 5, 3, 4), dtype="float16"),
    "channels": CaseSpec((2, 6, 5, 3, 4), dtype="float16"),
}
BESIDE_OTHERS = (  # and depend on more
    *("scale_layout", "shift_layout", "cos_layout", "sin_layout", "type of weights", "type of other inputs"),
)


def usual(op):
    """Return a case of the operator, in whose place each axis reads a value."""
    return replace(USUAL[op.view], num_groups=3 if "num_groups" in op.attrs else None)


def axis(op, name, dtypes=TYPES, **kinds):
    """Return an axis of an operator by its name."""
    return next(axis for axis in axes(OPS[op], dtypes, **kinds) if axis.name == name)


@pytest.mark.parametrize("op", AXES)
def test_an_operator_has_the_axes_of_what_it_takes(op):
    assert ", ".join(axis.name for axis in axes(OPS[op], TYPES) if axis.free) == AXES[op]


def test_a_users_operator_always_has_its_weights():
    own = replace(OPS["dropout_add_layernorm_bwd"], user_defined=True)
    free = {axis.name: axis for axis in axes(own, TYPES) if axis.free}
    assert "bias" not in free
    assert "dresidual_out" in free
    assert "no weight" not in free["weight"].choices
    assert "no weight" in axis("dropout_add_layernorm_bwd", "weight").choices


@pytest.mark.parametrize("op", AXES)
def test_a_case_reads_as_the_value_that_it_was_made_with(op):
    for axis in axes(OPS[op], TYPES, frozen=True):
        for value, ways_ in axis.choices.items() if axis.free and axis.name not in BESIDE_OTHERS else ():
            for way in ways_:
                if isinstance(way, dict):
                    spec = replace(usual(OPS[op]), **({"special": "nan"} if axis.name.startswith("special_") else {}))
                    fields = {field: of for field, of in scaled(way, "float16").items() if field in way}
                    assert axis.read(aliased(replace(spec, **fields), OPS[op])) == value


@pytest.mark.parametrize("op", AXES)
def test_a_shape_reads_as_the_sizes_that_it_was_made_with(op):
    sizes = classes(OPS[op])
    for place, axis in enumerate(axes(OPS[op], TYPES)[: len(sizes)]):
        assert axis.name == sizes[place].of_what
        for value, numbers in axis.choices.items():
            for number in numbers:
                made = [2] * len(sizes)
                made[place] = number
                assert axis.read(CaseSpec(**shaped(tuple(made), 2, 1, OPS[op]))) == value


@pytest.mark.parametrize(
    ("op", "which", "values"),
    [
        ("rmsnorm_fwd", "leading", {0: (8,), 1: (2, 8), 2: (2, 3, 8), 3: (2, 1, 3, 8)}),
        ("groupnorm_fwd", "spatial", {0: (2, 6), 1: (2, 6, 5), 2: (2, 6, 5, 4), 3: (2, 6, 1, 5, 4)}),
        ("instancenorm_fwd", "spatial", {1: (2, 6, 5), 2: (2, 6, 5, 4), 3: (2, 6, 1, 5, 4)}),
        ("batchnorm_fwd", "leading", {2: (2, 6, 5)}),
    ],
)
def test_shapes_have_every_rank(op, which, values):
    ranks = axis(op, f"{which} dimensions")
    assert dict(ranks.choices) == {f"{n} {which} dimensions": [n] for n in values}
    assert [ranks.read(CaseSpec(shape)) for shape in values.values()] == list(ranks.choices)


def test_one_to_three_dimensions_are_normalized():
    ranks = axis("rmsnorm_fwd", "normalized dimensions")
    assert dict(ranks.choices) == {f"{n} normalized dimensions": [n] for n in (1, 2, 3)}
    assert ranks.read(CaseSpec((2, 3, 4), normalized_ndim=2)) == "2 normalized dimensions"
    leading = axis("rmsnorm_fwd", "leading dimensions")
    assert leading.read(CaseSpec((2, 3, 4), normalized_ndim=2)) == "1 leading dimensions"


@pytest.mark.parametrize(
    ("op", "name", "fields"),
    [
        ("rmsnorm_fwd", "weight_offset", {0.0: {"weight_offset": 0.0}, 1.0: {"weight_offset": 1.0}}),
        (
            "partial_rmsnorm_fwd",
            "variance_size",
            {
                "half of a row": {"variance_size": None},
                "its first element": {"variance_size": 1},
                "the whole row": {"variance_size": 2**20},
            },
        ),
        (
            "batchnorm_fwd",
            "statistics",
            {
                "training": {"training": True, "running": True},
                "training without running statistics": {"training": True, "running": False},
                "evaluation": {"training": False, "running": True},
            },
        ),
    ],
)
def test_an_option_has_these_values(op, name, fields):
    assert [way for ways_ in axis(op, name).choices.values() for way in ways_] == list(fields.values())


@pytest.mark.parametrize(
    ("dtype", "residual", "name"),
    [
        ("bfloat16", None, "residual of x's type"),
        ("float32", "float32", "residual of x's type"),
        ("float16", "float32", "float32 residual"),
    ],
)
def test_a_residual_may_be_float32(dtype, residual, name):
    types = axis("add_rmsnorm_fwd", "type of residual")
    assert types.read(CaseSpec((2, 3), dtype, residual_dtype=residual)) == name
    assert types.choices[name] == ([{"residual_dtype": "float32"}] if name.startswith("float32") else [{}])


@pytest.mark.parametrize(
    ("dtype", "others", "name"),
    [
        ("bfloat16", None, "others of x's type"),
        ("float32", "float32", "others of x's type"),
        ("float16", "float32", "float32 others"),
    ],
)
def test_cos_and_the_like_may_be_float32(dtype, others, name):
    types = axis("qk_norm_rope_fwd", "type of other inputs")
    assert types.read(CaseSpec((2, 3), dtype, other_dtype=others)) == name
    assert types.choices[name] == ([{"other_dtype": "float32"}] if name.startswith("float32") else [{}])


@pytest.mark.parametrize(
    ("dtype", "weights", "name"),
    [
        ("float32", None, "weights of x's type"),
        ("float32", "float32", "weights of x's type"),
        ("float16", "float32", "float32 weights"),
        ("float32", "bfloat16", "bfloat16 weights"),
    ],
)
def test_the_type_of_weights_is_one_beside_that_of_x(dtype, weights, name):
    types = axis("rmsnorm_fwd", "type of weights")
    assert types.read(CaseSpec((2, 3), dtype, weight_dtype=weights)) == name
    assert types.choices[name] == ([{}] if weights in (None, dtype) else [{"weight_dtype": weights}])


@pytest.mark.parametrize(
    ("dtype", "exponent", "name"),
    [
        ("float16", -15, "subnormal x"),
        ("float16", -14, "subnormal x"),  # 2⁻¹⁴ is the smallest normal number
        ("float16", -13, "small x"),
        ("float32", -14, "small x"),
        ("float16", -1, "small x"),
        ("float16", 0, "usual x"),
        ("float16", 1, "large x"),
        ("float16", 14, "large x"),
        ("float16", 15, "largest x"),
        ("float32", 16, "large x"),
        ("float32", 127, "largest x"),
    ],
)
def test_a_scale_of_x_is_at_an_end_of_its_type_or_between(dtype, exponent, name):
    assert axis("rmsnorm_fwd", "scale of x").read(CaseSpec((2, 3), dtype, log2_scale=exponent)) == name


@pytest.mark.parametrize(
    ("dtype", "exponent", "name"),
    [
        ("float32", -100, "faint dy"),
        ("float32", -37, "faint dy"),
        ("float32", -35, "small dy"),
        ("float32", -1, "usual dy"),
        ("float32", 6, "large dy"),
        ("float32", 36, "strong dy"),
        ("float16", 12, "strong dy"),
    ],
)
def test_a_scale_of_dy_is_the_nearest_of_those_tried(dtype, exponent, name):
    assert axis("rmsnorm_bwd", "scale of dy").read(CaseSpec((2, 3), dtype, dy_log2_scale=exponent)) == name


def test_an_offset_is_as_far_on_either_side():
    offset = axis("rmsnorm_fwd", "|offset|")
    assert offset.read(CaseSpec((2, 3), offset=-100.0)) == offset.read(CaseSpec((2, 3), offset=100.0))
    assert offset.read(CaseSpec((2, 3), offset=-100.5)) == "|offset| > 100"


def test_where_a_special_value_is_shows_only_beside_one_and_meets_types_and_sizes():
    beside = ("dtype", "special", "special_in", "special_at", "samples", "groups", "C/G", "positions")
    for name, value in (("special_in", "x"), ("special_at", "first")):
        where = axis("groupnorm_fwd", name)
        assert where.beside == beside
        assert where.read(CaseSpec((2, 6), num_groups=3)) is None
        assert where.read(CaseSpec((2, 6), num_groups=3, special="inf")) == f"{name} {value}"


@pytest.mark.parametrize(
    ("op", "tensor", "field"),
    [
        ("layernorm_bwd", "bias", "bias"),
        ("layernorm_bwd", "weight", "weight"),
        ("add_rmsnorm_bwd", "dresidual_out", "dresidual_out"),
        ("batchnorm_fwd", "running_mean", "running"),
        ("batchnorm_bwd", "running_var", "running"),
    ],
)
def test_what_is_not_there_has_no_layout(op, tensor, field):
    layout, spec = axis(op, f"{tensor}_layout"), usual(OPS[op])
    assert layout.read(spec) == f"contiguous {tensor}"
    assert layout.read(replace(spec, **{field: False})) is None


def test_axes_of_memory_are_those_of_layouts_and_of_one_tensor_for_two_inputs():
    of_memory = {axis.name for axis in axes(OPS["layernorm_bwd"], TYPES) if axis.of_memory}
    assert of_memory == {"dy_layout", "x_layout", "weight_layout", "bias_layout", "alias"}
    alias = axis("layernorm_bwd", "alias")
    assert alias.beside == ("dtype", "rows", "N")
    assert {"inputs apart", "one tensor x:dy"} <= set(alias.choices)
    assert alias.choices["inputs apart"] == [{"alias": ""}]


def test_layouts_are_those_that_a_tensor_may_have():
    def of(op, name):
        return set(layouts(next(tensor for tensor in OPS[op].inputs if tensor.name == name), OPS[op]))

    one_dimensional = {"contiguous", "every_other", "offset", "own"}
    assert of("batchnorm_fwd", "weight") == one_dimensional | {"scalar"}
    assert of("layernorm_fwd", "weight") == one_dimensional | {"scalar", "transposed"}
    assert of("batchnorm_fwd", "running_mean") == one_dimensional
    assert of("layernorm_bwd", "dy") - of("layernorm_bwd", "x") == {"scalar"}
    for op, name in (("modulate_rmsnorm_fwd", "scale"), ("qk_norm_rope_fwd", "cos")):
        assert of(op, name) | {"heads_first"} == of("layernorm_bwd", "x")


def test_types_meet_lengths_that_hide_nothing_beside_each_option():
    both = axis("rmsnorm_fwd", "type and length")
    assert both.beside == ("eps", "weight", "type of weights", "weight_offset")
    lengths = ("N ≤ 31", "N ≤ 1024", "N > 1024")
    assert "N ≤ 1" in HIDING
    assert both.choices == {f"{dtype}, {n}": [(f"dtype {dtype}", n)] for dtype in TYPES for n in lengths}
    assert both.read(CaseSpec((4, 31), "bfloat16")) == "bfloat16, N ≤ 31"
    space = axis("groupnorm_fwd", "type and length")
    assert set(space.choices) == {
        f"{dtype}, positions {n}" for dtype in TYPES for n in ("≤ 1", "≤ 63", "≤ 1023", "> 1023")
    }
    assert space.read(CaseSpec((2, 6, 70), num_groups=3)) == "float32, positions ≤ 1023"


def test_a_check_meets_all_free_axes_where_the_case_names_it():
    memory = axis("rmsnorm_fwd", "check memory")
    assert memory.choices == {"memory": [()]}
    assert memory.beside == tuple(axis.name for axis in axes(OPS["rmsnorm_fwd"], TYPES) if axis.free)
    assert memory.read(CaseSpec((2, 3), further=("memory",))) == "memory"
    assert memory.read(CaseSpec((2, 3), further=("calls",))) is None


NO_GRAD, COMPILED = f"mode {ways.NO_GRAD}", f"mode {ways.COMPILED}"


def test_ways_of_modes_meet_types_shapes_and_options_and_others_meet_types():
    options = ("rows", "N", "leading dimensions", "normalized dimensions")
    options = ("dtype", *options, "eps", "weight", "type of weights", "weight_offset")
    for name in (NO_GRAD, f"call {ways.VALUES}"):
        assert axis("rmsnorm_fwd", name).beside == options
    assert axis("rmsnorm_bwd", f"autograd {ways.AGAIN}", frozen=True).beside == (
        *options[:5],
        "eps",
        "weight",
        "type of weights",
        "weight_offset",
        "frozen",
    )
    assert axis("rmsnorm_fwd", f"effect {ways.GROWTH}").beside == ("dtype",)


@pytest.mark.parametrize(
    ("fields", "there"),
    [
        ({"further": ("modes",)}, True),
        ({"further": ("calls",)}, False),
        ({"further": ("modes",), "mode": ways.AUTOCAST}, True),
        ({"further": ("modes",), "mode": ways.COMPILED}, False),
        ({"further": ("modes",), "dtype": "float16"}, False),  # it is tried in one 16-bit type
    ],
)
def test_a_case_has_a_way_that_its_check_takes_and_that_fits(fields, there):
    name = f"mode {ways.AUTOCAST}"
    assert axis("rmsnorm_fwd", name).read(CaseSpec((2, 3), **fields)) == (name if there else None)


@pytest.mark.parametrize(
    ("way", "dtypes", "types"),
    [
        (ways.AUTOCAST, ("float32", "bfloat16"), [()]),  # several types fit, and none is named
        (ways.AUTOCAST, ("float16",), None),
        (ways.BATCHED, ("float32", "bfloat16"), [("dtype float32", "weights of x's type")]),
        (ways.BATCHED, ("bfloat16", "float16"), None),
    ],
)
def test_a_way_names_the_only_type_that_fits(way, dtypes, types):
    name = f"mode {way}"
    found = {axis.name: axis for axis in axes(OPS["rmsnorm_fwd"], dtypes)}
    assert (found[name].choices if name in found else {name: None}) == {name: types}


def test_a_way_without_running_statistics_follows_from_a_case_without_them():
    name = f"mode {ways.UNTRACKED}"
    assert axis("batchnorm_fwd", name).choices == {name: [("training without running statistics",)]}


def test_a_gradient_by_torchs_autograd_has_axes_of_its_own():
    """Which inputs need no gradient, and what torch's autograd does twice; but a kernel is not called without it."""
    usual_, frozen = ({axis.name for axis in axes(OPS["rmsnorm_bwd"], TYPES, frozen=on)} for on in (False, True))
    assert "frozen" in frozen - usual_
    assert f"autograd {ways.AGAIN}" in frozen - usual_
    assert NO_GRAD in usual_ - frozen
    assert axis("rmsnorm_bwd", "frozen", frozen=True).choices == {
        "frozen ()": [{"frozen": ()}],
        "frozen ('x',)": [{"frozen": ("x",)}],
        "frozen ('weight',)": [{"frozen": ("weight",)}],
    }
    assert "frozen" not in {axis.name for axis in axes(OPS["rmsnorm_fwd"], TYPES, frozen=True)}


def test_a_gpu_has_ways_of_its_own():
    on_cpu, on_gpu = ({axis.name for axis in axes(OPS["rmsnorm_fwd"], TYPES, gpu=on)} for on in (False, True))
    assert on_gpu - on_cpu == {f"mode {ways.REPLAYED}"}
    assert on_cpu - on_gpu == {f"mode {ways.THREADED}"}
    assert {axis.name for axis in axes(OPS["rmsnorm_fwd"], TYPES)} == on_cpu
    assert COMPILED in on_cpu & on_gpu
