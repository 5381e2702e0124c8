"""Running error analysis: values that carry a bound of how far a kernel's own may be off (Higham, section 3.3).

Each value is the exact v with δ, where |v' − v| ≤ δ for the v' of any kernel that does the same operations in the
arithmetic (`verify_norm.reference.arithmetic`), sums in any order. An operation passes on the δ of its operands, and
adds its own roundings: with t = |v| + δ

    a + b           δa + δb + u(|a| + |b| + δa + δb)         also where a kernel adds three numbers in another order
    a·b             |a|δb + |b|δa + δaδb + u·t
    a/b             (δa + |v|δb)/(|b| − δb) + γ(q)·t, q = 5: a division, or a reciprocal and a product
    √a              δ/(√(a − δ) + √a) + γ(2)·t
    e^a             v(e^δ − 1) + (4 + 2.35(|a| + δ))u·t      as in `verify_norm.reference.activation`
    log a           −log(1 − δ/a) + (8 + 6t)u                log2.approx of CUDA and a product
    a^p             the change at |a| ± δ + (8 + 4|p| + 2.35|p·log a|)u·t
    tanh a          δ·(1 − tanh²) at |a| − δ + ((1 − v²)(2 + 2.35(|a| + δ)) + 12)u, also as 2σ(2a) − 1
    Σa              Σδ + γ(h + q)·Σ(|a| + δ), since a kernel may take a mean of a/n, or Welford's; over rows, as of
                    dweight, γ(h); and what matrix products and narrow partial sums lose
    max a, |a|      the largest δ

What is exactly 0, and a product with a power of two, round nothing. A number of the function itself, as
1e-6, is rounded to the arithmetic's nearest. A value below the smallest normal number may be flushed to zero as an
operand, and as a result. What may overflow has no bound, nor has what is made of it.

A comparison of values that are within their δ of each other is unsure: there np.where may be either of its two values,
and a maximum's gradient may go to either of its elements. That holds also where they are equal: which one a kernel
then takes, no rule says. A kernel may choose by a product with 0 or 1, so what is beside a NaN or an infinity that an
array has there has no bound.

The bound of f is that of its operations one by one. Errors that cancel, as those of Σ(x − mean), are not seen, so the
bound is looser than one that is derived for the operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from verify_norm.reference.arithmetic import DIVISION, ROOT, Arithmetic, finite_below
from verify_norm.reference.operations.operand import COMPARISONS, VALUES, axes_of
from verify_norm.reference.view import Array

QUOTIENT = DIVISION + 1


class Known(NamedTuple):
    """An exact value, and how far a kernel's own may be off; `by_row` where it may differ from row to row.

    >>> exact = Arithmetic(u=0.0, tiny=0.0, huge=1e300)
    >>> x, y = Known(np.array(3.0), np.array(0.5)), Known(np.array(-2.0), np.array(0.25))
    >>> float(RULES["multiply"](exact, x, y).delta)
    1.875
    """

    value: Array
    delta: Array
    by_row: bool = False

    @property
    def largest(self) -> Any:
        """How large a kernel's own may be."""
        return np.abs(self.value) + self.delta


class Sides(NamedTuple):
    """What a comparison says of exact values, and where it may say the contrary of a kernel's own."""

    value: Any
    unsure: Any


def _made(a: Arithmetic, value: Array, delta: Any, largest: Any = None) -> Known:
    """Return a result: where it may be larger than all numbers, or is none, it has no bound."""
    largest = np.abs(value) + delta if largest is None else largest
    return Known(value, finite_below(np.broadcast_to(delta, np.shape(value)), largest, a.huge))


def _flushed(a: Arithmetic, x: Known) -> Known:
    """Return an operand of arithmetic, which may be 0 instead where it is below the smallest normal number."""
    small = (np.abs(x.value) < a.tiny) & (x.largest > 0)
    return x._replace(delta=x.delta + np.where(small, np.minimum(x.largest, a.tiny), 0.0))


def _zero(x: Known) -> Any:
    return (x.value == 0) & (x.delta == 0)


def _power_of_two(x: Known) -> Any:
    return (np.abs(np.frexp(x.value)[0]) == 0.5) & (x.delta == 0)


def _rounded(a: Arithmetic, value: Array, delta: Any, roundings: Any, exact: Any, least: Any = 0.0) -> Known:
    """Return a result after this number of further roundings and one underflow; none where it is exact."""
    own = np.where(exact, 0.0, roundings * (np.abs(value) + delta) + a.tiny + least)
    return _made(a, value, delta + own)


def _add(a: Arithmetic, x: Known, y: Known, sign: float = 1.0) -> Known:
    x, y = _flushed(a, x), _flushed(a, y)
    value, delta = x.value + sign * y.value, x.delta + y.delta
    return _made(a, value, delta + np.where(_zero(x) | _zero(y), 0.0, a.gamma(1) * (x.largest + y.largest) + a.tiny))


def _multiply(a: Arithmetic, x: Known, y: Known) -> Known:
    x, y = _flushed(a, x), _flushed(a, y)
    value = x.value * y.value
    zero = (_zero(x) & np.isfinite(y.largest)) | (_zero(y) & np.isfinite(x.largest))
    delta = np.abs(x.value) * y.delta + np.abs(y.value) * x.delta + x.delta * y.delta
    power = _power_of_two(x) | _power_of_two(y)
    return _rounded(a, value, np.where(zero, 0.0, delta), np.where(power, 0.0, a.gamma(1)), zero)


def _divide(a: Arithmetic, x: Known, y: Known) -> Known:
    x, y = _flushed(a, x), _flushed(a, y)
    value, least = x.value / y.value, np.abs(y.value) - y.delta
    delta = np.where(least > 0, (x.delta + np.abs(value) * y.delta) / least, np.inf)
    delta = np.where(1.0 / least < a.huge, delta, np.inf)
    zero = _zero(x) & (least > 0)
    return _rounded(a, value, np.where(zero, 0.0, delta), a.gamma(QUOTIENT), zero, a.tiny * x.largest)


def _sqrt(a: Arithmetic, x: Known) -> Known:
    x = _flushed(a, x)
    value, least = np.sqrt(x.value), x.value - x.delta
    delta = np.where(x.delta == 0, 0.0, x.delta / (np.sqrt(np.maximum(least, 0.0)) + value))
    return _rounded(a, value, np.where(least < 0, np.inf, delta), a.gamma(ROOT), _zero(x))


def _exp(a: Arithmetic, x: Known) -> Known:
    value = np.exp(x.value)
    return _rounded(a, value, value * np.expm1(x.delta), (4.0 + 2.35 * x.largest) * a.u, exact=False)


def _log(a: Arithmetic, x: Known) -> Known:
    x = _flushed(a, x)
    value = np.log(x.value)
    delta = np.where(x.delta < x.value, -np.log1p(-x.delta / x.value), np.inf)
    return _made(a, value, delta + (8.0 + 6.0 * (np.abs(value) + delta)) * a.u)


def _tanh(a: Arithmetic, x: Known) -> Known:
    value = np.tanh(x.value)
    steepest = 1.0 - np.tanh(np.maximum(np.abs(x.value) - x.delta, 0.0)) ** 2
    own = ((1.0 - value * value) * (2.0 + 2.35 * x.largest) + 12.0) * a.u
    return _made(a, value, np.where(np.isfinite(x.largest), x.delta * steepest + own, np.inf))


def _raised(a: Arithmetic, x: Known, exponent: float) -> Known:
    x = _flushed(a, x)
    value, least, whole = np.power(x.value, exponent), np.abs(x.value) - x.delta, exponent % 1 == 0
    ends = [np.power(end, exponent) for end in (np.maximum(least, 0.0), x.largest)]
    change = np.maximum(*(np.abs(end - np.abs(value)) for end in ends))
    sure = (least > 0) | (whole and exponent > 0) | _zero(x)
    roundings = (8.0 + 4.0 * abs(exponent) + 2.35 * np.abs(exponent * np.log(np.abs(x.value)))) * a.u
    return _rounded(a, value, np.where(sure, change, np.inf), roundings, _zero(x) & (exponent > 0))


def _sum(a: Arithmetic, x: Known, axis: Any, keepdims: bool) -> Known:
    x, axes = _flushed(a, x), axes_of(axis, np.ndim(x.value))
    value = VALUES["sum"](x.value, axis, keepdims)
    n = np.size(x.value) // max(np.size(value), 1)
    over_rows = 0 in axes and x.by_row  # a weight has one axis, of columns
    of = a.over_rows if over_rows else a
    narrow = a.partials_u if over_rows else 0.0
    relative = (of.summed(n, 0 if over_rows else QUOTIENT) if n > 1 else 0.0) + n * narrow
    delta, size = (VALUES["sum"](part, axis, keepdims) for part in (x.delta, x.largest))
    least = np.where(size > 0, (n - 1) * a.tiny + (n * a.narrow_tiny if narrow else 0.0), 0.0)
    most = a.narrow_huge if narrow else a.huge
    return _made(a, value, delta + relative * size + least, np.where(size < most, size, np.inf))


def _max(a: Arithmetic, x: Known, axis: Any, keepdims: bool) -> Known:
    return _made(a, VALUES["max"](x.value, axis, keepdims), VALUES["max"](x.delta, axis, keepdims))


def _compared(name: str) -> Callable[..., Sides]:
    def rule(a: Arithmetic, x: Known, y: Known) -> Sides:
        x, y = _flushed(a, x), _flushed(a, y)
        return Sides(VALUES[name](x.value, y.value), ~(np.abs(x.value - y.value) > x.delta + y.delta))

    return rule


def _winner(a: Arithmetic, x: Known, axis: Any) -> Sides:
    x = _flushed(a, x)
    near = ~(x.value + x.delta < np.max(x.value - x.delta, axis=axis, keepdims=True))
    several = near.sum(axis=axis, keepdims=True) > 1
    return Sides(VALUES["winner"](x.value, axis), near & several)


def _where(a: Arithmetic, condition: Sides | Known, x: Known, y: Known) -> Known:
    if isinstance(condition, Known):  # a number: it is true where it is not 0
        condition = Sides(condition.value != 0, ~(np.abs(condition.value) > condition.delta) & (condition.delta > 0))
    chosen, unsure = condition
    both = np.abs(x.value - y.value) + np.maximum(x.delta, y.delta)
    lost = ~np.isfinite(x.value) & (np.ndim(x.value) > 0) | ~np.isfinite(y.value) & (np.ndim(y.value) > 0)
    delta = np.where(lost, np.inf, np.where(unsure, both, np.where(chosen, x.delta, y.delta)))
    return _made(a, np.where(chosen, x.value, y.value), delta)


def _concatenate(a: Arithmetic, parts: list[Known], axis: int) -> Known:
    value, delta = (np.concatenate([getattr(part, field) for part in parts], axis) for field in ("value", "delta"))
    return Known(value, delta)


def _moved(name: str) -> Callable[..., Known]:
    return lambda a, x, *args: Known(VALUES[name](x.value, *args), VALUES[name](x.delta, *args))


MOVES = ("reshape", "broadcast_to", "take", "embed")
ARRAYS = {"where": 3, "concatenate": 1, **dict.fromkeys(MOVES, 1)}  # how many arguments are values, or lists of them
ARRAYS |= dict.fromkeys(("negative", "absolute", "sqrt", "exp", "log", "tanh", "raised", "sum", "max", "winner"), 1)
RULES: dict[str, Callable[..., Any]] = {
    "add": _add,
    "subtract": lambda a, x, y: _add(a, x, y, -1.0),
    "multiply": _multiply,
    "divide": _divide,
    "negative": lambda a, x: Known(-x.value, x.delta),
    "absolute": lambda a, x: Known(np.abs(x.value), x.delta),
    "sqrt": _sqrt,
    "exp": _exp,
    "log": _log,
    "tanh": _tanh,
    "raised": _raised,
    "maximum": lambda a, x, y: _made(a, np.maximum(x.value, y.value), np.maximum(x.delta, y.delta)),
    "minimum": lambda a, x, y: _made(a, np.minimum(x.value, y.value), np.maximum(x.delta, y.delta)),
    "sum": _sum,
    "max": _max,
    **{name: _compared(name) for name in COMPARISONS if name != "winner"},
    "winner": _winner,
    "where": _where,
    "concatenate": _concatenate,
    **{name: _moved(name) for name in MOVES},
}
