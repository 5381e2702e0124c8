"""Sums of errors: what they leave out, what they are for a right kernel, and the bound on sums of random terms."""

import doctest
from dataclasses import replace

import counted
import numpy as np
import pytest
import torch
from checking import run_of
from counted import QUIET, SPEC, TWO_PASS, N, X, case_of

from verify_norm.cases import make
from verify_norm.checks.relations import moments as module
from verify_norm.checks.relations.moments import L, Moments, bernstein, moments
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.run import Expected
from verify_norm.core.spec import CaseSpec
from verify_norm.running.execute import execute


def test_values_like_ties_are_not_judged():
    """y = x̂·w + b where x̂·w vanishes beside b, and b lies between two numbers of the output's type."""
    spec = CaseSpec((64, 64), "bfloat16", weight_dtype="float32", eps=1e30, weight=False, seed=2)
    drawn = make.exact_inputs(spec, OPS["layernorm_fwd"])
    middle = 1.0 + 2.0**-8  # a tie of bfloat16
    case = make.build(spec, OPS["layernorm_fwd"], Contract(), "cpu", drawn | {"bias": np.full(64, middle)}, truth=True)

    def nudged(x, bias):
        return torch.full(x.shape, 1 + 2.0**-7).to(x.dtype)

    run = execute(Kernel("k", "layernorm_fwd", run=nudged), case)
    assert run.outputs["y"].ratio.max() <= 1
    assert moments(run) == {}


def test_what_is_exact_is_left_out():
    """Elements on a grid of 1/4096 ulp are no random numbers: half of them, or all."""
    run = run_of(lambda x: x, CaseSpec((8, 512)))
    stages, expected = module.stages.stages(run), run.case.expected["y"]
    exact = FORMATS["float32"].round(expected.value)
    for share, count in ((0, 8), (4, 4), (8, 0)):
        value = np.where(np.arange(8)[:, None] < share, exact, expected.value)
        one = module._of(run, stages, "y", run.outputs["y"], replace(expected, value=value))
        assert (one.count if one else 0) == pytest.approx(count * 512, rel=0.01)


def test_correct_rounding_of_the_truth_has_no_excess_and_no_bias():
    def exact(x, weight, bias, eps):
        r = x.double()
        xhat = (r - r.mean(1, keepdim=True)) / (r.var(1, correction=0, keepdim=True) + eps).sqrt()
        y = (xhat * weight.double() + bias.double()).numpy()
        return torch.from_numpy(FORMATS["bfloat16"].round(y)).to(x.dtype)

    run = run_of(exact, CaseSpec((32, 4096), "bfloat16"))
    one = moments(run)["y"]
    assert abs(one.signed) < 1
    assert 0 <= one.excess < 1
    assert one.count > 0.9 * 32 * 4096


@pytest.mark.parametrize("p", [0.5, 0.01, 1e-4])
def test_bernstein_bounds_what_it_is_to_bound(p):
    """Of 2000 sums of 10,000 signs that are 0 but with probability p, none comes near."""
    rng = np.random.default_rng(0)
    sums = rng.binomial(10_000, p / 2, 2000) - rng.binomial(10_000, p / 2, 2000)
    allowed = bernstein(10_000 * p, 1.0)
    assert np.abs(sums).max() < allowed < np.sqrt(2 * L * 10_000 * p) + L


def test_doctests():
    assert doctest.testmod(module).failed == 0


def test_sums_merge_and_the_largest_element_stays_the_largest():
    one = Moments("y", "float32", count=3, weight=2.0, signed=-1.0, systematic=4.0, alike=0.5, largest=2.0)
    both = one.merge(replace(one, count=5, signed=3.0, alike=0.25, largest=7.0))
    assert (both.output, both.count, both.weight, both.signed, both.systematic) == ("y", 8, 4.0, 2.0, 8.0)
    assert (both.alike, both.largest) == (0.5, 7.0)
    assert replace(one, smallest=(1.0, 4.0)).merge(replace(one, smallest=(2.0, 3.0))).smallest == (1.0, 3.0)


def test_what_averages_out_counts_by_its_root_and_what_has_one_sign_in_full():
    averaging = Moments("y", "float32", averaging=1.0)
    assert replace(averaging, averaging=100.0).bias_allowed == pytest.approx(10 * averaging.bias_allowed)
    assert Moments("y", "float32", systematic=7.0).bias_allowed == 7.0
    assert Moments("y", "float32", explained=5.0).excess_allowed == 5.0


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, True),
        ({"data": "integers"}, False),
        ({"eps": 0.0}, False),
        ({"shape": (4, 15)}, False),
        ({"dy_layout": "scalar"}, False),
        ({"special": "inf"}, False),
        ({"shape": (0, 64)}, False),
        ({"shape": (4, 16)}, True),
        ({"x_layout": "expanded"}, False),
        ({"weight_layout": "expanded"}, True),
        ({"dy_data": "one"}, False),
        ({"alias": "x:dy"}, False),
        ({"data": "heavy"}, True),
    ],
)
def test_which_data_are_random(fields, expected):
    spec = replace(CaseSpec((4, 64)), **fields)
    assert module.random(make.case(spec, OPS["layernorm_bwd"], Contract())) == expected


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 116])
def test_the_last_rounding_of_a_product_of_narrow_numbers_is_no_bias_of_the_kernel(seed):
    """x is far from 0, so x̂ takes few values: rounding w·x̂ makes |y| smaller by 0.01 ULP in the mean."""

    def rmsnorm_fwd(x, weight, eps):
        wide = x.double()
        xhat = (wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + eps)).to(x.dtype)
        return xhat * weight

    def towards_zero(x, weight, eps):
        y = rmsnorm_fwd(x, weight, eps)
        return torch.where(torch.arange(y.numel()).reshape(y.shape) % 50 == 0, torch.nextafter(y, 0 * y), y)

    spec, contract = CaseSpec(shape=(3252, 254), dtype="bfloat16", offset=10.0, seed=seed), Contract(xhat="x")
    case = make.case(spec, OPS["rmsnorm_fwd"], contract)
    right, wrong = (
        moments(execute(Kernel("k", "rmsnorm_fwd", run=run, contract=contract), case))["y"]
        for run in (rmsnorm_fwd, towards_zero)
    )
    assert abs(right.signed) > 0.9 * right.systematic
    assert abs(right.signed) < 0.6 * right.bias_allowed
    assert abs(wrong.signed) > wrong.bias_allowed


def test_batchnorms_evaluation_has_no_statistics_whose_errors_are_independent():
    for training in (True, False):
        case = make.case(CaseSpec((8, 4), training=training), OPS["batchnorm_fwd"], Contract())
        assert module.independent(case) == training


TIES = np.array([0.25, -0.25, 0.0]), np.array([8.0, 16.0, 64.0]), np.array([1.0, 2.0, 4.0])
# Upwards ties are met at ¾, ¼ and ½ ulp, hence by 3/32, 1/64 and 1/128 of each; downwards at ¼, ¾ and ½.


@pytest.mark.parametrize(
    ("sign", "fields", "smallest"),
    [
        (1, {"systematic": 3.9}, 1 / 128),  # the bias grows by 4, 2, and 1
        (1, {"systematic": 4.0}, 1 / 64),
        (1, {"systematic": 6.5}, 3 / 32),
        (1, {"systematic": 6.5, "signed": 1.0}, 1 / 64),
        (1, {"systematic": 3.9, "signed": -1.0}, 1 / 64),
        (-1, {"systematic": 4.0}, 1 / 32),
        (-1, {"systematic": 5.5}, 3 / 64),
        (-1, {"systematic": 3.9, "signed": 1.0}, 1 / 32),
        (1, {"explained": 3.9}, 1 / 128),  # the excess by 4, 2·½, and 1
        (1, {"explained": 4.0}, 1 / 64),
        (1, {"explained": 4.9}, 1 / 64),
        (1, {"explained": 5.0}, 3 / 32),
        (1, {"explained": 4.9, "excess": 1.0}, 1 / 128),
        (1, {"explained": 6.2}, 100 / 80),  # which is all that they gain
        (-1, {"explained": 4.4}, 1 / 32),
        (-1, {"explained": 4.5}, 3 / 64),
        (1, {"systematic": 6.5, "explained": 4.5}, 1 / 64),
        (1, {"systematic": 30.0, "signed": 10.0}, 20 / 80),  # farther than an ulp: by e·Σω·size
        (-1, {"systematic": 30.0, "signed": 10.0}, 40 / 80),
        (1, {"systematic": 8.0, "weight": 56.0}, 56 / 80),
        (1, {"systematic": 5.0, "size": 1000.0}, 8 / 1000),
    ],
)
def test_a_factor_shows_where_enough_elements_are_beyond_their_tie(sign, fields, smallest):
    one = Moments("y", "float32", **({"size": 80.0, "systematic": 100.0, "explained": 100.0, "weight": 8.0} | fields))
    assert module._smallest(one, sign, *TIES) == smallest


ONES, HALF = np.ones((4, N)), 2.0**-11  # half an ulp of float16 above 1


def known_together(op, name, spec=SPEC):
    """Whether what the errors of a row share is known."""
    run = counted.run_of(make.case(spec, OPS[op], TWO_PASS))
    expected = run.case.expected[name]
    phi = np.ones(expected.value.shape)
    systematic, averaging = module._together(run, module.stages.stages(run), name, phi, expected)
    assert averaging == 0
    return bool(np.isfinite(systematic))


@pytest.mark.parametrize(
    ("op", "name", "known"),
    [
        ("layernorm_fwd", "y", True),
        ("layernorm_bwd", "dx", True),
        ("layernorm_bwd", "dweight", True),
        ("layernorm_bwd", "dbias", True),
        ("add_layernorm_bwd", "dx", True),
        ("dropout_add_layernorm_bwd", "dresidual", True),
        ("dropout_add_layernorm_bwd", "dweight", True),
        ("dropout_add_layernorm_bwd", "dx", False),
        ("add_layernorm_fwd", "y", False),
        ("gated_rmsnorm_fwd", "y", False),
        ("batchnorm_bwd", "dx", False),
    ],
)
def test_what_a_row_shares_is_known_of_norms_alone(op, name, known):
    assert known_together(op, name) == known


def together(op, name, shape, **fields):
    """What Σφ·error may be for φ = 1 and x = ±1, in this shape."""
    spec, tail = replace(SPEC, shape=shape, **fields), shape[-fields.get("normalized_ndim", 1) :]
    values = {"x": X.reshape(shape), "dy": X.reshape(shape), "weight": np.ones(tail), "bias": np.zeros(tail)}
    run = counted.run_of(case_of(spec, op, **values))
    expected = run.case.expected[name]
    return module._together(run, module.stages.stages(run), name, np.ones(expected.value.shape), expected)


@pytest.mark.parametrize(
    ("op", "name"), [("layernorm_fwd", "y"), *(("layernorm_bwd", name) for name in ("dx", "dweight", "dbias"))]
)
def test_what_a_row_shares_hangs_on_no_shape(op, name):
    flat = together(op, name, (4, N))
    assert together(op, name, (2, 2, N)) == pytest.approx(flat)
    assert together(op, name, (4, 2, N // 2), normalized_ndim=2) == pytest.approx(flat)


@pytest.mark.parametrize("shape", [(4, N), (2, 2, N)])
def test_what_a_fused_addition_adds_to_dx_is_rounded_three_times(shape):
    found = []
    for passed in (1000, 0):
        values = {"residual_out": X.reshape(shape), "dy": QUIET.reshape(shape)}
        spec = replace(SPEC, shape=shape)
        run = counted.run_of(case_of(spec, "add_layernorm_bwd", dresidual_out=passed + 0 * X.reshape(shape), **values))
        expected = replace(run.case.expected["dx"], delta=np.zeros(shape))
        found.append(module._together(run, module.stages.stages(run), "dx", np.ones(shape), expected)[0])
    assert found[0] - found[1] == pytest.approx(32 * 3 * 1000 * 2.0**-24, rel=1e-3)


def test_the_last_roundings_of_dx_count_where_an_element_does():
    """Each is off by 1 beside dx, and counts twice, but for the first element: it is not judged."""
    phi, found = 2 * ONES, []
    phi[0, 0] = 0
    run = counted.run_of(case_of(SPEC, "layernorm_bwd"))
    for delta in (1.0, 0.0):
        off = np.where(phi == 0, np.inf, delta)
        expected = replace(run.case.expected["dx"], delta=off)
        found.append(module._together(run, module.stages.stages(run), "dx", phi, expected)[0])
    assert found[0] - found[1] == pytest.approx(31 * 2 * 2 * 2.0**-24, rel=1e-3)


def test_a_sum_of_dy_has_no_share_of_a_row():
    """Of each of 8 columns 4 terms of 1, in three roundings."""
    assert together("layernorm_bwd", "dbias", (4, N)) == pytest.approx((N * 4 * 3 * 2.0**-24, 0.0))


def rounding_xhat(op, name, phi, dy=QUIET, x=X, eps=1e-12, **contract):
    """What roundings of x̂ add to what Σφ·error may be with one sign, and Σc² of what of them averages out."""
    found = []
    for fields in (contract, {}):
        kept = replace(TWO_PASS, **fields)
        run = counted.run_of(case_of(replace(SPEC, eps=eps), op, kept, x=x, dy=dy), kept)
        s = module.stages.stages(module._under(run, xhat=None))
        found.append(module._together(run, s, name, phi, run.case.expected[name]))
    (one, averaging), (other, nothing) = found
    assert nothing == 0
    return one - other, averaging


AVERAGES = {  # output, φ, dy, x: how many roundings each of 32 elements has, of one |x̂| and hence alike
    "x̂ in y": ("layernorm_fwd", "y", ONES, QUIET, X, 1),
    "x̂ in y along φ": ("layernorm_fwd", "y", 3 * X, QUIET, X, 3),
    "x̂ in dweight": ("layernorm_bwd", "dweight", ONES[:1], 3 * X, X, 3),
    "g, and its mean": ("layernorm_bwd", "dx", ONES, QUIET, X, 1 + 1),
    "x̂·c1 too": ("layernorm_bwd", "dx", ONES, X, X, 1 + 1 + 1),
    "g, and c1 twice": ("layernorm_bwd", "dx", X, QUIET, X, 1 + 1 + 1),
    "all of them by r": ("layernorm_bwd", "dx", ONES, 3 * QUIET, X / 2, 2 * 3 * 2),
}


@pytest.mark.parametrize("name", AVERAGES)
def test_roundings_of_xhat_average_out_but_in_elements_that_are_alike(name):
    op, output, phi, dy, x, times = AVERAGES[name]
    averaging = rounding_xhat(op, output, phi, dy, x, xhat="float16")[1]
    assert averaging == pytest.approx((32 * times * HALF) ** 2, rel=1e-3)
    assert rounding_xhat(op, output, phi, dy, x, xhat="float32") == (0.0, 0.0)


def test_a_subnormal_xhat_loses_half_of_the_smallest_number():
    """Of 2⁻¹⁴ the rounding is 2⁻²⁵, which is what is lost below it, too; other narrow types lose nothing of x̂."""
    _, averaging = rounding_xhat("rmsnorm_fwd", "y", ONES, x=X * 2.0**-14, eps=1.0, xhat="float16")
    assert averaging == pytest.approx((32 * 2 * 2.0**-25) ** 2, rel=1e-3)
    assert rounding_xhat("layernorm_fwd", "y", ONES, stats="float16")[1] == 0


LOST = 2.0**-13  # what x̂ = 1 − 2⁻¹³ is off by in float16, where eps is 2⁻¹², and what 1 + 2⁻¹³ is
ALIKE = {  # output, φ and dy: how often each of 32 elements loses that
    "x̂ in y": ("layernorm_fwd", "y", X, QUIET, 1),
    "x̂ in dweight": ("layernorm_bwd", "dweight", ONES[:1], X, 1),
    "x̂·c1, and x̂ in c1": ("layernorm_bwd", "dx", X, X, 2),
    "g": ("layernorm_bwd", "dx", QUIET, (1 + LOST) * QUIET, 1),
    "g and its mean": ("layernorm_bwd", "dx", ONES, (1 + LOST) * ONES, 0),
    "g without a mean": ("rmsnorm_bwd", "dx", ONES, (1 + LOST) * ONES, 1),
}


@pytest.mark.parametrize("name", ALIKE)
def test_what_nearly_equal_xhat_lose_alike_has_one_sign(name):
    op, output, phi, dy, times = ALIKE[name]
    systematic, _ = rounding_xhat(op, output, phi, dy, eps=2.0**-12, xhat="float16")
    assert systematic == pytest.approx(32 * times * LOST, rel=2e-3, abs=1e-6)


NARROW = replace(TWO_PASS, partials="float16")


def with_rows(contract, dy=QUIET, op="layernorm_bwd"):
    """A run whose rows have x̂ = ±1, with the other sign in every second one."""
    signs = np.array([[1.0], [-1.0], [1.0], [-1.0]])
    run = counted.run_of(case_of(SPEC, op, contract, x=X * signs, dy=dy), contract)
    return run, module.stages.stages(run)


def test_narrow_partial_sums_add_up_what_each_of_them_is_rounded_by():
    """Of 4 terms of 1, and a sum of 4 or, in dweight, of 0: R·u²·(4 + the sum's square)."""
    u = 2.0**-11
    run = with_rows(NARROW)
    for name, square in (("dbias", 16), ("dweight", 0)):
        np.testing.assert_allclose(module._partial(*run, name, (N,)), 4 * u * u * (4 + square), rtol=1e-5)
        assert (module._partial(*with_rows(NARROW, 0 * QUIET), name, (N,)) == 4 * 4 * 2.0**-50).all()
        assert not module._partial(*with_rows(TWO_PASS), name, (N,)).any()
    assert not module._partial(*run, "dx", (4, N)).any()
    assert not module._partial(*with_rows(NARROW, op="layernorm_fwd"), "y", (4, N)).any()


def test_what_narrow_partial_sums_are_off_by_has_the_shape_of_the_output():
    case = make.case(CaseSpec((2, 3, 4, 5), normalized_ndim=2), OPS["layernorm_bwd"], NARROW)
    run = counted.run_of(case, NARROW)
    s = module.stages.stages(run)
    wide = make.case(case.spec, OPS["layernorm_bwd"], TWO_PASS)
    for name in ("dweight", "dbias"):
        partial, without = module._partial(run, s, name, (4, 5)), module._without(run, name, (4, 5))
        assert partial.shape == without.shape == (4, 5)
        np.testing.assert_allclose(without, wide.expected[name].delta, rtol=1e-9)


ULP = np.array([2.0**-7, 2.0**-7, 2.0**-8, 2.0**-6])  # of bfloat16
BELOW = np.array([1.5, 1.5, 0.75, -2.5])
OMEGA = np.array([1.0, 1.0, 0.5, 1.0])  # the root mean square is 1.7, of an ulp of 2⁻⁷


def of(want, got, delta):
    """The sums of an addition's y, of which nothing is known but a bound of each element."""
    run = counted.run_of(make.case(CaseSpec((2, 4), "bfloat16"), OPS["add_rmsnorm_fwd"], TWO_PASS))
    output, expected = replace(run.outputs["y"], got=got), Expected(want, delta, "bfloat16")
    return module._of(run, module.stages.stages(run), "y", output, expected)


@pytest.mark.parametrize("d", [0.125, 2.0])
def test_each_sum_of_four_elements_by_hand(d):
    """Each lies 0.3 ulp from 0 beside a number; the second and the last are rounded away from it. The first two are
    alike."""
    want = BELOW + np.sign(BELOW) * 0.3 * ULP
    got = BELOW + np.array([0, 1, 0, -1]) * ULP
    one = of(want, got, d * ULP)
    times, mean = np.array([2, 2, 1, 1]), min(d * d, d)
    most = 2 * min(d, d + 1)
    assert (one.output, one.dtype, one.count) == ("y", "bfloat16", 4)
    hand = {
        "weight": 3.5,
        "size": 2 * (192 + 0.3) + 0.5 * (192 + 0.3) + 160 + 0.3,
        "signed": 2.0,
        "systematic": 3.5 * d,
        "averaging": 0.0,
        "rounding": (times * OMEGA**2).sum() * min(d, 0.25),
        "alike": 2.0,
        "excess": 0.4 + 0.4,
        "explained": 3.5 * mean,
        "spread": (times * OMEGA**2).sum() * most * mean,
        "partial": 0.0,
        "largest": 2 * most,
    }
    assert {name: getattr(one, name) for name in hand} == pytest.approx(hand)
    placed, size = np.full(4, -0.3), np.abs(want) / ULP
    assert one.smallest == tuple(module._smallest(one, sign, placed, size, OMEGA) for sign in (1, -1))


FORM = FORMATS["bfloat16"]


@pytest.mark.parametrize(
    ("value", "delta", "counts"),
    [
        (1.5 + 0.3 * 2.0**-7, 0.0, True),
        (1.5 + 0.3 * 2.0**-7, np.inf, False),
        (np.nan, 0.0, False),
        (4 * FORM.smallest_normal * (1 + 2.0**-30), 0.0, True),
        (4 * FORM.smallest_normal * (1 - 2.0**-30), 0.0, False),
        (FORM.largest / 4 * (1 - 2.0**-30), 0.0, True),
        (FORM.largest / 4 * (1 + 2.0**-30), 0.0, False),
        (FORM.largest / 4 * (1 - 2.0**-30), FORM.largest * 2.0**-31, False),
        (1.5 + 2.0**-7 / 4096, 0.0, False),
        (1.5 + 2.0**-7 / 8192, 0.0, True),
    ],
)
def test_which_elements_count(value, delta, counts):
    with np.errstate(all="ignore"):
        one = of(np.array([value, 1.0]), np.array([1.5, 1.0]), np.array([delta, 0.0]))
    assert (one is not None) == counts
    assert one is None or one.count == 1


def test_an_output_of_another_type_or_with_infinities_has_no_sums():
    run = run_of(lambda dy, x, **_: (dy, x[0], x[1]), CaseSpec((4, 64)), "layernorm_bwd")
    assert set(moments(run)) == {"dx", "dweight"}  # dbias, a sum of four numbers, is exact
    dx = run.outputs["dx"]
    for wrong in (replace(dx, dtype="float16"), replace(dx, got=np.where(np.arange(64) == 9, np.inf, dx.got))):
        assert set(moments(replace(run, outputs=run.outputs | {"dx": wrong}))) == {"dweight"}
    assert moments(replace(run, problem="it fails")) == {}
    assert moments(run_of(lambda dy, x, **_: (dy, x[0], x[1]), CaseSpec((4, 8)), "layernorm_bwd")) == {}


def test_what_batchnorm_keeps_of_its_statistics_has_no_sums():
    run = counted.run_of(make.case(CaseSpec((8, 4, 20)), OPS["batchnorm_fwd"], TWO_PASS))
    assert set(moments(run)) == {"y"}
