"""A row's result does not depend on the other rows."""

from collections.abc import Iterator

import numpy as np

from verify_norm.checks.check import check, finding
from verify_norm.checks.relations.rerun import cheap, has_rows, on_rows, rerun
from verify_norm.core.dtypes import FORMATS, Array
from verify_norm.core.finding import Finding, NoData, Observed
from verify_norm.core.run import Run
from verify_norm.core.spec import Op

# Layouts whose inner strides stay as they are when rows come or go.
LAYOUTS = (
    *("contiguous", "row_strided", "every_other", "offset", "channels_last", "sequence_slice", "channel_slice"),
    "own",
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
    """A row alone, in another place, among a few and among many more rows gives the same bits.

    Of y, mean, rstd, dx and residual_out; dweight and dbias are of all rows. Few kernels promise it
    (`Contract.batch_invariant`): where one does not, the check observes what it does and finds nothing.

    Kernels choose tiles and splits by the number of rows, at thresholds of serving's size: vLLM's RMSNorm has blocks of
    1024 below 256 rows and of 256 from there (vLLM issue 48271). So many rows are those of the case, repeated
    (`CaseSpec.batch`): every one of them is compared, and none needs a truth.
    """
    differences = list(_differences(run))
    if NoData() in differences or run.kernel.contract.batch_invariant:
        yield from differences
    else:
        yield Observed(held=not differences)


def _spiked(run: Run, column: int) -> Run:
    """Return the case again, with one column SPIKES times as large: the order of a sum shows in its last bit then.

    Among terms of one size a sum's rounding errors are mostly below the last bit of the result. Beside one that is as
    large as the whole, each addition to it errs by up to half of that bit, and which meet it is the order. The smaller
    of SPIKES is as large as a sum of x, the larger as one of x².
    """
    case, limit = run.case, FORMATS[run.case.spec.dtype].largest / max(SPIKES)
    data = {t.name: case.exact[t.name] for t in case.op.inputs if t.extent == "data"}
    if any(a is not None and not np.abs(a).max() < limit for a in data.values()):
        return run
    scale = np.ones(case.spec.shape)
    scale[..., column] = np.resize(SPIKES, scale.shape[:1]).reshape(-1, *[1] * (scale.ndim - 2))
    return rerun(run, {name: None if a is None else a * scale for name, a in data.items()})


def _differences(run: Run) -> Iterator[Finding | NoData]:
    count, length = run.case.spec.shape[0], run.case.spec.shape[-1]
    rng = np.random.Generator(np.random.Philox(key=[run.case.spec.seed, 0xB5297A4D]))
    run, row = _spiked(run, int(rng.integers(length))), int(rng.integers(count))
    if run.problem is not None:
        message = f"the kernel fails with one column up to {max(SPIKES):g} times as large: {run.problem}"
        yield finding(run, "batch_invariance", None, message, status="error")
        return
    few = (row + 1 + np.arange(min(3, count - 1))) % count  # where sums seldom differ, one row is seldom enough
    many = (np.arange(run.case.spec.batch or 2 * count) + 1) % count  # every row one place up, and again
    found: dict[str, Finding] = {}
    looked = False
    batches = ((np.array([row]), "alone"), (few, "a few"), (many, f"one place up in a batch of {len(many)}"))
    for index, words in batches[:: 1 if count > 2 else 2]:
        other = on_rows(run, index)
        if other is None:
            continue
        if other.limits:
            continue
        if other.problem is not None:
            looked, message = True, f"the kernel fails where its rows are {words}: {other.problem}"
            yield finding(run, "batch_invariance", None, message, status="error")
            continue
        for name, before, after in _by_row(run, other):
            looked = True
            before, after = before.reshape(count, -1)[index], after.reshape(len(index), -1)
            differs = (before != after) & ~(np.isnan(before) & np.isnan(after))
            if name in found or not differs.any():
                continue
            place, column = (int(i) for i in np.argwhere(differs)[0])
            got, want, number = float(after[place, column]), float(before[place, column]), int(index[place])
            message = (
                f"{name} of row {number}, element {column} of it: expected {want:.9g} as in its batch, got {got:.9g} "
                f"where the row is {words}; {int(differs.sum())} of {differs.size} values have other bits, and the "
                f"contract promises the same (batch_invariant)"
            )
            found[name] = finding(run, "batch_invariance", name, message, index=(number, column), got=got, want=want)
    if not looked:
        yield NoData()
    yield from found.values()


def _by_row(run: Run, other: Run) -> Iterator[tuple[str, Array, Array]]:
    """Yield the outputs that have a part for every row, of both runs."""
    for tensor in run.case.op.outputs:
        one, two = run.outputs.get(tensor.name), other.outputs.get(tensor.name)
        if tensor.extent in ("affine", "one") or one is None or two is None:
            continue
        shaped = one.ratio is not None or not run.case.expected
        if shaped and one.got.size * other.case.spec.shape[0] == two.got.size * run.case.spec.shape[0]:
            yield tensor.name, one.got, two.got
