"""An nn.Module as a kernel: a class is constructed for each case, an instance meets the cases that fit it.

The case's weight and bias take the place of the module's own for the call (torch.func.functional_call), so that no
module is changed, and gradients are those of the case's tensors; so do BatchNorm's running statistics.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
from torch import nn

from verify_norm.bind import FEATURES, Binding, Said, UsageError, bind, meant, signature
from verify_norm.limits import Limits
from verify_norm.spec import Op

ROLES = ("weight", "bias", "running_mean", "running_var")
RANKS = {"1": (2, 3), "2": (4,), "3": (5,)}  # of BatchNorm1d and its kin
TRIAL = {"eps": 1e-5, "normalized_shape": (8,), FEATURES: 8, "num_groups": 2, "momentum": 0.1}


def adapt(target: Any, name: str, op: Op, said: Said, *, autograd: bool
          ) -> tuple[Callable[[Mapping[str, Any]], Any], Limits]:  # fmt: skip
    """What calls the module with what `op` offers, and the cases it takes; raises UsageError."""
    inputs = tuple(tensor.name for tensor in op.inputs if tensor.role == "input")
    made = _constructor(target, name, op, said, inputs) if inspect.isclass(target) else None
    module = target if made is None else _constructed(target, made, {**TRIAL, **_flags(op), **made.fixed}, name)
    inner = getattr(module, "_orig_mod", module)  # torch.compile's
    elsewhere = {*op.attrs, FEATURES, "weight", "bias", *([p.name for p in signature(target, name)] if made else ())}
    call_binding = bind(name, signature(inner.forward, name), op, said, inputs, elsewhere=elsewhere)
    missing = [n for n in inputs if n not in call_binding.sources]
    if missing:
        raise UsageError(f"{name} takes no {missing[0]} that is known as such: --bind {missing[0]}=<its argument>")
    roles = _roles(module, name)
    within = _limits(module, name, op, said, made, roles, autograd=autograd)

    def call(given: Mapping[str, Any]) -> Any:
        used = module if made is None else _constructed(target, made, {**given, **_derived(op, given)}, name)
        used = used if made is None else used.to(given["x"].device)
        tensors = {
            key: given[role].reshape(getattr_of(used, key).shape)
            for role, key in _roles(used, name).items()
            if given.get(role) is not None
        }
        was = used.training
        try:
            used.train(given.get("training", True))
            return call_binding.call(lambda *a, **k: torch.func.functional_call(used, tensors, a, k), given)
        finally:
            used.train(was)

    return call, within


def getattr_of(module: nn.Module, key: str) -> Any:
    """The parameter or buffer of that dotted name."""
    for part in key.split("."):
        module = getattr(module, part)
    return module


def _flags(op: Op) -> dict[str, bool]:
    return {"bias": True, "affine": True, "running": op.view == "channels"}


def _derived(op: Op, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a constructor may ask for beside the operator's attributes."""
    weight, bias = (given.get(n) is not None for n in ("weight", "bias"))
    features = prod(given["normalized_shape"]) if op.view == "rows" else given["x"].shape[1]
    running = given.get("running_mean") is not None
    return {FEATURES: features, "bias": bias, "affine": weight or bias, "running": running}


def _constructor(cls: Any, name: str, op: Op, said: Said, inputs: tuple[str, ...]) -> Binding:
    attrs = [n for n in op.attrs if n not in ("training", "weight_offset")]
    flags = [n for n in ("bias", "affine", "running") if n != "running" or op.view == "channels"]
    offered = (*attrs, FEATURES, *(n for n in flags if n != "bias" or any(t.name == n for t in op.inputs)))
    theirs = [p.name for p in signature(cls.forward, name)]
    elsewhere = {*inputs, *theirs, *op.attrs, *flags, "weight"}
    own = [p for p in signature(cls, name) if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return bind(name, own, op, said, offered, elsewhere=elsewhere)


def _constructed(cls: Any, binding: Binding, values: Mapping[str, Any], name: str) -> nn.Module:
    try:
        made: nn.Module = binding.call(cls, values)
    except Exception as error:
        shown = ", ".join(
            f"{a.name}={values.get(a.source, a.value) if a.source else a.value!r}" for a in binding.arguments
        )
        raise UsageError(f"{name}({shown}) cannot be constructed: {type(error).__name__}: {error}") from error
    return made


def _roles(module: nn.Module, name: str) -> dict[str, str]:
    """Which of the module's parameters and buffers is the weight, the bias, a running statistic."""
    roles: dict[str, str] = {}
    for key in (*dict(module.named_parameters()), *dict(module.named_buffers())):
        role = meant(key.rpartition(".")[2], ROLES)
        if role in roles:
            raise UsageError(f"{name} has two parameters that could be its {role}: {roles[role]} and {key}")
        if role is not None:
            roles[role] = key
    return roles


def _limits(module: nn.Module, name: str, op: Op, said: Said, made: Binding | None, roles: Mapping[str, str], *,
            autograd: bool) -> Limits:  # fmt: skip
    varies = set() if made is None else set(made.sources) - set(made.fixed)
    held: dict[str, Any] = {"weight_layout": "contiguous", "bias_layout": "contiguous"}
    held |= {} if autograd else {"frozen": ()}
    own = {ours: v for n, v in vars(getattr(module, "_orig_mod", module)).items()
           if (ours := meant(n, (*op.attrs, FEATURES))) is not None}  # fmt: skip
    own |= {ours: v for n, v in said.constants.items() if (ours := meant(n, op.attrs)) is not None}
    for n in ("eps", "num_groups", "momentum"):
        if n not in op.attrs or n in varies:
            continue
        if not isinstance(own.get(n), (int, float)):
            raise UsageError(f"{name} has no {n}, as far as its attributes tell: say which, as --bind {n}=1e-5")
        held[n] = own[n]
    if "weight_offset" in op.attrs:
        held["weight_offset"] = own.get("weight_offset", 0.0)
    tied = ""
    if "affine" not in varies:
        held["weight"] = "weight" in roles
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
    digit = re.search(r"([123])d$", type(module).__name__, re.IGNORECASE)
    ranks = RANKS[digit.group(1)] if digit and op.view != "rows" else ()
    if digit and "Instance" in type(module).__name__ and digit.group(1) == "1":
        ranks = (3,)  # two dimensions are one sample without a batch
    return Limits(op.view, tuple(held.items()), affine, ranks, tied)


def _affine(module: nn.Module, name: str, roles: Mapping[str, str], own: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of an instance's weight; raises UsageError where nothing tells it."""
    for role in ("weight", "bias", "running_mean"):
        if role in roles:
            return tuple(getattr_of(module, roles[role]).shape)
    shape = own.get("normalized_shape", own.get(FEATURES))
    if shape is None:
        raise UsageError(f"{name} has neither a weight nor an attribute that tells its size; name its class")
    return tuple(shape) if isinstance(shape, (tuple, list, torch.Size)) else (int(shape),)
