"""Errors added up over an output: a mean or a bias beyond what rounding and the bound explain."""

from collections.abc import Iterator

from verify_norm.checks.check import check, finding
from verify_norm.checks.relations.moments import Moments, moments, random
from verify_norm.core.finding import SIGNS, Finding, NoData, SmallestError
from verify_norm.core.op import Op
from verify_norm.core.run import Run


def _applies(op: Op) -> bool:
    """Not to BatchNorm: its sums are factored in ways that leave no more than the bound of each element.

    Nor behind a stage before the norm, or a dropout, whose errors have a common sign, nor to what is no norm.
    """
    return op.view != "channels" and op.direct and op.lawful


def _looks(run: Run) -> bool:
    return "distribution" in run.case.spec.further and random(run.case)


@check(applies=_applies, looks=_looks)
def distribution(run: Run) -> Iterator[Finding | SmallestError | NoData]:
    """The mean error and the bias of an output are no larger than rounding and the bound explain.

    In random data an error that all elements share shows in their sum long before it shows in any of them. A right
    kernel exceeds the limit of a sum with a probability of 1e-9.
    """  # derived in `verify_norm.checks.relations.moments`
    sums_of = moments(run)
    if not sums_of:
        yield NoData()
    for name, sums in sums_of.items():
        message = excess(sums)
        if message:
            ulp, allowed = sums.signed / sums.weight, sums.bias_allowed / sums.weight
            yield finding(run, "distribution", name, message, ulp=ulp, allowed=allowed)
        elif sums.size:
            yield from (SmallestError(name, sign, e) for sign, e in zip(SIGNS, sums.smallest, strict=True))


def excess(sums: Moments) -> str:
    """Return what exceeds its limit in these sums, in words; "" where nothing does."""
    words = f"over {sums.count} elements of {sums.output} ({sums.dtype})"
    if abs(sums.signed) > sums.bias_allowed:
        way = "large" if sums.signed > 0 else "small"
        return (
            f"{words} the results are {abs(sums.signed) / sums.weight:.3g} ULP too {way} in the mean; "
            f"at most {sums.bias_allowed / sums.weight:.3g} is allowed"
        )
    if sums.excess > sums.excess_allowed:
        return (
            f"{words} the mean error is {sums.excess / sums.weight:.3g} ULP above that of correct rounding; "
            f"at most {sums.excess_allowed / sums.weight:.3g} is allowed"
        )
    return ""
