"""The check `batch_invariance`: kernels whose rows depend on how many there are, or where, and kernels that promise."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from checking import run_of
from norms import layernorm, rows

from verify_norm.cases import make
from verify_norm.cases.corners import corners
from verify_norm.checks import CHECKS, invariance
from verify_norm.checks.relations.rerun import taken
from verify_norm.core.finding import Finding, Observed
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec, Contract, Kernel
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


@pytest.mark.parametrize("how", ["by count", "by place"])
def test_a_row_that_depends_on_the_others_is_seen_by_no_other_check(how):
    found = [item for item in said(layernorm(how)) if isinstance(item, Finding)]
    assert {f.check for f in found} == {"batch_invariance"}
    assert "mean" in {f.output for f in found}
    assert all(f.got != f.want and "other bits" in f.message for f in found)


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
    two = taken(case, np.array([2, 0]))
    assert two["x"].shape == (2, 4, 5)
    assert (two["mean"] == case.exact["mean"][[2, 0]]).all()
    assert two["weight"] is case.exact["weight"]
    leading = make.case(replace(spec, num_groups=None), OPS["layernorm_bwd"], Contract())
    assert (taken(leading, np.array([1]))["rstd"] == leading.exact["rstd"][4:8]).all()


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
        assert not check.looks(replace(run, further=0.0))
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
        found = said(rmsnorm_bwd(wrong), spec, "rmsnorm_bwd", Contract())
        assert {f.output for f in found if isinstance(f, Finding)} == {wrong} - {""}
