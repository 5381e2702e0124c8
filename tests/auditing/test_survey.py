"""The survey of errors, for outputs of every dtype and for 8-bit ones that saturate."""

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from verify_norm.auditing.model import UlpReport, summary
from verify_norm.auditing.survey import MOST_COLUMNS, MOST_ROWS, heat, survey, typical
from verify_norm.cases import make
from verify_norm.checks import CHECKS
from verify_norm.core import judge
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.finding import Finding
from verify_norm.core.geometry import refusal
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.run import Expected
from verify_norm.core.spec import CaseSpec
from verify_norm.core.ulp import UlpStats, distance
from verify_norm.loading import registry
from verify_norm.running.execute import execute
from verify_norm.search.examine import examine

EIGHT = ("float8_e4m3fn", "float8_e5m2")


def layernorm_fwd(output=None, factor=1.0, saturate=True):
    def run(x, weight, bias, eps):
        r = x.double()
        xhat = (r - r.mean(1, keepdim=True)) / (r.var(1, correction=0, keepdim=True) + eps).sqrt()
        y = (xhat * weight.double() + bias.double()) * factor
        form = FORMATS[output or str(x.dtype).removeprefix("torch.")]
        y = torch.from_numpy(form.round(y.numpy())).float()  # once
        if output in EIGHT:
            other = float("nan") if output == "float8_e4m3fn" else float("inf")
            y = torch.where(y.isinf(), torch.copysign(torch.tensor(form.largest if saturate else other), y), y)
        return y.to(getattr(torch, form.name))

    return run


def kernel(output=None, **how):
    return Kernel("k", "layernorm_fwd", run=layernorm_fwd(output, **how), contract=Contract(output=output))


SPECS = [CaseSpec((16, 300), dtype, seed=seed) for dtype in ("float32", "float16", "bfloat16") for seed in (2, 4)]


def test_the_report_of_correct_rounding():
    reports = survey(kernel(), SPECS)
    assert [(r.output, r.dtype) for r in reports] == [("y", "float32"), ("y", "float16"), ("y", "bfloat16")]
    for report in reports:
        assert report.cases == 2
        assert report.elements == 2 * 16 * 300
        assert report.correct > 0.999
        assert report.mean == pytest.approx(0.25, abs=0.02)
        assert report.maximum <= 0.5 + 1e-6
        assert 0.2 < report.p50 <= report.p99 <= report.p999 <= report.maximum
        assert abs(report.bias) < 0.02
        assert sum(count for _, count in report.histogram) == report.elements - report.unjudged
        assert report.averages is not None
        assert report.averages.excess < report.averages.excess_allowed


def test_the_worst_cases_can_be_replayed():
    (report,) = survey(kernel(factor=1.02), SPECS[-2:])
    assert report.ratio > 1
    assert report.bias > 0.5
    for kept in (report.by_ulp, report.by_ratio):
        assert len(kept) == 2
        for worst in kept:
            run = execute(kernel(factor=1.02), make.case(worst.spec, OPS["layernorm_fwd"], Contract()))
            assert run.outputs["y"].got[worst.index] == worst.got
            assert run.outputs["y"].ratio[worst.index] == worst.ratio
            assert run.case.expected["y"].value[worst.index] == worst.want
    assert report.by_ulp[0].ulp == report.maximum
    assert report.by_ratio[0].ratio == report.ratio
    assert [w.ulp for w in report.by_ulp] == sorted((w.ulp for w in report.by_ulp), reverse=True)


def test_a_report_goes_to_json_and_back():
    kind = TypeAdapter(tuple[UlpReport, ...])
    found = survey(kernel(), SPECS)
    assert kind.validate_json(kind.dump_json(found)) == found


def test_a_summary_has_the_numbers_of_the_survey():
    tally = examine(kernel(), SPECS[0], ("accuracy",), "cpu").tallies[0]
    (report,) = survey(kernel(), SPECS[:1])
    short = summary(tally)
    for name in ("maximum", "mean", "ratio", "histogram"):
        assert getattr(short, name) == getattr(report, name)


@pytest.mark.parametrize("output", EIGHT)
@pytest.mark.parametrize("saturate", [True, False])
def test_outputs_in_eight_bits(output, saturate):
    usual = CaseSpec((8, 64), "bfloat16", seed=2)
    (report,) = survey(kernel(output, saturate=saturate), [usual])
    assert (report.dtype, report.correct, report.nonfinite) == (output, 1.0, 0)
    assert report.mean == pytest.approx(0.25, abs=0.03)
    assert 0.9 < report.ratio <= 1
    checks = ("signature", "accuracy", "distribution")
    assert examine(kernel(output, saturate=saturate), usual, checks, "cpu").findings == ()
    wrong = examine(kernel(output, factor=1.1, saturate=saturate), usual, checks, "cpu").findings
    assert {f.check for f in wrong} == {"accuracy", "distribution"}


@pytest.mark.parametrize("name", EIGHT)
def test_above_the_largest_number_saturation_is_right_and_so_is_overflow(name):
    form = FORMATS[name]
    beyond = form.largest * 1.5
    other = np.nan if name == "float8_e4m3fn" else np.inf
    want = np.array([beyond, beyond, -beyond, beyond, beyond, form.largest, 1.0, 1.0])
    got = np.array([form.largest, other, -form.largest, -form.largest, form.largest / 2, form.largest, other, 1.0])
    right = [True, True, True, False, False, True, False, True]
    assert form.is_rounding(got, want).tolist() == right
    judged = judge.ratio(got, Expected(want, np.full(8, 1e-6), name))
    assert (judged <= 1).tolist() == right
    assert (distance(got, want, form) <= 0.5).tolist() == right
    assert UlpStats.of(got, want, form).correct == sum(right)
    half = FORMATS["float16"]  # which has an infinity, and every conversion gives it
    assert not half.is_rounding(np.array([half.largest]), np.array([1e5])).any()


def test_below_the_largest_number_of_eight_bits_errors_count():
    form = FORMATS["float8_e4m3fn"]
    want = np.array([450.0, 450.0, 400.0])
    assert distance(np.array([448.0, 416.0, 448.0]), want, form).tolist() == [2 / 32, 34 / 32, 48 / 32]


@pytest.mark.parametrize("output", EIGHT)
def test_overflow_of_a_kernel_in_eight_bits(output):
    """For float32 weights that make y overflow, either conversion passes, and half the largest number fails."""
    spec = CaseSpec((8, 64), "float32", seed=2, bias=False)
    op, contract = OPS["layernorm_fwd"], Contract(output=output)
    weight = np.full(64, FORMATS[output].largest)
    case = make.build(spec, op, contract, "cpu", make.exact_inputs(spec, op) | {"weight": weight}, truth=True)

    def without_bias(how):
        run = layernorm_fwd(output, **how)
        return lambda x, weight, eps: run(x, weight, torch.zeros(64), eps)

    for how, passes in (({}, True), ({"saturate": False}, True), ({"factor": 0.5}, False)):
        run = execute(Kernel("k", "layernorm_fwd", run=without_bias(how), contract=contract), case)
        assert (not any(isinstance(i, Finding) for i in CHECKS["accuracy"].function(run))) == passes


def test_cases_that_a_kernel_does_not_take_are_left_out():
    none = Kernel("k", "layernorm_fwd", run=layernorm_fwd(), unsupported=lambda spec: "nothing")
    assert survey(none, SPECS) == ()


@pytest.mark.parametrize("op", list(OPS))
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_typical_cases_are_cases_of_the_operator(op, device):
    drawn = list(typical(OPS[op], ("float32", "bfloat16"), device, 3, 20))
    assert [refusal(spec, OPS[op]) for spec in drawn] == [None] * 20
    assert drawn == list(typical(OPS[op], ("float32", "bfloat16"), device, 3, 20))
    assert len(set(drawn)) == 20
    assert {spec.dtype for spec in drawn} == {"float32", "bfloat16"}


def test_no_case_starts_after_the_time():
    ran = []

    def run(x, weight, eps):
        ran.append(x.shape)
        return torch.zeros_like(x)

    specs = [CaseSpec((2, 8), seed=seed) for seed in range(50)]
    assert survey(Kernel("k", "rmsnorm_fwd", run=run), specs, seconds=0.0) == ()
    assert not ran
    assert survey(Kernel("k", "rmsnorm_fwd", run=run), specs, seconds=60.0)[0].cases == 50


def test_a_map_shows_the_place_of_an_error():
    def run(x, weight, eps):
        y = torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)
        y[5, 300] += 1.0
        return y

    kernel = Kernel("k", "rmsnorm_fwd", run=run)
    spec = CaseSpec((7, 1000))
    made = heat(execute(kernel, make.case(spec, OPS[kernel.op], kernel.contract)), "y")
    assert made is not None
    assert (made.rows, made.columns, made.spec) == (7, 1000, spec)
    cells = np.asarray(made.cells)
    assert cells.shape == (7, MOST_COLUMNS)
    assert np.unravel_index(cells.argmax(), cells.shape) == (5, 300 * MOST_COLUMNS // 1000)
    assert np.sort(cells.ravel())[-2] < 1e3 < cells.max()


@pytest.mark.parametrize(
    ("name", "op", "size"),
    [
        ("groupnorm_bwd_torch", "groupnorm_bwd", (6, 120)),
        ("batchnorm_bwd_torch", "batchnorm_bwd", (6, 120)),
        ("layernorm_bwd_torch", "layernorm_bwd", (18, 40)),
    ],
)
def test_a_row_of_a_map_is_what_is_normalized_together(name, op, size):
    spec = CaseSpec((3, 6, 40), num_groups=2 if op == "groupnorm_bwd" else None)
    kernel = registry.load(name)
    run = execute(kernel, make.case(spec, OPS[op], kernel.contract))
    dx, dweight = heat(run, "dx"), heat(run, "dweight")
    assert dx is not None
    assert dweight is not None
    assert (dx.rows, dx.columns) == size
    assert dweight.rows == 1
    assert len(dx.cells) <= MOST_ROWS


def test_an_output_that_is_not_returned_has_no_map():
    kernel = Kernel("k", "layernorm_fwd", run=lambda x: x)
    run = execute(kernel, make.case(CaseSpec((2, 8)), OPS[kernel.op], kernel.contract))
    assert heat(run, "mean") is None
