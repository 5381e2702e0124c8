"""What an operator makes of a line of the corner table: the number of a line decides what only some operators have."""

from collections import Counter
from dataclasses import replace

import pytest

from verify_norm.cases import corner_groups as groups
from verify_norm.cases import corner_rows as rows
from verify_norm.cases import corners
from verify_norm.cases.corner_lines import DROPOUTS, FAINT, LARGEST, LONG, OUTPUT_SCALES, STRONG, SUBNORMAL, THIRD
from verify_norm.core.geometry import differentiable
from verify_norm.core.ops import OPS
from verify_norm.core.spec import LAYOUTS, CaseSpec

FIRST = set(LAYOUTS[:5])


def lines(op, count=60, **fields):
    spec = CaseSpec(**{"shape": (6, 8)} | fields)
    return [corners._of(OPS[op], spec, number) for number in range(count)]


def values(op, *names, **fields):
    specs = lines(op, **fields)
    found = [{getattr(spec, name) for spec in specs} for name in names]
    return found if len(names) > 1 else found[0]


def test_the_layout_of_a_line_is_that_of_the_summed_tensor_and_x_has_others():
    x, residual = values("add_rmsnorm_fwd", "x_layout", "residual_layout", x_layout="far")
    assert (x, residual) == (FIRST, {"far"})
    names = ("residual_out_layout", "dresidual_out_layout", "x_layout", "dy_layout", "dresidual_out")
    summed = values("add_rmsnorm_bwd", *names, x_layout="far", dy_layout="offset")
    assert summed == [{"far"}, {"offset"}, {"contiguous"}, FIRST, {True, False}]
    given = [spec.dresidual_out for spec in lines("add_rmsnorm_bwd")]
    assert given.count(False) == 12, "in one case of five"
    assert values("add_rmsnorm_fwd", "x_layout", batch=9) == {"contiguous"}


def test_what_an_operator_has_not_is_as_usual():
    strange = {f"{name}_layout": "offset" for name in ("bias", "mean", "rstd", "running_mean", "running_var")}
    plain = values(
        "rmsnorm_fwd", *strange, "bias", "dy_data", "num_groups", "alias", bias=False, dy_data="one", **strange
    )
    assert plain[:5] == [{"contiguous"}] * 5
    assert plain[5:] == [{True}, {"random"}, {None}, {""}]
    names = ("bias_layout", "mean_layout", "bias", "dy_data")
    assert values("layernorm_bwd", *names, bias=False, dy_data="one", **strange) == [{"offset"}] * 2 + [
        {False},
        {"one"},
    ]
    assert values("instancenorm_fwd", "num_groups", shape=(2, 4, 3), num_groups=2) == {None}
    assert values("groupnorm_fwd", "num_groups", shape=(2, 4, 3), num_groups=2) == {2}


def test_one_line_in_four_has_a_weight_offset():
    for name in ("rmsnorm_fwd", "layernorm_bwd"):
        offsets = Counter(spec.weight_offset for spec in lines(name, 64))
        assert offsets == {0.0: 48, THIRD: 4, -0.25: 4, 1.0: 8}
    assert values("l2norm_fwd", "weight_offset") == {0.0}


@pytest.mark.parametrize(
    ("op", "wanted"),
    [
        ("dropout_add_rmsnorm_fwd", {"mask_layout": FIRST, "dropout_p": set(DROPOUTS)}),
        ("gated_rmsnorm_fwd", {"gate_layout": FIRST}),
        ("modulate_rmsnorm_fwd", {"scale_layout": FIRST, "shift_layout": FIRST, "modulation": {"sample", "token"}}),
        ("qk_norm_rope_fwd", {"cos_layout": FIRST, "sin_layout": FIRST, "rotary": {"full", "half", "quarter"}}),
        ("partial_rmsnorm_fwd", {"variance_size": {None, 1, 6, 7, LONG}}),
        ("rmsnorm_fp8_fwd", {"scale": set(OUTPUT_SCALES)}),
    ],
)
def test_what_only_some_operators_have_takes_turns(op, wanted):
    assert {name: values(op, name) for name in wanted} == wanted
    assert all(
        getattr(spec, name) == getattr(CaseSpec((6, 8)), name) for name in wanted for spec in lines("layernorm_fwd")
    )
    layouts = [name for name in wanted if name.endswith("_layout")]
    assert all(values(op, name, batch=9) == {"contiguous"} for name in layouts), "a batch repeats dense rows"
    if len(layouts) == 2:
        places = [[LAYOUTS.index(getattr(spec, name)) for name in layouts] for spec in lines(op)]
        assert {(second - first) % 5 for first, second in places} == {2}


def test_kinds_of_modulations_take_turns_among_neighbours_and_among_multiples_of_three():
    kinds = [(spec.modulation, len(spec.shape)) for spec in lines("modulate_rmsnorm_fwd", 9)]
    each = {("sample", 2), ("token", 2), ("sample", 3)}
    assert all(set(kinds[n : n + 3]) == set(kinds[n // 3 :: 3]) == each for n in (0, 3, 6))


def test_half_of_the_rotations_are_full():
    assert Counter(spec.rotary for spec in lines("qk_norm_rope_fwd")) == {"full": 30, "half": 15, "quarter": 15}


@pytest.mark.parametrize(
    ("special", "held", "rotations"),
    [("nan", "weight", {"half"}), ("nan", "x", set(corners.ROTARIES)), (None, "weight", set(corners.ROTARIES))],
)
def test_a_special_value_of_a_weight_is_in_an_element_that_is_not_rotated(special, held, rotations):
    assert values("qk_norm_rope_fwd", "rotary", special=special, special_in=held) == rotations


@pytest.mark.parametrize(
    ("op", "alias", "aliases"),
    [
        ("layernorm_bwd", "x:dy", {"x:dy"}),
        ("layernorm_bwd", "x:residual", {"weight:bias", "x:dy"}),
        ("rmsnorm_bwd", "x:residual", {"x:dy"}),
        ("rmsnorm_fwd", "x:dy", {""}),
        ("layernorm_bwd", "", {""}),
    ],
)
def test_two_inputs_are_one_tensor_where_the_operator_has_two_such(op, alias, aliases):
    specs = lines(op, alias=alias, x_layout="transposed", dy_layout="offset")
    assert {spec.alias for spec in specs} == aliases
    assert all((spec.dy_layout == "transposed") == (spec.alias == "x:dy") for spec in specs) or op == "rmsnorm_fwd"


@pytest.mark.parametrize(
    ("op", "gpu", "parts"),
    [
        ("layernorm_fwd", False, [rows.SERVING_ROWS]),
        ("layernorm_bwd", False, [rows.MANY_ROWS, rows.SERVING_ROWS]),
        ("layernorm_fwd", True, [rows.SERVING_ROWS, rows.GPU_ROW_CORNERS, rows.GPU_SERVING_ROWS]),
        (
            "layernorm_bwd",
            True,
            [rows.MANY_ROWS, rows.SERVING_ROWS, rows.CROWDED_ROWS, rows.GPU_ROW_CORNERS, rows.GPU_SERVING_ROWS],
        ),
        ("groupnorm_bwd", False, [groups.SERVING_GROUPS]),
        ("groupnorm_bwd", True, [groups.SERVING_GROUPS, groups.GPU_GROUP_CORNERS]),
        ("batchnorm_bwd", True, []),
    ],
)
def test_large_lines_are_those_that_the_device_and_the_direction_need(op, gpu, parts):
    assert corners._large(OPS[op], gpu) == tuple(line for part in parts for line in part)


@pytest.mark.parametrize(
    ("dtype", "weight_dtype", "scales"),
    [
        ("float32", "bfloat16", {SUBNORMAL: -127, LARGEST: 128, FAINT: -60, STRONG: 60, 7: 7}),
        ("bfloat16", "float32", {SUBNORMAL: -127, LARGEST: 128, FAINT: -60, STRONG: 60, 7: 7}),
        ("float16", "float32", {SUBNORMAL: -15, LARGEST: 16, FAINT: -20, STRONG: 13, 7: 7}),
    ],
)
def test_named_scales_and_another_type_of_weight_are_those_of_the_type(dtype, weight_dtype, scales):
    for scale, exponent in scales.items():
        options = {"eps": 0.0, "weight_dtype": "bfloat16", "log2_scale": scale, "dy_log2_scale": scale}
        own = {"weight_dtype": weight_dtype, "log2_scale": exponent, "dy_log2_scale": exponent}
        assert corners.scaled(options, dtype) == options | own
    assert corners.scaled({}, dtype) == {"log2_scale": 0, "dy_log2_scale": 0}


@pytest.mark.parametrize(("length", "most"), [(1, 1), (2, 1), (3, 2), (4, 3), (1024, 768)])
def test_most_of_a_row_is_three_quarters_and_one_element_at_least(length, most):
    assert corners.most_of(length) == most


@pytest.mark.parametrize(
    ("op", "sizes"),
    [
        ("rmsnorm_bwd", [1] * 2),
        ("layernorm_bwd", [1] * 3 + [2] * 3),
        ("modulate_rmsnorm_bwd", [1] * 4 + [3] * 4 + [2] * 6),
        ("add_layernorm_bwd", [1] * 3 + [2] * 3),
        ("dropout_add_layernorm_bwd", [1] * 4 + [3] * 4 + [2] * 6),
        ("modulate_layernorm_bwd", [1] * 5 + [4] * 5 + [2] + [3] + [2] * 9),
    ],
)
def test_of_many_inputs_one_needs_no_gradient_or_two_or_all_but_one(op, sizes):
    sets = corners.freezable(OPS[op])
    assert [len(some) for some in sets] == sizes
    assert len({frozenset(some) for some in sets}) == len(sets)


@pytest.mark.parametrize("op", ["modulate_layernorm_bwd", "dropout_add_layernorm_bwd", "layernorm_bwd"])
def test_the_parameters_alone_need_no_gradient_or_the_data_alone(op):
    """As with adapters beside a trained model, and in a fine-tuning of its norms."""
    parameters = {"weight", "bias"}
    data = set(differentiable(OPS[op])) - parameters
    for sets in (corners.freezable(OPS[op]), corners.frozen_alike(OPS[op])):
        assert {frozenset(parameters), frozenset(data)} <= {frozenset(some) for some in sets}


def test_pairs_of_many_inputs_are_in_the_table_and_meet_no_other_choices():
    alike, every = corners.frozen_alike(OPS["modulate_layernorm_bwd"]), corners.freezable(OPS["modulate_layernorm_bwd"])
    assert set(alike) < set(every)
    assert {len(some) for some in set(every) - set(alike)} == {2}


@pytest.mark.parametrize(
    ("spec", "kind", "modulation", "shape"),
    [
        (CaseSpec((6, 8)), 0, "sample", (6, 8)),
        (CaseSpec((6, 8)), 1, "token", (6, 8)),
        (CaseSpec((8,)), 1, "sample", (8,)),
        (CaseSpec((6, 8)), 2, "sample", (2, 3, 8)),
        (CaseSpec((4, 8)), 2, "sample", (2, 2, 8)),
        (CaseSpec((9, 8)), 2, "sample", (1, 9, 8)),
        (CaseSpec((8,)), 2, "sample", (8,)),
        (CaseSpec((6, 2, 4), normalized_ndim=2), 2, "sample", (2, 3, 2, 4)),
        (CaseSpec((6, 2, 4)), 2, "sample", (6, 2, 4)),
        (CaseSpec((6, 8), batch=3), 2, "sample", (6, 8)),
        (CaseSpec((6, 8), x_layout="loose"), 2, "sample", (6, 8)),
        (CaseSpec((6, 8), dy_layout="loose"), 2, "sample", (6, 8)),
    ],
)
def test_a_modulation_is_of_each_token_or_of_samples_of_many_tokens(spec, kind, modulation, shape):
    modulated = corners._modulated(spec, kind)
    assert modulated == replace(spec, modulation=modulation, shape=shape)
    assert {*map(type, modulated.shape)} == {int}


@pytest.mark.parametrize(
    ("op", "wanted", "held"),
    [
        ("layernorm_fwd", "bias", "bias"),
        ("rmsnorm_fwd", "bias", "x"),
        ("add_rmsnorm_fwd", "bias", "residual"),
        ("add_layernorm_bwd", "bias", "dresidual_out"),
        ("layernorm_bwd", "dy", "dy"),
        ("rmsnorm_fwd", "dy", "x"),
        ("add_rmsnorm_fwd", "dy", "residual"),
        ("add_rmsnorm_bwd", "x", "residual_out"),
        ("add_rmsnorm_bwd", "running_var", "residual_out"),
    ],
)
def test_a_special_value_is_in_an_input_that_the_operator_has(op, wanted, held):
    spec = CaseSpec((3, 8), special="inf", special_in=wanted)
    assert corners._specially(OPS[op], spec) == replace(spec, special_in=held)


def test_a_case_without_a_special_value_names_no_other_input_for_it():
    assert values("add_layernorm_bwd", "special_in") == {"x"}
