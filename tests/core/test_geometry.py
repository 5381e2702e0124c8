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
