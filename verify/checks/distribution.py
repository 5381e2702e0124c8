"""Errors added up over an output: a mean or a bias beyond what rounding and the bound explain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from verify_norm.auditing.moments import Moments, moments, random
from verify_norm.checks import check, finding
from verify_norm.spec import Finding, Op, Power, Run
from verify_norm.stages import own_statistics

EVERY = 2  # one case of so many, by its seed


def _applies(op: Op) -> bool:
    """BatchNorm's sums are factored in ways that leave no more than the bound of each element."""
    return op.view != "channels"


def _looks(run: Run) -> bool:
    case = run.case
    usual = run.problem is None and case.spec.seed % EVERY == 0 and random(case.spec, case.op)
    return usual and own_statistics(case)


@check(applies=_applies, looks=_looks)
def distribution(run: Run) -> Iterator[Finding | Power]:
    """The mean error and the bias of an output are what rounding and the bound explain.

    In random data an error that all elements share shows in their sum long before it shows in any of them. How large
    the sums may be is derived in `verify_norm.auditing.moments`, with a probability of 1e-9 that a right kernel exceeds
    one. The power is the relative error of all elements that would have shown.
    """
    for name, one in moments(run).items():
        if one.size:
            yield Power(name, one.bias_allowed / one.size)
        message = said(one)
        if message:
            yield replace(finding(run, "distribution", name, message), ulp=one.signed / one.weight,
                          allowed=one.bias_allowed / one.weight)  # fmt: skip


def said(one: Moments) -> str:
    """What is wrong with these sums, in words; "" where nothing is."""
    words = f"over {one.count} elements of {one.output} ({one.dtype})"
    if abs(one.signed) > one.bias_allowed:
        way = "large" if one.signed > 0 else "small"
        return (
            f"{words} the results are {abs(one.signed) / one.weight:.3g} ULP too {way} in the mean; roundings and what "
            f"the bound lets them share explain {one.bias_allowed / one.weight:.3g}"
        )
    if one.excess > one.excess_allowed:
        return (
            f"{words} the mean error is {one.excess / one.weight:.3g} ULP above that of correct rounding; the bound "
            f"explains {one.excess_allowed / one.weight:.3g}"
        )
    return ""
