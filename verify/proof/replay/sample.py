"""Random inputs of an operator in the checker's field, and its outputs by the operator's formulas."""

import hashlib
from typing import Any

import numpy as np

from verify_norm.core.ops import OPS

P = 2147483587  # a prime, 3 mod 4, and not the prover's; int64 holds a product of two elements, and sums of 2³²
ROOT = (P + 1) // 4  # v to that power is a root of v, or of −v if v is no square; no step looks at squares of roots


def powers(a: Any, exponent: int) -> Any:
    """Return powers of elements; that of 0 is 0."""
    once, where = np.unique(a, return_inverse=True)
    return np.array([int(v) and pow(int(v), exponent, P) for v in once], np.int64)[where].reshape(np.shape(a))


def sample(certificate: dict[str, Any], m: int) -> list[dict[Any, tuple[Any, str]]]:
    """Return inputs and outputs of m rows, or samples of groups, and the floats of a kernel, each with its labels."""
    op, f = certificate["op"], certificate["fixed"]
    n, centred, fused = f["N"], "rmsnorm" not in op, op.startswith("add_")
    groups, positions = (f["groups"], f["positions"]) if op.startswith("group") else (1, 1)
    rows, length, count = m * groups, groups * n // positions, pow(n, -1, P)
    draw = np.random.default_rng(int(hashlib.sha256(f"{sorted(certificate['kernels'])}{m}".encode()).hexdigest(), 16))
    floats = {f["weight_offset"]: (int(draw.integers(1, P)), "OFFSET"), 0: (0, "0"), 1: (1, "1"), n: (n, "N")}
    floats |= {1 / n: (count, "1/N"), f["eps"]: (int(draw.integers(1, P)), "EPS")}
    (x, residual, dy), (w, b) = draw.integers(1, P, (3, rows, n)), draw.integers(1, P, (2, length))
    along = np.arange(rows * n).reshape(rows, n) // positions % length

    def mean_of(t: Any) -> Any:
        return (t % P).sum(axis=1, keepdims=True) % P * count % P

    xc = (x - (mean := mean_of(x) * centred)) % P
    rstd = powers(mean_of(xc * xc) + floats[f["eps"]][0], -ROOT)
    xhat, scale = xc * rstd % P, (w + floats[f["weight_offset"]][0])[along] % P
    g = dy * scale % P
    dx = (g - mean_of(g) * centred - xhat * mean_of(g * xhat)) % P * rstd + residual * fused
    named = {"x": (x - residual, "X0") if fused else (x, "X"), "residual": (residual, "RESIDUAL"), "dy": (dy, "DY")}
    named |= {"dresidual_out": (residual, "DH"), "residual_out": (x, "X"), "weight": (w, "W"), "bias": (b, "B")}
    named |= {"y": (xhat * scale + b[along] * centred, "Y W·XHAT XHAT"), "mean": (mean, "MEAN"), "rstd": (rstd, "RSTD")}
    named |= {"dx": (dx, "DX+DH" if fused else "DX"), "dweight": ((dy * xhat % P).sum(axis=0), "ΣDY·X")}
    named |= {"dbias": (dy.sum(axis=0), "ΣDY DY")}
    sides = [{one.name: named[one.name] for one in side} for side in (OPS[op].inputs, OPS[op].outputs)]
    return [*sides, {float(np.float32(key)): value for key, value in floats.items()}]
