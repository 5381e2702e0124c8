"""Random inputs of an operator in the checker's field, and its outputs by the operator's formulas."""

import hashlib
from typing import Any

import numpy as np

P = 2147483587  # a prime, 3 mod 4, and not the prover's
_P = np.uint64(P)


def inverse(a: Any) -> Any:
    """Return 1/a, and 0 of 0."""
    once, where = np.unique(np.asarray(a, np.uint64), return_inverse=True)
    return np.array([pow(int(v), -1, P) if v else 0 for v in once], np.uint64)[where].reshape(np.shape(a))


def root(a: Any) -> Any:
    """Return the root of each square that is a square itself."""
    once, where = np.unique(a, return_inverse=True)
    return np.array([pow(int(v), (P + 1) // 4, P) for v in once], np.uint64)[where].reshape(np.shape(a))


class Sample:
    """Inputs and outputs of m rows, the quantities of each row, and what the floats of a kernel are."""

    def __init__(self, certificate: dict[str, Any], m: int) -> None:
        seed = int(hashlib.sha256(f"{sorted(certificate['kernels'])}{m}".encode()).hexdigest()[:16], 16)
        draw = np.random.Generator(np.random.PCG64(seed))
        f, op = certificate["fixed"], certificate["op"]
        n, self.centred = int(f["N"]), "rmsnorm" not in op
        groups, positions = f.get("groups", 0), f.get("positions", 1)
        length = groups * n // positions if groups else n

        def new(*shape: int) -> Any:
            return draw.integers(1, P, shape, dtype=np.uint64)

        def along(w: Any) -> Any:
            return np.tile(np.repeat(w, positions).reshape(groups, n), (m // groups, 1)) if groups else w[None, :]

        def total(t: Any, axis: int) -> Any:
            return t.sum(axis=axis, dtype=np.uint64) % _P

        count, self.eps = np.uint64(pow(n, -1, P)), np.uint64(draw.integers(1, P))
        x, good = new(m, n), np.zeros(m, bool)
        while not good.all():
            mean = total(x, 1) * count % _P if self.centred else np.zeros(m, np.uint64)
            xc = (x + (_P - mean[:, None])) % _P
            above = (total(xc * xc % _P, 1) * count + self.eps) % _P
            good = np.array([pow(int(v), (P - 1) // 2, P) == 1 for v in above])
            x[~good] = new(int((~good).sum()), n)
        rstd = inverse(root(above))
        xhat, w, b = xc * rstd[:, None] % _P, new(length), new(length)
        offset = float(f["weight_offset"]).as_integer_ratio()
        scale = along((w + np.uint64(offset[0] * pow(offset[1], -1, P) % P)) % _P)
        self.constants = {0.0: ("0", 0), 1.0: ("1", 1), float(n): ("N", n)}
        if f["weight_offset"] not in (0.0, 1.0):
            self.constants[f["weight_offset"]] = ("OFFSET", offset[0] * pow(offset[1], -1, P) % P)
        self.constants |= {float(np.float32(1 / n)): ("1/N", int(count)), f["eps"]: ("EPS", int(self.eps))}
        self.constants[float(np.float32(f["eps"]))] = ("EPS", int(self.eps))
        self.truth = {"MEAN": mean, "VAR": (above + (_P - self.eps)) % _P, "VAR+EPS": above}
        residual, dy = new(m, n), new(m, n)
        if op.startswith("add_") and op.endswith("_fwd"):
            self.inputs = {"x": (x + (_P - residual)) % _P, "residual": residual}
        else:
            self.inputs = {"residual_out" if op.startswith("add_") else "x": x}
        self.inputs |= {"weight": w, "bias": b, "dy": dy, "dresidual_out": residual}
        y = (xhat * scale + (along(b) if self.centred else np.uint64(0))) % _P
        self.outputs = {"y": y, "mean": mean, "rstd": rstd, "residual_out": x}
        if op.endswith("_bwd"):
            g = dy * scale % _P
            c1 = total(g * xhat % _P, 1) * count % _P
            c2 = total(g, 1) * count % _P if self.centred else np.zeros(m, np.uint64)
            dx = (g + (_P - c2[:, None]) + (_P - xhat * c1[:, None] % _P)) % _P * rstd[:, None] % _P
            dx = (dx + residual) % _P if op.startswith("add_") else dx
            self.truth |= {"C1": c1, "C2": c2}
            self.outputs |= {"dx": dx, "dweight": total(dy * xhat % _P, 0), "dbias": total(dy, 0)}
            self.inputs |= {"mean": mean, "rstd": rstd}
