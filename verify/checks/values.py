"""Values against the truth, element by element: the outputs (accuracy) and the saved mean and rstd (statistics)."""

from collections.abc import Collection, Iterable
from math import prod

import numpy as np

from verify_norm.checks import power
from verify_norm.checks.check import check, finding
from verify_norm.checks.hints import hint
from verify_norm.checks.relations import given
from verify_norm.checks.relations.equations import compared
from verify_norm.checks.relations.rerun import element
from verify_norm.core import geometry, judge
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.finding import Finding, SmallestError
from verify_norm.core.judge import worst
from verify_norm.core.ops import OPS
from verify_norm.core.run import Expected, Run
from verify_norm.core.spec import Kernel, Op

LONG = 1024  # terms: in longer sums the bound depends on the runs


def _outputs(op: Op, statistics: bool) -> set[str]:
    return {tensor.name for tensor in op.outputs if (tensor.extent == "statistic") == statistics}


def _judged(run: Run, statistics: bool) -> bool:
    names = _outputs(run.case.op, statistics)
    return any(name in names and judge.judged(expected).any() for name, (_, expected) in compared(run).items())


def _no_statistics(kernel: Kernel, outputs: Collection[str]) -> str:
    names = [tensor.name for tensor in OPS[kernel.op].outputs if tensor.extent == "statistic"]
    return "" if set(names) & set(outputs) else f"the kernel does not return {' or '.join(names)}"


@check(looks=lambda run: _judged(run, False))
def accuracy(run: Run) -> Iterable[Finding | SmallestError]:
    """Every element of every output is a rounding of something within the derived bound of the float64 truth."""
    return _compare(run, "accuracy")


@check(applies=lambda op: bool(_outputs(op, True)), looks=lambda run: _judged(run, True), lacks=_no_statistics)
def statistics(run: Run) -> Iterable[Finding | SmallestError]:
    """The saved mean and rstd are within the derived bound of the float64 truth."""
    return _compare(run, "statistics")


def _compare(run: Run, name: str) -> Iterable[Finding | SmallestError]:
    outputs = _outputs(run.case.op, name == "statistics")
    yield from power.smallest(run, outputs)
    stricter = given.stricter(run) if name == "accuracy" else {}
    for output, (result, expected) in (compared(run) | stricter).items():
        if output not in outputs or result.ratio is None or not result.ratio.max(initial=0.0) > 1:
            continue
        index = worst(result.ratio)
        got, want, form = float(result.got[index]), float(expected.value[index]), FORMATS[expected.dtype]
        ulp = float(judge.ulps(result.got, expected)[index])
        most = float(judge.allowed(expected)[index]) / float(form.ulp(expected.value[index]))
        digits = next((n for n in range(3, 17) if f"{ulp:.{n}g}" != f"{most:.{n}g}"), 17)  # until they differ
        message = (
            f"{element(output, index)} is {ulp:.{digits}g} ULP ({expected.dtype}) from float64; allowed "
            f"{most:.{digits}g} ({_reason(run, output, expected, want)}); {int((result.ratio > 1).sum())} of "
            f"{result.ratio.size} elements are beyond their bound"
        )
        if output in stricter:
            message += f": the kernel uses the given {given.names(run.case.op)}, which leaves one rounding of each"
        message += hint(run, output)
        yield finding(run, name, output, message, index=index, got=got, want=want, ulp=ulp, allowed=most)


def _reason(run: Run, output: str, expected: Expected, want: float) -> str:
    """Return what the allowance of an element is for: how much is summed how, and the last rounding."""
    spec, op, contract = run.case.spec, run.case.op, run.kernel.contract
    affine = next(tensor.extent for tensor in op.outputs if tensor.name == output) == "affine"
    terms = prod(spec.shape) // max(prod(expected.value.shape), 1) if affine else geometry.row_length(spec, op)
    summed, last = f"{terms} terms summed in {contract.accumulate}", f"one rounding to {expected.dtype}"
    if contract.products != "float32":
        summed += f" by {contract.products} products"
    if contract.summation == "blocked" and terms >= LONG:
        summed += f", in {contract.lanes} runs or more unless lanes says fewer"
    if np.isinf(FORMATS[expected.dtype].round(np.asarray(want))):
        last += (
            f", which {'saturates' if expected.saturate == 'saturate' else 'overflows'} (saturate={expected.saturate})"
        )
    return f"{summed}, then {last}"
