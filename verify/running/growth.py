"""What grows from call to call: containers that a kernel reaches, threads, open files, and memory from malloc."""

import ctypes
import gc
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CellType, FunctionType, ModuleType
from typing import Any

REACHED = 4_000  # objects that a search for containers looks at
SIZED = (dict, list, set, deque)
ATOMS = frozenset({str, bytes, int, float, complex, bool, type(None)})  # which refer to nothing
OURS = "verify_norm."  # our own functions: only what they enclose, such as the kernel, is searched
OUR_KERNELS = "verify_norm.kernels"


@dataclass(frozen=True, slots=True)
class Container:
    """A container that a kernel reaches, or a cache of functools, under a name."""

    name: str
    itself: Any

    @property
    def size(self) -> int:
        """Its length, or the number of results in a cache."""
        if hasattr(type(self.itself), "cache_info"):
            return int(self.itself.cache_info().currsize)
        return len(self.itself)


def containers(kernel: Callable[..., Any], *others: Any) -> dict[int, Container]:
    """Return the containers that a kernel reaches through what it encloses and the globals of its own package, by id.

    `others` are further objects to start from. The nearest come first, up to a number. Of a kernel of torch itself
    there are none.
    """
    home = _home(kernel)
    found: dict[int, Container] = {}
    if home == "torch":
        return found
    seen: set[int] = set()
    reached: deque[tuple[Any, str]] = deque((root, "") for root in (kernel, *others))
    while reached and len(seen) < REACHED:
        item, name = reached.popleft()
        if id(item) in seen or item is found or item is seen or item is reached:
            continue
        seen.add(id(item))
        if type(item) in SIZED:
            found[id(item)] = Container(name or type(item).__name__, item)
        elif hasattr(type(item), "cache_info"):
            found[id(item)] = Container(f"the cache of {getattr(item, '__name__', name)}", item)
        reached.extend(pair for pair in _referents(item, name, home) if type(pair[0]) not in ATOMS)
    return found


def _home(kernel: Any) -> str:
    """Return the package of the kernel that our functions wrap."""
    while hasattr(kernel, "__wrapped__"):
        kernel = kernel.__wrapped__
    module = getattr(kernel, "__module__", None) or ""
    return OUR_KERNELS if module.startswith(OUR_KERNELS) else module.partition(".")[0]


def _referents(item: Any, name: str, home: str) -> Iterator[tuple[Any, str]]:
    """Yield what an object refers to, with a name; of other packages' modules, classes and functions nothing."""
    kind = type(item)  # isinstance would ask the object itself, which may be lazy
    if issubclass(kind, (ModuleType, type, FunctionType)):
        where = str((item.__name__ if issubclass(kind, ModuleType) else item.__module__) or "")
        if where.startswith(OURS) and not where.startswith(OUR_KERNELS):
            yield from ((cell, "") for cell in getattr(item, "__closure__", None) or ())
            return
        if where != home and not where.startswith(f"{home}."):
            return
    named: Iterator[tuple[Any, Any]] = iter(())
    if kind is dict:
        named = iter(item.items())
    elif kind is FunctionType and item.__closure__:
        named = zip(item.__code__.co_freevars, item.__closure__, strict=True)
    elif kind is CellType:
        named = ((name, referent) for referent in gc.get_referents(item))
    yield from ((value, key if isinstance(key, str) else name) for key, value in named)
    if kind not in (dict, CellType):
        yield from ((referent, item.__name__ if kind is type else name) for referent in gc.get_referents(item))


def counts() -> dict[str, int]:
    """Return how many threads and open files the process has."""
    files = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    return {"threads": threading.active_count(), "open files": files}


class _Mallinfo(ctypes.Structure):
    """The struct mallinfo2 of glibc."""

    _NAMES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _NAMES.split()]


def native() -> int:
    """Return the bytes that malloc has allocated and not freed; 0 where the C library does not tell (glibc does)."""
    function = getattr(ctypes.CDLL(None), "mallinfo2", None) if sys.platform == "linux" else None
    if function is None:
        return 0
    function.restype = _Mallinfo
    info = function()
    return int(info.uordblks + info.hblkhd)
