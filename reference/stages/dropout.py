"""Dropout before a residual sum: y = z·mask/(1 − p), with the mask given; 0 where it drops z (Srivastava et al., 2014).

As in flash-attn's `layer_norm_fn` and the fused layers of BERT and GPT-2: h = dropout(x) + residual, y = norm(h). The
mask is True where x is kept; a kernel that draws its own returns it, so the mask is an input here.

**Backward.** ẏ = ż·mask/(1 − p), hence dz = dy·mask/(1 − p); no z is needed, and the mask has no gradient.

**Errors.** p, 1 − p, a quotient and a product are rounded, whether a kernel divides by 1 − p or multiplies by its
reciprocal. Rounding p errs by ε = u·p/(1 − p) of 1 − p, with k = 2 roundings and a division (`arithmetic.DIVISION`):

    δy = mask·(|z|⁺ρ + δz)/(1 − p)      ρ = (1 + γ(k))/(1 − ε) − 1      |z|⁺ = |z| + δz

What is dropped is exactly 0. But 0·∞ and 0·NaN are NaN, and a kernel may select in place of a product, so an element is
not judged where z, or z/(1 − p), is beyond the largest number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from verify_norm.reference.arithmetic import DIVISION, Arithmetic, finite_below
from verify_norm.reference.stages.stage import Approximate, Inputs, Pulled
from verify_norm.reference.view import Array


@dataclass(frozen=True, slots=True)
class Dropout:
    """y = z·mask/(1 − p); `dropout_p` is p, of at least 0 and less than 1.

    >>> given = {"mask": np.array([[1.0, 0.0]]), "dropout_p": 0.75}
    >>> Dropout().value(np.array([[1.0, np.inf]]), given).tolist()
    [[4.0, 0.0]]
    """

    name: str = "dropout"
    inputs: tuple[str, ...] = ("mask",)
    options: tuple[str, ...] = ("dropout_p",)
    linear: bool = True
    of_x: bool = True
    trained: bool = False

    def value(self, z: Array, given: Inputs) -> Array:
        """Return z·mask/(1 − p); 0 where the mask is."""
        return np.where(_kept(z, given), z / (1.0 - given["dropout_p"]), 0.0)

    def moved(self, z: Array, dz: Array, off: Array, given: Inputs) -> Array:
        """Return mask/(1 − p) times what z moves by."""
        return self.value(np.broadcast_to(off, z.shape), given)

    def own_error(self, z: Approximate, given: Inputs, a: Arithmetic) -> Array:
        """Return δy without what δz makes of it."""
        most = (np.abs(z.value) + z.delta) / (1.0 - given["dropout_p"])
        own = np.where(_kept(z.value, given), most * _factor_error(given["dropout_p"], a) + 2 * a.tiny, 0.0)
        return finite_below(own, most, a.huge)

    def size(self, z: Approximate, given: Inputs) -> Array:
        """Return mask/(1 − p) times the terms of z."""
        return self.value(z.size, given)

    def pull(self, dy: Array, z: Array, given: Inputs) -> tuple[Array, dict[str, Array]]:
        """Return dz."""
        return self.value(dy, given), {}

    def pull_error(self, dy: Array, lost: Array | float, z: Approximate, given: Inputs, a: Arithmetic) -> Pulled:
        """Return δdz."""
        lost = np.broadcast_to(lost, dy.shape)
        arrived = Approximate(dy, lost, np.abs(dy))
        return Pulled(self.moved(dy, lost, lost, given) + self.own_error(arrived, given, a), {})


def _kept(z: Array, given: Inputs) -> Any:
    return given["mask"].reshape(z.shape) != 0


def _factor_error(p: Array | float, a: Arithmetic) -> float:
    """Return ρ; infinity where p is as near 1 as a.u, so that nothing is known of 1 − p.

    >>> _factor_error(0.5, Arithmetic(u=2.0**-24, tiny=0.0, huge=1e300)) < 2.0**-21
    True
    """
    off = a.u * float(p) / (1.0 - float(p))
    return float((1.0 + a.gamma(2 + DIVISION)) / (1.0 - off) - 1.0) if off < 1.0 else np.inf
