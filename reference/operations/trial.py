"""What must hold of a user's operator before it may judge a kernel: tried at a few rows of usual values."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from verify_norm.reference.arithmetic import Arithmetic
from verify_norm.reference.operations.carried import carried
from verify_norm.reference.operations.function import Own, inner
from verify_norm.reference.operations.operand import SELECTS, VALUES, Complex, Operand
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
        return Noting(VALUES[name](*_bare(args)), self.names)


def _bare(args: Any) -> list[Any]:
    return [one.value if isinstance(one, Noting) else _bare(one) if isinstance(one, list) else one for one in args]


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
        own.returned([Noting(one, names) for one in tensors], options)
    return bool(names & set(SELECTS))


@np.errstate(all="ignore")
def complaint(own: Own) -> str | None:
    """Return what does not hold of an operator, in words; None if all does.

    Its outputs have their shapes, a row of them depends on that row alone, and its gradients are those of f. Raises
    UnknownOperationError where an operation has no rule, and what f raises.
    """
    return next((words for point in points(own) if (words := _shapes(own, *point) or _slopes(own, *point))), None)


def _shapes(own: Own, tensors: list[Array], options: dict[str, float]) -> str | None:
    (M, N), made = tensors[0].shape, own.returned([carried(one, SINGLE) for one in tensors], options)
    if len(made) != len(own.outputs):
        return f"expected {len(own.outputs)} outputs ({', '.join(own.outputs)}), got {len(made)}"
    alone = own.returned(
        [t[:1] if d == "MN" else t for t, d in zip(tensors, own.tensors.values(), strict=True)], options
    )
    for place, (name, one, first) in enumerate(zip(own.outputs, made, alone, strict=True)):
        right = [(M, 1), (M,)] if place else [(M, N)]
        if np.shape(one) not in right:
            words = " or ".join(map(str, right))
            return f"{name}: expected the shape {words} for x of {(M, N)}, got {np.shape(one)}"
        value = getattr(one, "value", one)
        if not np.isfinite(value).all():
            return f"{name} is not finite at usual values; positive= names tensors above 0"
        if not (np.abs(first - value[:1]) <= AGREE * np.abs(first)).all():
            return f"{name} of a row depends on other rows: expected reductions over the last axis alone"
    return None


def _slopes(own: Own, tensors: list[Array], options: dict[str, float]) -> str | None:
    """Compare ⟨dy, ∂y/∂t·v⟩, by a complex step, with ⟨dt, v⟩ for each tensor t along a random v."""
    rng = np.random.default_rng(7)
    dy = rng.standard_normal(tensors[0].shape)
    found = own.pulled(dy, tensors, options)
    own.pulled(carried(dy, SINGLE), [carried(one, SINGLE) for one in tensors], options)
    if len(found) != len(tensors):
        return f"expected {len(tensors)} gradients, of {', '.join(own.tensors)}, got {len(found)}"
    for place, (name, at, slope) in enumerate(zip(own.tensors, tensors, found, strict=True)):
        if np.shape(slope) != at.shape:
            return f"d{name}: expected the shape {at.shape} of {name}, got {np.shape(slope)}"
        v = rng.standard_normal(at.shape)
        stepped = [Complex(t + 1j * STEP * v) if i == place else t for i, t in enumerate(tensors)]
        y = own.returned(stepped, options)[0]
        change, size = (np.imag(y.value) / STEP, np.abs(y.value)) if isinstance(y, Complex) else (0.0, np.abs(y))
        want, got = float(np.sum(dy * change)), float(np.sum(slope * v))
        terms = np.sum(np.abs(dy * change)) + np.sum(np.abs(dy) * size) * np.abs(v).max()  # also of those that cancel
        if not abs(want - got) <= AGREE * terms:
            return f"d{name} along a random direction is {got:.6g}; by a complex step of f it is {want:.6g}"
    return None
