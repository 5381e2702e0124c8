"""A row's result does not depend on the other rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from verify_norm.again import again
from verify_norm.checks import check, finding
from verify_norm.dtypes import FORMATS, Array
from verify_norm.spec import Case, CaseSpec, Finding, Observed, Op, Run

ELEMENTS = 4096  # of x, at most: the case is run again twice, once doubled
LAYOUTS = ("contiguous", "row_strided", "offset")  # whose inner strides stay as they are when rows come or go


def taken(case: Case, index: Any) -> dict[str, Array | None]:
    """The case's inputs with these rows alone, in this order: `index` into the first dimension of x.

    What has been saved is taken with its row, not computed anew; in BatchNorm a statistic belongs to no row.
    """
    count = case.spec.shape[0]

    def of(values: Array | None, extent: str) -> Array | None:
        if values is None or extent in ("affine", "one") or (extent == "statistic" and case.op.view == "channels"):
            return values
        if extent == "data":
            return np.ascontiguousarray(values[index])
        return np.asarray(values.reshape(count, -1)[index].reshape(-1, *values.shape[1:]))

    return {tensor.name: of(case.exact[tensor.name], tensor.extent) for tensor in case.op.inputs}


SPIKE = 64.0  # a power of two: what is multiplied by it stays exact


def has_rows(case: Case) -> bool:
    """Whether the first dimension of x counts rows, more than one."""
    spec = case.spec
    inner = spec.normalized_ndim if case.op.view == "rows" else 1
    return len(spec.shape) > inner and spec.shape[0] > 1 and prod(spec.shape) > 0


def _looks(run: Run) -> bool:
    spec, layouts = run.case.spec, LAYOUTS
    named = [getattr(spec, f"{t.name}_layout", "contiguous") for t in run.case.op.inputs if t.extent == "data"]
    if run.problem is not None or spec.seed % 2 == 0 or prod(spec.shape) > ELEMENTS or not has_rows(run.case):
        return False
    return all(layout in layouts for layout in named)


def _applies(op: Op) -> bool:
    """BatchNorm's rows depend on each other by definition."""
    return op.view != "channels"


@check(applies=_applies, looks=_looks)
def batch_invariance(run: Run) -> Iterator[Finding | Observed]:
    """A row alone, in another place, among a few and among twice as many rows gives the same bits.

    Of y, mean, rstd, dx and residual_out; dweight and dbias are of all rows. Few kernels promise it
    (`Contract.batch_invariant`): where one does not, what it did is observed, and is no finding.
    """
    differences = list(_differences(run))
    if not run.kernel.contract.batch_invariant:
        yield Observed(held=not differences)
        return
    yield from differences


def _spiked(run: Run) -> Run:
    """The case again, with one column SPIKE times as large: then the order of a sum shows in its last bit.

    Among terms of one size a sum's rounding errors are mostly below the last bit of the result. Beside one that is as
    large as the whole, each addition to it errs by up to half of that bit, and which meet it is the order.
    """
    case, limit = run.case, FORMATS[run.case.spec.dtype].largest / SPIKE
    data = {t.name: case.exact[t.name] for t in case.op.inputs if t.extent == "data"}
    if any(a is not None and not np.abs(a).max() < limit for a in data.values()):
        return run
    column = case.spec.seed // 2 % case.spec.shape[-1]
    scale = np.where(np.arange(case.spec.shape[-1]) == column, SPIKE, 1.0)
    return again(run, {name: None if a is None else a * scale for name, a in data.items()})


def _differences(run: Run) -> Iterator[Finding]:
    run = _spiked(run)
    case, count = run.case, run.case.spec.shape[0]
    if run.problem is not None:
        yield finding(run, "batch_invariance", None, f"it fails on a larger column: {run.problem}", status="error")
        return
    row = case.spec.seed // 2 % count
    few = (row + 1 + np.arange(min(3, count - 1))) % count  # where sums seldom differ, one row is seldom enough
    doubled = (np.arange(2 * count) + 1) % count  # every row one place up, then all of them again
    found: dict[str, Finding] = {}
    batches = ((np.array([row]), "alone"), (few, "a few"), (doubled, "one place up among twice as many"))
    for index, words in batches[:: 1 if count > 2 else 2]:
        spec = replace(case.spec, shape=(len(index), *case.spec.shape[1:]))
        if _refused(run, spec):
            continue
        other = again(run, taken(case, index), spec=spec)
        if other.problem is not None:
            message = f"it fails where its rows are {words}: {other.problem}"
            yield finding(run, "batch_invariance", None, message, status="error")
            continue
        for name, mine, theirs in _by_row(run, other):
            before = mine.reshape(count, -1)[index]
            after = theirs.reshape(len(index), -1)
            differs = (before != after) & ~(np.isnan(before) & np.isnan(after))
            if differs.any() and name not in found:
                found[name] = _found(run, name, words, index, before, after, differs)
    yield from found.values()


def _refused(run: Run, spec: CaseSpec) -> bool:
    return run.kernel.unsupported is not None and run.kernel.unsupported(spec) is not None


def _by_row(run: Run, other: Run) -> Iterator[tuple[str, Array, Array]]:
    """The outputs that have a part for every row, of both runs."""
    for tensor in run.case.op.outputs:
        one, two = run.outputs.get(tensor.name), other.outputs.get(tensor.name)
        if tensor.extent in ("affine", "one") or one is None or two is None:
            continue
        if run.case.expected and one.ratio is None:
            continue  # of a wrong shape
        if one.got.size * other.case.spec.shape[0] == two.got.size * run.case.spec.shape[0]:
            yield tensor.name, one.got, two.got


def _found(run: Run, name: str, words: str, index: Any, before: Array, after: Array,
           differs: Any) -> Finding:  # fmt: skip
    place, element = (int(i) for i in np.argwhere(differs)[0])
    got, want = float(after[place, element]), float(before[place, element])
    message = (
        f"{name} of row {int(index[place])} (element {element} of it) is {got:.9g} where the row is {words}, and "
        f"{want:.9g} in its batch; {int(differs.sum())} of {differs.size} values have other bits, and the contract "
        f"promises the same (batch_invariant)"
    )
    return replace(finding(run, "batch_invariance", name, message), index=(int(index[place]), element), got=got,
                   want=want)  # fmt: skip


def same_rows(arrays: Mapping[str, Array | None]) -> bool:
    """Whether all rows of these arrays are one row.

    >>> same_rows({"x": np.ones((3, 2)), "weight": None}), same_rows({"x": np.eye(2)})
    (True, False)
    """
    return all(a is None or bool((a == a[:1]).all()) for a in arrays.values())
