"""Writes into arguments and beside them are found where they are."""

import math

import numpy as np
import pytest
import torch

from verify_norm.cases import placement
from verify_norm.core.run import Damage
from verify_norm.running import argument_writes


@pytest.mark.parametrize(("more", "damaged"), [(64, 0), (-64, 64)])
def test_an_argument_whose_storage_gets_another_size(more, damaged):
    x = torch.ones(64)
    given = argument_writes.Arguments({"x": x})
    x.untyped_storage().resize_(x.untyped_storage().nbytes() + more)
    assert list(given.damage(())) == [Damage("x", "in", damaged, 0)] * bool(damaged)


ROWS, PER_ROW, BYTES = 40, 208, 2  # of float16, behind and before a guard, with a gap behind each row
STEP = PER_ROW + placement.WHOLE
PLACES = {  # the index of the element in the storage that is written to: where it is, and how far off in elements
    "the first": (placement.GUARD, "in", 0),
    "the last": (placement.GUARD + (ROWS - 1) * STEP + PER_ROW - 1, "in", 0),
    "beside the first": (placement.GUARD - 1, "before", 0),
    "far before it": (0, "before", placement.GUARD - 1),
    "behind the last": (placement.GUARD + (ROWS - 1) * STEP + PER_ROW, "after", 0),
    "in the first gap": (placement.GUARD + PER_ROW, "between", 0),
    "in the middle of the last gap": (placement.GUARD + (ROWS - 1) * STEP - 2, "between", 1),
}


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("place", PLACES)
def test_a_write_into_an_argument_is_found_where_it_is(place, whole, monkeypatch):
    """Of a very large argument only the elements are compared. Those of one that may be overwritten may change."""
    monkeypatch.setattr(argument_writes, "LIMIT", argument_writes.LIMIT if whole else 1)
    at, where, off = PLACES[place]
    values = np.ones((ROWS, PER_ROW))
    given = {name: placement.place(values, "float16", "row_strided", math.nan, "cpu") for name in ("x", "y")}
    before = argument_writes.Arguments({**given, "eps": 1e-5})
    assert list(before.damage(())) == []
    given["y"].as_strided((1,), (1,), at).fill_(7.0)
    seen = [Damage("y", where, BYTES, off * BYTES)] if whole or where == "in" else []
    assert list(before.damage(())) == list(before.damage(("x",))) == seen
    assert list(before.damage(("y",))) == ([] if where == "in" else seen)


@pytest.mark.parametrize(("more", "seen"), [(0, True), (-1, False)])
def test_of_an_argument_larger_than_the_limit_only_the_elements_are_compared(more, seen, monkeypatch):
    """A write behind the first element is one element off the next own one, before it."""
    memory = torch.zeros(9)
    monkeypatch.setattr(argument_writes, "LIMIT", 36 + more)
    before = argument_writes.Arguments({"x": memory[::4]})
    memory[1] = 7
    assert list(before.damage(())) == [Damage("x", "between", 4, 0)] * seen


@pytest.mark.parametrize("place", range(3))
def test_a_write_beside_an_argument_of_one_number(place):
    memory = torch.zeros(3)
    before = argument_writes.Arguments({"x": memory[1]})
    memory[place] = 7
    assert list(before.damage(())) == [Damage("x", ("before", "in", "after")[place], 4, 0)]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("layout", ["contiguous", "row_strided", "transposed", "expanded"])
def test_elements_that_may_change_are_not_looked_up_one_by_one(layout, whole, monkeypatch):
    """That takes minutes for the input of a large model, which a kernel overwrites in each call."""
    monkeypatch.setattr(argument_writes, "LIMIT", argument_writes.LIMIT if whole else 1)
    values = np.ones((ROWS, PER_ROW))
    x, beside = (placement.place(values, "float16", kind, math.nan, "cpu") for kind in (layout, "contiguous"))
    before = argument_writes.Arguments({"beside": beside, "x": x})
    with monkeypatch.context() as patched:
        patched.delattr(argument_writes, "_changed")
        x[(slice(1),) if layout == "expanded" else ()] = 7.0
        assert list(before.damage(("x",))) == []
    x.as_strided((1,), (1,), 0).fill_(7.0)
    assert list(before.damage(("x",))) == [Damage("x", "before", BYTES, (placement.GUARD - 1) * BYTES)] * whole


def test_an_argument_whose_strides_a_call_changes_is_compared_as_it_was():
    x = torch.arange(6.0)
    before = argument_writes.Arguments({"x": x})
    x.fill_(9.0)
    x.as_strided_((2,), (4,), 1)
    assert list(before.damage(("x",))) == []
