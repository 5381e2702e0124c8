"""What a run counts and reports."""

import torch
from small_runs import rmsnorm_fwd, run

from verify_norm.cases import placement
from verify_norm.core.results import Settings
from verify_norm.core.spec import CaseSpec, Kernel
from verify_norm.loading.registry import load
from verify_norm.search.search import replay, search


def test_what_had_no_room_is_told(monkeypatch):
    monkeypatch.setattr(placement, "_untouched", lambda *_: None)
    report = replay(load("layernorm_fwd_torch"), CaseSpec((3, 4), x_layout="far"), Settings(isolate=False))
    assert report.layouts["x contiguous"] == 1
    assert [skip.what for skip in report.skipped] == ["x beyond 2³¹ elements"]
    single = CaseSpec((1, 4), x_layout="far")  # one row has no other to be far from
    assert not replay(load("layernorm_fwd_torch"), single, Settings(isolate=False)).skipped


def test_what_is_not_returned_is_said():
    report = run()
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


def test_what_is_not_supported_is_skipped_with_its_reason():
    report = run(unsupported=lambda spec: "16-bit only" if spec.dtype == "float32" else None)
    assert report.ok
    assert {t.dtype for t in report.tallies} == {"float16", "bfloat16"}
    assert next(skip for skip in report.skipped if skip.reason == "16-bit only").cases > 10


def test_the_largest_error_over_bound_is_kept_with_its_case():
    report = run()
    for tally in report.tallies:
        assert 0 < tally.ratio <= 1
        assert tally.worst.dtype == tally.dtype
        assert tally.elements >= tally.ulp.count > 0


def test_errors_of_several_outputs_are_several_findings():
    def both(dy, x, weight, bias, mean, rstd):
        return torch.full_like(x, torch.nan), torch.zeros_like(weight) if weight is not None else None

    report = search(Kernel("k", "layernorm_bwd", run=both), Settings(examples=20, seconds=20))
    assert {(f.check, f.output) for f in report.findings} >= {("accuracy", "dx"), ("accuracy", "dweight")}
    assert all(f.spec.shape for f in report.findings)
