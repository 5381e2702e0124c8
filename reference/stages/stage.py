"""The form of a stage y = f(z, its own inputs) behind a norm, and the steps that all of them share.

A kernel knows z only up to δz, and f has an error of its own. With s at least |∂f/∂z| everywhere within δz of z,

    δy = s·δz + (the error of the kernel's own f, anywhere within δz of z)

Two runs of one kernel that share bits differ less than that: `Stage.apart`.

**Terms.** z is a sum, w·x̂ + b, and a kernel may multiply its terms by a later factor before it adds them up, as in
(w·m)·x̂ + b·m for z·m. Each term is then rounded, and these roundings do not cancel where the terms do. So a value is
passed on with `size`, at least the sum of the magnitudes of its terms.

**A narrow type between.** Where modules follow each other, each result is rounded to the type of x, and so is that
of each operation in a stage: a(gate), 1 + scale, a product before its sum (`Arithmetic.between`). The next stage gets a
z that is off by that too (`rounded`), and so does the gradient on its way back.

**Backward.** dy' is off by `lost` of each element. dz' is again off by some amount, which `Pulled.lost` bounds and
`rounding.gradients_error` takes. The gradients of a stage's own inputs have bounds of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from verify_norm.reference.arithmetic import Arithmetic, finite_below
from verify_norm.reference.view import Array

Inputs = Mapping[str, Array]


class Approximate(NamedTuple):
    """An exact value, how far a kernel's may be from it, and at least the magnitudes of its terms; shapes broadcast."""

    value: Array
    delta: Array
    size: Array


def exactly(x: Array) -> Approximate:
    """Return a value that a kernel is given."""
    return Approximate(x, np.zeros(()), np.abs(x))


class Pulled(NamedTuple):
    """How far a kernel's gradients with respect to z (`lost`) and a stage's own inputs may be off."""

    lost: Array
    gradients: dict[str, Array]


class Elementwise:
    """What stages are that make each element of y of that element of z, and whose inputs models train."""

    __slots__ = ()

    @property
    def trained(self) -> bool:
        """Whether a backward returns the gradients of its inputs."""
        return True


class Stage(Protocol):
    """One stage. z and dy have the shape of the view, `inputs` those in which the operator has them."""

    @property
    def name(self) -> str:
        """Its name in `--op` and in messages."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the tensors that it takes beside z."""

    @property
    def linear(self) -> bool:
        """Whether y is linear in z, up to a constant: then weight and bias move y in proportion."""

    @property
    def of_x(self) -> bool:
        """Whether its inputs have the shape of x; else they have one row a sample, or a token."""

    def value(self, z: Array, given: Inputs) -> Array:
        """Return y."""

    @property
    def trained(self) -> bool:
        """Whether a backward returns the gradients of its inputs."""

    def moved(self, z: Array, dz: Array, off: Array, given: Inputs) -> Array:
        """Return how far y moves where z, within dz of its value, moves by `off`; an infinite dz stands for any z."""

    def own_error(self, z: Approximate, given: Inputs, a: Arithmetic) -> Array:
        """Return how far a kernel's evaluation of y may be off within z.delta of z; NaN or inf where it overflows."""

    def size(self, z: Approximate, given: Inputs) -> Array:
        """Return at least the magnitudes of the terms of y."""

    def pull(self, dy: Array, z: Array, given: Inputs) -> tuple[Array, dict[str, Array]]:
        """Return the gradients of ⟨dy, y⟩ with respect to z, and to its own inputs by name, if they are `trained`."""

    def pull_error(self, dy: Array, lost: Array | float, z: Approximate, given: Inputs, a: Arithmetic) -> Pulled:
        """Return how far a kernel's `pull` may be off, where dy is off by `lost`."""


def rounded(z: Approximate, a: Arithmetic) -> Approximate:
    """Return what the next stage gets of a result: it may be rounded to a narrow type, and overflow there.

    >>> half = Arithmetic(u=0.0, tiny=0.0, huge=1e300, z_u=2**-11, z_huge=65504.0)
    >>> rounded(exactly(np.array([0.0, 2.0, 1e5])), half).delta.tolist()
    [0.0, 0.0009765625, inf]
    """
    return z._replace(delta=rounded_off(z.value, z.delta, a))


def rounded_off(value: Array, off: Any, a: Arithmetic) -> Any:
    """Return how far what the next stage gets of a result may be off, where the result itself is by `off`."""
    if not a.z_u:
        return off
    size = np.abs(value) + off
    return finite_below(off + a.between(size), size, a.huge_between)


def passed(stage: Stage, z: Approximate, given: Inputs, a: Arithmetic) -> Approximate:
    """Return y, and how far a kernel's y may be off: not at all where it is 0 and made of exact zeros."""
    moved = stage.moved(z.value, z.delta, z.delta, given)
    delta, size = moved + stage.own_error(z, given, a), stage.size(z, given)
    exact = (moved == 0) & (z.delta == 0) & (z.size == 0) & (size == 0) & np.isfinite(delta)
    return Approximate(stage.value(z.value, given), np.where(exact, 0.0, delta), size)


def apart(stage: Stage, z: Approximate, common: Array, given: Inputs, a: Arithmetic) -> Array:
    """Return how far y may be from what exact operations make of bits that runs share; `common` is the same of z."""
    return stage.moved(z.value, np.asarray(np.inf), common, given) + stage.own_error(z, given, a)


def product_error(one: Array, off: Array, other: Array, off_other: Array | float, a: Arithmetic) -> Array:
    """Return how far a product may be off: its factors by `off` and `off_other`, then one rounding.

    >>> exact = Arithmetic(u=0.0, tiny=0.0, huge=1e300)
    >>> float(product_error(np.array(3.0), np.array(0.5), np.array(-2.0), np.array(0.25), exact))
    1.875
    """
    one, other = np.abs(one), np.abs(other)
    carried = one * off_other + (other + off_other) * off
    return carried + a.u * (one * other + carried) + a.tiny


def sum_error(terms: Array, off: Array, axis: int, a: Arithmetic, *, products: bool) -> Array:
    """Return how far a sum over rows may be off: each term by `off`, then the roundings of the sum.

    `terms` are at least the magnitudes of the terms. Sums of products and of terms alone are those of dweight and dbias
    (`rounding.weight_error`, `rounding.bias_error`).
    """
    L = terms.shape[axis]
    most = terms + off
    over = a.over_rows
    unit = (over.summed(L) if products else a.gamma(over.terms(L, products=False))) + L * a.partials_u
    missed = 0.0 if products else (1.0 + unit) * a.missed(terms, off)
    delta: Array = (off + unit * most + missed).sum(axis) + L * (a.tiny + a.narrow_tiny)
    return delta
