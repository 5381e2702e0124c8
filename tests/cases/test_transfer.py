"""Small tensors are sent, read and compared at once, and come out as if each were alone."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from verify_norm.cases import transfer

SOME = [
    torch.arange(6.0).reshape(2, 3).t(),
    torch.tensor([-0.0, float("nan"), float("inf")], dtype=torch.bfloat16),
    torch.zeros(0, 4),
    torch.tensor(7, dtype=torch.int32),
    torch.arange(10.0, dtype=torch.float64)[3::2],
]


@pytest.fixture(params=["together", "each alone"], autouse=True)
def small(request, monkeypatch):
    monkeypatch.setattr(transfer, "SMALL", transfer.SMALL if request.param == "together" else -1)


def test_values_are_those_of_each_tensor():
    for value, tensor in zip(transfer.values(SOME), SOME, strict=True):
        assert value.dtype == np.float64
        assert value.shape == tuple(tensor.shape)
        assert np.array_equal(value, tensor.double().numpy(), equal_nan=True)
        assert np.array_equal(np.signbit(value), np.signbit(tensor.double().numpy()))
    assert transfer.values([]) == []


def test_what_is_sent_has_the_strides_and_the_whole_storage_of_each_tensor():
    for there, tensor in zip(transfer.sent(SOME, "cpu"), SOME, strict=True):
        assert (there.dtype, there.shape, there.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
        assert there.storage_offset() == tensor.storage_offset()
        stored = [one.untyped_storage().tolist() for one in (there, tensor)]
        assert stored[0] == stored[1]
    sent = transfer.sent([SOME[0], SOME[0]], "cpu")
    sent[0].fill_(9.0)
    assert torch.equal(sent[1], SOME[0])  # each has memory of its own


@pytest.mark.parametrize("changed", [[], [0], [1], [3], [0, 2, 3]])
def test_what_differs_is_found_in_whatever_tensor_it_is(changed):
    some = [torch.arange(n, dtype=torch.uint8) for n in (5, 3, 1, 8)]
    others = transfer.copied(some)
    for number in changed:
        others[number][-1] += 1
    assert transfer.different(some, others) == changed
    assert transfer.different(some, [*others[:3], others[3][:-1]]) == sorted({*changed, 3})
    assert transfer.different([], []) == []


def test_what_owns_its_memory_is_no_view_on_the_device_either():
    base = torch.arange(6.0)
    there = transfer.sent([base, base[1:3]], "cpu")
    assert [one._is_view() for one in there] == [False, True]
    assert [one.tolist() for one in there] == [base.tolist(), [1.0, 2.0]]


def test_what_is_sent_lies_on_the_device():
    """Also a tensor alone, and one that is a view."""
    for some in ([torch.ones(2, 3), torch.ones(4)[1:]], [torch.ones(3)]):
        there = transfer.sent(some, "meta")
        assert {one.device.type for one in there} == {"meta"}
        assert [(one.shape, one.dtype, one.storage_offset()) for one in there] == [
            (one.shape, one.dtype, one.storage_offset()) for one in some
        ]


class Copies(TorchDispatchMode):
    """Counts what is copied to another device."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += "_to_copy" in str(function)
        return function(*args, **(kwargs or {}))


def test_small_tensors_are_sent_at_once():
    some = [torch.ones(n) for n in (3, 4, 5)]
    with Copies() as copies:
        transfer.sent(some, "meta")
    assert copies.count == (1 if transfer.SMALL > 0 else 3)


@pytest.mark.parametrize("sizes", [(2, 1), (1, 2, 3), (3, 2)])
def test_a_tensor_of_the_largest_small_size_is_sent_with_the_others(monkeypatch, sizes):
    monkeypatch.setattr(transfer, "SMALL", 8)  # bytes: two numbers
    some = [torch.full((n,), float(n)) for n in sizes]
    assert all(torch.equal(*pair) for pair in zip(transfer.sent(some, "cpu"), some, strict=True))


def test_what_is_sent_comes_from_memory_whatever_torchs_default_device_is():
    tensor = torch.ones(2)
    with torch.device("meta"):
        (there,) = transfer.sent([tensor], "cpu")
    assert there.tolist() == [1.0, 1.0]


def counted(monkeypatch, name):
    """Count the calls of a function of torch."""
    calls, function = [], getattr(torch, name)
    monkeypatch.setattr(torch, name, lambda *given: calls.append(1) or function(*given))
    return calls


@pytest.mark.parametrize(("sizes", "compared"), [((8, 8, 5), 1), ((8, 9, 5), 2), ((8,), 1), ((9, 9), 2), ((8, 8), 1)])
def test_small_tensors_are_compared_and_copied_at_once(monkeypatch, sizes, compared):
    monkeypatch.setattr(transfer, "SMALL", 8)
    some = [torch.full((n,), n, dtype=torch.uint8) for n in sizes]
    others, calls = transfer.copied(some), counted(monkeypatch, "equal")
    assert transfer.different(some, others) == []
    assert len(calls) == compared
    assert others[-1].tolist() == some[-1].tolist()
    stored = [one.untyped_storage().data_ptr() for one, n in zip(others, sizes, strict=True) if n <= 8]
    assert len(set(stored)) == bool(stored), "small ones are parts of one"
    stored += [one.untyped_storage().data_ptr() for one, n in zip(others, sizes, strict=True) if n > 8]
    assert len(set(stored)) == sum(n > 8 for n in sizes) + any(n <= 8 for n in sizes)
    others[0].add_(1)
    calls.clear()
    assert transfer.different(some, others) == [0]
    assert len(calls) == len(sizes) + (sum(n <= 8 for n in sizes) > 1)


def test_values_are_converted_once_and_small_ones_are_read_at_once(monkeypatch):
    with Copies() as copies:
        transfer.values([torch.ones(n) for n in (2, 3, 1)])
    assert copies.count == 3
    monkeypatch.setattr(transfer, "SMALL", 16)  # bytes: two numbers of float64
    assert [transfer._is_small(torch.ones(n)) for n in (1, 2, 3)] == [True, True, False]
