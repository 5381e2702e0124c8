"""The record of an operator: the type of a tensor among others."""

import pytest

from verify_norm.core.op import Tensor


@pytest.mark.parametrize(
    ("dtype", "weight_dtype", "expected"),
    [
        ("x", "float32", "float16"),
        ("weight", "float32", "float32"),
        ("weight", None, "float16"),
        ("float32", None, "float32"),
        ("float8_e4m3fn", "bfloat16", "float8_e4m3fn"),
    ],
)
def test_the_type_of_a_tensor_follows_x_or_the_weight_or_neither(dtype, weight_dtype, expected):
    assert Tensor("t", "data", "input", dtype).among("float16", weight_dtype) == expected


@pytest.mark.parametrize(("residual_dtype", "expected"), [(None, "float16"), ("float32", "float32")])
def test_a_residual_has_a_type_of_its_own_or_that_of_x(residual_dtype, expected):
    residual = Tensor("t", "data", "input", "residual")
    assert residual.among("float16", "bfloat16", "bfloat16", residual_dtype) == expected


@pytest.mark.parametrize(("other_dtype", "expected"), [(None, "float16"), ("float32", "float32")])
def test_cos_and_the_like_have_a_type_of_their_own_or_that_of_x(other_dtype, expected):
    assert Tensor("t", "data", "input", "other").among("float16", "bfloat16", other_dtype) == expected
