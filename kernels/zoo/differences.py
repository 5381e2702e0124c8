"""Seed 002's gradient check, as published: a wrong check, in NumPy and float32, by differences of h = 1e-5.

It cannot tell what it is made to tell. A loss of about 10 in float32 is known to 1e-6, which 2h turns into an error of
0.05 of the derivative, while it promises 1e-6; with gamma = 1 and beta = 0, a backward that forgets gamma agrees with
one that does not; and nothing is asserted.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Backward = Callable[[Array, Array, Array, float], tuple[Array, Array, Array]]
PROMISED = {"dx": 1.2e-06, "dweight": 8.4e-07, "dbias": 3.1e-07}  # what the text says that it printed


def forward(x: Array, gamma: Array, beta: Array, eps: float) -> Array:
    """LayerNorm over the last dimension."""
    xc = x - x.mean(-1, keepdims=True)
    return gamma * (xc / np.sqrt((xc * xc).mean(-1, keepdims=True) + np.float32(eps))) + beta


def backward(dy: Array, x: Array, gamma: Array, eps: float) -> tuple[Array, Array, Array]:
    """The gradients, in the text's form, which is right: dx, dgamma, dbeta."""
    return _backward(dy, x, gamma, eps)


def backward_without_gamma(dy: Array, x: Array, gamma: Array, eps: float) -> tuple[Array, Array, Array]:
    """The same with gamma left out of dx."""
    return _backward(dy, x, np.ones_like(gamma), eps)


def _backward(dy: Array, x: Array, gamma: Array, eps: float) -> tuple[Array, Array, Array]:
    n = x.shape[-1]
    xc = x - x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt((xc * xc).mean(-1, keepdims=True) + np.float32(eps))
    xhat, g = xc * rstd, dy * gamma
    dx = rstd / n * (n * g - g.sum(-1, keepdims=True) - xhat * (g * xhat).sum(-1, keepdims=True))
    return dx, (dy * xhat).sum((0, 1)), dy.sum((0, 1))


def gradient_check(
    backward: Backward = backward, *, h: float = 1e-5, dtype: type = np.float32, seed: int = 0
) -> dict[str, float]:
    """The largest |a − n| / (|a| + |n| + 1e-8) of each gradient a against differences n: of (2, 3, 4), gamma = 1."""
    rng = np.random.default_rng(seed)
    x: NDArray[Any] = rng.standard_normal((2, 3, 4)).astype(dtype)
    dy: NDArray[Any] = rng.standard_normal((2, 3, 4)).astype(dtype)
    points = {"dx": x, "dweight": np.ones(4, dtype), "dbias": np.zeros(4, dtype)}

    def loss() -> float:
        return float((forward(*points.values(), 1e-5) * dy).sum())  # type: ignore[arg-type]

    worst = {}
    for (name, point), analytic in zip(points.items(), backward(dy, x, points["dweight"], 1e-5), strict=True):
        numeric = np.zeros_like(point)
        for index in np.ndindex(point.shape):
            kept = point[index]
            point[index] = kept + h
            above = loss()
            point[index] = kept - h
            numeric[index] = (above - loss()) / (2 * h)
            point[index] = kept
        worst[name] = float((np.abs(analytic - numeric) / (np.abs(analytic) + np.abs(numeric) + 1e-8)).max())
    return worst
