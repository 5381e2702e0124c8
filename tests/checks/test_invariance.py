"""The check `batch_invariance`: kernels whose rows depend on how many there are, or where, and kernels that promise."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from checking import run_of
from norms import layernorm, layernorm_bwd, rows

from verify_norm.cases import make
from verify_norm.cases.corners import corners
from verify_norm.cases.placement import placement
from verify_norm.checks import CHECKS, invariance
from verify_norm.checks.relations.rerun import rows_of
from verify_norm.core.contract import Contract
from verify_norm.core.finding import Finding, Observed
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.run import Expected, Output
from verify_norm.core.spec import CaseSpec
from verify_norm.kernels import KERNELS
from verify_norm.loading.registry import load
from verify_norm.running.execute import execute

SPEC = CaseSpec(shape=(5, 300), seed=3, further=("batch_invariance",))
PROMISED = Contract(batch_invariant=True)
OURS = [kernel.name for kernel in KERNELS if kernel.contract.batch_invariant and kernel.backend == "triton"]


def said(function, spec=SPEC, op="layernorm_fwd", contract=PROMISED):
    """All that every check says, and whether this one looked."""
    run = execute(Kernel("k", op, run=function, contract=contract), make.case(spec, OPS[op], contract))
    checks = [c for c in CHECKS.values() if c.applies(OPS[op]) and c.looks(run)]
    return [item for c in checks for item in c.function(run) if isinstance(item, (Finding, Observed))]


def findings(*given):
    """The findings among them."""
    return [item for item in said(*given) if isinstance(item, Finding)]


@pytest.mark.parametrize("inner", [(8,), (16,), (24,), (7,), (64,), (3, 32), (4, 5, 8)])
@pytest.mark.parametrize("layout", invariance.LAYOUTS)
def test_rows_alone_lie_as_they_lie_among_others(layout, inner):
    assert len({replace(placement((m, *inner), layout), extent=0) for m in range(1, 9)}) == 1


@pytest.mark.parametrize("shape", [(3, 8), (4, 16), (3, 32), (5, 64)])
@pytest.mark.parametrize("layout", invariance.LAYOUTS)
def test_bits_may_depend_on_how_a_row_is_aligned(layout, shape):
    def by_alignment(x, weight, bias, eps, normalized_shape):
        aligned = x.data_ptr() % 16 == 0 and x.stride(0) * x.element_size() % 16 == 0
        return layernorm("float64" if aligned else "")(x, weight, bias, eps, normalized_shape)

    assert not findings(by_alignment, replace(SPEC, shape=shape, x_layout=layout))


@pytest.mark.parametrize("how", ["by count", "by place"])
def test_a_row_that_depends_on_the_others_is_seen_by_no_other_check(how):
    found = findings(layernorm(how))
    assert {f.check for f in found} == {"batch_invariance"}
    assert "mean" in {f.output for f in found}
    assert all(f.got != f.want and {type(f.got), type(f.want)} == {float} for f in found)
    assert all("other bits" in f.message and f"expected {f.want:.9g}" in f.message for f in found)


def test_rows_are_compared_where_an_order_shows():
    """One column is far larger than the others in turn, and rows come alone, a few, and in a batch one place up."""
    seen = []

    def recorded(x, weight, bias, eps, normalized_shape):
        seen.append(x.double().numpy().copy())
        return layernorm()(x, weight, bias, eps, normalized_shape)

    assert said(recorded) == []
    plain, *others = seen
    spiked = next(x for x in others if x.shape == plain.shape and (x != plain).any())
    changed = np.flatnonzero((spiked != plain).any(0))
    assert len(changed) == 1
    ratio = spiked[:, changed[0]] / plain[:, changed[0]]
    assert list(ratio) == [invariance.SPIKES[row % 2] for row in range(len(plain))]
    by_count = {len(x): x for x in others if len(x) != len(plain)}
    assert by_count.keys() == {1, 3, 2 * len(plain)}
    assert np.array_equal(by_count[2 * len(plain)], np.roll(np.concatenate([spiked, spiked]), -1, 0))


@pytest.mark.parametrize(("how", "held"), [("by count", False), ("by place", False), ("", True)])
def test_what_is_not_promised_is_observed(how, held):
    assert said(layernorm(how), contract=Contract()) == [Observed(held)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shape": (2, 3, 40)},
        {"x_layout": "row_strided"},
        {"dtype": "bfloat16", "x_layout": "offset"},
        {"x_layout": "every_other", "batch": 70},
        {"shape": (64, 65), "batch": 256},
        {"special": "nan"},
    ],
)
def test_rows_on_their_own_pass(options):
    assert said(layernorm(), replace(SPEC, **options)) == []


def halves(where):
    """A LayerNorm whose mean is the sum of two halves of a row where `where(rows, length)` says so."""

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        r = rows(x, normalized_shape)
        if not where(*r.shape):
            return layernorm()(x, weight, bias, eps, normalized_shape)
        mean = sum(part.cumsum(1)[:, -1:] for part in r.chunk(2, 1)) / r.shape[1]
        rstd = ((r - mean).square().mean(1, keepdim=True) + eps).rsqrt()
        y = (r - mean) * rstd * rows(weight, normalized_shape) + rows(bias, normalized_shape)
        return y.to(x.dtype).reshape(x.shape), mean[:, 0], rstd[:, 0]

    return layernorm_fwd


THRESHOLDS = {
    "256 rows and more": lambda m, n: m >= 256,
    "fewer than 64 rows": lambda m, n: m < 64,
    "one row": lambda m, n: m == 1,
    "more than 2048 rows": lambda m, n: m > 2048,
    "4096 rows and more": lambda m, n: m >= 4096,
    "a million elements": lambda m, n: m * n >= 10**6,
    "multiples of 256 rows": lambda m, n: m % 256 == 0,
    "odd numbers of rows": lambda m, n: m % 2 == 1,
    "long rows of a large batch": lambda m, n: m > 256 and n >= 4096,
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_a_sum_in_another_order_from_a_threshold_on_is_seen(threshold, dtype):
    table = [spec for spec in corners(OPS["layernorm_fwd"], (dtype,)) if spec.batch]
    found = (
        f
        for spec in sorted(table, key=lambda spec: spec.batch * spec.shape[1])
        for f in said(halves(THRESHOLDS[threshold]), replace(spec, further=("batch_invariance",)))
        if f.check == "batch_invariance"
    )
    first = next(found, None)
    assert first is not None
    assert "a batch of" in first.message or "alone" in first.message or "a few" in first.message


def test_a_row_that_is_wrong_in_a_large_batch_is_seen_without_a_promise():
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        y, *kept = halves(lambda m, n: m >= 256)(x, weight, bias, eps, normalized_shape)
        return (y.index_fill(0, torch.tensor([len(x) - 1]), 0.0) if len(x) >= 256 and x.shape[1] >= 512 else y), *kept

    spec = CaseSpec((64, 600), batch=300, further=("batch_invariance",))
    (found, observed) = said(layernorm_fwd, spec, contract=Contract())
    assert (found.output, found.index[0]) == ("y", 300 % 64)
    assert "600 of 180000 values exceed their bound" in found.message
    assert observed == Observed(held=False)
    assert said(halves(lambda m, n: m >= 256), spec, contract=Contract()) == [Observed(held=False)]


def test_another_launch_for_many_rows_passes():
    """From 256 rows on twice as many rows are taken at a time, which changes no row's sum."""

    def chunked(x, weight, bias, eps, normalized_shape):
        parts = x.split(64 if len(x) < 256 else 128)
        outputs = [halves(lambda m, n: True)(part, weight, bias, eps, normalized_shape) for part in parts]
        return tuple(torch.cat(parts) for parts in zip(*outputs, strict=True))

    spec = CaseSpec(shape=(9, 600), batch=300, further=("batch_invariance", "determinism"))
    assert said(chunked, spec) == []


def test_a_batch_that_fails_is_told_and_one_that_is_refused_is_not():
    def small(x, weight, bias, eps, normalized_shape):
        if len(x) > 255:
            raise IndexError("out of range")
        return layernorm()(x, weight, bias, eps, normalized_shape)

    spec = replace(SPEC, batch=256)
    (found,) = said(small, spec)
    assert found in said(small, spec, contract=Contract())
    assert (
        found.message == "the kernel fails where its rows are one place up in a batch of 256: IndexError: out of range"
    )
    run = run_of(small, spec, batch_invariant=True)
    run = replace(run, kernel=replace(run.kernel, unsupported=lambda s: "rows" if s.shape[0] > 255 else None))
    assert list(CHECKS["batch_invariance"].function(run)) == []


def test_rows_are_taken_with_what_was_saved_of_them():
    spec = CaseSpec(shape=(3, 4, 5), num_groups=2)
    case = make.case(spec, OPS["groupnorm_bwd"], Contract())
    two = rows_of(case, np.array([2, 0]))
    assert two["x"].shape == (2, 4, 5)
    assert (two["mean"] == case.exact["mean"][[2, 0]]).all()
    assert two["weight"] is case.exact["weight"]
    leading = make.case(replace(spec, num_groups=None), OPS["layernorm_bwd"], Contract())
    assert (rows_of(leading, np.array([1]))["rstd"] == leading.exact["rstd"][4:8]).all()


def test_a_kernel_that_fails_on_one_row_is_told():
    def choosy(x, weight, bias, eps, normalized_shape):
        assert len(x) > 1, "no single rows"
        return layernorm()(x, weight, bias, eps, normalized_shape)

    (found,) = said(choosy)
    assert (found.check, found.status) == ("batch_invariance", "error")
    assert "no single rows" in found.message


def test_it_says_what_it_cannot_look_at():
    check = CHECKS["batch_invariance"]
    for options in (
        {"further": ()},
        {"shape": (1, 9)},
        {"shape": (9,)},
        {"x_layout": "transposed", "batch": 300},
        {"shape": (64, 65)},  # large, and no time for further runs
        {"shape": (9,), "batch": 300},
    ):
        case = make.case(replace(SPEC, **options), OPS["layernorm_fwd"], PROMISED)
        run = execute(Kernel("k", "layernorm_fwd", run=layernorm()), case)
        assert not check.looks(replace(run, rerun_seconds=0.0))
    assert not check.applies(OPS["batchnorm_fwd"])


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
def test_our_kernels_keep_their_promise(name, device):
    kernel = load(name)
    by_group = OPS[kernel.op].view == "groups"
    shape = (3, 6, 11) if by_group else (9, 70)
    spec = CaseSpec(shape=shape, num_groups=3 if by_group else None, seed=1, batch=40)
    run = execute(kernel, make.case(spec, OPS[kernel.op], kernel.contract, device))
    assert CHECKS["batch_invariance"].looks(run)
    assert list(CHECKS["batch_invariance"].function(run)) == []


def test_all_triton_kernels_promise_it():
    """But for BatchNorm, whose statistics are those of all rows."""
    rows = [kernel for kernel in KERNELS if OPS[kernel.op].view != "channels"]
    assert set(OURS) == {kernel.name for kernel in rows if kernel.backend == "triton"}


def rmsnorm_bwd(wrong):
    """Return an RMSNorm backward, right up to so many rows that a second path is `wrong` in one output."""

    def run(dy, x, weight, rstd):
        shape, rows = x.shape, (len(x), -1)
        dy, x = dy.double().reshape(rows), x.double().reshape(rows)
        xhat, g = x * rstd[:, None], dy * weight.double().flatten()
        dx = rstd[:, None] * (g - xhat * (g * xhat).mean(1, keepdim=True))
        dweight = (dy * xhat)[: -1 if wrong == "dweight" and len(x) > 9 else None].sum(0)
        if wrong == "dx" and len(x) > 9:
            dx[-1, -1] = 0
        return dx.to(weight.dtype).reshape(shape), dweight.to(weight.dtype).reshape(weight.shape)

    return run


@pytest.mark.parametrize("wrong", ["dx", "dweight", ""])
def test_a_backward_is_judged_in_a_batch_by_the_statistics_of_its_values(wrong):
    for options in ({}, {"dtype": "bfloat16"}, {"shape": (8, 5, 8), "normalized_ndim": 2}):
        spec = replace(SPEC, **{"shape": (8, 40), "batch": 70, **options})
        found = findings(rmsnorm_bwd(wrong), spec, "rmsnorm_bwd", Contract())
        assert {f.output for f in found} == {wrong} - {""}


def changed(change):
    """A LayerNorm backward, whose dweight and dbias `change` makes something else of for more than nine rows."""

    def run(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        dx, *sums = layernorm_bwd("float64")(dy, x, weight, bias, mean, rstd, eps, normalized_shape)
        return dx, *(change(*sums) if len(x) > 9 else sums)

    return run


BATCH = replace(SPEC, shape=(8, 40), batch=70)
WHERE = "where the rows are one place up in a batch of 70"


@pytest.mark.parametrize(
    ("change", "fields", "messages"),
    [
        (lambda dw, db: (dw, db), {}, []),
        (lambda dw, db: (dw, 1.5 * db), {"weight": False}, [("dbias", f"{WHERE}; 40 of 40 values exceed their bound")]),
        (
            lambda dw, db: (dw[None], db.double()),
            {},
            [
                ("dweight", f"dweight is float32 of shape (1, 40) {WHERE}, expected float32 of shape (40,)"),
                ("dbias", f"dbias is float64 of shape (40,) {WHERE}, expected float32 of shape (40,)"),
            ],
        ),
        (
            lambda dw, db: (dw, torch.where(torch.arange(40) == 7, 1.5 * db, db)),
            {},
            [("dbias", f"{WHERE}; 1 of 40 values exceed their bound")],
        ),
    ],
)
def test_sums_over_the_rows_of_a_batch_are_judged_as_of_rows_that_count_several_times(change, fields, messages):
    found = findings(changed(change), replace(BATCH, **fields), "layernorm_bwd", Contract())
    assert [(f.check, f.output) for f in found] == [("batch_invariance", output) for output, _ in messages]
    for one, (output, words) in zip(found, messages, strict=True):
        assert one.message.endswith(words)
        assert one.message.startswith(f"{output}[" if "values" in words else output)
        assert (one.index is None) == ("shape" in words)
        assert one.index in (None, (7,)) or "40 of 40" in words


def test_what_the_case_itself_has_wrong_is_left_to_accuracy():
    def wrong(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        dx, dw, db = layernorm_bwd("float64")(dy, x, weight, bias, mean, rstd, eps, normalized_shape)
        return dx, 1.5 * dw, db if len(dx) < 9 else 1.5 * db

    found = findings(wrong, BATCH, "layernorm_bwd", Contract())
    assert {one.output for one in found if one.check == "batch_invariance"} == {"dbias"}
    assert {one.output for one in found if one.check == "accuracy"} == {"dweight"}


def test_sums_in_another_order_may_be_off_by_what_the_order_allows(monkeypatch):
    """An error within the bound of so many more terms passes, and one beyond it does not."""
    allowed = []

    def reordering(run, name, dtype, first, second, repeated):
        assert (name, dtype, repeated) == ("dbias", "float32", 9)  # of a row that is there so often
        rows = make.exact_inputs(BATCH, OPS["layernorm_bwd"])["dy"]
        assert set(np.median(run.case.exact["dy"] / rows, 1)) == {8, 9}  # 70 rows, of eight; one column is larger
        assert np.array_equal(first, run.case.expected["dbias"].value)
        assert np.array_equal(second, first)
        allowed.append(np.full(40, 2.0**-4))
        return allowed[-1]

    monkeypatch.setattr(invariance, "reordering", reordering)
    for factor, beyond in ((0.9, False), (1.2, True)):
        kernel = changed(lambda dw, db, factor=factor: (dw, db + factor * 2.0**-4))
        found = findings(kernel, BATCH, "layernorm_bwd", Contract())
        assert [one.output for one in found] == ["dbias"] * beyond
    assert allowed


def test_a_kernel_that_fails_with_one_large_column_is_told():
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        if x.abs().max() > 100:
            raise ArithmeticError("too large")
        return layernorm()(x, weight, bias, eps, normalized_shape)

    (found,) = findings(layernorm_fwd)
    assert (found.check, found.output, found.status, found.spec) == ("batch_invariance", None, "error", SPEC)
    large = f"{max(invariance.SPIKES):g}"
    expected = f"the kernel fails with one column up to {large} times as large: ArithmeticError: too large"
    assert found.message == expected


@pytest.mark.parametrize(
    ("count", "batch", "rows"),
    [
        (1, 0, [[0], [0, 0]]),
        (2, 0, [[1], [0], [1, 0, 1, 0]]),
        (3, 0, [[2], [0], [0, 1], [1, 2, 0, 1, 2, 0]]),
        (5, 7, [[4], [0], [0, 1, 2], [1, 2, 3, 4, 0, 1, 2]]),
    ],
)
def test_the_rows_of_each_batch(count, batch, rows, monkeypatch):
    """From the last row on: two alone, three that follow it, and all one place up until the batch is full."""
    run = run_of(layernorm(), replace(SPEC, shape=(count, 8), batch=batch))
    batches = list(invariance._batches(run, count - 1))
    assert [list(one.index) for one in batches] == rows
    assert [one.words for one in batches][-1] == f"one place up in a batch of {batch or 2 * count}"
    assert {one.words for one in batches[:-1]} == {"alone", "a few"} if count > 2 else {"alone"}
    monkeypatch.setattr(invariance, "on_rows", lambda run, index: None if len(index) == 1 else run)
    assert [list(one.index) for one in invariance._batches(run, count - 1)] == [r for r in rows if len(r) > 1]


def test_only_values_of_rows_are_compared_with_those_of_a_batch():
    """Not dweight and dbias, and not what is missing or has another shape."""
    kernel = layernorm_bwd("float64")
    run = run_of(kernel, replace(SPEC, shape=(4, 6)), "layernorm_bwd")
    other, index = run_of(kernel, replace(SPEC, shape=(4, 6), seed=9), "layernorm_bwd"), np.arange(4)
    (change,) = invariance._changes(run, other, index)
    assert (change.output, change.size) == ("dx", 24)
    assert set(zip(change.rows, change.columns, strict=True)) == {(r, c) for r in range(4) for c in range(6)}
    assert np.array_equal(change.got, other.outputs["dx"].got.ravel())
    assert np.array_equal(change.want, run.outputs["dx"].got.ravel())
    assert [len(one.rows) for one in invariance._changes(run, run, index)] == [0]
    forward, another = (run_of(layernorm(), replace(SPEC, shape=(4, 6), seed=seed)) for seed in (3, 9))
    assert [one.output for one in invariance._changes(forward, another, index)] == ["y", "mean", "rstd"]
    fewer = replace(another, outputs={**another.outputs, "y": None})
    assert [one.output for one in invariance._changes(forward, fewer, index)] == ["mean", "rstd"]
    assert list(invariance._changes(forward, another, np.arange(3))) == []
    nan = replace(SPEC, shape=(4, 6), special="nan")
    with_nan = run_of(layernorm(), nan)
    assert sum(len(one.rows) for one in invariance._changes(with_nan, with_nan, index)) == 0


@pytest.mark.parametrize(
    ("changes", "looks"),
    [
        ({}, True),
        ({"batch": 1}, True),
        ({"further": ()}, False),
        ({"x_layout": "loose"}, False),
        ({"shape": (300,)}, False),
    ],
)
def test_cases_that_are_looked_at(changes, looks):
    assert CHECKS["batch_invariance"].looks(run_of(layernorm(), replace(SPEC, **changes))) == looks


HALF = 2.0**-24  # half an ulp of 1 in float32
EDGE, BEYOND = (1 + HALF, 1.0), (1 + HALF / 2, 1 + 2 * HALF)  # a truth, and what is off by 1 and 1.5 times its bound


def in_a_batch(pairs, ratio=0.0, **fields):
    """Return what is found of a y of one column whose rows have a truth and become something else in a batch."""
    truth, got = np.array(pairs, float).reshape(-1, 2).T
    case, count = make.case(CaseSpec((max(len(got), 1), 1)), OPS["rmsnorm_fwd"], Contract()), len(got)
    expected = Expected(truth[:, None], np.zeros((count, 1)), "float32")
    output = Output("float32", (count, 1), 9 + truth[:, None], np.full((count, 1), ratio))
    states = {"expected": expected, "output": output, **fields}
    case = replace(case, expected={"rstd": None, "y": states["expected"]})
    run = replace(run_of(layernorm()), case=case, outputs={"rstd": None, "y": states["output"]})
    rows = np.arange(count)
    changes = [invariance._Change(name, count, rows, 0 * rows, got, got + 7) for name in ("rstd", "y")]
    return list(invariance._wrong(run, invariance._Batch(rows, "alone", run, tuple(changes))))


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_a_value_is_wrong_in_a_batch_beyond_its_bound(ratio):
    """Beside the truth, not beside what it is in the case."""
    assert in_a_batch([EDGE, EDGE], ratio) == []
    (found,) = in_a_batch([EDGE, BEYOND, EDGE], ratio)
    assert (found.output, found.index) == ("y", (1, 0))
    assert (found.want, found.got) == BEYOND
    assert "1 of 3 values" in found.message


@pytest.mark.parametrize(
    "fields",
    [
        {"expected": None},
        {"output": None},
        {"output": Output("float32", (1,), np.ones(1), None)},
        {"output": Output("float32", (1, 1), np.ones((1, 1)), np.array([[1.5]]))},  # wrong in the case, too
    ],
)
def test_a_value_without_a_truth_or_wrong_in_the_case_is_not_judged_in_a_batch(fields):
    assert in_a_batch([BEYOND], **fields) == []
    assert in_a_batch([], **fields) == in_a_batch([]) == []


def sums_in_a_batch(off=0.0, ratio=0.0, weight=True, **outputs):
    """Return which sums are found where a batch has dweight and dbias off by so many of their bounds."""
    spec = CaseSpec((4, 6), weight=weight)
    run = run_of(layernorm_bwd("float64"), replace(spec, weight=True), "layernorm_bwd")
    case = make.case(spec, OPS["layernorm_bwd"], Contract())
    wide = {
        name: replace(expected, delta=0 * expected.delta + 2.0**-10) for name, expected in run.case.expected.items()
    }
    sums = {name: wide[name].value + off * 2.0**-10 for name in ("dweight", "dbias")}
    got = {name: Output("float32", (6,), value, np.full(6, ratio)) for name, value in sums.items()}
    usual, batch = (replace(run, case=case, outputs={**got, **outputs.get(one, {})}) for one in ("usual", "batch"))
    truths = wide if weight else {**wide, "dweight": None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make, "truths", lambda *_: truths)
        patch.setattr(invariance, "reordering", lambda *_: np.zeros(6))
        found = list(invariance._wrong_sums(usual, invariance._Batch(np.arange(4), "a few", batch, ())))
    return [one.output for one in found]


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"off": 0.9}, []),
        ({"off": 1.5}, ["dweight", "dbias"]),
        ({"off": 1.5, "ratio": 1.0}, ["dweight", "dbias"]),
        ({"off": 1.5, "ratio": 1.5}, []),  # wrong in the case, too
        ({"off": 1.5, "weight": False}, ["dbias"]),  # dweight has no truth
        ({"off": 1.5, "usual": {"dweight": None}}, ["dbias"]),
        ({"off": 1.5, "batch": {"dweight": None}}, ["dbias"]),
        ({"off": 1.5, "usual": {"dweight": Output("float32", (6,), np.zeros(6), None)}}, ["dbias"]),
        ({"off": 1.5, "usual": {"dweight": Output("float32", (6,), np.zeros(6), np.zeros(0))}}, ["dweight", "dbias"]),
    ],
)
def test_a_sum_is_wrong_in_a_batch_beyond_its_bound_where_it_is_right_in_the_case(fields, found):
    assert sums_in_a_batch(**fields) == found
