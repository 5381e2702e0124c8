"""Any callable as a kernel: functions, autograd.Functions, modules, and functions that write into given tensors.

A function with an argument for dy is a backward. For any other, the backward is torch's autograd of its forward pass
(`Kernel.autograd`): then some cases have frozen inputs, whose gradients are None.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from verify_norm.cases import make
from verify_norm.core.errors import UsageError
from verify_norm.core.geometry import differentiable
from verify_norm.core.kernel import Kernel
from verify_norm.core.op import Op
from verify_norm.core.ops import OPS
from verify_norm.loading import domain, gradients, modules
from verify_norm.loading.argument_names import FEATURES, meant
from verify_norm.loading.bind import Candidate, bind, features
from verify_norm.loading.bind_option import parse
from verify_norm.loading.domain import Domain
from verify_norm.loading.gradients import Call
from verify_norm.loading.returned import fields_of, flat, named
from verify_norm.loading.signatures import schema_of, signature
from verify_norm.loading.targets import preset
from verify_norm.loading.written import blank, merged


@dataclass(frozen=True, slots=True)
class Adapted:
    """A callable as a kernel of an operator: what runs it, its forward pass, and the cases it takes."""

    run: Callable[..., Any]
    forward_run: Callable[..., Any] | None
    autograd: bool
    domain: Domain


WRITES = "writes into"  # what is said of a function whose results are among its arguments


class WritesError(UsageError):
    """A function that writes its results into its arguments has no gradients."""


def of_kernel(kernel: Kernel, target: Any) -> Adapted:
    """Return the callable adapted to the kernel's record; raises UsageError."""
    return adapt(Candidate(target, kernel.name, OPS[kernel.op], parse(kernel.bind), kernel.contract, kernel.only))


def adapt(candidate: Candidate) -> Adapted:
    """Return the callable as a kernel of the operator; raises UsageError, in one line, if that is impossible.

    Examples
    --------
    >>> rms = adapt(Candidate(torch.nn.RMSNorm, "RMSNorm", OPS["rmsnorm_bwd"]))
    >>> x, w = torch.ones(2, 4), torch.ones(4)
    >>> given = {"dy": x, "x": x, "weight": w, "eps": 0.0, "normalized_shape": (4,), "frozen": ("weight",)}
    >>> gradients = rms.run(**given, weight_offset=0.0, rstd=None)
    >>> gradients["dx"].tolist() == torch.zeros(2, 4).tolist(), gradients["dweight"]
    (True, None)
    """
    candidate = _unwrapped(replace(candidate, target=_supported(candidate.target, candidate.name)))
    op = candidate.op
    if op.user_defined:
        _refuse_parameters(candidate)
    if op.forward is None:
        call, within = _forward(candidate)
        return Adapted(_kernel(call, candidate), None, False, within)
    if _is_backward(candidate):
        call, within = _function(candidate)
        return Adapted(_kernel(call, candidate), None, False, within)
    forward = replace(candidate, op=OPS[op.forward])
    try:
        call, within = _forward(forward, autograd=True)
    except UsageError as error:
        if isinstance(error, WritesError) or _is_class_or_module(candidate.target):
            raise
        taken = f"it has no argument for dy, so it is taken for a forward: --bind dy=<its argument> for {op.name}"
        raise UsageError(f"{error}; {taken}") from None
    within = replace(within, differentiated=tuple(differentiable(op)))
    return Adapted(_kernel(gradients.backward(call, op), candidate, "frozen"), _kernel(call, forward), True, within)


def _refuse_parameters(candidate: Candidate) -> None:
    """Raise UsageError for a module, whose parameters beside weight and bias would keep values of their own."""
    target, known = candidate.target, ("weight", "bias")
    own = [tensor.name for tensor in candidate.op.inputs if tensor.role == "weight" and tensor.name not in known]
    made = target if inspect.isclass(target) else type(target)
    if own and issubclass(made, torch.nn.Module):
        words = f"{candidate.name} is a module: its {' and '.join(own)} would not have the values of a case"
        raise UsageError(f"{words}; expected a function that takes {' and '.join(own)}, around what the module calls")


def _unwrapped(candidate: Candidate) -> Candidate:
    """Return a class for functools.partial of it: what is bound belongs to its constructor."""
    target, option = candidate.target, candidate.option
    if not isinstance(target, partial) or not inspect.isclass(target.func):
        return candidate
    option = replace(option, constants={**preset(target), **option.constants})
    return replace(candidate, target=target.func, option=option)


def _supported(target: Any, name: str) -> Any:
    """Return the target, or the autograd.Function whose `apply` it is; raises UsageError if it cannot be a kernel."""
    owner = getattr(target, "__self__", None)
    if inspect.isclass(owner) and issubclass(owner, torch.autograd.Function):
        return owner
    if inspect.isclass(target) and not issubclass(target, (torch.autograd.Function, torch.nn.Module)):
        which = f"{name} is a class, but neither an nn.Module nor a torch.autograd.Function"
        where, _, last = name.rpartition(":")
        instance = f"pass an instance, such as norm = {last}(…) and --kernel {where + ':' if where else ''}norm"
        raise UsageError(f"{which}; {instance if '__call__' in vars(target) else 'name a function that uses it'}")
    if type(target).__module__.partition(".")[0] == "triton":
        raise UsageError(
            f"{name} is a Triton kernel, which takes a grid and pointers: name a function that launches it"
        )
    return target


def _is_backward(candidate: Candidate) -> bool:
    """Return whether a function is itself a backward: it has an argument for dy, or takes anything."""
    target, name = candidate.target, candidate.name
    if _is_class_or_module(target):
        return False
    exact = [p for p in signature(target, name) if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return not exact or "dy" in candidate.option.names or any(meant(p.name, ("dy",)) for p in exact)


def _is_class_or_module(target: Any) -> bool:
    return inspect.isclass(target) or isinstance(target, torch.nn.Module)


def _forward(candidate: Candidate, *, autograd: bool = False) -> tuple[Call, Domain]:
    target = candidate.target
    if isinstance(target, torch.nn.Module) or (inspect.isclass(target) and issubclass(target, torch.nn.Module)):
        call, within = modules.adapt(candidate, autograd=autograd)
        return _with_names(call, candidate.op, candidate.option.returns), within
    return _function(candidate, autograd=autograd)


def offered(op: Op) -> tuple[str, ...]:
    """Return the names of what a callable may take."""
    return (*(tensor.name for tensor in op.inputs), *op.attrs, FEATURES)


def _function(candidate: Candidate, *, autograd: bool = False) -> tuple[Call, Domain]:
    """Return the call of a function, or of an autograd.Function's `apply`, and its domain."""
    target, name, op, contract = candidate.target, candidate.name, candidate.op, candidate.contract
    positional = inspect.isclass(target)
    function = target.apply if positional else target
    parameters = signature(target.forward if positional else target, name)
    if positional and target.setup_context is torch.autograd.Function.setup_context:
        parameters = parameters[1:]  # ctx
    outputs = tuple(t.name for t in op.outputs if t.name not in offered(op))
    binding = bind(candidate, parameters, offered(op), outputs=outputs, positional=positional)
    within = domain.of_function(candidate, binding, autograd=autograd)
    untold = within.tied == "untold"
    into = [n for n in outputs if n in binding.sources]
    if binding.plain and not (positional or untold or into or schema_of(target) is not None):
        return partial(make.call, target), within
    if autograd and into:
        raise WritesError(f"{name} {WRITES} {', '.join(into)}, which has no gradient: use --op {op.name}")

    def call(given: Mapping[str, Any]) -> Any:
        written = {n: blank(n, op, contract, given) for n in into}
        returned = binding.call(function, {**given, FEATURES: features(op, given), **written})
        return merged(returned, written, op) if written else returned

    named_call = _with_names(call, op, binding.returns)
    return _unasked(named_call, op) if untold else named_call, within


def _unasked(call: Call, op: Op) -> Call:
    """Return the call of a backward without an argument for bias: without a weight nothing asks it for dbias."""

    def answered(given: Mapping[str, Any]) -> Any:
        returned = call(given)
        outputs = named(returned, op) if given["weight"] is None else ""
        if isinstance(outputs, str) or outputs.get("dbias") is not None:
            return returned
        return {name: value for name, value in outputs.items() if name != "dbias"}

    return answered


def _kernel(call: Call, candidate: Candidate, *more: str) -> Callable[..., Any]:
    """Return what a Kernel runs: a function of all that the operator offers, by name, that wraps the target."""
    if isinstance(call, partial):  # a function that is called as it is
        return call.args[0]  # type: ignore[no-any-return]
    target = candidate.target

    def run(**given: Any) -> Any:
        return call(given)

    names = [n for n in (*offered(candidate.op), *more) if n != FEATURES]
    keyword = inspect.Parameter.KEYWORD_ONLY
    run.__signature__ = inspect.Signature([inspect.Parameter(n, keyword) for n in names])  # type: ignore[attr-defined]
    run.__wrapped__ = type(target) if isinstance(target, torch.nn.Module) else target  # type: ignore[attr-defined]
    return run


def _with_names(call: Call, op: Op, returns: tuple[str, ...]) -> Call:
    known = [t.name for t in op.outputs]
    for n in returns:
        if n not in (*known, "_"):
            raise UsageError(f"--bind … -> {', '.join(returns)}: {op.name} has no {n}; it has {', '.join(known)}")
    if not returns:
        return call

    def named_call(given: Mapping[str, Any]) -> Any:
        returned = call(given)
        own = fields_of(returned) or (returned if isinstance(returned, Mapping) else None)
        values = list(own.values() if own else returned if isinstance(returned, (tuple, list)) else [returned])
        if len(values) != len(returns):
            values = list(flat(returned))  # of (y, (mean, rstd))
        if len(values) != len(returns):
            raise TypeError(f"it returned {len(values)} values; --bind names {len(returns)}: {', '.join(returns)}")
        return {n: value for n, value in zip(returns, values, strict=True) if n != "_"}

    return named_call
