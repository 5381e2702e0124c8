"""The sums inside a kernel, each made readable: what to feed so that one output tells what a sum came to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from verify_norm.dtypes import Array
from verify_norm.fingerprint.rig import Outputs, Rig

READOUTS = 4  # elements to read at, so that one of them is never masked


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum that can be read: of x over a row ("mean"), of w·dy over a row ("row"), or of dy over rows (the output)."""

    rig: Rig
    name: str
    kind: Literal["mean", "row", "dweight", "dbias"]
    dtype: str = "float32"

    def read(self, terms: Array) -> Array | None:
        """The sum of each row of `terms` as the kernel has it; NaN where an output does not tell, None if none does."""
        with np.errstate(all="ignore"):
            if self.kind == "mean":
                out = self.rig.rows(terms, dtype=self.dtype)
                mean = None if out is None else means(out, terms)
                return None if mean is None else mean * terms.shape[1]
            if self.kind == "row":
                return self._row(terms)
            out = self.rig.columns(terms.T, dtype=self.dtype, weight_dtype=self._wide())
            if out is None and self._wide():
                out = self.rig.columns(terms.T, dtype=self.dtype)
            if out is None or self.kind not in out:
                return None
            sign = np.where(np.arange(len(terms)) % 2, -1.0, 1.0) if self.kind == "dweight" else 1.0
            return np.asarray(out[self.kind] * sign)

    def _wide(self) -> str | None:
        """A type of the weight that holds every sum of narrow terms; its gradient has it too."""
        return None if self.dtype == "float32" else "float32"

    def _row(self, terms: Array) -> Array | None:
        """Σ w·dy of a row, from dx = rstd·(w·dy − mean(w·dy) − …) at an element where the rest vanishes.

        In LayerNorm that is where x̂ = 0; in RMSNorm x̂ = 1 everywhere, and mean(w·dy·x̂) takes the place of the mean.
        rstd is 1 exactly, so that nobody rounds it: a quarter of LayerNorm's x is ±2, and the rest is 0.
        """
        count, n = terms.shape
        place = np.arange(n)
        x = np.where(place < n // 4, np.where(place % 2, -2.0, 2.0), 0.0) if self.rig.centred else np.ones(n)
        out = self.rig.rows(np.tile(x, (count, 1)), dtype=self.dtype, dy=terms)
        if out is None or "dx" not in out:
            return None
        shown = np.abs(terms[:, -READOUTS:])
        at = n - READOUTS + np.argmin(shown, axis=1)
        rows = np.arange(count)
        return np.asarray(n * (terms[rows, at] - out["dx"][rows, at]))


def sums(rig: Rig, dtype: str = "float32") -> Iterator[Sum]:
    """The sums that the outputs of this kernel may show."""
    if rig.backward:
        yield Sum(rig, "row", "row", dtype)
        yield Sum(rig, "dweight", "dweight", dtype)
        if rig.centred:
            yield Sum(rig, "dbias", "dbias", dtype)
    elif rig.centred:
        yield Sum(rig, "row", "mean", dtype)


@np.errstate(all="ignore")
def rstds(out: Outputs, x: Array, *, centred: bool = True) -> Array | None:
    """Rstd of each row: what is returned, else by what y differs where x does, weight 1 and bias 0; None if unknown."""
    if "rstd" in out:
        return out["rstd"]
    if "y" not in out:
        return None
    rows = np.arange(len(x))
    if not centred:
        at = np.argmax(np.abs(x), axis=1)
        return np.asarray(out["y"][rows, at] / x[rows, at])
    high, low = np.argmax(x, axis=1), np.argmin(x, axis=1)
    return np.asarray((out["y"][rows, high] - out["y"][rows, low]) / (x[rows, high] - x[rows, low]))


@np.errstate(all="ignore")
def means(out: Outputs, x: Array) -> Array | None:
    """The mean of each row: what is returned, else by what y is where x is next to 0; None if unknown."""
    if "mean" in out:
        return out["mean"]
    rstd = rstds(out, x)
    if rstd is None:
        return None
    rows, at = np.arange(len(x)), np.argmin(np.abs(x), axis=1)
    return np.asarray(x[rows, at] - out["y"][rows, at] / rstd)


def squares(rig: Rig, x: Array, dtype: str = "float32") -> Array | None:
    """RMSNorm's Σx² − 1 of each row, where Σx² is next to 1 and the number of elements a power of two.

    eps = −1/N takes 1 away without rounding, so that rstd, or y at x = 1, tells what is left to its last bit: an
    infinity says that nothing is. A kernel that refuses a negative eps tells nothing: None.
    """
    n = x.shape[1]
    with np.errstate(all="ignore"):
        out = rig.rows(x, dtype=dtype, eps=-1.0 / n)
        rstd = None if out is None else rstds(out, x, centred=False)
        if rstd is None or out is None or ("rstd" not in out and out.dtypes["y"] == "float16"):
            return None  # float16 does not hold what would be read
        return np.where(rstd > 0, n / np.square(rstd), np.nan)
