"""RMSNorms and a backward that equal a plain one bit for bit, or differ in one way, for tests of `verify-norm same`."""

import os
from itertools import count

import torch


def rmsnorm(how=""):
    calls = count()

    def rmsnorm_fwd(x, weight, eps, normalized_shape):
        n = torch.Size(normalized_shape).numel()
        r = x.float().reshape(-1, n)
        s = r.square()
        if how == "blocks of 1024":  # the running sum of blocks; one block is the plain sum
            parts = s.split(1024, 1)
            s = sum((part.sum(1, keepdim=True) for part in parts[1:]), parts[0].sum(1, keepdim=True))
        else:
            s = s.sum(1, keepdim=True)
        rstd = (s / n + eps).rsqrt()
        y = r * rstd
        if how == "rounded":
            y = y.to(x.dtype).float()
        if how == "minus zero":
            y = torch.where(y == 0, -0.0, y)
        if how == "another payload":
            bits = torch.full_like(y, -4194303, dtype=torch.int32).view(torch.float32)
            y = torch.where(y.isnan(), bits, y)
        if weight is not None:
            y = y * weight.float().reshape(-1)
        if how == "atomic":
            y = y * (1 + 2.0**-23 * (next(calls) % 2))
        if how == "raises" and len(r) > 3:
            raise ValueError("at most 3 rows")
        if how == "exits" and len(r) > 3:
            os._exit(3)
        y = y.reshape(x.shape).to(x.dtype)
        if how == "y alone":
            return y
        return y, rstd[:, 0].half() if how == "half" else rstd if how == "a column" else rstd[:, 0]

    return rmsnorm_fwd


def rmsnorm_bwd(how=""):
    def rmsnorm_bwd(dy, x, weight, rstd, eps, normalized_shape):
        n = torch.Size(normalized_shape).numel()
        d, r = dy.float().reshape(-1, n), x.float().reshape(-1, n)
        xhat = r * rstd[:, None]
        g = d if weight is None else d * weight.float().reshape(-1)
        dx = rstd[:, None] * (g - xhat * (g * xhat).mean(1, keepdim=True))
        terms = d * xhat
        dw = (
            terms.sum(0)
            if how != "blocks of 8 rows"
            else sum((part.sum(0) for part in terms.split(8)), terms[:0].sum(0))
        )
        dw = None if weight is None else dw.reshape(weight.shape).to(weight.dtype)
        return dx.reshape(x.shape).to(x.dtype), dw

    return rmsnorm_bwd


plain, rewritten, blocks, rounded = rmsnorm(), rmsnorm(), rmsnorm("blocks of 1024"), rmsnorm("rounded")
exits = rmsnorm("exits")


def fast(x, weight, eps, normalized_shape):  # whose name tells no operator
    return plain(x, weight, eps, normalized_shape)
