"""Equations between runs of a kernel near a case, and what it takes to state them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from verify_norm.core import judge, promises
from verify_norm.core.dtypes import FORMATS, Array, Format
from verify_norm.core.run import Expected, Output, Run
from verify_norm.reference.arithmetic import Arithmetic

FALSE_ALARM = 1e-9  # the probability that one call reports a right gradient as wrong, by chance


@dataclass(frozen=True, slots=True)
class Equation:
    """Two sides that agree within a tolerance, element by element; inf where nothing is judged."""

    name: str  # of the identity, or of the direction of a derivative
    output: str
    left: Array
    right: Array
    tolerance: Array

    @property
    def ratio(self) -> Array:
        """|left − right| / tolerance, inf where one number is missing or a tolerance of 0 is exceeded.

        Equal infinities agree, as do two NaN: whether they are right is a question of another check.
        """
        same = (self.left == self.right) | (np.isnan(self.left) & np.isnan(self.right))
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.where(same, 0.0, np.abs(self.left - self.right) / self.tolerance)
        return np.where(np.isfinite(self.tolerance), np.where(np.isnan(ratio), np.inf, ratio), 0.0)


@dataclass(frozen=True, slots=True)
class Comparison(Equation):
    """One direction in every unit: the derivative by the forward (`left`), by the gradient (`right`), the tolerance.

    `unit` says what a unit is: a row, a group, a column, or the whole tensor. `element` is |g·v| of a typical element.
    """

    element: Array
    unit: str

    @property
    def judged(self) -> int:
        """The number of units that are judged."""
        return int(np.isfinite(self.tolerance).sum())

    @property
    def worst(self) -> int:
        """The index of the unit with the largest ratio."""
        return int(np.argmax(self.ratio))

    @property
    def power(self) -> float:
        """The smallest error of the whole gradient, relative to it, that is detected; inf if none is."""
        return _smallest(self.tolerance, np.abs(self.left))

    def smallest(self, sign: int) -> float:
        """Return the e of a factor 1 + sign·e on the whole gradient that shows in some unit; inf if none does."""
        seen = np.isfinite(self.tolerance) & (self.right != 0)
        left, right, tolerance = self.left[seen], self.right[seen], self.tolerance[seen]
        present = sign * np.sign(right) * (right - left)  # what the gradient is off by towards that side
        return float(np.min((tolerance - present) / np.abs(right), initial=math.inf))

    @property
    def local(self) -> float:
        """The smallest relative error of one typical element that is detected; inf if none is."""
        return _smallest(self.tolerance, self.element)


Equations = list[Equation] | None


def _smallest(tolerance: Array, scale: Array) -> float:
    seen = np.isfinite(tolerance) & (scale > 0)
    return float(np.median(tolerance[seen] / scale[seen])) if seen.any() else math.inf


def confidence(comparisons: int) -> float:
    """Return Hoeffding's λ: this number of comparisons together exceed it by chance in one of 10⁹ calls.

    >>> round(confidence(1), 2), round(confidence(1000), 2)
    (6.54, 7.53)
    """
    return math.sqrt(2 * math.log(2 * max(comparisons, 1) / FALSE_ALARM))


def arithmetic_of(run: Run) -> Arithmetic:
    """Return the arithmetic that the kernel's contract promises in this case."""
    return promises.arithmetic(run.kernel.contract, run.case.spec.dtype, run.case.spec.weight_dtype)


def compared(run: Run) -> dict[str, tuple[Output, Expected]]:
    """Return the outputs that have the shape of their truth, each with it; `signature` reports the others."""
    expected = run.case.expected
    return {name: (o, e) for name, o in run.outputs.items() if o and o.ratio is not None and (e := expected[name])}


def pairs(run: Run, other: Run) -> Iterator[tuple[str, Array, Array]]:
    """Yield the outputs that both runs have in the right type, in the shape that the first has them in."""
    for name, (output, expected) in compared(run).items():
        second = other.outputs.get(name)
        if second and second.got.size == output.got.size and output.dtype == second.dtype == expected.dtype:
            yield name, output.got, second.got.reshape(output.got.shape)


def truth(run: Run, name: str) -> Expected:
    """Return the truth about an output that the case has."""
    expected = run.case.expected[name]
    assert expected is not None
    return expected


def format_of(run: Run, name: str) -> Format:
    """Return the format that an output has by its contract."""
    return FORMATS[truth(run, name).dtype]


def half_ulps(run: Run, name: str, *sides: Array) -> Array:
    """Return half an ulp of the output's type for each side, added up."""
    return sum((0.5 * format_of(run, name).ulp(side) for side in sides), np.zeros(()))


def judged(run: Run, name: str, tolerance: Array, power: int = 0) -> Array:
    """Return the tolerance where the bound is finite and the output cannot overflow, at either scale; elsewhere inf.

    It cannot where no value within the tolerance does: of gradients that cancel it may be far beyond a narrow type.
    """
    expected = truth(run, name)
    most = (np.abs(expected.value) + np.maximum(expected.delta, tolerance)) * 2.0 ** max(power, 0)
    known = judge.judged(expected) & (most < FORMATS[expected.dtype].largest / 2)
    return np.where(known, tolerance, np.inf)
