"""How a module runs in a call: a new one, one for several calls, a copy of it, or as in evaluation."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
from torch import nn

from verify_norm.cases.contents import same_bits
from verify_norm.loading.copies import Copy
from verify_norm.loading.module_state import put

# how parameters get new values; the last one as load_state_dict(assign=True) does
WRITES = ("in place under torch.no_grad()", "through .data", "by load_state_dict()", "as a new nn.Parameter")

_instance: ContextVar["Instance | None"] = ContextVar("instance", default=None)
_evaluated: ContextVar[list[nn.Module] | None] = ContextVar("evaluated", default=None)
_made: ContextVar[list[dict[str, torch.Tensor]] | None] = ContextVar("made", default=None)
_faults: ContextVar[list[tuple[str, bool]] | None] = ContextVar("faults", default=None)
_changes: ContextVar[list[str] | None] = ContextVar("changes", default=None)
_copies: ContextVar[tuple[Copy, list[nn.Module]] | None] = ContextVar("copies", default=None)


@dataclass(slots=True)
class Instance:
    """One module for several calls, whose parameters get each call's values; `turn` says how, of WRITES.

    It has one module for each way to construct it; a module that a user names is copied, so that it stays as it is.
    Without `writes` the call's own tensors replace the parameters, for example where one requires a gradient: what the
    graph of an earlier call has saved stays as it is. `replaces` says whether a call has done so, with buffers too;
    `own` holds the tensors of modules that have those of a recorded call, whose backward may still come.
    """

    turn: int = 0
    writes: bool = True
    modules: dict[str, nn.Module] = field(default_factory=dict)
    replaces: bool = False
    own: list[tuple[nn.Module, Mapping[str, torch.Tensor]]] = field(default_factory=list)

    def serving(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with this instance wherever it calls a module."""

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with _holding(_instance, self):
                return function(*args, **kwargs)

        return run

    def kept(self, key: str, construct: Callable[[], nn.Module]) -> nn.Module:
        """Return the module of this key, constructed where there is none yet."""
        if key not in self.modules:
            self.modules[key] = construct()
        return self.modules[key]

    def put_back(self, module: nn.Module) -> None:
        """Give a module its own tensors again, after recorded calls."""
        for one, own in self.own:
            if one is module:
                put(module, own)
        self.own = [(one, own) for one, own in self.own if one is not module]

    def counted(self) -> dict[str, int]:
        """Return the batches that the modules have counted, by the name of the buffer."""
        buffers = (pair for module in self.modules.values() for pair in module.named_buffers())
        return {name: int(buffer) for name, buffer in buffers if name.endswith("num_batches_tracked")}

    def write(self, module: nn.Module, values: Mapping[str, torch.Tensor]) -> None:
        """Write new values into the module's parameters, where they differ, as training does: after train().

        A state is loaded in evaluation too, for example that of averaged weights.
        """
        own = {name: parameter for name, parameter in module.named_parameters() if name in values}
        if all(_equal(parameter, values[name]) for name, parameter in own.items()):
            return
        way = WRITES[self.turn % len(WRITES)]
        self.turn += 1
        if way != "by load_state_dict()":
            module.train()
        for name, parameter in own.items():
            parameter.data = parameter.data.to(values[name])  # as Module.to does, if the type or device is another one
        if way == "by load_state_dict()":
            module.load_state_dict({**module.state_dict(), **values})
            return
        if way == "as a new nn.Parameter":
            _replace(module, {parameter: values[name].clone() for name, parameter in own.items()})
            return
        with torch.no_grad():
            for name, parameter in own.items():
                (parameter.data if way == "through .data" else parameter).copy_(values[name])


def _replace(module: nn.Module, values: Mapping[nn.Parameter, torch.Tensor]) -> None:
    """Put new parameters with these values in the place of a module's own, wherever it holds them."""
    new = {old: nn.Parameter(value, requires_grad=old.requires_grad) for old, value in values.items()}
    for key, parameter in list(module.named_parameters(remove_duplicate=False)):
        if parameter in new:
            owner, _, name = key.rpartition(".")
            setattr(module.get_submodule(owner), name, new[parameter])


def anew(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a new module in each call."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return Instance().serving(function)(*args, **kwargs)

    return run


def current() -> Instance | None:
    """Return the instance that serves the call under way; None: each call has a new module."""
    return _instance.get()


def evaluated() -> list[Any] | None:
    """Return the list of what runs in evaluation, of the block `evaluating` under way; None outside of one."""
    return _evaluated.get()


def copied() -> tuple[Copy, list[nn.Module]] | None:
    """Return how to copy what runs and the list of copies, of the block `copying` under way; None outside of one."""
    return _copies.get()


def constructed() -> list[dict[str, torch.Tensor]] | None:
    """Return the list of what is constructed, of the block `constructing` under way; None outside of one."""
    return _made.get()


def faults() -> list[tuple[str, bool]] | None:
    """Return the list of what is wrong with new modules, of the block `inspecting` under way; None outside of one."""
    return _faults.get()


def changes() -> list[str] | None:
    """Return the list of what calls change of modules, of the block `watching` under way; None outside of one."""
    return _changes.get()


@contextmanager
def evaluating() -> Iterator[list[nn.Module]]:
    """Let modules run as after eval(), whatever the case says; yield a list that gets those which ran."""
    ran: list[nn.Module] = []
    with _holding(_evaluated, ran):
        yield ran


@contextmanager
def copying(how: Copy) -> Iterator[list[nn.Module]]:
    """Let a copy of each module that can be copied so run in its place; yield a list that gets the copies."""
    made: list[nn.Module] = []
    with _holding(_copies, (how, made)):
        yield made


@contextmanager
def constructing() -> Iterator[list[dict[str, torch.Tensor]]]:
    """Yield a list that gets the parameters of each module constructed in the block, by name, as they are then."""
    made: list[dict[str, torch.Tensor]] = []
    with _holding(_made, made):
        yield made


@contextmanager
def inspecting() -> Iterator[list[tuple[str, bool]]]:
    """Yield a list that gets what is wrong with the modules constructed in the block, and whether it surely is."""
    found: list[tuple[str, bool]] = []
    with _holding(_faults, found):
        yield found


@contextmanager
def watching() -> Iterator[list[str]]:
    """Yield a list that gets, in words, what calls in the block change of their modules besides values."""
    found: list[str] = []
    with _holding(_changes, found):
        yield found


@contextmanager
def _holding(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """Let a variable have this value in the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def _equal(one: torch.Tensor, two: torch.Tensor) -> bool:
    return one.dtype == two.dtype and one.device == two.device and same_bits(one, two)
