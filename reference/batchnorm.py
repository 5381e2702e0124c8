"""BatchNorm: LayerNorm's algebra over the samples and positions of each channel, or fixed running statistics.

Seen as (B, C, S), S the product of the spatial dimensions, a channel has n = B·S values, which all share one weight.

**Training** normalizes each channel by its own mean and variance; μ and r depend on x, so the derivation of
`layernorm.backward` holds with means over a channel. The running statistics move towards those of the batch,

    running_mean ← (1 − m)·running_mean + m·μ      running_var ← (1 − m)·running_var + m·var·n/(n − 1)

with the unbiased variance, though x̂ is made with the biased one. They are constants to the gradient.

**Evaluation** normalizes by the running statistics, which x does not change: y is linear in x,

    r = 1/√(running_var + eps)   x̂ = r(x − running_mean)   y = w·x̂ + b   dx = w·r·dy   dweight = Σ dy·x̂   dbias = Σ dy

**What has no answer** is decided as torch.nn.functional.batch_norm does. n = 1 in training is an error: x̂ would be 0
whatever x is, and n/(n − 1) infinite. n = 0 in training returns an empty y and leaves the running statistics as they
are, since a mean of nothing would poison them; mean and rstd are NaN, and the gradients of weight and bias 0.

**Errors.** In training, those of `layernorm`, with sums of n terms. Underflow counts max(1, |w|) times, as kernels may
multiply by w last. With k = n/(n − 1), and 4 roundings (of m, of 1 − m or a difference, a product, a sum) and 2 more
for the unbiased variance, in either form of the average, (1 − m)·s + m·t or s + m·(t − s),

    δrunning_mean = m·δμ + γ(4)(|running_mean| + m(|μ| + δμ))
    δrunning_var = m·k·δvar + γ(6)(running_var + m·k(var + δvar))

A channel has one r, which kernels (torch, cuDNN) take out of the sums: with D = Σ dy·(x − μ), dweight = r·D and
dx = w·r(dy − mean dy − (x − μ)·k), k = D·r²/n. That has the same roundings, but where a product underflows D loses
n·tiny, hence dweight n·r·tiny and k tiny·(1 + 2r²) (its own products with it), and it may overflow where Σ dy·x̂ does
not: where Σ|dy||x − μ| exceeds the largest number, neither is judged.

In evaluation the mean is exact and r is off by ρ = γ(5) alone: δx̂ = ρ|x̂| + e·m as in `rounding`, with no shift, and

    δdx = |dx|·((1 + ρ)(1 + γ(3)) − 1)

and x − mean, of numbers that have nothing to do with each other, may overflow where y does not: such x̂ is not judged.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from verify_norm.reference import layernorm, rounding
from verify_norm.reference.layernorm import Backward, Statistics
from verify_norm.reference.rounding import Arithmetic, XhatError
from verify_norm.reference.view import Array, View

__all__ = [
    "Backward", "Forward", "backward", "backward_error", "backward_with_error", "channels", "forward", "forward_error",
    "forward_with_error",
]  # fmt: skip


class Forward(NamedTuple):
    """What the forward pass returns: y as x; mean and rstd of each channel, and what the running statistics become."""

    y: Array
    mean: Array
    rstd: Array
    running_mean: Array | None
    running_var: Array | None


def forward(x: Array, weight: Array | None, bias: Array | None, running_mean: Array | None, running_var: Array | None,
            *, training: bool, momentum: float, eps: float) -> Forward:  # fmt: skip
    """Normalize every channel, by its statistics in training and by the running ones else; then scale and shift it.

    Parameters
    ----------
    x
        (B, C, *spatial).
    weight, bias
        (C,); None stands for 1 and 0.
    running_mean, running_var
        (C,); None where none are kept, which only training allows.
    training
        whether the statistics are those of x.
    momentum
        m, the share of the batch in the running statistics.
    eps
        added to the variance, under the root.

    Returns
    -------
    Forward : y (as x), mean and rstd (C,) that made it, and the new running statistics, None where those are.

    Raises
    ------
    ValueError : x has no channels, training with one value a channel, or evaluation without running statistics.

    Notes
    -----
    Time O(BCS), memory O(BCS): three arrays as large as x.

    Examples
    --------
    >>> x, zero, one = np.array([[1.0], [3.0]]), np.zeros(1), np.ones(1)
    >>> [a.tolist() for a in forward(x, None, None, zero, one, training=True, momentum=0.5, eps=0.5625)]
    [[[-0.8], [0.8]], [2.0], [0.8], [1.0], [1.5]]
    >>> forward(x, None, None, zero, one, training=False, momentum=0.5, eps=0.5625).y.tolist()
    [[0.8], [2.4000000000000004]]
    """
    return _normalize(channels(x, training), x, weight, bias, running_mean, running_var, training, momentum, eps)[0]


def backward(dy: Array, x: Array, weight: Array | None, bias: Array | None, running_mean: Array | None,
             running_var: Array | None, *, training: bool, eps: float) -> Backward:  # fmt: skip
    """Gradients of ⟨dy, y⟩ with respect to x, weight and bias; the module's docstring has the derivation.

    Parameters
    ----------
    dy
        the gradient with respect to y, as x.
    x, weight, bias, running_mean, running_var, training, eps
        as in `forward`; in training the statistics are computed anew from x, and the running ones do not matter.

    Returns
    -------
    Backward : dx (as x), dweight and dbias (as the parameters).

    Raises
    ------
    ValueError : as in `forward`.

    Notes
    -----
    Time O(BCS), memory O(BCS): six arrays as large as x.

    Examples
    --------
    >>> x, dy, zero, one = np.array([[1.0], [3.0]]), np.array([[1.0], [0.0]]), np.zeros(1), np.ones(1)
    >>> backward(dy, x, one, zero, zero, one, training=True, eps=0.5625).dx.round(3).tolist()
    [[0.144], [-0.144]]
    >>> backward(dy, x, one, zero, zero, one, training=False, eps=0.5625).dx.tolist()
    [[0.8], [0.0]]
    """
    view = channels(x, training)
    if training:
        return layernorm.differentiate(view, dy, x, weight, bias, eps)[0] if view.count else _nothing(x, weight, bias)
    return _differentiate(view, dy, x, weight, bias, _fixed(view, x, running_mean, running_var, eps))


def forward_error(x: Array, weight: Array | None, bias: Array | None, running_mean: Array | None,
                  running_var: Array | None, *, training: bool, momentum: float, eps: float,
                  arithmetic: Arithmetic) -> Forward:  # fmt: skip
    """How far a kernel of this arithmetic may be from `forward`, per element, before the final rounding.

    Parameters, shapes and costs are those of `forward`.

    Returns
    -------
    Forward : the bound on the error of each element, NaN or inf where it cannot be judged.

    Examples
    --------
    >>> float32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38)
    >>> x, zero, one = np.array([[1.0], [3.0]]), np.zeros(1), np.ones(1)
    >>> options = {"momentum": 0.1, "eps": 1e-5, "arithmetic": float32}
    >>> bool(forward_error(x, None, None, zero, one, training=True, **options).running_var < 1e-6)
    True
    """
    return forward_with_error(x, weight, bias, running_mean, running_var, training=training, momentum=momentum,
                              eps=eps, arithmetic=arithmetic)[1]  # fmt: skip


def backward_error(dy: Array, x: Array, weight: Array | None, bias: Array | None, running_mean: Array | None,
                   running_var: Array | None, *, training: bool, eps: float,
                   arithmetic: Arithmetic) -> Backward:  # fmt: skip
    """How far a kernel of this arithmetic may be from `backward`, per element, before the final rounding.

    Covers statistics that the kernel is given and such as it computes itself, as in `layernorm.backward_error`.

    >>> float32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38)
    >>> x, zero, one = np.array([[1.0], [3.0]]), np.zeros(1), np.ones(1)
    >>> bool(backward_error(x, x, one, zero, zero, one, training=False, eps=0.1, arithmetic=float32).dx.max() < 2e-6)
    True
    """
    return backward_with_error(dy, x, weight, bias, running_mean, running_var, training=training, eps=eps,
                               arithmetic=arithmetic)[1]  # fmt: skip


def forward_with_error(x: Array, weight: Array | None, bias: Array | None, running_mean: Array | None,
                       running_var: Array | None, *, training: bool, momentum: float, eps: float,
                       arithmetic: Arithmetic) -> tuple[Forward, Forward]:  # fmt: skip
    """`forward` and `forward_error`, computing the statistics once.

    >>> float32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38)
    >>> x = np.array([[1.0], [3.0]])
    >>> value, error = forward_with_error(x, None, None, None, None, training=True, momentum=0.1, eps=0.5625,
    ...                                   arithmetic=float32)
    >>> value.y.tolist(), bool((error.y < 1e-6).all()), value.running_var
    ([[-0.8], [0.8]], True, None)
    """
    view = channels(x, training)
    value, s = _normalize(view, x, weight, bias, running_mean, running_var, training, momentum, eps)
    if s is None:  # nothing was normalized, so nothing was rounded
        kept = None if running_mean is None else 0 * running_mean, None if running_var is None else 0 * running_var
        return value, Forward(0 * x, value.mean, value.rstd, *kept)
    if training:
        plain = layernorm.Forward(*value[:3])
        error = layernorm.normalize_error(view, x, weight, bias, plain, s, arithmetic)
        return value, Forward(*error, *_moved_error(view, x, running_mean, running_var, momentum, s, arithmetic))
    return value, _fixed_error(view, x, weight, bias, value, s, arithmetic)


def backward_with_error(dy: Array, x: Array, weight: Array | None, bias: Array | None, running_mean: Array | None,
                        running_var: Array | None, *, training: bool, eps: float,
                        arithmetic: Arithmetic) -> tuple[Backward, Backward]:  # fmt: skip
    """`backward` and `backward_error`, computing the statistics once.

    >>> float32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38)
    >>> x, zero, one = np.array([[1.0], [3.0]]), np.zeros(1), np.ones(1)
    >>> value, error = backward_with_error(x, x, one, None, zero, one, training=False, eps=0.5625, arithmetic=float32)
    >>> value.dx.round(3).tolist(), error.dweight.shape, error.dbias
    ([[0.8], [2.4]], (1,), None)
    """
    view = channels(x, training)
    if training and not view.count:
        return _nothing(x, weight, bias), _nothing(x, weight, bias)
    if training:
        most = 1.0 if weight is None else float(np.abs(weight).max(initial=1.0))
        value, s, p = layernorm.differentiate(view, dy, x, weight, bias, eps)
        outside = replace(arithmetic, tiny=arithmetic.tiny * most) if math.isfinite(most) else arithmetic
        error = layernorm.differentiate_error(view, dy, x, weight, value, s, p, outside)
        return value, _factored_error(view, dy, x, error, s, outside)
    s = _fixed(view, x, running_mean, running_var, eps)
    value = _differentiate(view, dy, x, weight, bias, s)
    return value, _differentiate_error(view, dy, x, weight, value, s, arithmetic)


def channels(x: Array, training: bool) -> View:
    """Channels (B, C, S) of x (B, C, *spatial): all samples and positions of one are normalized together.

    Raises
    ------
    ValueError : x has no channels, or training has one value a channel.

    >>> channels(np.zeros((2, 3, 4, 5)), True).shape
    (2, 3, 20)
    """
    if x.ndim < 2:
        raise ValueError(f"x needs the shape (B, C, *spatial), not {x.shape}")
    B, C, S = x.shape[0], x.shape[1], math.prod(x.shape[2:])
    if training and B * S == 1:
        raise ValueError(f"training needs more than one value a channel, and x of shape {x.shape} has one")
    return View((B, C, S), axes=(0, 2), shared=(0, 2), affine=(1, C, 1), statistic=(C,))


@np.errstate(all="ignore")
def _normalize(view: View, x: Array, weight: Array | None, bias: Array | None, running_mean: Array | None,
               running_var: Array | None, training: bool, momentum: float,
               eps: float) -> tuple[Forward, Statistics | None]:  # fmt: skip
    """`forward`, and the statistics it was made with; None where there was nothing to normalize."""
    if training and not view.count:
        nan = np.full(view.statistic, np.nan)
        return Forward(0 * x, nan, nan, running_mean, running_var), None
    if training:
        value, s = layernorm.normalize(view, x, weight, bias, eps)
        n = view.count
        var = s.var.reshape(view.statistic) * (n / (n - 1))
        mean = None if running_mean is None else (1 - momentum) * running_mean + momentum * value.mean
        return Forward(*value, mean, None if running_var is None else (1 - momentum) * running_var + momentum * var), s
    s = _fixed(view, x, running_mean, running_var, eps)
    w, b = view.weight(weight), view.weight(bias)
    y = s.xhat if w is None else s.xhat * w
    y = y if b is None else y + b
    mean, rstd = s.mean.reshape(view.statistic), s.rstd.reshape(view.statistic)
    return Forward(y.reshape(x.shape), mean, rstd, running_mean, running_var), s


@np.errstate(all="ignore")
def _fixed(view: View, x: Array, running_mean: Array | None, running_var: Array | None, eps: float) -> Statistics:
    """The running statistics, and x normalized by them."""
    mean, var = view.weight(running_mean), view.weight(running_var)
    if mean is None or var is None:
        raise ValueError("evaluation needs running_mean and running_var, and one of them is None")
    xc, rstd = x.reshape(view.shape) - mean, 1.0 / np.sqrt(var + eps)
    return Statistics(mean, xc, var, rstd, xc * rstd)


@np.errstate(all="ignore")
def _differentiate(view: View, dy: Array, x: Array, weight: Array | None, bias: Array | None,
                   s: Statistics) -> Backward:  # fmt: skip
    """`backward` for statistics that are constants."""
    w, dy = view.weight(weight), dy.reshape(view.shape)
    dx = s.rstd * (dy if w is None else w * dy)
    dweight = None if weight is None else (dy * s.xhat).sum(view.shared)
    return Backward(dx.reshape(x.shape), dweight, None if bias is None else dy.sum(view.shared))


def _nothing(x: Array, weight: Array | None, bias: Array | None) -> Backward:
    """The gradients where there is nothing to normalize, and their errors too."""
    zero = np.zeros(x.shape[1:2])
    return Backward(0 * x, None if weight is None else zero, None if bias is None else zero)


@np.errstate(all="ignore")
def _moved_error(view: View, x: Array, running_mean: Array | None, running_var: Array | None, momentum: float,
                 s: Statistics, a: Arithmetic) -> tuple[Array | None, Array | None]:  # fmt: skip
    """δ of the running statistics after training."""
    dmean, size = rounding.mean_error(x.reshape(view.shape), s.xc, s.mean, view, a)
    dvar = np.maximum(*rounding.variance_error(s.var, s.xc, dmean, size, view, a))
    m, k = abs(momentum), view.count / (view.count - 1)

    def moved(running: Array | None, share: float, value: Array, delta: Array, roundings: int) -> Array | None:
        if running is None:
            return None
        value, delta = np.abs(value.reshape(view.statistic)), delta.reshape(view.statistic)
        largest = np.abs(running) + share * (value + delta)
        error = share * delta + a.gamma(roundings) * largest + 4 * a.tiny
        return rounding.finite_below(error, view.count * largest, a.huge)

    return moved(running_mean, m, s.mean, dmean, 4), moved(running_var, m * k, s.var, dvar, 6)


@np.errstate(all="ignore")
def _factored_error(view: View, dy: Array, x: Array, error: Backward, s: Statistics, a: Arithmetic) -> Backward:
    """`backward_error` in training, where D = Σ dy·(x − μ) is summed and r comes after; |w| is in `a.tiny`."""
    _, rho = layernorm.statistics_error(view, x, s, a)
    r, largest = s.rstd * (1.0 + rho), _largest_sum(view, dy, s)
    lost = np.abs(s.xhat) * (1.0 + rho) * a.tiny * (1.0 + 2.0 * r * r)
    dx = rounding.finite_below(error.dx.reshape(view.shape) + lost, largest, a.huge).reshape(x.shape)
    return Backward(dx, _factored_weight_error(view, error.dweight, r, largest, a), error.dbias)


def _factored_weight_error(view: View, error: Array | None, r: Array, largest: Array, a: Arithmetic) -> Array | None:
    """The same of dweight."""
    if error is None:
        return None
    r, largest = r.reshape(error.shape), largest.reshape(error.shape)
    return rounding.finite_below(error + view.count * a.tiny * r, largest, a.huge)


def _largest_sum(view: View, dy: Array, s: Statistics) -> Array:
    """Σ|dy||x − μ| of every channel."""
    total: Array = (np.abs(dy.reshape(view.shape)) * np.abs(s.xc)).sum(view.axes, keepdims=True)
    return total


def _fixed_xhat_error(view: View, x: Array, s: Statistics, a: Arithmetic) -> XhatError:
    rho = rounding.rstd_error(np.asarray(a.tiny), np.asarray(a.tiny), s.rstd, a)
    z = rounding.xhat_error(x.reshape(view.shape), s.mean, 0.0, s.xhat, s.rstd, rho, a)
    return replace(z, floor=rounding.finite_below(z.floor, np.abs(s.xc), a.huge))


@np.errstate(all="ignore")
def _fixed_error(view: View, x: Array, weight: Array | None, bias: Array | None, value: Forward, s: Statistics,
                 a: Arithmetic) -> Forward:  # fmt: skip
    """`forward_error` for statistics that are constants, which training alone would change."""
    z = _fixed_xhat_error(view, x, s, a)
    y = rounding.affine_error(value.y.reshape(view.shape), s.xhat, s.rstd, view.weight(weight), view.weight(bias), z,
                              view, a) + a.tiny * np.abs(s.xc)  # fmt: skip
    mean, rstd = rounding.saved(s.mean, np.zeros(s.mean.shape), a), rounding.saved(s.rstd, s.rstd * z.factor, a)
    still = np.zeros(view.statistic)
    return Forward(y.reshape(x.shape), mean.reshape(view.statistic), rstd.reshape(view.statistic), still, still)


@np.errstate(all="ignore")
def _differentiate_error(view: View, dy: Array, x: Array, weight: Array | None, value: Backward, s: Statistics,
                         a: Arithmetic) -> Backward:  # fmt: skip
    """`backward_error` for statistics that are constants."""
    z, size = _fixed_xhat_error(view, x, s, a), np.abs(dy.reshape(view.shape))
    most = np.abs(value.dx.reshape(view.shape))
    w = view.weight(weight)
    lost = a.tiny * (2 + (1 + z.factor) * s.rstd + size + (0.0 if w is None else np.abs(w)))  # some product underflows
    dx = rounding.finite_below(most * (rounding.compound(a.gamma(3), a.xhat_u) * (1 + z.factor) + z.factor) + lost,
                               most + s.rstd * (1.0 if w is None else np.abs(w)), a.huge)  # fmt: skip
    dweight, dbias = value.dweight, value.dbias
    if dweight is not None:
        dweight = rounding.weight_error(dy.reshape(view.shape), s.xhat, z, view, a).reshape(dweight.shape)
        r = s.rstd * (1.0 + z.factor)
        dweight = _factored_weight_error(view, dweight, r, _largest_sum(view, dy, s), a)
    if dbias is not None:
        dbias = rounding.bias_error(dy.reshape(view.shape), view, a).reshape(dbias.shape)
    return Backward(dx.reshape(x.shape), dweight, dbias)
