"""What a run counts and reports."""

from collections import Counter
from math import prod

import pytest
import torch
from norms import layernorm
from small_runs import rmsnorm_fwd, run
from torch.nn import functional

from verify_norm.cases import corners, placement
from verify_norm.core.contract import Contract
from verify_norm.core.geometry import row_length
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.loading.registry import load, load_directions
from verify_norm.search.search import replay, search


@pytest.mark.slow
def test_what_had_no_room_is_told(monkeypatch):
    monkeypatch.setattr(placement, "_untouched", lambda *_: None)
    report = replay(load("layernorm_fwd_torch"), CaseSpec((3, 4), x_layout="far"), Settings(isolate=False))
    assert report.layouts["x contiguous"] == 1
    assert [skip.what for skip in report.skipped] == ["x beyond 2³¹ elements"]
    single = CaseSpec((1, 4), x_layout="far")  # one row has no other to be far from
    assert not replay(load("layernorm_fwd_torch"), single, Settings(isolate=False)).skipped


@pytest.mark.slow
def test_what_is_not_returned_is_said(few_corners):
    few_corners(slice(30))
    report = run(examples=0)
    assert report.ok
    assert ("output rstd", "k does not return it") in {(skip.what, skip.reason) for skip in report.skipped}
    assert {check.name: check.cases for check in report.checks}["statistics"] == 0


def test_an_output_that_comes_and_goes_is_a_finding():
    def sometimes(x, weight, eps, weight_offset, normalized_shape):
        y = rmsnorm_fwd(x, weight, eps, weight_offset, normalized_shape)
        dims = tuple(range(x.dim() - len(normalized_shape), x.dim()))
        return y, None if x.shape[0] > 8 else torch.rsqrt(x.double().pow(2).mean(dims) + eps).float()

    report = run(sometimes, examples=0, checks=("signature", "statistics"))
    (finding,) = report.findings
    assert (finding.check, finding.output) == ("signature", "rstd")
    assert "expected in all cases or in none, but the kernel returns it in " in finding.message
    assert finding.cases == {check.name: check.failed for check in report.checks}["signature"]


@pytest.mark.slow
def test_what_is_not_supported_is_skipped_with_its_reason(few_corners):
    few_corners(slice(45))
    report = run(examples=0, unsupported=lambda spec: "16-bit only" if spec.dtype == "float32" else None)
    assert report.ok
    assert {t.dtype for t in report.tallies} == {"float16", "bfloat16"}
    assert next(skip for skip in report.skipped if skip.reason == "16-bit only").cases > 10


@pytest.mark.slow
def test_the_largest_error_over_bound_is_kept_with_its_case(few_corners):
    few_corners(slice(30))
    report = run(examples=0)
    for tally in report.tallies:
        assert 0 < tally.ratio <= 1
        assert tally.worst.dtype == tally.dtype
        assert tally.elements >= tally.ulp.count > 0


@pytest.mark.slow
def test_errors_of_several_outputs_are_several_findings(few_corners, unexplained):
    few_corners(slice(20))

    def both(dy, x, weight, bias, mean, rstd):
        return torch.full_like(x, torch.nan), torch.zeros_like(weight) if weight is not None else None

    report = search(Kernel("k", "layernorm_bwd", run=both), Settings(examples=0))
    assert {(f.check, f.output) for f in report.findings} >= {("accuracy", "dx"), ("accuracy", "dweight")}
    assert all(f.spec.shape for f in report.findings)


class Native(torch.autograd.Function):
    """A LayerNorm by torch's own operators."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps, normalized_shape):
        y, mean, rstd = torch.native_layer_norm(x, normalized_shape, weight, bias, eps)
        ctx.shape = normalized_shape
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight, bias, mean, rstd = ctx.saved_tensors
        asked = [True, weight is not None, bias is not None]
        found = torch.ops.aten.native_layer_norm_backward(dy, x, ctx.shape, mean, rstd, weight, bias, asked)
        return *found, None, None


def native_above(n):
    """A LayerNorm that falls back to torch's operator in rows of more than n elements."""

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        if torch.Size(normalized_shape).numel() > n:
            return functional.layer_norm(x.double(), normalized_shape, *doubles(weight, bias), eps).to(x.dtype)
        return layernorm("float64")(x, weight, bias, eps, normalized_shape)[0]

    return layernorm_fwd


def doubles(*tensors):
    return [None if t is None else t.double() for t in tensors]


def native_for_gradients(x, weight, bias, eps, normalized_shape):
    if x.requires_grad:
        return functional.layer_norm(x.double(), normalized_shape, *doubles(weight, bias), eps).to(x.dtype)
    return layernorm("float64")(x, weight, bias, eps, normalized_shape)[0]


def searched(function, op="layernorm_fwd", checks=("accuracy", "modes", "autograd")):
    *_, kernel = load_directions(function, op, contract=Contract(expanded=True, summation="sequential"))
    settings = Settings(examples=0, seconds=60, isolate=False, dtypes=("float32",), checks=checks)
    return search(kernel, settings)


def table(count, op="layernorm_fwd", dtypes=("float32",)):
    return corners.corners(OPS[op], dtypes)[:count]


def test_a_fallback_to_torch_is_counted_by_case(few_corners):
    expected = sum(row_length(spec, OPS["layernorm_fwd"]) > 64 for spec in table(24))
    few_corners(slice(0, 24))
    longer, below = searched(native_above(64)), searched(native_above(10**9))
    assert 0 < expected < 24
    assert longer.seen.operators["aten::native_layer_norm"] == expected
    assert set(longer.seen.operators) <= {"aten::native_layer_norm", "aten::layer_norm"}  # as in inference mode
    assert below.seen.operators == {}
    assert longer.coverage.compared == below.coverage.compared == 24
    assert longer.ok, "it is information, no finding"


def test_operators_of_the_backward_and_of_a_mode_are_counted(few_corners):
    few_corners(slice(0, 24))
    both = searched(Native, "layernorm")
    assert set(both.seen.operators) == {"aten::native_layer_norm", "aten::native_layer_norm_backward"}
    assert set(both.seen.operators.values()) == {both.coverage.compared}
    report = searched(native_for_gradients)
    assert any(way.startswith("where x") for way in report.seen.ways["modes"])
    assert set(report.seen.operators) == {"aten::native_layer_norm"}
    assert 0 < report.seen.operators["aten::native_layer_norm"] < report.coverage.compared


def test_a_run_says_which_sizes_types_and_ways_it_saw(few_corners):
    specs = table(90, "rmsnorm_fwd", ("float32", "bfloat16"))
    few_corners(slice(0, 90))
    tried = {"dtypes": ("float32", "bfloat16"), "checks": ("accuracy", "calls", "modes")}
    report = run(examples=0, unsupported=lambda spec: "two rows" if spec.shape[0] > 2 else None, **tried)
    compared = [spec for spec in specs if spec.shape[0] <= 2]
    assert report.seen.rows == max(prod(spec.shape[: -spec.normalized_ndim]) for spec in compared)
    assert report.seen.elements == max(prod(spec.shape) for spec in compared)
    assert report.seen.types == Counter(spec.dtype for spec in compared)
    looked = {check.name: check.cases for check in report.checks}
    ways = {name: sum(ways.values()) for name, ways in report.seen.ways.items()}
    assert ways["calls"] == looked["calls"] > 0
    assert ways["modes"] >= looked["modes"] > 0, "a small case tries several"
    assert "eval()" not in report.seen.ways["modes"], "no module ran"
