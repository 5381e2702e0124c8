"""Any callable as a kernel: plain functions, autograd.Functions, modules, and what writes into a tensor it is given.

A function that takes dy is a backward. Of any other, the backward of an operator is what torch's autograd makes of its
forward pass: `Kernel.autograd` tells, and then some cases have frozen inputs, whose gradients are None.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from verify_norm import limits, modules
from verify_norm.bind import FEATURES, Said, UsageError, bind, meant, parse, signature
from verify_norm.data import differentiable
from verify_norm.execute import RefusedError, named
from verify_norm.limits import Limits
from verify_norm.ops import OPS, output_dtype
from verify_norm.spec import Contract, Kernel, Op

Call = Callable[[Mapping[str, Any]], Any]  # from what an operator offers, by its names, to what the callable returns
MOMENTUM = 0.1  # where a backward runs a forward: it has none, and nothing of it comes out


@dataclass(frozen=True, slots=True)
class Adapted:
    """A callable as a kernel of an operator: what runs it, its forward pass, and the cases it takes."""

    run: Callable[..., Any]
    forward_run: Callable[..., Any] | None
    autograd: bool
    limits: Limits


def adapt(target: Any, name: str, op: Op, said: Said, contract: Contract) -> Adapted:
    """Make a kernel of `op` of what `target` is; raises UsageError, in one line, where that cannot be done.

    Examples
    --------
    >>> rms = adapt(torch.nn.RMSNorm, "RMSNorm", OPS["rmsnorm_bwd"], Said(), Contract())
    >>> x, w = torch.ones(2, 4), torch.ones(4)
    >>> given = {"dy": x, "x": x, "weight": w, "eps": 0.0, "normalized_shape": (4,), "frozen": ("weight",)}
    >>> gradients = rms.run(**given, weight_offset=0.0, rstd=None)
    >>> gradients["dx"].tolist() == torch.zeros(2, 4).tolist(), gradients["dweight"]
    (True, None)
    """
    target = _refuse_what_is_none(target, name)
    if op.forward is None:
        call, within = _forward(target, name, op, said, contract)
        return Adapted(_kernel(call, target, op, ()), None, False, within)
    plain = not _is_differentiable(target) and _takes_dy(target, name, op, said)
    if plain:
        call, within = _function(target, name, op, said, contract)
        return Adapted(_kernel(call, target, op, ()), None, False, within)
    forward = OPS[op.forward]
    call, within = _forward(target, name, forward, said, contract, autograd=True)
    run = _kernel(_gradients(call, op), target, op, ("frozen",))
    within = replace(within, differentiated=tuple(differentiable(op)))
    return Adapted(run, _kernel(call, target, forward, ()), True, within)


def _refuse_what_is_none(target: Any, name: str) -> Any:
    """The callable that is to be called; raises UsageError where it is none of ours to call."""
    owner = getattr(target, "__self__", None)
    if inspect.isclass(owner) and issubclass(owner, torch.autograd.Function):
        return owner  # its `apply`
    if inspect.isclass(target) and not issubclass(target, (torch.autograd.Function, torch.nn.Module)):
        raise UsageError(f"{name} is a class, but neither an nn.Module nor a torch.autograd.Function")
    if type(target).__module__.partition(".")[0] == "triton":
        raise UsageError(
            f"{name} is a Triton kernel, which takes a grid and pointers: name the function that launches it"
        )
    return target


def _is_differentiable(target: Any) -> bool:
    return inspect.isclass(target) or isinstance(target, torch.nn.Module)


def _takes_dy(target: Any, name: str, op: Op, said: Said) -> bool:
    """Whether a function is itself a backward: an argument of it is dy, or it takes whatever there is."""
    parameters = signature(target, name)
    inexact = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return not inexact or "dy" in said.names or any(meant(p.name, ("dy",)) for p in inexact)


def _forward(target: Any, name: str, op: Op, said: Said, contract: Contract, *,
             autograd: bool = False) -> tuple[Call, Limits]:  # fmt: skip
    if isinstance(target, torch.nn.Module) or (inspect.isclass(target) and issubclass(target, torch.nn.Module)):
        call, within = modules.adapt(target, name, op, said, autograd=autograd)
        return _answering(call, op, said.returns), within
    return _function(target, name, op, said, contract, autograd=autograd)


def offered(op: Op) -> tuple[str, ...]:
    """What a callable may take, by its names."""
    return (*(tensor.name for tensor in op.inputs), *op.attrs, FEATURES)


def _function(target: Any, name: str, op: Op, said: Said, contract: Contract, *,
              autograd: bool = False) -> tuple[Call, Limits]:  # fmt: skip
    """A function, or an autograd.Function: its forward pass without ctx, called by `apply`."""
    positional = inspect.isclass(target)
    function = target.apply if positional else target
    parameters = signature(target.forward if positional else target, name)
    if positional and target.setup_context is torch.autograd.Function.setup_context:
        parameters = parameters[1:]  # ctx
    outputs = tuple(t.name for t in op.outputs if t.name not in offered(op))
    binding = bind(name, parameters, op, said, offered(op), outputs=outputs, positional=positional)
    written = tuple(pair.partition(":")[2] for pair in contract.inplace)
    within = limits.of_function(name, binding, op, autograd=autograd, written=written)
    if binding.plain and not contract.inplace and not positional:
        return _Itself(target), within
    into = [n for n in outputs if n in binding.sources]
    if autograd and into:
        raise WritesError(f"{name} writes into {', '.join(into)}, where no gradient passes: say --op {op.name}")

    def call(given: Mapping[str, Any]) -> Any:
        written = {n: _blank(n, op, contract, given) for n in into}
        returned = binding.call(function, {**given, FEATURES: _features(op, given), **written})
        if returned is None and not written:
            pairs = (pair.partition(":") for pair in contract.inplace)
            return {output: given[argument] for output, _, argument in pairs} or None
        return _merged(returned, written, op) if written else returned

    return _answering(call, op, binding.returns), within


class WritesError(UsageError):
    """There are no gradients of what writes its results into its arguments."""


class _Itself:
    """A function that needs nothing done to it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        names = signature(function, "it")
        self._every = any(p.kind is p.VAR_KEYWORD for p in names)
        self._names = {p.name for p in names}

    def __call__(self, given: Mapping[str, Any]) -> Any:
        return self.function(**{n: v for n, v in given.items() if self._every or n in self._names})


def _kernel(call: Call, target: Any, op: Op, more: tuple[str, ...]) -> Callable[..., Any]:
    """What a Kernel runs: it takes all that the operator offers, by name, and shows whose it is."""
    if isinstance(call, _Itself):
        return call.function

    def run(**given: Any) -> Any:
        return call(given)

    names = [n for n in (*offered(op), *more) if n != FEATURES]
    keyword = inspect.Parameter.KEYWORD_ONLY
    run.__signature__ = inspect.Signature([inspect.Parameter(n, keyword) for n in names])  # type: ignore[attr-defined]
    run.__wrapped__ = type(target) if isinstance(target, torch.nn.Module) else target  # type: ignore[attr-defined]
    return run


def _features(op: Op, given: Mapping[str, Any]) -> int:
    """How many elements weight has."""
    return prod(given["normalized_shape"]) if "normalized_shape" in op.attrs else given["x"].shape[1]


def _blank(name: str, op: Op, contract: Contract, given: Mapping[str, Any]) -> Tensor | None:
    """An uninitialized tensor for an output, in its shape and type; None for the gradient of what is None."""
    tensor = next(t for t in op.outputs if t.name == name)
    x: Tensor = given["residual_out"] if "x" not in given else given["x"]
    kind = getattr(torch, output_dtype(tensor, contract, str(x.dtype).removeprefix("torch.")))
    if tensor.extent in ("data", "one"):
        return torch.empty(x.shape if tensor.extent == "data" else 1, dtype=kind, device=x.device)
    if tensor.extent == "affine":
        of = given.get(name.removeprefix("d"))
        return None if of is None else torch.empty(of.shape, dtype=of.dtype, device=of.device)
    shape: tuple[int, ...] = (x.numel() // max(_features(op, given), 1),)
    if op.view == "groups":
        shape = (x.shape[0], given.get("num_groups", x.shape[1]))
    elif op.view == "channels":
        shape = (x.shape[1],)
    return torch.empty(shape, dtype=kind, device=x.device)


def _merged(returned: Any, written: dict[str, Any], op: Op) -> dict[str, Any] | Any:
    """What was written into, and whatever else was returned, in order."""
    values = returned if isinstance(returned, (tuple, list)) else (returned,)
    rest = [v for v in values if v is not None and not any(v is t for t in written.values())]
    names = [t.name for t in op.outputs if t.name not in written]
    if len(rest) > len(names):
        raise TypeError(f"it returned {len(rest)} values beside {', '.join(written)}, which it was to write into")
    return {**written, **dict(zip(names, rest, strict=False))}


def _answering(call: Call, op: Op, returns: tuple[str, ...]) -> Call:
    """The same, its values named as `returns` says."""
    known = [t.name for t in op.outputs]
    wrong = [n for n in returns if n not in (*known, "_")]
    if wrong:
        raise UsageError(f"--bind … -> {', '.join(returns)}: {op.name} has no {wrong[0]}; it has {', '.join(known)}")
    if not returns:
        return call

    def answering(given: Mapping[str, Any]) -> Any:
        returned = call(given)
        values = returned if isinstance(returned, (tuple, list)) else (returned,)
        if len(values) != len(returns):
            raise TypeError(f"it returned {len(values)} values; --bind says {len(returns)}: {', '.join(returns)}")
        return {n: value for n, value in zip(returns, values, strict=True) if n != "_"}

    return answering


def _gradients(call: Call, op: Op) -> Call:
    """The backward of a forward pass, by torch.autograd.grad."""
    forward = OPS[str(op.forward)]

    def results(offer: Mapping[str, Any]) -> dict[str, Any]:
        with torch.enable_grad():
            returned = named(call(offer), forward)
        if isinstance(returned, str):
            raise TypeError(returned)
        return returned

    def gradients(given: Mapping[str, Any]) -> dict[str, Tensor | None]:
        offer, leaves = _leaves(given, given["frozen"])
        wanted: dict[str, Tensor | None] = {t.name: None for t in op.outputs}
        if not leaves:
            return wanted
        returned = results(offer)
        pairs = {"y": given["dy"], "residual_out": given.get("dresidual_out")}
        cotangents = {n: cotangent for n, cotangent in pairs.items() if cotangent is not None}
        for n in cotangents:
            if returned.get(n) is None:
                raise RefusedError(f"it returns no {n}, whose gradient is given")
            if not returned[n].requires_grad:
                said = f"its {n} has no gradient: autograd does not know how it was made"
                if not results(_leaves(given, ())[0])[n].requires_grad:
                    raise RefusedError(f"{said}; --op {forward.name} checks the forward alone")
                raise TypeError(f"{said} where {' and '.join(given['frozen'])} need none")
        outs = [returned[n] for n in cotangents]
        found = torch.autograd.grad(outs, list(leaves.values()), list(cotangents.values()), allow_unused=True)
        by_name = dict(zip(leaves, found, strict=True))
        dx, dresidual = by_name.get("x"), by_name.pop("residual", by_name.get("x"))
        if (dx is None) != (dresidual is None) or not torch.equal(_bits(dx), _bits(dresidual)):
            raise ValueError("the gradients of x and of residual differ, which have one: that of their sum")
        return wanted | {f"d{n}": gradient for n, gradient in by_name.items()}

    return gradients


def _bits(tensor: Tensor | None) -> Tensor:
    """The values, every NaN alike."""
    return torch.zeros(0) if tensor is None else torch.nan_to_num(tensor.detach().double(), nan=0.125)


def _leaves(given: Mapping[str, Any], frozen: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What the forward is called with, and those of it that need a gradient.

    A fused addition's backward knows the sum alone: the sum and nothing is as good as any x and residual. BatchNorm's
    forward moves the running statistics, so it gets copies.
    """
    offer = {**given, "momentum": MOMENTUM}
    if "residual_out" in given:
        offer |= {"x": given["residual_out"], "residual": torch.zeros_like(given["residual_out"])}
    offer |= {n: offer[n].clone() for n in ("running_mean", "running_var") if offer.get(n) is not None}
    leaves = {}
    for n in ("x", "residual", "weight", "bias"):
        if offer.get(n) is not None:
            offer[n] = offer[n].detach()
            if (n if n != "residual" else "x") not in frozen:
                leaves[n] = offer[n] = offer[n].requires_grad_()
    return offer, leaves


def of_kernel(kernel: Kernel, target: Any) -> Adapted:
    """`adapt`, as a kernel's record has it."""
    return adapt(target, kernel.name, OPS[kernel.op], parse(kernel.bind), kernel.contract)
