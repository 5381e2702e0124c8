"""The function under check: its arguments, the type it is called in, its outputs and gradients."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from verify_norm.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Subject:
    """A function, its arguments by name and in order, and the type to call it in.

    The arguments in `points` are differentiated, and lie on grids of the spacings `grids`. `inner` is the type that the
    function computes in, where that is narrower. `outputs` selects floating-point tensors that it returns, by position.
    """

    name: str
    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    points: Mapping[str, Tensor]
    dtype: str
    keyword: bool = True
    inner: str = ""
    outputs: tuple[int, ...] | None = None
    grids: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def arithmetic(self) -> str:
        """The type whose rounding its values show."""
        return self.inner or self.dtype

    def call(self, changed: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the function's outputs, with some arguments replaced; raises what the function raises."""
        found = tensors(self.raw(changed), self.name)
        return found if self.outputs is None else [found[i] for i in self.outputs]

    def raw(self, changed: Mapping[str, Tensor]) -> Any:
        """Return what the function returns, with some arguments replaced."""
        values = {**self.arguments, **{n: self.cast(p) for n, p in self.points.items() if n not in changed}, **changed}
        return self.function(**values) if self.keyword else self.function(*values.values())

    def cast(self, values: Tensor) -> Tensor:
        """Return a copy of the values in the subject's type."""
        return values.to(getattr(torch, self.dtype), copy=True)

    def leaves(self, frozen: Sequence[str] = ()) -> dict[str, Tensor]:
        """Return fresh leaves at the point; all but the frozen ones require a gradient."""
        return {name: self.cast(p).requires_grad_(name not in frozen) for name, p in self.points.items()}


def tensors(returned: Any, name: str) -> list[Tensor]:
    """Return the floating-point tensors that a function returned; raises UsageError where there is anything else."""
    values = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    for value in values:
        if not isinstance(value, Tensor):
            raise UsageError(f"{name} returns a {type(value).__name__}; expected a tensor or a tuple of tensors")
    outputs = [value for value in values if value.is_floating_point()]
    if not outputs:
        raise UsageError(f"{name} returns no floating-point tensor, so there is nothing to differentiate")
    return outputs


def gradients(subject: Subject, dy: Sequence[Tensor], frozen: Sequence[str] = ()) -> dict[str, Tensor | None]:
    """Return the gradients of Σ⟨dy, y⟩ with respect to all inputs that are not frozen; raises what autograd raises."""
    leaves = subject.leaves(frozen)
    return backward(subject.call(leaves), dy, {name: leaf for name, leaf in leaves.items() if leaf.requires_grad})


def backward(outputs: Sequence[Tensor], dy: Sequence[Tensor], leaves: Mapping[str, Tensor]) -> dict[str, Tensor | None]:
    """Return the gradients of Σ⟨dy, y⟩ with respect to the leaves; None where nothing depends on a leaf."""
    pairs = [(y, d) for y, d in zip(outputs, dy, strict=True) if y.requires_grad]
    if not pairs:
        return dict.fromkeys(leaves)
    ys, cotangents = zip(*pairs, strict=True)
    found = torch.autograd.grad(ys, list(leaves.values()), cotangents, allow_unused=True)
    return dict(zip(leaves, found, strict=True))
