"""What the autograd functions and operators of torch here share."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction, once_differentiable

NAMESPACE = __name__.partition(".")[0]  # "verify_norm", of torch's operators; a copy of the package has its own


def once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return `once_differentiable` of a backward, but quick where no graph of the gradients is recorded.

    Torch's refuses to differentiate gradients only if the cotangent depends on something. They depend on x in any case,
    and a gradient penalty of a frozen head would silently lack its second derivatives.
    """
    strict = once_differentiable(backward)

    @functools.wraps(backward)
    def either(ctx: Any, *grads: Tensor | None) -> Any:
        if not torch.is_grad_enabled():
            return backward(ctx, *grads)
        return strict(ctx, *(g if g is None else g.detach().requires_grad_() for g in grads))

    return either


def applied(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return what applies a function as its `apply` does, which serves torch.func and setup_context in Python first.

    That takes a third of the time (https://github.com/pytorch/pytorch/issues/189573).
    """
    direct = super(_SingleLevelFunction, function).apply  # type: ignore[misc]  # torch's wrapper overrides it
    unwrap = torch._C._functorch.unwrap_if_dead

    def apply(*args: Any) -> Any:
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return function.apply(*args)
        return direct(*[unwrap(t) if isinstance(t, Tensor) else t for t in args])

    return apply


def recorded() -> bool:
    """Return whether autograd may record a call: for gradients, or for tangents, which no_grad does not end.

    Recording takes as long as the rest of a call on the host.
    """
    return torch.is_grad_enabled() or forward_ad._current_level >= 0
