"""What can be wrong with a differentiable function besides its gradient's values, and what cannot be checked at all."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from verify_norm.dtypes import FORMATS
from verify_norm.registry import UsageError
from verify_norm.report.gradcheck import GradFinding

AGAIN = 64  # times √n·u: what another order of the same sums may change
FRACTIONS = (5 / 8, 6 / 8, 7 / 8)  # of dy: it is rounded anew in any arithmetic, and nothing can overflow


@dataclass(frozen=True, slots=True)
class Subject:
    """A function, its arguments, and the type to call it in.

    `arguments` are by name and in order; those in `points` are differentiated, and hold there their exact values.
    `inner`: the type that it computes in, where that is found to be a narrower one than it is called in.
    `outputs`: which of the floating-point tensors that it returns are looked at, where not all are.
    """

    name: str
    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    points: Mapping[str, Tensor]
    dtype: str
    keyword: bool = True
    inner: str = ""
    outputs: tuple[int, ...] | None = None

    @property
    def arithmetic(self) -> str:
        """The type whose rounding its values show."""
        return self.inner or self.dtype

    def call(self, changed: Mapping[str, Tensor]) -> list[Tensor]:
        """The function's outputs, with some arguments replaced; raises what the function raises."""
        found = tensors(self.raw(changed), self.name)
        return found if self.outputs is None else [found[i] for i in self.outputs]

    def raw(self, changed: Mapping[str, Tensor]) -> Any:
        """What the function returns."""
        values = {**self.arguments, **{n: self.cast(p) for n, p in self.points.items() if n not in changed}, **changed}
        return self.function(**values) if self.keyword else self.function(*values.values())

    def cast(self, values: Tensor) -> Tensor:
        """Values in the subject's type, in memory of their own."""
        return values.to(getattr(torch, self.dtype), copy=True)

    def leaves(self, frozen: Sequence[str] = ()) -> dict[str, Tensor]:
        """Fresh leaves at the point, all to be differentiated but those that are frozen."""
        return {name: self.cast(p).requires_grad_(name not in frozen) for name, p in self.points.items()}


def tensors(returned: Any, name: str) -> list[Tensor]:
    """The floating-point tensors that a function returned; raises UsageError where there is anything else."""
    values = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    for value in values:
        if not isinstance(value, Tensor):
            raise UsageError(
                f"{name} returns a {type(value).__name__}; it is to return a tensor, or a tuple of tensors"
            )
    outputs = [value for value in values if value.is_floating_point()]
    if not outputs:
        raise UsageError(f"{name} returns no floating-point tensor, so there is nothing to differentiate")
    return outputs


def validate(subject: Subject) -> list[Tensor]:
    """The outputs at the point, which tell what requires a gradient; raises UsageError where no check makes sense."""
    name, leaves = subject.name, subject.leaves()
    try:
        outputs = subject.call(leaves)
    except UsageError:
        raise
    except Exception as error:
        if "leaf Variable that requires grad" in str(error):
            raise UsageError(f"{name} mutates its input: {first_line(error)}") from error
        raise UsageError(f"{name} cannot be called: {type(error).__name__}: {first_line(error)}") from error
    for argument, leaf in leaves.items():
        if not torch.equal(leaf.detach(), subject.cast(subject.points[argument])):
            raise UsageError(f"{name} mutates its input {argument}: differences would be taken at another point")
    if not any(output.requires_grad for output in outputs):
        raise UsageError(f"{name} is not differentiable: what it returns has no grad_fn, whatever its inputs require")
    if not any(output.requires_grad and output.numel() for output in outputs):
        raise UsageError(f"{name} returns empty tensors, so there is nothing to check; give other inputs")
    if not all(output.isfinite().all() for output in outputs):
        raise UsageError(f"{name} returns NaN or infinity at the inputs it was given; give others")
    again = subject.call(subject.leaves())
    for first, second in zip(outputs, again, strict=True):
        allowed = AGAIN * math.sqrt(first.numel() or 1) * FORMATS[subject.dtype].u
        size = float(first.detach().abs().max()) if first.numel() else 0.0
        if first.shape != second.shape or not (first - second).abs().le(allowed * size).all():
            raise UsageError(f"{name} is random: two calls with the same input differ (dropout? seed it inside)")
    return outputs


def gradients(subject: Subject, dy: Sequence[Tensor], frozen: Sequence[str] = ()) -> dict[str, Tensor | None]:
    """The gradients of Σ⟨dy, y⟩ with respect to all that is not frozen; raises RuntimeError where autograd refuses."""
    return outputs_and_gradients(subject, dy, frozen)[1]


def outputs_and_gradients(subject: Subject, dy: Sequence[Tensor], frozen: Sequence[str] = ()
                          ) -> tuple[list[Tensor], dict[str, Tensor | None]]:  # fmt: skip
    """The outputs, and the gradients as above."""
    leaves = subject.leaves(frozen)
    wanted = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    outputs = subject.call(leaves)
    pairs = [(y, d) for y, d in zip(outputs, dy, strict=True) if y.requires_grad]
    if not pairs:
        return outputs, dict.fromkeys(wanted)
    found = torch.autograd.grad([y for y, _ in pairs], list(wanted.values()), [d for _, d in pairs],
                                allow_unused=True)  # fmt: skip
    return outputs, dict(zip(wanted, found, strict=True))


def watched(subject: Subject, dy: Sequence[Tensor]) -> tuple[dict[str, Tensor | None], list[GradFinding]]:
    """The gradients, and what the backward does besides: types before autograd mends them, arguments it writes to."""
    leaves, found = subject.leaves(), []
    kept = [d.clone() for d in dy]
    outputs = [(y, d) for y, d in zip(subject.call(leaves), dy, strict=True) if y.requires_grad]
    names = {id(leaf): name for name, leaf in leaves.items()}
    wrong: dict[str, str] = {}
    nodes = _nodes([y.grad_fn for y, _ in outputs])
    custom = {type(n)._forward_cls for n in nodes if isinstance(n, torch.autograd.function.BackwardCFunction)}  # type: ignore[attr-defined]
    try:
        with _recorded(custom, names, wrong):
            grads = torch.autograd.grad([y for y, _ in outputs], list(leaves.values()), [d for _, d in outputs],
                                        allow_unused=True)  # fmt: skip
    except Exception as error:
        message = f"the backward fails: {type(error).__name__}: {first_line(error)}"
        return {}, [GradFinding("signature", "", subject.dtype, message)]
    found += [GradFinding("signature", name, subject.dtype, text) for name, text in wrong.items()]
    if not all(torch.equal(d, k) for d, k in zip(dy, kept, strict=True)):
        found.append(GradFinding("mutation", "dy", subject.dtype, "the backward writes to dy, which is its caller's"))
    for name, leaf in leaves.items():
        if not torch.equal(leaf.detach(), subject.cast(subject.points[name])):
            found.append(GradFinding("mutation", name, subject.dtype, f"the backward writes to the input {name}"))
    return dict(zip(leaves, grads, strict=True)), found


def _nodes(roots: Sequence[Any]) -> list[Any]:
    seen: dict[int, Any] = {}
    waiting = [root for root in roots if root is not None]
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen[id(node)] = node
            waiting += [after for after, _ in node.next_functions if after is not None]
    return list(seen.values())


@contextmanager
def _recorded(functions: Iterable[Any], names: Mapping[int, str], wrong: dict[str, str]) -> Iterator[None]:
    """Sees what autograd.Functions return before autograd converts it, and enters gradients of a wrong type."""

    def recording(backward: Callable[..., Any]) -> Callable[..., Any]:
        def record(node: Any, *dy: Any) -> Any:
            returned = backward(node, *dy)
            values = list(returned) if isinstance(returned, tuple) else [returned]
            if len(values) > len(node.next_functions):  # it has one for each tensor, and None for other arguments
                values = [value for value in values if value is not None]
            if len(values) == len(node.next_functions):
                for value, (after, _) in zip(values, node.next_functions, strict=True):
                    leaf = getattr(after, "variable", None)
                    if (
                        isinstance(value, Tensor)
                        and leaf is not None
                        and value.dtype != leaf.dtype
                        and id(leaf) in names
                    ):
                        name = names[id(leaf)]
                        wrong[name] = f"the backward returns {value.dtype} for {name}, which is {leaf.dtype}"
            return returned

        return record

    kept = {function: inspect.getattr_static(function, "backward") for function in functions}
    try:
        for function in kept:
            function.backward = staticmethod(recording(function.backward))
        yield
    finally:
        for function, backward in kept.items():
            function.backward = backward


def consistency(subject: Subject, dy: Sequence[Tensor], grads: Mapping[str, Tensor | None]) -> list[GradFinding]:
    """The same gradients whatever the memory of dy, and whichever other inputs are frozen."""
    found, u = [], _precision(subject, dy, grads)
    strided = [_transposed(d) for d in dy]
    found += _same(subject, "layout", "dy is not contiguous (transposed)", grads, (grads, u), (strided, ()))
    expanded = [d[:1].expand_as(d) if d.dim() else d for d in dy]
    dense = gradients(subject, [e.contiguous() for e in expanded])
    found += _same(subject, "layout", "dy is expanded (a stride of 0)", dense, (grads, u), (expanded, ()))
    for name in grads if len(grads) > 1 else ():
        rest = {other: grad for other, grad in grads.items() if other != name}
        found += _same(subject, "frozen", f"{name} is frozen", rest, (grads, u), (dy, (name,)))
    return found


def _precision(subject: Subject, dy: Sequence[Tensor], grads: Mapping[str, Tensor | None]) -> dict[str, float]:
    """Each gradient's relative rounding: its type's u, or what it shows where AGAIN·u does not explain that.

    A right backward is linear in dy, so what is left of gradient(c·dy)/c − gradient(dy) is the rounding of whatever
    arithmetic computes it, as float32's in a function that takes float64. The point stays, so that no corner of the
    function adds to it; dy changes, so that it shows where a gradient depends on nothing else, as a bias's does.
    """
    u, shown = FORMATS[subject.dtype].u, dict.fromkeys(grads, 0.0)
    for c in FRACTIONS:
        for name, part in gradients(subject, [c * d for d in dy]).items():
            whole = grads[name]
            if part is not None and whole is not None and whole.any():
                off = float((part.double() / c - whole.double()).abs().max())
                shown[name] = max(shown[name], off / float(whole.abs().max()))
    return {name: rounding if rounding > AGAIN * u else u for name, rounding in shown.items()}


def _transposed(d: Tensor) -> Tensor:
    """The same values, in memory whose order of dimensions is reversed; of one dimension, every other element."""
    if d.dim() > 1:
        return d.permute(*reversed(range(d.dim()))).contiguous().permute(*reversed(range(d.dim())))
    return torch.stack([d, d], -1)[..., 0] if d.dim() else d


def _same(subject: Subject, check: str, when: str, want: Mapping[str, Tensor | None],
          size: tuple[Mapping[str, Tensor | None], Mapping[str, float]],
          given: tuple[Sequence[Tensor], Sequence[str]]) -> list[GradFinding]:  # fmt: skip
    """Where the gradients are not `want`: `size` is how large they are, and how precise; `given`, what is special."""
    grads, u = size
    finding = GradFinding(check, "", subject.dtype, "")
    try:
        got = gradients(subject, *given)
    except Exception as error:
        return [replace(finding, message=f"the backward fails where {when}: {first_line(error)}")]
    found = []
    for name, expected in want.items():
        actual, scale = got.get(name), grads[name]
        if expected is None or scale is None:
            continue
        if actual is None:
            found.append(replace(finding, output=name, message=f"the gradient of {name} is None where {when}"))
            continue
        off = float((actual.double() - expected.double()).abs().max()) if actual.numel() else 0.0
        allowed = AGAIN * math.sqrt(expected.numel()) * u[name] * float(max(scale.abs().max(), expected.abs().max()))
        if not off <= allowed:
            message = (
                f"the gradient of {name} differs by {off:.3g} where {when}; another order of sums gives {allowed:.2g}"
            )
            found.append(replace(finding, output=name, message=message))
    return found


def first_line(error: BaseException) -> str:
    """Of an error's message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "(no message)"
