"""Whether one run's errors are worse than another's, beyond what the choice of cases does.

A run's numbers are sums and maxima over cases, and elements of one case err alike, so it is cases that count, not
elements. Three footings have to be told apart.

**The same cases.** The corner table is the same in every run, and so are the random cases of one seed until Hypothesis
begins to steer, which it does by the errors that it sees. Where both runs met the same cases (the same settings, and
the same counts of cases, elements and layouts), every element has its counterpart, and a difference is none of chance.
It is then asked whether it matters: a sum in another order moves ratios, means and percentiles by some percent. Between
two right kernels for one operator, ours and torch's or a plain one, error/bound differs by up to 6 %, the mean of
narrow outputs by 2 %, that of float32 by 27 %, the share of a narrow output that is rounded right by 0.01 %. `Limits`
are above that. The bias also has to exceed five standard errors of a sum of roundings that are independent:
√(Σ e² of both)/n.

**Typical data of another seed**, as an audit surveys: cases drawn alike, and steered by nothing. By Jensen's inequality
the variance of a case's mean is at most the mean square of its elements, so √(Σ e²)/√cases bounds the standard error of
an average, and √(p(1 − p)/cases) that of a share p: both hold however alike the elements of a case are, and a heavy
tail widens the first by itself. Three of these standard errors are added to what is allowed over the same cases, and
the factors are doubled. Eight seeds' ratios of right kernels are within a factor of 2.2 of each other.

**Other cases.** Half of a run's random cases are steered towards large errors, so that its averages tell as much of
what the steering found as of the kernel: over ten seeds of one right kernel a mean in float32 moves by 10³⁰, the share
that is rounded right by 0.36 in float16 and 0.56 in float32, and error/bound by a factor of 4.5. No rule of averages
can do without false alarms there. Only two numbers are compared, with limits that those seeds do not reach: the share
of narrow outputs, and error/bound where neither is beyond 1, for what is beyond its bound is a finding.

`benchmarks/compare.py` runs kernels of both kinds, right and lossy, with several seeds, and compares all pairs.

The mean is judged with errors above CAP counted as CAP, since a mean of float32 errors is that of its few largest ones.
Shares of float32 outputs are not judged: nothing rounds them right but chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import hypot, inf, nan, sqrt

from verify_norm.auditing.model import UlpReport
from verify_norm.dtypes import FORMATS
from verify_norm.report.comparison import Errors, Footing, Limits
from verify_norm.report.model import Tally
from verify_norm.ulp import BINS, LOWEST, PER_OCTAVE

CAP = 16.0  # ulp
LEAST_RATIO = 0.1  # less is far from any bound
LEAST_MEAN = 0.05  # ulp
LEAST_P99 = 1.0  # ulp: a right 16-bit output has 0.5
ENOUGH = (50, 5000)  # cases and elements, for a percentile of another seed's data
ROUNDINGS = 5.0  # standard errors of independent roundings
SEEDS = 3.0  # bounds on the standard errors of another seed's data
Worse = tuple[str, str, str, str]  # what, as it was, as it is, what was allowed


def of_tally(tally: Tally) -> Errors:
    """The errors of a tally.

    >>> from verify_norm.ulp import UlpStats
    >>> stats = UlpStats(count=4, correct=3, maximum=100.0, total=101.0, histogram=(0,) * 32 + (3, 0, 1) + (0,) * 127)
    >>> round(of_tally(Tally("y", "float16", 1, 4, ulp=stats)).capped, 2)
    0.99
    """
    ulp = tally.ulp
    known = len(ulp.histogram) == BINS
    edges = (2.0 ** (LOWEST + place / PER_OCTAVE) for place in range(BINS - 1))
    bins = zip((*edges, inf), ulp.histogram, strict=False) if known else ()
    return Errors(
        tally.output, tally.dtype, False, tally.cases, ulp.count, tally.ratio, ulp.mean, ulp.bias,
        ulp.quantile(0.99) if known else nan, ulp.correctly_rounded,
        *_moments(bins, 1 / PER_OCTAVE, ulp.maximum),
    )  # fmt: skip


def of_survey(found: UlpReport) -> Errors:
    """The errors that an audit found in typical data."""
    return Errors(
        found.output, found.dtype, True, found.cases, found.elements - found.unjudged, found.ratio, found.mean,
        found.bias, found.p99, found.correct, *_moments(found.histogram, 1.0, found.maximum),
    )  # fmt: skip


def _moments(bins: Iterable[tuple[float, int]], octaves: float, maximum: float) -> tuple[float, float, float]:
    """Capped mean, root mean square and capped root mean square; each error in the middle of its bin, by logarithm."""
    count, capped, square, capped_square = 0, 0.0, 0.0, 0.0
    for edge, number in bins:
        middle = min(edge * 2 ** (-octaves / 2), maximum) if edge < inf else maximum
        least = min(middle, CAP)
        count += number
        capped += number * least
        capped_square += number * least * least
        square += number * middle * middle if number else 0.0
    if not count:
        return nan, nan, nan
    return capped / count, sqrt(square / count), sqrt(capped_square / count)


def footing(old: Errors, new: Errors, *, same: bool) -> Footing:
    """On what two runs' errors can be compared; `same` tells that settings and seeds are the same, or need not be."""
    if same and (old.cases, old.elements) == (new.cases, new.elements):
        return "the same cases"
    return "typical data" if old.typical and new.typical else "other cases"


def losses(old: Errors, new: Errors, on: Footing, limits: Limits, *, bound: bool = True) -> Iterator[Worse]:
    """In what `new` is worse than `old`. `bound`: both promise the same, so that error/bound is comparable."""
    if bound:
        yield from _ratio(old, new, on, limits)
    narrow = new.dtype in FORMATS and FORMATS[new.dtype].precision < FORMATS["float32"].precision
    if on == "other cases":
        lost = old.correct - new.correct
        if narrow and old.ratio <= 1 and lost > limits.share_elsewhere:
            yield "rounded right", _percent(old.correct), _percent(new.correct), _allowed(limits.share_elsewhere)
        return
    if not old.cases or not new.cases:
        return
    apart = on == "typical data"
    if narrow:
        among = (old.correct + new.correct) / 2
        chance = SEEDS * sqrt(among * (1 - among) * (1 / old.cases + 1 / new.cases)) if apart else 0.0
        if old.correct - new.correct > limits.share + chance:
            yield "rounded right", _percent(old.correct), _percent(new.correct), _allowed(limits.share + chance)
    chance = SEEDS * hypot(old.capped_rms / sqrt(old.cases), new.capped_rms / sqrt(new.cases)) if apart else 0.0
    if new.capped > limits.mean * old.capped and new.capped - old.capped > LEAST_MEAN + chance:
        yield "mean error", f"{old.capped:.3g} ULP", f"{new.capped:.3g} ULP", f"a factor of {limits.mean:g} is allowed"
    count = (min(old.cases, new.cases), SEEDS) if apart else (min(old.elements, new.elements), ROUNDINGS)
    chance = count[1] * hypot(old.rms, new.rms) / sqrt(count[0]) if count[0] else inf
    if abs(new.bias) - abs(old.bias) > limits.bias + chance:
        yield "bias", f"{old.bias:+.3g} ULP", f"{new.bias:+.3g} ULP", f"{limits.bias + chance:.2g} ULP are allowed"
    factor = limits.p99 * (2 if apart else 1)
    least = (min(old.cases, new.cases), min(old.elements, new.elements))
    enough = not apart or all(have >= need for have, need in zip(least, ENOUGH, strict=True))
    if enough and new.p99 > factor * old.p99 and new.p99 > LEAST_P99:
        yield "p99", f"{old.p99:.3g} ULP", f"{new.p99:.3g} ULP", f"a factor of {factor:g} is allowed"


def _ratio(old: Errors, new: Errors, on: Footing, limits: Limits) -> Iterator[Worse]:
    factor = {"the same cases": limits.ratio, "typical data": 2 * limits.ratio}.get(on, limits.ratio_elsewhere)
    if old.ratio > 1 and on != "the same cases":
        return  # how far beyond its bound an error is found, is chance
    if on == "other cases" and new.ratio > 1:
        return
    if new.ratio > factor * old.ratio and new.ratio > LEAST_RATIO:
        yield "error/bound", f"{old.ratio:.3g}", f"{new.ratio:.3g}", f"a factor of {factor:g} is allowed"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _allowed(share: float) -> str:
    return f"{100 * share:.2g} % of all elements are allowed"
