"""What a proof and its replay refuse of memory: addresses outside, a place written twice, a read beside a write."""

import numpy as np
import pytest
from replayed import FORWARD, call_of

from verify_norm.proof.integers import num
from verify_norm.proof.memory import NOWHERE, Buffer, NotProved, Values
from verify_norm.proof.replay.check import CELL, INPUT, READ
from verify_norm.proof.replay.derivation import Value
from verify_norm.proof.replay.reading import Rejected
from verify_norm.proof.stages import Stage

SIZE = 4


def buffer(role="output", slope=0, of_lines=False):
    made = Buffer("b", role, SIZE, slope, None, np.arange(SIZE, dtype=np.uint64) if role == "input" else None)
    made.of_lines = of_lines
    return made


def locate(made, c, p=0, q=0, active=None):
    offset = num(np.array(c), p, q)
    return made.locate(offset, np.ones(len(c), bool) if active is None else np.array(active), NOWHERE).tolist()


def store(made, *places, kind="X"):
    count = len(places)
    values = Values(np.full(count, 7, np.uint64), np.zeros(count, np.int16), Stage(kind), "f32")
    made.store(np.array(places), values, np.ones(count, bool), NOWHERE)


def test_addresses_within_a_buffer():
    assert locate(buffer(), [0, 3, 1]) == [0, 3, 1]
    assert locate(buffer(), [-1, 2, 4], active=[False, True, False]) == [2]
    assert locate(buffer(slope=12), [0, 3], p=12) == [0, 3]


@pytest.mark.parametrize(
    ("address", "why"),
    [
        (([-1],), "beyond b: element -1 of 4, of 1 lanes"),
        (([0, SIZE],), "beyond b: element 4 of 4, of 1 lanes"),
        (([0], 1), "does not move by its program's rows"),
        (([0], 0, 1), "does not move by its program's rows"),
    ],
)
def test_addresses_outside(address, why):
    with pytest.raises(NotProved, match=why) as caught:
        locate(buffer(), *address)
    assert caught.value.what == "memory"


LINES = {  # of 1 + 8·w + v programs, each with two parts of two elements: c, w, v of an address; the element and line
    "the first line": ((0, 16, 0), (0, 0)),
    "the last of 8": ((15, 16, 0), (1, 7)),
    "the second part": ((2 + 6 + 1, 32, 2), (3, 3)),
    "a line too far": ((16, 16, 0), "no line of a program"),
    "before the first": ((-1, 16, 0), "no line of a program"),
    "a third part": ((4, 48, 4), "no line of a program"),
    "of every second program": ((0, 32, 0), "does not move by lines"),
    "of another part's lines": ((0, 32, 1), "does not move by lines"),
}


@pytest.mark.parametrize(("address", "want"), LINES.values(), ids=list(LINES))
def test_lines_of_programs(address, want):
    made, (c, w, v) = buffer(of_lines=True), address
    made.line(num(np.array([0]), w=16), np.ones(1, bool), 8, NOWHERE)  # a line has two elements
    offset, active = num(np.array([c]), 0, 0, w, v), np.ones(1, bool)
    if isinstance(want, tuple):
        assert [int(one[0]) for one in made.line(offset, active, 8, NOWHERE)] == list(want)
        return
    with pytest.raises(NotProved, match=want):
        made.line(offset, active, 8, NOWHERE)


def test_what_is_stored_is_loaded_in_a_later_launch_alone():
    made = buffer()
    store(made, 2, 0)
    with pytest.raises(NotProved, match="read in the launch that writes it"):
        made.load(np.array([2]), NOWHERE)
    made.begin()
    values, bad, unwritten = made.load(np.array([0, 1, 2]), NOWHERE)
    assert (values.tolist(), bad.any(), unwritten.tolist()) == ([7, 0, 7], False, [False, True, False])
    assert made.stage(np.array([0])).kind == "X"
    store(made, 3, kind="W")
    assert made.stage(np.array([3])).kind == "W"
    assert made.stage(slice(None)).kind == "UNKNOWN"


def twice(made):
    store(made, 1)
    made.begin()
    store(made, 1)


def after_a_load(made):
    made.load(np.array([1]), NOWHERE)
    store(made, 1)


@pytest.mark.parametrize(
    ("made", "act", "why"),
    [
        (buffer("input"), lambda made: store(made, 0), "the input b is written"),
        (buffer(), lambda made: store(made, 1, 1), "is written twice"),
        (buffer(), twice, "is written twice"),
        (buffer(), after_a_load, "written in the launch that reads it"),
        (buffer("input"), lambda made: made.fill(), "torch writes to the input b"),
        (buffer("input"), lambda made: made.spoil(1), "torch writes to the input b"),
    ],
    ids=["input", "two lanes", "two launches", "a read before", "zeros", "torch"],
)
def test_stores_that_no_proof_allows(made, act, why):
    with pytest.raises(NotProved, match=why):
        act(made)


# The replay's own memory, which shares no code with that.

TENSOR = {"buffer": 9, "offset": 0, "shape": [SIZE]}


def place(given=False):
    """A call of the replay with one more buffer."""
    made = call_of(FORWARD)
    made.buffers["&9"], made.env = np.full(SIZE, CELL), {"x": Value(np.zeros(1, int))}
    if given:
        made.fill(TENSOR, np.zeros(SIZE, int), "X", INPUT)
    return made


def stored(made, addresses, mask=True, launch=1, waited=True):
    made.number, made.waited, made.stores = launch, waited, []
    value = Value(np.full((len(addresses), 1), 7), "ΣX", 2)
    made.tt_store(None, Value(np.array(addresses)[:, None], "&9"), value, Value(np.array(mask)[..., None]))
    made.write(*made.stores[0])


def loaded(made, addresses, mask=True, launch=1, waited=True, **other):
    made.number, made.waited = launch, waited
    found = made.tt_load(None, Value(np.array(addresses)[:, None], "&9"), Value(np.array(mask)[..., None]), **other)
    return found._replace(v=found.v[:, 0])


def test_the_replay_loads_what_was_stored():
    made = place()
    stored(made, [-1, 2, SIZE], [False, True, False])
    stored(made, [0])  # another place, in the same launch
    assert loaded(made, [1], launch=2)[1:] == ("?", 0)
    found = loaded(made, [0, 2], launch=2)
    assert (found.v.tolist(), *found[1:]) == ([7, 7], "ΣX", 2)
    found = loaded(made, [-1, 2, SIZE], [False, True, False], launch=2)
    assert (found.v.tolist(), *found[1:]) == ([-1, 7, -1], "ΣX", 2)
    found = loaded(made, [-1, 2, SIZE], [False, True, False], launch=2, other=Value(np.zeros((3, 1), int), "0"))
    assert (found.v.tolist(), *found[1:]) == ([0, 7, 0], "ΣX", 2)
    assert loaded(made, [2, SIZE], [True, False], launch=2, other=Value(np.array([[1], [1]]), "1")).label == "?"
    stored(made, [3], launch=2)
    assert made.buffers["&9"]["used"].tolist() == [1, READ, 1, 2]
    assert loaded(place(given=True), [0, SIZE - 1]).label == "X"
    assert loaded(place(given=True), [0], launch=2, waited=False).label == "X", "an input may be read early"


READ_SO, WRITTEN = "a place is read that is", "a place is written that is"


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (lambda made: stored(made, [-1]), WRITTEN),
        (lambda made: stored(made, [SIZE]), "out of bounds"),
        (lambda made: loaded(made, [-1]), READ_SO),
        (lambda made: loaded(made, [SIZE]), "out of bounds"),
        (lambda made: stored(place(given=True), [0]), WRITTEN),
        (lambda made: (loaded(made, [0]), stored(made, [0])), WRITTEN),
        (lambda made: (loaded(made, [0]), stored(made, [0], launch=2)), WRITTEN),
        (lambda made: (stored(made, [0]), loaded(made, [0])), READ_SO),
        (lambda made: stored(made, [1, 1]), WRITTEN),
        (lambda made: (stored(made, [1]), stored(made, [1])), WRITTEN),
        (lambda made: (stored(made, [1]), stored(made, [1], launch=2)), WRITTEN),
        (lambda made: stored(made, [1], launch=2, waited=False), WRITTEN),
        (lambda made: (stored(made, [0]), loaded(made, [0], launch=2, waited=False)), READ_SO),
        (lambda made: loaded(place(given=True), [0], waited=False), READ_SO),
        (lambda made: (stored(made, [0]), made.fill(TENSOR, np.zeros(SIZE, int), "0", 0)), WRITTEN),
        (lambda made: place(given=True).fill(TENSOR, np.zeros(SIZE, int), "0", 0), WRITTEN),
        (lambda made: made.fill(TENSOR | {"shape": [SIZE - 1]}, np.zeros(SIZE, int), "0", 0), "cannot reshape"),
        (lambda made: made.fill(TENSOR | {"shape": [-1]}, np.zeros(SIZE, int), "0", 0), "negative dimensions"),
        (lambda made: made.fill(TENSOR, np.zeros(1, int), "0", 0), "cannot reshape"),
        (
            lambda made: (made.fill(TENSOR, np.zeros(SIZE, int), "0", 0), loaded(made, [0], launch=2, waited=False)),
            READ_SO,
        ),
    ],
)
def test_memory_that_the_replay_rejects(act, why):
    with pytest.raises((Rejected, IndexError, ValueError), match=why):
        act(place())
