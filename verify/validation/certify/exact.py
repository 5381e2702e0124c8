"""The operators and their derivatives to fifty digits, by other means than the references'.

The forward pass is written out on mpmath's numbers. Its gradients follow by the chain rule, node by node and
unsimplified: through r, var, xc and μ in turn, as a tape does it. The derivatives of both, which jvp and the double
backward pass claim, are central differences in so many digits that nothing is lost: with h = 10⁻³⁰ of the scale at 110
digits, truncation is about 10⁻⁶⁰ and round-off 10⁻⁸⁰. The double backward pass uses the symmetry of second derivatives:
the gradient of ⟨ddx, dx⟩ + ⟨ddweight, dweight⟩ + ⟨ddbias, dbias⟩ with respect to x, weight and dy is the change of dx,
dweight and y when x, weight and bias move along ddx, ddweight and ddbias.
"""

from typing import Any

import mpmath
import numpy as np

from verify_norm.validation.certify.problems import Problem

DIGITS, H = 110, mpmath.mpf(10) ** -30

Exact = np.ndarray[Any, np.dtype[np.object_]]  # of mpmath.mpf, flat
Quantities = dict[str, Exact]

_exactly, _root = np.frompyfunc(mpmath.mpf, 1, 1), np.frompyfunc(mpmath.sqrt, 1, 1)


def evaluate(problem: Problem) -> dict[str, Quantities]:
    """Return all results of one problem: "values", "gradients", "jvp" and "second" (of dy, x, weight), by quantity."""
    with mpmath.workdps(DIGITS):
        here, gradients = _both(problem, mpmath.mpf(0))
        (up, up_gradients), (down, down_gradients) = _both(problem, H), _both(problem, -H)
        jvp = {name: (up[name] - down[name]) / (2 * H) for name in up}
        moved = {name: (up_gradients[name] - down_gradients[name]) / (2 * H) for name in up_gradients}
    second = {"dy": jvp["y"], "x": moved["dx"], "weight": moved["dweight"]}
    return {"values": here, "gradients": gradients, "jvp": jvp, "second": second}


def _both(problem: Problem, t: mpmath.mpf) -> tuple[Quantities, Quantities]:
    """Return the forward and the backward pass at (x, weight, bias) + t·(their tangents)."""
    index, (rows, n) = problem.index, problem.index.shape
    args = {"bias": None} | {
        name: None if value is None else (_exactly(value) + t * _exactly(problem.tangents[name])).ravel()
        for name, value in problem.args.items()
    }
    x, dy = args["x"].reshape(rows, n), _exactly(problem.dy).reshape(rows, n)
    offset = mpmath.mpf(problem.options.get("weight_offset", 0.0))
    w = 1 if args["weight"] is None else (args["weight"] + offset)[index]
    b = 0 if args["bias"] is None else args["bias"][index]

    mean = x.sum(1, keepdims=True) / n
    xc = x - mean if problem.centred else x
    var = (xc * xc).sum(1, keepdims=True) / n
    root = _root(var + mpmath.mpf(problem.options["eps"]))
    r = 1 / root
    y = w * (xc * r) + b

    g = w * dy
    by_r = (g * xc).sum(1, keepdims=True)
    by_var = by_r * (-1 / (2 * root**3))
    by_xc = g * r + by_var * 2 * xc / n
    by_mean = -by_xc.sum(1, keepdims=True)
    dx = by_xc + by_mean / n if problem.centred else by_xc
    gradients = {"dx": dx.ravel(), "dweight": _gathered(dy * (xc * r), index), "dbias": _gathered(dy, index)}
    return {"y": y.ravel(), "mean": mean.ravel(), "rstd": r.ravel()}, gradients


def _gathered(terms: Exact, index: np.ndarray[Any, np.dtype[np.intp]]) -> Exact:
    total = np.full(int(index.max()) + 1, mpmath.mpf(0), dtype=object)
    np.add.at(total, index, terms)
    return total
