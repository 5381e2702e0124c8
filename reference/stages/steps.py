"""The stages behind a norm one after another: forward with the error of every z, and back with that of the gradient."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verify_norm.reference.arithmetic import Arithmetic
from verify_norm.reference.norm import Norm
from verify_norm.reference.stages.stage import Approximate, Inputs, Stage, passed, rounded, rounded_off
from verify_norm.reference.view import Array


@dataclass(frozen=True, slots=True)
class Steps:
    """Every z of a chain with its error, the last being y; stage i makes zs[i + 1] of zs[i]."""

    stages: tuple[Stage, ...]
    zs: tuple[Approximate, ...]

    def pulled_error(self, dy: Array, given: Inputs, a: Arithmetic) -> tuple[Array, Array | float, dict[str, Array]]:
        """Return the gradient with respect to z0, how far a kernel's may be off, and the errors of the stages' own."""
        lost: Array | float = 0.0
        errors: dict[str, Array] = {}
        for stage, z in zip(reversed(self.stages), reversed(self.zs[:-1]), strict=True):
            lost, own = stage.pull_error(dy, lost, z, given, a)
            dy, errors = stage.pull(dy, z.value, given)[0], errors | own
            lost = rounded_off(dy, lost, a)
        return dy, lost, errors


def steps(stages: tuple[Stage, ...], n: Norm, dz: Array, given: Inputs, a: Arithmetic) -> Steps:
    """Return every z, where z0 = w·x̂ + b is off by dz: by nothing where w·x̂ of x = 0, or of w = 0, has no b.

    An x that is off itself (`Norm.off`) may be 0 only in the reference. And 0·x̂ is NaN where a kernel's x̂ overflows.

    >>> from verify_norm.reference import l2norm
    >>> from verify_norm.reference.stages.modulate import Modulate
    >>> from verify_norm.reference.view import rows
    >>> x, scale = np.array([[3.0, 4.0]]), np.array([[1.0, 0.0]])
    >>> n, exact = l2norm.norm(rows(x, None), x, 0.0), Arithmetic(u=0.0, tiny=0.0, huge=1e300)
    >>> y = steps((Modulate(),), n, np.full((1, 2), 0.25), {"scale": scale, "shift": -scale}, exact).zs[-1]
    >>> y.value.round(9).tolist(), y.delta.tolist()
    ([[0.2, 0.8]], [[0.5, 0.25]])
    """
    size = np.abs(n.y) + (0.0 if n.bias is None else 2 * np.abs(n.bias))
    zero = (n.x == 0) & (n.off is None)
    exact = zero.all(n.view.axes, keepdims=True)
    if not n.centred:
        exact = exact | (zero & np.isfinite(dz))
    if n.weight is not None:
        exact = exact | ((n.weight == 0) & np.isfinite(dz))
    z, zs = Approximate(n.y, np.where(exact & (size == 0), 0.0, dz), size), []
    for stage in stages:
        zs.append(rounded(z, a))
        z = passed(stage, zs[-1], given, a)
    return Steps(stages, (*zs, z))
