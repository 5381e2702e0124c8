"""Integers that are affine in two symbols: c + a·p + b·q with p, q ≥ 0 and arrays c, a, b over the lanes of a tensor.

p is the number of the program, and q what M exceeds the rows of that program by. A comparison holds for all p and q,
for none, or is a `Maybe`. With a = b = 0 these are plain integers.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
BITS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64, "index": 64}


class Undecided(Exception):  # noqa: N818  (a reason, not a fault)
    """An operation whose result is not affine in the symbols."""


@dataclass(frozen=True, slots=True)
class Maybe:
    """A condition that holds where it says `yes`, and depends on the symbols where it is `open`."""

    why: str
    yes: Bools
    open: Bools

    def map(self, function: Any) -> "Maybe":
        """Return the condition with both arrays changed alike, as a broadcast does."""
        return Maybe(self.why, function(self.yes), function(self.open))


def undecided(why: str, shape: tuple[int, ...] = ()) -> Maybe:
    """Return a condition, or a number, of which nothing is known."""
    return Maybe(why, np.zeros(shape, np.bool_), np.ones(shape, np.bool_))


def logical(name: str, a: Bools | Maybe, b: Bools | Maybe) -> Bools | Maybe:
    """Return "andi", "ori" or "xori" of two conditions; raises Undecided for another one."""
    (x, u, why), (y, v, other) = (
        (one.yes, one.open, one.why) if isinstance(one, Maybe) else (one, np.zeros_like(one), "") for one in (a, b)
    )
    if name == "andi":
        yes, unknown = x & y, (u & (y | v)) | (v & (x | u))
    elif name == "ori":
        yes, unknown = x | y, (u & ~y) | (v & ~x)
    elif name == "xori":
        yes, unknown = (x ^ y) & ~u & ~v, u | v
    else:
        raise Undecided(f"{name} of conditions")
    return Maybe(why or other, yes & ~unknown, unknown) if unknown.any() else np.asarray(yes)


@dataclass(frozen=True, slots=True)
class Num:
    """c + p·(program) + q·(rows beyond)."""

    c: Ints
    p: Ints
    q: Ints

    @property
    def plain(self) -> bool:
        """Return whether no symbol occurs in it."""
        return not (self.p.any() or self.q.any())

    def map(self, function: Any) -> "Num":
        """Return the number with its three arrays changed alike, as a broadcast does."""
        return Num(function(self.c), function(self.p), function(self.q))


def num(value: Any, p: int = 0, q: int = 0) -> Num:
    """Return a number from an array or an integer."""
    c = np.asarray(value, np.int64)
    return Num(c, np.full_like(c, p), np.full_like(c, q))


def add(a: Num, b: Num) -> Num:
    """Return a + b."""
    return Num(a.c + b.c, a.p + b.p, a.q + b.q)


def sub(a: Num, b: Num) -> Num:
    """Return a − b."""
    return Num(a.c - b.c, a.p - b.p, a.q - b.q)


def mul(a: Num, b: Num) -> Num:
    """Return a·b; raises Undecided if both have symbols."""
    if not a.plain and not b.plain:
        raise Undecided("a product of two numbers that depend on the program")
    a, b = (a, b) if b.plain else (b, a)
    return a.map(lambda part: part * b.c)


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
    if (a.p % b.c).any() or (a.q % b.c).any() or (low < 0).any() or (b.c < 0).any():
        raise Undecided("a quotient that depends on the program")
    return num(a.c % b.c) if remainder else a.map(lambda part: part // b.c)


def bounds(a: Num) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the least and the largest value over all p, q ≥ 0."""
    low = np.where((a.p < 0) | (a.q < 0), -np.inf, a.c)
    high = np.where((a.p > 0) | (a.q > 0), np.inf, a.c)
    return low, high


def compare(predicate: str, a: Num, b: Num) -> Bools | Maybe:
    """Return where a comparison holds for all p and q; a `Maybe` if it depends on them anywhere."""
    if predicate.startswith("u"):
        if (bounds(a)[0] < 0).any() or (bounds(b)[0] < 0).any():
            return undecided(
                "an unsigned comparison of what may be negative", np.broadcast_shapes(a.c.shape, b.c.shape)
            )
        predicate = f"s{predicate[1:]}"
    low, high = bounds(sub(a, b))
    yes, no = {
        "slt": (high < 0, low >= 0),
        "sle": (high <= 0, low > 0),
        "sgt": (low > 0, high <= 0),
        "sge": (low >= 0, high < 0),
        "eq": ((low == 0) & (high == 0), (low > 0) | (high < 0)),
        "ne": ((low > 0) | (high < 0), (low == 0) & (high == 0)),
    }[predicate]
    yes, no = np.asarray(yes), np.asarray(no)
    return yes if (yes | no).all() else Maybe("a comparison that depends on the number of rows", yes, ~(yes | no))


def most_rows(a: Num, element: str, rows: int) -> float:
    """Return the largest M for which the number fits into its type, where a program has `rows` rows.

    M = rows·p + q + …, so p ≤ M/rows and q ≤ M. Raises Undecided if it does not fit at all.
    """
    limit = 2 ** (BITS[element] - 1) - 1
    if a.c.size == 0:
        return math.inf
    if (a.c > limit).any() or (a.c < -limit - 1).any():
        raise Undecided(f"a number that does not fit into {element}")
    slope = np.abs(a.p) / max(rows, 1) + np.abs(a.q)
    room = limit - np.abs(a.c).astype(np.float64)
    return float(np.where(slope > 0, room / np.where(slope > 0, slope, 1), np.inf).min())
