"""Values against the truth, element by element: the outputs (accuracy) and the saved mean and rstd (statistics)."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from verify_norm import data, judge
from verify_norm.checks import check
from verify_norm.dtypes import FORMATS
from verify_norm.execute import worst
from verify_norm.spec import Expected, Finding, Op, Run
from verify_norm.ulp import distance


def _statistics(op: Op) -> set[str]:
    return {tensor.name for tensor in op.outputs if tensor.extent == "statistic"}


def _values(op: Op) -> set[str]:
    return {tensor.name for tensor in op.outputs} - _statistics(op)


def _returned(run: Run, outputs: set[str]) -> bool:
    return any(output is not None and name in outputs for name, output in run.outputs.items())


@check(looks=lambda run: _returned(run, _values(run.case.op)))
def accuracy(run: Run) -> Iterable[Finding]:
    """Every element of every output is a rounding of something within the derived bound of the float64 truth."""
    return _compare(run, "accuracy", _values(run.case.op))


@check(applies=lambda op: bool(_statistics(op)), looks=lambda run: _returned(run, _statistics(run.case.op)))
def statistics(run: Run) -> Iterable[Finding]:
    """The saved mean and rstd are within the derived bound of the float64 truth."""
    return _compare(run, "statistics", _statistics(run.case.op))


def _compare(run: Run, name: str, outputs: set[str]) -> Iterable[Finding]:
    for output in run.outputs:
        result, expected = run.outputs[output], run.case.expected[output]
        if output not in outputs or result is None or expected is None or result.ratio is None:
            continue  # what is missing or of a wrong shape is for `signature` to tell
        if not result.ratio.size or not result.ratio.max() > 1:
            continue
        index = worst(result.ratio)
        got, want = float(result.got[index]), float(expected.value[index])
        ulp = float(distance(result.got[index], expected.value[index], FORMATS[expected.dtype]))
        unit = float(FORMATS[expected.dtype].ulp(expected.value[index]))
        most = float(judge.allowed(expected)[index]) / unit
        wrong = int((result.ratio > 1).sum())
        digits = next((n for n in range(3, 17) if f"{ulp:.{n}g}" != f"{most:.{n}g}"), 17)  # until they differ
        place = f"{output}[{', '.join(map(str, index))}]"
        yield Finding(
            kernel=run.kernel.name,
            check=name,
            output=output,
            status="fail",
            message=(
                f"{place} is {ulp:.{digits}g} ULP ({expected.dtype}) from float64; allowed {most:.{digits}g} "
                f"({_reason(run, output, expected)}); {wrong} of {result.ratio.size} elements are beyond their bound"
            ),
            spec=run.case.spec,
            index=index,
            got=got,
            want=want,
            ulp=ulp,
            allowed=most,
        )


def _reason(run: Run, output: str, expected: Expected) -> str:
    """What the allowance is for, in words: how much is summed in which type, and the last rounding."""
    spec, op, contract = run.case.spec, run.case.op, run.kernel.contract
    affine = next(tensor.extent for tensor in op.outputs if tensor.name == output) == "affine"
    terms = prod(spec.shape) // max(prod(expected.value.shape), 1) if affine else data.row_length(spec, op)
    return f"{terms} terms summed in {contract.accumulate}, then one rounding to {expected.dtype}"
