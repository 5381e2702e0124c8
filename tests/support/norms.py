"""Right norms in torch, and wrong ones by the name of their mistake, for tests: `from norms import layernorm`.

Each function returns a kernel that takes the arguments of its operator by name. Without a mistake it computes in
float32; as "float64" it computes in that, and rounds once.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def rows(t, normalized_shape, kind=torch.float32):
    return t.to(kind).reshape(-1, torch.Size(normalized_shape).numel())


def statistics(r, eps, how=""):
    """mean and rstd of every row: right in other ways ("welford", "shifted", "pow", …), or wrong."""
    mean, n = r.mean(1, keepdim=True), r.shape[1]
    if how == "by count":  # vLLM issue 48391: the width of a block depends on how many rows there are
        mean = sum(part.sum(1, keepdim=True) for part in r.split(64 if len(r) < 8 else 128, 1)) / n
    if how == "by place":  # the first row is summed the other way round
        mean[:1] = r[:1].flip(1).cumsum(1)[:, -1:] / n
    if how == "one pass":
        var = (r.square().mean(1, keepdim=True) - mean.square()).clamp(min=0)
    elif how == "shifted":
        d = r - r[:, :1]
        s = d.mean(1, keepdim=True)
        mean, var = r[:, :1] + s, (d.square().mean(1, keepdim=True) - s.square()).clamp(min=0)
    elif how == "welford":
        mean, m2 = torch.zeros_like(mean), torch.zeros_like(mean)
        for i in range(n):
            delta = r[:, i : i + 1] - mean
            mean = mean + delta / (i + 1)
            m2 = m2 + delta * (r[:, i : i + 1] - mean)
        var = m2 / n
    else:
        var = (r - mean).square().mean(1, keepdim=True)
    var = var * (n / (n - 1)) if how == "n - 1" else var
    eps = 1e-5 if how == "hard-coded eps" else eps
    rstd = (var + eps).pow(-0.5) if how == "pow" else (var + eps).rsqrt()
    return mean, torch.where(var == 0, 0.0, rstd) if how == "guard" else rstd


def layernorm(how=""):
    def layernorm_fwd(x, weight, bias, eps, normalized_shape, weight_offset=0.0):
        r = rows(x, normalized_shape, torch.float64 if how == "float64" else torch.float32)
        mean, rstd = statistics(r, eps, how)
        a = rstd if weight is None else rstd * (rows(weight, normalized_shape, r.dtype) + weight_offset)
        a = a * (1 + 2.0**-13) if how == "grown" else a
        b = 0.0 if bias is None else rows(bias, normalized_shape, r.dtype)
        y = r * a + (b - mean * a) if how == "expanded" else (r - mean) * a + b
        return y.reshape(x.shape).to(x.dtype), mean[:, 0].float(), rstd[:, 0].float()

    return layernorm_fwd


RECOMPUTED = ("recomputed", "hard-coded eps", "pow", "shifted", "welford", "float64")


def layernorm_bwd(how=""):
    def layernorm_bwd(dy, x, weight, bias, mean, rstd, eps, normalized_shape, weight_offset=0.0):
        kind = torch.float64 if how == "float64" else torch.float32
        r, d = rows(x, normalized_shape, kind), rows(dy, normalized_shape, kind)
        d = d.clamp(-6, 6) if how == "clamped" else d
        mean, rstd = mean.to(kind)[:, None], rstd.to(kind)[:, None]
        if how in RECOMPUTED:
            mean, rstd = statistics(r, eps, how)
        rstd = rstd.roll(1, 0) if how == "rstd of another row" else rstd
        xhat, n = (r - mean) * rstd, r.shape[1]
        if how == "guard":
            xhat, rstd = xhat.nan_to_num(0.0), rstd.nan_to_num(posinf=0.0)
        g = d if weight is None or how == "no weight" else d * (rows(weight, normalized_shape, kind) + weight_offset)
        if how == "sums":
            dx = rstd / n * (n * g - g.sum(1, keepdim=True) - xhat * (g * xhat).sum(1, keepdim=True))
        else:
            count = (d != 0).sum(1, keepdim=True) if how == "skips zeros" else n
            c2 = 0.0 if how == "no c2" else g.sum(1, keepdim=True) / count
            dx = rstd * (g - c2 - xhat * (g * xhat).mean(1, keepdim=True))
        if how == "a row of zeros":
            dx[len(dx) // 2] = 0
        if how == "nan":
            dx[0, 0] = float("nan")
        order = torch.randperm(len(r)) if how == "atomic" else slice(None)
        dw, db = (d * xhat)[order].sum(0), d[order].sum(0)
        if how == "one column":
            dw[7] *= 1.5
        db = db * 1.1 if how == "bias" else db
        dw = None if weight is None else dw.reshape(weight.shape).to(weight.dtype)
        return dx.reshape(x.shape).to(x.dtype), dw, None if bias is None else db.reshape(bias.shape).to(bias.dtype)

    return layernorm_bwd


def rmsnorm(how=""):
    """With "llama", x̂ is rounded to the type of x before it meets the weight."""

    def rmsnorm_fwd(x, weight, eps, normalized_shape, weight_offset=0.0):
        r = rows(x, normalized_shape, torch.float64 if how == "float64" else torch.float32)
        rstd = (r.square().mean(1, keepdim=True) + eps).rsqrt()
        y = (r * rstd).to(x.dtype).to(r.dtype) if how == "llama" else r * rstd
        y = y if weight is None else (rows(weight, normalized_shape, r.dtype) + weight_offset) * y
        return y.reshape(x.shape).to(x.dtype), rstd[:, 0].float()

    return rmsnorm_fwd


def rmsnorm_bwd(how=""):
    """With "cubed", dx = r·g − x·Σ(g·x)·r³/n, without x̂."""

    def rmsnorm_bwd(dy, x, weight, rstd, eps, normalized_shape, weight_offset=0.0):
        r, d, rstd = rows(x, normalized_shape), rows(dy, normalized_shape), rstd[:, None]
        g, xhat = d if weight is None else d * (rows(weight, normalized_shape) + weight_offset), r * rstd
        if how == "cubed":
            dx = rstd * g - r * ((g * r).sum(1, keepdim=True) * (rstd**3 / r.shape[1]))
        else:
            dx = rstd * (g - xhat * (g * xhat).mean(1, keepdim=True))
        dw = None if weight is None else (d * xhat).sum(0).reshape(weight.shape).to(weight.dtype)
        return dx.reshape(x.shape).to(x.dtype), dw

    return rmsnorm_bwd


def groupnorm(act=lambda z: z):
    def groupnorm_fwd(x, weight, bias, num_groups, eps):
        r = x.float().reshape(x.shape[0] * num_groups, -1)
        mean, rstd = statistics(r, eps)
        column = (-1, *[1] * (x.dim() - 2))
        z = ((r - mean) * rstd).reshape(x.shape) * (1.0 if weight is None else weight.float().reshape(column))
        z = z + (0.0 if bias is None else bias.float().reshape(column))
        return act(z).to(x.dtype), mean.reshape(-1, num_groups), rstd.reshape(-1, num_groups)

    return groupnorm_fwd


class Checkpointed(nn.Module):
    """RMSNorm, whose forward runs again in its backward and reads the weight again."""

    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def _norm(self, x):
        rstd = (x.double().square().mean(-1, keepdim=True) + self.eps).rsqrt()
        return (x.double() * rstd * self.weight.double()).to(x.dtype)

    def forward(self, x):
        return checkpoint(self._norm, x, use_reentrant=False) if torch.is_grad_enabled() else self._norm(x)
