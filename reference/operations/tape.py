"""The gradient of a function in array operations, by the chain rule from its last operation to its first.

A `Node` records each operation. Its pullback is in array operations again, so it runs on float64, where it is the
truth, and on values that carry an error (`carried`), where it is the bound. |x| has the gradient ±1 and a maximum that
of the element it takes; where elements tie, the bound covers each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from verify_norm.reference.operations.operand import COMPARISONS, Operand, axes_of, call, unwrapped


class Node(Operand):
    """The result of an operation, or an argument, on a tape that keeps all of them in their order."""

    rank = 2

    def __init__(self, value: Any, tape: list[Node], name: str = "", args: tuple[Any, ...] = ()) -> None:
        self.value, self.tape, self.name, self.args = value, tape, name, args
        tape.append(self)

    def apply(self, name: str, *args: Any) -> Any:
        """Return the result on the tape; that of a comparison is not on it, since it has no gradient."""
        value = call(name, *unwrapped(args, Node))
        return value if name in COMPARISONS else Node(value, self.tape, name, args)


def gradients(y: Node, dy: Any, arguments: list[Node]) -> list[Any]:
    """Return the gradients of ⟨dy, y⟩ with respect to arguments of the tape; 0 for one that y does not depend on.

    >>> tape = []
    >>> x, w = Node(np.array([[1.0, 2.0]]), tape), Node(np.array([3.0, 4.0]), tape)
    >>> [one.tolist() for one in gradients(w * x * x, np.ones((1, 2)), [x, w])]
    [[[6.0, 16.0]], [1.0, 4.0]]
    """
    sums: dict[int, Any] = {id(y): dy}  # by node: the gradient that has arrived at it so far
    for node in reversed(y.tape):
        g = sums.get(id(node))
        if g is None or not node.name:
            continue
        for argument, part in PULLS[node.name](g, node.value, node.args):
            if isinstance(argument, Node):
                part = _summed(part, argument.shape)
                sums[id(argument)] = part if id(argument) not in sums else sums[id(argument)] + part
    return [sums.get(id(argument), np.zeros(argument.shape)) for argument in arguments]


def _summed(g: Any, shape: tuple[int, ...]) -> Any:
    """Return the gradient of an array of this shape, which was broadcast to the shape of g."""
    wide = np.shape(g.value if isinstance(g, Operand) else g)
    lead = len(wide) - len(shape)
    axes = (*range(lead), *(lead + i for i, n in enumerate(shape) if n == 1 and wide[lead + i] != 1))
    return np.reshape(np.sum(g, axis=axes, keepdims=True), shape) if axes else g


def _spread(g: Any, a: Any, axis: Any, keepdims: bool) -> Any:
    """Return the gradient of a reduction's result, broadcast to its argument."""
    shape = [1 if i in axes_of(axis, a.ndim) else n for i, n in enumerate(a.shape)]
    return np.broadcast_to(g if keepdims else np.reshape(g, tuple(shape)), a.shape)


def _plain(rule: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
    """Return a rule (g, out, *values) -> gradients, in the order of the values, as a function of the nodes."""
    return lambda g, out, args: zip(args, rule(g, out, *unwrapped(args, Node)), strict=False)


def _concatenated(g: Any, out: Any, args: tuple[Any, ...]) -> Any:
    arrays, axis = args
    start = 0
    for array in arrays:
        end = start + np.shape(array.value if isinstance(array, Operand) else array)[axis]
        yield array, g[(slice(None),) * (axis % len(out.shape)) + (slice(start, end),)]
        start = end


def _chosen(g: Any, condition: Any) -> tuple[Any, Any]:
    return np.where(condition, g, 0.0), np.where(condition, 0.0, g)


PULLS: dict[str, Callable[..., Any]] = {
    "add": _plain(lambda g, out, a, b: (g, g)),
    "subtract": _plain(lambda g, out, a, b: (g, -g)),
    "multiply": _plain(lambda g, out, a, b: (g * b, g * a)),
    "divide": _plain(lambda g, out, a, b: (g / b, -(g * out) / b)),
    "negative": _plain(lambda g, out, a: (-g,)),
    "absolute": _plain(lambda g, out, a: (np.where(a > 0, g, -g),)),
    "sqrt": _plain(lambda g, out, a: (0.5 * g / out,)),
    "exp": _plain(lambda g, out, a: (g * out,)),
    "log": _plain(lambda g, out, a: (g / a,)),
    "tanh": _plain(lambda g, out, a: (g * (1.0 - out * out),)),
    "raised": _plain(lambda g, out, a, p: (g * (p * np.power(a, p - 1)),)),
    "maximum": _plain(lambda g, out, a, b: _chosen(g, a > b)),
    "minimum": _plain(lambda g, out, a, b: _chosen(g, a < b)),
    "where": _plain(lambda g, out, condition, a, b: (None, *_chosen(g, condition))),
    "sum": _plain(lambda g, out, a, axis, keepdims: (_spread(g, a, axis, keepdims),)),
    "max": _plain(
        lambda g, out, a, axis, keepdims: (np.where(call("winner", a, axis), _spread(g, a, axis, keepdims), 0.0),)
    ),
    "reshape": _plain(lambda g, out, a, shape: (np.reshape(g, a.shape),)),
    "broadcast_to": _plain(lambda g, out, a, shape: (g,)),
    "concatenate": _concatenated,
    "take": _plain(lambda g, out, a, key: (call("embed", g, key, a.shape),)),
}
