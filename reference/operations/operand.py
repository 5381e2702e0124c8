"""The array operations that a user's own operator may consist of, on values of any kind.

NumPy asks an argument that is no array what its functions mean (`__array_ufunc__`, NEP 13; `__array_function__`, NEP
18). So one function in NumPy's words runs on float64, on values that carry a bound of their error (`carried`), on a
tape for its gradient (`tape`), and on complex numbers for a derivative without cancellation (`Complex`). `VALUES` has
each operation on plain arrays, with all that it takes; what `COMPOSITES` has consists of these.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin


class UnknownOperationError(TypeError):
    """An operation whose error or gradient is not known."""


class Operand(NDArrayOperatorsMixin):
    """A value of any kind in place of an array; operations of several kinds are those of the highest `rank`."""

    rank = 0
    value: Any

    def apply(self, name: str, *args: Any) -> Any:
        """Return the result of an operation of `VALUES`, given all its arguments in order."""
        raise NotImplementedError

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **options: Any) -> Any:
        """Do what a ufunc means; its methods, as np.add.reduce, are not known."""
        return call(ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}", *args, **options)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Do what another function of NumPy means."""
        if function.__name__ in ("shape", "size", "ndim") and len(args) == 1:
            return getattr(args[0], function.__name__)
        return call(function.__name__, *args, **kwargs)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return np.shape(self.value)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    def __len__(self) -> int:
        """Return the length of the first axis."""
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        """Return a part, by slices, numbers, None and Ellipsis."""
        parts = key if isinstance(key, tuple) else (key,)
        if not all(isinstance(part, (int, slice, type(None), type(Ellipsis))) for part in parts):
            raise UnknownOperationError("an index that is no slice or number")
        return call("take", self, key)

    def __getattr__(self, name: str) -> Any:
        """Return a method that arrays have, as x.mean(-1)."""
        if name in ("sum", "mean", "max", "min", "var", "clip", "squeeze"):
            return lambda *args, **options: call(name, self, *args, **options)
        if name == "reshape":
            return lambda *shape: call("reshape", self, shape[0] if isinstance(shape[0], tuple) else shape)
        raise UnknownOperationError(f"an array's .{name}") if name[:1] != "_" else AttributeError(name)

    def _no_number(self, *args: Any, **options: Any) -> Any:
        raise UnknownOperationError("a value taken out of its array, as by if, float() or np.asarray(); use np.where")

    __bool__ = __float__ = __int__ = __iter__ = __array__ = _no_number


def operands(args: Any) -> Iterator[Operand]:
    """Yield the operands among arguments, also those in a list."""
    for argument in args:
        if isinstance(argument, (tuple, list)):
            yield from operands(argument)
        elif isinstance(argument, Operand):
            yield argument


def unwrapped(args: Any, kind: type[Operand]) -> list[Any]:
    """Return the arguments with the values of operands of this kind, also of those in a list, in their places."""
    return [
        argument.value
        if isinstance(argument, kind)
        else unwrapped(argument, kind)
        if isinstance(argument, list)
        else argument
        for argument in args
    ]


def call(name: str, *args: Any, **options: Any) -> Any:
    """Return the result of an operation on values of any kind; raises UnknownOperationError."""
    function = COMPOSITES.get(name) or VALUES.get(name)
    if function is None:
        known = sorted({*VALUES, *COMPOSITES} - {"take", "embed", "winner", "raised"})
        raise UnknownOperationError(f"the operation {name}; those known are {', '.join(known)}")
    try:
        bound = inspect.signature(function).bind(*args, **options)
    except TypeError as error:
        raise UnknownOperationError(f"{name} with these arguments: {error}") from error
    bound.apply_defaults()
    if name == "concatenate":
        bound.arguments["arrays"] = list(bound.arguments["arrays"])
    highest = max(operands(bound.args), key=lambda operand: operand.rank, default=None)
    if highest is None or name not in VALUES:
        return function(*bound.args)
    return highest.apply(name, *bound.args)


def axes_of(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes of a reduction, none of them negative.

    >>> axes_of(-1, 2), axes_of(None, 2)
    ((1,), (0, 1))
    """
    if axis is None:
        return tuple(range(ndim))
    axes = axis if isinstance(axis, tuple) else (axis,)
    return tuple(int(each) % ndim for each in axes)


def _embed(a: Any, key: Any, shape: tuple[int, ...]) -> Any:
    """Return zeros of this shape with `a` at the index `key`."""
    zeros = np.zeros(shape, np.asarray(a).dtype)
    zeros[key] = a
    return zeros


VALUES: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: np.divide(a, b),
    "negative": lambda a: -a,
    "absolute": lambda a: np.absolute(a),
    "sqrt": lambda a: np.sqrt(a),
    "exp": lambda a: np.exp(a),
    "log": lambda a: np.log(a),
    "tanh": lambda a: np.tanh(a),
    "raised": lambda a, exponent: np.power(a, exponent),
    "maximum": lambda a, b: np.maximum(a, b),
    "minimum": lambda a, b: np.minimum(a, b),
    "greater": lambda a, b: np.greater(a, b),
    "greater_equal": lambda a, b: np.greater_equal(a, b),
    "less": lambda a, b: np.less(a, b),
    "less_equal": lambda a, b: np.less_equal(a, b),
    "where": lambda condition, a, b: np.where(condition, a, b),
    "sum": lambda a, axis=None, keepdims=False: np.sum(a, axis=axis, keepdims=keepdims),
    "max": lambda a, axis=None, keepdims=False: np.max(a, axis=axis, keepdims=keepdims),
    "winner": lambda a, axis: a == np.max(a, axis=axis, keepdims=True),
    "reshape": lambda a, shape: np.reshape(a, shape),
    "broadcast_to": lambda array, shape: np.broadcast_to(array, shape),
    "concatenate": lambda arrays, axis=0: np.concatenate(arrays, axis=axis),
    "take": lambda a, key: a[key],
    "embed": _embed,
}
COMPARISONS = ("greater", "greater_equal", "less", "less_equal", "winner")
SELECTS = (*COMPARISONS, "maximum", "minimum", "max")  # on GPUs some of them pass over NaN


def _mean(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    total = call("sum", a, axis, keepdims)
    return total / (a.size / max(prod(np.shape(total)), 1))


def _var(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    centred = a - _mean(a, axis, True)
    return _mean(centred * centred, axis, keepdims)


def _norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    if ord not in (None, 2) or (axis is None and x.ndim != 1) or isinstance(axis, tuple):
        raise UnknownOperationError("np.linalg.norm that is no 2-norm over one axis")
    return np.sqrt(call("sum", x * x, axis, keepdims))


def _power(a: Any, exponent: Any) -> Any:
    if isinstance(exponent, Operand) or np.ndim(exponent):
        raise UnknownOperationError("a power whose exponent is no number; np.exp(p * np.log(x)) is one")
    simpler = {
        1.0: lambda: a,
        2.0: lambda: a * a,
        0.5: lambda: np.sqrt(a),
        -0.5: lambda: 1.0 / np.sqrt(a),
        -1.0: lambda: 1.0 / a,
        -2.0: lambda: 1.0 / (a * a),
    }
    p = float(exponent)
    return simpler[p]() if p in simpler else call("raised", a, p)


def _reshaped(a: Any, function: Callable[[Any], Any]) -> Any:
    return call("reshape", a, function(np.broadcast_to(0.0, a.shape)).shape)


COMPOSITES: dict[str, Callable[..., Any]] = {
    "mean": _mean,
    "var": _var,
    "norm": _norm,
    "power": _power,
    "square": lambda a: a * a,
    "reciprocal": lambda a: 1.0 / a,
    "clip": lambda a, a_min, a_max: np.minimum(np.maximum(a, a_min), a_max),
    "min": lambda a, axis=None, keepdims=False: -call("max", -a, axis, keepdims),
    "expand_dims": lambda a, axis: _reshaped(a, lambda shape: np.expand_dims(shape, axis)),
    "amax": lambda a, axis=None, keepdims=False: call("max", a, axis, keepdims),
    "squeeze": lambda a, axis=None: _reshaped(a, lambda shape: np.squeeze(shape, axis)),
}
COMPOSITES["amin"] = COMPOSITES["min"]


class Complex(Operand):
    """x + ihv, whose imaginary part over h is the derivative along v (Squire & Trapp, SIAM Review 40, 1998).

    |x|, maxima and comparisons are no analytic functions: they follow the real part.
    """

    rank = 1

    def __init__(self, value: Any) -> None:
        self.value = value

    def apply(self, name: str, *args: Any) -> Any:
        """Return the result, which is real for a comparison."""
        plain = unwrapped(args, Complex)
        if name in COMPARISONS:
            return VALUES[name](*map(np.real, plain))
        if name == "absolute":
            return Complex(np.where(np.real(plain[0]) < 0, -plain[0], plain[0]))
        if name in ("maximum", "minimum"):
            a, b = plain if name == "maximum" else plain[::-1]
            first = np.real(plain[0]) >= np.real(plain[1])
            return Complex(np.where(first, a, b))
        if name == "max":
            a, axis, keepdims = plain
            best = np.where(VALUES["winner"](np.real(a), axis), a, 0.0).sum(axis=axis, keepdims=keepdims)
            return Complex(best)
        return Complex(VALUES[name](*plain))
