"""Shapes, types and layouts that a spec gives to an operator's tensors."""

import doctest
from dataclasses import replace

import pytest
import torch

from verify_norm.core import geometry
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec


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


@pytest.mark.parametrize("shape", [(4,), (2, 3), (3, 1, 4), (0, 3), ()])
def test_the_extent_is_the_storage_that_torch_needs(shape):
    tensor = torch.empty_strided(shape, [7 * (i + 1) for i in range(len(shape))])
    if tensor.numel():
        assert geometry.extent(tensor.shape, tensor.stride()) * 4 == tensor.untyped_storage().nbytes()
    else:
        assert geometry.extent(tensor.shape, tensor.stride()) == 1


@pytest.mark.parametrize(
    ("special", "op", "words"),
    [
        ({}, None, ""),
        ({"special": "nan"}, None, "nan in the first element of x"),
        ({"special": "inf", "special_in": "dy", "special_at": "rows"}, "rmsnorm_bwd", "inf in every other row of dy"),
        ({"special": "nan", "special_at": "last"}, "add_rmsnorm_bwd", "nan in the last element of residual_out"),
        ({"special": "nan", "special_at": "middle"}, "rmsnorm_bwd", "nan in the middle element of x"),
    ],
)
def test_a_special_value_and_its_place_in_words(special, op, words):
    assert geometry.special_words(CaseSpec((2, 3), **special), op and OPS[op]) == words


def test_what_a_spec_leaves_out_has_the_usual_value():
    spec = CaseSpec((2, 6, 5), "bfloat16", weight_dtype="float32", x_layout="far")
    groups, batch = OPS["groupnorm_fwd"], OPS["batchnorm_fwd"]
    assert geometry.groups(spec, groups) == 1
    assert [geometry.rows(spec, op) for op in (groups, batch)] == [2, 6]
    assert [geometry.layout_of(spec, name) for name in ("x", "mean")] == ["far", "contiguous"]
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
    assert geometry.apart(CaseSpec((2, 3), x_layout="scalar", dy_layout="expanded"), ("x", "mean")) == CaseSpec(
        (2, 3), dy_layout="expanded"
    )
    named = {name: geometry.differentiable(OPS[f"{name}_bwd"]) for name in ("rmsnorm", "add_layernorm")}
    assert named == {"rmsnorm": ["x", "weight"], "add_layernorm": ["x", "weight", "bias"]}
