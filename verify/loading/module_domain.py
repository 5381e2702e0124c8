"""The cases that an nn.Module takes: what its constructor, its attributes and its parameters settle."""

import re
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from verify_norm.core import only
from verify_norm.core.errors import UsageError
from verify_norm.core.op import Op
from verify_norm.loading.argument_names import FEATURES, meant
from verify_norm.loading.bind import Binding, Candidate
from verify_norm.loading.domain import Domain

ROLES = ("weight", "bias", "running_mean", "running_var")
CONSTANTS = ("eps", "num_groups", "momentum")
OWNED = "make it an nn.Parameter, or a buffer by register_buffer"
RANKS = {"1": (2, 3), "2": (4,), "3": (5,)}  # of x, by the last digit in BatchNorm1d and the like


def roles_of(module: nn.Module, name: str) -> dict[str, str]:
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


def domain_of(
    candidate: Candidate, module: nn.Module, made: Binding | None, unset: tuple[str, ...], *, autograd: bool
) -> Domain:
    """Return the cases that the module takes; `made` is how its class is constructed, None for an instance."""
    name, op, roles = candidate.name, candidate.op, roles_of(module, candidate.name)
    evaluated = any(c.name == "training" and c.values == (False,) for c in only.read(candidate.only))
    varies = set() if made is None else set(made.sources) - set(made.fixed)
    held: dict[str, Any] = {"weight_layout": "contiguous", "bias_layout": "contiguous"}
    held |= {} if autograd else {"frozen": ()}
    attributes = vars(getattr(module, "_orig_mod", module))
    for n, value in attributes.items():
        if isinstance(value, torch.Tensor) and (role := meant(n, ROLES)) is not None and role not in roles:
            raise UsageError(f"{name}.{n} is a plain tensor, which no optimizer and no state_dict knows; {OWNED}")
    own = {ours: v for n, v in attributes.items() if (ours := meant(n.strip("_"), (*op.attrs, FEATURES))) is not None}
    own = _of_parts(module, op) | own
    if own.get("eps", 0.0) is None:
        own["eps"] = torch.finfo(torch.float32).eps  # as torch.nn.RMSNorm, for every type of x
    own |= {ours: v for n, v in candidate.option.constants.items() if (ours := meant(n, op.attrs)) is not None}
    for n in CONSTANTS:
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
            raise UsageError(f"{name} has no attribute for {n}: give its value, such as --bind {n}={example}{never}")
        held[n] = own[n]
    if "weight_offset" in op.attrs:
        offset = own.get("weight_offset")
        held["weight_offset"] = float(offset) if isinstance(offset, (int, float)) else 0.0
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
    constants = tuple((n, held[n]) for n in CONSTANTS if n in held)
    return Domain(op.view, tuple(held.items()), affine, _ranks(module, op), tied, unset=unset, constants=constants)


def _of_parts(module: nn.Module, op: Op) -> dict[str, Any]:
    """Return eps and the like of the modules inside, such as a torch.nn.LayerNorm, where all that have it agree."""
    found: dict[str, set[Any]] = {}
    for part in list(module.modules())[1:]:
        for n, value in vars(part).items():
            ours = n if n in CONSTANTS else meant(n.strip("_"), ("eps",))  # `groups` is that of a convolution
            if ours in op.attrs and (value is None or isinstance(value, (int, float))):
                found.setdefault(ours, set()).add(value)
    return {ours: values.pop() for ours, values in found.items() if len(values) == 1}


def _ranks(module: nn.Module, op: Op) -> tuple[int, ...]:
    """Return the ranks of x that the name of a class as BatchNorm2d allows, also of torch's inside; any rank if empty.

    An InstanceNorm2d takes three dimensions for one sample without a batch.
    """
    inside = (part for part in module.modules() if isinstance(part, nn.modules.batchnorm._NormBase))
    for name in (type(part).__name__ for part in (module, *inside)):
        digit = re.search(r"([123])d$", name, re.IGNORECASE)
        if digit is not None and op.view != "rows":
            alone = "Instance" in name and digit.group(1) == "1"  # two dimensions are one sample without a batch
            return (3,) if alone else RANKS[digit.group(1)]
    return ()


def _affine(module: nn.Module, name: str, roles: Mapping[str, str], own: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of an instance's weight; raises UsageError if nothing tells it."""
    for role in ("weight", "bias", "running_mean"):
        if role in roles:
            return tuple(attrgetter(roles[role])(module).shape)
    shape = own.get("normalized_shape", own.get(FEATURES))
    if shape is None:
        raise UsageError(f"{name} has neither a weight nor an attribute for its size: name its class instead")
    return tuple(shape) if isinstance(shape, (tuple, list, torch.Size)) else (int(shape),)
