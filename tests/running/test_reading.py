"""What a call has returned is read as plain tensors, and what was not there when it returned is told."""

from types import SimpleNamespace

import pytest
import torch

from verify_norm.core.ops import OPS
from verify_norm.running import reading

OP = OPS["rmsnorm_fwd"]


def returned():
    return torch.arange(6.0).reshape(2, 3), torch.ones(2)


class Lazy(tuple):
    """It computes when it is unpacked, all or what is at these places."""

    lazy = (0, 1)

    def __iter__(self):
        return iter(
            [value * 1 if place in self.lazy else value for place, value in enumerate(tuple(super().__iter__()))]
        )


class Half(Lazy):
    lazy = (1,)


class Never(Lazy):
    lazy = ()


def test_outputs_are_read_by_name():
    y, rstd = returned()
    for given in ((y, rstd), [y, rstd], {"y": y, "rstd": rstd}, Never((y, rstd))):
        found, evasions = reading.read(given, OP)
        assert found == {"y": y, "rstd": rstd}
        assert evasions == ()
    assert reading.read(y, OP)[0] == {"y": y}


def test_what_cannot_be_read_is_told():
    assert "another" in reading.read({"another": torch.ones(2)}, OP)[0]
    assert reading.read({"another": torch.ones(2)}, OP)[1] == ()
    assert "a str, not a tensor" in reading.read(("text", torch.ones(2)), OP)[0]


def test_what_is_made_when_it_is_unpacked_is_told_by_name():
    for kind, names in ((Lazy, "y and rstd"), (Half, "rstd")):
        ((output, words),) = reading.read(kind(returned()), OP)[1]
        assert output is None
        assert f"it makes {names} only" in words
        assert f"a {kind.__name__}," in words


def test_each_output_in_disguise_is_told():
    y, rstd = returned()
    rstd.sum = lambda: 7
    found, evasions = reading.read((torch._neg_view(-y), rstd), OP)
    assert torch.equal(found["y"], y)
    assert [output for output, _ in evasions] == ["y", "rstd"]
    assert all(words.startswith(f"{output} ") for output, words in evasions)
    assert [output for output, _ in reading.read(Half((y, rstd)), OP)[1]] == [None], "the new one has no such method"


def storages(*tensors):
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def test_what_a_container_holds_is_kept_at_any_depth():
    first, second, third = (torch.full((4,), float(number)) for number in (1, 2, 3))
    holder = SimpleNamespace(parts={"a": [first], "b": SimpleNamespace(c=second[1:3])}, same=[first])
    holder.itself, holder.kinds = holder, (torch.nn.Module, torch, lambda: third)
    held = reading._storages(holder)
    assert held.keys() == storages(first, second), "functions, classes and modules are no containers"
    assert torch.equal(held[second.untyped_storage().data_ptr()], second.view(torch.uint8)), "all bytes of the storage"
    assert reading._storages([lambda: third]) == {}
    second.fill_(7.0)
    assert held[second.untyped_storage().data_ptr()].view(torch.float32).tolist() == [2.0] * 4, "as they were"


def test_no_copy_is_kept_of_what_has_no_bytes_or_too_many(monkeypatch):
    monkeypatch.setattr(reading, "COPIED", 16)
    small, large, byte = torch.zeros(4), torch.zeros(5), torch.zeros(1, dtype=torch.uint8)
    sparse = torch.eye(2).to_sparse()
    assert reading._storages([torch.zeros(0), sparse, large, small, byte]).keys() == storages(small, byte)


def test_a_search_for_tensors_ends(monkeypatch):
    first, second = torch.zeros(4), torch.zeros(4)
    nested = [first, [second]]
    for reached, found in ((4, {first, second}), (3, {first}), (1, set())):
        monkeypatch.setattr(reading, "REACHED", reached)
        assert reading._storages(nested).keys() == storages(*found)


@pytest.mark.parametrize(
    ("value", "there"),
    [
        (None, True),
        (torch.eye(2).to_sparse(), True),
        (torch.zeros(0), True),
        (torch.zeros(2), False),  # in memory of its own
        (torch.zeros(4), False),
        (torch.zeros(5), True),  # too large to be kept
    ],
)
def test_what_is_not_held_was_there_where_no_copy_is_kept(value, there, monkeypatch):
    monkeypatch.setattr(reading, "COPIED", 16)
    assert reading._was_there(value, {}) is there


def test_what_is_held_was_there_if_its_bytes_are_the_same():
    tensor = torch.arange(4.0)
    held = reading._storages([tensor])
    assert reading._was_there(tensor[1:3], held)
    tensor[0] = 5.0  # also beside what is returned of it
    assert not reading._was_there(tensor[1:3], held)


def test_bytes_of_outputs_are_copies(monkeypatch):
    monkeypatch.setattr(reading, "COPIED", 16)
    y, strided = torch.arange(4.0), torch.arange(4.0).reshape(2, 2).t()
    outputs = {"y": y, "rstd": strided, "none": None, "large": torch.zeros(5), "meta": torch.zeros(2, device="meta")}
    found = reading.output_bytes(outputs)
    y.zero_()
    assert found.keys() == {"y", "rstd"}
    assert found["y"].view(torch.float32).tolist() == [0, 1, 2, 3]
    assert found["rstd"].view(torch.float32).tolist() == [0, 2, 1, 3], "of the elements alone, in their order"
