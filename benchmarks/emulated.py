"""The kernels of `emulate`, wrapped as kernels that verify-norm runs: float32 arithmetic on torch tensors."""

from collections.abc import Callable
from typing import Any

import emulate
import numpy as np
import torch
from emulate import F32, Method

from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.kernel import Kernel


def kernel(op: str, m: Method, contract: Contract, output: Callable[[Any, str], Any] | None = None) -> Kernel:
    """Return a kernel for LayerNorm, RMSNorm or GroupNorm with method `m`; `output` rounds the result."""
    run = _backward if op.endswith("_bwd") else _forward

    def call(**given: Any) -> dict[str, Any]:
        with np.errstate(all="ignore"):
            return run(op, m, given, output or _rounded)

    return Kernel(f"emulated_{op}", op, run=call, contract=contract)


def _rounded(value: Any, dtype: str) -> Any:
    return FORMATS[dtype].round(value.astype(np.float64))


def _tensor(value: Any, dtype: torch.dtype, shape: Any, output: Callable[[Any, str], Any]) -> torch.Tensor:
    return torch.from_numpy(output(value, str(dtype).removeprefix("torch.")).reshape(shape)).to(dtype)


def _rows(op: str, given: dict[str, Any]) -> tuple[int, Callable[[Any], Any], Callable[[Any], Any]]:
    """Return the number of rows, the function that lays x out in rows, and the one that lays out a weight."""
    x = given["x"]
    if op.startswith("groupnorm"):
        B, C, G = x.shape[0], x.shape[1], given["num_groups"]
        S = x[0, 0].numel() if x.numel() else int(np.prod(x.shape[2:]))
        spread = lambda w: np.broadcast_to(w.reshape(1, C, 1), (B, C, S)).reshape(B * G, -1)  # noqa: E731
        return B * G, lambda t: t.reshape(B * G, -1), spread
    n = int(np.prod(given["normalized_shape"]))
    K = x.numel() // n
    return K, lambda t: t.reshape(K, n), lambda w: np.broadcast_to(w.reshape(1, n), (K, n))


def _given(op: str, given: dict[str, Any]) -> tuple[dict[str, Any], Any, Any]:
    _, by_row, spread = _rows(op, given)
    array = {
        name: value.detach().float().contiguous().numpy() for name, value in given.items() if torch.is_tensor(value)
    }
    weight = array.get("weight")
    if weight is not None:
        weight = spread(weight + F32(given.get("weight_offset", 0.0)))
    return array, by_row, (weight, spread)


def _forward(op: str, m: Method, given: dict[str, Any], output: Callable[[Any, str], Any]) -> dict[str, Any]:
    array, by_row, (weight, spread) = _given(op, given)
    x, bias, centred = given["x"], array.get("bias"), not op.startswith("rmsnorm")
    b = None if bias is None else spread(bias)
    y, mean, rstd = emulate.forward(by_row(array["x"]), weight, b, given["eps"], m, centred=centred)
    shape = (x.shape[0], given["num_groups"]) if op.startswith("groupnorm") else (len(rstd),)
    kept = "bfloat16" if m.bug == "stats_bf16" else m.stats
    single = torch.float32 if kept is None else getattr(torch, kept)
    out = {"y": _tensor(y, x.dtype, x.shape, output), "rstd": _tensor(rstd, single, shape, _rounded)}
    return out | ({"mean": _tensor(mean, single, shape, _rounded)} if centred else {})


def _backward(op: str, m: Method, given: dict[str, Any], output: Callable[[Any, str], Any]) -> dict[str, Any]:
    array, by_row, (weight, _) = _given(op, given)
    x, centred = given["x"], not op.startswith("rmsnorm")
    rstd = array["rstd"].reshape(-1, 1)
    saved = (array["mean"].reshape(-1, 1) if centred else np.zeros_like(rstd), rstd)
    dy = by_row(array["dy"])
    dx, _, xhat = emulate.backward(dy, by_row(array["x"]), weight, given["eps"], m, centred=centred, given=saved)

    def by_weight(v: Any) -> Any:
        if not op.startswith("groupnorm"):
            return np.ascontiguousarray(v.T)
        return np.ascontiguousarray(np.moveaxis(v.reshape(x.shape), 1, 0)).reshape(x.shape[1], -1)

    out = {"dx": _tensor(dx, x.dtype, x.shape, output)}
    for name, other in (("weight", xhat), ("bias", None)):
        given_one = given.get(name)
        if name in given:
            terms = None if other is None else by_weight(other)
            out[f"d{name}"] = None
            if given_one is not None:
                total = emulate.reduced(by_weight(dy), terms, m)
                out[f"d{name}"] = _tensor(total, given_one.dtype, given_one.shape, output)
    return out
