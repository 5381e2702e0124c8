"""Norms in emulated arithmetic, with one rounding after each operation."""

from functools import partial

import numpy as np
import torch

from verify_norm.cases.contents import to_float64
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.kernel import Kernel

RANDOM = np.random.default_rng(0)


def rounding(name):
    """A function that rounds float64 values to a dtype; after one operation in float64 it gives that of the dtype."""
    if name == "float64":
        return lambda v: v
    if name in ("float32", "float16"):

        def native(v):
            with np.errstate(over="ignore"):
                return np.asarray(v).astype(name).astype(np.float64)

        return native
    return FORMATS[name].round


def sequential(t, r):
    out = t[:, 0]
    for i in range(1, t.shape[1]):
        out = r(out + t[:, i])
    return out


def pairwise(t, r):
    while t.shape[1] > 1:
        odd = t[:, -1:] if t.shape[1] % 2 else t[:, :0]
        t = np.concatenate([r(t[:, 0 : t.shape[1] // 2 * 2 : 2] + t[:, 1::2]), odd], axis=1)
    return t[:, 0]


def folded(t, r):
    while (n := t.shape[1]) > 1:
        h = (n + 1) // 2
        t = np.concatenate([r(t[:, : n - h] + t[:, h:]), t[:, n - h : h]], axis=1)
    return t[:, 0]


def lanes(t, r, count=8):
    return folded(np.stack([sequential(t[:, k::count], r) for k in range(min(count, t.shape[1]))], axis=1), r)


def runs(t, r, length=16):
    return pairwise(np.stack([sequential(t[:, k : k + length], r) for k in range(0, t.shape[1], length)], axis=1), r)


def narrow_partials(t, r, length=16, kept="bfloat16"):
    """Blocks in one dtype, with sums in a narrower one."""
    q = rounding(kept)
    return sequential(q(np.stack([sequential(t[:, k : k + length], r) for k in range(0, t.shape[1], length)], 1)), q)


def shuffled(t, r):
    return sequential(t[:, RANDOM.permutation(t.shape[1])], r)


def statistics(
    x,
    eps,
    centred,
    *,
    total=folded,
    acc="float32",
    sums=None,
    variance="two_pass",
    ddof=0,
    eps_at="inside",
    eps_is=None,
):
    """Mean and rstd of each row; `acc` is the dtype of all operations, `sums` that of the sums if it differs."""
    r, s = rounding(acc), rounding(sums or acc)
    n = x.shape[1]
    eps = r(np.float64(eps if eps_is is None else eps_is))
    if not centred:
        mean, var = np.zeros(len(x)), r(total(s(np.square(x)), s) / (n - ddof))
    elif variance == "welford":
        mean, m2 = np.zeros(len(x)), np.zeros(len(x))
        for i in range(n):
            delta = r(x[:, i] - mean)
            mean = r(mean + r(delta / (i + 1)))
            m2 = r(m2 + r(delta * r(x[:, i] - mean)))
        var = r(m2 / (n - ddof))
    else:
        first = x[:, :1] if variance == "shifted" else np.zeros((len(x), 1))
        d = r(x - first)
        mean = r(total(s(d), s) / n)
        if variance == "two_pass":
            var = r(total(s(r(np.square(r(d - mean[:, None])))), s) / (n - ddof))
        else:
            var = r(r(total(s(r(np.square(d))), s) / n) - r(mean * mean))
        mean = r(mean + first[:, 0])
    with np.errstate(all="ignore"):
        if eps_at == "outside":
            return mean, r(1 / r(r(np.sqrt(var)) + eps))
        added = {"inside": var + eps, "clamped": np.maximum(var, eps), "on_sum": var + eps / n}[eps_at]
        return mean, r(1 / r(np.sqrt(r(added))))


def forward(x, weight, bias, eps, centred, *, form="centred", kept=None, early=False, returns=3, acc="float32", **how):
    shape, n = x.shape, weight.numel()
    rows = to_float64(x).reshape(-1, n)
    w = to_float64(weight).reshape(1, n)
    b = np.zeros((1, n)) if bias is None else to_float64(bias).reshape(1, n)
    r = rounding(acc)
    mean, rstd = statistics(rows, eps, centred, acc=acc, **how)
    m, s = mean[:, None], rstd[:, None]
    with np.errstate(all="ignore"):
        if form == "expanded":
            y = r(r(rows * r(s * w)) + r(b - r(m * r(s * w))))
        elif form == "expanded fused":
            y = r(rows * r(s * w) + r(b - r(m * r(s * w))))
        elif form == "fused":
            y = r(r(r(rows - m) * s) * w + b)
        else:
            xhat = r(r(rows - m) * s)
            xhat = rounding(str(x.dtype)[6:])(xhat) if early else xhat
            y = r(r(xhat * w) + b)
    q = rounding(kept or "float32")
    out = [torch.from_numpy(y).reshape(shape).to(x.dtype)]
    out += [torch.from_numpy(q(v)).float() for v in ((mean, rstd) if centred else (rstd,))]
    return tuple(out[:returns])


def layernorm_fwd(**how):
    return lambda x, weight, bias, eps: forward(x, weight, bias, eps, True, **how)


def rmsnorm_fwd(**how):
    return lambda x, weight, eps: forward(x, weight, None, eps, False, **how)


def layernorm_bwd(
    *, total=folded, columns=folded, acc="float32", sums=None, stats=None, early=None, term=None, recompute=False
):
    def run(dy, x, weight, mean, rstd, eps):
        n = weight.numel()
        g0, rows, w = (to_float64(t).reshape(-1, n) for t in (dy, x, weight))
        r, s = rounding(acc), rounding(sums or acc)
        m, k = statistics(rows, eps, True, acc=acc) if recompute else (to_float64(t).reshape(-1) for t in (mean, rstd))
        q = rounding(stats or "float32")
        m, k = q(m)[:, None], q(k)[:, None]
        xhat = rounding(early or "float64")(r(r(rows - m) * k))
        g = r(g0 * w)
        c1 = r(total(s(r(g * xhat)), s) / n)[:, None]
        c2 = r(total(s(g), s) / n)[:, None]
        dx = r(k * r(g - r(c2 + r(xhat * c1))))
        products = rounding(term or "float64")(r(g0 * xhat))
        dw, db = columns(s(products).T, s), columns(s(g0).T, s)
        out = (torch.from_numpy(dx).reshape(x.shape).to(x.dtype), *(torch.from_numpy(v) for v in (dw, db)))
        return out[0], out[1].to(weight.dtype), out[2].to(weight.dtype)

    return run


def kernel(op, function, **contract):
    return Kernel("emulated", op, run=function, contract=Contract(**contract))


LANES8 = partial(lanes, count=8)


def kahan(t, r):
    """Compensated: the error of each addition is subtracted from the next summand."""
    out, lost = t[:, 0], np.zeros(len(t))
    for i in range(1, t.shape[1]):
        term = r(t[:, i] - lost)
        new = r(out + term)
        lost, out = r(r(new - out) - term), new
    return out
