"""A case as one line of JSON: what is read back, and what is refused in words."""

import doctest

import pytest

from verify_norm.core import serial
from verify_norm.core.errors import UsageError
from verify_norm.core.spec import CaseSpec


def test_doctests():
    assert doctest.testmod(serial).failed == 0


def test_a_line_holds_what_differs_from_the_defaults():
    spec = CaseSpec((2, 3), eps=1e-3, frozen=("weight",))
    text = serial.spec_text("k", spec, "rmsnorm_bwd")
    assert text == '{"kernel": "k", "op": "rmsnorm_bwd", "shape": [2, 3], "eps": 0.001, "frozen": ["weight"]}'
    assert serial.read_spec(text) == ("k", "rmsnorm_bwd", spec)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("eps", -1, "a finite number of 0 or more"),
        ("eps", float("inf"), "a finite number of 0 or more"),
        ("offset", float("nan"), "a finite number"),
        ("scale", "1", "a finite number of 0 or more"),
        ("momentum", 1.5, "a finite number from 0 to 1"),
        ("num_groups", 0, "a whole number of 1 or more"),
        ("num_groups", 1.5, "a whole number of 1 or more"),
        ("log2_scale", 2000, "a whole number from -1074 to 1024"),
        ("seed", 2**64, "a whole number from 0 to 18446744073709551615"),
    ],
)
def test_a_number_outside_its_range(name, value, expected):
    """A replay line, a CaseSpec and --bind share the range and the words."""
    message = f"{name}: expected {expected}, got {value!r}"
    assert serial.out_of_range(name, value) == message
    for attempt in (
        lambda: serial.refuse_nonsense(CaseSpec((2, 4), **{name: value})),
        lambda: serial.read_spec(serial.json.dumps({"kernel": "k", "shape": [2, 4], name: value})),
    ):
        with pytest.raises(UsageError) as caught:
            attempt()
        assert str(caught.value) == message


def test_the_ends_of_a_range_are_allowed_and_a_flag_is_a_number():
    assert serial.out_of_range("eps", 0) is None
    assert serial.out_of_range("momentum", 1) is None
    assert serial.out_of_range("seed", 2**64 - 1) is None
    assert serial.out_of_range("weight_offset", True) is None
    assert serial.out_of_range("num_groups", None) is None
    assert serial.out_of_range("x_layout", "far") is None
