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

from verify_norm.cases import contents, make
from verify_norm.cases.device_array import in_memory
from verify_norm.checks.check import finding
from verify_norm.core import judge
from verify_norm.core.excess import element
from verify_norm.core.finding import Finding
from verify_norm.core.geometry import repeated
from verify_norm.core.layouts import layout_field
from verify_norm.core.run import Expected, Output, Run
from verify_norm.core.spec import having
from verify_norm.running.execute import unjudged

ELEMENTS = 2**28  # of x, from which on no array of float64 holds a batch: one with an --only may end below 2^31
CHUNK = 2**26  # elements that are compared at a time
OF_ROWS = ("data", "sample", "position", "statistic")  # extents of inputs whose first dimension is that of x
CERTAIN = 2.0  # times the bound: the values that are compared are rounded to float32
NO_MEMORY = "out of memory"
TRANSPOSED = "transposed"  # the layout in which an offset along a row is as large as one from row to row


def enormous(run: Run) -> bool:
    """Return whether the batch that the case names has so many elements."""
    return run.case.spec.batch > 0 and prod(repeated(run.case.spec).shape) >= ELEMENTS


def repetitions(run: Run) -> int:
    """Return how often all rows of the case are there: a batch has no part of them."""
    return run.case.spec.batch // run.case.spec.shape[0]


def in_a_batch(run: Run, *, transposed: bool) -> tuple[str, Run] | Finding | None:
    """Return what the batch is, in words, and its run: the tensors, and the values of the outputs that have no rows.

    x and the tensors of its shape are contiguous, or `transposed` in memory. Returns a finding if the kernel fails;
    None if it takes no such layout, lacks memory for the batch, or runs in another process.
    """
    case, times = run.case, repetitions(run)
    swapped = {tensor.name for tensor in case.op.inputs if tensor.extent == "data"} if transposed else set[str]()
    spec = having(case.spec, {layout_field(name): TRANSPOSED for name in swapped})
    if run.kernel.remote or run.kernel.refuses(spec) is not None:
        return None
    words = f"repeated {times} times" + " and transposed" * transposed
    fresh = make.build(case.spec, case.op, run.kernel.contract, case.device, case.exact, poison=case.poison)
    rows = {t.name: _repeated(fresh.arguments[t.name], times) for t in case.op.inputs if t.extent in OF_ROWS}
    rows |= {name: _transposed(rows[name]) for name in swapped}
    called = unjudged(run.kernel, replace(fresh, arguments={**fresh.arguments, **rows}))
    if called.problem is None:
        sums = {t.name for t in case.op.outputs if t.extent == "affine"} & {*called.outputs}
        values = {name: _output(called.outputs[name]) for name in sums}
        return words, Run(run.kernel, case, values, returned=called.outputs)
    if called.refused or called.limits or NO_MEMORY in called.problem.lower():
        return None
    message = f"the kernel fails where its rows are {words}: {called.problem}"
    return finding(run, "batch_invariance", None, message, status="error")


def wrong_rows(run: Run, batch: Run, words: str) -> Iterator[Finding]:
    """Yield the outputs of which a row is wrong in the batch, and right in the case."""
    times = repetitions(run)
    for tensor in run.case.op.outputs:
        name = tensor.name
        got, usual, expected = batch.returned.get(name), run.outputs.get(name), run.case.expected.get(name)
        if tensor.extent == "affine" or got is None or usual is None or usual.ratio is None or expected is None:
            continue
        if got.numel() != times * expected.value.size or not got.is_floating_point():
            continue  # packed elements; `signature` judges shapes
        if usual.ratio.max(initial=0.0) <= 1 and (place := _first_off(got, expected)) is not None:
            yield _of_element(run, name, got, expected, place, words)


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


def _of_element(run: Run, name: str, got: Any, expected: Expected, place: int, words: str) -> Finding:
    """Return the finding about an element of the batch."""
    at = tuple(int(i) for i in np.unravel_index(place % expected.value.size, expected.value.shape))
    value, want = float(got.reshape(-1)[place]), float(expected.value[at])
    message = (
        f"{element(name, at)}: expected {want:.9g}, got {value:.9g} where its rows are {words}, in element {place} of "
        f"{got.numel()}: an index may overflow 32 bits"
    )
    return finding(run, "batch_invariance", name, message, index=at, got=value, want=want)


def _repeated(value: Any, times: int) -> Any:
    return value if value is None else value.repeat(times, *[1] * (value.dim() - 1))


def _transposed(value: Any) -> Any:
    return value if value is None else value.transpose(0, -1).contiguous().transpose(0, -1)


def _on(tensor: Any, array: Any) -> Any:
    """Return an array flat and in float32, on the device of a tensor."""
    return torch.from_numpy(np.ravel(in_memory(array))).to(tensor.device, torch.float32)


def _output(tensor: Any) -> Output | None:
    if tensor is None:
        return None
    return Output(contents.dtype_name(tensor), tuple(tensor.shape), contents.to_float64(tensor), None)
