"""What a call must leave of a module besides values: its mode, the names of its state_dict, and its parameters."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

NAMES = "names of state_dict"


def facts(module: nn.Module) -> dict[str, Any]:
    """Return what a call must leave of a module, in words. Buffers that no state_dict has may come and go.

    >>> facts(nn.RMSNorm(2))["names of state_dict"], facts(nn.RMSNorm(2))["weight.requires_grad"]
    (['weight'], True)
    """
    parameters = dict(module.named_parameters())
    found: dict[str, Any] = {NAMES: sorted({*parameters, *persistent(module)})}
    for name, one in module.named_modules():
        found[f"{name}.training".lstrip(".")] = one.training
    for name, parameter in parameters.items():
        found |= {f"{name}.requires_grad": parameter.requires_grad, f"{name}.dtype": parameter.dtype}
    return found


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yield in words the facts that differ.

    >>> list(changes({"training": True}, {"training": False}))
    ['training from True to False']
    """
    for name, value in before.items():
        now = after.get(name, value)  # what is no longer there is missing among the names
        if now != value:
            yield f"{name} from {value} to {now}"


def put(module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put tensors in the place of a module's own, wherever it holds them, and return these.

    >>> module, weight = nn.RMSNorm(2), nn.RMSNorm(2).weight
    >>> own = put(module, {"weight": weight})
    >>> module.weight is weight, put(module, own)["weight"] is weight, own["weight"] is module.weight
    (True, True, True)
    """
    own = {name: attrgetter(name)(module) for name in tensors}
    new = {id(own[name]): tensor for name, tensor in tensors.items()}
    for one in module.modules():
        for held in (one._parameters, one._buffers):
            held.update({name: new[id(tensor)] for name, tensor in held.items() if id(tensor) in new})  # type: ignore[misc]
    return own


@contextmanager
def hooked(module: nn.Module, faults: list[tuple[str, bool]] | None) -> Iterator[None]:
    """Add to the faults, if there are any to look for, that a call of the module in the block runs no hook of it."""
    if faults is None:
        yield
        return
    ran: list[str] = []
    handle = module.register_forward_hook(lambda *_: ran.append("forward"))
    try:
        yield
    finally:
        handle.remove()
    if not ran:
        words = "a call of the module runs no hooks, as FSDP and profilers need them: its __call__ is not nn.Module's"
        faults.append((words, False))


def shared(one: nn.Module, other: nn.Module) -> list[str]:
    """Return the names of the parameters of one module whose memory is that of a parameter of the other."""
    places = {parameter.data_ptr() for parameter in other.parameters() if parameter.numel()}
    return [name for name, parameter in one.named_parameters() if parameter.data_ptr() in places]


def persistent(module: nn.Module) -> Iterator[str]:
    """Yield the names of a module's buffers that its state_dict has."""
    for prefix, one in module.named_modules():
        for name, buffer in one.named_buffers(recurse=False):
            if buffer is not None and name not in one._non_persistent_buffers_set:
                yield f"{prefix}.{name}".lstrip(".")
