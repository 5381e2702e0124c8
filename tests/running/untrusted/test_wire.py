"""Whatever comes through the channel of an untrusted kernel is an answer in our form, or a MalformedError."""

import json
import struct
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verify_norm.running.untrusted import wire

NAMES = ("y", "rstd")
RAW = {0: wire.Raw("float16", (2, 3), bytearray(12)), 1: wire.Raw("float32", (2,), bytearray(8))}
MOST = 1000


def message(number=7, outputs=RAW, **notes):
    return bytearray(b"".join(wire.packed(number, outputs, notes)))


def read(data, number=7, most=MOST):
    at = 0

    def receive(size):
        nonlocal at
        assert 0 <= size <= max(most, wire.NOTES, wire.RECORD.size), "nobody asks for more than is allowed"
        if at + size > len(data):
            raise EOFError
        at += size
        return bytearray(data[at - size : at])

    return wire.read(receive, number, most, NAMES)


def test_an_answer_comes_as_it_was_sent():
    answer = read(message(effects=("os.environ changes",), problem=None))
    assert dict(answer.outputs) == RAW
    assert answer.notes.effects == ("os.environ changes",)
    assert read(message(outputs={0: None})).outputs == {0: None}
    assert read(message(outputs={0: None, 1: RAW[1]})).outputs == {0: None, 1: RAW[1]}


@pytest.mark.parametrize(("dtype", "shape"), [("int8", ()), ("uint8", (500,)), ("float16", (1,) * 7 + (500,))])
def test_outputs_of_any_shape_up_to_the_limits_come_through(dtype, shape):
    """Of 8 dimensions at most, with as many bytes as are allowed."""
    raw = wire.Raw(dtype, shape, bytearray(prod(shape) * wire.SIZES[dtype]))
    assert read(message(outputs={1: raw})).outputs == {1: raw}


def test_notes_have_a_limit_too():
    notes = dict.fromkeys(("limits", "effects", "operators", "differs_on_gpu"), ("x" * 2000,) * 8)
    text = len(message(outputs={}, **notes)) - wire.HEADER.size
    notes["sandbox"] = ("x" * (wire.NOTES - text - 2),)
    assert len(message(outputs={}, **notes)) == wire.HEADER.size + wire.NOTES
    assert read(message(outputs={}, **notes)).notes == wire.Notes(**notes)


def test_outputs_may_be_several_times_as_large_as_the_arguments():
    assert [wire.allowed(size) for size in (0, 100, 2**36)] == [2**20, 2**20 + 1600, 2**36]


def changed(offset, form, value, data=None):
    data = message() if data is None else data
    struct.pack_into("<" + form, data, offset, value)
    return data


def record(dtype, rank, tensor, size, *dims):
    """Return a message whose first output is described so."""
    fields = (0, dtype, rank, tensor, 0, size, *dims, *[0] * (wire.RANK - len(dims)))
    data = message(outputs={0: None})
    wire.RECORD.pack_into(data, wire.HEADER.size, *fields)
    return data


RECORD, SECOND = wire.HEADER.size, wire.HEADER.size + wire.RECORD.size
NOTE = SECOND + wire.RECORD.size


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (changed(0, "B", 0), "the magic number b'vn-norm1', got b'.x00n-norm1'"),
        (changed(8, "Q", 6), "an answer to request 7, got 6"),
        (changed(16, "H", 3), "at most 2 outputs, got 3"),
        (changed(18, "H", 1), "zero in a reserved field, got 1"),
        (changed(20, "I", 2**17), "at most 65536 bytes of notes, got 131072"),
        (changed(24, "Q", 1001), "at most 1000 bytes of outputs, got 1001"),
        (changed(24, "Q", 19), "the bytes of all records together, got 19"),
        (changed(RECORD, "B", 2), "an output below 2, got 2"),
        (changed(SECOND, "B", 0), r"each output once, got \[0, 0\]"),
        (changed(RECORD + 1, "B", len(wire.DTYPES)), f"a dtype below {len(wire.DTYPES)}, got {len(wire.DTYPES)}"),
        (changed(RECORD + 2, "B", 9), "at most 8 dimensions, got 9"),
        (changed(RECORD + 2, "B", 1), r"zeros behind 1 dimensions, got \[2, 3, 0"),
        (changed(RECORD + 3, "B", 2), r"flags of 0 or 1, got \(2, 0\)"),
        (changed(RECORD + 4, "I", 1), r"flags of 0 or 1, got \(1, 1\)"),
        (changed(RECORD + 3, "B", 0), r"nothing in an output of None, got \(\d+, 2, 12\)"),
        (record(1, 0, 0, 0), r"nothing in an output of None, got \(1, 0, 0\)"),
        (record(0, 1, 0, 0), r"nothing in an output of None, got \(0, 1, 0\)"),
        (record(0, 0, 0, 9), r"nothing in an output of None, got \(0, 0, 9\)"),
        (changed(RECORD + 8, "Q", 14), "6 elements of float16, got '14 bytes'"),
        (record(0, 2, 1, 0, 2**62, 0), r"dimensions below 2\^62, got \(4611686018427387904, 0\)"),
        (changed(NOTE, "B", ord("[")), "notes in our form"),
    ],
)
def test_what_is_malformed_is_refused(data, said):
    with pytest.raises(wire.MalformedError, match=said):
        read(data)


@pytest.mark.parametrize(
    "notes",
    [
        '{"problem": 1}',
        '{"verdict": "pass"}',
        '{"refused": "yes"}',
        json.dumps({"effects": ["x"] * 65}),
        json.dumps({"problem": "x" * 2001}),
        '{"effects": ["\\ud800"]}',
        "[" * 60000,
        '{"damage": [["x", "in", ' + "9" * 5000 + ", 0, null]]}",
        "null",
        "",
    ],
)
def test_notes_in_another_form_are_refused(notes):
    text = notes.encode("utf-8", "surrogatepass")
    data = wire.HEADER.pack(wire.MAGIC, 7, 0, 0, len(text), 0) + text
    with pytest.raises(wire.MalformedError, match="notes in our form"):
        read(data)


FIELDS = [(at, form) for at, form in [(0, "Q"), (8, "Q"), (16, "H"), (18, "H"), (20, "I"), (24, "Q")]]
FIELDS += [(start + at, form) for start in (RECORD, SECOND) for at, form in enumerate("BBBB")]
FIELDS += [(start + 8 * at, "Q") for start in (RECORD, SECOND) for at in range(1, 10)]
TOP = {"B": 2**8, "H": 2**16, "I": 2**32, "Q": 2**64}
VALUES = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 16), st.sampled_from([2**31, 2**32, 2**62, 2**63]))


@pytest.mark.slow
@settings(max_examples=700, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(FIELDS), VALUES), max_size=4),
    st.lists(st.tuples(st.integers(0, NOTE + 40), st.integers(0, 255)), max_size=4),
    st.one_of(st.none(), st.integers(0, NOTE + 60)),
    st.binary(max_size=64),
)
def test_no_message_does_more_than_answer_or_be_refused(fields, places, cut, more):
    data = message(effects=("a", "b"))
    for (at, form), value in fields:
        changed(at, form, value % TOP[form], data)
    for at, value in places:
        data[at % len(data)] = value
    for garbled in (data, data[:cut] + more, more):
        try:
            answer = read(bytes(garbled))
        except (wire.MalformedError, EOFError):
            continue
        for code, raw in answer.outputs.items():
            assert code < len(NAMES)
            assert raw is None or len(raw.data) == prod(raw.shape) * wire.SIZES[raw.dtype] <= MOST
