"""The decorator `kernel`, which declares what a callable computes and promises."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from verify_norm.core.contract import Contract
from verify_norm.core.errors import UsageError
from verify_norm.core.kernel import Kernel
from verify_norm.core.spec import CaseSpec

F = TypeVar("F", bound=Callable[..., object])


def kernel(
    op: str = "",
    *,
    contract: Contract | None = None,
    bind: str = "",
    forward: str | None = None,
    unsupported: Callable[[CaseSpec], str | None] | None = None,
    only: str = "",
    summary: str = "",
) -> Callable[[F], F]:
    """Return a decorator that declares what a callable computes and promises; the callable itself does not change.

    `op` is optional where the name tells; `forward` names the kernel whose gradient a backward computes;
    `unsupported(spec)` returns why the kernel does not take a case, or None; `only` says which cases it takes, as
    "N%8=0" (`verify-norm show only`); `bind` is as in `verify`.

    >>> @kernel(op="rmsnorm_fwd", contract=Contract(xhat="x"))
    ... def fused(x, weight, eps): ...
    >>> fused.__verify_norm__.op
    'rmsnorm_fwd'
    """
    if callable(op):  # a decorator without parentheses
        raise UsageError(
            f"kernel: expected the name of an operator, as @verify_norm.kernel(op='rmsnorm_fwd'), got {op!r:.60}"
        )
    promised = contract or Contract()
    declared = Kernel("", op, "", contract=promised, bind=bind, forward=forward, unsupported=unsupported, only=only)

    def declare(function: F) -> F:
        name = str(getattr(function, "__qualname__", type(function).__name__))
        function.__verify_norm__ = replace(declared, name=name, summary=summary)  # type: ignore[attr-defined]
        return function

    return declare
