"""Tests of address space that takes little memory: where rows lie in its block, and where wrapped offsets lead."""

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from verify_norm.cases import address_space, placement
from verify_norm.core.spec import CaseSpec
from verify_norm.running.gpu_memory import large

SHAPES = [(2, 3), (3, 4), (4, 12), (7, 2, 5), (63, 9), (64, 512), (1000, 2), (1024, 512), (1024, 11900), (2, 10**6)]
SIZES = (1, 2, 4, 8)  # bytes of an element


def of_rows(shape, size, shift=0):
    """Return the bytes of the block at which the rows of a tensor that is far begin, their addresses shifted."""
    where = placement.placement(shape, "far")
    first = (where.offset + np.arange(shape[0]) * where.strides[0]) * size + shift
    return first % address_space.BLOCK


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", SIZES)
def test_rows_share_no_memory_with_each_other(shape, size):
    begins = np.sort(of_rows(shape, size))
    apart = np.diff(begins, append=begins[0] + address_space.BLOCK)
    assert apart.min() >= (np.prod(shape[1:]) + placement.GUARD) * size


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", SIZES)
def test_an_offset_that_wraps_leads_to_no_beginning_of_a_row(shape, size):
    """Such as one that is taken for a signed number, in elements or in bytes: what it reads is not what it should."""
    begins = of_rows(shape, size)
    for wrapped in (2**31, 2**32, 2**31 * size, 2**32 * size):
        assert not np.isin(of_rows(shape, size, wrapped), begins).any()
        assert not np.isin(of_rows(shape, size, -wrapped), begins).any()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_range_holds_the_widest_type_of_an_input(shape):
    where = placement.placement(shape, "far")
    span = where.offset + where.extent + placement.GUARD
    assert span * 4 <= address_space.BLOCKS * address_space.BLOCK < span * 8


def test_rows_that_do_not_fit_are_placed_in_memory_of_their_own(monkeypatch):
    monkeypatch.setattr(address_space, "driver", lambda: object())
    assert placement.in_block((2, 2**22))
    assert not placement.in_block((2, 2**23))
    assert not placement.in_block((1, 4)), "one row is not far"
    assert large(CaseSpec((2, 2**23), x_layout="far"))
    assert not large(CaseSpec((2, 2**22), x_layout="far"))


def test_without_the_driver_there_is_none(monkeypatch):
    monkeypatch.setattr(address_space, "driver", lambda: None)
    assert not placement.in_block((2, 3))
    assert large(CaseSpec((2, 3), x_layout="far"))
    assert address_space.lent(64, "cuda:0") is None
    assert address_space.lent(64, "cpu") is None


def refusing(name):
    """Return CUDA's driver, of which one function fails."""
    fine = {"cuMemCreate": 1, "cuMemAddressReserve": 2**40, "cuMemMap": None, "cuMemSetAccess": None}

    def answer(function):
        return (999,) if function == name else (0, fine[function])

    kinds = {"CU_MEM_ALLOCATION_TYPE_PINNED", "CU_MEM_LOCATION_TYPE_DEVICE", "CU_MEM_ACCESS_FLAGS_PROT_READWRITE"}
    enumeration = SimpleNamespace(**dict.fromkeys(kinds, 1))
    return SimpleNamespace(
        **{function: lambda *_, function=function: answer(function) for function in fine},
        CUmemAllocationProp=lambda: SimpleNamespace(location=SimpleNamespace()),
        CUmemAccessDesc=SimpleNamespace,
        CUmemAllocationType=enumeration,
        CUmemLocationType=enumeration,
        CUmemAccess_flags=enumeration,
    )


@pytest.mark.parametrize("name", ["cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", None])
def test_a_driver_that_refuses_lends_nothing(monkeypatch, name):
    cuda = refusing(name)
    monkeypatch.setattr(address_space, "driver", lambda: cuda)
    monkeypatch.setattr(address_space, "_unused", defaultdict(list))
    monkeypatch.setattr(address_space, "_refusing", set())
    monkeypatch.setattr(torch.cuda, "device", lambda index: pytest.MonkeyPatch.context())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch, "as_tensor", lambda held, device: np.zeros(100) if held else None)
    found = address_space.lent(64, "cuda:0")
    assert (found is None) == (name is not None)
    assert found is None or found.size == 64
    if name is not None:
        monkeypatch.setattr(address_space, "_mapped", lambda device: pytest.fail("it is asked again"))
        assert address_space.lent(64, "cuda:0") is None
    assert address_space.lent(address_space.BLOCKS * address_space.BLOCK + 1, "cuda:0") is None
