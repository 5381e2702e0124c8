"""LayerNorm as short names in C have it, its results in an order of its own."""

import torch


def ln_forward(inp, w, b, n):
    xs = inp.double()
    mu = xs.sum(-1, keepdim=True) / n
    rs = ((xs - mu).pow(2).sum(-1, keepdim=True) / n + 1e-5).rsqrt()
    out = (xs - mu) * rs
    out = out if w is None else out * w.double()
    out = out if b is None else out + b.double()
    return out.to(inp.dtype), rs.float().flatten(), mu.float().flatten(), {"n": n}


def layernorm_backward(dout, inp, w, mu, rstd):
    rows = inp.reshape(-1, inp.shape[-1]).double()
    g = dout.reshape(rows.shape).double()
    xhat = (rows - mu.double()[:, None]) * rstd.double()[:, None]
    gw = g if w is None else g * w.double()
    c1 = (gw * xhat).mean(-1, keepdim=True)
    dinp = rstd.double()[:, None] * (gw - gw.mean(-1, keepdim=True) - xhat * c1)
    like = torch.empty(0, dtype=inp.dtype) if w is None else w
    return (
        dinp.to(inp.dtype).reshape(inp.shape),
        None if w is None else (g * xhat).sum(0).to(w.dtype),
        g.sum(0).to(like.dtype),
    )
