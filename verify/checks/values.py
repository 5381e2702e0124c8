"""Values against the truth, element by element: the outputs (accuracy) and the saved mean and rstd (statistics)."""

from collections.abc import Collection, Iterable
from dataclasses import asdict
from typing import Any

from verify_norm.checks import power
from verify_norm.checks.check import check, finding
from verify_norm.checks.hints import hint
from verify_norm.checks.relations import given
from verify_norm.checks.relations.equations import compared
from verify_norm.core import judge
from verify_norm.core.excess import excess
from verify_norm.core.finding import Finding, SmallestError
from verify_norm.core.kernel import Kernel
from verify_norm.core.op import Op
from verify_norm.core.ops import OPS
from verify_norm.core.run import Run


def _outputs(op: Op, *, statistics: bool) -> set[str]:
    """Return the names of the outputs that are statistics, such as mean and rstd, or of the other ones."""
    return {tensor.name for tensor in op.outputs if (tensor.extent == "statistic") == statistics}


def _judged(run: Run, *, statistics: bool) -> bool:
    """Return whether one of these outputs has an element with a finite bound."""
    names = _outputs(run.case.op, statistics=statistics)
    return any(name in names and judge.judged(expected).any() for name, (_, expected) in compared(run).items())


def _no_statistics(kernel: Kernel, outputs: Collection[str]) -> str:
    names = [tensor.name for tensor in OPS[kernel.op].outputs if tensor.extent == "statistic"]
    if any(name in outputs for name in names):
        return ""
    return f"the kernel does not return {' or '.join(names)}"


@check(looks=lambda run: _judged(run, statistics=False))
def accuracy(run: Run) -> Iterable[Finding | SmallestError]:
    """Every element of every output is a rounding of something within the derived bound of the float64 truth."""
    return _compare(run, "accuracy")


@check(
    applies=lambda op: bool(_outputs(op, statistics=True)),
    looks=lambda run: _judged(run, statistics=True),
    lacks=_no_statistics,
)
def statistics(run: Run) -> Iterable[Finding | SmallestError]:
    """The saved mean and rstd are within the derived bound of the float64 truth."""
    return _compare(run, "statistics")


def _compare(run: Run, name: str) -> Iterable[Finding | SmallestError]:
    outputs = _outputs(run.case.op, statistics=name == "statistics")
    yield from power.smallest(run, outputs)
    stricter = given.stricter(run) if name == "accuracy" else {}
    for output, (result, expected) in (compared(run) | stricter).items():
        if output not in outputs or result.ratio is None:
            continue
        beyond = excess(output, result.got, result.ratio, expected, run.case.spec, run.case.op, run.kernel.contract)
        if beyond is None:
            continue
        message = beyond.message
        if output in stricter:
            message += f": the kernel uses the given {given.names(run.case.op)}, which leaves one rounding of each"
        message += hint(run, output)
        numbers: dict[str, Any] = asdict(beyond) | {"message": message}
        yield finding(run, name, output, **numbers)
