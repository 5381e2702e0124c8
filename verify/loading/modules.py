"""An nn.Module as a kernel: a class is constructed for each case, an instance gets the cases that fit it.

During a call the case's weight, bias and running statistics replace the module's own (torch.func.functional_call): no
module is changed, and gradients are those of the case's tensors.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial, wraps
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from verify_norm.cases.contents import same_bits
from verify_norm.core import only
from verify_norm.core.errors import UsageError, one_line
from verify_norm.core.op import Op
from verify_norm.loading.argument_names import FEATURES, meant
from verify_norm.loading.bind import Binding, Candidate, bind, features
from verify_norm.loading.copies import Copy, deep, of_module
from verify_norm.loading.domain import Domain
from verify_norm.loading.signatures import signature

ROLES = ("weight", "bias", "running_mean", "running_var")
STARS = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
RANKS = {"1": (2, 3), "2": (4,), "3": (5,)}  # of x, by the last digit in BatchNorm1d and the like
INSTANCE = "or name an instance of it, as path/file.py:norm"
TRIAL = {"eps": 1e-5, "normalized_shape": (8,), FEATURES: 8, "num_groups": 2, "momentum": 0.1}

# how parameters get new values; the last one as load_state_dict(assign=True) does
WRITES = ("in place under torch.no_grad()", "through .data", "by load_state_dict()", "as a new nn.Parameter")

_evaluated: ContextVar[list[nn.Module] | None] = ContextVar("evaluated", default=None)
_made: ContextVar[list[dict[str, torch.Tensor]] | None] = ContextVar("made", default=None)
_copies: ContextVar[tuple[Copy, list[nn.Module]] | None] = ContextVar("copies", default=None)


@dataclass(slots=True)
class Instance:
    """One module for several calls, whose parameters get each call's values; `turn` says how, of WRITES.

    It has one module for each way to construct it; a module that a user names is copied, so that it stays as it is.
    Without `writes` the call's own tensors replace the parameters, as where one requires a gradient: what the graph of
    an earlier call has saved stays as it is.
    """

    turn: int = 0
    writes: bool = True
    modules: dict[str, nn.Module] = field(default_factory=dict)

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

    def counted(self) -> dict[str, int]:
        """Return the batches that the modules have counted, by the name of the buffer."""
        buffers = (pair for module in self.modules.values() for pair in module.named_buffers())
        return {name: int(buffer) for name, buffer in buffers if name.endswith("num_batches_tracked")}

    def write(self, module: nn.Module, values: Mapping[str, torch.Tensor]) -> None:
        """Write new values into the module's parameters, where they differ, as training does: after train()."""
        own = {name: parameter for name, parameter in module.named_parameters() if name in values}
        if all(_equal(parameter, values[name]) for name, parameter in own.items()):
            return
        module.train()
        for name, parameter in own.items():
            parameter.data = parameter.data.to(values[name])  # as Module.to does, if the type or device is another one
        way = WRITES[self.turn % len(WRITES)]
        self.turn += 1
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


_instance: ContextVar[Instance | None] = ContextVar("instance", default=None)


def current() -> Instance | None:
    """Return the instance that serves the call under way; None: each call has a new module."""
    return _instance.get()


def evaluated() -> list[Any] | None:
    """Return the list of what runs in evaluation, of the block `evaluating` under way; None outside of one."""
    return _evaluated.get()


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
def _holding(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """Let a variable have this value in the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def adapt(candidate: Candidate, *, autograd: bool) -> tuple[Callable[[Mapping[str, Any]], Any], Domain]:
    """Return a function that calls the module with what the operator offers, and its domain; raises UsageError."""
    target, name, op = candidate.target, candidate.name, candidate.op
    inputs = tuple(tensor.name for tensor in op.inputs if tensor.role == "input")
    made = _constructor(candidate, inputs) if inspect.isclass(target) else None
    module = target
    if made is not None:
        flags = {"bias": True, "affine": True, "running": op.view == "channels"}
        module = _constructed(candidate, made, {**TRIAL, **flags, **made.fixed})
    pristine = of_module(deep, module)  # before any call
    inner = getattr(module, "_orig_mod", module)  # torch.compile wraps it
    elsewhere = {*op.attrs, FEATURES, "weight", "bias", *([p.name for p in _takes(target, name)] if made else ())}
    call_binding = bind(candidate, signature(inner.forward, name), inputs, elsewhere=elsewhere)
    for n in inputs:
        if n not in call_binding.sources:
            raise UsageError(f"{name} has no argument for {n}: --bind {n}=<its argument>")

    def made_for(given: Mapping[str, Any]) -> nn.Module:
        instance = _instance.get()
        if made is None:
            return module if instance is None else instance.kept("", lambda: of_module(deep, pristine))
        weight, bias, running = (given.get(n) is not None for n in ("weight", "bias", "running_mean"))
        more = {FEATURES: features(op, given), "bias": bias, "affine": weight or bias, "running": running}
        values = {**given, **more}

        types = given["x"].device, getattr(given.get("weight"), "dtype", None)  # as a model is, with all its buffers

        def construct() -> nn.Module:
            new = _constructed(candidate, made, values)
            if (parameters := _made.get()) is not None:
                parameters.append({key: parameter.detach().clone() for key, parameter in new.named_parameters()})
            return new.to(*types)

        return construct() if instance is None else instance.kept(repr([values[n] for n in made.sources]), construct)

    def another(given: Mapping[str, Any]) -> nn.Module:
        other: nn.Module = Instance().serving(made_for)(given)
        return other

    def call(given: Mapping[str, Any]) -> Any:
        used, instance, copying = made_for(given), _instance.get(), _copies.get()
        if copying is not None and (copy := of_module(copying[0], used, partial(another, given))) is not used:
            copying[1].append(used := copy)
        tensors = {
            key: given[role].reshape(attrgetter(key)(used).shape)
            for role, key in _roles(used, name).items()
            if given.get(role) is not None
        }
        if instance is not None and instance.writes and not any(tensor.requires_grad for tensor in tensors.values()):
            own = dict(used.named_parameters())
            instance.write(used, {key: tensor for key, tensor in tensors.items() if key in own})
            tensors = {key: tensor for key, tensor in tensors.items() if key not in own}
        was, evaluated = used.training, _evaluated.get()
        training = given.get("training", True) and evaluated is None
        if evaluated is not None:
            evaluated.append(used)
        try:
            if was != training:
                used.train(training)
            return call_binding.call(lambda *a, **k: torch.func.functional_call(used, tensors, a, k), given)
        finally:
            if was != training and instance is None:
                used.train(was)

    return call, _domain(candidate, module, made, call_binding.unset, autograd=autograd)


def _equal(one: torch.Tensor, two: torch.Tensor) -> bool:
    return one.dtype == two.dtype and one.device == two.device and same_bits(one, two)


def _constructor(candidate: Candidate, inputs: tuple[str, ...]) -> Binding:
    cls, name, op = candidate.target, candidate.name, candidate.op
    attrs = [n for n in op.attrs if n not in ("training", "weight_offset")]
    flags = [n for n in ("bias", "affine", "running") if n != "running" or op.view == "channels"]
    offered = (*attrs, FEATURES, *(n for n in flags if n != "bias" or any(t.name == n for t in op.inputs)))
    elsewhere = {*inputs, *(p.name for p in signature(cls.forward, name)), *op.attrs, *flags, "weight"}
    own = [p for p in _takes(cls, name) if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    try:
        return bind(candidate, own, offered, elsewhere=elsewhere)
    except UsageError as error:
        raise UsageError(f"{error}; {INSTANCE}") from None


def _takes(cls: type[nn.Module], name: str) -> list[inspect.Parameter]:
    """Return the parameters of a constructor; of one that passes all on, as (*args, **kwargs), those of its base."""
    for base in cls.__mro__:
        parameters = signature(base, name)
        if base is nn.Module or {p.kind for p in parameters} != {*STARS}:
            break
    return signature(cls, name) if base is nn.Module else parameters


def _constructed(candidate: Candidate, binding: Binding, values: Mapping[str, Any]) -> nn.Module:
    try:
        made: nn.Module = binding.call(candidate.target, values)
    except Exception as error:
        given = [(a.name, values.get(a.source, a.value) if a.source else repr(a.value)) for a in binding.arguments]
        shown = f"{candidate.name}({', '.join(f'{name}={value}' for name, value in given)})"
        raise UsageError(f"{shown} cannot be constructed: {one_line(error)}; {INSTANCE}") from error
    return made


def _roles(module: nn.Module, name: str) -> dict[str, str]:
    """Return which of the module's parameters is the weight, the bias; of its buffers, what no parameter is."""
    roles: dict[str, str] = {}
    for what, named in ("parameters", module.named_parameters()), ("buffers", module.named_buffers()):
        found: dict[str, str] = {}
        for key, _ in named:
            role = meant(key.rpartition(".")[2], ROLES)
            if role in found:
                raise UsageError(f"{name} has two {what} that could be its {role}: {found[role]} and {key}")
            if role is not None:
                found[role] = key
        roles = found | roles
    return roles


def _domain(
    candidate: Candidate, module: nn.Module, made: Binding | None, unset: tuple[str, ...], *, autograd: bool
) -> Domain:
    """Return the cases that the module takes; `made` is how its class is constructed, None for an instance."""
    name, op, roles = candidate.name, candidate.op, _roles(module, candidate.name)
    evaluated = any(c.name == "training" and c.values == (False,) for c in only.read(candidate.only))
    varies = set() if made is None else set(made.sources) - set(made.fixed)
    held: dict[str, Any] = {"weight_layout": "contiguous", "bias_layout": "contiguous"}
    held |= {} if autograd else {"frozen": ()}
    attributes = vars(getattr(module, "_orig_mod", module))
    own = {ours: v for n, v in attributes.items() if (ours := meant(n.strip("_"), (*op.attrs, FEATURES))) is not None}
    if own.get("eps", 0.0) is None:
        own["eps"] = torch.finfo(torch.float32).eps  # as torch.nn.RMSNorm, for every type of x
    own |= {ours: v for n, v in candidate.option.constants.items() if (ours := meant(n, op.attrs)) is not None}
    for n in ("eps", "num_groups", "momentum"):
        if n not in op.attrs or n in varies:
            continue
        if n == "momentum" and evaluated:
            continue  # it has no effect
        if n == "momentum" and n in own and own[n] is None:
            raise UsageError(
                f"{name} has a momentum of None, a cumulative average, which no case has: give it a number"
            )
        if not isinstance(own.get(n), (int, float)):
            example = {"eps": "1e-5", "num_groups": "8", "momentum": "0.1"}[n]
            never = ", or --only training=false if it never trains" * (n == "momentum")
            raise UsageError(f"{name} has no attribute for {n}: give its value, as --bind {n}={example}{never}")
        held[n] = own[n]
    if "weight_offset" in op.attrs:
        held["weight_offset"] = own.get("weight_offset", 0.0)
    if "affine" not in varies:
        held["weight"] = "weight" in roles
    tied = ""
    if any(tensor.name == "bias" for tensor in op.inputs):
        if "bias" not in roles or not varies & {"bias", "affine"}:
            held["bias"] = "bias" in roles
        else:
            tied = "needs" if "bias" in varies else "follows"
    if op.view == "channels" and "running" not in varies:
        held["running"] = "running_mean" in roles
    if held.get("running") is False:
        held["training"] = True
    affine = None if made is not None else _affine(module, name, roles, own)
    if op.view == "rows" and made is not None and "normalized_shape" not in varies:
        held["normalized_ndim"] = 1
    constants = tuple((n, held[n]) for n in ("eps", "num_groups", "momentum") if n in held)
    return Domain(op.view, tuple(held.items()), affine, _ranks(module, op), tied, unset=unset, constants=constants)


def _ranks(module: nn.Module, op: Op) -> tuple[int, ...]:
    """Return the ranks of x that the name of a class as BatchNorm2d allows; any rank if empty."""
    name = type(module).__name__
    digit = re.search(r"([123])d$", name, re.IGNORECASE)
    if digit is None or op.view == "rows":
        return ()
    if "Instance" in name and digit.group(1) == "1":
        return (3,)  # two dimensions are one sample without a batch
    return RANKS[digit.group(1)]


def _affine(module: nn.Module, name: str, roles: Mapping[str, str], own: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of an instance's weight; raises UsageError if nothing tells it."""
    for role in ("weight", "bias", "running_mean"):
        if role in roles:
            return tuple(attrgetter(roles[role])(module).shape)
    shape = own.get("normalized_shape", own.get(FEATURES))
    if shape is None:
        raise UsageError(f"{name} has neither a weight nor an attribute for its size: name its class instead")
    return tuple(shape) if isinstance(shape, (tuple, list, torch.Size)) else (int(shape),)
