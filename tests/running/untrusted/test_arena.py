"""The shared memory: each argument lies there as it does for the judge, and nobody can cut the memory off."""

import fcntl
import os
from contextlib import closing

import pytest
import torch

from verify_norm.running.untrusted import arena as module
from verify_norm.running.untrusted.arena import ALIGNED, SIZE, Arena, Slot


@pytest.fixture
def arena():
    with closing(Arena()) as made:
        yield made


def test_a_slot_says_where_the_tensor_lies_and_what_it_is(arena):
    """Tensors of one storage have one place; each storage begins at a page, and an empty one takes none."""
    x = torch.zeros(3, 2048, dtype=torch.float16)
    part = x[1:, ::2]
    w = torch.zeros(5, requires_grad=True)
    given = {"x": x, "eps": 1e-5, "part": part, "bias": None, "none": torch.zeros(0, 4), "too": torch.zeros(0), "w": w}
    assert arena.slots(given) == {
        "x": Slot(0, 12288, "float16", (3, 2048), (2048, 1), 0, False),
        "part": Slot(0, 12288, "float16", (2, 1024), (2048, 2), 2048, False),
        "none": Slot(12288, 0, "float32", (0, 4), (4, 1), 0, False),
        "too": Slot(12288, 0, "float32", (0,), (1,), 0, False),
        "w": Slot(12288, 20, "float32", (5,), (1,), 0, True),
    }


def test_places_do_not_overlap(arena):
    given = {str(size): torch.zeros(size, dtype=torch.uint8) for size in (1, ALIGNED, ALIGNED + 1, 1)}
    given["last"] = torch.zeros(1)
    assert [slot.at for slot in arena.slots(given).values()] == [0, ALIGNED, 2 * ALIGNED, 4 * ALIGNED]


@pytest.mark.parametrize("whole", [True, False])
def test_the_other_side_reads_and_writes_the_same_tensor(whole, arena, monkeypatch):
    """Gaps go along where the whole storage is copied; the judge's tensor has no new version for torch."""
    base = torch.arange(12.0, dtype=torch.float16)
    x = base.as_strided((2, 3), (6, 2), 1)
    monkeypatch.setattr(module, "LIMIT", base.nbytes - (not whole))
    slots = arena.slots({"x": x})
    arena.write(slots, {"x": x})
    with closing(Arena(os.dup(arena.file))) as other:
        theirs = other.tensor(slots["x"])
        assert (theirs.stride(), theirs.storage_offset(), theirs.untyped_storage().nbytes()) == ((6, 2), 1, 24)
        assert torch.equal(theirs, x)
        assert theirs.as_strided((1,), (1,), 2).item() == (2.0 if whole else 0.0), "it lies in a gap"
        theirs.as_strided((12,), (1,), 0).neg_()
        del theirs
    version = x._version
    arena.read(slots, {"x": x})
    expected = torch.arange(12.0, dtype=torch.float16)
    (expected if whole else expected.as_strided((2, 3), (6, 2), 1)).neg_()
    assert torch.equal(base, expected)
    if whole:
        assert x._version == version


def test_a_large_parameter_is_copied_by_its_elements(arena, monkeypatch):
    monkeypatch.setattr(module, "LIMIT", 0)
    given = {"weight": torch.ones(4, requires_grad=True), "none": torch.empty(100)[:0]}
    slots = arena.slots(given)
    arena.write(slots, given)
    arena.tensor(slots["weight"]).mul_(2)
    arena.read(slots, given)
    assert (given["weight"] == 2).all()


def test_an_empty_tensor_keeps_its_strides(arena):
    """And a call without tensors moves nothing."""
    given = {"x": torch.empty_strided((0, 3), (7, 2), dtype=torch.bfloat16)}
    slots = arena.slots(given)
    arena.write(slots, given)
    theirs = arena.tensor(slots["x"])
    assert (theirs.shape, theirs.stride(), theirs.dtype) == ((0, 3), (7, 2), torch.bfloat16)
    arena.read(slots, given)
    arena.read({}, {})


@pytest.mark.parametrize("more", [0, 1])
def test_what_has_been_touched_goes_back_to_the_system_where_it_is_much(more, arena, monkeypatch):
    monkeypatch.setattr(module, "KEPT", 8192 - more)
    given = {"x": torch.ones(1024), "y": torch.ones(1024)}
    slots = arena.slots(given)
    arena.write(slots, given)
    arena.read(slots, given)
    assert os.fstat(arena.file).st_blocks == (0 if more else 16)
    assert (given["y"] == 1).all()


def test_which_tensors_lie_in_it(arena):
    x = torch.ones(4)
    slot = arena.slots({"x": x})["x"]
    assert arena.holds(arena.tensor(slot))
    assert not arena.holds(x)
    first = arena.bytes.data_ptr()
    places = {first - 1: False, first: True, first + SIZE - 1: True, first + SIZE: False}
    assert {at: arena.holds(_At(at)) for at in places} == places


class _At:
    """Instead of a tensor: only where its storage is."""

    def __init__(self, at):
        self.data_ptr = lambda: at

    def untyped_storage(self):
        return self


def test_nobody_can_cut_it_off():
    arena = Arena()
    assert not os.get_inheritable(arena.file)
    for size in (0, 2 * SIZE):
        with pytest.raises(PermissionError):
            os.ftruncate(arena.file, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(arena.file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    assert os.fstat(arena.file).st_size == SIZE == len(arena.bytes)
    slot = arena.slots({"x": torch.ones(4)})["x"]
    kept = arena.tensor(slot)
    arena.close()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(arena.file)
    assert not hasattr(arena, "bytes")
    assert (kept.fill_(3) == 3).all(), "a tensor keeps the memory"
