"""What may make a wrong output right: another offset, eps or order of what is returned, or one conversion of x."""

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from verify_norm.cases import make
from verify_norm.checks.relations.graphs import graph_of
from verify_norm.checks.relations.rerun import rerun
from verify_norm.core import geometry, judge
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.run import Expected, Run

LONG = 16  # elements of a row, in which a mistake seldom looks like another eps
ELEMENTS = 2**10  # of x, at most: a hint costs the truth a few times more, and findings end in small cases
EPS = (1e-5, 1e-6, 1e-8, 1e-12, 1e-3, float(np.finfo(np.float32).eps), 0.0)  # those in use


def hint(run: Run, output: str) -> str:
    """Return the option with which all values of a wrong output are right, after "; "; "" if nothing is known to help.

    Of running statistics that the call leaves as they were it returns what was expected. It says what the kernel
    computes instead, and judges nothing: an eps that it ignores is a mistake all the same.
    """
    result = run.outputs[output]
    if result is None:
        return ""
    if any(tensor.name == output and tensor.role == "state" for tensor in run.case.op.inputs):
        before = run.case.exact[output]
        same = before is not None and bool(judge.identical(result.got, before).all())
        return f"; it is as it was before the call: expected {output} to be updated in place" if same else ""
    if prod(run.case.spec.shape) > ELEMENTS:
        return ""
    order = {name: _meant(run, name) for name in run.returned}
    named = [name for name in order.values() if name != "_"]
    if order.get(output, output) not in (output, "_") and len({*named}) == len(named):
        return (
            f"; it is a right {order[output]}: name what the kernel returns, such as "
            f'--bind "-> {", ".join(order.values())}"'
        )
    for name, words in (("weight_offset", "always adds it to its weight"), ("eps", "always uses that eps")):
        right = [f"{value:g}" for value in _longer(run, name, output, _right(run, name, output))]
        if right:
            values = " or ".join(right)
            return f"; this output is right with {name}={values}. If the kernel {words}, pass --bind {name}={right[0]}"
    return _uses(run) if output == "dx" else ""


def _uses(run: Run) -> str:
    """Return that autograd rounds the gradient of each use of x, where the forward has several: they may cancel."""
    dtype = run.case.spec.dtype
    if not run.kernel.autograd or run.kernel.remote or FORMATS[dtype].u <= FORMATS["float32"].u:
        return ""
    uses = graph_of(run, run.case.arguments).uses("x")
    rounds = f"autograd rounds the gradients of {uses} uses of x to {dtype}, and adds them"
    return f"; {rounds}: convert x once, such as x32 = x.float(), and use that" if uses > 1 else ""


def _meant(run: Run, name: str) -> str:
    """Return the output whose truth a returned value is: its own, else another one that is not 0, "_" if none."""
    result, expected = run.outputs.get(name), run.case.expected
    if result is None:
        return "_"
    others = [other for other, truth in expected.items() if truth is not None and truth.value.any()]
    return next((other for other in (name, *others) if _is(result.got, expected[other])), "_")


def _is(got: Array, expected: Expected | None) -> bool:
    """Return whether all values are right, and at least one has a bound."""
    if expected is None or got.size != expected.value.size or not judge.judged(expected).any():
        return False
    return bool(judge.ratio(got.reshape(expected.value.shape), expected).max() <= 1)


def _right(run: Run, name: str, output: str) -> list[Any]:
    """Return the other values of an attribute of the operator with which the output is right."""
    result = run.outputs.get(output)
    if result is None:
        return []
    return [value for value, expected in _others(run, name, output) if _is(result.got, expected)]


def _longer(run: Run, name: str, output: str, values: list[Any]) -> list[Any]:
    """Return those values with which the output is right in longer rows too: in short ones any small eps may be."""
    case = run.case
    if not values or geometry.row_length(case.spec, case.op) >= LONG:
        return values
    spec = replace(case.spec, shape=(*case.spec.shape[:-1], LONG * case.spec.shape[-1]))
    if geometry.refusal(spec, case.op) or run.kernel.refuses(spec):
        return []
    other = rerun(run, make.exact_inputs(spec, case.op, case.device), spec=spec)
    return [value for value in _right(other, name, output) if value in values]


def _others(run: Run, name: str, output: str) -> Iterator[tuple[Any, Expected | None]]:
    """Yield other values of an attribute of the operator, each with the truth of the output."""
    case = run.case
    if name not in case.op.attrs or (name == "eps" and case.op.forward is not None):
        return  # dx of a short row is near 0 with any eps
    for value in (1.0,) if name == "weight_offset" else EPS:
        other: dict[str, Any] = {name: value}
        spec = replace(case.spec, **other)
        if value != getattr(case.spec, name):
            exact = {**case.exact, **make.saved(spec, case.op, case.exact)}
            yield value, make.truths(spec, case.op, run.kernel.contract, exact)[output]
