"""What textbook algorithms make of a case: the norms in float32, step by step, as one would first write them.

Each algorithm is one choice of a variance, of a sum, and of the type in which partial sums of dweight and dbias are
kept; everything else is the same. They are what a ladder is read against: a kernel whose errors grow as those of one of
them and of no other loses accuracy where that one does.

======================  ============================================================  ==================================
variance                how                                                           source
======================  ============================================================  ==================================
two_pass                mean, then mean (x − mean)²                                   Chan, Golub & LeVeque 1983, (1.1)
one_pass                mean x² − mean²                                               the same, (1.2): "the textbook"
shifted_one_pass        mean d² − (mean d)², d = x − x[0]                             the same, section 3
welford                 a running mean and sum of squares                             Welford 1962
======================  ============================================================  ==================================

A sum is sequential (one running sum), pairwise (a tree over all), blocked (128 running sums, then a tree), or
compensated (the same 128, each with the sum of its roundings: Neumaier 1974). Algorithms that take a step of Python for
each element are left out where rows are longer than STEPS.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from verify_norm import data
from verify_norm.dtypes import FORMATS, Array
from verify_norm.reference import batchnorm
from verify_norm.reference.quantized import saturated
from verify_norm.reference.view import View, groups, rows
from verify_norm.spec import Case

F = NDArray[Any]  # float32 throughout
F32 = np.float32
LANES = 128
STEPS = 2**15

Variance = Literal["two_pass", "one_pass", "shifted_one_pass", "welford"]
Sum = Literal["sequential", "pairwise", "blocked", "compensated"]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to compute a norm."""

    name: str
    variance: Variance = "two_pass"
    total: Sum = "blocked"
    partials: str = "float32"


_VARIANCES: tuple[Variance, ...] = ("two_pass", "welford", "one_pass", "shifted_one_pass")
_SUMS: tuple[Sum, ...] = ("sequential", "pairwise", "blocked", "compensated")
VARIANCES = tuple(Algorithm(name, variance=name) for name in _VARIANCES)
SUMS = tuple(Algorithm(f"{name} sums", total=name) for name in _SUMS)
PARTIALS = tuple(Algorithm(f"partials in {name}", partials=name) for name in ("float32", "float16", "bfloat16"))


def algorithms(case: Case, output: str, *, sums: bool = False) -> tuple[Algorithm, ...]:
    """Those that differ in this output: `sums` where a ladder is about sums rather than about the variance."""
    centred = any(tensor.name == "mean" for tensor in (*case.op.inputs, *case.op.outputs))
    if output in ("dweight", "dbias"):
        return SUMS + PARTIALS[1:]
    return SUMS if sums or case.op.forward is not None or not centred else VARIANCES


def viewed(case: Case) -> View:
    """How the case's data is seen."""
    x = case.exact.get("residual_out", case.exact.get("x"))
    assert x is not None
    if case.op.view == "rows":
        return rows(x, data.affine_shape(case.spec, case.op))
    return groups(x, data.groups(case.spec, case.op)) if case.op.view == "groups" else batchnorm.channels(x, True)


def compute(case: Case, how: Algorithm) -> dict[str, Array] | None:
    """The outputs of the case by name, rounded into their types; None where it would take too many steps."""
    view = viewed(case)
    longest = max(view.count, view.repeats if case.op.forward else 0)
    if (how.variance == "welford" and view.count > STEPS) or (how.partials != "float32" and longest > STEPS):
        return None
    with np.errstate(all="ignore"):
        out = _backward(case, view, how) if case.op.forward else _forward(case, view, how)
    found = {}
    for tensor in case.op.outputs:
        expected = case.expected.get(tensor.name)
        if expected is not None and tensor.name in out:
            wide = out[tensor.name].astype(np.float64).reshape(expected.value.shape)
            found[tensor.name] = FORMATS[expected.dtype].round(wide)
    return found


def total(t: F, how: Sum) -> F:
    """Σ t along the last axis, of shape (rows, 1).

    >>> t = np.full((1, 4096), 1 / 3, F32)
    >>> [float(abs(total(t, how).item() / 4096 - t[0, 0]) > 1e-6) for how in ("sequential", "compensated")]
    [1.0, 0.0]
    """
    K, n = t.shape
    if n == 0:
        return np.zeros((K, 1), F32)
    if how == "sequential":
        return np.add.accumulate(t, axis=-1)[:, -1:]
    if how == "pairwise":
        return _tree(t)
    lanes = min(LANES, n)
    length = -(-n // lanes)
    parts = np.pad(t, ((0, 0), (0, length * lanes - n))).reshape(K, length, lanes)
    if how == "blocked":
        return _tree(np.add.accumulate(parts, axis=1)[:, -1])
    run: F = np.zeros((K, lanes), F32)
    lost: F = np.zeros((K, lanes), F32)
    for i in range(length):
        run, lost = _added(run, lost, parts[:, i])
    while (n := run.shape[-1]) > 1:
        half = (n + 1) // 2
        low, rest = run[:, : n - half], run[:, n - half : half]
        both, error = _added(low, lost[:, : n - half] + lost[:, half:], run[:, half:])
        run, lost = np.concatenate([both, rest], -1), np.concatenate([error, lost[:, n - half : half]], -1)
    return run + lost


def _added(run: F, lost: F, t: F) -> tuple[F, F]:
    """Neumaier's step: the sum, and what it has lost so far."""
    both = run + t
    return both, lost + np.where(np.abs(run) >= np.abs(t), (run - both) + t, (t - both) + run)


def _tree(t: F) -> F:
    while (n := t.shape[-1]) > 1:
        half = (n + 1) // 2
        t = np.concatenate([t[:, : n - half] + t[:, half:], t[:, n - half : half]], -1)
    return t


def statistics(x: F, eps: float, how: Algorithm, *, centred: bool) -> tuple[F, F]:
    """Mean (0 where the norm has none) and rstd of every row."""
    n = F32(x.shape[-1])
    mean: F
    var: F
    if not centred:
        mean, var = np.zeros((len(x), 1), F32), total(x * x, how.total) / n
    elif how.variance == "welford":
        mean, var = _welford(x)
    elif how.variance == "shifted_one_pass":
        d = x - x[:, :1]
        s = total(d, how.total) / n
        mean, var = x[:, :1] + s, total(d * d, how.total) / n - s * s
    else:
        mean = total(x, how.total) / n
        two = how.variance == "two_pass"
        var = total((x - mean) * (x - mean), how.total) / n if two else total(x * x, how.total) / n - mean * mean
    return mean, F32(1) / np.sqrt(var + F32(eps))


def _welford(x: F) -> tuple[F, F]:
    mean: F = np.zeros(len(x), F32)
    squares: F = np.zeros(len(x), F32)
    for i, column in enumerate(np.ascontiguousarray(x.T)):
        delta = column - mean
        mean = mean + delta / F32(i + 1)
        squares = squares + delta * (column - mean)
    return mean[:, None], squares[:, None] / F32(x.shape[-1])


def _laid(view: View, values: Array | None, axes: tuple[int, ...]) -> F | None:
    """The values in float32, as rows along these axes of the view."""
    if values is None:
        return None
    shaped = values.reshape(view.shape if values.size == prod(view.shape) else view.affine)
    last = range(-len(axes), 0)
    moved = np.moveaxis(np.broadcast_to(shaped, view.shape), axes, tuple(last))
    return np.ascontiguousarray(moved.reshape(-1, prod(view.shape[axis] for axis in axes)), F32)


def _back(view: View, values: F) -> F:
    """What `_laid` has laid out, as the data is."""
    kept = [axis for axis in range(len(view.shape)) if axis not in view.axes]
    shaped = values.reshape([view.shape[axis] for axis in (*kept, *view.axes)])
    return np.moveaxis(shaped, range(-len(view.axes), 0), view.axes)


def _forward(case: Case, view: View, how: Algorithm) -> dict[str, F]:
    exact, centred = case.exact, any(tensor.name == "mean" for tensor in case.op.outputs)
    x, residual = _laid(view, exact["x"], view.axes), _laid(view, exact.get("residual"), view.axes)
    assert x is not None
    x = x if residual is None else x + residual
    w, b = (_laid(view, exact.get(name), view.axes) for name in ("weight", "bias"))
    mean, rstd = statistics(x, case.spec.eps, how, centred=centred)
    y = (x - mean) * rstd
    y = y if w is None else y * (w + F32(case.arguments.get("weight_offset", 0.0)))
    y = y if b is None else y + b
    amax = np.abs(y).max(initial=0.0).reshape(1)
    scale, expected = exact.get("scale"), case.expected.get("y")
    if scale is not None and expected is not None:
        y = saturated(y * scale.astype(F32), FORMATS[expected.dtype].largest)
    return {"y": _back(view, y), "residual_out": _back(view, x), "mean": mean, "rstd": rstd, "amax": amax}


def _backward(case: Case, view: View, how: Algorithm) -> dict[str, F]:
    exact, centred = case.exact, any(tensor.name == "mean" for tensor in case.op.inputs)
    x, dy = (
        _laid(view, exact.get(name), view.axes) for name in ("residual_out" if "residual_out" in exact else "x", "dy")
    )
    w, passed = (_laid(view, exact.get(name), view.axes) for name in ("weight", "dresidual_out"))
    rstd, saved = exact["rstd"], exact.get("mean")
    assert x is not None
    assert dy is not None
    assert rstd is not None
    r = rstd.reshape(-1, 1).astype(F32)
    mean = np.zeros_like(r) if saved is None else saved.reshape(-1, 1).astype(F32)
    n, xhat = F32(view.count), (x - mean) * r
    g = dy if w is None else dy * (w + F32(case.arguments.get("weight_offset", 0.0)))
    c1, c2 = total(g * xhat, how.total) / n, total(g, how.total) / n if centred else F32(0)
    dx = (g - (xhat * c1 + c2)) * r
    dx = dx if passed is None else dx + passed
    shared = _laid(view, _back(view, dy).astype(np.float64), view.shared)
    others = _laid(view, _back(view, xhat).astype(np.float64), view.shared)
    assert shared is not None
    assert others is not None
    return {"dx": _back(view, dx), "dweight": _partial(shared * others, how), "dbias": _partial(shared, how)}


def _partial(terms: F, how: Algorithm) -> F:
    """Σ along the last axis, in a running sum of the type that partial sums are kept in where that is narrow."""
    if how.partials == "float32":
        return total(terms, how.total)
    kind = FORMATS[how.partials].dtype
    run: F = np.zeros(len(terms), F32)
    for column in np.ascontiguousarray(terms.T):
        run = (run + column).astype(kind).astype(F32)
    return run
