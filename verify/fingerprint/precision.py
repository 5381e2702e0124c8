"""The type in which something is added up: how small a summand may be beside a large one before it is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verify_norm.dtypes import FORMATS
from verify_norm.fingerprint.rig import Rig
from verify_norm.fingerprint.statement import Statement, undecided
from verify_norm.fingerprint.sums import Sum, squares

LENGTH = 1024  # rows: enough for partial sums to be stored and added up in turn
ROW = 256  # elements of a row
UNIT = 2.0**-10  # with it and 2**25 times as much, a float16 tells float32 from less
TYPES = {FORMATS[name].precision: name for name in ("bfloat16", "float16", "float32", "float64")}
EVEN = {12: 11, 54: 53}  # the first even exponent that is lost, and the odd precision that it is lost at
EXPONENTS = (2, 3, 4, *range(6, 14), *range(21, 27), *range(50, 56), 60)  # about each type's precision
ULPS = np.array([2.9, 4.7, 6.6, 9.3])  # sums of small squares, in ulps: no power of two times the number of them
HIGHEST = {"float16": 25}  # a mask of more units is no float16


@dataclass(frozen=True, slots=True)
class Bits:
    """How many bits a sum keeps, at most and at least, over the places that were looked at; or why none can be said."""

    most: int = 0
    least: int = 0
    why: str = ""


def triples(n: int) -> list[tuple[int, int, int]]:
    """Places of a mask, of its opposite and of the unit, near to each other and far apart."""
    return [
        (0, 2, 1), (0, 3, 1), (4, 7, 5), (0, n - 1, 1), (0, n - 1, n // 2), (n - 1, 0, n - 2), (0, n // 2, n // 4),
        (n // 2, n // 2 - 1, 0), (n // 3, n // 2, n // 5),
    ]  # fmt: skip


def bits_of(found: Sum) -> Bits | None:
    """How many bits of a running sum `found` keeps; None where the outputs do not show it.

    m = 1.5·2**e, 1 and −m are added in the places of a triple, all else being 0. A sum of p bits keeps the 1 beside m
    for e < p, loses it for e ≥ p (at e = p it is half an ulp, a tie that goes to even), and what is left is 1 or 0.
    """
    n = LENGTH if found.kind in ("dweight", "dbias") else ROW
    exponents = np.array([e for e in EXPONENTS if e <= HIGHEST.get(found.dtype, 60)])
    places = triples(n)
    terms = np.zeros((len(places), len(exponents), n))
    for row, (i, j, k) in zip(terms, places, strict=True):
        mask = np.ldexp(1.5 * UNIT, exponents)
        row[:, i], row[:, j], row[:, k] = mask, -mask, UNIT
    left = found.read(terms.reshape(-1, n))
    if left is None:
        return None
    with np.errstate(invalid="ignore"):
        survived = np.abs(left.reshape(len(places), -1) / UNIT - 1) < 2.0**-6  # twice bfloat16's roundoff and more
    return bits(survived, exponents)


def bits(survived: NDArray[np.bool_], exponents: NDArray[np.integer]) -> Bits:
    """What the rows of `survived` say, one for each place and in it one for each exponent.

    >>> bits(np.array([[True, True, False], [True, True, True]]), np.array([6, 7, 8]))
    Bits(most=8, least=8, why='')
    """
    if not survived[:, :2].all():
        return Bits(why="a 1 does not show even beside small numbers")
    if (np.diff(survived.astype(int), axis=1) > 0).any():
        return Bits(why="a 1 is lost beside a number and kept beside a larger one, as in no plain sum")
    lost = [int(exponents[np.argmin(row)]) for row in survived if not row.all()]
    if not lost:
        return Bits(why=f"a 1 is kept beside up to 2^{int(exponents[-1])} wherever they are")
    return Bits(max(lost), min(lost))


def accumulators(name: str, dtype: str, seen: Bits | None) -> Iterator[Statement]:
    """The statements about the type of one sum, and of its partial sums."""
    if seen is None:
        return
    if seen.why:
        yield undecided(f"{name} accumulator", seen.why, dtype)
        return
    for what, p in (("accumulator", seen.most), *((("partials", seen.least),) if name != "row" else ())):
        if p in TYPES:
            shown = f"beside 2^{p} a 1 is lost, beside 2^{p - 1} it is not"
            if seen.most != seen.least:
                shown += f"; between 2^{seen.least} and 2^{seen.most}, depending on where the summands are"
            sure = 0.95 if seen.most == seen.least or what == "partials" else 0.8
            yield Statement(f"{name} {what}", TYPES[p], shown, sure, dtype)
        else:
            yield undecided(f"{name} {what}", f"a 1 is lost beside 2^{p}: no type has {p} bits", dtype)


def squares_bits(rig: Rig, dtype: str, n: int = 64) -> Bits | None:
    """How many bits RMSNorm's Σx² keeps; None where that is not to be seen.

    1 and 2**−e are added, for even e. Then 1 and so small numbers that each is lost beside it, but some ulp in all: a
    sum that has all of these wherever the 1 stands has more bits than its result, and nothing can be said of it.
    """
    exponents = np.arange(2, 29 if dtype == "float16" else 57, 2)
    places = [(0, 1), (0, n - 1), (n // 2, 1), (n - 1, n // 2)]
    x = np.zeros((len(places), len(exponents), n))
    for row, (i, k) in zip(x, places, strict=True):
        row[:, i], row[:, k] = 1.0, np.ldexp(1.0, -exponents // 2)
    left = squares(rig, x.reshape(-1, n), dtype)
    if left is None:
        return None
    with np.errstate(invalid="ignore"):
        survived = np.abs(left.reshape(len(places), -1) * np.ldexp(1.0, exponents) - 1) < 2.0**-4
    seen = bits(survived, exponents)
    if seen.why or seen.least != seen.most:
        return seen
    p = EVEN.get(seen.least, seen.least)
    ones = [0, n // 2 - 1, n // 2, n - 1]
    small = np.repeat(np.sqrt(np.ldexp(ULPS, 1 - p) / (n - 1)), len(ones))[:, None] * np.ones(n)
    small = FORMATS[dtype].round(small)
    whole = np.rint(np.square(small[:, 0]) * (n - 1) * 2.0 ** (p - 1))
    small[np.arange(len(small)), ones * len(ULPS)] = 1.0
    kept = squares(rig, small, dtype)
    if kept is None or (np.abs(kept * 2.0 ** (p - 1) - whole) < 0.25).all():
        return Bits(why=f"the result has {p} bits, and the sum has more")
    return Bits(p, p)
