"""What may grow from call to call: containers that a kernel reaches, threads, open files, malloc."""

import ctypes
import functools
import os
import sys
import threading
from types import FunctionType, SimpleNamespace

import pytest
import torch

from verify_norm.loading import module_calls
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


def named(*roots):
    return {(one.name, one.size) for one in growth.containers(*roots).values()}


def test_containers_that_a_kernel_reaches():
    cached.cache_clear()
    cached(1)
    found = named(enclosing())
    assert {("plans", 2), ("seen", 1), ("GLOBAL", 1), ("the cache of cached", 1)} <= found


def test_containers_behind_our_own_functions():
    target = enclosing()
    target.__name__ = "rmsnorm"
    (kernel,) = load_directions(lambda x, weight, eps: target(x)[0], "rmsnorm_fwd")
    assert ("plans", 2) in named(module_calls.Instance().serving(kernel.run))


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


class Cache:
    """A cache of results that has no name of its own."""

    def cache_info(self):
        return SimpleNamespace(currsize=5)


def test_names_of_containers():
    cached.cache_clear()
    cached(1)
    lookup, known, plans, other = cached, Cache(), {1: [5, 6]}, type("Plans", (), {"__module__": __name__})
    found = named(lambda: (lookup, known, plans, other), {"a": 1, "b": 2})
    assert ("dict", 2) in found, "an object to start from has no name"
    assert {("the cache of cached", 1), ("the cache of known", 5)} <= found
    assert {("plans", 1), ("plans", 2)} <= found, "what a key that is no text leads to is named as what holds it"
    assert "Plans" in {name for name, _ in found}


def test_so_many_objects_are_looked_at(monkeypatch):
    monkeypatch.setattr(growth, "REACHED", 2)
    assert named(len, [1], [1, 2]) == {("list", 1)}
    monkeypatch.setattr(growth, "REACHED", 3)
    assert named(len, [1], [1, 2]) == {("list", 1), ("list", 2)}


def test_what_the_search_itself_holds_is_no_container_of_the_kernel():
    class Curious(Cache):
        @property
        def __name__(self):
            search = sys._getframe(1).f_locals
            self.looked = [search[name] for name in ("found", "seen", "reached")]
            return "curious"

    known = Curious()
    found = growth.containers(lambda: known)
    assert len(known.looked) == 3
    assert not {id(one) for one in known.looked} & {*found}


def in_module(name, table=(), rows=()):
    """A function of a module with this name, with a global container and one that it encloses."""
    enclosed = {"rows": [*rows]}
    function = lambda: enclosed  # noqa: E731
    return FunctionType(function.__code__, {"__name__": name, "TABLE": [*table]}, closure=function.__closure__)


@pytest.mark.parametrize(
    ("module", "of", "found"),
    [
        ("verify_norm.kernels.mine", "verify_norm.kernels.mine", {("rows", 1), ("TABLE", 3)}),
        ("verify_norm.loading.mine", "verify_norm.kernels.mine", {("rows", 1)}),
        ("someones.mine", "someones", {("rows", 1), ("TABLE", 3)}),
        ("someones.mine", "verify_norm.kernels.mine", set()),
        (None, None, {("rows", 1), ("TABLE", 3)}),
    ],
)
def test_of_our_own_functions_only_what_they_enclose_is_looked_into(module, of, found):
    """The kernels that come with this tool are looked into as others are."""
    assert named(in_module(of), in_module(module, (1, 2, 3), (0,))) & {("rows", 1), ("TABLE", 3)} == found


def test_a_container_that_one_of_our_own_functions_encloses_is_named_by_its_type():
    mine = [1, 2]
    ours = lambda: mine  # noqa: E731
    ours.__module__ = "verify_norm.loading.mine"
    assert ("list", 2) in named(ours)


def wrapping(module, target):
    """A function of a module that says what it wraps, and keeps its own module."""
    function = lambda: None  # noqa: E731
    function.__module__, function.__wrapped__ = module, target
    return function


@pytest.mark.parametrize(
    ("kernel", "home"),
    [
        (in_module("package.sub"), "package"),
        (wrapping("verify_norm.loading", in_module("package.sub")), "package"),
        (wrapping("verify_norm.loading", wrapping("other", in_module("package"))), "package"),
        (in_module("verify_norm.kernels.zoo.blocks"), growth.OUR_KERNELS),
        (in_module("verify_norm.loading.modules"), "verify_norm"),
        ((1).__add__, ""),  # it has no module
        ("".join, ""),  # … or None
    ],
)
def test_the_package_of_a_kernel_is_that_of_what_is_wrapped(kernel, home):
    assert growth._home(kernel) == home


def test_elsewhere_than_on_linux_files_and_malloc_are_not_told(monkeypatch):
    monkeypatch.setattr(growth, "sys", SimpleNamespace(platform="darwin"))
    assert growth.counts()["open files"] == 0
    assert growth.native() == 0


def test_memory_of_malloc_is_what_it_gave_out_of_its_heap_and_of_own_mappings(monkeypatch):
    monkeypatch.setattr(growth, "sys", SimpleNamespace(platform="linux"))

    def mallinfo2():
        return growth._Mallinfo(uordblks=5, hblkhd=7, arena=100)

    monkeypatch.setattr(growth.ctypes, "CDLL", lambda name: SimpleNamespace(mallinfo2=mallinfo2))
    assert growth.native() == 12
    monkeypatch.setattr(growth.ctypes, "CDLL", lambda name: SimpleNamespace())  # another C library
    assert growth.native() == 0
