"""Shapes, types and layouts that a spec gives to an operator's tensors."""

import doctest

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
