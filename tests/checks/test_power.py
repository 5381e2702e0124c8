"""What a run would have seen: the graded errors that are put into a kernel's own outputs, and their verdicts."""

from math import inf

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from verify_norm.cases import make
from verify_norm.checks import power
from verify_norm.cli.app import app
from verify_norm.core import judge
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec, Contract, Kernel
from verify_norm.report.documents import load as load_report
from verify_norm.running.execute import execute


def layernorm_fwd(x, weight, bias, eps, factor=1.0):
    y = torch.nn.functional.layer_norm(x.double(), x.shape[-1:], weight.double(), bias.double(), eps)
    return (y * factor).to(x.dtype)


def layernorm_bwd(dy, x, weight, bias, eps):
    leaves = [t.double().requires_grad_() for t in (x, weight, bias)]
    y = torch.nn.functional.layer_norm(leaves[0], x.shape[-1:], *leaves[1:], eps)
    return [g.to(x.dtype) for g in torch.autograd.grad(y, leaves, dy.double())]


def of(function, op="layernorm_fwd", **options):
    spec = CaseSpec(**{"shape": (16, 64), **options})
    run = execute(Kernel("k", op, run=function), make.case(spec, OPS[op], Contract()))
    return run, {s.output: s for s in power.sensitivities(run)}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_it_says_shows_and_half_of_it_does_not(dtype):
    run, sensed = of(layernorm_fwd, dtype=dtype)
    y, expected = sensed["y"], run.case.expected["y"]
    got = run.outputs["y"].got

    def shows(error):
        return (judge.ratio(FORMATS[dtype].round(got + error), expected) > 1).any()

    signs = (1.0, -1.0)
    assert any(shows(s * y.bias * got) for s in signs)
    assert not all(shows(s * y.bias / 2 * got) for s in signs)
    assert 0 < y.bias <= y.row < 0.1
    assert 0.5 <= y.element < 4


def test_a_bias_that_it_says_would_show_is_found_in_a_kernel():
    """The mutant made for real: the same factor in the kernel itself is beyond the bound, a quarter of it is not."""
    _, sensed = of(layernorm_fwd)
    for share, wrong in ((2.0, True), (0.25, False)):
        factor = 1.0 + share * sensed["y"].bias
        run, _ = of(lambda x, weight, bias, eps, f=factor: layernorm_fwd(x, weight, bias, eps, f))
        assert (run.outputs["y"].ratio.max() > 1) == wrong


def test_a_dropped_term_shows_in_every_sum():
    _, sensed = of(layernorm_bwd, "layernorm_bwd")
    assert {name: s.dropped for name, s in sensed.items()} == {"dx": True, "dweight": True, "dbias": True}
    _, sensed = of(layernorm_fwd)
    assert sensed["y"].dropped is True
    _, sensed = of(layernorm_fwd, shape=(64,))
    assert sensed["y"].dropped is None


def test_what_is_wrong_already_is_left_out():
    _, sensed = of(lambda x, weight, bias, eps: layernorm_fwd(x, weight, bias, eps, 2.0))
    assert sensed == {}


def test_the_least_of_graded_errors():
    grades = (1.0, 2.0, 4.0, 8.0)
    found = [power._least(grades, lambda error, t=t: error >= t, 1.0) for t in (0.5, 3.0, 8.0, 9.0)]
    assert found == [1.0, 4.0, 8.0, inf]


@pytest.mark.slow
def test_the_command_and_every_ordinary_report_say_it(tmp_path, few_corners):
    few_corners(slice(0, None, 4))
    path = tmp_path / "report.json"
    arguments = ["--kernel", "rmsnorm_fwd", "--examples", "5", "--json", str(path)]
    result = CliRunner().invoke(app, ["power", *arguments])
    assert result.exit_code == 0, result.output
    assert "a dropped term" in result.stdout
    report = load_report(path.read_text())
    assert {(p.output, p.dtype) for p in report.power} >= {("y", "float32"), ("rstd", "float32")}
    for one in report.power:
        assert one.least <= one.bias
        assert np.isfinite(one.element)
    ordinary = CliRunner().invoke(app, arguments)
    assert "would have detected: " in ordinary.stdout
