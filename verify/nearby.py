"""Equations between runs of a kernel near a case, and what it takes to state them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from verify_norm import cases, judge
from verify_norm.again import again, device_of
from verify_norm.dtypes import FORMATS, Array, Format
from verify_norm.execute import execute
from verify_norm.spec import CaseSpec, Run


class NearbyError(Exception):
    """The kernel fails on a case near by: why."""


@dataclass(frozen=True, slots=True)
class Equation:
    """Two sides that are to agree within a tolerance, element by element; inf where nothing is judged."""

    identity: str
    output: str
    left: Array
    right: Array
    tolerance: Array

    @property
    def ratio(self) -> Array:
        """|left − right| / tolerance, inf where a number is missing or a tolerance of 0 is exceeded."""
        with np.errstate(invalid="ignore", divide="ignore"):
            off = np.abs(self.left - self.right)
            ratio = np.where(off == 0, 0.0, off / self.tolerance)
        return np.where(np.isfinite(self.tolerance), np.where(np.isnan(ratio), np.inf, ratio), 0.0)


Equations = list[Equation] | None


def rerun(run: Run, exact: Mapping[str, Array | None], spec: CaseSpec | None = None, *, truth: bool = False) -> Run:
    """The kernel on other values; raises Fails. With `truth`, judged as well."""
    unsupported = run.kernel.unsupported
    if spec is not None and unsupported is not None and unsupported(spec) is not None:
        raise NearbyError("")
    if truth:
        case, values = run.case, {**run.case.exact, **exact}
        built = cases.build(spec or case.spec, case.op, run.kernel.contract, device_of(case), values, truth=True,
                            poison=case.poison)  # fmt: skip
        other = execute(run.kernel, built)
    else:
        other = again(run, exact, spec=spec)
    if other.problem is not None:
        raise NearbyError(other.problem)
    return other


def pairs(run: Run, other: Run) -> Iterator[tuple[str, Array, Array]]:
    """The outputs that both runs have, in the shape that the first has them in.

    What is of a wrong shape or type is for `signature` to tell.
    """
    for name, output in run.outputs.items():
        again_, expected = other.outputs.get(name), run.case.expected[name]
        if output is None or expected is None or output.ratio is None or again_ is None:
            continue
        if again_.got.size == output.got.size and output.dtype == again_.dtype == expected.dtype:
            yield name, output.got, again_.got.reshape(output.got.shape)


def format_of(run: Run, name: str) -> Format:
    """The type that an output is to have."""
    expected = run.case.expected[name]
    assert expected is not None
    return FORMATS[expected.dtype]


def half_ulps(run: Run, name: str, *sides: Array) -> Array:
    """Half an ulp of the output's type for each side."""
    return sum((0.5 * format_of(run, name).ulp(side) for side in sides), np.zeros(()))


def judged(run: Run, name: str, tolerance: Array, power: int = 0) -> Array:
    """The tolerance where the bound is finite and the output cannot overflow, at either scale; elsewhere inf."""
    expected = run.case.expected[name]
    assert expected is not None
    most = (np.abs(expected.value) + expected.delta) * 2.0 ** max(power, 0)
    known = judge.judged(expected) & (most < FORMATS[expected.dtype].largest / 2)
    return np.where(known, tolerance, np.inf)
