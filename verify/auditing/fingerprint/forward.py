"""Statements about a forward pass: divisor, eps, saved statistics, the rounding of x̂, and the formula of y."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from verify_norm.auditing.fingerprint.rig import EPS, Feed, Outputs, Rig
from verify_norm.auditing.fingerprint.statement import HiddenError, Statement, undecided
from verify_norm.auditing.fingerprint.sums import rstds
from verify_norm.core.dtypes import FORMATS, Array

SHORT = 16  # elements of a row: N and N − 1 differ by 6 %, more than bfloat16 rounds
GIVEN = (0.25, 2.0**-6)  # two eps, to see whether the kernel follows them
NEAR = 2.0**-6  # relative; the hypotheses are 40 % apart, and bfloat16 rounds by 2**-9
F = NDArray[np.float32]


def noise(rows: int, columns: int, seed: int = 0) -> Array:
    """Return standard normal numbers, the same in every call."""
    return np.random.default_rng(seed).standard_normal((rows, columns))


def _rstd(rig: Rig, scales: Array, eps: float) -> Array:
    """Return rstd of a row of ±a for each a: mean 0 and variance a², exactly in any order and dtype."""
    x = scales[:, None] * np.where(np.arange(SHORT) % 2, -1.0, 1.0)
    rstd = rstds(rig.rows(Feed(x, eps=eps)), x, centred=rig.centred)
    if not np.isfinite(rstd).all():
        raise HiddenError
    return rstd


def divisor(rig: Rig) -> Iterator[Statement]:
    """Yield whether the variance is divided by N or N − 1: rstd of rows ±16 is 1/16 or √(1 − 1/N)/16."""
    n = SHORT * np.square(_rstd(rig, np.array([16.0, 16.0]), EPS)[0] * 16)
    shown = f"for {SHORT} elements ±16, the variance is the sum of squares divided by {n:.6g}"
    name = next((name for name, count in (("N", SHORT), ("N-1", SHORT - 1)) if abs(n / count - 1) < NEAR), None)
    yield Statement("divisor", name, shown, 0.98) if name else undecided("divisor", shown)


def eps(rig: Rig, count: str | None) -> Iterator[Statement]:
    """Yield the place and the value of eps, from rstd of rows ±a for two eps and a from far below √eps to far above."""
    a = np.ldexp(1.0, np.arange(-12, 5))
    n, name, words = (1, "var", "variances") if rig.op.averages else (SHORT, "Σx²", "sums")
    var = np.square(a) * n
    if count == "N-1":
        var = var * (SHORT / (SHORT - 1))
    places: dict[str, list[float]] = {}
    for given in GIVEN:
        rstd = _rstd(rig, a, given / n) / rig.root(SHORT)
        if not (rstd > 0).all():
            return
        for place, (value, predicted) in _hypotheses(rstd, var).items():
            if np.abs(rstd / predicted - 1).max() < NEAR:
                places.setdefault(place, []).append(value)
    fitting = {place: values for place, values in places.items() if len(values) == len(GIVEN)}
    if "none" in fitting:
        yield Statement("eps value", "none", f"rstd² is 1/{name} down to a {name} of {var[0]:.3g}", 0.95)
    elif len(fitting) != 1:
        yield undecided("eps place", f"1/rstd is neither √({name} + eps) nor √{name} + eps nor √max({name}, eps)")
    else:
        ((place, values),) = fitting.items()
        formula = {"inside": f"√({name} + eps)", "outside": f"√{name} + eps", "clamped": f"√max({name}, eps)"}[place]
        shown = f"1/rstd is {formula} for {words} of {var[0]:.3g} to {var[-1]:.3g}"
        yield Statement("eps place", place, shown, 0.98)
        yield _eps_value(*values)


def _hypotheses(rstd: Array, var: Array) -> dict[str, tuple[float, Array]]:
    """Return for each place of eps its value, from the smallest variance, and the rstd that every row then has."""
    inside = float(np.maximum(1 / rstd[0] ** 2 - var[0], 0.0))
    outside = float(np.maximum(1 / rstd[0] - np.sqrt(var[0]), 0.0))
    if inside < NEAR * var[0]:
        return {"none": (0.0, 1 / np.sqrt(var))}
    clamped = float(1 / rstd[0] ** 2)
    return {
        "inside": (inside, 1 / np.sqrt(var + inside)),
        "outside": (outside, 1 / (np.sqrt(var) + outside)),
        "clamped": (clamped, 1 / np.sqrt(np.maximum(var, clamped))),
    }


def _eps_value(one: float, two: float) -> Statement:
    """Return what the kernel uses where it is given each of GIVEN."""
    shown = ", ".join(f"given {g:g} it is {v:.6g}" for g, v in zip(GIVEN, (one, two), strict=True))
    first, second = one / GIVEN[0], two / GIVEN[1]
    if abs(first - 1) < NEAR and abs(second - 1) < NEAR:
        return Statement("eps value", "as given", shown, 0.98)
    if abs(one / two - 1) < NEAR:
        return Statement("eps value", f"{one:.3g} whatever is given", shown, 0.95)
    if abs(first / second - 1) < NEAR:
        return Statement("eps value", f"{first:.3g} times what is given", shown, 0.9)
    return undecided("eps value", shown)


def statistics(rig: Rig, dtype: str) -> Iterator[Statement]:
    """Yield the narrowest dtype that holds the returned mean and rstd of random rows."""
    length = 48 if rig.op.averages else 64  # a division by 48 rounds, one by √64 does not
    x = FORMATS[dtype].round(1 + noise(32, length))
    out = rig.rows(Feed(x, dtype=dtype))
    names = [name for name in ("mean", "rstd") if name in out]
    if not names or not all(np.isfinite(out[name]).all() for name in names):
        return
    kinds = ("bfloat16", "float16", "float32")
    held = {name: next((kind for kind in kinds if _holds(kind, out[name])), "float64") for name in names}
    narrow = min(held.values(), key=lambda name: FORMATS[name].precision)
    shown = " and ".join(f"{name} of {len(x)} rows ({out.dtypes[name]}) fits {held[name]}" for name in names)
    yield Statement("statistics", narrow, shown, 0.98, dtype)


def _holds(name: str, values: Array) -> bool:
    """Return whether a dtype holds all values."""
    return bool((FORMATS[name].round(values) == values).all())


def xhat(rig: Rig, dtype: str) -> Iterator[Statement]:
    """Yield whether x̂ is rounded before the weight: a third of all elements of y show it."""
    weight, form = 177 / 128, FORMATS[dtype]  # 8 bits, and a product depends on all of them
    x = form.round(16 * noise(64, 64))
    out = rig.rows(Feed(x, dtype=dtype, weight=weight))
    if out.dtypes.get("y") != dtype:
        return
    centre = x - x.mean(1, keepdims=True) if rig.centred else x
    exact = centre / np.sqrt(np.square(centre).mean(1, keepdims=True))
    late, early = form.round(exact * weight), form.round(form.round(exact) * weight)
    differ = (late != early) & clear(exact * weight, dtype) & clear(exact, dtype)
    as_late, as_early = (int((out["y"] == y)[differ].sum()) for y in (late, early))
    count = int(differ.sum())
    shown = f"of {count} elements where it matters, {as_early} match an x̂ rounded first, {as_late} one that is not"
    if count >= 32 and max(as_late, as_early) >= 0.98 * count:
        yield Statement("xhat", "rounded" if as_early > as_late else "not rounded", shown, 0.98, dtype)
    else:
        yield undecided("xhat", shown, dtype)


def clear(value: Array, dtype: str) -> NDArray[np.bool_]:
    """Return where the value is so far from a tie that rounding errors of float32 do not change its rounding."""
    steps = value / FORMATS[dtype].ulp(value)
    return np.abs(np.abs(steps - np.floor(steps)) - 0.5) > 2.0**-4


def _fma(a: F, b: F, c: F) -> F:
    """Return a·b + c with one rounding, up to rare double rounding through float64."""
    result: F = (a.astype(np.float64) * b + c).astype(np.float32)
    return result


Formula = Callable[[F, F, F, F, F], F]  # y of x, mean, rstd, weight and bias
CENTRED: dict[str, Formula] = {
    "((x − mean)·rstd)·w + b": lambda x, m, r, w, b: (x - m) * r * w + b,
    "fma((x − mean)·rstd, w, b)": lambda x, m, r, w, b: _fma((x - m) * r, w, b),
    "(x − mean)·(rstd·w) + b": lambda x, m, r, w, b: (x - m) * (r * w) + b,
    "fma(x − mean, rstd·w, b)": lambda x, m, r, w, b: _fma(x - m, r * w, b),
    "((x − mean)·w)·rstd + b": lambda x, m, r, w, b: (x - m) * w * r + b,
}
EXPANDED: dict[str, Formula] = {
    "x·a + (b − mean·a)": lambda x, m, r, w, b: x * (r * w) + (b - m * (r * w)),
    "fma(x, a, b − mean·a)": lambda x, m, r, w, b: _fma(x, r * w, b - m * (r * w)),
    "fma(x, a, fma(−mean, a, b))": lambda x, m, r, w, b: _fma(x, r * w, _fma(-m, r * w, b)),
    "(x·rstd − mean·rstd)·w + b": lambda x, m, r, w, b: (x * r + -m * r) * w + b,
    "fma(fma(x, rstd, −mean·rstd), w, b)": lambda x, m, r, w, b: _fma(_fma(x, r, -m * r), w, b),
}


def formula(rig: Rig) -> Iterator[Statement]:
    """Yield which formula of the returned statistics gives the bits of y; else its form, from y under an offset."""
    if not rig.centred:
        return
    w, b = np.float32(1.3), np.float32(0.7)
    x = FORMATS["float32"].round(16 + noise(32, 64))
    out = rig.rows(Feed(x, weight=float(w), bias=float(b)))
    if "mean" in out and "rstd" in out and _holds("float32", out["mean"]) and _holds("float32", out["rstd"]):
        m, r = (out[name].astype(np.float32)[:, None] for name in ("mean", "rstd"))
        inputs: tuple[F, F, F, F, F] = x.astype(np.float32), m, r, np.asarray(w), np.asarray(b)
        match = {name: float((y(*inputs) == out["y"]).mean()) for name, y in (CENTRED | EXPANDED).items()}
        best = max(match, key=match.__getitem__)
        shown = f"{best} of the returned statistics gives the bits of {match[best]:.1%} of {x.size} elements"
        if match[best] > 0.998:
            rivals = [name for name in match if match[name] > 0.98]
            if len({name in CENTRED for name in rivals}) == 1:
                yield Statement("form", "centred" if best in CENTRED else "expanded", shown, 0.98)
            if len({name.startswith("fma") for name in rivals}) == 1:
                yield Statement("fma", "fused" if best.startswith("fma") else "separate", shown, 0.98)
            if len(rivals) == 1:
                yield Statement("formula", best, shown, 0.98)
            return
    if "y" in out:
        yield from _form(rig)


def _form(rig: Rig) -> Iterator[Statement]:
    """Yield the form of y from its values at an offset of 2**14 standard deviations.

    If the mean is subtracted first, x − m is exact, so y/rstd = x − m with a float32 m. If x·a is rounded, which is
    2**14 times y, every element of y has an error of its own.
    """
    spreads = []
    for offset in (0.0, 1.5 * 2.0**14):  # the mean is in one binade for any noise
        x = FORMATS["float32"].round(offset + noise(16, 64, seed=1))
        y = rig.rows(Feed(x))["y"]
        if not np.isfinite(y).all():
            return
        subtracted = x - y / rstds(Outputs({"y": y}, {}), x)[:, None]
        spreads.append(float(np.ptp(subtracted, axis=1).max()))
    coarse, spread = spreads
    shown = f"x − y/rstd of one row varies by {coarse:.2g} at no offset and {spread:.2g} at 2^14"
    grid = 2.0**-9  # the ulp of float32 at 2**14
    steps, exact = np.median(subtracted, axis=1) / grid, x.mean(1) / grid
    if coarse > 2.0**-18:
        yield undecided("form", f"{shown}: y is too coarse")
    elif spread > 2.0**-15:
        yield Statement("form", "expanded", shown, 0.9)
    elif spread >= 2.0**-18:
        return
    elif np.abs(steps - np.rint(steps)).max() < NEAR < np.abs(exact - np.rint(exact)).max():
        yield Statement("form", "centred", f"{shown}, and is a float32 near the mean", 0.9)
    else:
        yield undecided("form", f"{shown}, and is no float32: the mean is wider, or an fma contains it")


def row_accuracy(rig: Rig) -> Iterator[Statement]:
    """Yield whether a mean that is no plain sum has the precision of float32, by its error on rows that nearly cancel.

    It never reports a wider dtype, because a lucky order cancels without error.
    """
    half = noise(32, 512)
    x = FORMATS["float32"].round(np.concatenate([half, -half + 2.0**-12 * noise(32, 512, seed=1)], axis=1))
    x = np.random.default_rng(2).permuted(x, axis=1)  # or the first addition of some orders would cancel exactly
    error = float(np.abs(rig.rows(Feed(x))["mean"] - x.mean(1)).max() / np.abs(x).mean())
    shown = f"the mean of rows that nearly cancel is off by {error:.2g} of mean|x|"
    if 2.0**-29 <= error < 2.0**-18:
        yield Statement("row accumulator", "float32", shown, 0.7)
    else:
        yield undecided("row accumulator", shown)
