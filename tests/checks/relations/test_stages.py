"""The stages of the rounding analysis: what a row shares cancels in sums, and two runs have more in common than one."""

from dataclasses import replace

import numpy as np
import pytest
from checking import ROWS, run_of
from counted import C1, C2, PLAIN, RHO, ROOT, case_of
from counted import X as UNIT
from counted import run_of as as_expected
from norms import layernorm, layernorm_bwd, rmsnorm

from verify_norm.checks.relations.stages import (
    Stages,
    apart_of,
    cotangent,
    gradient_apart,
    has_mean,
    norm,
    normalized,
    stage_inputs,
    stages,
    sum_error,
    summand,
    view_of,
    y_apart,
    z_apart,
)
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.spec import CaseSpec
from verify_norm.reference import layernorm as reference
from verify_norm.reference import rmsnorm as without_mean
from verify_norm.reference.arithmetic import Arithmetic
from verify_norm.reference.rounding import XhatError
from verify_norm.reference.stages.dropout import Dropout
from verify_norm.reference.stages.gate import Gate
from verify_norm.reference.stages.modulate import Modulate
from verify_norm.reference.view import rows


def test_the_sums_allow_less_than_their_elements_do():
    run = run_of(layernorm_bwd(), replace(ROWS, shape=(4, 1024)), "layernorm_bwd")
    s, delta, dy = stages(run), run.case.expected["dx"].delta, run.case.exact["dy"]
    for phi in (0 * s.norm.xhat + 1, s.norm.xhat):
        elements = (abs(phi) * delta).sum(1, keepdims=True)
        assert (sum_error(s, dy, None, delta, phi) < 0.75 * elements).all()


def test_statistics_and_largest_xhat_by_hand():
    """x = ±1 in turn: mean 0, variance 1; with eps = 3 rstd is ½, and x̂ is ±½ with the errors of a row beyond it."""
    run = run_of(layernorm(), CaseSpec((2, 64), data="alternating", eps=3.0, weight=False, bias=False))
    s = stages(run)
    x = run.case.exact["x"]
    np.testing.assert_allclose(s.norm.rstd.ravel(), 1 / np.sqrt(x.var(1) + 3.0))
    assert (s.largest >= np.abs(s.norm.xhat)).all()
    assert (s.largest <= np.abs(s.norm.xhat) + 1e-5).all()
    assert s.row_sum(np.ones(())).ravel().tolist() == [64.0, 64.0]


def test_rmsnorm_and_batchnorms_evaluation_have_no_mean_of_their_own():
    assert has_mean(run_of(layernorm()).case)
    assert not has_mean(run_of(rmsnorm(), op="rmsnorm_fwd").case)
    for training in (True, False):
        run = run_of(lambda x: x, CaseSpec((4, 3), training=training), "batchnorm_fwd")
        assert has_mean(run.case) == training


def test_batchnorms_evaluation_takes_one_value_a_channel():
    """Training does not."""
    run = run_of(lambda x: x, CaseSpec((1, 3), training=False, further=()), "batchnorm_fwd")
    assert view_of(run.case, run.case.exact["x"]).shape == (1, 3, 1)


def test_a_fused_sum_is_kept_as_the_contract_says():
    spec = CaseSpec((4, 64), "bfloat16")
    kept = {how: run_of(lambda x: x, spec, "add_rmsnorm_fwd", residual=how) for how in ("sum", "rounded")}
    exact = kept["sum"].case.exact
    h = exact["x"] + exact["residual"]
    assert (normalized(kept["sum"]) == h.astype(np.float32)).all()
    rounded = normalized(kept["rounded"])
    assert (np.abs(rounded - h) <= 2.0**-8 * np.abs(h)).all()
    assert (rounded != h).any()
    stream = run_of(lambda x: x, replace(spec, residual_dtype="float32"), "add_rmsnorm_fwd", residual="rounded")
    exact = stream.case.exact
    assert (normalized(stream) == (exact["x"] + exact["residual"]).astype(np.float32)).all()


@pytest.mark.parametrize("name", ["dx", "dweight", "dbias"])
def test_two_runs_are_less_apart_than_either_may_be_from_the_truth(name):
    run = run_of(layernorm_bwd(), replace(ROWS, offset=100.0), "layernorm_bwd")
    s, dy = stages(run), run.case.exact["dy"]
    apart = gradient_apart(s, name, *cotangent(s, dy)).ravel()
    assert (apart <= run.case.expected[name].delta.ravel() * (1 + 1e-12)).all()
    if name != "dbias":  # which has nothing to do with the mean
        assert np.median(apart) < 0.5 * np.median(run.case.expected[name].delta)


def test_a_root_taken_anew_costs_its_error_in_y():
    s = stages(run_of(layernorm()))
    assert (y_apart(s, 1e-3) > y_apart(s, 0.0)).all()
    plain = y_apart(s, 0.0)
    np.testing.assert_array_less(np.abs(y_apart(s, 1e-3) - plain), 2e-3 * np.abs(s.norm.weight) * s.largest + 1e-9)


U, T, V, N = 2.0**-24, 2.0**-60, 2.0**-8, 8
EXACT = Arithmetic(u=0.0, tiny=0.0, huge=1e30, variance="two_pass")
ROUNDS, FLUSHES, LLAMA = replace(EXACT, u=U), replace(EXACT, tiny=T), replace(EXACT, xhat_u=V)
ONES, X = np.ones((1, N)), np.tile([-1.0, 1.0], (1, N // 2))
QUIET = np.tile([-1.0, -1.0, 1.0, 1.0], (1, N // 4))  # neither a mean nor x̂ in it


def row(a, *, centred=True, weight=None, bias=None, largest=1.0, off=None, unit=0.0, **more):
    """The stages of a row of x̂ = ±1 whose x̂' has these errors."""
    z = {name: np.full((1, 1), more.pop(name, 0.0)) for name in ("shift", "factor", "magnitude", "floor")}
    z = XhatError(**z, unit=unit, off=off)
    weight, bias = (None if p is None else np.full(N, p) for p in (weight, bias))
    view = rows(X, None)
    n = reference.norm(view, X, weight, bias, 0.0) if centred else without_mean.norm(view, X, weight, 0.0, 0.0)
    return Stages(n, a, largest * np.abs(X), z, **more)


def summed(a, dy, phi, passed=None, delta=0.0, lost=0.0, **errors):
    """The bound on Σφ·dx of such a row."""
    return float(sum_error(row(a, **errors), dy, passed, np.full((1, N), delta), phi, lost=lost)[0, 0])


COARSE = replace(EXACT, u=2.0**-16)
NARROW, HALF = replace(EXACT, xhat_u=0.5), {"magnitude": 1.0, "unit": 0.5}


def rounded(a, *arguments, **errors):
    """What the roundings of `COARSE` add to a bound, as a multiple of N·u."""
    both = (summed(replace(a, u=u), *arguments, **errors) for u in (COARSE.u, 0.0))
    return float(np.subtract(*both)) / (N * COARSE.u)


SUMS = {  # each term of the bound alone, by data that the others do not meet
    "c2": (summed(ROUNDS, ONES, ONES) - summed(ROUNDS, ONES, QUIET), N * (7 + 5) * U),
    "c1": (summed(ROUNDS, ONES, X, magnitude=3.0) - summed(ROUNDS, ONES, QUIET, magnitude=3.0), N * 3 * 13 * U),
    "a shift meets c1": (summed(EXACT, X, ONES, shift=0.5), N * 0.5),
    "a factor meets c1, in c1 and in r": (summed(EXACT, X, X, factor=0.5), N * (0.5 + 0.5 * 1.5) * 1.5),
    "a factor of the row": (summed(EXACT, QUIET, QUIET, factor=0.5), N * 0.5),
    "r/n, g, and the last roundings": (summed(ROUNDS, QUIET, QUIET), N * (4 + 2 + 2) * U),
    "g, and the last roundings": (summed(ROUNDS, QUIET, X), N * (2 + 2) * U),
    "the last roundings of what dx is off by": (summed(ROUNDS, 0 * X, QUIET, delta=3.0), N * 2 * 3 * U),
    "g and c2 of an element": (summed(ROUNDS, ONES, QUIET), N * (2 + 2) * U),
    "g and x̂·c1 of an element": (summed(ROUNDS, X, QUIET, magnitude=1.0), N * (2 + 4) * U),
    "x̂ in x̂·c1": (summed(EXACT, X, QUIET, magnitude=3.0, unit=1e-4), N * 3e-4),
    "floors in x̂·c1, and in c1": (summed(EXACT, X, QUIET, floor=0.5), N * 0.5 * 1.5),
    "what dy is off by": (summed(EXACT, 0 * X, QUIET, lost=0.5), N * 0.5),
    "g in a narrow type": (summed(LLAMA, QUIET, X), N * V),
    "an addition to the terms": (summed(ROUNDS, ONES, QUIET, 0 * X) - summed(ROUNDS, ONES, QUIET), N * 2 * U),
    "an addition to x̂·c1": (summed(ROUNDS, X, QUIET, 0 * X) - summed(ROUNDS, X, QUIET), N * 2 * U),
    "an addition to what dx is off by": (
        summed(ROUNDS, 0 * X, QUIET, 0 * X, delta=3.0) - summed(ROUNDS, 0 * X, QUIET, delta=3.0),
        N * 3 * U,
    ),
    "roundings of what a narrow g makes 1.5 times as large": (
        rounded(NARROW, QUIET, X),
        2 * 1.5 + 2 * 0.5 + 0.5 * 4 + 2,  # of g, of what c2 is off by, of r/n, and the last ones
    ),
    "roundings of what a unit of x̂ makes 1.5 times as large": (
        rounded(EXACT, X, QUIET, **HALF),
        2 + 4 * 1.5 * 1.5 + 0.5 * 1.5 * 13 + 0.5 * 1.5 * 4,  # in C1 = 1.5, then of C1 itself, then of r/n
    ),
    "roundings of what c2 is off by": (rounded(EXACT, 0 * X, QUIET, lost=0.5), 2 * 0.5 + 2 * 0.5 + 4 * 0.5),
    "underflow": (summed(FLUSHES, 0 * X, QUIET), (N * (1 + 3) + 2 * N) * T),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_over_dx_is_off_by_what_its_derivation_counts(name):
    value, counted = SUMS[name]
    assert value == pytest.approx(counted, rel=0.01, abs=0.0)


def at(op, spec=PLAIN, contract=None, **values):
    return as_expected(case_of(spec, op, contract or Contract(), **values), contract or Contract())


GATE, SILU = np.full((4, 8), 2.0), 2 / (1 + np.exp(-2.0))
SPREAD = np.array([[1.0], [2.0], [3.0], [4.0]])


@pytest.mark.parametrize(
    ("op", "values", "h"),
    [
        ("rmsnorm_fwd", {"x": SPREAD * UNIT}, SPREAD * UNIT),
        ("gate_rmsnorm_bwd", {"x": SPREAD * UNIT, "gate": GATE}, SILU * SPREAD * UNIT),
        ("add_rmsnorm_fwd", {"x": SPREAD * UNIT, "residual": GATE}, SPREAD * UNIT + 2),
        ("add_layernorm_bwd", {"residual_out": SPREAD * UNIT}, SPREAD * UNIT),
        ("dropout_add_rmsnorm_fwd", {"mask": 0 * UNIT, "residual": GATE * UNIT}, 2 * UNIT),
    ],
)
def test_what_is_normalized_is_x_or_what_the_operator_makes_of_it_first(op, values, h):
    run = at(op, **values)
    np.testing.assert_allclose(normalized(run), h, rtol=1e-12)
    np.testing.assert_allclose(norm(run).x, h, rtol=1e-12)


def test_the_exact_norm_has_the_weight_bias_eps_and_offset_of_the_case():
    spec = replace(PLAIN, weight=True, bias=True, eps=3.0, weight_offset=2.0)
    weight, bias = np.arange(8.0), 5 - np.arange(8.0)
    for op, centred, offset in (
        ("layernorm_fwd", True, 2.0),
        ("add_layernorm_fwd", True, 2.0),
        ("rmsnorm_fwd", False, 2.0),
        ("add_rmsnorm_fwd", False, 2.0),
    ):
        x = UNIT + 1 if centred else UNIT
        n = norm(at(op, spec, x=x, weight=weight, bias=bias, residual=0 * UNIT))
        assert n.centred == centred
        assert (n.weight.ravel() == weight + offset).all()
        assert n.offset == (offset != 0)
        assert n.bias is None if not centred else (n.bias.ravel() == bias).all()
        np.testing.assert_allclose(n.rstd, 0.5)
        np.testing.assert_allclose(n.xhat, UNIT / 2)
    assert norm(at("rmsnorm_fwd", PLAIN)).weight is None


def test_channels_and_groups_are_normalized_together():
    x = np.arange(24.0).reshape(2, 4, 3)
    batch = norm(at("batchnorm_fwd", CaseSpec((2, 4, 3)), x=x, weight=np.ones(4), bias=np.zeros(4)))
    np.testing.assert_allclose(batch.mean.ravel(), x.mean((0, 2)))
    group = norm(at("groupnorm_fwd", CaseSpec((2, 4, 3), num_groups=2), x=x, weight=np.ones(4), bias=np.zeros(4)))
    np.testing.assert_allclose(group.mean.ravel(), x.reshape(4, 6).mean(1))
    last = norm(at("layernorm_fwd", CaseSpec((2, 4, 3), normalized_ndim=2), x=x, weight=np.ones((4, 3)), bias=x[0] * 0))
    np.testing.assert_allclose(last.mean.ravel(), x.mean((1, 2)))


@pytest.mark.parametrize(
    ("op", "names"),
    [
        ("layernorm_fwd", set()),
        ("gated_rmsnorm_fwd", {"gate"}),
        ("modulate_layernorm_bwd", {"scale", "shift"}),
        ("dropout_add_rmsnorm_fwd", {"mask", "dropout_p"}),
    ],
)
def test_stages_have_their_own_inputs(op, names):
    run = at(op)
    own = stage_inputs(run)
    assert set(own) == names
    for name, value in own.items():
        assert value is run.case.exact[name] if name in run.case.exact else value == run.case.spec.dropout_p
    assert stages(run).given.keys() == names


@pytest.mark.parametrize(
    ("contract", "types", "promised"),
    [
        ({}, {}, {"rounded": None, "largest": 448.0}),
        ({"output": "float8_e5m2"}, {}, {"largest": 57344.0}),
        ({"output": "promoted"}, {"weight_dtype": "float16"}, {"largest": 448.0}),
        ({"output": "promoted"}, {"weight_dtype": "float32"}, {"largest": FORMATS["float32"].largest}),
        ({"output": "promoted"}, {"residual_dtype": "float32"}, {"largest": FORMATS["float32"].largest}),
        ({"saturate": "overflow"}, {}, {"largest": np.inf}),
        ({"residual": "rounded"}, {}, {"rounded": FORMATS["float16"].round}),
        ({"residual": "rounded"}, {"residual_dtype": "float32"}, {"rounded": FORMATS["float32"].round}),
    ],
)
def test_a_stage_that_quantizes_is_told_what_the_contract_says_of_it(contract, types, promised):
    spec = CaseSpec((4, 256), "float16", **types)
    values = {"x": np.ones((4, 256)), "weight": np.ones(256)}
    own = stage_inputs(at("add_rmsnorm_quant_group_fwd", spec, Contract(**contract), **values))
    assert {name: own[name] for name in promised} == promised


@pytest.mark.parametrize(("dropout_p", "factor"), [(0.0, 1.0), (0.5, 2.0)])
def test_what_residual_is_added_to_is_what_a_dropout_leaves(dropout_p, factor):
    mask = np.tile([1.0, 0.0, 0.0, 1.0], (4, 2))
    case = case_of(replace(PLAIN, dropout_p=dropout_p), "dropout_add_rmsnorm_fwd", mask=mask)
    assert (summand(case) == factor * UNIT * mask).all()
    assert (summand(case_of(PLAIN, "add_rmsnorm_fwd")) == UNIT).all()


def test_more_of_a_sum_may_be_kept_than_is_promised():
    """A rounding of h, and one of the largest h, each of which x̂ feels twice; rows have x = ±¼, and one has ±¾."""
    x = UNIT / 4 * np.array([[1.0], [3.0], [1.0], [1.0]])
    spec, u = replace(PLAIN, dtype="bfloat16"), 2.0**-8
    s = stages(as_expected(case_of(spec, "add_rmsnorm_fwd", x=x, residual=0 * x)))
    plain = stages(as_expected(case_of(spec, "rmsnorm_fwd", x=x)))
    for more in (s.largest - plain.largest, s.z.magnitude - plain.z.magnitude):
        np.testing.assert_allclose(more[:, 0], [2 * (1 + 3) * u, 2 * (3 + 3) * u / 3, 8 * u, 8 * u], rtol=1e-4)
    stream = case_of(replace(spec, residual_dtype="float32"), "add_rmsnorm_fwd", x=x, residual=0 * x)
    more = stages(as_expected(stream)).largest - plain.largest  # the sum has the type of residual
    assert (more > 0).all()
    assert (more < 2.0**-20).all()


def test_the_largest_xhat_has_the_errors_of_its_row_and_those_of_what_is_normalized():
    """Of rows of ±1: half of the roundings of 8 squares, and those of a root; and what a gate makes x off by."""
    plain = stages(as_expected(case_of(PLAIN, "rmsnorm_fwd")))
    np.testing.assert_allclose(plain.largest - 1, (C1 / 2 + ROOT) * U, rtol=0.01)
    centred = stages(as_expected(case_of(PLAIN, "layernorm_fwd")))
    np.testing.assert_allclose(centred.largest - 1, (RHO + C2) * U, rtol=0.01)
    gated = stages(as_expected(case_of(PLAIN, "gate_rmsnorm_fwd", gate=UNIT)))
    assert (gated.z.off > 0).all()
    np.testing.assert_allclose(gated.largest - np.abs(gated.norm.xhat) * (1 + gated.z.factor), gated.z.off, rtol=1e-6)


def test_a_scale_belongs_to_a_quantized_y_alone():
    assert stages(at("layernorm_fp8_fwd", replace(PLAIN, scale=2.0))).scale.tolist() == [2.0]
    assert stages(at("modulate_layernorm_fwd", scale=UNIT)).scale is None  # that of a modulation


def test_a_dropout_before_a_sum_may_have_x_in_any_shape():
    s = stages(as_expected(case_of(CaseSpec((2, 2, 8)), "dropout_add_rmsnorm_fwd", x=UNIT.reshape(2, 2, 8))))
    assert s.largest.shape == (4, 8)


def test_the_stages_of_a_sum_of_nothing_are_nothing():
    s = stages(as_expected(case_of(replace(PLAIN, shape=(0, 8)), "add_rmsnorm_fwd", x=np.zeros((0, 8)))))
    assert s.largest.shape == (0, 8)


def test_a_sum_is_off_by_what_the_dropout_before_it_is():
    """Of p = ½: 6 roundings and one of p, beside one of h, and one of the largest h."""
    spec = replace(PLAIN, dropout_p=0.5)
    case = case_of(spec, "dropout_add_rmsnorm_fwd", x=UNIT / 2, mask=np.ones(UNIT.shape), residual=0 * UNIT)
    s, plain = stages(as_expected(case)), stages(as_expected(case_of(PLAIN, "rmsnorm_fwd")))
    np.testing.assert_allclose(s.largest - plain.largest, 2 * (2 + 7) * U, rtol=0.01)


SHIFTED = {"shift": 7.0, "factor": 9.0, "off": np.full((1, N), 11.0)}  # which two runs share
ERRORS = {"largest": 3.0, "magnitude": 5.0, "floor": 0.125}


def test_what_two_runs_share_of_xhat_drops_out():
    common = row(EXACT, unit=0.25, **ERRORS, **SHIFTED).common(0.5)
    assert (common.shift, common.factor, common.off) == (0.0, 0.5, None)
    assert (common.magnitude, common.floor, common.unit) == (5.0, 0.125, 0.25)


def test_y_is_apart_by_what_the_largest_xhat_makes_of_a_factor_and_roundings():
    s = row(EXACT, weight=-2.0, bias=2.0, unit=0.25, **ERRORS, **SHIFTED)
    for function in (y_apart, z_apart):
        np.testing.assert_allclose(function(s, 0.5), 2 * (3 * 0.5 + 5 * 0.25 + 0.125))
    np.testing.assert_allclose(y_apart(replace(s, scale=np.full(1, 3.0)), 0.5), 3 * 2 * 2.875)


def test_a_sum_with_a_bias_is_rounded_where_all_its_terms_have_one_sign():
    """|w|·3 + |b| = 8, although y is 0 or −4."""
    s = row(COARSE, weight=-2.0, bias=-2.0, largest=3.0)
    np.testing.assert_allclose(z_apart(s, 0.0), 8 * COARSE.u)


def test_a_product_with_a_scale_is_rounded_at_the_terms_of_y():
    """y is 0 or 4, and b is 2: its terms are at most 4 or 8; without a bias they are |y|. Three roundings of each."""
    scale = np.full(1, 3.0)
    scaled = row(COARSE, weight=-2.0, bias=2.0, scale=scale)
    more = y_apart(scaled, 0.0) - 3 * z_apart(scaled, 0.0)
    np.testing.assert_allclose(more, 3 * 3 * COARSE.u * np.where(X > 0, 4, 8), rtol=1e-3)
    plain = row(COARSE, weight=-2.0, scale=scale)
    np.testing.assert_allclose(y_apart(plain, 0.0) - 3 * z_apart(plain, 0.0), 3 * 3 * COARSE.u * 2, rtol=1e-3)


def test_sums_over_rows_are_apart_by_what_dy_is_off_by():
    s = row(EXACT, weight=1.0, bias=0.0, **ERRORS)
    np.testing.assert_allclose(gradient_apart(s, "dbias", 2 * X, 0.5), 0.5)
    np.testing.assert_allclose(gradient_apart(s, "dweight", 2 * X, 0.5, factor=0.25), 2.5 * (0.75 + 0.125) + 0.5 * 5)


def test_dx_is_apart_by_what_dy_is_off_by():
    """Of its own, in c2, and in c1 by 5 times as much, which meets the largest x̂."""
    s = row(EXACT, largest=3.0, magnitude=5.0)
    np.testing.assert_allclose(gradient_apart(s, "dx", X, 0.5), 0.5 + 0.5 + 3 * (5 * 0.5))


MEANS = {  # whether there is a mean, dy, and the largest that c2 and c1 may be where ρ = ½ and S = ¼
    "LayerNorm": (True, ONES + X, 1.0, 1.5 + 0.25),
    "RMSNorm": (False, 2 * X, 0.0, 2 * 1.5),
}


@pytest.mark.parametrize("name", MEANS)
def test_dx_is_apart_by_a_factor_of_all_that_meets_it(name):
    """x̂·c1 has it three times, dx once."""
    centred, dy, c2, c1 = MEANS[name]
    s, f = row(EXACT, centred=centred, largest=3.0, factor=0.5, shift=0.25), 0.125
    terms = 1.5 * (np.abs(dy) + c2 + 3 * c1)
    np.testing.assert_allclose(gradient_apart(s, "dx", dy, factor=f), 3 * c1 * ((1 + f) ** 2 - 1) * (1 + f) + terms * f)


def test_an_addition_rounds_the_terms_of_dx_all_that_they_are_off_by_and_what_is_added():
    centred, dy, c2, c1 = MEANS["LayerNorm"]
    s, u = row(COARSE, centred=centred, largest=3.0, factor=0.5, shift=0.25), COARSE.u
    alone, passed = gradient_apart(s, "dx", dy, 100.0), np.full((1, 2, N // 2), 7.0)
    more = gradient_apart(s, "dx", dy, 100.0, passed) - alone
    np.testing.assert_allclose(more, u * (1.5 * (dy + c2 + 3 * c1) + alone + 3 * 7.0), rtol=1e-3)


def test_a_gate_before_the_norm_multiplies_what_dx_is_apart_by():
    """σ(0) = ½ and σ'(0) = ¼ meet it and, in dgate, x = ±6; dweight does not."""
    before, given, dy, f = Gate("sigmoid"), {"gate": 0 * X}, ONES + X, 0.125
    s = row(EXACT, weight=1.0, **ERRORS, before=before, x=6 * X, given=given)
    apart = gradient_apart(s, "dx", dy, factor=f)
    np.testing.assert_allclose(apart_of(s, "dx", dy, None, f), apart / 2)
    np.testing.assert_allclose(apart_of(s, "dgate", dy, None, f), apart * 6 / 4)
    for name, alone in (("dweight", s), ("dx", replace(s, before=None))):
        np.testing.assert_allclose(apart_of(alone, name, dy, None, f), gradient_apart(s, name, dy, factor=f))


def test_a_dropout_before_the_norm_rounds_the_whole_gradient_that_reaches_it():
    """dy is doubled by a modulation, passes the norm as it is, and 3 is added: 5, rounded six times."""
    given = {"scale": np.ones(N), "shift": np.zeros(N), "mask": ONES, "dropout_p": 0.0}
    passed, f = 3 * QUIET, 0.125
    s = row(COARSE, **ERRORS, stages=(Modulate(),), before=Dropout(), x=X, given=given)
    apart = gradient_apart(s, "dx", *cotangent(s, QUIET), passed, f)
    found = apart_of(s, "dx", QUIET, passed, f)
    np.testing.assert_allclose(found - apart, 6 * COARSE.u * (5 + apart), rtol=2e-4)
    assert (apart > gradient_apart(s, "dx", cotangent(s, QUIET)[0], 0.0, passed, f)).all()


def test_what_dx_is_apart_by_behind_a_stage_has_the_shape_of_x():
    case = case_of(CaseSpec((2, 3, 8)), "gate_rmsnorm_bwd", x=np.tile(X, (2, 3, 1)), dy=np.tile(QUIET, (2, 3, 1)))
    for name in ("dx", "dgate"):
        found = apart_of(stages(as_expected(case)), name, case.exact["dy"], None)
        assert found.shape == (2, 3, 8)
        assert (found <= case.expected[name].delta).all()


def test_a_dropout_passes_the_gradient_of_a_sum_on_without_its_own_x():
    s = stages(at("dropout_add_rmsnorm_bwd", mask=np.ones(UNIT.shape), dresidual_out=0 * UNIT))
    dy, passed = np.tile(QUIET, (4, 1)), 0 * UNIT
    assert (apart_of(s, "dx", dy, passed) > gradient_apart(s, "dx", dy, 0.0, passed)).all()


@pytest.mark.parametrize("op", ["gated_rmsnorm_bwd", "modulate_layernorm_bwd"])
def test_gradients_of_a_stages_own_inputs_have_all_of_their_bound(op):
    case = case_of(CaseSpec((2, 3, 8)), op, x=np.tile(X, (2, 3, 1)), dy=np.tile(QUIET, (2, 3, 1)))
    s = stages(as_expected(case))
    for name in {"gated_rmsnorm_bwd": ("dgate",), "modulate_layernorm_bwd": ("dscale", "dshift")}[op]:
        bound = case.expected[name].delta
        np.testing.assert_allclose(apart_of(s, name, case.exact["dy"], None).reshape(bound.shape), bound, rtol=1e-9)
