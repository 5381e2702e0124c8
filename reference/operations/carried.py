"""Values that carry a bound of how far a kernel's own may be off: operands for which `rules` has each operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from verify_norm.reference.arithmetic import Arithmetic, nearest
from verify_norm.reference.operations.operand import Operand, operands
from verify_norm.reference.operations.rules import ARRAYS, RULES, Known, Sides
from verify_norm.reference.view import Array


@dataclass(slots=True, eq=False)
class Carried(Operand):
    """An exact value with the bound of what a kernel's own may be off by; its first axis has rows if it is `by_row`."""

    rank = 1
    value: Array
    delta: Array
    a: Arithmetic
    by_row: bool = False

    @property
    def largest(self) -> Any:
        """How large a kernel's own may be."""
        return self.known.largest

    @property
    def known(self) -> Known:
        """The value as rules take it."""
        return Known(self.value, self.delta, self.by_row)

    def apply(self, name: str, *args: Any) -> Any:
        """Return the result with its error."""
        return _apply(self.a, name, args)


@dataclass(slots=True, eq=False)
class Condition(Operand):
    """What a comparison says, and where it may say the contrary of a kernel's own values."""

    value: Any
    unsure: Any
    a: Arithmetic
    by_row: bool = False

    @property
    def known(self) -> Sides:
        """The condition as rules take it."""
        return Sides(self.value, self.unsure)

    def apply(self, name: str, *args: Any) -> Any:
        """Return the result where no other operand is there."""
        return _apply(self.a, name, args)


def carried(value: Any, a: Arithmetic, *, by_row: bool = False) -> Carried:
    """Return an exact value as the arithmetic has it: rounded to nearest.

    >>> carried(np.array([0.5, 1 + 2.0**-30]), Arithmetic(u=2**-24, tiny=2**-126, huge=3.4e38)).delta.tolist()
    [0.0, 9.313225746154785e-10]
    """
    value = np.asarray(value, np.float64)
    with np.errstate(all="ignore"):
        off = np.where(np.isfinite(value), np.abs(nearest(value, a) - value), 0.0)
    return Carried(value, off, a, by_row)


def _apply(a: Arithmetic, name: str, args: tuple[Any, ...]) -> Carried | Condition:
    """Return the result of a rule; it is `by_row` where one of its operands is."""
    count = ARRAYS.get(name, 2)
    result = RULES[name](a, *(_known(argument, a) for argument in args[:count]), *args[count:])
    by_row = any(operand.by_row for operand in operands(args) if isinstance(operand, (Carried, Condition)))
    if isinstance(result, Sides):
        return Condition(*result, a, by_row)
    return Carried(result.value, result.delta, a, by_row)


def _known(argument: Any, a: Arithmetic) -> Any:
    """Return an argument as rules take it, a plain value as the arithmetic rounds it; of a list each element."""
    if isinstance(argument, list):
        return [_known(part, a) for part in argument]
    return argument.known if isinstance(argument, (Carried, Condition)) else carried(argument, a).known
