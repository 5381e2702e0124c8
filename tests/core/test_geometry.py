"""Shapes, types and layouts that a spec gives to an operator's tensors."""

import doctest
from dataclasses import replace

import pytest

from verify_norm.core import geometry
from verify_norm.core.layouts import layout_of, without_shared_memory
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec

STREAM = CaseSpec((2, 3), "float16", residual_dtype="float32")
UNLIKE = "residual_dtype: expected the type of x, or float32 beside an x of 16 bits"


def test_doctests():
    assert doctest.testmod(geometry).failed == 0


@pytest.mark.parametrize(
    ("op", "spec", "affine", "length"),
    [
        ("layernorm_fwd", CaseSpec((2, 3, 5), normalized_ndim=2), (3, 5), 15),
        ("groupnorm_fwd", CaseSpec((2, 6, 5), num_groups=3), (6,), 10),
        ("instancenorm_fwd", CaseSpec((2, 6, 5)), (6,), 5),
        ("batchnorm_fwd", CaseSpec((2, 6, 5)), (6,), 10),
    ],
)
def test_what_is_normalized_together(op, spec, affine, length):
    assert geometry.affine_shape(spec, OPS[op]) == affine
    assert geometry.row_length(spec, OPS[op]) == length


def test_what_a_spec_leaves_out_has_the_usual_value():
    spec = CaseSpec((2, 6, 5), "bfloat16", weight_dtype="float32", x_layout="far")
    groups, batch = OPS["groupnorm_fwd"], OPS["batchnorm_fwd"]
    assert geometry.groups(spec, groups) == 1
    assert [geometry.rows(spec, op) for op in (groups, batch)] == [2, 6]
    assert [layout_of(spec, name) for name in ("x", "mean")] == ["far", "contiguous"]
    assert [geometry.input_dtype(t, spec) for t in groups.inputs] == ["bfloat16", "float32", "float32"]


TRAINED = CaseSpec((2, 3), special="nan", special_in="running_mean", momentum=0.5)
REFUSED = [  # an operator, a case, why it has no such case
    ("groupnorm_fwd", CaseSpec((2, 6)), "groupnorm_fwd needs num_groups"),
    ("groupnorm_fwd", CaseSpec((2, 6), num_groups=3), None),
    ("batchnorm_fwd", CaseSpec((2, 3), training=False, running=False), "evaluation needs running statistics"),
    ("layernorm_fwd", CaseSpec((2, 3), training=False, running=False), None),
    ("batchnorm_fwd", CaseSpec((2, 3), running=False), None),
    ("batchnorm_fwd", CaseSpec((1, 3)), "training needs more than one value a channel"),
    ("batchnorm_fwd", CaseSpec((1, 3), training=False), None),
    ("batchnorm_fwd", CaseSpec((1, 3, 2)), None),
    ("rmsnorm_fwd", CaseSpec((1, 1)), None),
    ("layernorm_fwd", CaseSpec((2, 3), special="nan", special_in="bias"), None),
    (
        "layernorm_fwd",
        CaseSpec((2, 3), special="nan", special_in="bias", bias=False),
        "a bias that is None or not used holds no nan",
    ),
    ("rmsnorm_fwd", CaseSpec((2, 3), special="inf", special_in="dy"), "a dy that is None or not used holds no inf"),
    ("rmsnorm_bwd", CaseSpec((2, 3), special="inf", special_in="dy"), None),
    ("rmsnorm_bwd", CaseSpec((0, 3), special="inf", special_in="dy"), "a dy without elements holds no inf"),
    ("rmsnorm_bwd", CaseSpec((0, 3), special="-inf"), "an x without elements holds no -inf"),
    ("rmsnorm_bwd", CaseSpec((0, 3), special="nan", special_in="weight"), None),
    ("add_rmsnorm_bwd", CaseSpec((0, 3), special="nan"), "a residual_out without elements holds no nan"),
    ("batchnorm_fwd", TRAINED, None),
    *(
        ("batchnorm_fwd", replace(TRAINED, **how), "a running_mean that is None or not used holds no nan")
        for how in ({"momentum": 0.0}, {"momentum": 1.0}, {"running": False})
    ),
    ("batchnorm_fwd", replace(TRAINED, momentum=1.0, training=False), None),
    ("add_rmsnorm_fwd", STREAM, None),
    ("add_rmsnorm_fwd", CaseSpec((2, 3), residual_dtype="float32"), None),
    ("add_rmsnorm_bwd", CaseSpec((2, 3), residual_dtype="float32"), None),
    ("add_rmsnorm_bwd", STREAM, "add_rmsnorm_bwd has no residual_dtype: forwards with a residual have one"),
    ("rmsnorm_fwd", STREAM, "rmsnorm_fwd has no residual_dtype: forwards with a residual have one"),
    *(
        ("add_rmsnorm_fwd", CaseSpec((2, 3), one, residual_dtype=other), UNLIKE)
        for one, other in (("float32", "bfloat16"), ("float16", "bfloat16"), ("float64", "float32"))
    ),
    ("rmsnorm_bwd", CaseSpec((2, 3), frozen=("x", "weight")), "no input needs a gradient"),
    ("rmsnorm_bwd", CaseSpec((2, 3), frozen=("x",)), None),
    ("rmsnorm_bwd", CaseSpec((2, 3), frozen=("x",), weight=False), "no input needs a gradient"),
]


@pytest.mark.parametrize(("op", "spec", "reason"), REFUSED)
def test_which_cases_an_operator_has_not(op, spec, reason):
    assert geometry.refusal(spec, OPS[op]) == reason


def test_the_dimensions_before_those_that_are_normalized():
    spec = CaseSpec((2, 6, 5, 3), normalized_ndim=2, num_groups=3)
    sizes = {
        name: (geometry.leads(spec, OPS[name]), geometry.rows(spec, OPS[name]))
        for name in ("rmsnorm_fwd", "groupnorm_fwd", "batchnorm_fwd", "instancenorm_fwd")
    }
    assert sizes == {
        "rmsnorm_fwd": (2, 12),
        "groupnorm_fwd": (1, 6),
        "batchnorm_fwd": (1, 6),
        "instancenorm_fwd": (1, 12),
    }
    shared = CaseSpec((2, 3), x_layout="scalar", dy_layout="expanded")
    apart = without_shared_memory(shared, ("x", "mean"))
    assert apart == CaseSpec((2, 3), dy_layout="expanded")
    named = {name: geometry.differentiable(OPS[f"{name}_bwd"]) for name in ("rmsnorm", "add_layernorm")}
    assert named == {"rmsnorm": ["x", "weight"], "add_layernorm": ["x", "weight", "bias"]}


SHAPES = [  # an operator, a case, the shapes of some of its tensors
    ("layernorm_fwd", CaseSpec((2, 3, 5), normalized_ndim=2), {"x": (2, 3, 5), "bias": (3, 5), "y": (2, 3, 5)}),
    ("layernorm_fwd", CaseSpec((2, 3, 5)), {"weight": (5,), "mean": (6,), "rstd": (6,)}),
    ("batchnorm_fwd", CaseSpec((2, 6, 5)), {"weight": (6,), "mean": (6,), "running_var": (6,)}),
    ("rmsnorm_fp8_fwd", CaseSpec((2, 3)), {"scale": (1,), "amax": (1,)}),
    ("rmsnorm_quant_fwd", CaseSpec((2, 3, 8)), {"y_scale": (6, 1)}),
    ("add_rmsnorm_quant_group_fwd", CaseSpec((2, 3, 300)), {"y_scale": (6, 3)}),
    ("modulate_rmsnorm_fwd", CaseSpec((2, 5, 8)), {"scale": (2, 8), "shift": (2, 8)}),
    ("modulate_rmsnorm_fwd", CaseSpec((2, 5, 8), modulation="token"), {"scale": (2, 5, 8)}),
    ("modulate_rmsnorm_fwd", CaseSpec((8,)), {"scale": (8,)}),
    ("qk_norm_rope_fwd", CaseSpec((5, 4, 64)), {"cos": (5, 32), "sin": (5, 32)}),
    ("qk_norm_rope_fwd", CaseSpec((5, 1)), {"cos": (5, 0)}),  # nothing to turn
    *(("qk_norm_rope_fwd", CaseSpec((5, n), rotary="quarter"), {"cos": (5, 1)}) for n in (2, 3, 4)),
]


@pytest.mark.parametrize(("op", "spec", "shapes"), SHAPES)
def test_the_shape_of_each_argument_and_result(op, spec, shapes):
    tensors = {tensor.name: tensor for tensor in (*OPS[op].inputs, *OPS[op].outputs)}
    found = {name: geometry.shape_of(tensors[name], spec, OPS[op]) for name in shapes}
    assert found == shapes
    assert all(isinstance(size, int) for shape in found.values() for size in shape)


def test_lengths_are_whole_numbers_and_a_short_row_has_a_statistic():
    assert isinstance(geometry.row_length(CaseSpec((2, 6, 5), num_groups=3), OPS["groupnorm_fwd"]), int)
    assert geometry.variance_size(CaseSpec((5, 1)), OPS["partial_rmsnorm_fwd"]) == 1


@pytest.mark.parametrize(
    ("op", "spec", "same"),
    [
        ("layernorm_fwd", CaseSpec((4, 1)), {"y", "rstd"}),
        ("layernorm_bwd", CaseSpec((4, 1)), {"dx", "dweight"}),
        ("layernorm_bwd", CaseSpec((4, 2)), set()),
        ("rmsnorm_bwd", CaseSpec((4, 1)), set()),  # it subtracts no mean
        ("dropout_add_layernorm_bwd", CaseSpec((4, 1)), {"dx", "dresidual", "dweight"}),
        ("instancenorm_fwd", CaseSpec((4, 3)), {"y", "rstd"}),
        ("batchnorm_fwd", CaseSpec((1, 3), training=False), set()),  # it subtracts the running mean
    ],
)
def test_what_a_row_of_one_element_settles(op, spec, same):
    assert {t.name for t in OPS[op].outputs if geometry.constant_output(t.name, spec, OPS[op])} == same


def test_a_case_is_repeated_once_and_only_to_its_batch():
    assert geometry.repeated(CaseSpec((4, 5, 6), batch=300)) == CaseSpec((300, 5, 6))
    assert geometry.repeated(CaseSpec((4, 512))) == CaseSpec((4, 512))


def test_a_users_own_operator_needs_all_that_it_has():
    bare, op = CaseSpec((2, 3), weight=False, bias=False), OPS["rmsnorm_fwd"]
    assert geometry.needed(bare, replace(op, user_defined=True)) == CaseSpec((2, 3))
    assert geometry.needed(bare, op) == bare


def test_frozen_inputs_stay_frozen_as_long_as_one_needs_a_gradient():
    one, all_of = (CaseSpec((2, 3), frozen=frozen) for frozen in (("weight",), ("x", "weight")))
    assert geometry.thawed(one, ["x", "weight"]) == one
    assert geometry.thawed(all_of, ["x", "weight"]) == CaseSpec((2, 3))
    assert geometry.thawed(all_of, ["x", "weight", "bias"]) == all_of
    assert geometry.differentiable(OPS["rmsnorm_fwd"]) == []
    assert layout_of(one, "scale_ub") == "contiguous"  # no field names its layout
