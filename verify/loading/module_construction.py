"""What a new module of a class must be, besides what it computes: its repr, its state_dict, and how it is made."""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from math import isfinite
from typing import Any

import torch
from torch import nn

from verify_norm.cases.contents import same_bits
from verify_norm.core.errors import one_line
from verify_norm.loading import module_state
from verify_norm.loading.argument_names import meant

STATE = ("running_mean", "running_var", "num_batches_tracked")
AFFINE = ("weight", "bias")
FACTORY = {"device": torch.device("meta"), "dtype": torch.bfloat16}  # as of torch's modules: other values than usual
MARK = 0.5  # what no parameter of a new norm is
Fault = tuple[str, bool]  # in words, and whether it is a mistake for sure


def faults(
    construct: Callable[..., nn.Module],
    taken: Collection[str],
    roles: Mapping[str, str],
    initial: Mapping[str, float],
    unasked: Collection[str] = (),
) -> Iterator[Fault]:
    """Yield what is wrong with modules that `construct` makes; it gives the constructor the arguments of its call too.

    The constructor has values for the arguments `taken`. `roles` are the parameters and buffers by what they are, and
    `initial` the values at which they usually start. The arguments ask for none of the roles `unasked`.
    """
    new = construct()
    try:
        repr(new)
    except Exception as error:
        yield f"repr() of a new module raises {one_line(error)}, and so does print() of a model that has one", True
    kept = set(module_state.persistent(new))
    lost = [name for name, _ in new.named_buffers() if meant(name.rpartition(".")[2], STATE) and name not in kept]
    if lost:
        yield f"a new module's state_dict lacks {' and '.join(lost)}: a model that is saved and loaded loses them", True
    buffers = dict(new.named_buffers())
    affine = [roles[role] for role in AFFINE if role in roles and roles[role] in buffers and roles[role] not in kept]
    if affine:
        why = "a model that is saved and loaded has the values of a new one"
        yield f"a new module's {' and '.join(affine)} is a buffer that its state_dict lacks: {why}", False
    trained = dict(new.named_parameters())
    names = [roles[role] for role in unasked if role in roles and roles[role] in trained]
    if any(trained[name].requires_grad for name in names):
        why = "an optimizer changes what nothing uses"
        yield f"a new module made without {' and '.join(unasked)} has {' and '.join(names)} all the same: {why}", True
    hooked = [name for name, p in trained.items() if p._backward_hooks or p._post_accumulate_grad_hooks]
    if hooked:
        why = "which does not run here: each call has the case's parameters"
        yield f"a new module's {' and '.join(hooked)} has a hook of its gradient, {why}", False
    yield from _started(new, roles, initial)
    yield from _reset(new, construct())
    yield from _factory(type(new), construct, taken)


def _started(new: nn.Module, roles: Mapping[str, str], initial: Mapping[str, float]) -> Iterator[Fault]:
    """Yield the parameters and buffers that start at one other number than usual: a model may have its reasons."""
    tensors = dict((*new.named_parameters(), *new.named_buffers()))
    for role, usual in initial.items():
        tensor = tensors.get(roles.get(role, ""))
        if tensor is None or not tensor.numel():
            continue
        first = float(tensor.detach().flatten()[0])
        if isfinite(first) and first != usual and bool((tensor == first).all()):
            yield f"a new module's {roles[role]} starts at {first:g}, not at {usual:g}", False


def _reset(new: nn.Module, another: nn.Module) -> Iterator[Fault]:
    """Yield the parameters to which reset_parameters() does not give the values of a new module."""
    reset = getattr(new, "reset_parameters", None)
    if not callable(reset) or any(p.default is p.empty for p in inspect.signature(reset).parameters.values()):
        return
    before = {name: parameter.detach().clone() for name, parameter in new.named_parameters()}
    if module_state.shared(new, another):  # what one module resets, others have
        return
    always = [name for name, p in another.named_parameters() if name in before and same_bits(p.detach(), before[name])]
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.fill_(MARK)
    try:
        reset()
    except Exception as error:
        yield f"reset_parameters() of a new module raises {one_line(error)}", True
        return
    now = dict(new.named_parameters())
    wrong = [name for name in always if name not in now or not same_bits(now[name].detach(), before[name])]
    if wrong:
        why = "as FSDP calls it after to_empty()"
        yield f"reset_parameters() does not give {' and '.join(wrong)} the values of a new module, {why}", False


def _factory(cls: type[nn.Module], construct: Callable[..., nn.Module], taken: Collection[str]) -> Iterator[Fault]:
    """Yield what the constructor does not do with a device and a dtype, where it takes both, as torch's modules do."""
    parameters = inspect.signature(cls).parameters
    if not FACTORY.keys() <= parameters.keys() or FACTORY.keys() & set(taken):
        return
    for name, value in FACTORY.items():
        try:
            made = construct(**{name: value})
        except Exception:  # it may refuse the device, or the type
            continue
        tensors: list[tuple[str, Any]] = list(made.named_parameters())
        wrong = [key for key, tensor in tensors if getattr(tensor, name) != value]
        if wrong:
            found = getattr(dict(tensors)[wrong[0]], name)
            yield f"a new module made with {name}={value} has its {' and '.join(wrong)} with {name}={found}", True
