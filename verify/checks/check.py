"""A check: a function from a run to its findings, entered by one decorator line."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np

from verify_norm.core.finding import Finding, NoData, Note, Observed, OverProbable, SmallestError, Status, Tried
from verify_norm.core.kernel import Kernel
from verify_norm.core.op import Op
from verify_norm.core.run import Run

Item = Finding | SmallestError | OverProbable | Observed | NoData | Note | Tried
CheckFunction = Callable[[Run], Iterable[Item]]


@dataclass(frozen=True, slots=True)
class Check:
    """A named check.

    `applies(op)` returns whether the check is about this operator at all. `looks(run)` returns whether there is
    something to look at in this run; if not, `function` is not called. `function` may yield NoData, which means the
    same. A check that looked in no run has the result "no data": it neither passes nor fails. `lacks(kernel, outputs)`
    returns what the check needs and the kernel does not offer, given the outputs that it returns; "" if nothing.
    """

    name: str
    summary: str
    applies: Callable[[Op], bool]
    looks: Callable[[Run], bool]
    lacks: Callable[[Kernel, Collection[str]], str]
    function: CheckFunction


CHECKS: dict[str, Check] = {}


def check(
    *,
    applies: Callable[[Op], bool] = lambda op: True,
    looks: Callable[[Run], bool] = lambda run: True,
    lacks: Callable[[Kernel, Collection[str]], str] = lambda kernel, outputs: "",
    of_outputs: bool = True,
) -> Callable[[CheckFunction], CheckFunction]:
    """Return a decorator that enters a function into CHECKS under its own name, and turns off NumPy's warnings in it.

    Users see the first line of its docstring. With `of_outputs` the check looks only at runs in which the kernel
    returned an output.
    """

    def enter(function: CheckFunction) -> CheckFunction:
        @wraps(function)
        def quiet(run: Run) -> tuple[Item, ...]:
            with np.errstate(all="ignore"):  # NaN, infinities and overflow are among the inputs
                return tuple(function(run))

        assert function.__doc__, f"check {function.__name__}: expected a docstring, whose first line users see"
        summary = function.__doc__.strip().splitlines()[0]

        def looking(run: Run) -> bool:
            returned = run.problem is None and any(output is not None for output in run.outputs.values())
            return (returned or not of_outputs) and looks(run)

        CHECKS[function.__name__] = Check(function.__name__, summary, applies, looking, lacks, quiet)
        return quiet

    return enter


def finding(
    run: Run, check: str, output: str | None, message: str, *, status: Status = "fail", **numbers: Any
) -> Finding:
    """Return a finding about the run's case; `numbers` are fields of Finding: index, got, want, ulp and allowed."""
    if run.differs_on_gpu:
        used = " and ".join(run.differs_on_gpu)
        message += (
            f"; this kernel uses {used}, which Triton's interpreter computes differently from a GPU: confirm on a GPU"
        )
    return Finding(run.kernel.name, check, output, status, message, run.case.spec, **numbers)
