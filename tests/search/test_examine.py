"""One case that does not fit into GPU memory."""

from dataclasses import replace

import torch
from small_runs import run

from verify_norm.cases import make
from verify_norm.checks import CHECKS
from verify_norm.core.results import Settings
from verify_norm.core.spec import CaseSpec, Kernel
from verify_norm.search.examine import NO_ROOM
from verify_norm.search.search import replay


def test_a_case_that_the_gpu_has_no_room_for_is_told_and_ends_nothing(monkeypatch):
    case = make.case

    def full(spec, *args):
        if spec.dtype == "float32":
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return case(spec, *args)

    monkeypatch.setattr(make, "case", full)
    report = run(isolate=False)
    assert report.ok
    assert report.cases > 20
    assert any(skip.reason == NO_ROOM and skip.cases > 10 for skip in report.skipped)
    assert {tally.dtype for tally in report.tallies} == {"float16", "bfloat16"}


def test_a_check_that_the_gpu_has_no_room_for_takes_no_other_finding_with_it(monkeypatch):
    def full(ran):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    kernel = Kernel("k", "rmsnorm_fwd", run=lambda x, weight, eps, weight_offset, normalized_shape: x * 2)
    monkeypatch.setitem(CHECKS, "identities", replace(CHECKS["identities"], function=full, looks=lambda ran: True))
    report = replay(kernel, CaseSpec(shape=(3, 5)), Settings(isolate=False))
    assert "accuracy" in {finding.check for finding in report.findings}
    assert ("check identities", NO_ROOM) in {(skip.what, skip.reason) for skip in report.skipped}
    assert {result.name: result.cases for result in report.checks}["identities"] == 0
