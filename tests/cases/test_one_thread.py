"""The judge's own operations of torch run in one thread, a kernel's in as many as usual."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from checking import layernorm_fwd, run_of

from verify_norm.cases import transfer
from verify_norm.cases.one_thread import begin, one_thread
from verify_norm.core.spec import CaseSpec


@pytest.fixture
def several():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(before)


def test_the_number_is_back_after_a_block_that_raises(several):
    with pytest.raises(ZeroDivisionError):
        one_thread()(lambda: 1 / (torch.get_num_threads() - 1))()
    assert torch.get_num_threads() == several
    with one_thread(), one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == several


def test_one_thread_stays_one():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 1
    torch.set_num_threads(before)


def test_a_kernel_has_the_usual_number_and_copies_one(monkeypatch, several):
    numbers = {"cat": set(), "kernel": set()}
    cat = torch.cat

    def joined(*args, **options):
        numbers["cat"].add(torch.get_num_threads())
        return cat(*args, **options)

    def kernel(x, weight, bias, eps, normalized_shape):
        numbers["kernel"].add(torch.get_num_threads())
        torch.empty(3)  # which the judge guards
        numbers["kernel"].add(torch.get_num_threads())
        return layernorm_fwd(x, weight, bias, eps, normalized_shape)

    monkeypatch.setattr(torch, "cat", joined)
    assert run_of(kernel, CaseSpec((2, 8))).problem is None
    assert numbers == {"cat": {1}, "kernel": {several}}
    assert torch.get_num_threads() == several


@pytest.mark.parametrize("function", [transfer.copied, transfer.values, lambda t: transfer.sent(t, "cpu")])
def test_what_is_copied_is_the_same(several, function):
    tensors = [torch.arange(70000, dtype=torch.uint8), torch.arange(5, dtype=torch.uint8)]
    for copy, tensor in zip(function(tensors), tensors, strict=True):
        assert torch.equal(torch.as_tensor(copy).to(torch.uint8), tensor)


def test_a_new_thread_has_the_number_of_the_one_that_made_it(several):
    """Also while the judge has set its own: torch gives a new thread the number that was set last."""
    with one_thread(), ThreadPoolExecutor(1) as plain, ThreadPoolExecutor(1, initializer=begin, initargs=(3,)) as begun:
        numbers = [pool.submit(torch.get_num_threads).result() for pool in (plain, begun)]
    assert numbers == [1, several]
