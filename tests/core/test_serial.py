"""A case as one line of JSON: what is read back, and what is refused in words."""

import doctest

import pytest
from pydantic import TypeAdapter, ValidationError

from verify_norm.core import serial, ways
from verify_norm.core.errors import UsageError
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import Skip


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


SPEC = '{"kernel": "k", "shape": [2, 3], %s}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot parse the spec as JSON: "),
        ("[1]", 'the spec: expected an object, such as {"kernel": …, "shape": […]}, got [1]'),
        ('{"shape": [1]}', "the spec has no 'kernel'"),
        ('{"kernel": "k"}', "the spec has no 'shape'"),
        ('{"kernel": 7, "shape": [1]}', "the spec's kernel: expected a name, got 7"),
        (SPEC % '"op": ["x"]', 'the spec\'s op: expected a name, got ["x"]'),
        (SPEC % '"kind": 1', "unknown field of the spec 'kind'; verify-norm schema case shows all "),
        ('{"kernel": "k", "shape": "wide"}', "the spec: shape: expected a valid "),
        (SPEC % '"x_layout": 7', "the spec: x_layout: expected a valid string, got 7"),
        (SPEC % '"dtype": "int8"', "unknown dtype 'int8'"),
        (SPEC % '"weight_dtype": "int8"', "unknown dtype 'int8'"),
        (SPEC % '"data": "odd"', "unknown data family 'odd'"),
        (SPEC % '"dy_data": "odd"', "unknown dy_data 'odd'"),
        (SPEC % '"weight_data": "odd"', "unknown weight_data 'odd'"),
        (
            SPEC % '"frozen": ["mean"]',
            "unknown frozen input 'mean'; there are: x, residual, weight, bias, gate, scale, shift",
        ),
        (SPEC % '"further": ["odd"]', "unknown further run 'odd'"),
        (SPEC % '"dy_layout": "odd"', "unknown dy_layout 'odd'"),
        ('{"kernel": "k", "shape": []}', "shape: expected one or more sizes, none negative, got []"),
        ('{"kernel": "k", "shape": [2, -1]}', "shape: expected one or more sizes, none negative, got [2, -1]"),
        (
            '{"kernel": "k", "shape": [1048576, 131072]}',
            "shape: expected at most 2**36 elements, got 1.37e+11 in [1048576, 131072]",
        ),
        (SPEC % '"batch": 68719476736', "batch: expected at most 2**36 elements, got 2.06e+11 in [68719476736, 3]"),
        (SPEC % '"normalized_ndim": 3', "normalized_ndim: expected 1 to the rank of x, 2, got 3"),
    ],
)
def test_what_is_wrong_with_a_replay_line(text, said):
    with pytest.raises(UsageError) as caught:
        serial.read_spec(text)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "fields", ['"frozen": ["x", "weight", "bias"]', '"normalized_ndim": 2', '"dtype": "float64"', '"op": null']
)
def test_what_is_at_the_end_of_its_range_is_no_nonsense(fields):
    assert serial.read_spec(SPEC % fields)[2].shape == (2, 3)
    serial.refuse_nonsense(CaseSpec((0, 4)))
    serial.refuse_nonsense(CaseSpec((2**20, 2**16)))


def test_a_line_keeps_letters_and_has_no_operator_where_none_is_named():
    line = serial.spec_text("μ.py:k", CaseSpec((2,)))
    assert line == '{"kernel": "μ.py:k", "shape": [2]}'
    assert serial.read_spec(line) == ("μ.py:k", None, CaseSpec((2,)))


def test_values_in_the_types_of_json():
    skip = Skip("y", "no", 2)
    assert serial.jsonable([float("nan"), float("inf"), -float("inf"), 0.5]) == ["NaN", "Infinity", "-Infinity", 0.5]
    assert serial.jsonable(skip) == {"what": "y", "reason": "no", "cases": 2, "limit": False}
    assert serial.jsonable({"a": (skip, CaseSpec((2, 3), eps=0.5))}) == {
        "a": [serial.jsonable(skip), {"shape": [2, 3], "eps": 0.5}]
    }


def test_a_document_has_a_line_for_each_field_and_each_member_of_a_list():
    inner = {"schema": 1, "b": [{"μ": 1}, {"c": []}]}
    assert serial.by_lines({"a": "μ", "of": inner, "e": [1, 2], "f": {"g": 0}}) == (
        '{\n"a": "μ",\n"of": {\n"schema": 1,\n"b": [\n {"μ": 1},\n {"c": []}\n]\n},\n"e": [1, 2],\n"f": {"g": 0}\n}'
    )


def test_a_value_of_a_file_is_short_and_on_one_line():
    assert serial.short({"a": "μ\n  b", "c": {1}}) == '{"a": "μ\\n b", "c": "{1}"}'
    assert serial.short("x" * 80) == '"' + "x" * 59


def test_the_first_error_of_several_is_named_by_its_place():
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(dict[str, list[int]]).validate_python({"a": [1, "μ"], "b": 3})
    assert serial.first_error(caught.value).startswith("a.1: expected a valid integer")
    assert serial.first_error(caught.value).endswith(', got "μ"')
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(int).validate_python("μ")
    assert serial.first_error(caught.value).startswith("value: expected")


@pytest.mark.parametrize("name", [0, False, [], {}])
def test_an_operator_that_is_no_name_is_refused(name):
    with pytest.raises(UsageError, match="the spec's op: expected a name, got "):
        serial.read_spec(SPEC % f'"op": {serial.json.dumps(name)}')


def test_what_json_can_hold_and_a_case_cannot_is_one_line():
    with pytest.raises(UsageError, match=r"^the spec: value: Invalid JSON") as caught:
        serial.read_spec(SPEC % r'"data": "\ud800"')  # a lone surrogate
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("mode", "qqq", f"unknown mode 'qqq'; verify-norm schema case shows all {len(ways.known('mode')) + 1}"),
        ("series", "qqq", "unknown series 'qqq'; verify-norm schema case shows all 3"),
        ("alias", "y:z", "unknown alias 'y:z'"),
    ],
)
def test_a_way_and_an_alias_are_among_those_that_are_known(field, value, said):
    with pytest.raises(UsageError) as caught:
        serial.refuse_nonsense(CaseSpec((2, 3), **{field: value}))
    assert str(caught.value).startswith(said)
    serial.refuse_nonsense(CaseSpec((2, 3), alias="x:residual", mode="quick"))
