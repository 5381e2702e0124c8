"""The smallest errors that a check would have detected: put into right kernels, they show, and less does not."""

import doctest
from dataclasses import replace

import counted
import numpy as np
import pytest
import torch
from counted import PLAIN, QUIET, SPEC, X, case_of
from norms import layernorm, rows
from typer.testing import CliRunner

from verify_norm.cases import make
from verify_norm.checks import CHECKS, power
from verify_norm.cli.app import app
from verify_norm.core.contract import Contract
from verify_norm.core.finding import SIGNS, Finding, SmallestError
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.run import Expected
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
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


U = 2.0**-24


def with_y(value, delta=0.0, ratio=0.0, **fields):
    """A run of LayerNorm whose y has this truth and this bound, and is off by such a part of it."""
    value = np.array(value)
    y = Expected(value, np.broadcast_to(delta, value.shape), "float32")
    case = make.case(CaseSpec(value.shape, **fields), OPS["layernorm_fwd"], Contract())
    run = counted.run_of(replace(case, expected=case.expected | {"y": y}))
    return replace(run, outputs=run.outputs | {"y": replace(run.outputs["y"], ratio=np.full(value.shape, ratio))})


def of_y(run):
    with np.errstate(all="ignore"):  # as a check does
        return {error.sign: error for error in power.smallest(run, {"y"})}


def test_the_only_element_that_is_judged_and_not_zero_is_the_smallest_error_of_all():
    """Beside 1 the tie above is at 2⁻²⁴ and the one below at 2⁻²⁵, and a factor has the u of the arithmetic."""
    errors = of_y(with_y([[0.0, 1.0, 3.0], [0.0, 0.0, 0.0]], [[0.0, 0.0, np.inf], [0.0] * 3]))
    for sign, e in ((1, U + U), (-1, U + U / 2)):
        assert (errors[sign].everything, errors[sign].row, errors[sign].element) == (e, e, e)
    assert of_y(with_y([[0.0, 0.0]] * 2)) == {}
    assert of_y(with_y(np.ones((0, 3)))) == {}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shape", [(2, 3, 4), (5,)])
def test_one_element_is_drawn_and_its_row_is_the_row_of_that_element(seed, shape):
    """Each element tells its own error; the row is the last dimension, and of one row each element."""
    delta = (1 + np.arange(np.prod(shape))[::-1].reshape(shape)) * 2.0**-15
    run = with_y(np.ones(shape), delta, seed=seed)
    error, again = of_y(run)[1], of_y(run)[1]
    index = tuple(int(i[0]) for i in np.nonzero(np.isclose(delta, error.element, rtol=1e-3, atol=4 * U)))
    row = delta[index[:-1]] if len(shape) > 1 else delta[index]
    assert error.row == pytest.approx(row.min(), abs=4 * U)
    assert error.everything == pytest.approx(delta.min(), abs=4 * U)
    assert error.element == again.element
    assert (error.row < error.element) == (len(shape) > 1 and index[-1] < shape[-1] - 1)


@pytest.mark.parametrize(("ratio", "right"), [(0.5, True), (1.0, True), (1.0001, False), (1.5, False)])
def test_what_is_at_its_bound_is_right(ratio, right):
    run = with_y([[1.0, 2.0]] * 2, ratio=ratio)
    assert bool(of_y(run)) == right
    assert [error.output for error in power.smallest(run, {"y", "rstd"})] == ["y", "y"] * right + ["rstd", "rstd"]
    assert [error.output for error in power.smallest(run, {"rstd"})] == ["rstd", "rstd"]


@pytest.mark.parametrize(
    ("fields", "looked"),
    [
        ({}, True),
        ({"further": ()}, False),
        ({"eps": 0.0}, False),
        ({"shape": (64, 65)}, False),
        ({"special": "nan"}, False),
    ],
)
def test_terms_are_dropped_in_the_cases_that_name_it(fields, looked):
    run = counted.run_of(make.case(replace(SPEC, **fields), OPS["layernorm_fwd"], Contract()))
    assert power.looks(run) == looked
    dropped = {error.dropped for error in power.smallest(run, {"y"})}
    assert dropped <= ({True} if looked else {None})


def test_a_dropped_term_shows_where_the_result_is_beyond_its_bound():
    """Of the tie between 1 and 1 + 2⁻²³ the even one is right, and both are where it may be off."""
    tie = Expected(np.full(1, 1 + U), np.zeros(1), "float32")
    output = replace(counted.run_of(case_of(PLAIN, "layernorm_fwd")).outputs["y"], got=np.ones(1))
    for expected, change, shows in (
        (tie, 0.0, False),
        (tie, 2 * U, True),
        (replace(tie, delta=np.full(1, 2.0**-40)), 2 * U, False),
        (replace(tie, value=np.ones(1)), 2 * U, True),
        (replace(tie, value=np.ones(1)), 0.25 * U, False),
    ):
        assert power._shows(output, expected, np.full(1, change)) == shows


def dropped(op, spec=SPEC, **values):
    return power._dropped(counted.run_of(case_of(spec, op, **values)))


@pytest.mark.parametrize(
    ("shape", "known"), [((2, 2), True), ((2, 1, 2), True), ((8,), False), ((1, 8), False), ((8, 1), False)]
)
def test_a_term_is_dropped_where_there_are_others(shape, known):
    case = make.case(CaseSpec(shape), OPS["layernorm_fwd"], Contract())
    assert bool(power._dropped(counted.run_of(case))) == known


def test_a_mean_that_lacks_the_last_element_moves_the_others():
    """x = ±1 without its last 1: the mean is −⅛, and that of the squares ⅞."""
    changes = dropped("rmsnorm_fwd", PLAIN)
    root = (8 / 7) ** 0.5
    np.testing.assert_allclose(changes["rstd"], root - 1, rtol=1e-9)
    np.testing.assert_allclose(changes["y"][:, :-1], (X * (root - 1))[:, :-1], rtol=1e-9)
    assert (changes["y"][:, -1] == 0).all()
    np.testing.assert_allclose(dropped("layernorm_fwd", PLAIN)["mean"], -1 / 8, rtol=1e-9)


def test_sums_that_lack_the_last_element_of_dy_move_dx_and_sums_over_rows_lack_the_last_row():
    """dy ends with 1, 2, 3 or 4 at x̂ = 1, so c2 and c1 are an eighth of that less."""
    rows = np.array([[1.0], [2.0], [3.0], [4.0]])
    changes = dropped("layernorm_bwd", dy=rows * QUIET)
    np.testing.assert_allclose(changes["dx"][:, :-1], (rows * (1 + X) / 8)[:, :-1], atol=1e-9)
    assert (changes["dx"][:, -1] == 0).all()
    np.testing.assert_allclose(changes["dweight"], -4 * QUIET[-1] * X[-1], rtol=1e-9)
    np.testing.assert_allclose(changes["dbias"], -4 * QUIET[-1], rtol=1e-9)
    assert set(dropped("layernorm_bwd", replace(SPEC, weight=False, bias=False))) == {"dx"}
    assert set(dropped("layernorm_bwd", replace(SPEC, weight=False))) == {"dx", "dbias"}


def test_what_a_channel_keeps_of_its_sums_is_not_looked_at():
    case = make.case(CaseSpec((3, 4, 5)), OPS["batchnorm_fwd"], Contract())
    assert set(power._dropped(counted.run_of(case))) == {"y", "mean", "rstd"}


def test_doctests():
    assert doctest.testmod(power).failed == 0


@pytest.mark.sampled(4)
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


@pytest.mark.nightly
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
