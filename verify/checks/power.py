"""The smallest errors that a check alone would have detected, put into what a kernel computes before its last rounding.

**The error** is a factor 1 + e or 1 − e: on all elements of an output, on one row of it in every case, or on one
element in every case, at random places. A figure holds for both signs: it is the larger of two.

**One case.** `accuracy`, `statistics` and `sums` detect a result that is no rounding of anything within δ of the truth
w. With the factor 1 + e the result is the rounding of |w|(1 + e), up to the kernel's own error. So it is detected
beyond the tie above round(|w| + δ), and with 1 − e beyond the tie below round(|w| − δ). The least such e of all
elements counts. In a 16-bit output it is far below an ulp, since some element lies near a tie. A kernel's arithmetic
has no factor nearer to 1 than u, so u is added. `gradient` compares sums, which the factor changes by e times a known
size: e = (tolerance − what the sum is off by towards that side)/size, and the u of the output's type, which the last
rounding may take back. `distribution` adds up what the factor changes in each element (`relations.moments`).

`verify_norm.search.detectable` says what a run of many cases detects.
"""

from collections.abc import Collection, Iterator
from math import inf

import numpy as np
from numpy.typing import NDArray

from verify_norm.cases import make
from verify_norm.cases.random import generator
from verify_norm.checks.relations.equations import arithmetic_of, compared
from verify_norm.checks.relations.rerun import small
from verify_norm.core import judge
from verify_norm.core.dtypes import FORMATS, Array, Format
from verify_norm.core.finding import SIGNS, SmallestError
from verify_norm.core.run import Expected, Output, Run


def smallest(run: Run, names: Collection[str]) -> Iterator[SmallestError]:
    """Yield the smallest errors of these outputs that the bound of their elements shows.

    Outputs that are wrong already, and those without an element that is judged and not 0, are left out.
    """
    rng = generator(run.case.spec.seed, 0xC2B2AE35)
    u, changes = arithmetic_of(run).u, _dropped(run) if looks(run) else {}
    for name, (output, expected) in compared(run).items():
        live = judge.judged(expected) & (expected.value != 0)
        if name not in names or output.ratio is None or output.ratio.max(initial=0.0) > 1 or not live.any():
            continue
        places = np.flatnonzero(live)
        index = np.unravel_index(int(places[int(rng.integers(len(places)))]), live.shape)
        row = index[:-1] or index
        change = changes.get(name)
        dropped = None if change is None else _shows(output, expected, change)
        of_signs = crossings(expected.value, expected.delta, FORMATS[expected.dtype], live)
        least = np.stack([errors[at].min() for errors in of_signs for at in (..., row, index)])  # a GPU's in one copy
        for sign, (everything, one_row, one) in zip(SIGNS, least.reshape(-1, 3).tolist(), strict=True):
            yield SmallestError(name, sign, u + everything, u + one_row, u + one, dropped)


def crossings(value: Array, delta: Array, form: Format, live: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return, for each of SIGNS, the e from which |value|·(1 + sign·e) rounds to no rounding of value ± delta.

    It is inf where an element is not `live`, and where a saturated result may hide the error.

    >>> form = FORMATS["bfloat16"]  # beside 1, the next number is 2**-7 above and 2**-8 below
    >>> [float(e[0]).hex() for e in crossings(np.array([1.0]), np.array([0.0]), form, np.array([True]))]
    ['0x1.0000000000000p-8', '0x1.0000000000000p-9']
    """
    size = np.abs(value)
    highest, lowest = form.round(size + delta), form.round(size - delta)  # the farthest numbers that pass
    above = highest - size + 0.5 * form.ulp(highest)
    below = size - lowest + 0.5 * form.ulp(np.nextafter(lowest, -inf))
    live = live & (highest < form.largest)
    return np.where(live, above / size, inf), np.where(live, below / size, inf)


def looks(run: Run) -> bool:
    """Return whether an ordinary run takes the time to leave out terms in this case."""
    return small(run) and run.case.spec.eps > 0 and "power" in run.case.spec.further


def _shows(output: Output, expected: Expected, change: Array) -> bool:
    changed = FORMATS[expected.dtype].round(output.got + change)
    return bool((judge.ratio(changed, expected) > 1).any())


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
