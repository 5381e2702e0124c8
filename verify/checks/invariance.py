"""A row's result does not depend on the other rows: it is right beside any, and where promised the same."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from verify_norm.cases import make
from verify_norm.cases.device_array import beside, in_memory
from verify_norm.cases.random import generator
from verify_norm.checks.check import check, finding
from verify_norm.checks.relations.enormous import enormous, in_a_batch, repetitions, wrong_rows
from verify_norm.checks.relations.rerun import cheap, has_rows, on_rows, rerun
from verify_norm.checks.relations.two_runs import reordering
from verify_norm.core import judge
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.excess import element
from verify_norm.core.finding import Finding, NoData, Observed
from verify_norm.core.op import Op
from verify_norm.core.run import Run

# Layouts whose inner strides stay as they are when rows come or go.
LAYOUTS = (
    *("contiguous", "row_strided", "every_other", "offset", "channels_last", "sequence_slice", "channel_slice"),
    *("own", "inner_slice"),
)
SPIKES = (64.0, 1024.0)  # of rows in turn; powers of two: what is multiplied by them stays exact


def _looks(run: Run) -> bool:
    spec = run.case.spec
    layouts = {getattr(spec, f"{t.name}_layout", "contiguous") for t in run.case.op.inputs if t.extent == "data"}
    wanted = "batch_invariance" in spec.further and (spec.batch > 0 or cheap(run))
    return wanted and has_rows(run.case) and layouts <= set(LAYOUTS)


def _applies(op: Op) -> bool:
    """Not to BatchNorm: its rows depend on each other by definition."""
    return op.view != "channels"


@check(applies=_applies, looks=_looks)
def batch_invariance(run: Run) -> Iterator[Finding | Observed | NoData]:
    """A row alone, elsewhere, among a few and among many more rows is right, and has the same bits where promised.

    It compares y, mean, rstd, dx and residual_out; dweight and dbias are right where each row counts as often as it is
    there. No row may fail or exceed its bound in a batch. Few kernels promise the same bits (`batch_invariant` of the
    contract). For the others, the report says in how many cases the bits were the same.

    Kernels choose tiles and splits by the number of rows, at thresholds of serving's size: vLLM's RMSNorm has blocks of
    1024 below 256 rows and of 256 from there (vLLM issue 48271). For so large a batch the rows of the case are
    repeated: each repetition is compared, and none needs a truth of its own. On a GPU so is one batch of more than 2^31
    elements.
    """
    if enormous(run):
        yield from _enormous(run)
        return
    rng = generator(run.case.spec.seed, 0xB5297A4D)
    spiked = _spiked(run, int(rng.integers(run.case.spec.shape[-1])))
    if spiked.problem is not None:
        message = f"the kernel fails with one column up to {max(SPIKES):g} times as large: {spiked.problem}"
        yield finding(run, "batch_invariance", None, message, status="error")
        return
    batches = list(_batches(spiked, int(rng.integers(run.case.spec.shape[0]))))
    if not batches:
        yield NoData()
        return
    wrong = _first_of_each(chain.from_iterable(_wrong(spiked, batch) for batch in batches))
    differing = _first_of_each(chain.from_iterable(_differing(spiked, batch) for batch in batches))
    yield from wrong.values()
    if run.kernel.contract.batch_invariant:
        yield from (differing[output] for output in differing if output not in wrong)
    else:
        yield Observed(held=not wrong and not differing)


def _enormous(run: Run) -> Iterator[Finding | NoData]:
    """Yield the findings of batches of 2^31 elements and more, in which only what is wrong counts."""
    plain = _wrong_in_enormous(run, transposed=False)
    failed = any(found.status == "error" for found in plain or ())  # which may have broken the context of the device
    swapped = None if failed else _wrong_in_enormous(run, transposed=True)
    yield from _first_of_each([*(plain or ()), *(swapped or ())]).values()
    if plain is None and swapped is None:
        yield NoData()


def _wrong_in_enormous(run: Run, *, transposed: bool) -> list[Finding] | None:
    """Return what is wrong in one such batch, whose gigabytes are free then; None where it does not run."""
    batch = in_a_batch(run, transposed=transposed)
    if batch is None:
        return None
    if isinstance(batch, Finding):
        return [batch]
    words, ran = batch
    index = np.tile(np.arange(run.case.spec.shape[0]), repetitions(run))
    return [*wrong_rows(run, ran, words), *_wrong_sums(run, _Batch(index, words, ran, ()))]


def _spiked(run: Run, column: int) -> Run:
    """Return the case again, with one column SPIKES times as large: the order of a sum shows in its last bit then.

    Among terms of one size a sum's rounding errors are mostly below the last bit of the result. Beside one that is as
    large as the whole, each addition to it errs by up to half of that bit, and which meet it is the order. The smaller
    of SPIKES is as large as a sum of x, the larger as one of x².
    """
    case, limit = run.case, FORMATS[run.case.spec.dtype].largest / max(SPIKES)
    own = case.op.stage_inputs  # they meet no sum over a row, or as factors of x
    data: dict[str, Array] = {}
    for tensor in case.op.inputs:
        values = case.exact[tensor.name]
        if tensor.extent == "data" and tensor.name not in own and values is not None:
            data[tensor.name] = values
    if not all(np.abs(values).max() < limit for values in data.values()):
        return run
    scale = np.ones(case.spec.shape)
    scale[..., column] = np.resize(SPIKES, scale.shape[:1]).reshape(-1, *[1] * (scale.ndim - 2))
    exact = {**case.exact, **{name: values * scale for name, values in data.items()}}
    return rerun(run, exact | make.saved(case.spec, case.op, exact), truth=True)


@dataclass(frozen=True, slots=True)
class _Change:
    """Elements of an output, one of `size`, that have other bits in a batch than in the case: `got` there, not `want`.

    They are at these `columns` of these `rows` of the batch.
    """

    output: str
    size: int
    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    got: Array
    want: Array


@dataclass(frozen=True, slots=True)
class _Batch:
    """A run on other rows: which rows of the case they are, where one of them is in words, and what changes there."""

    index: NDArray[np.intp]
    words: str
    run: Run
    changes: tuple[_Change, ...]


def _batches(run: Run, row: int) -> Iterator[_Batch]:
    """Yield runs of two rows, each alone, one of a few rows, and one of many, as far as the kernel takes them."""
    count = run.case.spec.shape[0]
    few = (row + 1 + np.arange(min(3, count - 1))) % count  # where sums seldom differ, one row is seldom enough
    many = (np.arange(run.case.spec.batch or 2 * count) + 1) % count  # every row one place up, and again
    choices = [(np.array([(row + more) % count]), "alone") for more in range(min(2, count))]
    if count > 2:
        choices.append((few, "a few"))
    choices.append((many, f"one place up in a batch of {len(many)}"))
    for index, words in choices:
        batch = on_rows(run, index)
        if batch is not None and not batch.limits:
            yield _Batch(index, words, batch, tuple(_changes(run, batch, index)))


def _changes(run: Run, batch: Run, index: NDArray[np.intp]) -> Iterator[_Change]:
    """Yield where bits change in the outputs that have a part for every row; a row of each is a row of x."""
    count = run.case.spec.shape[0]
    for tensor in run.case.op.outputs:
        usual, result = run.outputs.get(tensor.name), batch.outputs.get(tensor.name)
        if tensor.extent in ("affine", "one") or usual is None or result is None:
            continue
        shaped = usual.ratio is not None or not run.case.expected
        if not shaped or usual.got.size * len(index) != result.got.size * count:
            continue
        want, got = beside(usual.got, result.got).reshape(count, -1)[index], result.got.reshape(len(index), -1)
        places = np.flatnonzero((want != got) & ~(np.isnan(want) & np.isnan(got)))
        values = (in_memory(values.reshape(-1)[places]) for values in (got, want))
        yield _Change(tensor.name, got.size, *np.divmod(in_memory(places), got.shape[1]), *values)


def _first_of_each(findings: Iterable[Finding]) -> dict[str | None, Finding]:
    """Return the first finding of each output."""
    first: dict[str | None, Finding] = {}
    for found in findings:
        first.setdefault(found.output, found)
    return first


def _wrong(run: Run, batch: _Batch) -> Iterator[Finding]:
    """Yield that a batch fails, or the outputs that exceed their bound in it, but not in the case.

    What has the bits that it has in the case is within its bound as it is there.
    """
    if batch.run.problem is not None:
        message = f"the kernel fails where its rows are {batch.words}: {batch.run.problem}"
        yield finding(run, "batch_invariance", None, message, status="error")
    for change in batch.changes:
        expected, usual = run.case.expected.get(change.output), run.outputs[change.output]
        if expected is None or usual is None or usual.ratio is None or usual.ratio.max(initial=0.0) > 1:
            continue
        where, count = (batch.index[change.rows], change.columns), run.case.spec.shape[0]
        want, delta = (in_memory(values.reshape(count, -1)[where]) for values in (expected.value, expected.delta))
        ratio = judge.ratio(change.got, replace(expected, value=want, delta=delta))
        over = int((ratio > 1).sum())
        if over:
            what = f"{over} of {change.size} values exceed their bound, and not in the case itself"
            (place,) = judge.worst(ratio)
            yield _of_element(run, batch, replace(change, want=want), place, what)
    yield from _wrong_sums(run, batch)


def _wrong_sums(run: Run, batch: _Batch) -> Iterator[Finding]:
    """Yield the sums over rows that are wrong in a batch, but not in the case.

    They are linear in dy: of a row that is there c times, c·dy gives the same sum, of fewer terms in another order.
    """
    case, count = run.case, run.case.spec.shape[0]
    dy = case.exact.get("dy")
    if dy is None or batch.run.problem is not None:
        return
    times = np.bincount(batch.index, minlength=count)
    exact = {**case.exact, "dy": dy * times.reshape(-1, *[1] * (dy.ndim - 1))}
    expected = make.truths(case.spec, case.op, run.kernel.contract, exact)
    sums = [t.name for t in case.op.outputs if t.extent == "affine" and t.name in ("dweight", "dbias")]
    for name in sums:  # a user's own weight may have rows
        usual, got, want = run.outputs.get(name), batch.run.outputs.get(name), expected.get(name)
        if usual is None or got is None or want is None or usual.ratio is None or usual.ratio.max(initial=0.0) > 1:
            continue
        if (got.dtype, got.shape) != (usual.dtype, usual.shape):
            message = f"{name} is {got.dtype} of shape {got.shape} where the rows are {batch.words}"
            message += f", expected {usual.dtype} of shape {usual.shape}"
            yield finding(run, "batch_invariance", name, message)
            continue
        if (judge.ratio(got.got, want) <= 1).all():  # as nearly always; what another order allows is long to derive
            continue
        values, counted = want.value.ravel(), replace(run, case=replace(case, exact=exact, expected=expected))
        of_order = reordering(counted, name, want.dtype, values, values, int(times.max()))
        ratio = judge.ratio(got.got, replace(want, delta=want.delta + of_order.reshape(want.delta.shape)))
        over = int((ratio > 1).sum())
        if over:
            index = judge.worst(ratio)
            words = f"{element(name, index)}: expected {want.value[index]:.9g}, got {got.got[index]:.9g}"
            message = f"{words} where the rows are {batch.words}; {over} of {ratio.size} values exceed their bound"
            yield finding(run, "batch_invariance", name, message, index=index)


def _differing(run: Run, batch: _Batch) -> Iterator[Finding]:
    """Yield the outputs whose rows have other bits in a batch than in the case."""
    for change in batch.changes:
        count = len(change.rows)
        if count:
            what = f"{count} of {change.size} values have other bits, and the contract promises the same"
            yield _of_element(run, batch, change, 0, f"{what} (batch_invariant)")


def _of_element(run: Run, batch: _Batch, change: _Change, place: int, what: str) -> Finding:
    """Return the finding about one element of a change."""
    got, want = float(change.got[place]), float(change.want[place])
    row, column = int(batch.index[change.rows[place]]), int(change.columns[place])
    message = (
        f"{change.output} of row {row}, element {column} of it: expected {want:.9g} as in its batch, got {got:.9g} "
        f"where the row is {batch.words}; {what}"
    )
    return finding(run, "batch_invariance", change.output, message, index=(row, column), got=got, want=want)
