"""Further runs of a kernel near a run: the same case once more, or with other values, rows or poison."""

from __future__ import annotations

from collections.abc import Mapping

from verify_norm import cases
from verify_norm.dtypes import Array
from verify_norm.execute import execute
from verify_norm.spec import Case, CaseSpec, Run


def device_of(case: Case) -> str:
    """Where the case's tensors are."""
    return next(str(value.device) for value in case.arguments.values() if hasattr(value, "device"))


def again(
    run: Run,
    exact: Mapping[str, Array | None] | None = None,
    *,
    spec: CaseSpec | None = None,
    poison: float | None = None,
) -> Run:
    """Run the kernel once more, from fresh buffers; with other values, on another shape or in other poison if given.

    `exact` holds what differs from the run's inputs, and has to fit `spec` and be exact in its formats. Nothing is
    judged against the truth: the outputs hold their values alone.
    """
    case = run.case
    values = {**case.exact, **(exact or {})}
    poison = case.poison if poison is None else poison
    built = cases.build(spec or case.spec, case.op, run.kernel.contract, device_of(case), values, poison=poison)
    return execute(run.kernel, built)
