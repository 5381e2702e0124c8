"""Statements about a backward pass: which statistics it uses, their precision, and the rounding of x̂."""

from collections.abc import Iterator
from itertools import product

import numpy as np

from verify_norm.auditing.fingerprint.forward import clear, noise
from verify_norm.auditing.fingerprint.rig import EPS, Feed, Rig
from verify_norm.auditing.fingerprint.statement import Statement, undecided
from verify_norm.core.dtypes import FORMATS, Array

TERMS = 23  # rows and columns; odd, so that every sample of GroupNorm has one position
Fitting = list[tuple[str, str | None]]  # dtypes of the statistics and of x̂; None if x̂ is not rounded
NEAR = 2.0**-16  # relative: float32 rounds by 2**-24, float16 by 2**-12


def source(rig: Rig) -> Iterator[Statement]:
    """Yield whether dx follows the given rstd: for w·dy = (1, −1, 0, …) and x̂ = (1, 1, …), dx is rstd·w·dy."""
    x = np.tile([1.0, 1.0, -1.0, -1.0], (2, 4))
    dy = np.zeros_like(x)
    dy[:, 0], dy[:, 1] = 1.0, -1.0
    dx = rig.rows(Feed(x, dy, rstd=np.array([1.0, 2.0])))["dx"][:, 0]
    name = "statistics source"
    shown = f"for x of variance 1 and an rstd of 1 and of 2, dx[0] is {dx[0]:.6g} and {dx[1]:.6g}"
    value = {(1.0, 2.0): "given", (1.0, 1.0): "recomputed"}.get(tuple(np.round(dx, 4).tolist()))
    yield Statement(name, value, shown, 0.98) if value else undecided(name, shown)


def terms(rig: Rig, dtype: str) -> Iterator[Statement]:
    """Yield what is rounded in dy·x̂: each column of dweight is one such term, because all other dy are 0.

    With a wide weight dweight shows the term itself. With a narrow weight it shows the rounded term, which is enough to
    recognize statistics that are narrower then.
    """
    fitting = _fitting(rig, dtype, "float32")
    if fitting is not None and not fitting:
        yield undecided("used statistics", "no rounding of statistics, x̂ or dy·x̂ explains the terms of dweight", dtype)
    stats, shown = {stats for stats, _ in fitting or ()}, f"all {TERMS} terms of dweight are dy·x̂ within its rounding"
    own = {own for own, _ in _fitting(rig, dtype, dtype) or ()} if dtype != "float32" else stats
    if own == {dtype} != stats:
        how = f"with mean and rstd rounded to {dtype} if the weight is {dtype} too"
        yield Statement("used statistics", dtype, f"{shown}, {how}", 0.95, dtype)
    elif len(stats) == 1:
        (name,) = stats
        yield Statement("used statistics", name, f"{shown}, with mean and rstd in {name}", 0.95, dtype)
    kept = {xhat for _, xhat in fitting or ()}
    if len(kept) == 1:
        (narrow,) = kept
        how = "x̂ in float32" if narrow is None else f"x̂ rounded to {narrow}"
        yield Statement("xhat", "rounded" if narrow else "not rounded", f"{shown}, with {how}", 0.95, dtype)


def _fitting(rig: Rig, dtype: str, weight_dtype: str) -> Fitting | None:
    """Return the dtypes of statistics and of x̂ that explain all terms of dweight; None if it does not show them."""
    form = FORMATS[dtype]
    x, dy = form.round(2 + noise(TERMS, TERMS)), np.diag(form.round(noise(1, TERMS, seed=1)[0]))
    exact_mean = x.mean(1) if rig.centred else np.zeros(TERMS)
    rstd = FORMATS["float32"].round(1 / np.sqrt(np.square(x - exact_mean[:, None]).mean(1) + EPS))
    mean = FORMATS["float32"].round(exact_mean)
    out = rig.columns(Feed(x, dy, dtype, weight_dtype, mean=mean, rstd=rstd))
    if out.dtypes.get("dweight") != weight_dtype:
        return None
    got, found = out["dweight"], []
    narrow = ("bfloat16", "float16") if dtype == "float32" else (dtype,)
    for stats, xhat, term in product(("float32", *narrow), (None, *narrow), (None, *narrow)):
        m, r = (FORMATS[stats].round(v) for v in (mean, rstd))
        want = _rounded(term, np.diag(dy) * _rounded(xhat, (np.diag(x) - m) * r))
        if weight_dtype == "float32":
            fits = np.abs(got - want) <= NEAR * np.abs(want)
        else:
            fits = (got == FORMATS[weight_dtype].round(want)) | ~clear(want, weight_dtype)
        if fits.all():
            found.append((stats, xhat))
    return found


def _rounded(name: str | None, values: Array) -> Array:
    """Return the values rounded to a dtype; as they are if it is None."""
    return values if name is None else FORMATS[name].round(values)
