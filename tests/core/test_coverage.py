"""What cases had in them: one case, and several together."""

from dataclasses import replace

import pytest

from verify_norm.core.coverage import Seen
from verify_norm.core.op import Tensor
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tensors import X

ROWS, GROUPS = CaseSpec((4, 3, 8), normalized_ndim=2), CaseSpec((2, 12, 5), num_groups=4)


@pytest.mark.parametrize(
    ("op", "spec", "sizes"),
    [
        ("layernorm_fwd", ROWS, (4, 24, 0, 96)),
        ("layernorm_bwd", CaseSpec((0, 7)), (0, 7, 0, 0)),
        ("rmsnorm_fwd", CaseSpec((2, 3, 8), batch=512), (6, 8, 0, 48)),  # the batch is not compared with the truth
        ("groupnorm_bwd", GROUPS, (8, 15, 3, 120)),
        ("instancenorm_fwd", replace(GROUPS, num_groups=None), (24, 5, 0, 120)),
        ("batchnorm_fwd", CaseSpec((2, 12, 5)), (12, 10, 0, 120)),
    ],
)
def test_the_sizes_of_a_case(op, spec, sizes):
    seen = Seen.of(spec, OPS[op])
    assert (seen.rows, seen.length, seen.group, seen.elements) == sizes


@pytest.mark.parametrize(
    ("op", "changes", "weights"),
    [
        ("layernorm_fwd", {}, {}),
        ("layernorm_fwd", {"weight_dtype": "bfloat16"}, {}),
        ("layernorm_fwd", {"weight_dtype": "float32"}, {"float32": 1}),
        ("layernorm_fwd", {"weight_dtype": "float32", "weight": False}, {"float32": 1}),
        ("layernorm_fwd", {"weight_dtype": "float32", "weight": False, "bias": False}, {}),
        ("rmsnorm_fwd", {"weight_dtype": "float32", "weight": False}, {}),  # it has no bias
    ],
)
def test_the_types_of_a_case(op, changes, weights):
    seen = Seen.of(CaseSpec((2, 8), "bfloat16", **changes), OPS[op])
    assert (seen.types, seen.weights) == ({"bfloat16": 1}, weights)


@pytest.mark.parametrize(
    ("op", "other_dtype", "others"),
    [
        ("qk_norm_rope_fwd", None, {}),
        ("qk_norm_rope_fwd", "bfloat16", {}),
        ("qk_norm_rope_fwd", "float32", {"float32": 2}),
        ("rmsnorm_fwd", "float32", {}),  # it has no cos
    ],
)
def test_the_type_of_cos_and_the_like_if_it_is_not_that_of_x(op, other_dtype, others):
    seen = Seen.of(CaseSpec((2, 8), "bfloat16", other_dtype=other_dtype), OPS[op])
    assert seen.merge(seen).others == others


def test_the_type_of_a_residual_if_it_is_not_that_of_x():
    spec = CaseSpec((2, 8), "bfloat16", residual_dtype="float32", other_dtype="float16")
    assert Seen.of(spec, OPS["add_rmsnorm_fwd"]).others == {"float32": 1}
    assert Seen.of(replace(spec, residual_dtype=None), OPS["add_rmsnorm_fwd"]).others == {}
    assert Seen.of(spec, OPS["rmsnorm_fwd"]).others == {}
    assert Seen.of(spec, OPS["add | rmsnorm | modulate_fwd"]).others == {"float16": 1, "float32": 1}


def test_a_weight_that_no_field_of_a_case_leaves_out_has_its_type():
    scale = Tensor("alpha", "one", "weight", dtype="weight")
    own = replace(OPS["rmsnorm_fwd"], inputs=(X, scale))
    assert Seen.of(CaseSpec((2, 8), "bfloat16", weight_dtype="float32"), own).weights == {"float32": 1}


def test_a_layout_of_what_is_none_is_none():
    layouts = ["x contiguous", "weight every_other", "bias offset"]
    assert Seen.of(CaseSpec((2, 8), bias=False), OPS["layernorm_fwd"], layouts).layouts == {
        "contiguous": 1,
        "every_other": 1,
    }


def test_a_batch_norm_was_in_training_or_in_evaluation():
    ways = [("calls", "two threads")]
    seen = [Seen.of(CaseSpec((4, 3), training=on), OPS["batchnorm_bwd"], ways=ways) for on in (True, True, False)]
    both = seen[0].merge(seen[1]).merge(seen[2])
    assert both.ways == {"calls": {"two threads": 3}, "modes": {"training": 2, "evaluation": 1}}
    assert "modes" not in Seen.of(CaseSpec((4, 3)), OPS["layernorm_fwd"], ways=ways).ways


def test_several_cases_have_the_largest_sizes_and_the_sums_of_counts():
    found = {"ways": [("modes", "no_grad")], "operators": ["aten::native_layer_norm"], "notes": ["a graph break"]}
    wide = Seen.of(CaseSpec((2, 64)), OPS["layernorm_fwd"], ["x offset", "weight offset"], **found)
    tall = Seen.of(CaseSpec((100, 1), "float16", weight_dtype="float32"), OPS["layernorm_fwd"])
    for both in (wide.merge(tall), tall.merge(wide), Seen().merge(wide).merge(tall)):
        assert (both.rows, both.length, both.elements) == (100, 64, 128)
        assert both.types == {"float32": 1, "float16": 1}
        assert both.weights == {"float32": 1}
        assert both.layouts == {"offset": 1}, "it counts cases"
        assert both.ways == {"modes": {"no_grad": 1}}
        assert both.operators == {"aten::native_layer_norm": 1}
        assert both.notes == {"a graph break": 1}
    assert wide.merge(wide).notes == {"a graph break": 2}
    assert wide.merge(wide).operators == {"aten::native_layer_norm": 2}


def test_the_channels_of_a_group_and_names_of_several_words():
    small, large = (Seen.of(CaseSpec((2, n, 5), num_groups=2), OPS["groupnorm_fwd"]) for n in (4, 6))
    assert [small.group, large.group, small.merge(large).group, large.merge(small).group] == [2, 3, 3, 3]
    assert all(isinstance(seen.group, int) for seen in (small, large))
    assert Seen.of(CaseSpec((2, 8)), OPS["layernorm_fwd"], ["running mean x offset"]).layouts == {"offset": 1}
