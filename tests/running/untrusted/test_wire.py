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


def changed(offset, form, value, data=None):
    data = message() if data is None else data
    struct.pack_into("<" + form, data, offset, value)
    return data


RECORD, SECOND = wire.HEADER.size, wire.HEADER.size + wire.RECORD.size
NOTE = SECOND + wire.RECORD.size


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (changed(0, "B", 0), "the magic number"),
        (changed(8, "Q", 6), "an answer to request 7, got 6"),
        (changed(16, "H", 3), "at most 2 outputs, got 3"),
        (changed(18, "H", 1), "zero in a reserved field"),
        (changed(20, "I", 2**17), "at most 65536 bytes of notes"),
        (changed(24, "Q", 2**60), "at most 1000 bytes of outputs"),
        (changed(24, "Q", 19), "the bytes of all records together"),
        (changed(RECORD, "B", 2), "an output below 2"),
        (changed(SECOND, "B", 0), "each output once"),
        (changed(RECORD + 1, "B", 99), "a dtype below"),
        (changed(RECORD + 2, "B", 9), "at most 8 dimensions"),
        (changed(RECORD + 2, "B", 1), "zeros behind 1 dimensions"),
        (changed(RECORD + 3, "B", 2), "flags of 0 or 1"),
        (changed(RECORD + 3, "B", 0), "nothing in an output of None"),
        (changed(RECORD + 8, "Q", 14), "6 elements of float16, got '14 bytes'"),
        (changed(RECORD + 16, "Q", 2**63), "dimensions below 2^62"),
        (changed(NOTE, "B", ord("[")), "notes in our form"),
    ],
)
def test_what_is_malformed_is_refused(data, said):
    with pytest.raises(wire.MalformedError, match=said.replace("^", r"\^")):
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
