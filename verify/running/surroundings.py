"""What a call must leave as it is, besides memory: state of the whole process, and what its arguments are."""

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from verify_norm.loading.returned import overridden
from verify_norm.running import state
from verify_norm.running.state_access import State


def written_to(name: str) -> str:
    """Return the beginning of what `Surroundings.changes` says of a tensor whose elements are changed."""
    return f"{name} is written to"


def changed(words: str) -> str:
    """Return what a line of `Surroundings.changes` is about: a tensor, or a fact of one, by its first word.

    >>> changed("x.requires_grad changes from False to True"), changed(f"{written_to('x')}: …")
    ('x.requires_grad', 'x')
    """
    return words.partition(" ")[0]


class Surroundings:
    """The state of the process and of a call's arguments before it, of which some are `writable`."""

    def __init__(self, arguments: Mapping[str, Any], writable: Collection[str] = ()) -> None:
        self._writable = writable
        self._tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
        self._kinds = {name: type(tensor) for name, tensor in self._tensors.items()}
        self._facts = {name: _facts(tensor) for name, tensor in self._tensors.items()}
        on_gpu = any(tensor.is_cuda for tensor in self._tensors.values())
        self._parts = state.STATE | state.CUDA if on_gpu else state.STATE
        self._state = _read(self._parts)

    def changes(self) -> tuple[str, ...]:
        """Put the state of the process back, and return in words what had changed."""
        return (*_put_back(self._parts, self._state), *self._of_arguments())

    def _of_arguments(self) -> Iterator[str]:
        for name, tensor in self._tensors.items():
            before, now = self._kinds[name], type(tensor)
            if now is not before:  # restored before anything is read by its new methods
                tensor.__class__ = before
                yield f"{name}.__class__ changes from {before.__name__} to {now.__name__}"
            for attribute in overridden(tensor):
                delattr(tensor, attribute)
                yield f"{name} gets {attribute} of its own, in place of torch.Tensor's"
            facts = _facts(tensor)
            changes = {fact: (old, facts[fact]) for fact, old in self._facts[name].items() if old != facts[fact]}
            if changes.keys() == {"_version"}:
                if name not in self._writable:
                    old, new = changes["_version"]
                    yield f"{written_to(name)}: torch's count of its versions changes from {old} to {new}"
                continue
            changes.pop("_version", None)  # it counts the other changes too
            for fact, (old, new) in changes.items():
                yield f"{name}.{fact} changes from {old} to {new}"


@contextmanager
def left(words: list[str], arguments: Mapping[str, Any], writable: Collection[str] = ()) -> Iterator[None]:
    """Put back what a call in this block changes, and add to `words` what that was."""
    before = Surroundings(arguments, writable)
    try:
        yield
    finally:
        words += before.changes()


@contextmanager
def left_of_modes(words: list[str]) -> Iterator[None]:
    """Put back the settings that modes give other values than usual, and add to `words` what a call here makes of them.

    Around a mode this would not show: what sets it also puts the setting back.
    """
    before = _read(state.OF_MODES)
    try:
        yield
    finally:
        words += _put_back(state.OF_MODES, before)


@contextmanager
def quiet() -> Iterator[None]:
    """Ignore all warnings in this block: a warning is no failure, even if the caller turns warnings into errors.

    The filter is not the one of `warnings.filterwarnings("ignore")`, which would then change nothing in a kernel.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\A")  # each message begins
        yield


@contextmanager
def restoring_judge(*, gpu: bool) -> Iterator[None]:
    """Put back the part of the state that this tool's own next calls depend on, if a call in this block changes it."""
    parts = state.OF_JUDGE | state.CUDA if gpu else state.OF_JUDGE
    before = [read() for read, _ in parts.values()]
    try:
        yield
    finally:
        for (read, restore), value in zip(parts.values(), before, strict=True):
            if read() != value:
                restore(value)


@contextmanager
def holding(name: str, value: Any) -> Iterator[None]:
    """Give one part of the process's state, such as "torch.get_num_threads()", this value until the block ends."""
    read, restore = state.STATE[name]
    before = read()
    restore(value)
    try:
        yield
    finally:
        restore(before)


# Takes the seconds after which a thread that waits for Python's lock gets it.
switching = partial(holding, "sys.getswitchinterval()")


def _read(parts: State) -> dict[str, Any]:
    """Return the values of these parts of the process's state."""
    return {name: read() for name, (read, _) in parts.items()}


def _put_back(parts: State, values: Mapping[str, Any]) -> Iterator[str]:
    """Give these parts their values of before, and yield in words what had changed."""
    for name, (read, restore) in parts.items():
        before, now = values[name], read()
        if now != before:
            restore(before)
            yield f"{name} {_difference(before, now)}"


def _difference(before: Any, now: Any) -> str:
    """Return in words how a state has changed; of many entries only those that differ."""
    if isinstance(before, list):
        return f"has {len(now)} entries, of which {sum(entry not in before for entry in now)} are new"
    if isinstance(before, dict):
        names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        before, now = ({name: state.get(name) for name in names} for state in (before, now))
    return f"changes from {before} to {now}"


def _facts(tensor: torch.Tensor) -> dict[str, Any]:
    """Return what a call must leave of a tensor besides its values."""
    return {
        "requires_grad": tensor.requires_grad,
        "grad": None if not tensor.is_leaf or tensor.grad is None else "a tensor",
        "dtype": tensor.dtype,
        "shape": tuple(tensor.shape),
        "stride()": tensor.stride(),
        "data_ptr()": tensor.data_ptr(),
        "_version": tensor._version,
        "_backward_hooks": len(tensor._backward_hooks or ()),
    }
