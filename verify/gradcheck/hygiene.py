"""What can be wrong with a differentiable function besides its gradient's values, and what cannot be checked at all."""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from verify_norm.core.dtypes import FORMATS
from verify_norm.core.errors import UsageError, first_line, one_line
from verify_norm.gradcheck.report import GradFinding
from verify_norm.gradcheck.subject import Subject, backward, gradients

AGAIN = 64  # times √n·u: how far another order of the same sums may be off
SCALE = {"": 2.0**12, "float16": 2.0**3}  # of dy, for example by a scaled loss; float16 overflows soon
EXACT = 4  # times u: how far the same sums may be off, by numbers that underflow in one of them
FRACTIONS = (5 / 8, 6 / 8, 7 / 8)  # of dy: each is rounded anew in any arithmetic, and nothing can overflow

# dimensions along which dy is repeated: by .sum(0), by .sum(-1), by a sum over those between the first and the last
EXPANDED = (slice(0, 1), "first dimension"), (slice(-1, None), "last dimension"), (slice(1, -1), "inner dimensions")

Grads = Mapping[str, Tensor | None]


def validate(subject: Subject) -> list[Tensor]:
    """Return the outputs at the point; raises UsageError where no check makes sense."""
    name, leaves = subject.name, subject.leaves()
    try:
        outputs = subject.call(leaves)
    except UsageError:
        raise
    except Exception as error:
        if "leaf Variable that requires grad" in str(error):
            raise UsageError(f"{name} mutates its input: {first_line(error)}") from error
        raise UsageError(f"{name} cannot be called: {one_line(error)}") from error
    for argument in _mutated(subject, leaves):
        raise UsageError(f"{name} mutates its input {argument}, which moves the point of the differences")
    if not any(output.requires_grad for output in outputs):
        raise UsageError(f"{name} is not differentiable: its outputs have no grad_fn, although its inputs require grad")
    if not any(output.requires_grad and output.numel() for output in outputs):
        raise UsageError(f"{name} returns empty tensors, so there is nothing to check; use other inputs")
    if not all(output.isfinite().all() for output in outputs):
        raise UsageError(f"{name} returns NaN or infinity at these inputs; use others")
    again = subject.call(subject.leaves())
    for first, second in zip(outputs, again, strict=True):
        allowed = AGAIN * math.sqrt(first.numel() or 1) * FORMATS[subject.dtype].u
        size = float(first.detach().abs().max()) if first.numel() else 0.0
        if first.shape != second.shape or not (first - second).abs().le(allowed * size).all():
            raise UsageError(f"{name} is random: two calls with the same input differ (dropout? seed it inside)")
    return outputs


def watched(subject: Subject, dy: Sequence[Tensor]) -> tuple[dict[str, Tensor | None], list[GradFinding]]:
    """Return the gradients, and findings on the backward: types that autograd would convert, arguments it writes to."""
    leaves, wrong = subject.leaves(), dict[str, str]()
    kept = [d.clone() for d in dy]
    outputs = subject.call(leaves)
    names = {id(leaf): name for name, leaf in leaves.items()}
    nodes = _nodes([y.grad_fn for y in outputs if y.grad_fn is not None])  # an input that it returns has none
    custom = {type(n)._forward_cls for n in nodes if isinstance(n, torch.autograd.function.BackwardCFunction)}  # type: ignore[attr-defined]
    try:
        with _recorded(custom, names, wrong):
            grads = backward(outputs, dy, leaves)
    except Exception as error:
        return {}, [GradFinding("signature", "", subject.dtype, f"the backward fails: {one_line(error)}")]
    found = [("signature", name, text) for name, text in wrong.items()]
    if not all(torch.equal(d, k) for d, k in zip(dy, kept, strict=True)):
        found.append(("mutation", "dy", "the backward writes to dy, which its caller owns"))
    found += [("mutation", name, f"the backward writes to the input {name}") for name in _mutated(subject, leaves)]
    return grads, [GradFinding(check, name, subject.dtype, text) for check, name, text in found]


def _mutated(subject: Subject, leaves: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the leaves that no longer hold the point."""
    return [name for name, leaf in leaves.items() if not torch.equal(leaf.detach(), subject.cast(subject.points[name]))]


def _nodes(roots: Sequence[Any]) -> set[Any]:
    seen: set[Any] = set()
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += [after for after, _ in node.next_functions if after is not None]
    return seen


@contextmanager
def _recorded(functions: Iterable[Any], names: Mapping[int, str], wrong: dict[str, str]) -> Iterator[None]:
    """Record in `wrong`, by leaf name, gradients of a wrong type that these autograd.Functions return."""

    def record(original: Callable[..., Any], node: Any, *dy: Any) -> Any:
        returned = original(node, *dy)
        values = list(returned) if isinstance(returned, tuple) else [returned]
        if len(values) > len(node.next_functions):  # there is one for each tensor, and None for other arguments
            values = [value for value in values if value is not None]
        for value, (after, _) in zip(values, node.next_functions, strict=False):  # autograd refuses another number
            leaf = getattr(after, "variable", None)
            name = names.get(id(leaf))
            if isinstance(value, Tensor) and leaf is not None and name is not None and value.dtype != leaf.dtype:
                wrong[name] = f"the backward returns {value.dtype} for {name}, which is {leaf.dtype}"
        return returned

    kept = {function: inspect.getattr_static(function, "backward") for function in functions}
    try:
        for function in kept:
            function.backward = staticmethod(partial(record, function.backward))
        yield
    finally:
        for function, original in kept.items():
            function.backward = original


def consistency(subject: Subject, dy: Sequence[Tensor], grads: Grads, u: Mapping[str, float]) -> list[GradFinding]:
    """Return findings where the gradients, of these precisions, are not the same linear function of every dy.

    Neither dy's memory nor which inputs are frozen may matter; rows of zeros, for example of masked tokens, and a
    loss that is scaled are no other case.
    """

    def differing(
        check: str, when: str, want: Grads, dy: Sequence[Tensor], frozen: Sequence[str] = (), sums: float = AGAIN
    ) -> None:
        # A sum dy + t loses a t below a rounding of dy, and keeps it where dy is 0: a softmax near 1 has dy − Σ y·dy.
        inside = FORMATS["float64" if subject.arithmetic == "float64" else "float32"].u
        absorbed = inside * max(map(_largest, dy), default=0.0)
        try:
            got = gradients(subject, dy, frozen)
        except Exception as error:
            found.append(GradFinding(check, "", subject.dtype, f"the backward fails where {when}: {first_line(error)}"))
            return
        for name, expected in want.items():
            actual, scale = got.get(name), grads[name]
            if expected is None or scale is None:
                continue
            if actual is None:
                found.append(GradFinding(check, name, subject.dtype, f"the gradient of {name} is None where {when}"))
                continue
            off = float(_apart(actual, expected).max()) if actual.numel() else 0.0
            size = max(_largest(scale), _largest(expected))
            allowed = max(sums * math.sqrt(expected.numel()), EXACT) * u[name] * size + EXACT * absorbed
            if not off <= allowed:
                message = f"the gradient of {name} differs by {off:.3g} where {when}; allowed for sums in another order"
                found.append(GradFinding(check, name, subject.dtype, f"{message}: {allowed:.2g}"))

    found: list[GradFinding] = []
    differing("layout", "dy is not contiguous (transposed)", grads, [_transposed(d) for d in dy])
    for which, words in EXPANDED:
        if not any(range(d.dim())[which] for d in dy):
            continue
        expanded = [_expanded(d, which) for d in dy]
        dense = gradients(subject, [e.contiguous() for e in expanded])
        differing("layout", f"dy is expanded along its {words} (a stride of 0)", dense, expanded)
    factor = SCALE["float16" if "float16" in (subject.dtype, subject.inner) else ""]
    scaled = {name: None if g is None else factor * g for name, g in grads.items()}
    differing("linear", f"dy is {factor:g} times as large", scaled, [factor * d for d in dy], sums=0)
    even, odd = ([_masked(d, parity) for d in dy] for parity in (0, 1))
    others = gradients(subject, odd)
    rest = {n: None if g is None or (part := others.get(n)) is None else g - part for n, g in grads.items()}
    differing("linear", "dy is 0 in every other row", rest, even)
    for name in grads if len(grads) > 1 else ():
        rest = {other: grad for other, grad in grads.items() if other != name}
        differing("frozen", f"{name} is frozen", rest, dy, frozen=(name,))
    return found


def finite(subject: Subject, grads: Grads) -> list[GradFinding]:
    """Return a finding for each gradient with NaN or infinity; the outputs are finite at this point."""
    found = []
    for name, gradient in grads.items():
        wrong = torch.zeros(()) if gradient is None else ~gradient.isfinite()
        if gradient is None or not wrong.any():
            continue
        first = tuple(wrong.nonzero()[0].tolist())
        place = ", ".join(map(str, first))
        at, value = float(subject.points[name][first]), float(gradient[first])
        message = (
            f"the gradient of {name} is {value} at [{place}], where {name} is {at:.6g} and the outputs are finite; "
            f"{int(wrong.sum())} of {wrong.numel()} elements are NaN or infinite; expected finite gradients"
        )
        found.append(GradFinding("value", name, subject.dtype, message))
    return found


def _apart(a: Tensor, b: Tensor) -> Tensor:
    """Return |a − b|, 0 where both are the same infinity or both NaN."""
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, (a.double() - b.double()).abs())


def _largest(values: Tensor) -> float:
    """Return the largest finite magnitude, or 0."""
    return float(torch.where(values.isfinite(), values.double().abs(), 0.0).max()) if values.numel() else 0.0


def precision(subject: Subject, dy: Sequence[Tensor], grads: Grads) -> dict[str, float]:
    """Return each gradient's relative rounding: its type's u, or the observed one where that exceeds AGAIN·u.

    A right backward is linear in dy, so gradient(c·dy)/c − gradient(dy) is the rounding of whatever arithmetic computes
    it, such as float32 in a function that takes float64. The point stays, so that no corner of the function adds to it;
    dy changes, so that the rounding shows where a gradient depends on nothing else, as a bias's does.
    """
    u, shown = FORMATS[subject.dtype].u, dict.fromkeys(grads, 0.0)
    for c in FRACTIONS:
        for name, part in gradients(subject, [c * d for d in dy]).items():
            whole = grads[name]
            if part is not None and whole is not None and _largest(whole):
                off = (part.double() / c - whole.double()).abs()
                shown[name] = max(shown[name], _largest(off) / _largest(whole))
    return {name: rounding if rounding > AGAIN * u else u for name, rounding in shown.items()}


def _expanded(d: Tensor, which: slice) -> Tensor:
    """Return a part of dy, repeated along these of its dimensions."""
    axes = range(d.dim())[which]
    return d[tuple(slice(0, 1 if axis in axes else None) for axis in range(d.dim()))].expand_as(d)


def _masked(d: Tensor, parity: int) -> Tensor:
    """Return dy with zeros in the rows of the other parity; in all of it where it is a single number."""
    rows = torch.arange(len(d) if d.dim() else 1, device=d.device) % 2 == parity
    return torch.where(rows.reshape(-1, *[1] * (d.dim() - 1)) if d.dim() else rows[0], d, 0)


def _transposed(d: Tensor) -> Tensor:
    """Return the same values in memory with its dimensions reversed; of one dimension, in every other element."""
    if d.dim() > 1:
        order = tuple(reversed(range(d.dim())))
        return d.permute(order).contiguous().permute(order)
    return torch.stack([d, d], -1)[..., 0] if d.dim() else d
