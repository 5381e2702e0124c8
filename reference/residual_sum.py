"""What add_layernorm and add_rmsnorm share: h = x + residual, y = norm(h), its gradients and rounding errors.

The forward pass returns y and residual_out, which is h rounded to x's type: the stream that the next layer adds to. The
contract decides which h the statistics and y are computed from. The strict default is the float32 sum (flash-attn's
Triton kernel, quack's, FlashInfer's FusedAddRMSNorm, vLLM's native operator). The alternative is the rounded
residual_out (vLLM's CUDA kernel, see its issue 52104, and Liger's). The two differ by a rounding to 16 bits, and so do
their results.

**Backward.** A change ẋ of x, or of residual, changes h by as much. It reaches ⟨dy, y⟩ through the norm and
⟨dresidual_out, residual_out⟩ directly (rounding counts as the identity), so

    dx = dresidual = vjp(dy; h) + dresidual_out

and not vjp(dy + dresidual_out). The forward pass saves residual_out in place of h, so the norm is differentiated there;
dweight and dbias are those of the norm.

**Errors of the forward pass.** One addition is a single operation, so its result is known to the bit: h̃, the exact sum
rounded to the accumulation type, or by contract to x's. A kernel is within the norm's δ(h̃) of norm(h̃), hence within

    |norm(h̃) − norm(h)| + δ(h̃)

of the truth, which also admits a kernel that keeps more of h than it promises. Rounding first to float32 and then to a
type of p bits gives what rounding at once gives where 24 ≥ 2p + 2 (Figueroa, "When is double rounding innocuous?",
SIGNUM Newsletter 30, 1995; formally proved by Roux, J. Formalized Reasoning 7, 2014), so for both 16-bit types
residual_out has one right value, as in float32 itself: ties go to even. A subnormal x, residual or sum may each be
flushed to zero: three times the underflow of a norm.

**After a dropout** the summand x̃ = dropout(x) is off by δx̃, so no bit of h is known, and ties may go either way. What a
kernel keeps of h lies between the roundings of h − δx̃ and h + δx̃: h̃, the rounding of h, is off by as much, at least by
δx̃. And residual_out is off by δx̃ + u(|h| + δx̃).

**Errors of the backward pass.** A kernel may add the terms r·g, r·c2, r·x̂·c1 and dresidual_out in any order. Each term
of the norm meets at most one addition more than without dresidual_out, and dresidual_out itself meets k, 2 for RMSNorm
and 3 for LayerNorm:

    δdx = δvjp + u·(r(|g| + |c2| + |x̂·c1|) + δvjp) + γ(k)·|dresidual_out|

Where results between operations are rounded to a narrow type, δvjp has that rounding too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from verify_norm.reference.arithmetic import Arithmetic, finite_below, nearest
from verify_norm.reference.norm import Norm
from verify_norm.reference.stages.stage import Approximate, rounded_off
from verify_norm.reference.view import Array

Rounding = Callable[[Array], Array]
SINGLE = 2.0**-24  # the unit roundoff of float32


@np.errstate(all="ignore")
def kept(h: Array, a: Arithmetic, rounded: Rounding | None) -> Array:
    """Return h̃, what a kernel of this contract keeps of h."""
    return nearest(h, a) if rounded is None else rounded(h)


@np.errstate(all="ignore")
def kept_off(h: Array, off: Array, a: Arithmetic, rounded: Rounding | None) -> Array:
    """Return how far what a kernel keeps of h may be from h̃, where h is off by `off`.

    >>> float32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38)
    >>> h, off = np.array([1.25, 1.0]), np.array([2**-20, 2**-20])
    >>> kept_off(h, off, float32, lambda v: np.rint(2 * v) / 2).tolist()  # 1.25 is a tie: 1 is right, and 1.5
    [0.5, 9.5367431640625e-07]
    """
    low, middle, high = (kept(value, a, rounded) for value in (h - off, h, h + off))
    apart = np.maximum(np.abs(low - middle), np.abs(high - middle))
    return np.where(np.isfinite(off), np.maximum(apart, off), np.inf)


def flushing(a: Arithmetic) -> Arithmetic:
    """Return the arithmetic of a norm whose input may lose three subnormal numbers."""
    return replace(a, tiny=3 * a.tiny)


def added(x: Array, other: Array, name: str) -> Array:
    """Return x + other; raise ValueError, which names `other`, where their shapes differ."""
    if other.shape != x.shape:
        raise ValueError(f"{name}: expected the shape {x.shape}, got {other.shape}")
    return x + other


@np.errstate(all="ignore")
def sum_error(x: Array, residual: Array, a: Arithmetic) -> Array:
    """Return δ of residual_out = x + residual: 0 where it has one right value, so that ties go to even.

    That is where the accumulation type is float32 or wider and holds x and residual. Subnormal numbers may be flushed.

    >>> float32 = Arithmetic(u=2**-24, tiny=2**-126, huge=3.4028235e38)
    >>> sum_error(np.array([256.0, 1.0]), np.array([1.0, 2.0**-130]), float32) > 0  # 257 is a tie of bfloat16
    array([False,  True])
    """
    h = x + residual
    lost = sum(np.where(np.isfinite(v), np.abs(nearest(v, a) - v), 0.0) for v in (x, residual))
    off = np.abs(nearest(h, a) - h)
    off = np.where(lost == 0, 0.0, off) if a.u <= SINGLE else off
    smallest = np.minimum(np.minimum(_unless_zero(x), _unless_zero(residual)), _unless_zero(h))
    return finite_below(off + np.where(smallest < a.tiny, 3 * a.tiny, 0.0), np.abs(h), a.huge)


def _unless_zero(v: Array) -> Array:
    return np.where(v == 0, np.inf, np.abs(v))


@np.errstate(all="ignore")
def dropped_sum_error(x: Approximate, residual: Array, a: Arithmetic) -> Array:
    """Return δ of residual_out = x̃ + residual, where x̃ is what a dropout leaves, off by x.delta."""
    h = np.abs(x.value + residual) + x.delta
    return finite_below(x.delta + a.u * h + 3 * a.tiny, np.abs(x.value) + x.delta + np.abs(residual), a.huge)


@np.errstate(all="ignore")
def apart(exact: Sequence[Array], kept: Sequence[Array], error: Sequence[Array]) -> list[Array]:
    """Return |norm(h̃) − norm(h)| + δ(h̃) of every output."""
    return [np.abs(with_kept - true) + e for true, with_kept, e in zip(exact, kept, error, strict=True)]


def joined(dx: Array, dresidual_out: Array | None) -> Array:
    """Return dx with the gradient that comes through residual_out.

    >>> joined(np.array([0.5]), np.array([1.0])).tolist()
    [1.5]
    """
    return dx if dresidual_out is None else added(dx, dresidual_out, "dresidual_out")


@np.errstate(all="ignore")
def joined_error(n: Norm, dy: Array, delta: Array, dresidual_out: Array | None, a: Arithmetic) -> Array:
    """Return δdx by the last line of the module's docstring; `delta` is δvjp."""
    if dresidual_out is None:
        return delta
    p = n.gradient(dy.reshape(n.view.shape))
    delta = rounded_off(p.dx.reshape(delta.shape), delta, a)
    size = np.abs(p.g) if p.c2 is None else np.abs(p.g) + np.abs(p.c2)
    terms = (n.rstd * (size + np.abs(n.share * n.xhat * p.c1))).reshape(delta.shape) + delta
    added = addition_error(n, terms, dresidual_out, a)
    return finite_below(delta + added, terms + np.abs(dresidual_out), a.huge)


def addition_error(n: Norm, terms: Array, dresidual_out: Array, a: Arithmetic) -> Array:
    """Return what adding dresidual_out costs: u of the norm's terms, whose sum of magnitudes is `terms`, and γ(k)."""
    k = 3 if n.centred else 2
    return a.gamma(1) * terms + a.gamma(k) * np.abs(dresidual_out) + (k + 1) * a.tiny
