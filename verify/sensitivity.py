"""How wrong a result could have been and still have passed: errors of graded size, put into what a kernel returned.

The mutants are made from the kernel's own outputs, rounded to the output's type as a kernel's would be, and put to
the same verdict: whether an element is beyond its bound. What passes it is not seen by a run, whatever the words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf, prod

import numpy as np

from verify_norm import cases, judge
from verify_norm.dtypes import FORMATS, Array
from verify_norm.spec import Expected, Output, Run

ELEMENTS = 4096  # of x, at most, in an ordinary run
EVERY = 4  # and one case of so many
BOUNDS = tuple(2.0 ** (k / 4) for k in range(-4, 17))  # ½ to 16 times what an element is allowed
FACTORS = tuple(2.0**-k for k in range(36, -1, -1))  # 1.5e-11 to 1, of a value


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The smallest errors of one output that show in a case: inf where none of the graded ones does.

    Parameters
    ----------
    element : an error of one element, in units of its bound.
    row : a relative error of every element of one row (of one column's gradient, where the output is of weights).
    bias : a relative error of every element.
    dropped : whether a term left out of the sums shows: an element of every row, or a row of dweight and dbias. None
        where the case has but one.
    """

    output: str
    dtype: str
    element: float
    row: float
    bias: float
    dropped: bool | None


def looks(run: Run) -> bool:
    """Whether an ordinary run takes the time for this case."""
    spec = run.case.spec
    plain = run.problem is None and spec.special is None and spec.eps > 0
    return plain and spec.seed % EVERY == 0 and 0 < prod(spec.shape) <= ELEMENTS


def sensitivities(run: Run) -> Iterator[Sensitivity]:
    """What each output of one run could have hidden; outputs that are wrong already, or not judged, are left out."""
    rng = np.random.Generator(np.random.Philox(key=[run.case.spec.seed, 0xC2B2AE35]))
    dropped = _dropped(run)
    for name, output in run.outputs.items():
        expected = run.case.expected[name]
        if output is None or expected is None or output.ratio is None or not output.got.size or output.ratio.max() > 1:
            continue
        live = judge.judged(expected) & (expected.value != 0)
        if not live.any():
            continue
        index = tuple(rng.choice(np.argwhere(live)))
        sign, shows = rng.choice((-1.0, 1.0)), _verdict(output, expected)
        one = np.zeros(output.got.shape)
        with np.errstate(invalid="ignore"):  # elsewhere there may be infinities
            one[index] = sign * judge.allowed(expected)[index]
        row = np.zeros(output.got.shape)
        row[index[:-1] if output.got.ndim > 1 else index] = 1.0
        yield Sensitivity(
            name,
            expected.dtype,
            element=_least(BOUNDS, lambda k, one=one, shows=shows: shows(k * one)),  # type: ignore[misc]
            row=_least(FACTORS, lambda k, row=row, shows=shows, got=output.got: shows(k * row * got)),  # type: ignore[misc]
            bias=_least(FACTORS, lambda k, sign=sign, shows=shows, got=output.got: shows(sign * k * got)),  # type: ignore[misc]
            dropped=shows(dropped[name]) if name in dropped else None,
        )


def _verdict(output: Output, expected: Expected) -> Callable[[Array], bool]:
    """Whether an error added to the output shows."""
    form = FORMATS[expected.dtype]

    def shows(error: Array) -> bool:
        with np.errstate(all="ignore"):
            return bool((judge.ratio(form.round(output.got + error), expected) > 1).any())

    return shows


def _least(grades: tuple[float, ...], shows: Callable[[float], bool]) -> float:
    """The smallest grade that shows; inf where the largest does not. Larger ones are taken to show too."""
    if not shows(grades[-1]):
        return inf
    low, high = -1, len(grades) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if shows(grades[middle]) else (middle, high)
    return grades[high]


def _dropped(run: Run) -> dict[str, Array]:
    """How each output changes where a term is left out of its sums, and the terms' own elements are as they were.

    The reference is evaluated with the term set to 0: the last element of every row of x or, in a backward, of dy; and
    for the sums over rows the last row of dy.
    """
    case = run.case
    offered = {**case.exact, **cases.attributes(case.spec, case.op)}
    name = "dy" if case.op.forward else "x"
    values = case.exact[name]
    if values is None or values.ndim < 2 or values.shape[-1] < 2 or values.shape[0] < 2:
        return {}
    last, lowest = values.copy(), values.copy()
    last[..., -1] = 0.0
    lowest[-1] = 0.0
    changes = {}
    with np.errstate(all="ignore"):
        without = {
            "data": cases.call(case.op.reference, offered | {name: last}),
            "affine": cases.call(case.op.reference, offered | {name: lowest}),
        }
    for position, tensor in enumerate(case.op.outputs):
        expected = case.expected[tensor.name]
        if expected is None or tensor.role != "output" or (tensor.extent == "affine" and name == "x"):
            continue
        change = without["data" if tensor.extent != "affine" else "affine"][position] - expected.value
        if tensor.extent == "data":
            change[..., -1] = 0.0
        changes[tensor.name] = change
    return changes
