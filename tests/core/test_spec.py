"""The nouns: the type of a tensor among others, and the cases that a kernel refuses."""

from dataclasses import fields

import pytest

from verify_norm.core.ops import OPS
from verify_norm.core.spec import FURTHER, CaseSpec, Kernel, Tensor


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


def test_a_kernel_refuses_what_its_record_says_and_nothing_without_one():
    long = Kernel("k", "rmsnorm_fwd", unsupported=lambda spec: "too long" if spec.shape[-1] > 8 else None)
    assert long.refuses(CaseSpec((2, 9))) == "too long"
    assert long.refuses(CaseSpec((2, 8))) is None
    assert Kernel("k", "rmsnorm_fwd").refuses(CaseSpec((2, 9))) is None


def test_a_case_written_by_hand_checks_all_and_has_a_field_for_every_attribute_of_an_operator():
    assert CaseSpec((2, 3)).further == FURTHER
    names = {field.name for field in fields(CaseSpec)}
    attributes = {name for op in OPS.values() for name in op.attrs} - {"normalized_shape"}
    assert attributes <= names
    layouts = {f"{t.name}_layout" for op in OPS.values() for t in op.inputs if t.extent == "data"}
    assert layouts <= names


def test_a_case_is_fitted_by_what_the_kernel_says():
    wide = Kernel("k", "rmsnorm_fwd", fit=lambda spec: CaseSpec((*spec.shape[:-1], 16)))
    assert wide.fitted(CaseSpec((2, 9))) == CaseSpec((2, 16))
    assert Kernel("k", "rmsnorm_fwd").fitted(CaseSpec((2, 9))) == CaseSpec((2, 9))
