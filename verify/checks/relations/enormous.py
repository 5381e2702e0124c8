"""Batches of 2^31 elements and more, where an index of 32 bits overflows.

A kernel that copies its inputs into contiguous memory, or takes strides for inputs alone, meets such an index at that
size alone (Liger issue 804). The rows of the case are repeated on the device, in their own types, and each repetition
of an output is compared with the truth of the case: no array of float64 has the size of the batch.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import torch

from verify_norm.cases import contents
from verify_norm.cases.device_array import in_memory
from verify_norm.checks.check import finding
from verify_norm.core import judge
from verify_norm.core.excess import element
from verify_norm.core.finding import Finding, NoData
from verify_norm.core.geometry import repeated
from verify_norm.core.run import Expected, Output, Run
from verify_norm.running.calling import call

ELEMENTS = 2**31  # of x: their last index has 32 bits and a sign
CHUNK = 2**26  # elements that are compared at a time
OWN_BY_ROW = ("data", "sample", "position", "statistic")  # extents of inputs whose first dimension is that of x
CERTAIN = 2.0  # times the bound: the values that are compared are rounded to float32
NO_MEMORY = "out of memory"


def enormous(run: Run) -> bool:
    """Return whether the batch that the case names has so many elements."""
    return run.case.spec.batch > 0 and prod(repeated(run.case.spec).shape) >= ELEMENTS


def in_a_batch(run: Run) -> Run | Finding | NoData:
    """Return the run of such a batch: its tensors, and the values of the outputs that have no rows.

    A finding if the kernel fails there; NoData if it lacks memory for it, or runs in another process.
    """
    if run.kernel.remote:
        return NoData()
    case, times = run.case, _times(run)
    by_row = {tensor.name for tensor in case.op.inputs if tensor.extent in OWN_BY_ROW}
    rows = {name: _repeated(value, times) for name, value in case.arguments.items() if name in by_row}
    called = call(run.kernel, replace(case, arguments={**case.arguments, **rows}))
    if called.problem is not None:
        if called.refused or called.limits or NO_MEMORY in called.problem.lower():
            return NoData()
        message = f"the kernel fails on {case.spec.batch} rows of {case.spec.shape}: {called.problem}"
        return finding(run, "batch_invariance", None, message, status="error")
    sums = {tensor.name for tensor in case.op.outputs if tensor.extent == "affine"}
    values = {name: _output(value) for name, value in called.outputs.items() if name in sums and value is not None}
    return Run(run.kernel, case, values, returned=called.outputs)


def wrong_rows(run: Run, batch: Run) -> Iterator[Finding]:
    """Yield the outputs of which a row is wrong in the batch, and right in the case."""
    for tensor in run.case.op.outputs:
        name = tensor.name
        got, usual = batch.returned.get(name), run.outputs.get(name)
        expected = run.case.expected.get(name)
        if tensor.extent == "affine" or got is None or usual is None or usual.ratio is None or expected is None:
            continue
        if got.numel() != _times(run) * expected.value.size or not got.is_floating_point():
            continue  # packed elements; `signature` judges shapes
        if usual.ratio.max(initial=0.0) <= 1 and (place := _first_off(got, expected)) is not None:
            yield _of_row(run, name, got, expected, place)


def _first_off(got: Any, expected: Expected) -> int | None:
    """Return the first place of an element, among those of all repetitions, that is far beyond its bound."""
    size = expected.value.size
    value, allowed = (_on(got, array) for array in (expected.value, CERTAIN * judge.allowed(expected)))
    judged = torch.isfinite(value) & torch.isfinite(allowed)
    parts = got.reshape(-1, size)
    at_once = max(CHUNK // size, 1)
    for start in range(0, len(parts), at_once):
        part = parts[start : start + at_once].float()
        off = judged & ~((part - value).abs() <= allowed)
        if off.any():
            return start * size + int(off.flatten().nonzero()[0])
    return None


def _of_row(run: Run, name: str, got: Any, expected: Expected, place: int) -> Finding:
    """Return the finding about an element of the batch."""
    index = np.unravel_index(place % expected.value.size, expected.value.shape)
    at = tuple(int(i) for i in index)
    value, want = float(got.reshape(-1)[place]), float(expected.value[at])
    message = (
        f"{element(name, at)}: expected {want:.9g}, got {value:.9g} where its rows are repeated "
        f"{_times(run)} times, in element {place} of {got.numel()}: an index may overflow 32 bits"
    )
    return finding(run, "batch_invariance", name, message, index=at, got=value, want=want)


def _times(run: Run) -> int:
    """Return how often each row is there."""
    return run.case.spec.batch // run.case.spec.shape[0]


def _repeated(value: Any, times: int) -> Any:
    return value if value is None else value.repeat(times, *[1] * (value.dim() - 1))


def _on(tensor: Any, array: Any) -> Any:
    """Return an array flat and in float32, on the device of a tensor."""
    return torch.from_numpy(np.ravel(in_memory(array))).to(tensor.device, torch.float32)


def _output(tensor: Any) -> Output:
    return Output(contents.dtype_name(tensor), tuple(tensor.shape), contents.to_float64(tensor), None)
