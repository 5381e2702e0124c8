"""The corner table: specs of every operator, and what it has to reach."""

from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest

from verify_norm.cases import corners, dispatch, draw, further_runs, placement
from verify_norm.cases.corner_lines import THIRD
from verify_norm.checks import invariance
from verify_norm.core import geometry, ways
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.layouts import layout_of
from verify_norm.core.ops import OPS
from verify_norm.core.spec import COTANGENTS, LAYOUTS, WEIGHTS
from verify_norm.core.specials import special_input

DTYPES = ("float32", "float16", "bfloat16")
QUICK = ("layernorm_bwd", "modulate_rmsnorm_fwd", "batchnorm_fwd")  # whole tables of all operators take seconds
EACH = [op if op in QUICK else pytest.param(op, marks=pytest.mark.slow) for op in OPS]


@pytest.mark.parametrize("gpu", [False, True], ids=["a CPU", "a GPU"])
@pytest.mark.parametrize("op", EACH)
def test_corners_are_specs_of_their_operator(op, gpu):
    table = corners.corners(OPS[op], DTYPES, gpu=gpu)
    assert len(table) == len(set(table)) > 40
    assert {spec.dtype for spec in table} == set(DTYPES)
    assert not [spec for spec in table if geometry.refusal(spec, OPS[op])]
    assert len({spec.seed for spec in table}) == len(table), "each has data of its own"
    assert {spec.weight_data for spec in table} == set(WEIGHTS)
    assert {spec.num_groups is None for spec in table} == {"num_groups" not in OPS[op].attrs}
    zero = [spec for spec in table if spec.data == "zero"]
    assert {0.0} < {spec.eps for spec in zero}


@pytest.mark.parametrize("op", OPS)
def test_corners_meet_every_choice_of_values_and_layouts(op):
    table, names = corners.corners(OPS[op], DTYPES), {tensor.name for tensor in OPS[op].inputs}
    tensors = [tensor.name for tensor in OPS[op].inputs if tensor.extent == "data"]
    met = {layout_of(spec, name) for spec in table for name in tensors}
    assert met >= set(LAYOUTS) - ({"scalar"} if "dy" not in names else set())
    rest = {
        "row_strided",
        "every_other",
        "channel_slice",
        "swapped",
        "swapped_last",
    }  # may be left to the covering array
    for first, *others in (("residual_out", "residual", "x"), ("dresidual_out", "dy")):
        name = next((name for name in (first, *others) if name in names), None)
        met = {layout_of(spec, name) for spec in table if name}
        assert not name or met >= set(LAYOUTS) - rest - ({"scalar"} if "x" in others else set()), name
    assert (
        "transposed" in {spec.weight_layout for spec in table if spec.normalized_ndim == 2}
        or "normalized_shape" not in OPS[op].attrs
    )
    assert {"uneven", "padded"} < {spec.data for spec in table}
    assert {spec.dy_data for spec in table} == set(COTANGENTS if "dy" in names else COTANGENTS[:1])
    special = [spec for spec in table if spec.special]
    assert {spec.special for spec in special} == {"nan", "inf", "-inf", "nan+inf"}
    assert {spec.special_at for spec in special} == {"first", "middle", "last", "rows", "row"}
    held = {special_input(spec, OPS[op]) for spec in special}
    assert held >= names & {
        "x",
        "residual",
        "residual_out",
        "dy",
        "dresidual_out",
        "weight",
        "running_mean",
        "running_var",
    }
    assert {1.5e-5, 3e-8, 2.0**-7} < {spec.eps for spec in table}
    assert ("float32", "bfloat16") in {(spec.dtype, spec.weight_dtype) for spec in table}
    assert {spec.dresidual_out for spec in table} == ({True, False} if "dresidual_out" in names else {True})
    assert "weight_offset" not in OPS[op].attrs or {-0.25, THIRD, 1.0} < {spec.weight_offset for spec in table}


@pytest.mark.parametrize("op", OPS)
def test_every_type_has_many_rows_and_long_ones_of_ordinary_data(op):
    """A mistake that begins at a size shows nothing where most values under- or overflow, or in another type."""
    table = corners.corners(OPS[op], DTYPES)
    usual = [spec for spec in table if spec.data == "normal" and not (spec.special or spec.log2_scale)]
    many = {spec.dtype for spec in usual if prod(spec.shape[: geometry.leads(spec, OPS[op])]) > 128}
    long = {spec.dtype for spec in usual if prod(spec.shape[1:]) > 2048 and spec.offset}
    assert many == long == set(DTYPES)


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("dtypes", [DTYPES, DTYPES[::-1], ("bfloat16", "float32"), ("float32",)])
@pytest.mark.parametrize("op", OPS)
def test_large_offsets_are_in_float32_and_among_the_first_cases(op, dtypes):
    first = corners.corners(OPS[op], dtypes)[:25]
    far = [spec for spec in first if abs(spec.offset) >= 1e3 and spec.data == "normal" and spec.log2_scale == 0]
    assert {spec.dtype for spec in far} == set(dtypes)


@pytest.mark.parametrize("op", OPS)
def test_the_first_cases_meet_every_topic(op):
    first = corners.corners(OPS[op], DTYPES)[:11]
    assert any(abs(spec.offset) >= 1e3 for spec in first)
    assert any(spec.special for spec in first)
    assert any(spec.weight_dtype == "float32" != spec.dtype for spec in first)
    assert any(spec.log2_scale for spec in first)
    assert any(spec.shape[0] > 128 for spec in first)
    assert {spec.x_layout for spec in first} | {spec.residual_out_layout for spec in first} != {"contiguous"}
    assert OPS[op].forward is None or any(spec.dy_layout != "contiguous" for spec in first)


@pytest.mark.parametrize("op", OPS)
def test_every_type_has_misaligned_tensors_whose_rows_are_whole_vectors(op):
    """A vector load at a misaligned address ends a GPU's process; it is made where rows are multiples of 16 bytes."""
    first = 1 if OPS[op].view == "rows" else 2  # of the dimensions that are one piece of memory
    names = {tensor.name for tensor in OPS[op].inputs}
    tensors = ("x", "residual", "residual_out", "dy", "dresidual_out") + (("weight", "bias") if first == 1 else ())
    met: dict[str, set[str]] = {name: set() for name in tensors if name in names}
    for spec in corners.corners(OPS[op], DTYPES):
        if prod(spec.shape[first:]) * FORMATS[spec.dtype].dtype.itemsize % 16 == 0:
            for name in met:
                if getattr(spec, f"{name}_layout") == "offset":
                    met[name].add(spec.dtype)
    assert {name for name, types in met.items() if types != set(DTYPES)} == set()


@pytest.mark.parametrize("op", [name for name, op in OPS.items() if op.view == "rows"])
def test_every_size_of_type_has_tensors_at_half_a_vector(op):
    """A kernel may take half a vector at a time there, and as many as of whole ones."""
    names = {tensor.name for tensor in OPS[op].inputs}
    for alike in (("x", "residual", "residual_out"), ("dy", "dresidual_out") * (OPS[op].forward is not None)):
        met = set()
        for spec, name in product(corners.corners(OPS[op], DTYPES), names.intersection(alike)):
            where = placement.placement(spec.shape, layout_of(spec, name))
            size = FORMATS[spec.dtype].dtype.itemsize
            if where.offset * size % 16 == 8 and where == placement.placement(spec.shape, "offset"):
                met.add(size)
        assert met == ({2, 4} if alike else set())


@pytest.mark.parametrize("op", [n for n, op in OPS.items() if op.view == "rows" and "modulate" not in n])  # of rank 3
def test_rows_of_whole_vectors_have_gaps_of_whole_vectors_and_others(op):
    """A kernel may take a row at a stride of whole vectors for packed ones."""
    names = {"x", "residual_out", "dy", "dresidual_out"} & {tensor.name for tensor in OPS[op].inputs}
    met: dict[str, set[bool]] = {"x": set(), "dy": set()}
    for spec, name in product(corners.corners(OPS[op], DTYPES), names):
        if len(spec.shape) == 2 and spec.shape[-1] % 8 == 0 and layout_of(spec, name) == "row_strided":
            gap = placement.placement(spec.shape, "row_strided").strides[0] - spec.shape[-1]
            met["dy" if name.startswith("d") else "x"].add(gap % 8 == 0)
    assert met["x"] == {True, False}
    assert True in met["dy"] or names.isdisjoint(("dy", "dresidual_out"))


@pytest.mark.parametrize("op", [name for name, op in OPS.items() if op.view != "channels"])
def test_every_type_has_batches_of_servings_size(op):
    table, on_gpu = (corners.corners(OPS[op], DTYPES, gpu=gpu) for gpu in (False, True))
    batches = [spec for spec in table if spec.batch]
    for least in (128, 4096):
        assert {spec.dtype for spec in batches if spec.batch >= least} == set(DTYPES)
    assert all("batch_invariance" in spec.further for spec in batches)
    assert all({spec.x_layout, spec.residual_layout, spec.dy_layout} <= set(invariance.LAYOUTS) for spec in batches)
    if OPS[op].view == "rows":
        sizes = {(spec.batch, spec.shape[1]) for spec in on_gpu if spec.batch}
        assert sizes >= set(product((255, 256, 257, 300, 4096), (512, 4096, 8192)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("op", EACH)
def test_a_gpu_has_offsets_beyond_32_bits_in_types_for_which_it_has_room(op):
    def far(*dtypes, gpu=True):
        table = corners.corners(OPS[op], dtypes, gpu=gpu)
        return [s for s in table if "far" in (s.x_layout, s.dy_layout, s.residual_layout, s.residual_out_layout)]

    assert {s.dtype for s in far(*DTYPES)} <= {"float16", "bfloat16"}
    assert "float32" in {s.dtype for s in far(*DTYPES, gpu=False)}
    assert len(far(*DTYPES)) == len(far(*DTYPES, gpu=False)) == len(far("float32")) > 0


@pytest.mark.parametrize("op", [name for name, op in OPS.items() if op.forward])
def test_inputs_that_need_no_gradient_are_in_every_type(op):
    sets = corners.freezable(OPS[op])
    table = corners.corners(OPS[op], DTYPES, frozen=True)
    frozen = [spec for spec in table if spec.frozen]
    assert len({spec.seed for spec in table}) == len(table), "each has data of its own"
    parameters = tuple(name for name in ("weight", "bias") if name in geometry.differentiable(OPS[op]))
    assert {spec.frozen for spec in frozen} == {*sets, *[parameters] * bool(parameters)}
    assert all(len(spec.shape) == 3 and spec.weight and spec.bias for spec in frozen)
    assert len({spec.dtype for spec in frozen}) == min(len(sets), len(DTYPES))
    tried = [spec for spec in frozen if spec.frozen == parameters and spec.autograd == ways.QUICK]
    assert all("autograd" in spec.further for spec in tried)
    assert bool(tried) == bool(parameters), "every way where a module's parameters are frozen"


ROWS = {  # what a line of the table of rows is there for
    "a tile and one element": lambda s: s.shape[-1] in (1025, 2049, 4097),
    "one element": lambda s: s.shape[-1] == 1,
    "two elements": lambda s: s.shape[-1] == 2,
    "more than 64 KB": lambda s: s.shape[-1] > 2**14,
    "a row alone": lambda s: s.shape[0] == 1 and len(s.shape) > 1,
    "a vector": lambda s: len(s.shape) == 1,
    "no rows": lambda s: not s.shape[0],
    "more rows than 256": lambda s: s.shape[0] > 256,
    "normalized dimensions": lambda s: s.normalized_ndim == 3,
    "nothing that tells of a test": lambda s: {s.x_layout, s.dy_layout, s.weight_layout} == {"own"},
    "a stride beyond 32 bits": lambda s: s.x_layout == "far" and s.shape[0] == 2,
    "a stride within them": lambda s: s.x_layout == "far" and s.shape[0] > 2,
    "dy that far": lambda s: s.dy_layout == "far" and s.shape[0] == 2,
    "dy as far": lambda s: s.dy_layout == "far" and s.shape[0] > 2,
    "both misaligned": lambda s: s.x_layout == s.dy_layout == "offset" and s.shape[-1] % 16 == 0,
    "weights zero, no bias": lambda s: s.weight_data == "zero" and not s.bias,
    "neither weight nor bias": lambda s: not (s.weight or s.bias),
    "a weight alone": lambda s: s.weight and not s.bias,
    "a bias alone": lambda s: s.bias and not s.weight,
    "zero by zero": lambda s: s.data == "zero" and s.eps == 0,
    "no variance": lambda s: s.data == "constant" and not s.offset,
    "no variance, far from zero": lambda s: s.data == "constant" and s.offset and not s.log2_scale,
    "squares that overflow": lambda s: s.data == "alternating" and s.log2_scale >= 16 and s.eps,
    "the same without eps": lambda s: s.data == "alternating" and s.log2_scale >= 16 and not s.eps,
    "sums that overflow": lambda s: s.data == "constant" and s.log2_scale >= 16,
    "subnormal numbers": lambda s: s.log2_scale < -14 and s.eps == 1e-5,
    "a variance that underflows": lambda s: s.log2_scale < -14 and not s.eps,
    "gradients that overflow": lambda s: s.dy_log2_scale == 13,
    "gradients that underflow": lambda s: s.dy_log2_scale == -20,
    "masked rows": lambda s: s.dy_data == "zero_rows" and s.shape[0] > 128,
    "an eps beyond the variance": lambda s: s.eps >= 1e3,
    "no eps": lambda s: not s.eps and s.data == "normal" and not s.log2_scale,
    "a negative infinity in a bias": lambda s: (s.special, s.special_in) == ("-inf", "bias"),
    "infinities in many rows of dy": lambda s: (s.special_in, s.special_at) == ("dy", "rows"),
    "one that cancels in a row of two": lambda s: s.shape[-1] == 2 and abs(s.offset) >= 1e3,
}


@pytest.mark.parametrize("what", ROWS)
def test_the_table_of_rows_has(what):
    assert any(ROWS[what](spec) for spec in corners.corners(OPS["layernorm_bwd"], DTYPES))


def test_every_type_has_groups_that_no_program_holds_alone_in_either_layout():
    tables = (corners.corners(OPS["groupnorm_bwd"], DTYPES, gpu=gpu) for gpu in (True, False))
    of_gpu, of_cpu = ({replace(spec, **further_runs.EVERYTHING) for spec in table} for table in tables)
    large = {s for s in of_gpu - of_cpu if s.x_layout != "far"}
    assert {(s.dtype, s.x_layout, s.dy_layout) for s in large} == {
        (dtype, layout, layout) for dtype in DTYPES for layout in ("contiguous", "channels_last")
    }
    assert {s.offset for s in large} == {0.0, 1e3}
    assert min(prod(s.shape) // s.shape[0] // s.num_groups for s in large) > 2**14


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["rmsnorm_fwd", "groupnorm_fwd", "batchnorm_fwd"])
def test_corners_reach_both_ends_of_every_type(op, dtype):
    form, (low, high) = FORMATS[dtype], (set(), set())
    for spec in corners.corners(OPS[op], (dtype,)):
        x = np.abs(draw.exact_values(spec, OPS[op], next(t for t in OPS[op].inputs if t.name == "x")))
        x = x[np.isfinite(x)]
        if x.size and 0 < x.max() < 4 * form.smallest_normal:
            low.add((x < form.smallest_normal).any())
        if x.size:
            high.add(x.max() == form.largest)
    assert low == {True}
    assert True in high


def test_batchnorms_corners_are_in_training_and_in_evaluation():
    table = corners.corners(OPS["batchnorm_fwd"], ("float32",))
    training, fixed = (
        {replace(spec, training=True, seed=0, **further_runs.EVERYTHING) for spec in table if spec.training is mode}
        for mode in (True, False)
    )
    assert {spec for spec in training if spec.running} < fixed
    assert len(fixed) == sum(not spec.training for spec in table), "none occurs twice"
    assert {spec.shape for spec in fixed - training} == {(1, 3, 1)}  # one value a channel, in the first type
    first = [spec.dtype for spec in corners.corners(OPS["batchnorm_fwd"], DTYPES) if spec.shape == (1, 3, 1)]
    assert first == ["float32"]
    assert {spec.momentum for spec in table} >= {0.0, 1e-3, 0.1, 1.0}


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.forward], ids=lambda op: op.name)
def test_gradients_are_far_from_one_in_a_wide_type(op):
    """A kernel may take rows of small gradients for masked ones, or clamp large ones to float16's largest number."""
    scales = {spec.dy_log2_scale for spec in corners.corners(op, DTYPES)}
    assert {-60, 60} <= scales


def test_whole_tiles_are_among_the_first_large_cases_in_every_type():
    table = corners.wide(OPS["layernorm_bwd"], DTYPES)[:20]
    tiles = [spec for spec in table if spec.shape[0] % 256 == 0 == spec.shape[1] % 256]
    assert {spec.dtype for spec in tiles} == set(DTYPES)
    assert any(spec.weight_dtype == "float32" != spec.dtype for spec in tiles)


@pytest.mark.parametrize(("op", "first"), [("groupnorm_fwd", (1, 8, 91, 91)), ("batchnorm_fwd", (1, 4, 91, 91))])
def test_large_cases_are_of_the_operators_view_and_each_has_data_of_its_own(op, first):
    table = corners.wide(OPS[op], ("float32", "float16"))
    assert table[0].shape == first
    assert [spec.seed for spec in table] == list(range(len(table)))
    assert [spec.dtype for spec in table[:3]] == ["float32", "float16", "float32"]
    whole, others = ([spec for spec in table if (spec.eps == dispatch.EPS) is so] for so in (False, True))
    assert all({*corners.AT_EVERY_SIZE} <= {*spec.further} for spec in whole)
    some = [spec for spec in others if {*corners.AT_EVERY_SIZE} <= {*spec.further}]
    assert len(others) / 4 < len(some) < len(others) / 2  # they are many


@pytest.mark.parametrize("table", [corners.wide, corners.corners])
def test_cases_take_the_ways_of_a_gpu_and_of_torchs_autograd_where_there_is_one(table):
    def modes(**kinds):
        return {spec.mode for spec in table(OPS["rmsnorm_bwd"], ("float32",), **kinds)}

    assert {ways.NO_GRAD, ways.THREADED} <= modes() == modes(frozen=False, gpu=False)
    assert ways.THREADED not in modes(gpu=True)
    assert ways.NO_GRAD not in modes(frozen=True)


LARGE = 2**20  # elements: the highest of usual thresholds


@pytest.mark.parametrize("op", ["layernorm_bwd", "rmsnorm_fwd", "groupnorm_fwd", "instancenorm_bwd", "batchnorm_bwd"])
def test_large_cases_take_turns_through_the_options(op):
    """A kernel may take a path of its own for a large x, and go wrong there with one option alone."""
    table = [spec for spec in corners.wide(OPS[op], DTYPES) if prod(spec.shape) >= LARGE]
    names = {tensor.name for tensor in OPS[op].inputs}
    assert {spec.dtype for spec in table} == set(DTYPES)
    assert {10.0} < {abs(spec.offset) for spec in table if spec.dtype == "float32"} | {10.0}
    assert any(abs(spec.offset) >= 30 for spec in table if spec.dtype == "float32" and spec.weight)
    assert {spec.dtype for spec in table if spec.weight and spec.weight_dtype not in (None, spec.dtype)} == set(DTYPES)
    assert any(not spec.weight for spec in table)
    assert any(spec.weight and not spec.bias for spec in table) == ("bias" in names)
    other = "row_strided" if OPS[op].view == "rows" else "channels_last"
    assert {other, "contiguous"} <= {spec.x_layout for spec in table}
    assert any(spec.weight and not spec.offset and spec.x_layout == "contiguous" for spec in table)
    if OPS[op].view == "channels":
        assert {(True, True), (False, True)} < {(spec.training, spec.running) for spec in table}


@pytest.mark.parametrize("op", ["rmsnorm_fwd", "groupnorm_fwd", "batchnorm_fwd"])
def test_half_of_the_large_cases_of_a_forward_have_inputs_that_require_gradients(op):
    table = [spec for spec in corners.wide(OPS[op], DTYPES) if prod(spec.shape) >= corners.MANY]
    recorded = [spec for spec in table if "modes" in spec.further and spec.mode in ways.RECORDED]
    assert {spec.dtype for spec in recorded} == set(DTYPES)
    assert len(recorded) > len(table) / 3
    assert any(spec.weight_dtype is None and spec.weight for spec in recorded)


def test_long_partial_sums_of_long_rows_are_in_a_backwards_large_cases():
    table = [
        spec for spec in corners.wide(OPS["rmsnorm_bwd"], DTYPES) if spec.shape[0] >= 1024 and spec.shape[1] >= 2048
    ]
    assert len(table) > 1
    assert any(spec.weight_dtype == "float32" or spec.dtype == "float32" for spec in table)


def test_every_type_has_more_than_64_heads_of_several_tokens_whole_and_in_part():
    """A tile of 64 heads may take the angles of the next token."""
    op = OPS["qk_norm_rope_fwd"]
    for table, part in ((corners.wide(op, DTYPES), {"half", "quarter"}), (corners.corners(op, DTYPES), set())):
        heads = [spec for spec in table if len(spec.shape) > 2 and 64 < spec.shape[-2] <= 128 and spec.shape[0] > 1]
        assert {spec.dtype for spec in heads} == set(DTYPES)
        assert {spec.rotary for spec in heads} >= part
    sizes = {spec.shape[-2] for spec in corners.wide(op, DTYPES) if len(spec.shape) > 2}
    assert {96, 128} < sizes


@pytest.mark.parametrize("op", ["layernorm_bwd", "gated_rmsnorm_fwd"])
def test_wide_rows_have_lengths_between_any_two_powers_of_two(op):
    """A kernel's block is the next power, and may have a path of its own."""
    table = corners.wide(OPS[op], DTYPES)
    for power in range(13, 20):
        found = {spec.dtype for spec in table if 2**power < geometry.row_length(spec, OPS[op]) < 2 ** (power + 1)}
        assert found, power
    assert {spec.dtype for spec in table if spec.shape[0] > 2**18} == set(DTYPES)


@pytest.mark.parametrize("op", ["groupnorm_fwd", "batchnorm_bwd"])
def test_a_group_and_a_channel_have_more_than_a_million_values(op):
    assert any(geometry.row_length(spec, OPS[op]) > 2**20 for spec in corners.wide(OPS[op], DTYPES))


@pytest.mark.parametrize("op", ["groupnorm_fwd", "groupnorm_bwd"])
def test_wide_groups_of_many_positions_are_in_either_layout_in_every_type(op):
    """As diffusion models have them: kernels take another path in channels_last, by the channels of a group."""
    for layout in ("contiguous", "channels_last"):
        table = [spec for spec in corners.wide(OPS[op], DTYPES) if spec.x_layout == layout]
        wide = [spec for spec in table if spec.shape[1] // spec.num_groups > 16 and prod(spec.shape[2:]) >= 1024]
        assert {spec.dtype for spec in wide} == set(DTYPES), layout
        assert any(prod(spec.shape[2:]) % 32 for spec in wide)
        assert any(spec.shape[0] > 1 for spec in wide)


@pytest.mark.parametrize("op", ["batchnorm_fwd", "batchnorm_bwd"])
def test_every_type_has_more_channels_than_4096(op):
    """A kernel may keep that many in a block, and take a later one for the first."""
    channels = {(spec.dtype, spec.shape[1]) for spec in corners.wide(OPS[op], DTYPES)}
    assert {(dtype, many) for dtype in DTYPES for many in (8192, 8200)} <= channels


@pytest.mark.parametrize("op", ["rmsnorm_fwd", "add_layernorm_bwd"])
def test_one_token_of_each_sequence_in_every_type_and_in_all_quick_modes(op):
    """A decoding path, (B, 1, N), may be for B = 1, or differ in evaluation."""
    some = [
        spec for spec in corners.corners(OPS[op], DTYPES) if len(spec.shape) == 3 and spec.shape[1] == 1 < spec.shape[0]
    ]
    assert {spec.dtype for spec in some} == set(DTYPES)
    assert {spec.mode for spec in some} >= {"quick"}
    assert any(prod(spec.shape) >= corners.MANY and spec.shape[1] == 1 for spec in corners.wide(OPS[op], DTYPES))


@pytest.mark.parametrize(
    ("op", "axis"), [("rmsnorm_fwd", -2), ("layernorm_bwd", -2), ("groupnorm_fwd", -1), ("batchnorm_bwd", -1)]
)
def test_a_dimension_of_one_element_has_a_stride_that_leads_to_no_other_row_or_position(op, axis):
    """A contiguous tensor tells nothing by this stride: a kernel must not take it for that of the rows, or of space."""
    some = [
        (spec.shape, placement.placement(spec.shape, spec.x_layout).strides)
        for spec in corners.corners(OPS[op], DTYPES)
        if spec.x_layout == "loose" and spec.shape[axis] == 1
    ]
    assert any(strides[axis] == 0 and prod(shape[2 if axis == -1 else 0 :]) > shape[-1] for shape, strides in some)


def test_many_rows_have_gradients_that_are_expanded_in_every_type():
    table = [spec for spec in corners.corners(OPS["layernorm_bwd"], DTYPES) if spec.shape[0] > 1024]
    for layout in ("expanded", "scalar"):
        assert {spec.dtype for spec in table if spec.dy_layout == layout} == set(DTYPES)


def test_tables_of_angles_end_before_the_tokens_of_several_heads():
    table = [spec for spec in corners.wide(OPS["qk_norm_rope_fwd"], DTYPES) if spec.shape[-2:] == (2, 4)]
    assert {spec.dtype for spec in table if spec.shape[-3] > 4096} == set(DTYPES)


def test_a_modulation_without_weight_and_bias_has_many_tokens_a_sample_in_every_type():
    table = corners.wide(OPS["modulate_layernorm_fwd"], DTYPES)
    some = [spec for spec in table if not spec.weight and not spec.bias and spec.modulation == "sample"]
    assert {spec.dtype for spec in some if spec.shape[1] > 1024} == set(DTYPES)


def test_tables_and_modulations_in_float32_are_among_the_first_cases_of_narrow_types():
    for op in ("qk_norm_rope_fwd", "qk_norm_rope_bwd", "modulate_layernorm_fwd", "modulate_rmsnorm_bwd"):
        first = corners.corners(OPS[op], DTYPES)[:24]
        assert {(s.dtype, s.other_dtype) for s in first if s.dtype != "float32"} == {
            (dtype, other) for dtype in ("float16", "bfloat16") for other in (None, "float32")
        }
    assert all(spec.other_dtype is None for spec in corners.corners(OPS["layernorm_fwd"], DTYPES))


def test_a_residual_in_float32_is_among_the_first_cases_of_narrow_types():
    for op in ("add_rmsnorm_fwd", "add_layernorm_fwd", "dropout_add_rmsnorm_fwd", "add_rmsnorm_quant_fwd"):
        first = corners.corners(OPS[op], DTYPES)[:24]
        assert {(s.dtype, s.residual_dtype) for s in first if s.dtype != "float32"} == {
            (dtype, other) for dtype in ("float16", "bfloat16") for other in (None, "float32")
        }
        assert all(spec.residual_dtype is None for spec in first if spec.dtype == "float32")
    for op in ("add_rmsnorm_bwd", "rmsnorm_fwd"):
        assert all(spec.residual_dtype is None for spec in corners.corners(OPS[op], DTYPES))


def test_a_dropout_of_one_half_is_among_the_corners_of_every_type():
    table = corners.corners(OPS["dropout_add_rmsnorm_fwd"], DTYPES)
    assert {spec.dtype for spec in table if spec.dropout_p == 0.5} == set(DTYPES)


def test_long_rows_meet_all_ways_of_autograd():
    for op, long in (("rmsnorm_bwd", 1), ("add_layernorm_bwd", 1), ("groupnorm_bwd", 0)):
        table = corners.corners(OPS[op], ("float32", "float16"), frozen=True)
        assert sum(s.shape[-1] >= 1000 and s.further == ("autograd",) and not s.autograd for s in table) == long
    assert not any(s.further == ("autograd",) for s in corners.corners(OPS["rmsnorm_bwd"], ("float32",)))


@pytest.mark.parametrize("op", ["rmsnorm_fwd", "layernorm_bwd", "qk_norm_rope_fwd"])
def test_sizes_that_are_alike_tell_no_dimension(op):
    """A kernel may take the statistics of rows for those of columns, a row of samples for one of tokens or heads."""
    shapes = [spec.shape for spec in corners.corners(OPS[op], DTYPES) if spec.normalized_ndim == 1]
    alike = [shape for shape in shapes if prod(shape) > 8]
    assert any(len(shape) == 2 and shape[0] == shape[1] for shape in alike)
    assert any(len(shape) == 3 and 1 < shape[0] == shape[1] for shape in alike)
    assert any(len(shape) == 4 and 1 < shape[1] == shape[2] != shape[0] for shape in alike)


def test_special_values_are_in_long_rows_and_in_many():
    special = [spec for spec in corners.corners(OPS["layernorm_bwd"], DTYPES) if spec.special]
    for condition in (lambda shape: shape[-1] > 2**14, lambda shape: shape[0] > 2**12):
        assert {spec.dtype for spec in special if condition(spec.shape)} == set(DTYPES)
