"""The gradient report as text and as JSON."""

import json
from dataclasses import replace

from functions import SHAPES, made, right

from verify_norm.gradcheck.gradcheck import gradcheck
from verify_norm.gradcheck.report import dump, text


def test_the_report_reads_both_ways():
    report = gradcheck(made(lambda ctx, dy, x, w: tuple(1.001 * g for g in right(ctx, dy, x, w))), shapes=SHAPES)
    assert "FAIL" in text(report)
    assert "along the gradient's signs" in text(report)
    loaded = json.loads(dump(report))
    assert loaded["ok"] is False
    assert loaded["findings"][0]["output"] == "x"
    assert text(replace(report, findings=(), compared=())).endswith(f"nothing could be told; {report.seconds:.2f} s")
