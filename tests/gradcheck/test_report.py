"""The gradient report as text and as JSON."""

import json
from dataclasses import replace

import torch
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
    assert text(replace(report, findings=(), compared=())).endswith(f"inconclusive; {report.seconds:.2f} s")


def test_a_gradient_that_cannot_be_told_is_no_pass():
    """In bfloat16 the rounding of a sum of 65,536 numbers hides what one weight of the row adds to it."""
    hidden = gradcheck(lambda x: (1000 + 1e-3 * x).sum(), shapes={"x": (64, 1024)}, dtypes=["bfloat16"])
    assert (hidden.ok, hidden.checked, hidden.told) == (False, False, ())
    assert "inconclusive: " in text(hidden)
    assert text(hidden).splitlines()[-1].startswith("inconclusive;")
    loaded = json.loads(dump(hidden))
    assert (loaded["ok"], loaded["checked"], loaded["untold"][0]["output"]) == (False, False, "x")


def test_a_pass_names_the_gradients_that_it_does_not_cover():
    report = gradcheck(lambda x, w: x.sin() + 1e-9 * w, shapes={"x": (4, 64), "w": (64,)}, dtypes=["float32"])
    assert report.ok
    assert report.told == ("x",)
    assert "pass for x; inconclusive for w" in text(report)


def test_a_gradient_of_nan_is_named_and_reported_once():
    def root(x):
        return x.abs().sqrt()

    x = torch.rand(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    x[1, 3] = 0.0
    root.make_inputs = lambda: {"x": x}
    for dtype in ("float64", "float32"):
        (finding,) = gradcheck(root, dtypes=[dtype]).findings
        assert finding.check == "value"
        assert "the gradient of x is nan at [1, 3]" in finding.message
