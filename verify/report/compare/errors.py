"""Whether one run's errors are worse than another's, over the same cases.

Each element has its counterpart in the other run, so no difference is due to chance, but not every one matters: a sum
in another order moves ratios, means and percentiles. `RegressionLimits` are above what two correct kernels of one
operator differ by; only error/bound of a float32 mean that is far below its bound may exceed them. The bias must also
exceed five standard errors of a sum of independent roundings: √(Σ e² of both)/n.

The mean counts an error above CAP as CAP, because a few large float32 errors dominate a mean. The share of correctly
rounded float32 outputs is not judged: it depends on chance.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import hypot, inf, nan, sqrt

from verify_norm.auditing.model import UlpReport
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.regression import RegressionLimits
from verify_norm.core.tally import Tally
from verify_norm.core.ulp import BINS, LOWEST, PER_OCTAVE
from verify_norm.report.compare.model import Change, Errors, Row
from verify_norm.report.numbers import percent

CAP = 16.0  # ulp
LEAST_RATIO = 0.3  # a smaller error/bound is far from any bound
LEAST_MEAN = 0.05  # ulp
LEAST_P99 = 1.0  # ulp: a correct 16-bit output has 0.5
ROUNDINGS = 5.0  # standard errors of independent roundings


def of_tally(tally: Tally) -> Errors:
    """Return the errors of a tally.

    >>> from verify_norm.core.ulp import UlpStats
    >>> stats = UlpStats(count=4, correct=3, maximum=100.0, total=101.0, histogram=(0,) * 32 + (3, 0, 1) + (0,) * 127)
    >>> round(of_tally(Tally("y", "float16", 1, 4, ulp=stats)).capped, 2)
    1.01
    """
    ulp = tally.ulp
    known = len(ulp.histogram) == BINS
    edges = (2.0 ** (LOWEST + place / PER_OCTAVE) for place in range(BINS - 1))
    bins = zip((*edges, inf), ulp.histogram, strict=False) if known else ()
    p99 = ulp.quantile(0.99) if known else nan
    numbers = (tally.ratio, ulp.mean, ulp.bias, p99, ulp.correctly_rounded)
    moments = _moments(bins, 1 / PER_OCTAVE, ulp.maximum)
    return Errors(tally.output, tally.dtype, False, tally.cases, ulp.count, *numbers, *moments)


def of_survey(found: UlpReport) -> Errors:
    """Return the errors that an audit found in typical data."""
    elements = found.elements - found.unjudged
    numbers = (found.ratio, found.mean, found.bias, found.p99, found.correct)
    moments = _moments(found.histogram, 1.0, found.maximum)
    return Errors(found.output, found.dtype, True, found.cases, elements, *numbers, *moments)


def _moments(bins: Iterable[tuple[float, int]], octaves: float, maximum: float) -> tuple[float, float]:
    """Return the capped mean and the root mean square; an error counts as the logarithmic middle of its bin."""
    count, capped, square = 0, 0.0, 0.0
    for edge, number in bins:
        middle = min(edge * 2 ** (-octaves / 2), maximum) if edge < inf else maximum
        count += number
        capped += number * min(middle, CAP)
        square += number * middle * middle if number else 0.0
    return (capped / count, sqrt(square / count)) if count else (nan, nan)


def changes(row: Row, limits: RegressionLimits, *, same_contract: bool) -> Iterator[Change]:
    """Yield what got worse and what got better; error/bound only where both kernels have the same contract."""
    yield from _worse(row.old, row.new, limits, same_contract=same_contract)
    for change in _worse(row.new, row.old, limits, same_contract=same_contract):
        yield replace(change, way="better", old=change.new, new=change.old)


def _worse(old: Errors, new: Errors, limits: RegressionLimits, *, same_contract: bool) -> Iterator[Change]:
    """Yield the numbers in which `new` is worse than `old`."""

    def worse(what: str, was: str, now: str, limit: str) -> Change:
        why = f"the limit is {limit}"
        if new.typical:
            why = f"in typical data; {why}"
        return Change("errors", "worse", f"{new.output} {new.dtype} {what}", was, now, why)

    if same_contract and new.ratio > limits.ratio * old.ratio and new.ratio > LEAST_RATIO:
        yield worse("error/bound", f"{old.ratio:.3g}", f"{new.ratio:.3g}", f"a factor of {limits.ratio:g}")
    if not old.cases or not new.cases:
        return
    narrow = new.dtype in FORMATS and FORMATS[new.dtype].precision < FORMATS["float32"].precision
    if narrow and old.correct - new.correct > limits.share:
        limit = f"{100 * limits.share:.2g} % of all elements"
        yield worse("correctly rounded", percent(old.correct), percent(new.correct), limit)
    if new.capped > limits.mean * old.capped and new.capped - old.capped > LEAST_MEAN:
        yield worse("mean error", f"{old.capped:.3g} ULP", f"{new.capped:.3g} ULP", f"a factor of {limits.mean:g}")
    elements = min(old.elements, new.elements)
    bias = limits.bias + (ROUNDINGS * hypot(old.rms, new.rms) / sqrt(elements) if elements else inf)
    if abs(new.bias) - abs(old.bias) > bias:
        yield worse("bias", f"{old.bias:+.3g} ULP", f"{new.bias:+.3g} ULP", f"{bias:.2g} ULP more")
    if new.p99 > limits.p99 * old.p99 and new.p99 > LEAST_P99:
        yield worse("p99", f"{old.p99:.3g} ULP", f"{new.p99:.3g} ULP", f"a factor of {limits.p99:g}")
