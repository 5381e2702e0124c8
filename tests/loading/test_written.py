"""The tensors that a function writes its results into: their shapes and types, by the operator's."""

import pytest
import torch

from verify_norm.core.contract import Contract
from verify_norm.core.ops import OPS
from verify_norm.loading.written import blank, merged

X, N, C = torch.ones(2, 4, 6, dtype=torch.bfloat16), torch.ones(6), torch.ones(4)


@pytest.mark.parametrize(
    ("op", "name", "given", "shape", "dtype"),
    [
        ("layernorm_fwd", "y", {}, (2, 4, 6), "bfloat16"),
        ("layernorm_fwd", "mean", {}, (8,), "float32"),
        ("layernorm_bwd", "dweight", {"weight": N}, (6,), "float32"),
        ("layernorm_bwd", "dbias", {"bias": N.half()}, (6,), "float16"),
        ("add_rmsnorm_bwd", "dx", {"x": None, "residual_out": X}, (2, 4, 6), "bfloat16"),
        ("add_rmsnorm_fwd", "residual_out", {"residual": N.expand(2, 4, 6)}, (2, 4, 6), "float32"),
        ("add_rmsnorm_fwd", "y", {"residual": N.expand(2, 4, 6)}, (2, 4, 6), "bfloat16"),
        ("groupnorm_fwd", "rstd", {"num_groups": 2}, (2, 2), "float32"),
        ("instancenorm_fwd", "mean", {}, (2, 4), "float32"),
        ("batchnorm_fwd", "mean", {}, (4,), "float32"),
        ("batchnorm_fwd", "running_var", {"running_var": C}, (4,), "float32"),
        ("modulate_rmsnorm_bwd", "dscale", {"scale": torch.ones(2, 6)}, (2, 6), "bfloat16"),
        ("rmsnorm_fp8_fwd", "amax", {}, (1,), "float32"),
        ("add_rmsnorm_quant_group_fwd", "y_scale", {}, (8, 1), "float32"),
        ("rmsnorm | quantize(e2m1, mx)_fwd", "y", {}, (2, 4, 3), "uint8"),
        ("rmsnorm | quantize(e2m1, mx)_fwd", "y_scale", {}, (8, 1), "uint8"),
    ],
)
def test_an_output_to_write_into_has_the_operators_shape_and_type(op, name, given, shape, dtype):
    tensors = {"x": X, "normalized_shape": (6,)} | given
    made = blank(name, OPS[op], Contract(), {key: value for key, value in tensors.items() if value is not None})
    assert (tuple(made.shape), made.dtype) == (shape, getattr(torch, dtype))


def test_the_gradient_of_none_is_none():
    given = {"x": X, "weight": None, "normalized_shape": (6,)}
    assert blank("dweight", OPS["layernorm_bwd"], Contract(), given) is None


def test_what_is_returned_beside_them_follows_in_the_operators_order():
    y, rstd = torch.ones(2), torch.ones(3)
    assert merged((y, None, rstd), {"y": y}, OPS["rmsnorm_fwd"]) == {"y": y, "rstd": rstd}
    with pytest.raises(TypeError, match="expected y to be written into, got 2 returned values too"):
        merged((rstd, rstd), {"y": y}, OPS["rmsnorm_fwd"])
