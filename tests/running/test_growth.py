"""What may grow from call to call: containers that a kernel reaches, threads, open files, malloc."""

import ctypes
import functools
import os
import sys
import threading

import pytest
import torch

from verify_norm.loading import modules
from verify_norm.loading.registry import load_directions
from verify_norm.running import growth

GLOBAL = {1: "a plan"}


@functools.cache
def cached(number):
    return number


def enclosing():
    plans, state = [1, 2], type("State", (), {"seen": {3}})()

    def kernel(x):
        return x, plans, state.seen, GLOBAL, cached(1)

    return kernel


def test_containers_that_a_kernel_reaches():
    cached.cache_clear()
    cached(1)
    found = set(growth.containers(enclosing()).values())
    assert {("plans", 2), ("seen", 1), ("GLOBAL", 1), ("the cache of cached", 1)} <= found


def test_containers_behind_our_own_functions():
    target = enclosing()
    target.__name__ = "rmsnorm"
    (kernel,) = load_directions(lambda x, weight, eps: target(x)[0], "rmsnorm_fwd")
    assert ("plans", 2) in growth.containers(modules.Instance().serving(kernel.run)).values()


def test_nothing_of_other_packages():
    assert growth.containers(torch.nn.functional.layer_norm) == {}
    assert id(vars(torch)) not in growth.containers(enclosing())


def test_threads_and_files():
    before, stop = growth.counts(), threading.Event()
    thread, file = threading.Thread(target=stop.wait), os.open(os.devnull, os.O_RDONLY)
    thread.start()
    now = growth.counts()
    stop.set()
    thread.join()
    os.close(file)
    assert {name: now[name] - before[name] for name in now} == {"threads": 1, "open files": 1}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc alone says what malloc has given out")
def test_memory_of_malloc():
    library = ctypes.CDLL(None)
    library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    before = growth.native()
    address = library.malloc(1_000_000)
    assert growth.native() - before >= 1_000_000
    library.free(address)
    assert abs(growth.native() - before) < 100_000
