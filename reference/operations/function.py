"""An operator that a user writes in array operations: its four functions, and what must hold of it.

f takes x as rows (M, N), each tensor in its `DIMS`, and options by name; it returns y, and perhaps statistics of each
row. Its gradient is that of the tape, or the user's own. The truth is f, and its gradient, on float64; the bound is
the same lines on values that carry their error.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from inspect import Parameter, Signature
from typing import Any

import numpy as np

from verify_norm.reference.arithmetic import Arithmetic, finite_below
from verify_norm.reference.operations.carried import Carried, carried
from verify_norm.reference.operations.tape import Node, gradients
from verify_norm.reference.view import Array, rows

DIMS = ("MN", "N", "1")  # as x, one for each column, one number


@dataclass(frozen=True, eq=False)
class Own:
    """A user's operator.

    Parameters
    ----------
    function : f(x, …, *, option, …), in array operations.
    tensors : its tensors, x first, each with its dimensions: "MN" as x, "N" one for each column, "1" one number.
    options : its options.
    outputs : y and the statistics that it returns, in order.
    positive : the tensors whose values are positive.
    gradient : g(dy, x, …, *, option, …), which returns the gradients of all tensors in order; None for that of f.
    """

    function: Callable[..., Any]
    tensors: Mapping[str, str]
    options: tuple[str, ...]
    outputs: tuple[str, ...]
    positive: tuple[str, ...] = ()
    gradient: Callable[..., Any] | None = None

    def returned(self, tensors: list[Any], options: Mapping[str, Any]) -> list[Any]:
        """Return what f returns of tensors of any kind, in order."""
        return _listed(self.function(*tensors, **options))

    def pulled(self, dy: Any, tensors: list[Any], options: Mapping[str, Any]) -> list[Any]:
        """Return the gradients of ⟨dy, y⟩ with respect to all tensors."""
        if self.gradient is not None:
            return _listed(self.gradient(dy, *tensors, **options))
        tape: list[Node] = []
        arguments = [Node(tensor, tape) for tensor in tensors]
        y = self.returned(arguments, options)[0]
        if not isinstance(y, Node):  # a constant
            return [np.zeros(np.shape(tensor)) for tensor in tensors]
        return gradients(y, dy, arguments)

    def inside(self, v: Mapping[str, Any]) -> tuple[tuple[int, ...], list[Array]]:
        """Return the shape (M, N) of the rows, and the tensors as f takes them."""
        shape = rows(v["x"], v.get("normalized_shape")).shape
        return shape, [np.reshape(v[name], inner(dims, *shape)) for name, dims in self.tensors.items()]

    def carried(self, v: Mapping[str, Any]) -> list[Carried]:
        """Return the tensors with their errors; x, and what has its shape, has rows."""
        tensors, a = self.inside(v)[1], v["arithmetic"]
        return [carried(t, a, by_row=d == "MN") for t, d in zip(tensors, self.tensors.values(), strict=True)]

    def given(self, v: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of f among an operator's arguments."""
        return {name: v[name] for name in self.options}

    @np.errstate(all="ignore")
    def forward(self, v: Mapping[str, Any]) -> Any:
        """Return the truth of y and the statistics."""
        _, tensors = self.inside(v)
        return self._outputs(v, self.returned(tensors, self.given(v)))

    @np.errstate(all="ignore")
    def forward_error(self, v: Mapping[str, Any]) -> Any:
        """Return how far a kernel's y and statistics may be off, before y is rounded to its type."""
        a: Arithmetic = v["arithmetic"]
        y, *statistics = (_carried(output, a) for output in self.returned([*self.carried(v)], self.given(v)))
        underflow = a.narrow_tiny if a.stats_u else 0.0
        errors = [
            finite_below(s.delta + a.stats_u * s.largest + underflow, s.largest, a.narrow_huge) for s in statistics
        ]
        return self._outputs(v, [y.delta, *errors])

    def _outputs(self, v: Mapping[str, Any], values: list[Any]) -> Any:
        """Return y in the shape of x, and the statistics as one value a row, by name."""
        y, *statistics = values
        return _record(*self.outputs)(np.reshape(y, v["x"].shape), *(np.reshape(one, -1) for one in statistics))

    @np.errstate(all="ignore")
    def backward(self, v: Mapping[str, Any]) -> Any:
        """Return the truth of the gradients of all tensors."""
        shape, tensors = self.inside(v)
        return self._gradients(v, self.pulled(np.reshape(v["dy"], shape), tensors, self.given(v)))

    @np.errstate(all="ignore")
    def backward_error(self, v: Mapping[str, Any]) -> Any:
        """Return how far a kernel's gradients may be off, before they are rounded to their types."""
        a: Arithmetic = v["arithmetic"]
        dy = carried(np.reshape(v["dy"], self.inside(v)[0]), a, by_row=True)
        pulled = self.pulled(dy, [*self.carried(v)], self.given(v))
        return self._gradients(v, [_carried(gradient, a).delta for gradient in pulled])

    def _gradients(self, v: Mapping[str, Any], values: list[Any]) -> Any:
        """Return the gradients in the shapes of their tensors, by name."""
        shapes = [np.shape(v[name]) for name in self.tensors]
        return _record(*(f"d{name}" for name in self.tensors))(*map(np.reshape, values, shapes))


def inner(dims: str, M: int, N: int) -> tuple[int, ...]:
    """Return the shape of a tensor for rows (M, N).

    >>> inner("MN", 3, 5), inner("N", 3, 5), inner("1", 3, 5)
    ((3, 5), (5,), (1,))
    """
    return {"MN": (M, N), "N": (N,), "1": (1,)}[dims]


def _listed(returned: Any) -> list[Any]:
    """Return what a function returns as a list: of one, if it is no tuple or list."""
    return list(returned) if isinstance(returned, (tuple, list)) else [returned]


def _carried(value: Any, a: Arithmetic) -> Carried:
    return value if isinstance(value, Carried) else carried(value, a)


@lru_cache(None)
def _record(*names: str) -> Any:
    return namedtuple("Outputs", names)


@dataclass(frozen=True)
class Function:
    """One of the four functions of a user's operator, with the signature of an operator's reference."""

    own: Own
    way: str

    def __call__(self, **values: Any) -> Any:
        """Return what `Own` says."""
        return getattr(self.own, self.way)(values)

    @property
    def __name__(self) -> str:
        """The name of the function."""
        return self.way

    @property
    def __signature__(self) -> Signature:
        """What it takes, by name."""
        names = [*self.own.tensors, *self.own.options, "normalized_shape"]
        if self.way.startswith("backward"):
            names.insert(0, "dy")
        if self.way.endswith("error"):
            names.append("arithmetic")
        return Signature([Parameter(name, Parameter.KEYWORD_ONLY) for name in names])
