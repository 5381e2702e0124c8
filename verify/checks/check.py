"""A check: a function from a run to its findings, entered by one decorator line."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np

from verify_norm.core.spec import Finding, Observed, Op, Run, SmallestError, Status

CheckFunction = Callable[[Run], Iterable[Finding | SmallestError | Observed]]


@dataclass(frozen=True, slots=True)
class Check:
    """A named check.

    `applies(op)` says whether it is about this operator at all, `looks(run)` whether it has anything to look at in this
    run: a check that never looks does not pass.
    """

    name: str
    summary: str
    applies: Callable[[Op], bool]
    looks: Callable[[Run], bool]
    function: CheckFunction


CHECKS: dict[str, Check] = {}


def check(
    *, applies: Callable[[Op], bool] = lambda op: True, looks: Callable[[Run], bool] = lambda run: True
) -> Callable[[CheckFunction], CheckFunction]:
    """Enter a function into CHECKS under its own name; NumPy warns of nothing in it."""

    def enter(function: CheckFunction) -> CheckFunction:
        @wraps(function)
        def quiet(run: Run) -> tuple[Finding | SmallestError | Observed, ...]:
            with np.errstate(all="ignore"):  # NaN, infinities and overflow are among the inputs
                return tuple(function(run))

        assert function.__doc__, f"check {function.__name__}: expected a docstring, whose first line users see"
        summary = function.__doc__.strip().splitlines()[0]
        CHECKS[function.__name__] = Check(function.__name__, summary, applies, looks, quiet)
        return quiet

    return enter


def finding(
    run: Run, check: str, output: str | None, message: str, *, status: Status = "fail", **numbers: Any
) -> Finding:
    """Return a finding about the run's case; `numbers` are its index, got, want, ulp and allowed."""
    if run.otherwise:
        used = " and ".join(run.otherwise)
        message += (
            f"; this kernel uses {used}, which Triton's interpreter computes otherwise than a GPU: confirm on a GPU"
        )
    return Finding(run.kernel.name, check, output, status, message, run.case.spec, **numbers)
