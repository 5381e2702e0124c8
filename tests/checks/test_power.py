"""The smallest errors that a check would have detected: put into right kernels, they show, and less does not."""

import doctest

import numpy as np
import pytest
import torch
from norms import layernorm, rows
from typer.testing import CliRunner

from verify_norm.cases import make
from verify_norm.checks import CHECKS, power
from verify_norm.cli.app import app
from verify_norm.core.finding import SIGNS, Finding, SmallestError
from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec, Contract, Kernel
from verify_norm.report.documents import load as load_report
from verify_norm.running.execute import execute
from verify_norm.search.search import search


def forward(where="", factor=1.0):
    """A right LayerNorm in float32; `factor` meets the output `where` before its last rounding."""

    def run(x, weight, bias, eps, normalized_shape):
        r = rows(x, normalized_shape)
        mean = r.mean(1, keepdim=True)
        rstd = ((r - mean).square().mean(1, keepdim=True) + eps).rsqrt()
        w, b = (rows(t, normalized_shape) if t is not None else None for t in (weight, bias))
        y = (r - mean) * rstd * (1.0 if w is None else w) + (0.0 if b is None else b)
        y, mean, rstd = changed((y, mean[:, 0], rstd[:, 0]), ("y", "mean", "rstd"), where, factor)
        return y.reshape(x.shape).to(x.dtype), mean.float(), rstd.float()

    return run


def backward(where="", factor=1.0):
    """The same for its gradients, with statistics of its own: given ones leave `accuracy` a tighter bound."""

    def run(dy, x, weight, bias, eps, normalized_shape):
        r, d = rows(x, normalized_shape), rows(dy, normalized_shape)
        mean = r.mean(1)
        rstd = ((r - mean[:, None]).square().mean(1) + eps).rsqrt()
        xhat = (r - mean[:, None]) * rstd[:, None]
        g = d if weight is None else d * rows(weight, normalized_shape)
        dx = rstd[:, None] * (g - g.mean(1, keepdim=True) - xhat * (g * xhat).mean(1, keepdim=True))
        found = changed((dx, (d * xhat).sum(0), d.sum(0)), ("dx", "dweight", "dbias"), where, factor)
        likes = (x, weight, bias)
        return [None if t is None else f.reshape(t.shape).to(t.dtype) for f, t in zip(found, likes, strict=True)]

    return run


def changed(outputs, names, where, factor):
    """The outputs in float64, one of them times a factor."""
    return tuple(t.double() * (factor if name == where else 1.0) for t, name in zip(outputs, names, strict=True))


def kernel(op, *change):
    run = forward(*change) if op == "layernorm_fwd" else backward(*change)
    return Kernel("k", op, run=run, forward_run=layernorm() if op == "layernorm_bwd" else None)


def said(check, op, case, *change):
    """What one check says of a kernel in one case: its smallest errors, and the outputs that it finds wrong."""
    run = execute(kernel(op, *change), case)
    assert CHECKS[check].looks(run)
    items = CHECKS[check].function(run)
    errors = {(i.output, i.sign): i for i in items if isinstance(i, SmallestError)}
    return errors, {i.output for i in items if isinstance(i, Finding)}


CASES = [
    ("accuracy", "layernorm_fwd", {"y"}, {"shape": (4, 257)}),
    ("accuracy", "layernorm_fwd", {"y"}, {"shape": (4, 96), "offset": 100.0, "weight_dtype": "float32"}),
    ("accuracy", "layernorm_bwd", {"dx", "dweight", "dbias"}, {"shape": (33, 40)}),
    ("statistics", "layernorm_fwd", {"mean", "rstd"}, {"shape": (33, 40), "offset": 1.0}),
    ("distribution", "layernorm_fwd", {"y"}, {"shape": (16, 256), "offset": 10.0}),
    ("distribution", "layernorm_bwd", {"dx", "dweight"}, {"shape": (70, 24)}),
    ("sums", "layernorm_fwd", {"mean", "rstd"}, {"shape": (2, 4097)}),
    ("sums", "layernorm_bwd", {"dweight", "dbias"}, {"shape": (1025, 7)}),
    ("gradient", "layernorm_bwd", {"dx", "dweight", "dbias"}, {"shape": (9, 50)}),
]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("check", "op", "outputs", "fields"), CASES)
def test_what_a_check_says_shows_in_it_alone_and_a_third_does_not(check, op, outputs, fields, dtype):
    case = make.case(CaseSpec(**fields, dtype=dtype), OPS[op], Contract())
    errors, found = said(check, op, case)
    assert found == set()
    assert set(errors) >= {(output, sign) for output in outputs for sign in SIGNS}
    for (output, sign), error in errors.items():
        for share, shows in ((1.3, True), (0.3, False)):
            found = said(check, op, case, output, 1.0 + sign * share * error.everything)[1]
            assert (output in found) == (shows and share * error.everything < 1), (output, sign, share, error)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_row_and_an_element_show_less_than_everything(dtype):
    case = make.case(CaseSpec((5, 12), dtype, eps=1.0), OPS["layernorm_fwd"], Contract())
    errors, _ = said("accuracy", "layernorm_fwd", case)

    def shown(sign, index, e):
        factor = torch.ones(case.spec.shape, dtype=torch.float64)
        factor[index] += sign * e
        return "y" in said("accuracy", "layernorm_fwd", case, "y", factor)[1]

    elements, lines = list(np.ndindex(case.spec.shape)), [(row,) for row in range(case.spec.shape[0])]
    for sign in SIGNS:
        one = errors["y", sign]
        assert one.everything <= one.row <= one.element
        for e, places in ((one.element, elements), (one.row, lines)):
            assert any(shown(sign, index, 1.3 * e) and not shown(sign, index, 0.3 * e) for index in places)


def test_a_dropped_term_shows_in_every_sum():
    for op, names in (("layernorm_fwd", {"y"}), ("layernorm_bwd", {"dx", "dweight", "dbias"})):
        errors, _ = said("accuracy", op, make.case(CaseSpec((16, 64)), OPS[op], Contract()))
        assert {name for name, _ in errors} == names
        assert all(error.dropped is True for error in errors.values())
    errors, _ = said("accuracy", "layernorm_fwd", make.case(CaseSpec((64,)), OPS["layernorm_fwd"], Contract()))
    assert errors["y", 1].dropped is None


@pytest.mark.parametrize("check", ["accuracy", "distribution", "gradient"])
def test_what_is_wrong_already_is_left_out(check):
    case = make.case(CaseSpec((16, 64)), OPS["layernorm_bwd"], Contract())
    errors, found = said(check, "layernorm_bwd", case, "dx", 2.0)
    assert found == {"dx"}
    assert "dx" not in {name for name, _ in errors}


def test_what_saturates_hides_an_error():
    form = power.FORMATS["float8_e4m3fn"]
    errors = power.crossings(np.array([448.0, 1.0]), np.zeros(2), form, np.ones(2, bool))
    assert np.isinf(errors)[:, 0].all()
    assert (np.array(errors)[:, 1] <= 2.0**-4).all()


def test_doctests():
    assert doctest.testmod(power).failed == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "output", "dtype"),
    [("accuracy", "dx", "bfloat16"), ("distribution", "dx", "float16"), ("sums", "dweight", "float32")],
)
def test_a_run_detects_what_it_says(check, output, dtype, few_corners):
    """An eighth of the corner cases alone: at 1.3 times the error the run finds it, at a third it does not."""
    few_corners(slice(4, None, 8))
    settings = Settings(dtypes=(dtype,), checks=(check,), examples=0, isolate=False, seconds=300)
    report = search(kernel("layernorm_bwd"), settings)
    (e,) = (d.everything for d in report.detectable if (d.output, d.dtype) == (output, dtype))
    for sign in SIGNS:
        loud, quiet = (kernel("layernorm_bwd", output, 1.0 + sign * share * e) for share in (1.3, 0.3))
        assert search(loud, settings, until=lambda found: (found.check, found.output) == (check, output)).findings
        assert search(quiet, settings).findings == ()


@pytest.mark.slow
def test_the_command_and_every_ordinary_report_say_it(tmp_path, few_corners):
    few_corners(slice(0, None, 9))
    path = tmp_path / "report.json"
    arguments = ["--kernel", "rmsnorm_fwd", "--examples", "5", "--json", str(path)]
    result = CliRunner().invoke(app, ["power", *arguments])
    assert result.exit_code == 0, result.output
    assert "a dropped term" in result.stdout
    report = load_report(path.read_text())
    told = {(d.check, d.output, d.dtype) for d in report.detectable}
    assert told >= {("accuracy", "y", "float32"), ("statistics", "rstd", "float32"), ("distribution", "y", "bfloat16")}
    assert all(0 < d.everything < 1 for d in report.detectable)
    ordinary = CliRunner().invoke(app, arguments)
    assert "the run would have detected a factor of 1 ± e" in ordinary.stdout
