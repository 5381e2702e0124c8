"""An output that is not what it has to be, in words: its type and shape, and an element beyond its bound."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from verify_norm.core import geometry, judge
from verify_norm.core.case_words import told_apart
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.op import Op
from verify_norm.core.run import Expected, Output
from verify_norm.core.spec import CaseSpec

AS_BYTES = {  # and what else a kernel may return
    "float4_e2m1fn": " (two in a byte, as float4_e2m1fn_x2 or uint8)",
    "float8_e8m0fnu": " (or its bytes as uint8)",
}
LONG = 1024  # terms: of longer sums the bound depends on how many running sums there are


@dataclass(frozen=True, slots=True)
class Excess:
    """The element of an output that is farthest beyond its bound; `ulp` and `allowed` are in ulps of the output."""

    index: tuple[int, ...]
    got: float
    want: float
    ulp: float
    allowed: float
    message: str


def element(output: str, index: Sequence[int]) -> str:
    """Return an element's name, such as dx[0, 17]."""
    return f"{output}[{', '.join(map(str, index))}]"


def unlike(name: str, output: Output | None, expected: Expected | None, spec: CaseSpec) -> Iterator[str]:
    """Yield how an output differs from its truth before any value is looked at: presence, shape and type."""
    if expected is None:
        source = name.removeprefix("d")
        why = f"{source} needs no gradient" if source in spec.frozen else f"{source} is None"
        if output is not None:
            yield f"{name}: expected None because {why}, got a tensor of {output.dtype}"
        return
    if output is None:
        yield f"{name}: expected a {expected.dtype} tensor, got None"
        return
    if output.ratio is None:
        yield f"{name}: expected shape {expected.value.shape}, got {output.shape}"
    if output.dtype != expected.dtype:
        yield f"{name}: expected {expected.dtype}{AS_BYTES.get(expected.dtype, '')}, got {output.dtype}"


def excess(
    name: str, got: Array, ratio: Array, expected: Expected, spec: CaseSpec, op: Op, contract: Contract
) -> Excess | None:
    """Return the element of output `name` with the largest `judge.ratio`; None if all are within their bound."""
    if not ratio.max(initial=0.0) > 1:
        return None
    index = judge.worst(ratio)
    want = float(expected.value[index])
    ulp = float(judge.ulps(got, expected)[index])
    most = float(judge.allowed(expected)[index]) / float(FORMATS[expected.dtype].ulp(want))
    off, allowed = told_apart(ulp, most)
    near = _unrounded(float(got[index]), expected) if ulp <= most else ""
    message = (
        f"{element(name, index)} is {off} ULP ({expected.dtype}) from float64{near}; allowed "
        f"{allowed} ({_reason(name, expected, want, spec, op, contract)}); {int((ratio > 1).sum())} of "
        f"{ratio.size} elements are beyond their bound"
    )
    return Excess(index, float(got[index]), want, ulp, most, message)


def _unrounded(got: float, expected: Expected) -> str:
    """Return that an element is no number of its type, as of a wider output, which may be nearer than is allowed."""
    rounded = float(FORMATS[expected.dtype].round(np.asarray(got)))
    return "" if rounded == got else f", but not rounded to {expected.dtype}"


def _reason(name: str, expected: Expected, want: float, spec: CaseSpec, op: Op, contract: Contract) -> str:
    """Return what the allowance of an element is for: how much is summed how, and the last rounding."""
    over_rows = next(tensor.extent for tensor in op.outputs if tensor.name == name) in ("affine", "sample")
    terms = prod(spec.shape) // max(prod(expected.value.shape), 1) if over_rows else geometry.row_length(spec, op)
    summed, last = (
        f"{terms} term{'s' * (terms != 1)} summed in {contract.accumulate}",
        f"one rounding to {expected.dtype}",
    )
    if op.user_defined:
        summed = f"a loose bound, by running error analysis of {op.name}'s operations in {contract.accumulate}"
    if contract.products != "float32":
        summed += f" by {contract.products} products"
    if contract.summation == "blocked" and terms >= LONG:
        summed += f", in at least {contract.lanes} running sums (contract: lanes={contract.lanes})"
    if np.isinf(FORMATS[expected.dtype].round(np.asarray(want))):
        beyond = "saturates" if expected.saturate == "saturate" else "overflows"
        last += f", which {beyond} (saturate={expected.saturate})"
    return f"{summed}, then {last}"
