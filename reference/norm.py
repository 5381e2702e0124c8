"""The algebra that all operators share: a normalized x, what multiplies it, and the gradient that passes through it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verify_norm.reference.view import Array, View


@dataclass(frozen=True, slots=True)
class Projection:
    """The gradient dx = r(g − c2 − s·x̂·c1), s the `share` of an element, and its parts; means keep axes of size 1.

    Parameters
    ----------
    g : w·dy, the gradient with respect to x̂.
    c1 : mean(g·x̂).
    c2 : mean g; None in RMSNorm, which subtracts no mean.
    dx : the gradient with respect to x.
    """

    g: Array
    c1: Array
    c2: Array | None
    dx: Array


@dataclass(frozen=True, slots=True)
class Norm:
    """x̂ = r·xc of every row or group, the statistics that made it, and the w and b of y = w·x̂ + b.

    All arrays broadcast against `view.shape`; the statistics keep the axes that they were reduced over, of size 1.

    Parameters
    ----------
    view : how x is seen.
    x : the data.
    mean : μ, the mean of x (in BatchNorm's evaluation the running mean); 0 in RMSNorm.
    xc : x − μ.
    var : mean xc² (in BatchNorm's evaluation the running variance).
    rstd : r = 1/√(var + eps).
    xhat : x̂ = r·xc.
    weight, bias : w and b; None stands for 1 and 0.
    offset : whether w is a sum weight + weight_offset, which a kernel rounds once more.
    centred : whether xc is x − μ; False in RMSNorm, where it is x.
    rstd_scale : what r is multiplied by where it is saved: 1/√N in L2Norm.
    off : how far a kernel's own x may be off, of each element; None where it is given.
    first : how many of a row's first elements make its statistic, in a partial RMSNorm; None: all of them.
    """

    view: View
    x: Array
    mean: Array
    xc: Array
    var: Array
    rstd: Array
    xhat: Array
    weight: Array | None = None
    bias: Array | None = None
    offset: bool = False
    centred: bool = True
    rstd_scale: float = 1.0
    off: Array | None = None
    first: int | None = None

    @property
    def count(self) -> int:
        """How many elements of a row make its statistics."""
        return self.view.count if self.first is None else self.first

    @property
    def share(self) -> Array | float:
        """What an element counts in the mean of a row that the statistics are: N/K in the first K, 0 in the others."""
        if self.first is None:
            return 1.0
        return np.where(np.arange(self.view.count) < self.first, self.view.count / self.first, 0.0)

    @property
    def saved_rstd(self) -> Array:
        """The rstd that a forward returns."""
        return self.rstd * self.rstd_scale

    @property
    def y(self) -> Array:
        """The output w·x̂ + b."""
        y = self.xhat if self.weight is None else self.xhat * self.weight
        return y if self.bias is None else y + self.bias

    def weighted(self, a: Array) -> Array:
        """Return w·a."""
        return a if self.weight is None else self.weight * a

    def average(self, a: Array) -> Array:
        """Return the mean of every row or group, on axes of size 1."""
        sums: Array = a.sum(self.view.axes, keepdims=True)
        return sums / self.view.count  # as NumPy's mean, which is slower: it first checks its arguments

    def total(self, a: Array) -> Array:
        """Return the sum over all elements that one weight serves, on axes of size 1."""
        total: Array = a.sum(self.view.shared, keepdims=True)
        return total

    def project(self, a: Array) -> Array:
        """Return P(a) = a − mean a − x̂·mean(a·x̂), or a − x̂·mean(a·x̂) in RMSNorm: ∂x̂/∂x is r·P."""
        centred = a - self.average(a) if self.centred else a
        projected: Array = centred - self.xhat * self.average(a * self.xhat)
        return projected

    @np.errstate(all="ignore")
    def gradient(self, dy: Array) -> Projection:
        """Return dx = r·P(w·dy) with its parts; `layernorm.backward` derives it."""
        g = self.weighted(dy)
        c1 = self.average(g * self.xhat)
        c2 = self.average(g) if self.centred else None
        along = self.xhat * c1
        if self.first is not None:  # an element outside of the statistic meets no c1, even if that is NaN
            along = np.where(self.share == 0, 0.0, self.share * self.xhat * c1)
        dx = self.rstd * ((g if c2 is None else g - c2) - along)
        return Projection(g, c1, c2, dx)

    @np.errstate(all="ignore")
    def gradients(self, dy: Array) -> tuple[Array, Array | None, Array | None]:
        """Return (dx, dweight, dbias), shaped as x and the parameters; None where the parameter is None."""
        dy = dy.reshape(self.view.shape)
        dx = self.gradient(dy).dx
        return self.outside(
            dx,
            None if self.weight is None else self.total(dy * self.xhat),
            None if self.bias is None else self.total(dy),
        )

    def outside(
        self, dx: Array, dweight: Array | None, dbias: Array | None
    ) -> tuple[Array, Array | None, Array | None]:
        """Return gradients, or their errors, in the shapes of x and the parameters."""
        shape = self.view.parameter
        return (
            dx.reshape(self.view.data),
            None if dweight is None else dweight.reshape(shape),
            None if dbias is None else dbias.reshape(shape),
        )
