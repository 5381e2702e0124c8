"""Contracts from fields: each value is validated, and a wrong one has one line that says what is right."""

from dataclasses import asdict, fields
from math import inf
from typing import get_args, get_type_hints

import pytest
from pydantic import TypeAdapter

from verify_norm.core import contract_fields
from verify_norm.core.contract import Contract
from verify_norm.core.errors import UsageError
from verify_norm.reference.arithmetic import PRODUCTS, Arithmetic


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"products": "tf16"}, "products: expected float32, tf32, tf32x3, bf16, bf16x3 or bf16x6, got 'tf16'"),
        ({"lanes": 0}, "lanes: expected a whole number of 1 or more, got 0"),
        ({"lanes": "many"}, "lanes: expected a whole number of 1 or more, got 'many'"),
        ({"expanded": "maybe"}, "expanded: expected true or false, got 'maybe'"),
        ({"summation": "none"}, "summation: expected blocked, sequential or atomic, got 'none'"),
        ({"weight_grad": 16}, "weight_grad: expected none, float64, float32, float16 or bfloat16, got 16"),
        ({"inplace": ("dx",)}, "inplace: expected pairs of an output and an input, such as \"dx:dy\", got ('dx',)"),
        ({"inplace": 3}, 'inplace: expected pairs of an output and an input, such as "dx:dy", got 3'),
        ({"scale_floor": "few"}, "scale_floor: expected a number of 0 or more, got 'few'"),
        ({"scale_floor": "-1"}, "scale_floor: expected a number of 0 or more, got '-1'"),
        ({"scale_floor": None}, "scale_floor: expected a number of 0 or more, got None"),
        ({"scale_floor": True}, "scale_floor: expected a number of 0 or more, got True"),
        ({"scale_floor": inf}, "scale_floor: expected a number of 0 or more, got inf"),
        ({"lanes": True}, "lanes: expected a whole number of 1 or more, got True"),
        ({"lanes": 8, "saturate": True}, "saturate: expected either, saturate or overflow, got True"),
    ],
)
def test_a_wrong_value_is_one_line_that_says_what_is_right(given, said):
    with pytest.raises(UsageError, match=r"^contract: ") as raised:
        contract_fields.make(given)
    assert str(raised.value) == f"contract: {said}"


def test_an_unknown_field_is_guessed():
    with pytest.raises(UsageError, match=r"unknown field of a contract 'product' \(did you mean products\?\)"):
        contract_fields.make({"product": "tf32"})


def test_text_stands_for_values():
    assert contract_fields.make(
        {"lanes": 1, "expanded": "false", "inplace": ["dx:dy"], "scale_floor": "0.5"}
    ) == Contract(lanes=1, inplace=("dx:dy",), scale_floor=0.5)
    given = {"lanes": "8", "expanded": "true", "xhat": "bf16", "products": "bf16", "output": "none"}
    want = Contract(lanes=8, expanded=True, xhat="bfloat16", products="bf16")
    assert contract_fields.make(given | {"inplace": "dx:dy, y:x"}) == Contract(
        **asdict(want) | {"inplace": ("dx:dy", "y:x")}
    )


def test_the_strict_contract_is_right_and_every_field_has_words():
    assert contract_fields.make({}) == contract_fields.checked(Contract()) == Contract()
    with pytest.raises(UsageError, match="residual"):
        contract_fields.checked(Contract(residual="kept"))
    assert all(contract_fields.allowed(field.name) for field in fields(Contract))


def test_the_products_are_those_of_the_reference():
    names = get_args(get_type_hints(Contract)["products"])
    assert set(names) == {"float32", *PRODUCTS}
    assert names == get_args(get_type_hints(Arithmetic)["products"])


def test_a_contract_of_an_older_report_is_read():
    old = '{"accumulate": "float32", "stats": "x", "xhat": null, "inplace": ["dx:dy"], "output": null}'
    assert TypeAdapter(Contract).validate_json(old) == Contract(stats="x", inplace=("dx:dy",))
