"""Statements about a backward pass: which statistics it uses, in which precision, and where x̂ is rounded."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from verify_norm.dtypes import FORMATS, Array
from verify_norm.fingerprint.forward import clear, noise
from verify_norm.fingerprint.rig import Rig
from verify_norm.fingerprint.statement import Statement, undecided

TERMS = 23  # rows and columns; odd, so that each of GroupNorm's samples has one position
Fitting = list[tuple[str, str | None]]  # types of the statistics and of x̂, None where that is not rounded
NEAR = 2.0**-16  # relative: float32 rounds by 2**-24, float16 by 2**-12


def source(rig: Rig) -> Iterator[Statement]:
    """Whether dx follows the rstd that is given: with w·dy = (1, −1, 0, …) and x̂ = (1, 1, …) it is rstd·w·dy."""
    x = np.tile([1.0, 1.0, -1.0, -1.0], (2, 4))
    dy = np.zeros_like(x)
    dy[:, 0], dy[:, 1] = 1.0, -1.0
    out = rig.rows(x, dy=dy, rstd=np.array([1.0, 2.0]))
    if out is None or "dx" not in out:
        return
    dx = out["dx"][:, 0]
    shown = f"given an rstd of 1 and of 2, for x of variance 1, dx[0] is {dx[0]:.6g} and {dx[1]:.6g}"
    said = {(1.0, 2.0): "given", (1.0, 1.0): "recomputed"}.get(tuple(np.round(dx, 4).tolist()))
    name = "statistics source"
    yield Statement(name, said, shown, 0.98) if said else undecided(name, shown)


def terms(rig: Rig, dtype: str) -> Iterator[Statement]:
    """What is rounded on the way to dy·x̂: each column of dweight is one such term, all other dy being 0.

    With a weight of a wide type dweight shows the term itself; with one of a narrow type only how it is rounded, which
    is enough to tell statistics that are narrower then.
    """
    fitting = _fitting(rig, dtype, "float32")
    if fitting == []:
        yield undecided("used statistics", "dweight's terms are those of no rounding of statistics, x̂ or term", dtype)
    stats, shown = _stats(fitting), f"all {TERMS} terms of dweight are dy·x̂ to their roundoff"
    own = _stats(_fitting(rig, dtype, dtype)) if dtype != "float32" else stats
    if own == {dtype} != stats:
        how = f"with mean and rstd as {dtype} holds them if the weight is {dtype} too"
        yield Statement("used statistics", dtype, f"{shown}, {how}", 0.95, dtype)
    elif len(stats) == 1:
        (name,) = stats
        yield Statement("used statistics", name, f"{shown}, with mean and rstd as {name} holds them", 0.95, dtype)
    xhat = {fit[1] for fit in fitting or ()}
    if len(xhat) == 1:
        (kept,) = xhat
        how = "x̂ as float32 has it" if kept is None else f"x̂ rounded to {kept}"
        yield Statement("xhat", "rounded" if kept else "not rounded", f"{shown}, {how}", 0.95, dtype)


def _fitting(rig: Rig, dtype: str, weight_dtype: str) -> Fitting | None:
    """The types of statistics and of x̂ that explain all terms of dweight; None where it cannot be seen."""
    form = FORMATS[dtype]
    x, dy = form.round(2 + noise(TERMS, TERMS)), np.diag(form.round(noise(1, TERMS, seed=1)[0]))
    exact_mean = x.mean(1) if rig.centred else np.zeros(TERMS)
    rstd = FORMATS["float32"].round(1 / np.sqrt(np.square(x - exact_mean[:, None]).mean(1) + 2.0**-40))
    mean = FORMATS["float32"].round(exact_mean)
    out = rig.columns(dy, x, dtype=dtype, weight_dtype=weight_dtype, mean=mean, rstd=rstd)
    if out is None or out.dtypes.get("dweight") != weight_dtype:
        return None
    got, found = out["dweight"], []
    narrow = ("bfloat16", "float16") if dtype == "float32" else (dtype,)
    for stats, xhat, term in product(("float32", *narrow), (None, *narrow), (None, *narrow)):
        m, r = (FORMATS[stats].round(v) for v in (mean, rstd))
        want = _maybe(term, np.diag(dy) * _maybe(xhat, (np.diag(x) - m) * r))
        if weight_dtype == "float32":
            fits = np.abs(got - want) <= NEAR * np.abs(want)
        else:
            fits = (got == FORMATS[weight_dtype].round(want)) | ~clear(want, weight_dtype)
        if fits.all():
            found.append((stats, xhat))
    return found


def _stats(fitting: Fitting | None) -> set[str]:
    return {stats for stats, _ in fitting or ()}


def _maybe(name: str | None, values: Array) -> Array:
    return values if name is None else FORMATS[name].round(values)
