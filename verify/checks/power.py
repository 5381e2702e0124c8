"""How wrong a result could have been and still have passed: errors of graded size, put into what a kernel returned.

The mutants are made from the kernel's own outputs, rounded to the output's type as a kernel's would be, and judged in
the same way: whether an element is beyond its bound. A run does not see an error that passes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np

from verify_norm.cases import make
from verify_norm.checks.relations.equations import compared
from verify_norm.checks.relations.rerun import small
from verify_norm.core import judge
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.spec import Expected, Output, Run

BOUNDS = tuple(2.0 ** (k / 4) for k in range(-4, 17))  # ½ to 16 times what an element is allowed
FACTORS = tuple(2.0**-k for k in range(36, -1, -1))  # 1.5e-11 to 1, of a value


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The smallest errors of one output that show in a case: inf where none of the graded ones does.

    `dropped` says whether a term left out of the sums shows: an element of every row, or a row of dweight and dbias.
    """

    output: str
    dtype: str
    element: float  # an error of one element, in units of its bound
    row: float  # a relative error of every element of one row, or of one column's gradient of a weight
    bias: float  # a relative error of every element
    dropped: bool | None  # None where the case has but one term


def looks(run: Run) -> bool:
    """Return whether an ordinary run takes the time for this case."""
    return small(run) and run.case.spec.eps > 0 and "power" in run.case.spec.further


def sensitivities(run: Run) -> tuple[Sensitivity, ...]:
    """Return what each output of one run could have hidden, without outputs that are wrong already or not judged."""
    rng = np.random.Generator(np.random.Philox(key=[run.case.spec.seed, 0xC2B2AE35]))
    with np.errstate(all="ignore"):  # infinities, and 0 times them, are no verdict's concern
        dropped = _dropped(run)
        sensed = (_sensitivity(name, *both, dropped.get(name), rng) for name, both in compared(run).items())
        return tuple(one for one in sensed if one is not None)


def _sensitivity(
    name: str, output: Output, expected: Expected, dropped: Array | None, rng: np.random.Generator
) -> Sensitivity | None:
    live = judge.judged(expected) & (expected.value != 0)
    if not live.any() or output.ratio is None or output.ratio.max() > 1:
        return None
    got, form = output.got, FORMATS[expected.dtype]

    def shows(error: Array) -> bool:
        return bool((judge.ratio(form.round(got + error), expected) > 1).any())

    index = tuple(rng.choice(np.argwhere(live)))
    sign = rng.choice((-1.0, 1.0))
    element, row = np.zeros(got.shape), np.zeros(got.shape)
    element[index] = sign * judge.allowed(expected)[index]
    line = index[:-1] if got.ndim > 1 else index
    row[line] = sign * got[line]
    return Sensitivity(
        name,
        expected.dtype,
        element=_least(BOUNDS, shows, element),
        row=_least(FACTORS, shows, row),
        bias=_least(FACTORS, shows, sign * got),
        dropped=None if dropped is None else shows(dropped),
    )


def _least(grades: tuple[float, ...], shows: Callable[[Array], bool], error: Array) -> float:
    """Return the smallest grade that shows, inf where the largest does not; assume that all larger ones show."""
    if not shows(grades[-1] * error):
        return inf
    low, high = -1, len(grades) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if shows(grades[middle] * error) else (middle, high)
    return grades[high]


def _dropped(run: Run) -> dict[str, Array]:
    """Return how each output changes where a sum lacks a term, while the elements of that term stay as they were.

    The reference is evaluated with the term set to 0: the last element of every row of x or, in a backward, of dy; and
    for the sums over rows the last row of dy.
    """
    case = run.case
    offered = make.offer(case.spec, case.op, run.kernel.contract, case.exact)
    name = "dy" if case.op.forward else "x"
    values = case.exact[name]
    if values is None or values.ndim < 2 or values.shape[-1] < 2 or values.shape[0] < 2:
        return {}
    last, lowest = values.copy(), values.copy()
    last[..., -1] = 0.0
    lowest[-1] = 0.0
    without_element, without_row = (make.call(case.op.reference, offered | {name: v}) for v in (last, lowest))
    changes = {}
    for position, tensor in enumerate(case.op.outputs):
        expected = case.expected[tensor.name]
        if expected is None or tensor.role != "output" or (tensor.extent == "affine" and name == "x"):
            continue
        change = (without_row if tensor.extent == "affine" else without_element)[position] - expected.value
        if tensor.extent == "data":
            change[..., -1] = 0.0
        changes[tensor.name] = change
    return changes
