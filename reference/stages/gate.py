"""A gate: y = z·a(gate), with a = SiLU, σ or GELU; the gate has the shape of x.

Behind the norm z is w·x̂ + b; before it z is x, and y is what the norm gets.

As in Mamba-2, Qwen3-Next, Kimi-Linear and Nemotron-H, and fla's `fused_norm_gate.py`.

**Backward.** ẏ = a·ż + z·a'(gate)·ġ, hence

    dz = dy·a(gate)      dgate = dy·z·a'(gate)

**Errors.** The gate is exact, so a kernel's a is off by its own error α alone, and its a' by α'. With the terms of z
and one rounding of each product, |z|⁺ = size + δz and |dy|⁺ = |dy| + lost,

    δy     = |a|·δz + |z|⁺·α + u·|z|⁺(|a| + α)
    δdz    = |a|·lost + |dy|⁺·α + u·|dy|⁺(|a| + α)
    δdgate = the same of the product of |dy|⁺, |z|⁺ and |a'|, whose factors are off by lost, δz and α'

Where results are rounded to a narrow type, α has that of a(gate), and dy·z before it meets a' one more.

z·gate may be multiplied first, so an element is not judged where that overflows, nor where the gate is infinite.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verify_norm.reference.activation import ACTIVATIONS, Activation
from verify_norm.reference.arithmetic import Arithmetic, finite_below
from verify_norm.reference.stages.stage import Approximate, Elementwise, Inputs, Pulled, product_error, rounded_off
from verify_norm.reference.view import Array


@dataclass(frozen=True, slots=True)
class Gate(Elementwise):
    """y = z·a(gate).

    >>> given = {"gate": np.array([[0.0, 800.0]])}
    >>> Gate("sigmoid").value(np.array([[2.0, 3.0]]), given).tolist()
    [[1.0, 3.0]]
    """

    activation: str = "silu"
    name: str = "gate"
    inputs: tuple[str, ...] = ("gate",)
    linear: bool = True
    of_x: bool = True

    @property
    def function(self) -> Activation:
        """The activation of the gate."""
        return ACTIVATIONS[self.activation]

    def value(self, z: Array, given: Inputs) -> Array:
        """Return z·a(gate)."""
        return z * self.function.value(given["gate"].reshape(z.shape))

    def _value_error(self, gate: Array, a: Arithmetic) -> Array:
        """Return α, how far a kernel's a(gate) may be off."""
        alpha = self.function.value_error(gate, a)
        return alpha + a.between(np.abs(self.function.value(gate)) + alpha)

    def moved(self, z: Array, dz: Array, off: Array, given: Inputs) -> Array:
        """Return |a(gate)| times what z moves by."""
        return np.abs(self.function.value(given["gate"].reshape(z.shape))) * off

    def own_error(self, z: Approximate, given: Inputs, a: Arithmetic) -> Array:
        """Return δy without what δz makes of it."""
        gate = given["gate"].reshape(z.value.shape)
        value, alpha, most = self.function.value(gate), self._value_error(gate, a), z.size + z.delta
        own = most * (alpha + a.u * (np.abs(value) + alpha)) + a.tiny * (1.0 + np.abs(value))
        return finite_below(own, most * (1.0 + np.abs(gate)), a.huge)

    def size(self, z: Approximate, given: Inputs) -> Array:
        """Return |a(gate)| times the terms of z."""
        return z.size * np.abs(self.function.value(given["gate"].reshape(z.value.shape)))

    def pull(self, dy: Array, z: Array, given: Inputs) -> tuple[Array, dict[str, Array]]:
        """Return dz and dgate."""
        gate = given["gate"].reshape(z.shape)
        dgate = dy * z * self.function.slope(gate)
        return dy * self.function.value(gate), {"gate": dgate.reshape(given["gate"].shape)}

    def pull_error(self, dy: Array, lost: Array | float, z: Approximate, given: Inputs, a: Arithmetic) -> Pulled:
        """Return δdz and δdgate."""
        gate = given["gate"].reshape(z.value.shape)
        value, slope = self.function.value(gate), self.function.slope(gate)
        lost = np.broadcast_to(lost, dy.shape)
        off = product_error(dy, lost, value, self._value_error(gate, a), a)
        both = rounded_off(np.abs(dy) * z.size, product_error(dy, lost, z.size, z.delta, a), a)
        of_gate = product_error(np.abs(dy) * z.size, both, slope, self.function.slope_error(gate, a), a)
        most = (np.abs(dy) + lost) * (1.0 + np.abs(gate))
        terms = (z.size + z.delta) * (1.0 + most)
        return Pulled(
            finite_below(off, most, a.huge),
            {"gate": finite_below(of_gate, most * terms, a.huge).reshape(given["gate"].shape)},
        )
