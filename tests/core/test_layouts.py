"""Layouts that a spec gives to tensors, and tensors that are one."""

from dataclasses import replace

import pytest
import torch

from verify_norm.core.layouts import aliased, memory_span, one_tensor
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec


@pytest.mark.parametrize("shape", [(4,), (2, 3), (3, 1, 4), (0, 3), ()])
def test_the_extent_is_the_storage_that_torch_needs(shape):
    tensor = torch.empty_strided(shape, [7 * (i + 1) for i in range(len(shape))])
    if tensor.numel():
        assert memory_span(tensor.shape, tensor.stride()) * 4 == tensor.untyped_storage().nbytes()
    else:
        assert memory_span(tensor.shape, tensor.stride()) == 1


ONE = CaseSpec((2, 3), alias="x:residual", x_layout="far")


@pytest.mark.parametrize(
    ("op", "spec", "written", "pair"),
    [
        ("add_rmsnorm_fwd", ONE, (), ("x", "residual")),
        ("add_rmsnorm_fwd", ONE, ("weight",), ("x", "residual")),
        ("add_rmsnorm_fwd", ONE, ("residual",), None),
        ("add_rmsnorm_fwd", ONE, ("x",), None),
        ("add_rmsnorm_fwd", replace(ONE, special="nan"), (), None),
        ("add_rmsnorm_fwd", replace(ONE, alias=""), (), None),
        ("add_rmsnorm_fwd", replace(ONE, dtype="float16", residual_dtype="float32"), (), None),
        ("add_rmsnorm_fwd", replace(ONE, residual_dtype="float32"), (), ("x", "residual")),
        ("rmsnorm_fwd", ONE, (), None),  # it has no residual
        ("layernorm_fwd", CaseSpec((2, 3), alias="weight:bias"), (), ("weight", "bias")),
        ("layernorm_fwd", CaseSpec((2, 3), alias="weight:bias", bias=False), (), None),
    ],
)
def test_two_inputs_are_one_tensor_where_both_are_there_and_neither_is_written(op, spec, written, pair):
    assert one_tensor(spec, OPS[op], written) == pair


def test_two_inputs_that_are_one_tensor_have_the_layout_of_the_first():
    op = OPS["add_rmsnorm_fwd"]
    assert aliased(ONE, op) == replace(ONE, residual_layout="far")
    assert aliased(ONE, OPS["rmsnorm_fwd"]) == ONE
