"""Norms that sum by matrix products, as tl.dot does on tensor cores, emulated by benchmarks/emulate.py."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import torch
from norms import rows


def _emulation():
    """The module benchmarks/emulate.py, which is no part of a package."""
    path = Path(__file__).parents[2] / "benchmarks" / "emulate.py"
    spec = importlib.util.spec_from_file_location("emulated_arithmetic", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks itself up
    spec.loader.exec_module(module)
    return module


EMULATION = _emulation()


def product(a, b=None, how="tf32", **options):
    """Σ a·b, or Σ a, over the rows of float32 tensors, by matrix products; "float16" rounds the operands to that."""
    if how == "float16":
        return (a.half().float() * (1.0 if b is None else b.half().float())).sum(0)
    a, b = (None if t is None else np.ascontiguousarray(t.numpy().T) for t in (a, b))
    return torch.from_numpy(EMULATION.total(a, b, EMULATION.Method(products=how, **options))[:, 0])


def layernorm_bwd(how, drop=0, **options):
    """LayerNorm's gradients by such sums, with statistics computed anew; `drop` rows are left out of dweight."""

    def layernorm_bwd(dy, x, weight, bias, eps, normalized_shape, weight_offset=0.0):
        r, d = rows(x, normalized_shape), rows(dy, normalized_shape)
        count = r.shape[1]

        def over_row(a, b=None):
            return product(a.T, None if b is None else b.T, how, **options)[:, None] / count

        centred = r - over_row(r)
        rstd = (over_row(centred, centred) + eps).rsqrt()
        xhat, g = centred * rstd, d if weight is None else d * (rows(weight, normalized_shape) + weight_offset)
        dx = rstd * (g - over_row(g) - xhat * over_row(g, xhat))
        kept = slice(0, len(d) - drop)
        dw = None if weight is None else product(d[kept], xhat[kept], how, **options)
        db = None if bias is None else product(d, None, how, **options)
        dw, db = (None if v is None else v.reshape(p.shape).to(p.dtype) for v, p in ((dw, weight), (db, bias)))
        return dx.reshape(x.shape).to(x.dtype), dw, db

    return layernorm_bwd


def rmsnorm_fwd(how, **options):
    """RMSNorm, whose row sums are x·x by such products."""

    def rmsnorm_fwd(x, weight, eps, normalized_shape, weight_offset=0.0):
        r = rows(x, normalized_shape)
        rstd = (product(r.T, r.T, how, **options) / r.shape[1] + eps).rsqrt()
        y = r * rstd[:, None]
        y = y if weight is None else y * (rows(weight, normalized_shape) + weight_offset)
        return y.reshape(x.shape).to(x.dtype), rstd

    return rmsnorm_fwd
