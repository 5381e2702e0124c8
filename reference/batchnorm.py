"""BatchNorm: LayerNorm's algebra over the samples and positions of each channel, or fixed running statistics.

Seen as (B, C, S), S the product of the spatial dimensions, a channel has n = B·S values, which all share one weight.

**Training** normalizes each channel by its own mean and variance; μ and r depend on x, so the derivation of
`layernorm.backward` holds with means over a channel. The running statistics move towards those of the batch,

    running_mean ← (1 − m)·running_mean + m·μ      running_var ← (1 − m)·running_var + m·var·n/(n − 1)

with the unbiased variance, though x̂ uses the biased one. They are constants to the gradient.

**Evaluation** normalizes by the running statistics, which x does not change: see `fixed`.

**Undefined cases** follow torch.nn.functional.batch_norm. n = 1 in training is an error: x̂ would be 0 whatever x is,
and n/(n − 1) infinite. n = 0 in training returns an empty y and keeps the running statistics, since a mean of nothing
would poison them; mean and rstd are NaN, and the gradients of weight and bias 0.

**Errors in training** are those of `layernorm`, with sums of n terms. Underflow counts max(1, |w|) times, as kernels
may multiply by w last. With k = n/(n − 1), a division and a product (5 roundings), and 4 roundings (of m, of 1 − m or a
difference, a product, a sum) in either form of the average, (1 − m)·s + m·t or s + m·(t − s),

    δrunning_mean = m·δμ + γ(4)(|running_mean| + m(|μ| + δμ))
    δrunning_var = m·k·δv + γ(4)(running_var + m·k(var + δv)), δv = δvar + γ(5)(var + δvar)

A channel has one r, which kernels (torch, cuDNN) take out of the sums: with D = Σ dy·(x − μ), dweight = r·D and
dx = w·r(dy − mean dy − (x − μ)·k), k = D·r²/n. That has the same roundings, but where a product underflows D loses
n·tiny, hence dweight n·r·tiny and k tiny·(1 + 2r²) (its own products with it). D may also overflow where Σ dy·x̂ does
not: where Σ|dy||x − μ| exceeds the largest number, neither is judged.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from verify_norm.reference import fixed, layernorm, rounding, statistics_rounding
from verify_norm.reference.arithmetic import DIVISION, Arithmetic, finite_below
from verify_norm.reference.layernorm import Backward
from verify_norm.reference.norm import Norm
from verify_norm.reference.view import Array, View, channels_of

__all__ = ["Backward", "Forward", "backward", "backward_error", "channels", "forward", "forward_error"]


class Forward(NamedTuple):
    """The outputs of the forward pass: y as x; mean and rstd of each channel, and the new running statistics."""

    y: Array
    mean: Array
    rstd: Array
    running_mean: Array | None
    running_var: Array | None


@np.errstate(all="ignore")
def forward(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    *,
    training: bool,
    momentum: float,
    eps: float,
) -> Forward:
    """Normalize every channel, by its own statistics in training or by the running ones, then scale and shift it.

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
    view = channels(x, training)
    if not training:
        value = layernorm.normalize(fixed.norm(view, x, weight, bias, running_mean, running_var, eps))
        return Forward(*value, running_mean, running_var)
    if not view.count:
        nothing = np.full(view.statistic, np.nan)
        return Forward(0 * x, nothing, nothing, running_mean, running_var)
    n = layernorm.norm(view, x, weight, bias, eps)
    value = layernorm.normalize(n)
    unbiased = n.var.reshape(view.statistic) * (view.count / (view.count - 1))
    return Forward(*value, _moved(running_mean, value.mean, momentum), _moved(running_var, unbiased, momentum))


def backward(
    dy: Array,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    *,
    training: bool,
    eps: float,
) -> Backward:
    """Return the gradients of ⟨dy, y⟩ with respect to x, weight and bias; the module's docstring derives them.

    Parameters
    ----------
    dy
        the gradient with respect to y, as x.
    x, weight, bias, running_mean, running_var, training, eps
        as in `forward`. In training the reference computes the statistics again from x; the running ones are not used.

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
    if not training:
        return fixed.gradients(fixed.norm(view, x, weight, bias, running_mean, running_var, eps), dy)
    if not view.count:
        return _nothing(x, weight, bias)
    return Backward(*layernorm.norm(view, x, weight, bias, eps).gradients(dy))


@np.errstate(all="ignore")
def forward_error(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    *,
    training: bool,
    momentum: float,
    eps: float,
    arithmetic: Arithmetic,
) -> Forward:
    """Return how far a kernel of this arithmetic may be from `forward`, per element, before the final rounding.

    Parameters, shapes, errors and costs are those of `forward`.

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
    view, a = channels(x, training), arithmetic
    if not training:
        n = fixed.norm(view, x, weight, bias, running_mean, running_var, eps)
        still = np.zeros(view.statistic)
        return Forward(*fixed.normalize_error(n, a), still, still)
    if not view.count:  # nothing is normalized, so nothing is rounded
        nothing = np.full(view.statistic, np.nan)
        kept = (None if s is None else 0 * s for s in (running_mean, running_var))
        return Forward(0 * x, nothing, nothing, *kept)
    n = layernorm.norm(view, x, weight, bias, eps)
    e, m, k = statistics_rounding.statistics_error(n, a), abs(momentum), view.count / (view.count - 1)
    moved_mean = _moved_error(n, running_mean, m, n.mean, e.mean, a.gamma(4), a)
    var = np.maximum(e.low, e.high)
    var = var + a.gamma(DIVISION + 1) * (n.var + var)
    moved_var = _moved_error(n, running_var, m * k, n.var, var, a.gamma(4), a)
    return Forward(*layernorm.normalize_error(n, a), moved_mean, moved_var)


@np.errstate(all="ignore")
def backward_error(
    dy: Array,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    *,
    training: bool,
    eps: float,
    arithmetic: Arithmetic,
    given: statistics_rounding.Given | None = None,
) -> Backward:
    """Return how far a kernel of this arithmetic may be from `backward`, per element, before the final rounding.

    The bound covers statistics that the kernel is given and statistics that it computes itself, and with `given` only
    the first, as in `layernorm.backward_error`. Evaluation takes no notice of them.

    >>> float32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38)
    >>> x, zero, one = np.array([[1.0], [3.0]]), np.zeros(1), np.ones(1)
    >>> bool(backward_error(x, x, one, zero, zero, one, training=False, eps=0.1, arithmetic=float32).dx.max() < 2e-6)
    True
    """
    view, a = channels(x, training), arithmetic
    if not training:
        return fixed.gradients_error(fixed.norm(view, x, weight, bias, running_mean, running_var, eps), dy, a)
    if not view.count:
        return _nothing(x, weight, bias)
    n = layernorm.norm(view, x, weight, bias, eps)
    largest_weight = 1.0 if weight is None else float(np.abs(weight).max(initial=1.0))
    if math.isfinite(largest_weight):
        a = replace(a, tiny=a.tiny * largest_weight)
    return _factored_error(n, dy, a, given)


def channels(x: Array, training: bool) -> View:
    """View x (B, C, *spatial) as channels (B, C, S): all samples and positions of one are normalized together.

    Raises
    ------
    ValueError : x has no channels, or training has one value a channel.

    >>> channels(np.zeros((2, 3, 4, 5)), True).shape
    (2, 3, 20)
    """
    B, C, S = channels_of(x)
    if training and B * S == 1:
        raise ValueError(f"x: training needs more than one value a channel, got the shape {x.shape}")
    return View((B, C, S), axes=(0, 2), shared=(0, 2), affine=(1, C, 1), data=x.shape, parameter=(C,), statistic=(C,))


def _moved(running: Array | None, batch: Array, momentum: float) -> Array | None:
    """Return a running statistic after training on a batch."""
    return None if running is None else (1 - momentum) * running + momentum * batch


def _moved_error(
    n: Norm, running: Array | None, share: float, value: Array, delta: Array, unit: float, a: Arithmetic
) -> Array | None:
    """Return δ of a running statistic: share·δ + unit·(|running| + share·(|value| + δ))."""
    if running is None:
        return None
    value, delta = np.abs(value.reshape(n.view.statistic)), delta.reshape(n.view.statistic)
    largest = np.abs(running) + share * (value + delta)
    return finite_below(share * delta + unit * largest + 4 * a.tiny, n.view.count * largest, a.huge)


def _nothing(x: Array, weight: Array | None, bias: Array | None) -> Backward:
    """Return the gradients of an empty x, which are also their errors."""
    zero = np.zeros(x.shape[1:2])
    return Backward(0 * x, None if weight is None else zero, None if bias is None else zero)


def _factored_error(n: Norm, dy: Array, a: Arithmetic, given: statistics_rounding.Given | None) -> Backward:
    """Return `backward_error` in training, for kernels that sum D = Σ dy·(x − μ) first; |w| is in `a.tiny`."""
    dx, dweight, dbias = rounding.gradients_error(n, dy, a, given=given)
    rho = statistics_rounding.saved_error(n, a, given).rho
    r, largest = n.rstd * (1.0 + rho), fixed.largest_sum(n, dy)
    lost = np.abs(n.xhat) * (1.0 + rho) * a.tiny * (1.0 + 2.0 * r * r)
    dx = finite_below(dx.reshape(n.view.shape) + lost, largest, a.huge).reshape(n.view.data)
    return Backward(dx, fixed.factored_error(n, dweight, r, largest, a), dbias)
