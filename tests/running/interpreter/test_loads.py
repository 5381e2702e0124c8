"""Loads and stores beyond the tensors of a launch are noted, with their line, and left out; none within them is."""

import pytest
import torch
import triton
import triton.language as tl

from verify_norm.running.interpreter import loads

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU nothing is interpreted")


@triton.jit
def copied(X, Y, first, N, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(X + first + i, mask=i < N)
    tl.store(Y + i, x, mask=i < 4)


@triton.jit
def whole(X, Y, BLOCK: tl.constexpr):
    tl.store(Y + tl.arange(0, 4), tl.load(X + tl.arange(0, 4)))
    tl.load(X + tl.arange(0, BLOCK))


@triton.jit
def spread(Y, step):
    tl.store(Y + tl.arange(0, 4) * step, 1.0)


@triton.jit
def both(X, Y, Z, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(Z + i, tl.load(tl.where(i % 2 == 0, X + i, Y + i)))


@triton.jit
def by_address(Table, Y, BLOCK: tl.constexpr):
    x = tl.load(Table).to(tl.pointer_type(tl.float32))
    i = tl.arange(0, BLOCK)
    tl.store(Y + i, tl.load(x + i))


@triton.jit
def of_block(X, Y, rows, BLOCK: tl.constexpr):
    x = tl.make_block_ptr(X, (rows, 4), (4, 1), (0, 0), (BLOCK, 4), (1, 0))
    y = tl.make_block_ptr(Y, (rows, 4), (4, 1), (0, 0), (BLOCK, 4), (1, 0))
    tl.store(y, tl.load(x, boundary_check=(0,)), boundary_check=(0,))


@pytest.fixture
def seen(monkeypatch):
    """Called with a kernel and its arguments, returns what it has read beyond them."""

    def run(kernel, *arguments):
        monkeypatch.setattr(loads, "beyond", {})
        kernel[(1,)](*arguments)
        return list(loads.beyond.values())

    return run


@pytest.mark.parametrize(
    ("first", "count", "where"),
    [
        (0, 8, None),
        (0, 9, "4 bytes behind the memory of X"),
        (0, 16, "32 bytes behind the memory of X"),
        (-2, 8, "8 bytes before the memory of X"),
        (4, 4, None),
        (5, 4, "4 bytes behind the memory of X"),
    ],
)
def test_elements_behind_and_before_a_tensor(first, count, where, seen):
    found = seen(copied, torch.ones(8), torch.empty(4), first, count, 16)
    assert found == [f"a load {where} in `x = tl.load(X + first + i, mask=i < N)`"] * (where is not None)


def test_a_load_without_a_mask(seen):
    assert seen(whole, torch.ones(8), torch.empty(4), 8) == []
    (found,) = seen(whole, torch.ones(8, dtype=torch.bfloat16), torch.empty(4), 16)
    assert found == "a load 16 bytes behind the memory of X in `tl.load(X + tl.arange(0, BLOCK))`"


def test_a_store_is_noted_and_left_out(seen):
    y = torch.zeros(6)[:4]
    (found,) = seen(spread, y, 1000)
    assert found == "a store 11980 bytes behind the memory of Y in `tl.store(Y + tl.arange(0, 4) * step, 1.0)`"
    assert y.tolist() == [1, 0, 0, 0]
    assert seen(spread, torch.zeros(10), 3) == []


def test_all_of_a_view_s_storage_may_be_read(seen):
    t = torch.ones(16)
    assert seen(copied, t[4:8], torch.empty(4), -4, 16, 16) == []


def test_a_load_of_several_tensors(seen):
    assert seen(both, torch.ones(4), torch.ones(4), torch.empty(4), 4) == []
    assert seen(both, torch.ones(2), torch.ones(4), torch.empty(4), 4) != []


def test_pointers_made_of_numbers_may_point_anywhere_in_their_launch_alone(seen):
    x = torch.ones(4)
    assert seen(by_address, torch.tensor([x.data_ptr()]), torch.empty(4), 4) == []
    assert seen(copied, torch.ones(8), torch.empty(4), 0, 16, 16) != []


@pytest.mark.filterwarnings("ignore:tl.make_block_ptr")
def test_block_pointers_with_a_boundary_pass(seen):
    assert seen(of_block, torch.ones(3, 4), torch.empty(3, 4), 3, 4) == []
    assert seen(of_block, torch.ones(3, 4), torch.empty(4, 4), 4, 4) != []


def test_a_tensor_in_a_wrapper_or_a_tuple_counts_and_an_unknown_pointer_ends_the_look():
    class Wrapper:
        base = torch.ones(2)

    class Pointer:
        def data_ptr(self):
            return 0

    with loads.given({"a": (torch.ones(1), Wrapper()), "n": 3}):
        assert [(name, end - first) for name, first, end in loads._areas] == [("a", 4), ("a", 8)]
        with loads.given({"p": Pointer()}):
            assert loads._areas is None
        assert loads._areas is not None
    assert loads._areas is None
