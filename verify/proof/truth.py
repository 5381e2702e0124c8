"""The operators over the field: random inputs, and what the derivations of `verify_norm.reference` make of them.

Nothing here comes from that package: the formulas are written once more, over a field instead of float64.
"""

from dataclasses import dataclass

import numpy as np

from verify_norm.proof import field as f
from verify_norm.proof.field import Field, P


@dataclass(frozen=True, slots=True)
class Truth:
    """The inputs and outputs of an operator, eps, and the quantities that a row's sums make."""

    inputs: dict[str, Field]
    outputs: dict[str, Field]
    eps: int
    quantities: dict[str, Field]


@dataclass(frozen=True, slots=True)
class Size:
    """The extents of a norm: rows, elements of one, and for groups of channels how many groups and positions."""

    rows: int
    columns: int
    groups: int = 0
    positions: int = 0

    def along(self, parameter: Field) -> Field:
        """Return a weight as it meets the elements of the rows."""
        if not self.groups:
            return np.broadcast_to(parameter, (self.rows, self.columns))
        each = np.repeat(parameter, self.positions).reshape(self.groups, self.columns)
        return np.tile(each, (self.rows // self.groups, 1))

    def across(self, terms: Field) -> Field:
        """Return the sum over all that one weight serves."""
        if not self.groups:
            return f.total(terms, 0)
        by_channel = terms.reshape(self.rows // self.groups, -1, self.positions)
        return f.total(f.total(by_channel, 2), 0)

    @property
    def parameters(self) -> int:
        """Return how many elements a weight has."""
        return self.groups * self.columns // self.positions if self.groups else self.columns


def truth(op: str, size: Size, offset: float, seed: int) -> Truth:
    """Return random inputs of an operator, and its outputs; the variance plus eps of every row is a square."""
    draw = np.random.Generator(np.random.Philox(seed))
    centred, fused = "rmsnorm" not in op, op.startswith("add_")

    def new(*shape: int) -> Field:
        return draw.integers(1, P, shape, dtype=np.uint64)

    eps = int(new(1)[0])
    count = np.uint64(pow(size.columns, -1, P))
    x = new(size.rows, size.columns)
    while True:
        mean = f.mul(f.total(x, 1), count) if centred else np.zeros(size.rows, np.uint64)
        xc = f.sub(x, mean[:, None])
        var = f.mul(f.total(f.mul(xc, xc), 1), count)
        above = f.add(var, np.uint64(eps))
        again = ~f.square(above)
        if not again.any():
            break
        x[again] = new(int(again.sum()), size.columns)
    rstd = f.inverse(f.root(above))
    xhat = f.mul(xc, rstd[:, None])
    weight, bias = new(size.parameters), new(size.parameters)
    factor = size.along(f.add(weight, np.uint64(f.of(offset))))
    inputs = {"weight": weight, "bias": bias}
    quantities = {"MEAN": mean, "VAR": var, "VAR+EPS": above, "RSTD": rstd}
    if op.endswith("_fwd"):
        y = f.mul(factor, xhat)
        y = f.add(y, size.along(bias)) if centred else y
        outputs = {"y": y, "mean": mean, "rstd": rstd}
        if fused:
            residual = new(size.rows, size.columns)
            inputs |= {"x": f.sub(x, residual), "residual": residual}
            outputs["residual_out"] = x
        else:
            inputs["x"] = x
        return Truth(inputs, outputs, eps, quantities)
    dy = new(size.rows, size.columns)
    g = f.mul(dy, factor)
    c1 = f.mul(f.total(f.mul(g, xhat), 1), count)
    c2 = f.mul(f.total(g, 1), count) if centred else np.zeros_like(c1)
    dx = f.mul(rstd[:, None], f.sub(f.sub(g, c2[:, None]), f.mul(xhat, c1[:, None])))
    if fused:
        inputs["dresidual_out"] = new(size.rows, size.columns)
        dx = f.add(dx, inputs["dresidual_out"])
    inputs |= {"dy": dy, "residual_out" if fused else "x": x, "mean": mean, "rstd": rstd}
    outputs = {"dx": dx, "dweight": size.across(f.mul(dy, xhat)), "dbias": size.across(dy)}
    return Truth(inputs, outputs, eps, quantities | {"C1": c1, "C2": c2})
