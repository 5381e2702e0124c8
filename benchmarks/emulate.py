"""Normalization kernels in float32 arithmetic, in the many orders that a GPU may use, and some wrong kernels.

All functions work on rows: those of LayerNorm and RMSNorm, or GroupNorm's groups laid out as rows of C/G·S elements.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from verify_norm.core.dtypes import FORMATS
from verify_norm.reference.arithmetic import PRODUCTS, RUN

F = NDArray[Any]  # float32 throughout
F32 = np.float32
BLOCKED = ("pairwise", "torch", "tree", "reversed", "lanes128", "lanes256", "lanes1024", "runs128", "runs1024")
STEP = 8  # products that a tensor core adds at once
WRONG = ("one_pass", "n_minus_1", "eps_outside", "no_c2", "xhat_bf16", "partials_bf16", "stats_bf16")


@dataclass(frozen=True)
class Method:
    """A method of computation. Every field but `bug` is a choice of a correct kernel."""

    total: str = "pairwise"
    fused: bool = False  # fused multiply-add where lanes are summed
    reciprocal: bool = False  # multiply sums by a rounded 1/n instead of dividing by n
    variance: str = "two_pass"  # two_pass, welford, chan, shifted
    lanes: int = 256
    rsqrt_ulps: int | None = None  # None: 1/√; otherwise the error of rsqrt, in ulp of the correctly rounded one
    approximate: int = 0  # 1, −1: quotients and roots are off to that side as far as div.full and sqrt.approx may be
    fold: bool = False  # (x − mean)·(rstd·w) instead of ((x − mean)·rstd)·w
    expanded: bool = False
    sums: bool = False  # r/n·(n·g − Σg − x̂·Σgx̂) instead of r(g − c2 − x̂·c1)
    given: bool = False  # backward reads saved statistics instead of computing them
    flush: bool = False  # subnormal numbers count as zero
    stats: str | None = None  # the narrower type of the saved statistics; None: float32
    xhat: str | None = None
    partials: str | None = None
    products: str | None = None  # of PRODUCTS: sums are matrix products; None: they are not
    cut: bool = True  # operands of matrix products are cut off instead of rounded
    ones: bool = False  # products are formed first, and multiplied by ones
    offset: bool = False  # weight + offset is rounded to the weight's type
    bug: str | None = None


def quantized(value: F, name: str | None) -> F:
    """Return values rounded to nearest even in the format, as float32."""
    return value if name is None else FORMATS[name].round(value.astype(np.float64)).astype(F32)


def halves(t: F) -> F:
    """Return the sum over the last axis, in a tree: add the two halves until one element is left."""
    while (n := t.shape[-1]) > 1:
        h = (n + 1) // 2
        t = np.concatenate([t[..., : n - h] + t[..., h:], t[..., n - h : h]], axis=-1)
    return t[..., 0]


def laid_out(t: F, lanes: int, strided: bool) -> F:
    """Return t as (runs, rows, lanes), padded with zeros; each lane adds its runs in sequence."""
    K, n = t.shape
    length = -(-n // lanes)
    t = np.pad(t, ((0, 0), (0, length * lanes - n)))
    return t.reshape(K, length, lanes).swapaxes(0, 1) if strided else t.reshape(K, lanes, length).transpose(2, 0, 1)


def pieces(value: F, products: str, *, cut: bool) -> list[F]:
    """Return the operands that stand for a value in a matrix product, as float64: each of what the others miss."""
    bits, count = PRODUCTS[products]
    rest, found = value.astype(np.float64), []
    for _ in range(count):
        mantissa, exponent = np.frexp(rest)
        whole = np.ldexp(mantissa, bits // count)
        found.append(np.ldexp(np.trunc(whole) if cut else np.rint(whole), exponent - bits // count))
        rest = rest - found[-1]
    return found


def accumulated(acc: F, terms: F) -> F:
    """Return acc plus the sum of exact terms over the last axis, as a tensor core adds them.

    All are aligned to the largest and cut off one bit beyond float32, and so is the sum, to float32 (Fasi, Higham,
    Mikaitis & Pranesh, PeerJ Computer Science 7:e330, 2021).
    """
    terms = np.concatenate([acc[..., None], terms], axis=-1)
    exponent = np.frexp(np.abs(terms).max(-1))[1]
    whole = np.trunc(np.ldexp(terms, 25 - exponent[..., None])).sum(-1)
    result = np.ldexp(whole, exponent - 25)
    mantissa, exponent = np.frexp(result)
    return np.asarray(np.ldexp(np.trunc(np.ldexp(mantissa, 24)), exponent - 24))


def matrix_product(a: F, b: F | None, m: Method) -> F:
    """Return Σ a·b or Σ a along the last axis, shape (rows, 1), by matrix products in runs, which a tree adds."""
    K, n = a.shape
    length = min(n, RUN)
    runs = -(-n // length)

    def operands(value: F) -> list[F]:
        parts = pieces(value, str(m.products), cut=m.cut)
        return [np.pad(p, ((0, 0), (0, runs * length - n))).reshape(K, runs, length) for p in parts]

    left, right = operands(a), [np.ones(1)] if b is None else operands(np.broadcast_to(b, a.shape))
    acc, count = np.zeros(left[0].shape[:2]), len(left)
    for i, j in sorted(np.ndindex(count, len(right)), key=sum, reverse=True):  # the smallest products first
        if i + j < count:
            terms = left[i] * right[j]
            for start in range(0, length, STEP):
                acc = accumulated(acc, terms[..., start : start + STEP])
    return halves(acc.astype(F32))[:, None]


def total(a: F, b: F | None, m: Method) -> F:
    """Return Σ a or Σ a·b along the last axis, shape (rows, 1), in the method's order of summation."""
    how = m.total
    if a.shape[-1] == 0:
        return np.zeros((a.shape[0], 1), F32)
    if m.products is not None:
        return matrix_product(a, b, m) if b is None or not m.ones else matrix_product(a * b, None, m)
    if how.startswith(("lanes", "runs")):
        lanes = min(int(how.lstrip("lanesru")), a.shape[-1])
        parts = laid_out(a, lanes, how.startswith("lanes"))
        others = None if b is None else laid_out(np.broadcast_to(b, a.shape), lanes, how.startswith("lanes"))
        out = np.zeros(parts.shape[1:], F32)
        for i, part in enumerate(parts):
            if others is None:
                out = out + part
            elif m.fused:
                out = (out + part.astype(np.float64) * others[i]).astype(F32)
            else:
                out = out + part * others[i]
        return halves(out)[:, None]
    t = np.ascontiguousarray(a if b is None else a * b)
    if how == "torch":
        return torch.from_numpy(t).sum(-1, keepdim=True).numpy()
    if how == "tree":
        return halves(t)[:, None]
    if how == "sequential":
        return np.add.accumulate(t, axis=-1)[:, -1:]
    return np.sum(t[:, ::-1].copy() if how == "reversed" else t, axis=-1, keepdims=True)


def quotient(a: Any, b: Any, m: Method) -> Any:
    """Return a/b; where the method is approximate, 1 ulp from the nearest number: div.full may err by 2.

    A quotient by a power of two stays exact: its reciprocal is.
    """
    nearest = np.asarray(a / b, F32)
    off = (np.frexp(b)[0] != 0.5) & (nearest != 0) & np.isfinite(nearest)
    return np.where(off, np.nextafter(nearest, F32(m.approximate * np.inf)), nearest) if m.approximate else nearest


def root(value: F, m: Method) -> F:
    """Return √value; where the method is approximate, off by 2u: u, and a rounding."""
    return (np.sqrt(value.astype(np.float64)) * (1 + m.approximate * 2.0**-24)).astype(F32)


def mean(a: F, b: F | None, m: Method, n: int | None = None) -> F:
    """Return `total` divided by the number of terms."""
    count = F32(n or a.shape[-1])
    return total(a, b, m) * quotient(F32(1), count, m) if m.reciprocal else quotient(total(a, b, m), count, m)


def merged(mu: F, m2: F, count: F) -> tuple[F, F]:
    """Return the mean and the sum of squares over all lanes, merged in a tree (Chan, Golub & LeVeque)."""
    while (n := mu.shape[-1]) > 1:
        h = (n + 1) // 2
        a, b = slice(0, n - h), slice(h, n)
        both = count[..., a] + count[..., b]
        share = count[..., b] / np.maximum(both, F32(1))
        delta = mu[..., b] - mu[..., a]
        new = (mu[..., a] + delta * share, m2[..., a] + m2[..., b] + delta * delta * count[..., a] * share, both)
        mu, m2, count = (np.concatenate([x, y[..., n - h : h]], -1) for x, y in zip(new, (mu, m2, count), strict=True))
    return mu, m2


def welford(x: F, m: Method) -> tuple[F, F]:
    """Return mean and variance: one running mean and sum of squares a lane (Welford), then a merge of the lanes."""
    n = x.shape[-1]
    parts = laid_out(x, min(m.lanes, n), True)
    mu, m2, count = (np.zeros(parts.shape[1:], F32) for _ in range(3))
    filled = np.arange(parts.shape[0] * parts.shape[2]).reshape(parts.shape[0], 1, -1) < n
    for part, valid in zip(parts, filled, strict=True):
        count = count + valid.astype(F32)
        delta = np.where(valid, part - mu, F32(0))
        mu = mu + quotient(delta, np.maximum(count, F32(1)), m)
        m2 = m2 + delta * np.where(valid, part - mu, F32(0))
    mu, m2 = merged(mu, m2, count)
    return mu, quotient(m2, F32(n), m)


def chan(x: F, tile: int, m: Method) -> tuple[F, F]:
    """Return mean and variance: two passes inside each tile, then a merge of the tiles."""
    n = x.shape[-1]
    tiles = [x[:, i : i + tile] for i in range(0, n, tile)]
    mus = [mean(t, None, m) for t in tiles]
    m2s = [total(t - mu, t - mu, m) for t, mu in zip(tiles, mus, strict=True)]
    counts = [np.full_like(mu, t.shape[-1]) for t, mu in zip(tiles, mus, strict=True)]
    mu, m2 = merged(np.concatenate(mus, -1), np.concatenate(m2s, -1), np.concatenate(counts, -1))
    return mu, quotient(m2, F32(n), m)


def reciprocal_root(value: F, m: Method) -> F:
    """Return 1/√value, as the method makes it."""
    if m.rsqrt_ulps is None:
        return np.asarray(quotient(F32(1), root(value, m), m))
    nearest = (1.0 / np.sqrt(value.astype(np.float64))).astype(F32)
    ulps = np.arange(nearest.size, dtype=np.int32).reshape(nearest.shape) * 7 % (2 * m.rsqrt_ulps + 1) - m.rsqrt_ulps
    return np.asarray((nearest.view(np.int32) + ulps).view(F32))


def statistics(x: F, eps: float, m: Method, *, centred: bool) -> tuple[F, F]:
    """Return mean (zero for RMSNorm) and rstd of every row."""
    n = x.shape[-1]
    if not centred:
        mu, var = np.zeros((x.shape[0], 1), F32), mean(x, x, m)
    elif m.bug == "one_pass":
        mu = mean(x, None, m)
        var = np.maximum(mean(x, x, m) - mu * mu, F32(0))
    elif m.variance == "shifted":
        d = x - x[:, :1]
        s = mean(d, None, m)
        mu, var = x[:, :1] + s, np.maximum(mean(d, d, m) - s * s, F32(0))
    elif m.variance == "welford":
        mu, var = welford(x, m)
    elif m.variance == "chan":
        mu, var = chan(x, m.lanes, m)
    else:
        mu = mean(x, None, m)
        var = mean(x - mu, x - mu, m)
    if m.bug == "n_minus_1":
        var = var * (F32(n) / F32(max(n - 1, 1)))
    if m.bug == "eps_outside":
        return mu, F32(1) / (np.sqrt(var) + F32(eps))
    return mu, reciprocal_root(var + F32(eps), m)


def forward(x: F, w: F | None, b: F | None, eps: float, m: Method, *, centred: bool) -> tuple[F, F, F]:
    """Return y, mean and rstd; w and b have the shape of x."""
    mu, r = statistics(x, eps, m, centred=centred)
    if m.expanded:
        a = r if w is None else r * w
        y = x * a + ((F32(0) if b is None else b) - mu * a)
        return y, mu, r
    if m.fold and w is not None:
        y = (x - mu) * (r * w)
    else:
        xhat = quantized((x - mu) * r, "bfloat16" if m.bug == "xhat_bf16" else m.xhat)
        y = xhat if w is None else xhat * w
        if m.fused and w is not None and b is not None:
            return (xhat.astype(np.float64) * w + b).astype(F32), mu, r
    return (y if b is None else y + b), mu, r


def backward(dy: F, x: F, w: F | None, eps: float, m: Method, *, centred: bool, given: tuple[F, F]) -> tuple[F, F, F]:
    """Return dx, dy and x̂; `reduced` sums the products dy·x̂."""
    n = F32(x.shape[-1])
    mu, r = given if m.given else statistics(x, eps, m, centred=centred)
    narrow = "bfloat16" if m.bug == "stats_bf16" else m.stats
    mu, r = quantized(mu, narrow), quantized(r, narrow)
    g = quantized(dy if w is None else dy * w, m.xhat)
    xhat = quantized(x * r - mu * r if m.expanded else (x - mu) * r, "bfloat16" if m.bug == "xhat_bf16" else m.xhat)
    drop = not centred or m.bug == "no_c2"
    if m.expanded:
        db, ds = total(g, None, m), total(g, x, m)
        slope = (db * mu - ds) * (r * r * r / n)
        return r * g + (slope * x + (-slope * mu - db * r / n)), dy, xhat
    if m.sums:
        s1, s2 = total(g, xhat, m), F32(0) if drop else total(g, None, m)
        return quotient(r, n, m) * ((n * g - s2) - xhat * s1), dy, xhat
    c1, c2 = mean(g, xhat, m), F32(0) if drop else mean(g, None, m)
    return (g - (xhat * c1 + c2)) * r, dy, xhat


def reduced(dy: F, xhat: F | None, m: Method) -> F:
    """Return Σ dy·x̂, or Σ dy without x̂, over the last axis: one value for each weight."""
    narrow = "bfloat16" if m.bug == "partials_bf16" else m.partials
    if narrow is None:
        return total(dy, xhat, m)[:, 0]
    out = np.zeros(dy.shape[0], F32)
    for i in range(dy.shape[1]):
        out = quantized(out + (dy[:, i] if xhat is None else dy[:, i] * xhat[:, i]), narrow)
    return out
