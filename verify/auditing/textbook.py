"""Textbook algorithms for the norms, in float32, one operation at a time.

An algorithm is a choice of the variance, of the order of sums, and of the dtype that holds partial sums of dweight and
dbias. A ladder compares the kernel's errors with theirs: if they grow like those of only one algorithm, the kernel
loses accuracy where that algorithm does.

================  =======================================  =====================================================
variance          formula                                  source
================  =======================================  =====================================================
two_pass          mean (x − mean)²                         Chan, Golub & LeVeque 1983, (1.1)
one_pass          mean x² − mean²                          the same, (1.2): "the textbook"
shifted_one_pass  mean d² − (mean d)², d = x − x[0]        the same, section 3
welford           a running mean and sum of squares        Welford 1962
================  =======================================  =====================================================

A sum is sequential (one running sum), pairwise (a tree), blocked (128 running sums, then a tree), or compensated (the
same 128, each with the sum of its rounding errors: Neumaier 1974). An algorithm that takes a Python step per element is
left out for rows longer than STEPS.
"""

from dataclasses import dataclass
from math import prod
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from verify_norm.checks.relations import stages
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.run import Case
from verify_norm.reference.quantized import saturated
from verify_norm.reference.view import View

F = NDArray[Any]  # float32 throughout
F32 = np.float32
LANES = 128
STEPS = 2**15

Variance = Literal["two_pass", "welford", "one_pass", "shifted_one_pass"]
Sum = Literal["sequential", "pairwise", "blocked", "compensated"]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to compute a norm; `total` is the order of its sums."""

    name: str
    variance: Variance = "two_pass"
    total: Sum = "blocked"
    partials: str = "float32"


VARIANCES = tuple(Algorithm(name, variance=name) for name in get_args(Variance))
SUMS = tuple(Algorithm(f"{name} sums", total=name) for name in get_args(Sum))
PARTIALS = tuple(Algorithm(f"partials in {name}", partials=name) for name in ("float16", "bfloat16"))


def algorithms(case: Case, output: str, *, sums: bool = False) -> tuple[Algorithm, ...]:
    """Return the algorithms that differ in this output: in their sums if `sums`, else in what the output shows."""
    if output in ("dweight", "dbias"):
        return SUMS + PARTIALS
    if sums or case.op.forward is not None or not stages.has_mean(case):
        return SUMS
    return VARIANCES


def view_of(case: Case) -> View:
    """Return the view that says which axes of x are normalized together, and which share a weight."""
    return stages.view_of(case, np.asarray(case.exact.get("residual_out", case.exact.get("x"))))


def compute(case: Case, how: Algorithm) -> dict[str, Array] | None:
    """Return the outputs by name, rounded to their dtypes; None if the algorithm takes more than STEPS steps."""
    view = view_of(case)
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
    """Return Σ t along the last axis, with shape (rows, 1).

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
    return _tree(np.add.accumulate(parts, axis=1)[:, -1]) if how == "blocked" else _compensated(parts)


def _compensated(parts: F) -> F:
    """Return the sum over the last two axes: running sums along the first of them, then a tree, all compensated."""
    K, length, lanes = parts.shape
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
    """Return run + t and its accumulated rounding error (Neumaier's step)."""
    both = run + t
    return both, lost + np.where(np.abs(run) >= np.abs(t), (run - both) + t, (t - both) + run)


def _tree(t: F) -> F:
    """Return the sum along the last axis: the second half is added to the first until one element is left."""
    while (n := t.shape[-1]) > 1:
        half = (n + 1) // 2
        t = np.concatenate([t[:, : n - half] + t[:, half:], t[:, n - half : half]], -1)
    return t


def as_rows(values: Array, axes: tuple[int, ...]) -> Array:
    """Return the values as a matrix whose rows run over these axes."""
    moved = np.moveaxis(values, axes, range(-len(axes), 0))
    return np.ascontiguousarray(moved.reshape(-1, prod(values.shape[axis] for axis in axes)))


def _kept(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a sum over these axes, which keep the length 1."""
    return tuple(1 if axis in axes else length for axis, length in enumerate(shape))


def _sum(t: F, axes: tuple[int, ...], how: Sum) -> F:
    """Return Σ t over these axes, which keep the length 1."""
    return total(as_rows(t, axes), how).reshape(_kept(t.shape, axes))


def _statistics(x: F, axes: tuple[int, ...], eps: float, how: Algorithm, *, centred: bool, n: Any) -> tuple[F, F]:
    """Return the mean (0 if the norm subtracts none) and rstd over these axes, which keep the length 1.

    Sums are divided by n.
    """

    def average(t: F) -> F:
        mean: F = _sum(t, axes, how.total) / n
        return mean

    if centred and how.variance == "welford":
        mean, var = _welford(x, axes)
    elif centred and how.variance != "two_pass":
        shift = x[tuple(slice(0, length) for length in _kept(x.shape, axes))] if "shifted" in how.variance else F32(0)
        rest = average(x - shift)
        mean, var = shift + rest, average((x - shift) * (x - shift)) - rest * rest
    else:
        mean = average(x) if centred else np.zeros(_kept(x.shape, axes), F32)
        var = average((x - mean) * (x - mean))
    return mean, F32(1) / np.sqrt(var + F32(eps))


def _divisor(case: Case, view: View) -> Any:
    """Return what sums over a row are divided by: their number of terms, or 1 in L2Norm."""
    return F32(view.count if case.op.averages else 1)


def _welford(x: F, axes: tuple[int, ...]) -> tuple[F, F]:
    """Return the mean and the variance over these axes, by Welford's updates."""
    rows, kept = as_rows(x, axes), _kept(x.shape, axes)
    mean: F = np.zeros(len(rows), F32)
    squares: F = np.zeros(len(rows), F32)
    for i, column in enumerate(np.ascontiguousarray(rows.T)):
        delta = column - mean
        mean = mean + delta / F32(i + 1)
        squares = squares + delta * (column - mean)
    return mean.reshape(kept), (squares / F32(rows.shape[1])).reshape(kept)


def _input(case: Case, view: View, name: str) -> F | None:
    """Return an input in float32, in a shape that broadcasts to that of the view; the weight includes its offset."""
    values = case.exact.get(name)
    if values is None:
        return None
    offset = F32(case.arguments.get("weight_offset", 0.0) if name == "weight" else 0.0)
    kept = _kept(view.shape, view.axes)
    shapes = {"weight": view.affine, "bias": view.affine, "mean": kept, "rstd": kept}
    shaped: F = values.reshape(shapes.get(name, view.shape)).astype(F32) + offset
    return shaped


def _forward(case: Case, view: View, how: Algorithm) -> dict[str, F]:
    """Return the outputs of a forward pass, in float32."""
    x, residual, w, b = (_input(case, view, name) for name in ("x", "residual", "weight", "bias"))
    assert x is not None
    if residual is not None:
        x = _dropped(case, x) + residual
    mean, rstd = _statistics(x, view.axes, case.spec.eps, how, centred=stages.has_mean(case), n=_divisor(case, view))
    y = (x - mean) * rstd
    if w is not None:
        y = y * w
    if b is not None:
        y = y + b
    amax = np.abs(y).max(initial=0.0).reshape(1)
    scale, expected = case.exact.get("scale"), case.expected.get("y")
    if case.op.quantized and scale is not None and expected is not None:
        y = saturated(y * scale.astype(F32), FORMATS[expected.dtype].largest)
    out = {"residual_out": x, "mean": mean, "rstd": rstd, "amax": amax}
    for stage in case.op.stages:
        if stage is case.op.quantizer and stage.dynamic:
            out["y_scale"] = stage.scale(y, case.exact)
        y = stage.value(y, case.exact)
    return {"y": y, **out}


def _dropped(case: Case, h: F) -> F:
    """Return what a dropout leaves of x, or of the gradient of the sum; all of it where there is none."""
    dropout = case.op.dropout
    left = h if dropout is None else dropout.value(h, {**case.arguments, **case.exact}).astype(F32)
    return np.asarray(left)


def _backward(case: Case, view: View, how: Algorithm) -> dict[str, F]:
    """Return the gradients, in float32."""
    saved_x = "residual_out" if "residual_out" in case.exact else "x"
    x, dy, rstd = (np.asarray(_input(case, view, name)) for name in (saved_x, "dy", "rstd"))
    mean, w, dresidual = (_input(case, view, name) for name in ("mean", "weight", "dresidual_out"))
    n, centre = _divisor(case, view), np.zeros_like(rstd) if mean is None else mean
    xhat = (x - centre) * rstd
    g = dy if w is None else dy * w
    c1 = _sum(g * xhat, view.axes, how.total) / n
    c2 = _sum(g, view.axes, how.total) / n if stages.has_mean(case) else F32(0)
    dh = (g - (xhat * c1 + c2)) * rstd
    if dresidual is not None:
        dh = dh + dresidual
    return {
        "dx": _dropped(case, dh),
        "dresidual": dh,
        "dweight": _shared(dy * xhat, view, how),
        "dbias": _shared(dy, view, how),
    }


def _shared(terms: F, view: View, how: Algorithm) -> F:
    """Return Σ over the axes that share a weight; if `how.partials` is narrow, as a running sum of that dtype."""
    if how.partials == "float32":
        return _sum(terms, view.shared, how.total)
    narrow, rows = FORMATS[how.partials].dtype, as_rows(terms, view.shared)
    run: F = np.zeros(len(rows), F32)
    for column in np.ascontiguousarray(rows.T):
        run = (run + column).astype(narrow).astype(F32)
    return run
