"""The functions that a verdict rests on: whether a kernel, or the import of its file, has replaced one.

A judge in the kernel's own process can be patched: its comparison, the functions of torch and NumPy by which it reads
results, the clock. So these are compared before and after, by identity, with their code, defaults and closures, and
put back. What replaces them between, or reaches the copy that is kept here, is not seen: `--untrusted` is for that.

Sources: SOL-ExecBench (check_monkey_patch), pygpubench (exploits/), gpu-mode reference-kernels #161 and #162.
"""

import builtins
import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from operator import attrgetter, is_
from types import FunctionType, ModuleType
from typing import Any

OURS = "verify_norm."
KERNELS = "verify_norm.kernels"  # which are judged, and judge nothing
# What a judge and its readers call: of a module or class that is loaded, all of it, or these names.
JUDGES: dict[str, str] = {
    **dict.fromkeys(("numpy", "numpy.testing", "numpy.linalg", "time", "math", "ml_dtypes", "torch.testing"), ""),
    **dict.fromkeys(("torch.cuda.Event", "torch.utils.benchmark", "triton.testing"), ""),
    "torch": "allclose isclose equal eq ne sub abs max min all any isnan isinf isfinite nan_to_num norm dist",
    "torch.Tensor": (
        "allclose isclose equal eq ne sub abs max min all any isnan isinf isfinite nan_to_num norm dist item tolist "
        "detach to cpu numpy float double clone contiguous view reshape copy_ data_ptr untyped_storage as_subclass "
        "__eq__ __ne__ __sub__ __rsub__ __array__ __bool__ __float__ __getitem__"
    ),
    "torch.cuda": "synchronize current_stream Event Stream",
    "builtins": "abs all any bool dict enumerate float getattr hasattr hash id int isinstance issubclass iter len list "
    "map max min next range repr reversed round set sorted str sum tuple type vars zip",
}
# All of torch: a library may patch the rest as it is imported, but no call may. (torch.compile patches nn.Module.)
TORCH = dict.fromkeys(("torch", "torch.Tensor", "torch.nn.functional", "torch.autograd", "torch.cuda"), "")
# What sees each call of the judge, and can write into its arrays: how it is read, and how it is put back.
WATCHERS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "the function of sys.settrace": (sys.gettrace, sys.settrace),
    "the function of sys.setprofile": (sys.getprofile, sys.setprofile),
    "the function of threading.settrace": (threading.gettrace, threading.settrace),
    "the function of threading.setprofile": (threading.getprofile, threading.setprofile),
}
OPERATORS = frozenset(JUDGES["torch"].split()) | {"copy_", "_to_copy", "clone", "detach", "_local_scalar_dense"}
ABSENT = object()
INNER = attrgetter("__code__", "__defaults__", "__kwdefaults__")
_at_import: dict[str, list[str]] = {}
_remembered: "Functions | None" = None


@dataclass(frozen=True, slots=True)
class _Space:
    """A module, a class or a table: its name, and what is looked at in it, all if no names are given."""

    name: str
    owner: Any
    chosen: tuple[str, ...] = ()

    def entries(self) -> Mapping[str, Any]:
        """Return what it holds now."""
        held = self.owner if isinstance(self.owner, dict) else vars(self.owner)
        return {name: held.get(name, ABSENT) for name in self.chosen} if self.chosen else held

    def put(self, name: str, value: Any) -> None:
        """Set an entry, or delete it."""
        if isinstance(self.owner, dict):
            self.owner[name] = value
        elif value is ABSENT:
            delattr(self.owner, name)
        else:
            setattr(self.owner, name, value)

    def order(self, before: Mapping[str, Any]) -> None:
        """Put the entries of a table in the order that they had: one that was removed has come back as the last."""
        if isinstance(self.owner, dict) and not self.chosen and list(self.owner) != list(before):
            for name in [name for name in before if name in self.owner]:
                self.owner[name] = self.owner.pop(name)

    def changed(self, before: Mapping[str, Any]) -> list[str]:
        """Return the names of functions and constants that are others now, or that hide a function of that name."""
        now = self.entries()
        if len(before) == len(now) and all(map(is_, before.values(), now.values())):
            return []
        table = isinstance(self.owner, dict)
        hidden = (
            set(dir(self.owner.__base__)) if isinstance(self.owner, type) else set() if table else set(dir(builtins))
        )
        others = [name for name, value in before.items() if now.get(name, ABSENT) is not value]
        return [
            *(name for name in others if table or self.chosen or _counts(name, before[name])),
            *(name for name in now if name not in before and name in hidden - {"__doc__", "__name__", "__module__"}),
        ]


class Functions:
    """The functions that a verdict rests on as they are now; instead `of_torch`, all of torch's."""

    def __init__(self, *, of_torch: bool = False) -> None:
        self._of_torch = of_torch
        self._watched = _watched(of_torch)
        self._entries = [dict(space.entries()) for space in self._watched.spaces]
        self._inner = list(map(INNER, self._watched.functions))
        self._registered = _registered()

    def replaced(self, *, ours: bool = True) -> tuple[str, ...]:
        """Put the functions back, and return the names of those that have been replaced or changed.

        Without `ours`, which takes a tenth of the time, those of this tool and the code of functions are left out.
        """
        found = list[str]()
        for space, before in zip(self._watched.spaces, self._entries, strict=True):
            if not ours and space.name.startswith(OURS):
                break
            for name in space.changed(before):
                space.put(name, before.get(name, ABSENT))
                found.append(f"{space.name}.{name}")
            space.order(before)
        if not ours:
            return tuple(found)
        if self._inner != list(map(INNER, self._watched.functions)):
            for one, inner in zip(self._watched.functions, self._inner, strict=True):
                if INNER(one) != inner:
                    one.__code__, one.__defaults__, one.__kwdefaults__ = inner
                    found.append(f"{one.__module__}.{one.__qualname__}")
        for where, holder, name, content in self._watched.held:
            if getattr(holder, name) is not content:
                object.__setattr__(holder, name, content)
                found.append(where)
        return (*found, *_overridden(_registered() - self._registered, every=self._of_torch))


def remember(functions: Functions | None) -> None:
    """Take the functions as they were for those of the judge, for all calls from here on; None: as they will be."""
    global _remembered
    _remembered = functions


def remembered() -> Functions:
    """Return the functions that were given to `remember`, or as they are now."""
    return _remembered or Functions()


@contextmanager
def importing(where: str) -> Iterator[None]:
    """Put back the functions that the import of a kernel's module or file in this block replaces, and note them."""
    if where in sys.modules:  # nothing runs; a file runs anew each time
        yield
        return
    before, watching = Functions(), [watch() for watch, _ in WATCHERS.values()]
    try:
        yield
    finally:
        noted = _at_import.setdefault(where, [])
        noted += before.replaced()
        for (name, (watch, put)), was in zip(WATCHERS.items(), watching, strict=True):
            if watch() != was:
                put(was)
                noted.append(name)


def at_import(target: str) -> tuple[str, ...]:
    """Return the names of the functions that the import of a target's module had replaced."""
    return tuple(_at_import.get(target.rpartition(":")[0], ()))


@dataclass(frozen=True, slots=True)
class _Watched:
    """What is looked at: spaces, the functions in them that are written in Python, and what records and cells hold.

    Of `held` each has a name, the record or cell, its attribute, and the function there.
    """

    spaces: list[_Space]
    functions: list[FunctionType]
    held: list[tuple[str, Any, str, Any]]


@cache
def _watched(of_torch: bool) -> _Watched:
    """Return what is looked at, in the modules that are loaded when it is asked for first."""
    chosen = TORCH if of_torch else JUDGES
    if of_torch:
        importlib.import_module(
            "torch._dynamo"
        )  # its import, by the first mode that is on, replaces functions of torch
    spaces = [_Space(name, owner, tuple(names.split())) for name, names in chosen.items() if (owner := _loaded(name))]
    spaces.append(_Space("sys.modules", sys.modules, tuple(name for name in chosen if name in sys.modules)))
    for name, module in [] if of_torch else list(sys.modules.items()):
        if name.startswith(OURS) and not name.startswith(KERNELS) and isinstance(module, ModuleType):
            spaces.append(_Space(name, module))
            spaces += _within(module)
    functions = {id(one): one for space in spaces for value in space.entries().values() if (one := _function(value))}
    held = [one for function in functions.values() for one in _enclosed(function)]
    held += [one for space in spaces if isinstance(space.owner, dict) for one in _recorded(space)]
    return _Watched(spaces, list(functions.values()), held)


def _loaded(name: str) -> Any:
    """Return the module or class of that name, if it is loaded already."""
    if name in sys.modules:
        return sys.modules[name]
    where, _, last = name.rpartition(".")
    return vars(_loaded(where)).get(last) if where and _loaded(where) else None


def _within(module: ModuleType) -> Iterator[_Space]:
    """Yield the classes of a module of ours, and its tables."""
    for name, value in vars(module).items():
        if (isinstance(value, type) and value.__module__ == module.__name__) or (
            isinstance(value, dict) and name.isupper()
        ):
            yield _Space(f"{module.__name__}.{name}", value)


def _function(value: Any) -> FunctionType | None:
    """Return the function in Python that a value is, or that a method or a property holds."""
    inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    return inner if isinstance(inner, FunctionType) else None


def _enclosed(function: FunctionType) -> Iterator[tuple[str, Any, str, Any]]:
    """Yield the functions in the closure of a function of ours."""
    cells = (function.__closure__ or ()) if function.__module__.startswith(OURS) else ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=False):
        with suppress(ValueError):  # the cell is empty
            if isinstance(cell.cell_contents, FunctionType):
                yield (
                    f"{function.__module__}.{function.__qualname__}: {name}",
                    cell,
                    "cell_contents",
                    cell.cell_contents,
                )


def _recorded(table: _Space) -> Iterator[tuple[str, Any, str, Any]]:
    """Yield the functions in the records of a table."""
    for key, record in table.owner.items():
        for one in fields(record) if is_dataclass(type(record)) else ():  # isinstance would load a lazy module
            if callable(value := getattr(record, one.name)):
                yield f"{table.name}[{key!r}].{one.name}", record, one.name, value


def _counts(name: str, value: Any) -> bool:
    """Return whether an entry is a function or a constant, which nothing sets anew."""
    return callable(value) or isinstance(value, (property, staticmethod, classmethod)) or name.isupper()


def _registered() -> frozenset[str]:
    """Return the operators for which Python code is registered, such as "aten/equal/CPU"."""
    library = sys.modules.get("torch.library")
    return frozenset(library._impls) if library else frozenset()


def _overridden(registered: frozenset[str], *, every: bool) -> Iterator[str]:
    """Yield which of these are torch's own operators on a device, `every` one or those of OPERATORS."""
    for _, name, key in sorted(entry.split("/") for entry in registered if entry.startswith("aten/")):
        if key != "Meta" and (every or name.partition(".")[0] in OPERATORS):
            yield f"aten::{name} for {key}"
