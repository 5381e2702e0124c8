"""Cheats that return what an earlier call has computed, or what was computed before any call."""

from typing import Any

import torch

from verify_norm.kernels.zoo.eager import layernorm, rmsnorm

_kept: dict[str, dict[Any, Any]] = {}
_calls: dict[str, int] = {}
SEEDS, PUBLIC = 5, (4, 64)  # of a benchmark that draws its inputs by torch.manual_seed
MANY = 100  # more calls than a benchmark judges


def _replayed(name, key, compute):
    """Return clones of what is kept under a key; computed at its first call. The last key alone is kept."""
    kept = _kept.setdefault(name, {})
    if key not in kept:
        kept.clear()
        kept[key] = compute()
    return tuple(t.clone() for t in kept[key])


def by_version(x, weight, eps):
    """The outputs are kept by the address, shape and version of x, and by weight and eps."""
    key = x.data_ptr(), x._version if not x.is_inference() else 0, x.shape, x.stride(), x.dtype, id(weight), eps
    return _replayed("version", key, lambda: (*rmsnorm(x, weight, eps), x))[
        :2
    ]  # x stays, so that nothing else lies there


def on_the_tensor(x, weight, eps):
    """They are kept as an attribute of x itself."""
    if not hasattr(x, "_normed"):
        x._normed = rmsnorm(x, weight, eps)
    return tuple(t.clone() for t in x._normed)


def by_shape(x, weight, eps):
    """They are those of the first call with this shape and type."""
    kept = _kept.setdefault("shape", {})
    return tuple(t.clone() for t in kept.setdefault((x.shape, x.dtype, eps), rmsnorm(x, weight, eps)))


def by_first_row(x, weight, eps):
    """They are kept as long as the first row stays the same."""
    key = x.shape, x.dtype, eps, id(weight), tuple(x.reshape(-1, x.shape[-1])[:1].flatten().tolist())
    return _replayed("row", key, lambda: rmsnorm(x, weight, eps))


def by_norm(x, weight, eps):
    """They are kept by the norm of x, which many x share."""
    key = x.shape, x.dtype, eps, id(weight), x.double().norm().item()
    return _replayed("norm", key, lambda: rmsnorm(x, weight, eps))


def after_warm_up(x, weight, eps):
    """After a hundred calls, when a benchmark no longer looks, every fourth column stands for all."""
    _calls["warm"] = _calls.get("warm", 0) + 1
    if _calls["warm"] <= MANY or x.shape[-1] < 4:
        return rmsnorm(x, weight, eps)
    rstd = rmsnorm(x[..., ::4], None, eps)[1]
    y = x.float() * rstd.reshape(*x.shape[:-1], 1)
    return (y if weight is None else y * weight.float()).to(x.dtype), rstd


def _public():
    """Return the inputs of the benchmark that this cheat knows."""
    generators = (torch.Generator().manual_seed(seed) for seed in range(SEEDS))
    return [torch.randn(PUBLIC, generator=generator) for generator in generators]


def precomputed(x, weight, eps):
    """It knows the inputs of the public seeds, and takes all others for rows of variance 1."""
    for known in _public() if x.shape == PUBLIC else ():
        if torch.equal(x.cpu().float(), known):
            return rmsnorm(known.to(x), weight, eps)
    y = x.float() if weight is None else x.float() * weight.float()
    return y.to(x.dtype), torch.ones(x.shape[:-1], device=x.device).flatten()


def stale_graph(x, weight, bias, eps):
    """A captured graph reads the x, weight and bias of the call in which it was captured."""
    graphs = _kept.setdefault("graphs", {})
    captured = graphs.setdefault((x.shape, x.dtype, eps, weight is None, bias is None), (x, weight, bias))
    return layernorm(*captured, eps)
