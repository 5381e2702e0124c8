"""What must hold of a user's operator before it may judge a kernel: tried at a few rows of usual values."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from verify_norm.reference.arithmetic import Arithmetic
from verify_norm.reference.operations.carried import carried
from verify_norm.reference.operations.function import Own, inner
from verify_norm.reference.operations.operand import SELECTS, VALUES, Complex, Operand, unwrapped
from verify_norm.reference.view import Array

STEP = 1e-200  # of a complex step: its square vanishes
AGREE = 1e-9  # of the sum of |terms|: float64 is off by some 1e-15 of it
POINTS = ((3, 5), (2, 8), (4, 1))  # shapes of x
SINGLE = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4e38)

Point = tuple[list[Array], dict[str, float]]


class Noting(Operand):
    """An array that notes the names of the operations that it meets."""

    def __init__(self, value: Any, names: set[str]) -> None:
        self.value, self.names = value, names

    def apply(self, name: str, *args: Any) -> Any:
        """Return the result, and note the operation."""
        self.names.add(name)
        return Noting(VALUES[name](*unwrapped(args, Noting)), self.names)


def points(own: Own) -> Iterator[Point]:
    """Yield tensors and options: values of both signs, none of them near 0, and 1/8 for each option."""
    rng = np.random.default_rng(5)
    for M, N in POINTS:
        draws = {name: rng.standard_normal(inner(dims, M, N)) for name, dims in own.tensors.items()}
        signs = {name: 1.0 if name in own.positive else np.sign(v) for name, v in draws.items()}
        yield [signs[n] * (0.5 + np.abs(v)) for n, v in draws.items()], dict.fromkeys(own.options, 0.125)


@cache
def selects(own: Own) -> bool:
    """Return whether f takes a maximum or compares: a kernel may then pass over NaN.

    >>> [selects(Own(f, {"x": "MN"}, (), ("y",))) for f in (lambda x: np.maximum(x, 0.0), lambda x: np.tanh(x))]
    [True, False]
    """
    names: set[str] = set()
    for tensors, options in points(own):
        own.returned([Noting(tensor, names) for tensor in tensors], options)
    return bool(names & set(SELECTS))


@np.errstate(all="ignore")
def complaint(own: Own) -> str | None:
    """Return what does not hold of an operator, in words; None if all does.

    Its outputs have their shapes, a row of them depends on that row alone, and its gradients are those of f. Raises
    UnknownOperationError where an operation has no rule, and what f raises.
    """
    for tensors, options in points(own):
        words = _shapes(own, tensors, options) or _slopes(own, tensors, options)
        if words:
            return words
    return None


def _shapes(own: Own, tensors: list[Array], options: dict[str, float]) -> str | None:
    """Return in words which output has a wrong shape, is not finite, or depends on other rows; None if none does."""
    (M, N), outputs = tensors[0].shape, own.returned([carried(tensor, SINGLE) for tensor in tensors], options)
    if len(outputs) != len(own.outputs):
        return f"expected {len(own.outputs)} outputs ({', '.join(own.outputs)}), got {len(outputs)}"
    first_rows = [t[:1] if dims == "MN" else t for t, dims in zip(tensors, own.tensors.values(), strict=True)]
    of_first_row = own.returned(first_rows, options)
    for place, (name, output, first) in enumerate(zip(own.outputs, outputs, of_first_row, strict=True)):
        shapes = [(M, 1), (M,)] if place else [(M, N)]
        if np.shape(output) not in shapes:
            words = " or ".join(map(str, shapes))
            return f"{name}: expected the shape {words} for x of {(M, N)}, got {np.shape(output)}"
        value = getattr(output, "value", output)
        if not np.isfinite(value).all():
            return f"{name} is not finite at usual values; positive= names tensors above 0"
        if not (np.abs(first - value[:1]) <= AGREE * np.abs(first)).all():
            return f"{name} of a row depends on other rows: expected reductions over the last axis alone"
    return None


def _slopes(own: Own, tensors: list[Array], options: dict[str, float]) -> str | None:
    """Compare ⟨dy, ∂y/∂t·v⟩, by a complex step, with ⟨dt, v⟩ for each tensor t along a random v."""
    rng = np.random.default_rng(7)
    dy = rng.standard_normal(tensors[0].shape)
    gradients = own.pulled(dy, tensors, options)
    own.pulled(carried(dy, SINGLE), [carried(tensor, SINGLE) for tensor in tensors], options)  # each step has a rule
    if len(gradients) != len(tensors):
        return f"expected {len(tensors)} gradients, of {', '.join(own.tensors)}, got {len(gradients)}"
    for place, (name, tensor, gradient) in enumerate(zip(own.tensors, tensors, gradients, strict=True)):
        if np.shape(gradient) != tensor.shape:
            return f"d{name}: expected the shape {tensor.shape} of {name}, got {np.shape(gradient)}"
        v = rng.standard_normal(tensor.shape)
        stepped = [Complex(t + 1j * STEP * v) if i == place else t for i, t in enumerate(tensors)]
        y = own.returned(stepped, options)[0]
        if isinstance(y, Complex):
            change, size = np.imag(y.value) / STEP, np.abs(y.value)
        else:  # y does not depend on the tensor
            change, size = 0.0, np.abs(y)
        want, got = float(np.sum(dy * change)), float(np.sum(gradient * v))
        terms = np.sum(np.abs(dy * change)) + np.sum(np.abs(dy) * size) * np.abs(v).max()  # also of those that cancel
        if not abs(want - got) <= AGREE * terms:
            return f"d{name} along a random direction is {got:.6g}; by a complex step of f it is {want:.6g}"
    return None
