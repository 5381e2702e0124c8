"""An activation behind the norm: y = a(z); `verify_norm.reference.activation` has a, a' and their errors.

**Backward.** dz = dy·a'(z). The gradients depend on the bias too, through z. With |dy| ≤ |dy|⁺ = |dy| + lost,

    δdz = |a'|·lost + |dy|⁺·(max|a''|·δz + (the error of the kernel's own a') + one rounding)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verify_norm.reference.activation import ACTIVATIONS, Activation, nearby, pulled, steepness
from verify_norm.reference.arithmetic import Arithmetic, finite_below
from verify_norm.reference.stages.stage import Approximate, Elementwise, Inputs, Pulled
from verify_norm.reference.view import Array


@dataclass(frozen=True, slots=True)
class Activate(Elementwise):
    """y = a(z).

    >>> z = np.array([[-0.8, 0.8]])
    >>> Activate("silu").value(z, {}).round(4).tolist()
    [[-0.248, 0.552]]
    """

    name: str
    inputs: tuple[str, ...] = ()
    linear: bool = False
    of_x: bool = True

    @property
    def function(self) -> Activation:
        """The activation of this name."""
        return ACTIVATIONS[self.name]

    def value(self, z: Array, given: Inputs) -> Array:
        """Return a(z)."""
        return self.function.value(z)

    def moved(self, z: Array, dz: Array, off: Array, given: Inputs) -> Array:
        """Return the largest |a'| within dz of z, times what z moves by."""
        return steepness(self.function, z, dz) * off

    def own_error(self, z: Approximate, given: Inputs, a: Arithmetic) -> Array:
        """Return the error of a kernel's own a."""
        own = nearby(self.function.value_error, z.value, z.delta, a)
        return finite_below(own, np.abs(z.value) + z.delta, a.huge)

    def size(self, z: Approximate, given: Inputs) -> Array:
        """Return |a(z)|: nothing before it can be multiplied by what follows it."""
        return np.abs(self.function.value(z.value))

    def pull(self, dy: Array, z: Array, given: Inputs) -> tuple[Array, dict[str, Array]]:
        """Return dy·a'(z)."""
        return dy * self.function.slope(z), {}

    def pull_error(self, dy: Array, lost: Array | float, z: Approximate, given: Inputs, a: Arithmetic) -> Pulled:
        """Return how far a kernel's dy·a'(z) may be off."""
        _, off = pulled(self.function, np.abs(dy) + lost, z.value, z.delta, a)
        return Pulled(off + lost * np.abs(self.function.slope(z.value)), {})
