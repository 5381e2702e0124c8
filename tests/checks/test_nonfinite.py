"""The check `nonfinite`: a number, or another infinity, where NaN or infinity belongs."""

from dataclasses import replace
from functools import partial, wraps
from itertools import product

import numpy as np
import pytest
import torch
from checking import SPEC, findings, layernorm_fwd
from counted import run_of
from norms import groupnorm, layernorm, layernorm_bwd, rmsnorm, rmsnorm_bwd

from verify_norm.cases import make
from verify_norm.checks import CHECKS, nonfinite
from verify_norm.core import geometry
from verify_norm.core.contract import Contract
from verify_norm.core.ops import OPS
from verify_norm.core.run import Expected
from verify_norm.core.spec import CaseSpec
from verify_norm.core.user_operators import operator

INF = float("inf")
ROWS = replace(SPEC, shape=(5, 12), further=())


def first_row_only(t):
    return t.nan_to_num(0, 0, 0) if t[:1].isfinite().all() else t


CHANGES = {  # what a wrong kernel makes of an input
    "zero for NaN": lambda t: t.nan_to_num(0, INF, -INF),
    "infinity for NaN": lambda t: t.nan_to_num(INF, INF, -INF),
    "clamped below": lambda t: t.clamp(min=-1e30),
    "clamped above": lambda t: t.clamp(max=1e30),
    "absolute infinity": lambda t: torch.where(t.isneginf(), INF, t),
    "first row only": first_row_only,
    "infinite to NaN": lambda t: torch.where(t.isinf(), torch.nan, t),
}


def changing(function, name, how):
    @wraps(function)
    def wrong(**given):
        return function(**given | {name: CHANGES[how](given[name])})

    return wrong


@pytest.mark.parametrize("special", ["nan", "inf", "-inf"])
def test_nonfinite_catches_what_hides_it(special):
    def hiding(x, weight, bias, eps, normalized_shape):
        return layernorm_fwd(x.nan_to_num(0, 0, 0), weight, bias, eps, normalized_shape)

    spec = replace(SPEC, special=special)
    assert {("nonfinite", "y"), ("nonfinite", "mean"), ("nonfinite", "rstd")} == findings(hiding, spec)
    assert findings(layernorm_fwd, spec) == set()


@pytest.mark.parametrize(
    ("op", "name", "how", "special", "outputs"),
    [
        ("layernorm_fwd", "x", "clamped below", "-inf", {"y", "mean"}),  # rstd is 0 by overflow
        ("layernorm_fwd", "x", "first row only", "nan", {"y", "mean", "rstd"}),
        ("layernorm_fwd", "weight", "zero for NaN", "nan", {"y"}),
        ("layernorm_fwd", "weight", "clamped above", "inf", {"y"}),
        ("layernorm_fwd", "weight", "absolute infinity", "-inf", {"y"}),
        ("layernorm_fwd", "bias", "infinity for NaN", "nan", {"y"}),
        ("layernorm_fwd", "bias", "absolute infinity", "-inf", {"y"}),
        ("layernorm_bwd", "dy", "zero for NaN", "nan", {"dx", "dweight", "dbias"}),
        ("layernorm_bwd", "dy", "infinity for NaN", "nan", {"dx", "dweight", "dbias"}),
        ("layernorm_bwd", "dy", "clamped below", "-inf", {"dx", "dweight", "dbias"}),
        ("layernorm_bwd", "dy", "absolute infinity", "-inf", {"dx", "dweight", "dbias"}),
        ("layernorm_bwd", "dy", "first row only", "inf", {"dx", "dweight", "dbias"}),
        ("layernorm_bwd", "weight", "zero for NaN", "nan", {"dx"}),
        ("rmsnorm_bwd", "weight", "clamped above", "inf", {"dx"}),
    ],
)
def test_a_special_value_of_any_input_is_missed_where_it_belongs(op, name, how, special, outputs):
    right = {"layernorm_fwd": layernorm(), "layernorm_bwd": layernorm_bwd(), "rmsnorm_bwd": rmsnorm_bwd()}[op]
    wrong = changing(right, name, how)
    for at in ("middle", "last"):
        spec = replace(ROWS, special=special, special_in=name, special_at=at)
        assert findings(wrong, spec, op) == {("nonfinite", output) for output in outputs}
        assert findings(right, spec, op) == set()
    assert findings(wrong, ROWS, op) == set()


RIGHT = {  # unusual forms, in which ∞ − ∞ and 0·∞ are in other places
    "layernorm_fwd": [(layernorm("expanded"), {"expanded": True}), (layernorm("welford"), {})],
    "layernorm_bwd": [(layernorm_bwd("sums"), {}), (layernorm_bwd("recomputed"), {})],
    "rmsnorm_fwd": [(rmsnorm(), {})],
    "rmsnorm_bwd": [(rmsnorm_bwd("cubed"), {})],
}


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(("op", "which"), [(op, i) for op, some in RIGHT.items() for i in range(len(some))])
@pytest.mark.parametrize("data", ["normal", "constant", "uneven"])
def test_right_kernels_pass_wherever_a_special_value_is(op, which, data):
    function, contract = RIGHT[op][which]
    for number, (special, at, name) in enumerate(
        product(("nan", "inf", "-inf", "nan+inf"), ("first", "last", "rows", "row"), ("x", "dy", "weight", "bias"))
    ):
        dtype = ("float32", "bfloat16", "float16")[number % 3]
        spec = CaseSpec((4, 12), dtype, data=data, special=special, special_at=at, special_in=name, further=())
        if geometry.refusal(spec, OPS[op]) is None:
            assert findings(function, spec, op, contract=Contract(**contract)) == set(), spec


def infinite_rows(x, weight, bias, eps, normalized_shape):
    y, mean, rstd = layernorm_fwd(x, weight, bias, eps, normalized_shape)
    return torch.where(x.isinf().any(-1, keepdim=True), y.nan_to_num(INF, INF, -INF), y), mean, rstd


def none_beside_nan(x, weight, bias, eps, normalized_shape):
    return layernorm_fwd(x.nan_to_num(torch.nan, 0, 0) if x.isnan().any() else x, weight, bias, eps, normalized_shape)


def test_nan_and_infinity_beside_each_other():
    for at, wrong in (("first", infinite_rows), ("last", infinite_rows), ("rows", none_beside_nan)):
        spec = replace(ROWS, special="nan+inf", special_at=at)
        assert ("nonfinite", "y") in findings(wrong, spec), at
        assert findings(layernorm_fwd, spec) == set(), at
        for special in ("nan", "inf"):  # neither alone shows it
            assert wrong is infinite_rows or findings(wrong, replace(spec, special=special)) == set()


def one_column(x, weight, bias, eps, normalized_shape):
    y = torch.zeros_like(x) if bias is None else bias.to(x.dtype).expand(x.shape).contiguous()
    return y, x.float().flatten().clone(), torch.full((x.numel(),), eps**-0.5)


def one_column_bwd(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
    return torch.zeros_like(x), torch.zeros_like(weight), dy.float().sum(0).to(bias.dtype)


@pytest.mark.parametrize("special", ["nan", "inf"])
def test_a_row_of_one_element_need_not_pass_on_what_it_multiplies_by_0(special):
    spec = CaseSpec((4, 1), special=special, special_at="middle", further=())
    for name in ("x", "weight", "bias"):
        assert findings(one_column, replace(spec, special_in=name), "layernorm_fwd") == set()
    for name in ("x", "weight", "dy"):
        assert findings(one_column_bwd, replace(spec, special_in=name), "layernorm_bwd") == set()
    for name, output in (("x", "mean"), ("bias", "y")):
        wrong = changing(one_column, name, "zero for NaN" if special == "nan" else "clamped above")
        assert findings(wrong, replace(spec, special_in=name), "layernorm_fwd") == {("nonfinite", output)}
    hidden = changing(one_column_bwd, "dy", "zero for NaN" if special == "nan" else "clamped above")
    assert findings(hidden, replace(spec, special_in="dy"), "layernorm_bwd") == {("nonfinite", "dbias")}


def test_only_what_grows_tells_the_sign_of_an_infinity():
    """x̂ is 1e-32 here: the largest term of dx does not depend on the infinite dy, and decides nothing."""
    scales = {"eps": 1e-12, "log2_scale": -127, "dy_log2_scale": 10}
    spec = CaseSpec((2,), special="inf", special_in="dy", special_at="last", further=(), **scales)
    for seed in range(8):
        assert findings(rmsnorm_bwd(), replace(spec, seed=seed), "rmsnorm_bwd") == set(), seed


@pytest.mark.slow
@pytest.mark.parametrize("act", [torch.nn.functional.silu, lambda z: torch.where(z.isneginf(), 0, z) * z.sigmoid()])
def test_an_activation_of_an_infinity_is_its_limit_or_nan(act):
    for special in ("inf", "-inf"):
        spec = CaseSpec((2, 4, 5), num_groups=2, special=special, special_in="bias")
        assert findings(groupnorm(act), spec, "groupnorm_silu_fwd") == set()


def fused(how):
    def add_rmsnorm_fwd(x, residual, weight, eps, normalized_shape, weight_offset):
        summed = x.float() + residual.float()
        kept = torch.where(summed.isinf(), torch.nan, summed) if how == "NaN" else summed
        y, rstd = rmsnorm()(summed, weight, eps, normalized_shape, weight_offset)
        return y.to(x.dtype), kept.to(x.dtype), rstd

    return add_rmsnorm_fwd


def test_one_addition_of_an_infinity_has_one_value():
    for name in ("x", "residual"):
        spec = replace(ROWS, special="inf", special_in=name, special_at="middle")
        assert findings(fused("NaN"), spec, "add_rmsnorm_fwd") == {("nonfinite", "residual_out")}
        assert findings(fused(""), spec, "add_rmsnorm_fwd") == set()


def pairwise(x, weight, bias, eps, normalized_shape):
    """Welford's update of two halves: an infinity makes the variance infinite, and rstd 0."""
    N = x.shape[-1]
    one, two = x.float().reshape(-1, N).tensor_split(2, dim=-1)
    delta = two.mean(-1) - one.mean(-1)
    mean = one.mean(-1) + delta * two.shape[-1] / N
    between = delta**2 * one.shape[-1] * two.shape[-1] / N
    within = sum(((part - part.mean(-1, keepdim=True)) ** 2).sum(-1).nan_to_num(0) for part in (one, two))
    rstd = 1 / torch.sqrt((within + between) / N + eps)
    y = (x.float().reshape(-1, N) - mean[:, None]) * rstd[:, None]
    return (y.reshape(x.shape) * weight + bias).to(x.dtype), mean, rstd


def test_rstd_of_an_infinite_variance_is_nan_or_zero():
    for special in ("inf", "-inf"):
        spec = replace(ROWS, special=special, special_in="x", special_at="last")
        assert findings(pairwise, spec) == set()
        assert ("nonfinite", "rstd") in findings(partial(changed_rstd, 0.5), spec)
    assert ("nonfinite", "rstd") in findings(partial(changed_rstd, 0.0), replace(spec, special="nan"))


def changed_rstd(value, x, weight, bias, eps, normalized_shape):
    y, mean, rstd = layernorm()(x, weight, bias, eps, normalized_shape)
    return y, mean, rstd.nan_to_num(value)


def test_where_a_sum_overflows_an_infinite_bias_may_give_nan():
    spec = replace(ROWS, log2_scale=127, special="inf", special_in="bias")
    assert findings(layernorm(), spec) == set()
    assert ("nonfinite", "y") in findings(changing(layernorm(), "bias", "infinite to NaN"), replace(spec, log2_scale=0))


# Runs that are made by hand.

NAN = float("nan")
TANH = f"{operator(lambda x, w, b: w * np.tanh(x) + b, name='tanh_of').name}_fwd"
LARGEST = f"{operator(lambda x: x / np.max(np.abs(x), axis=-1, keepdims=True), name='by_largest').name}_fwd"
SMALL = CaseSpec((3, 4), further=())


def true_run(op, **fields):
    return run_of(make.case(replace(SMALL, **fields), OPS[op], Contract()), Contract())


def with_got(run, **got):
    """The run with other values of its outputs; of all others it has none."""
    kept = {
        name: replace(run.outputs[name], got=np.full(run.outputs[name].shape, values)) for name, values in got.items()
    }
    return replace(run, outputs=kept)


def accused(run):
    """The outputs that are wrong, and how many elements."""
    with np.errstate(all="ignore"):
        return {name: int(wrong.sum()) for name, _, _, wrong in nonfinite._judged(run) if wrong.any()}


@pytest.mark.parametrize(("op", "applies"), [("layernorm_fwd", True), (TANH, True), (LARGEST, False)])
def test_an_operator_that_compares_may_pass_over_nan(op, applies):
    assert CHECKS["nonfinite"].applies(OPS[op]) == applies


@pytest.mark.parametrize(
    ("fields", "looks"),
    [
        ({"special": "nan"}, True),
        ({"special": "nan", "eps": 1.0}, True),
        ({"special": "nan", "eps": 0.0}, False),
        ({"eps": 0.0, "data": "zero"}, False),  # y is NaN, for another reason
        ({}, False),
    ],
)
def test_it_looks_where_a_special_value_makes_the_truth_no_number(fields, looks):
    assert CHECKS["nonfinite"].looks(true_run("layernorm_fwd", **fields)) == looks


def test_a_maximum_may_pass_over_nan():
    run = true_run("layernorm_fp8_fwd", special="nan")
    assert np.isnan(run.case.expected["amax"].value).all()
    assert CHECKS["nonfinite"].looks(with_got(run, y=NAN, amax=1.0))
    assert not CHECKS["nonfinite"].looks(with_got(run, amax=1.0))
    assert accused(with_got(run, amax=1.0)) == {}
    assert accused(with_got(run, y=1.0, amax=1.0)) == {"y": 4}


@pytest.mark.parametrize(
    ("op", "name", "special_in", "right"),
    [
        ("layernorm_fwd", "y", "bias", False),  # one last addition, which has one value
        ("layernorm_fwd", "y", "weight", True),
        ("groupnorm_silu_fwd", "y", "bias", True),
        ("layernorm_fp8_fwd", "y", "bias", True),
    ],
)
def test_where_an_infinity_may_become_nan(op, name, special_in, right):
    fields = {"special": "inf", "special_in": special_in, "num_groups": 1, "special_at": "last"}
    run = true_run(op, **fields)
    got = np.where(np.isfinite(run.outputs[name].got), run.outputs[name].got, NAN)
    assert (accused(with_got(run, **{name: got})) == {}) == right
    run = replace(run, case=replace(run.case, op=replace(run.case.op, user_defined=True)))
    assert accused(with_got(run, **{name: got})) == {}  # nothing is known of what a user's own operator adds


def test_the_finding_names_the_first_wrong_element_its_numbers_and_the_source():
    run = true_run("add_rmsnorm_bwd", special="nan", special_at="last")
    dx = np.full((3, 4), NAN)
    dx[2, 1:3] = 5.0, 6.0
    found = next(one for one in CHECKS["nonfinite"].function(with_got(run, dx=dx)) if one.output == "dx")
    assert (found.check, found.status, found.index, found.got) == ("nonfinite", "fail", (2, 1), 5.0)
    assert np.isnan(found.want)
    for words in ("dx[2, 1]", "expected nan", "nan in the last element of residual_out", "got 5", "2 elements"):
        assert words in found.message


QUANTIZED = {  # operator, whether its scales are numbers, or None for no scale: where y may be any number
    "a number beside a scale": ("rmsnorm | quantize(int8, group64)_fwd", True, []),
    "a scale tells it": ("rmsnorm | quantize(int8, group64)_fwd", False, [True] * 64 + [False] * 6),
    "8 bits without NaN": ("rmsnorm | quantize(int8)_fwd", None, [True] * 70),
    "8 bits with NaN": ("rmsnorm | quantize(e4m3fn)_fwd", None, []),
}


@pytest.mark.parametrize("name", QUANTIZED)
def test_what_tells_of_nan_in_a_quantized_row(name):
    op, known, told = QUANTIZED[name]
    run = true_run(op, shape=(1, 2, 70), special="nan")
    y, scales = np.full((1, 2, 70), 3.0), np.ones((2, 2))
    scales[0, 0] = 1.0 if known else NAN
    run = with_got(run, y=y) if known is None else with_got(run, y=y, y_scale=scales)
    expected = np.full((1, 2, 70), 3.0)
    expected[0, : 1 if known is not None else 2, np.flatnonzero(told)] = NAN
    got = nonfinite.dequantized(run, y)
    assert np.array_equal(got, expected, equal_nan=True)
    hidden = ~np.isfinite(run.case.expected["y"].value) & ~np.isnan(got)
    assert accused(with_got(run, y=y) if known is None else run).get("y", 0) == hidden.sum()


def expected(value, delta):
    return Expected(np.array([value]), np.array([delta]), "float32")


@pytest.mark.parametrize(
    ("grown", "limit"),
    [
        (nonfinite.GROWN + 3.0, NAN),
        (nonfinite.GROWN + 3.5, INF),
        (-nonfinite.GROWN - 3.0, NAN),
        (-nonfinite.GROWN - 3.5, -INF),
    ],
)
def test_an_infinity_has_a_sign_where_the_truth_grows_by_more_than_both_bounds(grown, limit):
    near, far = {"y": expected(5.0, 1.0), "dx": None}, {"y": expected(5.0 + grown, 2.0), "dx": None}
    limits = nonfinite._limits(near, far)
    assert [*limits] == ["y"]
    assert np.array_equal(limits["y"], [limit], equal_nan=True)
