"""An nn.Module as a kernel: a class is constructed for each case, an instance gets the cases that fit it.

During a call the case's weight, bias and running statistics replace the module's own (torch.func.functional_call): no
module of a user's is changed, and gradients are those of the case's tensors. Where a call is recorded they stay in the
module, which is then one of the judge's: its backward may read them again, as under torch.utils.checkpoint.
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from verify_norm.core.errors import UsageError, one_line
from verify_norm.loading import module_calls, module_construction, module_state
from verify_norm.loading.argument_names import FEATURES, meant
from verify_norm.loading.bind import Binding, Candidate, bind, features
from verify_norm.loading.copies import deep, of_module
from verify_norm.loading.domain import Domain
from verify_norm.loading.module_construction import Fault
from verify_norm.loading.module_domain import domain_of, roles_of
from verify_norm.loading.signatures import signature

STARS = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
INSTANCE = "or name an instance of it, such as path/file.py:norm"
FIXED = {torch.jit.ScriptModule: "by torch.jit.script", nn.DataParallel: "an nn.DataParallel"}
TRIAL = {"eps": 1e-5, "normalized_shape": (8,), FEATURES: 8, "num_groups": 2, "momentum": 0.1}


def adapt(candidate: Candidate, *, autograd: bool) -> tuple[Callable[[Mapping[str, Any]], Any], Domain]:
    """Return a function that calls the module with what the operator offers, and its domain; raises UsageError."""
    target, name, op = candidate.target, candidate.name, candidate.op
    inputs = tuple(tensor.name for tensor in op.inputs if tensor.role == "input")
    made = _constructor(candidate, inputs) if inspect.isclass(target) else None
    module = target
    if made is not None:
        made, module = _tried(candidate, made)
    _replaceable(module, name)
    pristine = of_module(deep, module)  # before any call
    inner = getattr(module, "_orig_mod", module)  # torch.compile wraps it
    elsewhere = {*op.attrs, FEATURES, "weight", "bias", *([p.name for p in _takes(target, name)] if made else ())}
    call_binding = bind(candidate, signature(inner.forward, name), inputs, elsewhere=elsewhere)
    for n in inputs:
        if n not in call_binding.sources:
            raise UsageError(f"{name} has no argument for {n}: --bind {n}=<its argument>")

    def made_for(given: Mapping[str, Any]) -> nn.Module:
        instance = module_calls.current()
        if made is None and instance is not None:
            return instance.kept("", lambda: of_module(deep, pristine))
        if made is None:
            return of_module(deep, pristine) if _recorded(given) else module
        weight, bias, running = (given.get(n) is not None for n in ("weight", "bias", "running_mean"))
        more = {FEATURES: features(op, given), "bias": bias, "affine": weight or bias, "running": running}
        values = {**given, **more}

        types = given["x"].device, getattr(given.get("weight"), "dtype", None)  # as a model is, with all its buffers

        def construct() -> nn.Module:
            new = _constructed(candidate, made, values)
            if (faults := module_calls.faults()) is not None:
                faults += _of_new(candidate, made, values, new)
            if (parameters := module_calls.constructed()) is not None:
                parameters.append({key: parameter.detach().clone() for key, parameter in new.named_parameters()})
            return new.to(*types)

        return construct() if instance is None else instance.kept(repr([values[n] for n in made.sources]), construct)

    def another(given: Mapping[str, Any]) -> nn.Module:
        other: nn.Module = module_calls.Instance().serving(made_for)(given)
        return other

    def call(given: Mapping[str, Any]) -> Any:
        used, instance, copying = made_for(given), module_calls.current(), module_calls.copied()
        if copying is not None and (copy := of_module(copying[0], used, partial(another, given))) is not used:
            copying[1].append(used := copy)
        if instance is not None:
            instance.put_back(used)
        tensors = {
            key: given[role].reshape(attrgetter(key)(used).shape)
            for role, key in roles_of(used, name).items()
            if given.get(role) is not None
        }
        if instance is not None and instance.writes and not any(tensor.requires_grad for tensor in tensors.values()):
            own = dict(used.named_parameters())
            instance.write(used, {key: tensor for key, tensor in tensors.items() if key in own})
            tensors = {key: tensor for key, tensor in tensors.items() if key not in own}
        if instance is not None and tensors:
            instance.replaces = True
        was, evaluated, changes = used.training, module_calls.evaluated(), module_calls.changes()
        training = given.get("training", True) and evaluated is None
        if evaluated is not None:
            evaluated.append(used)
        try:
            if was != training:
                used.train(training)
            before = {} if changes is None else module_state.facts(used)
            with module_state.hooked(used, module_calls.faults()):
                returned = call_binding.call(lambda *a, **k: torch.func.functional_call(used, tensors, a, k), given)
            if changes is not None:
                changes += module_state.changes(before, module_state.facts(used))
            if used is not module and _recorded(given):
                held = module_state.put(used, tensors)
                if instance is not None:
                    instance.own.append((used, held))
            return returned
        finally:
            if was != training and instance is None:
                used.train(was)

    return call, domain_of(candidate, module, made, call_binding.unset, autograd=autograd)


def _replaceable(module: nn.Module, name: str) -> None:
    """Raise UsageError if a call cannot replace the module's parameters."""
    for kind, words in FIXED.items():
        if isinstance(module, kind):
            raise UsageError(f"{name} is {words}, whose parameters no call can replace; name the module inside")
    if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
        raise UsageError(f"{name} makes its parameters in its first call; name an instance that has been called once")


def _recorded(given: Mapping[str, Any]) -> bool:
    """Return whether torch records a call of these values."""
    return torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in given.values())


def _constructor(candidate: Candidate, inputs: tuple[str, ...]) -> Binding:
    cls, name, op = candidate.target, candidate.name, candidate.op
    attrs = [n for n in op.attrs if n not in ("training", "weight_offset")]
    flags = [n for n in ("bias", "affine", "running") if n != "running" or op.view == "channels"]
    offered = (*attrs, FEATURES, *(n for n in flags if n != "bias" or any(t.name == n for t in op.inputs)))
    elsewhere = {*inputs, *(p.name for p in signature(cls.forward, name)), *op.attrs, *flags, "weight"}
    own = _required_size([p for p in _takes(cls, name) if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)])
    try:
        return bind(candidate, own, offered, elsewhere=elsewhere)
    except UsageError as error:
        raise UsageError(f"{error}; {INSTANCE}") from None


def _required_size(own: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """Return the parameters of a constructor, without a default of None where it is the only size that there is."""
    sizes = [p for p in own if meant(p.name, (FEATURES, "normalized_shape"))]
    if len(sizes) != 1 or sizes[0].default is not None:
        return own
    return [p.replace(default=p.empty) if p is sizes[0] else p for p in own]


def _tried(candidate: Candidate, made: Binding) -> tuple[Binding, nn.Module]:
    """Return how to construct the class, and a module: of a number where it makes a tuple of its size, or takes none.

    So is ConvNeXt's LayerNorm, whose normalized_shape is a number.
    """
    flags = {"bias": True, "affine": True, "running": candidate.op.view == "channels"}
    values = {**TRIAL, **flags, **made.fixed}
    numbered = replace(
        made,
        arguments=tuple(replace(a, source=FEATURES) if a.source == "normalized_shape" else a for a in made.arguments),
    )
    try:
        module = _constructed(candidate, made, values)
    except UsageError:
        with suppress(UsageError):
            return numbered, _constructed(candidate, numbered, values)
        raise
    if any(
        isinstance(held, (tuple, list)) and (*held,) == (TRIAL["normalized_shape"],) for held in vars(module).values()
    ):
        return numbered, _constructed(candidate, numbered, values)
    return made, module


def _takes(cls: type[nn.Module], name: str) -> list[inspect.Parameter]:
    """Return the parameters of a constructor; of one that passes all on, as (*args, **kwargs), those of its base."""
    for base in cls.__mro__:
        parameters = signature(base, name)
        if base is nn.Module or {p.kind for p in parameters} != {*STARS}:
            break
    return signature(cls, name) if base is nn.Module else parameters


def _of_new(candidate: Candidate, binding: Binding, values: Mapping[str, Any], new: nn.Module) -> list[Fault]:
    """Return what is wrong with new modules like this one."""
    taken = {argument.name for argument in binding.arguments}
    initial = {"weight": 1.0 - values.get("weight_offset", 0.0), "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}

    def construct(**more: Any) -> nn.Module:
        other: nn.Module = binding.call(partial(candidate.target, **more), values)
        return other

    off = [flag for flag in ("affine", "bias") if flag in binding.sources and not values[flag]]
    unasked = ("weight", "bias") if "affine" in off else ("bias",) if off else ()
    roles = roles_of(new, candidate.name)
    return list(module_construction.faults(construct, taken, roles, initial, unasked))


def _constructed(candidate: Candidate, binding: Binding, values: Mapping[str, Any]) -> nn.Module:
    try:
        made: nn.Module = binding.call(candidate.target, values)
    except Exception as error:
        given = [(a.name, values.get(a.source, a.value) if a.source else repr(a.value)) for a in binding.arguments]
        shown = f"{candidate.name}({', '.join(f'{name}={value}' for name, value in given)})"
        raise UsageError(f"{shown} cannot be constructed: {one_line(error)}; {INSTANCE}") from error
    return made
