"""The sums inside a kernel: how to read each of them from an output, and how many bits it keeps."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from verify_norm.auditing.fingerprint.rig import Feed, Outputs, Rig
from verify_norm.auditing.fingerprint.statement import HiddenError, Statement, undecided
from verify_norm.core.dtypes import FORMATS, Array

LENGTH = 1024  # rows: enough for partial sums that are stored and added in turn
ROW = 256  # elements of a row
UNIT = 2.0**-10  # float16 holds it and 2**25 times it, so it shows whether a sum has the bits of float32
TYPES = {FORMATS[name].precision: name for name in ("bfloat16", "float16", "float32", "float64")}
EVEN = {12: 11, 54: 53}  # the first even exponent that is lost, and the odd precision that loses it
EXPONENTS = (2, 3, 4, *range(6, 14), *range(21, 27), *range(50, 56), 60)  # near each dtype's precision
ULPS = np.array([2.9, 4.7, 6.6, 9.3])  # sums of small squares, in ulps: no power of two times their number
READOUTS = 4  # elements of dx to choose from, because a probe masks up to two


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum that an output shows: of x ("mean") or w·dy ("row") over a row, of dy·x̂ ("dweight") or dy over the rows."""

    rig: Rig
    kind: Literal["mean", "row", "dweight", "dbias"]
    dtype: str

    @property
    def name(self) -> str:
        """The first word of its statements."""
        return "row" if self.kind == "mean" else self.kind

    def read(self, terms: Array) -> Array:
        """Return the kernel's sum of each row of `terms`, NaN if it is unknown; raise HiddenError if none shows."""
        if self.kind == "mean":
            return np.asarray(means(self.rig.rows(Feed(terms, dtype=self.dtype)), terms) * terms.shape[1])
        return self._row(terms) if self.kind == "row" else self._column(terms)

    def _row(self, terms: Array) -> Array:
        """Return Σ w·dy of a row, from an element of dx = rstd·(w·dy − mean(w·dy) − x̂·mean(w·dy·x̂)).

        In LayerNorm x̂ = 0 at that element; in RMSNorm x̂ = 1 everywhere, and mean(w·dy·x̂) takes the place of the mean.
        rstd is exactly 1, so that nothing rounds it: a quarter of LayerNorm's x is ±2, and the rest is 0.
        """
        count, n = terms.shape
        place = np.arange(n)
        x = np.where(place < n // 4, np.where(place % 2, -2.0, 2.0), 0.0) if self.rig.centred else np.ones(n)
        dx = self.rig.rows(Feed(np.tile(x, (count, 1)), terms, self.dtype))["dx"]
        column = n - READOUTS + np.argmin(np.abs(terms[:, -READOUTS:]), axis=1)
        rows = np.arange(count)
        return np.asarray(n * (terms[rows, column] - dx[rows, column]))

    def _column(self, terms: Array) -> Array:
        """Return dweight or dbias of these terms, with x̂ exactly +1 in even columns and −1 in odd ones.

        The weight is float32 if the kernel takes it, so that its gradient holds every sum of narrow terms.
        """
        signs = np.where(np.arange(len(terms)) % 2, -1.0, 1.0)
        feed = Feed(np.broadcast_to(signs, terms.T.shape), terms.T, self.dtype)
        out = self.rig.columns(feed if self.dtype == "float32" else replace(feed, weight_dtype="float32"))
        if not out.values:
            out = self.rig.columns(feed)
        return np.asarray(out[self.kind] * signs if self.kind == "dweight" else out[self.kind])


def sums(rig: Rig, dtype: str) -> Iterator[Sum]:
    """Yield the sums that the outputs of this kernel can show."""
    if rig.backward:
        yield Sum(rig, "row", dtype)
        yield Sum(rig, "dweight", dtype)
    if rig.centred:
        yield Sum(rig, "dbias" if rig.backward else "mean", dtype)


def rstds(out: Outputs, x: Array, *, centred: bool = True) -> Array:
    """Return rstd of each row: the output, else the slope of y over x for weight 1 and bias 0."""
    if "rstd" in out:
        return out["rstd"]
    rows, y = np.arange(len(x)), out["y"]
    if not centred:
        largest = np.argmax(np.abs(x), axis=1)
        return np.asarray(y[rows, largest] / x[rows, largest])
    high, low = np.argmax(x, axis=1), np.argmin(x, axis=1)
    return np.asarray((y[rows, high] - y[rows, low]) / (x[rows, high] - x[rows, low]))


def means(out: Outputs, x: Array) -> Array:
    """Return the mean of each row: the output, else x − y/rstd where |x| is smallest."""
    if "mean" in out:
        return out["mean"]
    rows, smallest = np.arange(len(x)), np.argmin(np.abs(x), axis=1)
    return np.asarray(x[rows, smallest] - out["y"][rows, smallest] / rstds(out, x))


def squares(rig: Rig, x: Array, dtype: str = "float32") -> Array:
    """Return RMSNorm's Σx² − 1 of each row, for Σx² near 1 and a power of two elements.

    eps = −1/N subtracts 1 without rounding, so that rstd, or y where x = 1, shows the rest exactly. A kernel that
    rejects a negative eps shows nothing (HiddenError), and float16 cannot hold the result.
    """
    n = x.shape[1]
    out = rig.rows(Feed(x, dtype=dtype, eps=-1.0 / n))
    rstd = rstds(out, x, centred=False)
    if "rstd" not in out and out.dtypes["y"] == "float16":
        raise HiddenError
    return np.where(rstd > 0, n / np.square(rstd), np.nan)


@dataclass(frozen=True, slots=True)
class Bits:
    """The most and the fewest bits that a sum keeps, over the places of its summands; or why they are unknown."""

    most: int = 0
    least: int = 0
    why: str = ""


def bits_of(found: Sum) -> Bits | None:
    """Return how many bits a running sum keeps; None if no output shows it.

    m = 1.5·2**e, −m and 1 are added in three places, near each other and far apart; all other terms are 0. A sum of p
    bits gives 1 for e < p and 0 for e ≥ p, where the 1 is lost next to m (at e = p it is half an ulp, a tie that rounds
    to even).
    """
    n = LENGTH if found.kind in ("dweight", "dbias") else ROW
    exponents = np.array([e for e in EXPONENTS if e <= (25 if found.dtype == "float16" else 60)])
    places = [(0, 2, 1), (0, 3, 1), (4, 7, 5), (0, n - 1, 1), (0, n - 1, n // 2), (n - 1, 0, n - 2)]
    places += [(0, n // 2, n // 4), (n // 2, n // 2 - 1, 0), (n // 3, n // 2, n // 5)]
    terms = np.zeros((len(places), len(exponents), n))
    for row, (i, j, k) in zip(terms, places, strict=True):
        mask = np.ldexp(1.5 * UNIT, exponents)
        row[:, i], row[:, j], row[:, k] = mask, -mask, UNIT
    try:
        left = found.read(terms.reshape(-1, n))
    except HiddenError:
        return None
    survived = np.abs(left.reshape(len(places), -1) / UNIT - 1) < 2.0**-6  # more than twice bfloat16's unit roundoff
    return bits(survived, exponents)


def bits(survived: NDArray[np.bool_], exponents: NDArray[np.integer]) -> Bits:
    """Return what `survived` shows, with a row for each triple and a column for each exponent.

    >>> bits(np.array([[True, True, False], [True, True, True]]), np.array([6, 7, 8]))
    Bits(most=8, least=8, why='')
    """
    if not survived[:, :2].all():
        return Bits(why="a 1 is lost even next to small numbers")
    if (np.diff(survived.astype(int), axis=1) > 0).any():
        return Bits(why="a 1 is lost next to a number and kept next to a larger one, unlike in a plain sum")
    lost = [int(exponents[np.argmin(row)]) for row in survived if not row.all()]
    if not lost:
        return Bits(why=f"a 1 is kept next to up to 2^{int(exponents[-1])} in every place")
    return Bits(max(lost), min(lost))


def accumulators(name: str, dtype: str, seen: Bits) -> Iterator[Statement]:
    """Yield the dtype of one sum, and that of its partial sums if it is over rows."""
    if seen.why:
        yield undecided(f"{name} accumulator", seen.why, dtype)
        return
    properties = {"accumulator": seen.most}
    if name != "row":
        properties["partials"] = seen.least
    for what, p in properties.items():
        if p not in TYPES:
            yield undecided(f"{name} {what}", f"a 1 is lost next to 2^{p}: no dtype has {p} bits", dtype)
            continue
        shown = f"next to 2^{p} a 1 is lost, next to 2^{p - 1} it is kept"
        if seen.most != seen.least:
            shown += f"; the limit is between 2^{seen.least} and 2^{seen.most}, depending on the places"
        sure = 0.95 if seen.most == seen.least or what == "partials" else 0.8
        yield Statement(f"{name} {what}", TYPES[p], shown, sure, dtype)


def squares_bits(rig: Rig, dtype: str) -> Bits:
    """Return how many bits RMSNorm's Σx² keeps.

    First 1 and 2**−e are added, for even e. Then 1 and small numbers that are each lost next to it, but are some ulps
    together: a sum that keeps all of them wherever the 1 is has more bits than the result, so its bits are unknown.
    """
    n = 64
    exponents = np.arange(2, 29 if dtype == "float16" else 57, 2)
    places = [(0, 1), (0, n - 1), (n // 2, 1), (n - 1, n // 2)]
    x = np.zeros((len(places), len(exponents), n))
    for row, (i, k) in zip(x, places, strict=True):
        row[:, i], row[:, k] = 1.0, np.ldexp(1.0, -exponents // 2)
    left = squares(rig, x.reshape(-1, n), dtype).reshape(len(places), -1)
    survived = np.abs(left * np.ldexp(1.0, exponents) - 1) < 2.0**-4
    seen = bits(survived, exponents)
    if seen.why or seen.least != seen.most:
        return seen
    p = EVEN.get(seen.least, seen.least)
    ones = [0, n // 2 - 1, n // 2, n - 1]
    small = np.repeat(np.sqrt(np.ldexp(ULPS, 1 - p) / (n - 1)), len(ones))[:, None] * np.ones(n)
    small = FORMATS[dtype].round(small)
    whole = np.rint(np.square(small[:, 0]) * (n - 1) * 2.0 ** (p - 1))
    small[np.arange(len(small)), ones * len(ULPS)] = 1.0
    if (np.abs(squares(rig, small, dtype) * 2.0 ** (p - 1) - whole) < 0.25).all():
        return Bits(why=f"the result has {p} bits, and the sum has more")
    return Bits(p, p)
