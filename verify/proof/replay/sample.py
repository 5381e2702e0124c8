"""Random inputs of an operator in the checker's field, and its outputs by the operator's formulas."""

import hashlib
from typing import Any

import numpy as np

P = 2147483587  # a prime, 3 mod 4, and not the prover's
_P = np.uint64(P)


def powers(a: Any, exponent: int) -> Any:
    """Return powers of elements; that of 0 is 0."""
    once, where = np.unique(np.asarray(a, np.uint64), return_inverse=True)
    return np.array([pow(int(v), exponent, P) if v else 0 for v in once], np.uint64)[where].reshape(np.shape(a))


def inverse(a: Any) -> Any:
    """Return 1/a, and 0 of 0."""
    return powers(a, -1)


def root(a: Any) -> Any:
    """Return the root of each square that is a square itself."""
    return powers(a, (P + 1) // 4)


class Sample:
    """Inputs and outputs of m rows, or samples of groups, quantities of each row, and the floats of a kernel."""

    def __init__(self, certificate: dict[str, Any], m: int) -> None:
        seed = hashlib.sha256(f"{sorted(certificate['kernels'])}{m}".encode()).hexdigest()
        draw, f, op = np.random.Generator(np.random.PCG64(int(seed[:16], 16))), certificate["fixed"], certificate["op"]
        n, fused, self.centred = int(f["N"]), op.startswith("add_"), "rmsnorm" not in op
        groups, positions = f.get("groups", 0), f.get("positions", 1)
        length, m = (groups * n // positions, m * groups) if groups else (n, m)

        def new(*shape: int) -> Any:
            return draw.integers(1, P, shape, dtype=np.uint64)

        def along(w: Any) -> Any:
            return np.tile(np.repeat(w, positions).reshape(groups, n), (m // groups, 1)) if groups else w[None, :]

        def mean_of(t: Any) -> Any:
            return t.sum(axis=1, dtype=np.uint64) % _P * count % _P

        count, eps = np.uint64(pow(n, -1, P)), np.uint64(draw.integers(1, P))
        x, good = new(m, n), np.zeros(m, bool)
        while not good.all():
            mean = mean_of(x) if self.centred else np.zeros(m, np.uint64)
            xc = (x + (_P - mean[:, None])) % _P
            above = (mean_of(xc * xc % _P) + eps) % _P
            good = powers(above, (P - 1) // 2) == 1
            x[~good] = new(int((~good).sum()), n)
        rstd = inverse(root(above))
        xhat, w, b, residual, dy = xc * rstd[:, None] % _P, new(length), new(length), new(m, n), new(m, n)
        top, bottom = float(f["weight_offset"]).as_integer_ratio()
        offset = top * pow(bottom, -1, P) % P
        scale = along((w + np.uint64(offset)) % _P)
        self.constants = {f["weight_offset"]: ("OFFSET", offset), 0.0: ("0", 0), 1.0: ("1", 1), float(n): ("N", n)}
        self.constants |= {float(np.float32(1 / n)): ("1/N", int(count))}
        self.constants |= dict.fromkeys((f["eps"], float(np.float32(f["eps"]))), ("EPS", int(eps)))
        self.inputs = {"weight": (w, "W"), "bias": (b, "B"), "dy": (dy, "DY"), "dresidual_out": (residual, "DH")}
        if op.endswith("_fwd"):
            self.inputs |= {
                "x": ((x + (_P - residual)) % _P, "X0") if fused else (x, "X"),
                "residual": (residual, "RESIDUAL"),
            }
            y = (xhat * scale + (along(b) if self.centred else np.uint64(0))) % _P
            self.outputs = {"y": (y, "Y W·XHAT XHAT"), "mean": (mean, "MEAN"), "rstd": (rstd, "RSTD")}
            self.outputs |= {"residual_out": (x, "X")}
            return
        self.inputs |= {"residual_out" if fused else "x": (x, "X"), "mean": (mean, "MEAN"), "rstd": (rstd, "RSTD")}
        g = dy * scale % _P
        c1, c2 = mean_of(g * xhat % _P), mean_of(g) if self.centred else np.zeros(m, np.uint64)
        dx = (g + (_P - c2[:, None]) + (_P - xhat * c1[:, None] % _P)) % _P * rstd[:, None] % _P
        dx = ((dx + residual) % _P, "DX+DH") if fused else (dx, "DX")
        dw, db = ((t % _P).sum(axis=0, dtype=np.uint64) % _P for t in (dy * xhat, dy))
        self.outputs = {"dx": dx, "dweight": (dw, "ΣDY·X"), "dbias": (db, "ΣDY DY")}
