"""Statements about a forward pass: divisor, eps, saved statistics, where x̂ is rounded, and the formula of y."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from verify_norm.dtypes import FORMATS, Array
from verify_norm.fingerprint.rig import Rig
from verify_norm.fingerprint.statement import Statement, undecided
from verify_norm.fingerprint.sums import rstds

SHORT = 16  # elements of a row: N and N − 1 are 6 % apart, which a bfloat16 shows
GIVEN = (0.25, 2.0**-6)  # two eps, so that what does not follow them shows
NEAR = 2.0**-6  # relative; the hypotheses that it is to tell apart are 40 % apart, a bfloat16's roundoff is 2**-9
FLOAT = NDArray[np.float32]


def noise(rows: int, columns: int, seed: int = 0) -> Array:
    """Normal numbers, the same at every call."""
    return np.random.default_rng(seed).standard_normal((rows, columns))


def _alternating(scales: Array) -> Array:
    """A row of ±a for each a: mean 0 and variance a², without rounding in any order of any type."""
    return scales[:, None] * np.where(np.arange(SHORT) % 2, -1.0, 1.0)


def divisor(rig: Rig) -> Iterator[Statement]:
    """N or N − 1: rows of ±16 have rstd·16 = 1 or √(1 − 1/N)."""
    x = _alternating(np.array([16.0, 16.0]))
    out = rig.rows(x)
    rstd = None if out is None else rstds(out, x, centred=rig.centred)
    if rstd is None or not np.isfinite(rstd).all():
        return
    n = SHORT * np.square(rstd[0] * 16)  # what the sum of squares is divided by
    shown = f"the variance of {SHORT} elements ±16 is their squares' sum divided by {n:.6g}"
    said = {"N": SHORT, "N-1": SHORT - 1}
    found = [name for name, count in said.items() if abs(n / count - 1) < NEAR]
    yield Statement("divisor", found[0], shown, 0.98) if found else undecided("divisor", shown)


def eps(rig: Rig, count: str | None) -> Iterator[Statement]:
    """Where eps enters and what it is: rstd of rows of ±a, for a from far below √eps to far above, and two eps."""
    a = np.ldexp(1.0, np.arange(-12, 5))
    var = np.square(a) * (SHORT / (SHORT - 1) if count == "N-1" else 1.0)
    places: dict[str, list[float]] = {}
    for given in GIVEN:
        x = _alternating(a)
        out = rig.rows(x, eps=given)
        rstd = None if out is None else rstds(out, x, centred=rig.centred)
        if rstd is None or not np.isfinite(rstd).all() or not (rstd > 0).all():
            return
        for place, (value, predicted) in _hypotheses(rstd, var).items():
            if np.abs(rstd / predicted - 1).max() < NEAR:
                places.setdefault(place, []).append(value)
    fitting = {place: values for place, values in places.items() if len(values) == len(GIVEN)}
    if "none" in fitting:
        yield Statement("eps value", "none", f"rstd² is 1/variance down to a variance of {var[0]:.3g}", 0.95)
        return
    if len(fitting) != 1:
        yield undecided("eps place", "1/rstd follows neither √(var + eps) nor √var + eps, nor √max(var, eps)")
        return
    ((place, values),) = fitting.items()
    shown = ", ".join(f"given {g:g} it is {v:.6g}" for g, v in zip(GIVEN, values, strict=True))
    forms = {"inside": "√(var + eps)", "outside": "√var + eps", "clamped": "√max(var, eps)"}
    yield Statement(
        "eps place", place, f"1/rstd is {forms[place]} for variances of {var[0]:.3g} to {var[-1]:.3g}", 0.98
    )
    ratios = np.array(values) / GIVEN
    if (np.abs(ratios - 1) < NEAR).all():
        yield Statement("eps value", "as given", shown, 0.98)
    elif abs(values[0] / values[1] - 1) < NEAR:
        yield Statement("eps value", f"{values[0]:.3g} whatever is given", shown, 0.95)
    elif abs(ratios[0] / ratios[1] - 1) < NEAR:
        yield Statement("eps value", f"{ratios[0]:.3g} times what is given", shown, 0.9)
    else:
        yield undecided("eps value", shown)


def _hypotheses(rstd: Array, var: Array) -> dict[str, tuple[float, Array]]:
    """For each place of eps: what it is by the smallest variance, and rstd of every row then."""
    inside = float(np.maximum(1 / rstd[0] ** 2 - var[0], 0.0))
    outside = float(np.maximum(1 / rstd[0] - np.sqrt(var[0]), 0.0))
    if inside < NEAR * var[0]:
        return {"none": (0.0, 1 / np.sqrt(var))}
    return {
        "inside": (inside, 1 / np.sqrt(var + inside)),
        "outside": (outside, 1 / (np.sqrt(var) + outside)),
        "clamped": (1 / rstd[0] ** 2, 1 / np.sqrt(np.maximum(var, 1 / rstd[0] ** 2))),
    }


def statistics(rig: Rig, dtype: str) -> Iterator[Statement]:
    """The narrowest type that holds the mean and rstd of every row of random numbers."""
    x = FORMATS[dtype].round(1 + noise(32, 48))
    out = rig.rows(x, dtype=dtype)
    names = [] if out is None else [name for name in ("mean", "rstd") if name in out]
    if out is None or not names or not all(np.isfinite(out[name]).all() for name in names):
        return
    held = {}
    for name in names:
        held[name] = next((t for t in ("bfloat16", "float16", "float32", "float64") if _holds(t, out[name])), "float64")
    narrow = min(held.values(), key=lambda name: FORMATS[name].precision)
    shown = " and ".join(f"{name} of {len(x)} rows ({out.dtypes[name]}) is in {held[name]}" for name in names)
    yield Statement("statistics", narrow, shown, 0.98, dtype)


def _holds(name: str, values: Array) -> bool:
    return bool((FORMATS[name].round(values) == values).all())


def xhat(rig: Rig, dtype: str) -> Iterator[Statement]:
    """Whether x̂ is rounded before the weight: the two roundings of y differ in a third of all elements."""
    weight, form = 177 / 128, FORMATS[dtype]  # 8 bits, of which a product has all
    x = form.round(16 * noise(64, 64))
    out = rig.rows(x, dtype=dtype, weight=weight)
    if out is None or "y" not in out or out.dtypes["y"] != dtype:
        return
    centre = x - x.mean(1, keepdims=True) if rig.centred else x
    exact = centre / np.sqrt(np.square(centre).mean(1, keepdims=True))
    late, early = form.round(exact * weight), form.round(form.round(exact) * weight)
    telling = (late != early) & clear(exact * weight, dtype) & clear(exact, dtype)
    at_late, at_early = (int((out["y"] == y)[telling].sum()) for y in (late, early))
    count = int(telling.sum())
    shown = f"of {count} elements that tell, {at_late} are as if x̂ were not rounded first, {at_early} as if it were"
    if count >= 32 and max(at_late, at_early) >= 0.98 * count:
        yield Statement("xhat", "rounded" if at_early > at_late else "not rounded", shown, 0.98, dtype)
    else:
        yield undecided("xhat", shown, dtype)


def clear(value: Array, dtype: str) -> NDArray[np.bool_]:
    """Whether no rounding in float32 can decide to which neighbour the value is rounded."""
    steps = value / FORMATS[dtype].ulp(value)
    return np.abs(np.abs(steps - np.floor(steps)) - 0.5) > 2.0**-4


def _fused(a: FLOAT, b: FLOAT, c: FLOAT) -> FLOAT:
    """a·b + c in one rounding, up to the rare double rounding by way of float64."""
    result: FLOAT = (a.astype(np.float64) * b + c).astype(np.float32)
    return result


Formula = Callable[[FLOAT, FLOAT, FLOAT, FLOAT, FLOAT], FLOAT]
FORMULAS: dict[str, tuple[str, str, Formula]] = {  # words: form, whether fused, and y of x, mean, rstd, weight, bias
    "((x − mean)·rstd)·w + b": ("centred", "separate", lambda x, m, r, w, b: (x - m) * r * w + b),
    "fma((x − mean)·rstd, w, b)": ("centred", "fused", lambda x, m, r, w, b: _fused((x - m) * r, w, b)),
    "(x − mean)·(rstd·w) + b": ("centred", "separate", lambda x, m, r, w, b: (x - m) * (r * w) + b),
    "fma(x − mean, rstd·w, b)": ("centred", "fused", lambda x, m, r, w, b: _fused(x - m, r * w, b)),
    "((x − mean)·w)·rstd + b": ("centred", "separate", lambda x, m, r, w, b: (x - m) * w * r + b),
    "x·a + (b − mean·a)": ("expanded", "separate", lambda x, m, r, w, b: x * (r * w) + (b - m * (r * w))),
    "fma(x, a, b − mean·a)": ("expanded", "fused", lambda x, m, r, w, b: _fused(x, r * w, b - m * (r * w))),
    "fma(x, a, fma(−mean, a, b))": ("expanded", "fused", lambda x, m, r, w, b: _fused(x, r * w, _fused(-m, r * w, b))),
    "(x·rstd − mean·rstd)·w + b": ("expanded", "separate", lambda x, m, r, w, b: (x * r + -m * r) * w + b),
    "fma(fma(x, rstd, −mean·rstd), w, b)": (
        "expanded", "fused", lambda x, m, r, w, b: _fused(_fused(x, r, -m * r), w, b),
    ),
}  # fmt: skip


def formula(rig: Rig) -> Iterator[Statement]:
    """Which formula of the returned statistics gives y to the bit; else what an offset does to y tells its form."""
    if not rig.centred:
        return
    w, b = np.float32(1.3), np.float32(0.7)
    x = FORMATS["float32"].round(16 + noise(32, 64))
    out = rig.rows(x, weight=float(w), bias=float(b))
    if out is None or "y" not in out:
        return
    if "mean" in out and "rstd" in out and _holds("float32", out["mean"]) and _holds("float32", out["rstd"]):
        m, r = (out[name].astype(np.float32)[:, None] for name in ("mean", "rstd"))
        x32 = x.astype(np.float32)
        match = {name: float((f(x32, m, r, w, b) == out["y"]).mean()) for name, (_, _, f) in FORMULAS.items()}  # type: ignore[arg-type]
        best = max(match, key=lambda name: match[name])
        shown = f"{best} with the returned statistics gives {match[best]:.1%} of {x.size} elements to the bit"
        if match[best] > 0.998:
            rivals = [name for name in match if match[name] > 0.98]
            for place, name in ((0, "form"), (1, "fma")):
                if len({FORMULAS[rival][place] for rival in rivals}) == 1:
                    yield Statement(name, str(FORMULAS[best][place]), shown, 0.98)
            if len(rivals) == 1:
                yield Statement("formula", best, shown, 0.98)
            return
    yield from _form(rig)


def _form(rig: Rig) -> Iterator[Statement]:
    """What an offset of 2**14 standard deviations does to y.

    y/rstd = x − m exactly, m a number of float32, where the mean is subtracted first, for x − m is exact there. Where
    x·a is rounded, and is 2**14 times y, y has an error of its own in each element.
    """
    spreads, means_of_y = [], []
    for offset in (0.0, 1.5 * 2.0**14):  # the mean is in one binade whatever the noise
        x = FORMATS["float32"].round(offset + noise(16, 64, seed=1))
        out = rig.rows(x)
        if out is None or "y" not in out or not np.isfinite(out["y"]).all():
            return
        y = out["y"]
        rows, high, low = np.arange(len(x)), x.argmax(1), x.argmin(1)
        rstd = (y[rows, high] - y[rows, low]) / (x[rows, high] - x[rows, low])
        subtracted = x - y / rstd[:, None]
        spreads.append(float(np.ptp(subtracted, axis=1).max()))
        means_of_y.append((np.median(subtracted, axis=1), x.mean(1)))
    shown = f"x − y/rstd of one row varies by {spreads[0]:.2g} at no offset and {spreads[1]:.2g} at 2^14"
    if spreads[0] > 2.0**-18:
        yield undecided("form", f"{shown}: y is too coarse to tell")
    elif spreads[1] > 2.0**-15:
        yield Statement("form", "expanded", shown, 0.9)
    elif spreads[1] < 2.0**-18:
        found, mean = means_of_y[1]
        grid = 2.0**-9  # float32's, at 2**14
        on_grid = np.abs(found / grid - np.rint(found / grid)).max() < NEAR
        if on_grid and np.abs(mean / grid - np.rint(mean / grid)).max() > NEAR:
            yield Statement("form", "centred", f"{shown}, and is a float32 close to the mean", 0.9)
        else:
            yield undecided("form", f"{shown}, and is no float32: the mean is kept wider, or fused away")


def row_accuracy(rig: Rig) -> Iterator[Statement]:
    """Whether a mean that is no plain sum is kept in float32: by its error on rows that nearly cancel.

    Nothing wider is told so, for a lucky order cancels without any error.
    """
    half = noise(32, 512)
    x = FORMATS["float32"].round(np.concatenate([half, -half + 2.0**-12 * noise(32, 512, seed=1)], axis=1))
    x = np.random.default_rng(2).permuted(x, axis=1)  # or the first addition of some orders would cancel exactly
    out = rig.rows(x)
    if out is None or "mean" not in out:
        return
    error = float(np.abs(out["mean"] - x.mean(1)).max() / np.abs(x).mean())
    shown = f"the mean of rows that nearly cancel is off by {error:.2g} of the elements' size"
    if 2.0**-29 <= error < 2.0**-18:
        yield Statement("row accumulator", "float32", shown, 0.7)
    else:
        yield undecided("row accumulator", shown)
