"""Runs a kernel on a range of items and judges every element: what a process of the kernel's own is asked to do."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from verify_norm.checks.nonfinite import dequantized
from verify_norm.checks.relations.equations import compared
from verify_norm.checks.signature import signature
from verify_norm.core import judge
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.finding import Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.op import Op
from verify_norm.core.run import Expected, Output, Run
from verify_norm.core.tally import Tally
from verify_norm.exhaustive.model import FEW, Asked, Element, Part, Violation
from verify_norm.exhaustive.spaces import SPACES, cases, given, varied
from verify_norm.running.execute import execute


def examine(kernel: Kernel, asked: Asked, start: int, stop: int, device: str) -> Part:
    """Return what the items `start` to before `stop` show; the problem alone, if a case has one."""
    part = Part()
    for item, case in cases(kernel, asked, start, stop, device):
        run = execute(kernel, case)
        if run.refused:
            return Part(problem=str(run.problem), refused=True)
        wrong = next((found for found in signature(run) if isinstance(found, Finding)), None)
        if wrong is not None:
            return Part(problem=wrong.message)
        part = part.merge(_judged(asked, run, item))
    return part


def outputs(op: Op, space: str) -> tuple[str, ...]:
    """Return the outputs that are judged: all for an eps; of rows those that have a value for each.

    The gradients of weight and bias are sums over all rows, and evaluation's statistics are constants.
    """
    if not SPACES[space].length:
        return tuple(tensor.name for tensor in op.outputs)
    of_each = ("data",) if op.view == "channels" else ("data", "statistic", "block")
    return tuple(tensor.name for tensor in op.outputs if tensor.extent in of_each)


@np.errstate(all="ignore")
def _judged(asked: Asked, run: Run, item: int) -> Part:
    """Return the errors of a run whose first item is `item`, and what is wrong."""
    names = outputs(run.case.op, asked.space)
    seen = {name: pair for name, pair in compared(run).items() if name in names}
    tallies: list[Tally] = []
    violations: list[Violation] = []
    for name, (output, expected) in seen.items():
        tally = Tally.of(name, output, expected, run.case.spec)
        spec = None if SPACES[asked.space].length else tally.worst  # no spec holds the rows
        index = None
        if tally.index is not None:
            number, place = _place(asked, item, tally.index)
            index = (number, *place)
        tallies.append(replace(tally, worst=spec, index=index, farthest=None))
        violations += _violations(asked, run, item, name, output, expected)
    return Part(tuple(tallies), tuple(violations))


def _violations(
    asked: Asked, run: Run, item: int, name: str, output: Output, expected: Expected
) -> Iterator[Violation]:
    """Yield which elements of an output are beyond their bound, and which hide a NaN or an infinity."""
    assert output.ratio is not None
    rules = {"accuracy": output.ratio > 1}  # which elements break them
    if SPACES[asked.space].length and asked.eps != 0 and name != "amax":
        got, want = output.got, expected.value
        if name == "y" and run.case.op.quantizer is not None:
            got = dequantized(run, got)
        other = np.isinf(want) & np.isinf(got) & (got != want)
        rules["nonfinite"] = judge.hidden(name, got, want, _nan(run, want)) | other
    for rule, wrong in rules.items():
        total = int(np.count_nonzero(wrong))
        if total:
            places = np.argwhere(wrong)[:FEW].tolist()
            first = tuple(_element(asked, item, tuple(place), output, expected) for place in places)
            yield Violation(rule, name, total, first)


def _nan(run: Run, output: Array) -> Any:
    """Return which rows of x have a NaN, in a shape that meets the output's elements."""
    x = run.case.exact[varied(run.case.op)]
    assert x is not None
    return np.isnan(x.reshape(len(x), -1)).any(1).reshape(len(x), *(1,) * (output.ndim - 1))


def _element(asked: Asked, item: int, index: tuple[int, ...], output: Output, expected: Expected) -> Element:
    """Return a wrong element of a run whose first item is `item`."""
    number, place = _place(asked, item, index)
    got, want = float(output.got[index]), float(expected.value[index])
    ulp = float(judge.ulps(output.got[index], replace(expected, value=expected.value[index])))
    allowed = float(judge.allowed(expected)[index]) / float(FORMATS[expected.dtype].ulp(want))
    return Element(number, place, given(asked, number), got, want, ulp, allowed)


def _place(asked: Asked, item: int, index: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """Return the item of an element, and where the element is in it."""
    return (item + index[0], index[1:]) if SPACES[asked.space].length else (item, index)
