"""A case as plain data."""

from dataclasses import fields

from verify_norm.core.ops import OPS
from verify_norm.core.spec import FURTHER, CaseSpec


def test_a_case_written_by_hand_checks_all_and_has_a_field_for_every_attribute_of_an_operator():
    assert CaseSpec((2, 3)).further == FURTHER
    names = {field.name for field in fields(CaseSpec)}
    attributes = {name for op in OPS.values() for name in op.attrs} - {"normalized_shape"}
    assert attributes <= names
    layouts = {f"{t.name}_layout" for op in OPS.values() for t in op.inputs if t.extent == "data"}
    assert layouts <= names
