"""The checks: each a function from a run to its findings, and one decorator line.

Where a check's tolerance depends on the case, it also yields its power: the smallest error that it would have caught.
Where a kernel promises nothing, it yields what it observed instead of a finding.

A check never prints, never raises on a numerical failure, and knows nothing of Hypothesis, pytest or reports. The first
line of its docstring is the sentence that users see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from verify_norm.spec import Finding, Observed, Op, Power, Run, Status

CheckFunction = Callable[[Run], Iterable[Finding | Power | Observed]]


@dataclass(frozen=True, slots=True)
class Check:
    """A named check.

    `applies(op)` says whether it is about this operator at all, `looks(run)` whether this run gives it something to
    look at: a check that never had anything is no pass.
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
    """Enter a function into CHECKS under its own name."""

    def enter(function: CheckFunction) -> CheckFunction:
        summary = (function.__doc__ or "").strip().splitlines()[0]
        CHECKS[function.__name__] = Check(function.__name__, summary, applies, looks, function)
        return function

    return enter


def finding(run: Run, name: str, output: str | None, message: str, *, status: Status = "fail") -> Finding:
    """A finding without a number in it."""
    return Finding(run.kernel.name, name, output, status, message, run.case.spec)


from verify_norm.checks import (  # noqa: E402 — they enter themselves
    crash,  # noqa: F401
    degenerate,  # noqa: F401
    determinism,  # noqa: F401
    distribution,  # noqa: F401
    gradient,  # noqa: F401
    identities,  # noqa: F401
    invariance,  # noqa: F401
    memory,  # noqa: F401
    nonfinite,  # noqa: F401
    signature,  # noqa: F401
    values,  # noqa: F401
)

_ORDER = (  # in which they are reported: what says most of a wrong kernel first
    "crash", "signature", "accuracy", "statistics", "distribution", "nonfinite", "memory", "determinism", "gradient",
    "identities", "degenerate", "batch_invariance",
)  # fmt: skip
CHECKS = {name: CHECKS[name] for name in sorted(CHECKS, key=_ORDER.index)}  # a check without a place is an error
