"""Integers that are affine in four symbols p, q, w, v ≥ 0, with arrays of coefficients over the lanes of a tensor.

The last axis of an array has the programs that run together, of length 1 where the number is the same in all of them.
p is the number of a tile of rows, and q what M exceeds the rows up to that tile by. Where programs share the tiles, w
is the number of the program, and v that of the programs behind it. A comparison holds for all values of the symbols,
for none, or is a `Maybe`. Without symbols these are plain integers.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
ZERO: Ints = np.asarray(0, np.int64)  # the coefficient of a symbol that does not occur: arithmetic leaves it out
BITS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64, "index": 64}


class Undecided(Exception):  # noqa: N818  (a reason, not a fault)
    """An operation whose result is not affine in the symbols."""


@dataclass(frozen=True, slots=True)
class Maybe:
    """A condition that holds where it says `yes`, and depends on the symbols where it is `open`.

    There it holds where `below` is negative; None if it is no comparison of two numbers.
    """

    why: str
    yes: Bools
    open: Bools
    below: Optional["Num"] = None

    def map(self, function: Any) -> "Maybe":
        """Return the condition with all arrays changed alike, as a broadcast does."""
        below = None if self.below is None else self.below.map(function)
        return Maybe(self.why, function(self.yes), function(self.open), below)


class Apart(Exception):  # noqa: N818  (a reason, not a fault)
    """Programs that run together, of which some do other things than the others."""


def alike(a: Any) -> Any:
    """Return what programs that run together have in common; raises Apart."""
    if (a != a[..., :1]).any():
        raise Apart
    return a[..., 0]


def undecided(why: str, shape: tuple[int, ...] = ()) -> Maybe:
    """Return a condition, or a number, of which nothing is known in any program."""
    return Maybe(why, np.zeros((*shape, 1), np.bool_), np.ones((*shape, 1), np.bool_))


def logical(name: str, a: Bools | Maybe, b: Bools | Maybe) -> Bools | Maybe:
    """Return "andi", "ori" or "xori" of two conditions; raises Undecided for another one."""
    (a_yes, a_open), (b_yes, b_open) = (
        (condition.yes, condition.open) if isinstance(condition, Maybe) else (condition, np.zeros_like(condition))
        for condition in (a, b)
    )
    if name == "andi":
        yes, unknown = a_yes & b_yes, (a_open & (b_yes | b_open)) | (b_open & (a_yes | a_open))
    elif name == "ori":
        yes, unknown = a_yes | b_yes, (a_open & ~b_yes) | (b_open & ~a_yes)
    elif name == "xori":
        yes, unknown = (a_yes ^ b_yes) & ~a_open & ~b_open, a_open | b_open
    else:
        raise Undecided(f"{name} of conditions")
    if not unknown.any():
        return np.asarray(yes)
    uncertain = [condition for condition in (a, b) if isinstance(condition, Maybe)]
    below = uncertain[0].below if name == "andi" and len(uncertain) == 1 else None
    return Maybe(uncertain[0].why, yes & ~unknown, unknown, below)


class Num(NamedTuple):
    """c + p·(tile) + q·(rows beyond) + w·(program) + v·(programs beyond); a coefficient may be one for all lanes."""

    c: Ints
    p: Ints
    q: Ints
    w: Ints
    v: Ints

    @property
    def plain(self) -> bool:
        """Return whether no symbol occurs in it."""
        return not any(part is not ZERO and part.any() for part in self[1:])

    def map(self, function: Any) -> "Num":
        """Return the number with its arrays changed alike, as a broadcast does."""
        return Num(function(self.c), *(function(part) if part.ndim else part for part in self[1:]))

    def each(self, function: Any) -> "Num":
        """Return the number with a linear function of all its parts."""
        return Num(*(part if part is ZERO else np.asarray(function(part)) for part in self))

    def equals(self, other: "Num") -> bool:
        """Return whether both are the same number, whatever the symbols are."""
        return all(bool((mine == theirs).all()) for mine, theirs in zip(self, other, strict=True))


def num(value: Any, p: int = 0, q: int = 0, w: int = 0, v: int = 0) -> Num:
    """Return a number from an array or an integer."""
    return Num(np.asarray(value, np.int64), *(np.asarray(part, np.int64) if part else ZERO for part in (p, q, w, v)))


def add(a: Num, b: Num) -> Num:
    """Return a + b."""
    return Num(*(y if x is ZERO else x if y is ZERO else np.asarray(x + y) for x, y in zip(a, b, strict=True)))


def sub(a: Num, b: Num) -> Num:
    """Return a − b."""
    return Num(*(x if y is ZERO else np.asarray(x - y) for x, y in zip(a, b, strict=True)))


def mul(a: Num, b: Num) -> Num:
    """Return a·b; raises Undecided if both have symbols."""
    if not a.plain and not b.plain:
        raise Undecided("a product of two numbers that depend on the program")
    a, b = (a, b) if b.plain else (b, a)
    return a.each(lambda part: part * b.c)


def divide(a: Num, b: Num, *, remainder: bool, signed: bool = True) -> Num:
    """Return the quotient or the remainder, rounded towards zero; raises Undecided if it is not affine."""
    if not b.plain or (b.c == 0).any():
        raise Undecided("a division by a number that depends on the program, or by 0")
    if a.plain:
        if not signed and ((a.c < 0).any() or (b.c < 0).any()):
            raise Undecided("an unsigned division of a negative number")
        quotient = np.where((a.c < 0) != (b.c < 0), -(np.abs(a.c) // np.abs(b.c)), np.abs(a.c) // np.abs(b.c))
        return num(a.c - quotient * b.c if remainder else quotient)
    low, _ = bounds(a)
    if any((part % b.c).any() for part in a[1:]) or (low < 0).any() or (b.c < 0).any():
        raise Undecided("a quotient that depends on the program")
    return num(a.c % b.c) if remainder else a.each(lambda part: part // b.c)


def bounds(a: Num) -> tuple[Any, Any]:
    """Return the least and the largest value over all p, q, w, v ≥ 0."""
    if a.plain:
        return a.c, a.c
    _, p, q, w, v = a
    low = np.where((p < 0) | (q < 0) | (w < 0) | (v < 0), -np.inf, a.c)
    high = np.where((p > 0) | (q > 0) | (w > 0) | (v > 0), np.inf, a.c)
    return low, high


def compare(predicate: str, a: Num, b: Num) -> Bools | Maybe:
    """Return where a comparison holds for all p and q; a `Maybe` if it depends on them anywhere."""
    if predicate.startswith("u"):
        if (bounds(a)[0] < 0).any() or (bounds(b)[0] < 0).any():
            shape = np.broadcast_shapes(a.c.shape, b.c.shape)
            return undecided("an unsigned comparison of what may be negative", shape[:-1])
        predicate = f"s{predicate[1:]}"
    difference = sub(a, b)
    low, high = bounds(difference)
    yes, no = {
        "slt": (high < 0, low >= 0),
        "sle": (high <= 0, low > 0),
        "sgt": (low > 0, high <= 0),
        "sge": (low >= 0, high < 0),
        "eq": ((low == 0) & (high == 0), (low > 0) | (high < 0)),
        "ne": ((low > 0) | (high < 0), (low == 0) & (high == 0)),
    }[predicate]
    yes, no = np.asarray(yes), np.asarray(no)
    below = {"slt": difference, "sgt": sub(b, a)}.get(predicate)
    why = "a comparison that depends on the number of rows"
    return yes if (yes | no).all() else Maybe(why, yes, ~(yes | no), below)


def most_rows(a: Num, element: str, rows: int, beyond: int = 1) -> float:
    """Return the largest M for which the number fits into its type, where a tile has `rows` rows.

    M > rows·p + beyond·q, and there are no more programs than tiles: rows·(w + v) < M. Raises Undecided if it does not
    fit at all.
    """
    limit = 2 ** (BITS[element] - 1) - 1
    if a.c.size == 0:
        return math.inf
    if a.c.max() > limit or a.c.min() < -limit - 1:
        raise Undecided(f"a number that does not fit into {element}")
    if a.plain:
        return math.inf
    _, p, q, w, v = map(np.abs, a)
    slope = np.maximum(p / max(rows, 1), q / beyond) + np.maximum(w, v) / max(rows, 1)
    room = limit - np.abs(a.c).astype(np.float64)
    return float(np.where(slope > 0, room / np.where(slope > 0, slope, 1) + 1, np.inf).min())
