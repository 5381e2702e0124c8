"""Tolerances of sums over many elements, by chance and in the worst case, from both sides as in `test_tolerances`."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from counted import (
    C2,
    DTYPES,
    DX,
    PLAIN,
    PRODUCTS,
    QUIET,
    RHO,
    ROOT,
    ROWS,
    SPEC,
    SUM,
    TWO_PASS,
    N,
    U,
    X,
    case_of,
    half,
    one_off,
    run_of,
)

from verify_norm.cases import make
from verify_norm.checks import gradient, sums
from verify_norm.checks.relations import forward, moments
from verify_norm.checks.relations.equations import confidence
from verify_norm.checks.relations.forward import Moved
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec

# Sums of many terms by chance; a gradient beside its own forward; errors added up over an output.


def long_case(dtype="float32", **values):
    """256 rows of two elements: x̂ = ±1, and dy of random sign in each column, whose sum is 0."""
    x, dy = np.tile([-1.0, 1.0], (256, 1)), np.repeat(np.tile([[1.0], [-1.0]], (128, 1)), 2, 1)
    return case_of(
        CaseSpec((256, 2), dtype, eps=1e-12), "layernorm_bwd", x=x, dy=dy, weight=np.ones(2), bias=np.zeros(2), **values
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("output", ["dweight", "dbias"])
def test_a_long_sum(output, dtype):
    """One run of 256 terms: V = 256·(257/2 + 1); of products also what x̂ is off by, ρ and S and its two roundings."""
    case, lam = long_case(dtype), confidence(512 + 2 + 2)
    shift, factor = lam * sqrt(2 * 2.5) / 2, (lam * sqrt(2 * 2.5 + 4 * 3.25) / 2 + 7) / 2 + ROOT  # of two elements
    own = (2 + 1) ** 2 + factor**2 + shift**2 if output == "dweight" else 0.0
    tolerance = lam * sqrt(256 * (257 / 2 + 1 + own)) * U
    tolerance += half(dtype, tolerance)
    for share, found in ((0.95, False), (1.05, True)):
        run = run_of(case, **{output: one_off((2,), share * tolerance)})
        (one,) = (e for e in sums.equations(run) if e.output == output and not e.name)
        assert bool(one.ratio.max() > 1) == found


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_the_last_rounding_of_a_long_sum(dtype):
    """Of 256 ones, beside which the rest of the tolerance vanishes."""
    case = case_of(
        CaseSpec((256, 2), dtype, eps=1e-12),
        "layernorm_bwd",
        x=X[:1, :2].repeat(256, 0),
        dy=np.ones((256, 2)),
        weight=np.ones(2),
        bias=np.zeros(2),
    )
    for share, found in ((0.9, False), (1.1, True)):
        run = run_of(case, dbias=one_off((2,), share * half(dtype, 256.0)))
        (one,) = (e for e in sums.equations(run) if e.output == "dbias")
        assert bool(one.ratio.max() > 1) == found


def test_long_sums_of_an_activated_norm():
    """With a weight and a bias of 0, SiLU's slope is ½ and off by 7 roundings in each of 256 terms."""
    spec = CaseSpec((64, 2, 4), num_groups=1, eps=1e-12)
    x, dy = np.tile([-1.0, 1.0], 256).reshape(spec.shape), np.tile([-1.0, -1.0, 1.0, 1.0], 128).reshape(spec.shape)
    run = run_of(case_of(spec, "groupnorm_silu_bwd", x=x, dy=dy, weight=np.zeros(2), bias=np.zeros(2)))
    lam = confidence(512 + 2 + 2)
    chance = {"dbias": lam * sqrt(256 * 129.5) / 2, "dweight": lam * sqrt(256 * (129.5 + 3**2 + 12**2 + 14.5**2)) / 2}
    for name, by_chance in chance.items():
        (one,) = (e for e in sums.equations(run) if e.output == name)
        np.testing.assert_allclose(one.delta, (by_chance + 256 * 7) * U, rtol=0.1)


def test_long_statistics():
    """Of 2¹⁶ terms in runs of 512, and a tree of 7 levels over them: of random sign, and of one sign."""
    n, lam = 2**16, confidence(2**16 + 2)
    x = np.tile([-1.0, 1.0], (1, n // 2))
    run = run_of(case_of(CaseSpec((1, n), eps=1e-12, weight=False, bias=False), "layernorm_fwd", x=x))
    mean = lam * sqrt(n * (513 / 2 + 8)) / n
    var = lam * sqrt(n * (513 / 2 + 8) + n * n * (513 * 1025 / (6 * n) + 2)) / n + 7
    counted = {"mean": mean, "rstd": var / 2 + ROOT}
    found = {e.output: float(e.delta[0]) / U for e in sums.equations(run)}
    assert found == pytest.approx(counted, rel=0.01)


def test_the_sum_of_a_long_row():
    """Σdx of 256 terms, of a dy that has neither a mean nor x̂ in it: c2's sum, g's and dx's roundings, the last."""
    x, dy = np.tile([-1.0, 1.0], (1, 128)), np.tile([-1.0, -1.0, 1.0, 1.0], (1, 64))
    case = case_of(CaseSpec((1, 256), eps=1e-12, weight=False, bias=False), "layernorm_bwd", x=x, dy=dy)
    tolerance = confidence(256) * (sqrt(256 * (257 / 2 + 1)) + sqrt(256) * (2 + 6) + sqrt(256)) * U
    for share, found in ((0.98, False), (1.02, True)):
        run = run_of(case, dx=one_off((1, 256), share * tolerance))
        (one,) = (e for e in sums.equations(run) if e.name == "Σdx")
        assert bool(one.ratio.max() > 1) == found


LAM = 1.5  # below √N: Hoeffding's bound is then the smaller one for random signs
MOVED = {  # of what is left, in units of 1: what the forward is off by in each element, the gradient, and T
    "the forward, by chance": ((1.0, 0.0), gradient.SIGNS, LAM * sqrt(N)),
    "the forward, along dy": ((1.0, 0.0), gradient.ALIGNED, N),
    "the third difference": ((0.0, 3.0), gradient.SIGNS, 3.0 / 8),
}


@pytest.mark.parametrize("name", MOVED)
def test_a_gradient_beside_its_forward(name):
    """Along d = 2⁻³⁰, beside which the bound of dx itself vanishes; x̂ moves by `third` more than dx says."""
    (off, third), direction, tolerance = MOVED[name]
    run, d = run_of(case_of(PLAIN, "layernorm_bwd")), np.full((ROWS, N), 2.0**-30)
    still, extra = np.zeros((ROWS, N)), QUIET[0, 0] * one_off((1, N), third).repeat(ROWS, 0)
    moved = Moved(still, extra, still + off, still + off)
    left, allowed = gradient._identity(run, d, moved, np.full(ROWS, direction), LAM)
    np.testing.assert_allclose(allowed, tolerance, rtol=1e-6)
    np.testing.assert_allclose(left, -third, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("direction", "length"), [(gradient.SIGNS, LAM * sqrt(N)), ("x̂", N)])
def test_what_dx_is_off_by_beside_the_forward(direction, length):
    run, still = run_of(case_of(PLAIN, "layernorm_bwd")), np.zeros((ROWS, N))
    _, allowed = gradient._identity(run, still + 1, Moved(still, still, still, still), np.full(ROWS, direction), LAM)
    of_dx = (DX + C2 + RHO + 6 + 1) * U  # c1 and c2 are 0: the mean's error meets neither
    np.testing.assert_allclose(allowed, length * of_dx, rtol=0.35)


@pytest.mark.parametrize(
    ("layout", "off", "counted"), [("contiguous", 1.0, 0.5), ("scalar", 1.0, 1.0), ("contiguous", 0.0, 0.0)]
)
def test_a_column_beside_its_forward(layout, off, counted):
    """Of 4 rows: half of what the forward is off by, by chance; with the λ of 9 comparisons that is more than all."""
    case = case_of(replace(SPEC, dy_layout=layout), "layernorm_bwd", dy=np.ones(X.shape))
    still = np.zeros((ROWS, N))
    moved, mine = Moved(still, still, still + off / 16, still + off), np.arange(N) % 2 == 0
    one = gradient._column(run_of(case), "bias", np.full(N, 2.0**-30), moved, mine)
    by_chance = confidence(N + 1) * sqrt(ROWS) / 16
    counted = min(by_chance, ROWS) * off if layout == "contiguous" else ROWS * off
    np.testing.assert_allclose(one.tolerance, counted + (SUM + half("float32", 4.0) / U) * U * 2.0**-30, rtol=0.01)


def test_a_column_of_an_activated_norm():
    """It is not linear in the bias: κ of what a difference has beyond the derivative is left."""
    case = case_of(replace(SPEC, num_groups=1), "groupnorm_silu_bwd", dy=np.ones(X.shape))
    still = np.zeros((ROWS, N))
    moved, mine = Moved(still, still + 1, still, still), np.arange(N) % 2 == 0
    one = gradient._column(run_of(case), "bias", np.full(N, 2.0**-30), moved, mine)
    np.testing.assert_allclose(one.tolerance, ROWS / 8, rtol=1e-6)


def test_a_row_has_the_confidence_of_all_comparisons(monkeypatch):
    run, still = run_of(case_of(PLAIN, "layernorm_bwd")), np.zeros((ROWS, N))
    monkeypatch.setattr(gradient, "move", lambda *_: Moved(still, still, still + 1e4, still + 1e9))
    tolerance = gradient._rows(run).tolerance
    counted = confidence(ROWS + N) * sqrt(N) * 1e4
    assert tolerance.min() == pytest.approx(counted, rel=1e-3)  # of rows with random signs


def test_both_ends_of_a_step_are_off(monkeypatch):
    """By chance like the hypotenuse, and together by the sum."""
    ends = [(np.ones(1), np.zeros(1), np.full(1, off)) for off in (3.0, 4.0)]
    monkeypatch.setattr(forward, "_at", lambda *_: ends.pop(0))
    moved = forward.move(None, {}, {})
    assert (moved.allowed, moved.most) == (5.0, 7.0)


FIELDS = {  # of the sums over an output: what is allowed of the bias, and of the excess
    "systematic": (1.0, 0.0),
    "averaging": (sqrt(2 * moments.L), 0.0),
    "rounding": (sqrt(2 * moments.L), 0.0),
    "alike": (2 * moments.L / 3, 0.0),
    "explained": (0.0, 1.0),
    "partial": (0.0, sqrt(8 * moments.L)),
    "spread": (0.0, sqrt(2 * moments.L)),
    "largest": (0.0, 2 * moments.L / 3),
}


@pytest.mark.parametrize("field", FIELDS)
def test_sums_of_errors(field):
    one = moments.Moments("y", "float32", **{field: 1.0})
    assert (one.bias_allowed, one.excess_allowed) == pytest.approx(FIELDS[field])
    assert pytest.approx(np.log(2e9)) == moments.L


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_the_sums_of_y_consist_of(dtype):
    """Of random rows of 32: a row's factor and shift meet Σφ·x̂ and Σφ, and each x̂ has two roundings of its own."""
    case = make.case(replace(PLAIN, shape=(4, 32), dtype=dtype), OPS["layernorm_fwd"], TWO_PASS)
    run, x, expected = run_of(case), case.exact["x"], case.expected["y"]
    y, form = expected.value, FORMATS[dtype]
    unit, usual = form.ulp(y), form.ulp(np.sqrt(np.mean(y * y)))
    delta, omega = expected.delta / unit, unit / np.maximum(unit, usual)
    phi, gain = omega * np.sign(y) / unit, np.minimum(delta, delta**2)
    _, where, times = np.unique(np.abs(y), return_inverse=True, return_counts=True)
    times = times[where].reshape(y.shape)  # elements of one value, which are rounded alike
    h = np.log2(32) + 32 / 384 + 6
    factor, shift = (h + 7) / 2 + ROOT, (h + 5) * np.abs(x).mean(1) / x.std(1)
    rows = factor * np.abs((phi * y).sum(1)) + shift * np.abs(phi.sum(1))
    one = moments._of(run, moments.stages.stages(run), "y", run.outputs["y"], expected)
    counted = {
        "systematic": min((rows.sum() + 2 * np.abs(phi * y).sum()) * U, (omega * delta).sum()),
        "rounding": (times * omega**2 * np.minimum(delta, 0.25)).sum(),
        "alike": (times * omega).max(),
        "explained": (omega * gain).sum(),
        "spread": (times * omega**2 * 2 * np.minimum(delta, gain + 1) * gain).sum(),
        "largest": (times * omega * 2 * np.minimum(delta, gain + 1)).max(),
    }
    assert {name: getattr(one, name) for name in counted} == pytest.approx(counted, rel=0.02)


@pytest.mark.parametrize("output", ["dweight", "dbias"])
def test_what_narrow_partial_sums_average_out(output):
    """V = u²·R·(Σt² + (Σt)²) of R = 4 terms of 1, and the underflow of each."""
    contract = replace(TWO_PASS, partials="float16")
    run = run_of(case_of(SPEC, "layernorm_bwd", contract), contract)
    found = moments._partial(run, moments.stages.stages(run), output, (N,))
    np.testing.assert_allclose(found, 4 * (2.0**-22 * (4 + 16) + 4 * 2.0**-50), rtol=1e-3)


def test_what_a_narrow_xhat_averages_out():
    """Each x̂ is rounded by 2⁻⁸ of itself; equal ones are rounded alike, and count as one term."""
    contract, op = Contract(xhat="x"), "rmsnorm_fwd"
    for spec, alike in (
        (replace(PLAIN, shape=(4, 32), dtype="bfloat16"), False),
        (replace(PLAIN, dtype="bfloat16"), True),
    ):
        case = case_of(spec, op, contract) if alike else make.case(spec, OPS[op], contract)
        run = run_of(case, contract)
        phi, y = np.ones(spec.shape), case.expected["y"].value
        _, averaging = moments._together(run, moments.stages.stages(run), "y", phi, case.expected["y"])
        c = np.abs(y) * 2.0**-8
        assert averaging == pytest.approx(c.sum() ** 2 if alike else (c * c).sum(), rel=0.2)
        if not alike:
            omega = (unit := FORMATS["bfloat16"].ulp(y)) / np.maximum(
                unit, FORMATS["bfloat16"].ulp(np.sqrt(np.mean(y * y)))
            )
            one = moments.moments(run)["y"]
            assert one.averaging == pytest.approx(((omega / unit * c) ** 2).sum(), rel=0.2)


FAR = 1 / 64  # an eps, beside which r is no number of bfloat16
R = (1 + FAR) ** -0.5
LOST, SHORT = abs(FORMATS["bfloat16"].round(np.array(R)) - R), (1 + 2.0**-10) * QUIET  # what x̂ and g lose of themselves
ALL = ROWS * N
TOGETHER = {  # operator, output, φ, dy, whether x̂ is rounded: what may have one sign, in roundings and by bfloat16
    "y: a shift": ("layernorm_fwd", "y", np.abs(X), X, False, ALL * (C2 + 2), 0.0),
    "y: a factor": ("layernorm_fwd", "y", X, X, False, ALL * (RHO + 2), 0.0),
    "dbias": ("layernorm_bwd", "dbias", np.ones(N), QUIET, False, N * SUM, 0.0),
    "dweight: a sum": ("layernorm_bwd", "dweight", np.ones(N), QUIET, False, N * PRODUCTS, 0.0),
    "dweight: a shift": ("layernorm_bwd", "dweight", np.ones(N), np.abs(X), False, N * PRODUCTS + ALL * C2, 0.0),
    "dweight: a factor": ("layernorm_bwd", "dweight", np.ones(N), X, False, N * PRODUCTS + ALL * RHO, 0.0),
    "dx": ("layernorm_bwd", "dx", QUIET, QUIET, False, ALL * (RHO + 4 + 2 + 2), 0.0),
    "y: x̂ is rounded alike": ("rmsnorm_fwd", "y", X, X, True, 0, ALL * LOST),
    "dx: x̂ is rounded alike": ("layernorm_bwd", "dx", X, X, True, 0, ALL * 2 * R * R * LOST),
    "dx: g is rounded alike": ("layernorm_bwd", "dx", QUIET, SHORT, True, 0, ALL * R * 2.0**-10),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_what_of_a_sum_of_errors_may_have_one_sign(name):
    op, output, phi, dy, narrow, roundings, lost = TOGETHER[name]
    contract = replace(TWO_PASS, xhat="bfloat16") if narrow else TWO_PASS
    spec = replace(SPEC if output in ("dweight", "dbias") else PLAIN, eps=FAR if narrow else 1e-12)
    run = run_of(case_of(spec, op, contract, dy=dy), contract)
    s = moments.stages.stages(moments._under(run, xhat=None))  # as `moments` does: the rest averages out
    systematic, averaging = moments._together(run, s, output, phi, run.case.expected[output])
    assert systematic == pytest.approx(roundings * U + lost, rel=0.02)
    if name == "dx: g is rounded alike":
        assert averaging == pytest.approx((ALL * R * 2.0**-8) ** 2, rel=0.02)  # all |x̂| are equal
    elif not narrow:
        assert averaging == 0.0


def test_sums_over_narrow_partial_sums():
    contract = replace(TWO_PASS, partials="float16")
    case = make.case(CaseSpec((8, 32), eps=1e-12), OPS["layernorm_bwd"], contract)
    run, expected = run_of(case, contract), case.expected["dweight"]
    s, want, form = moments.stages.stages(run), expected.value, FORMATS["float32"]
    terms, unit = case.exact["dy"] * s.norm.xhat, form.ulp(want)
    omega = unit / np.maximum(unit, form.ulp(np.sqrt(np.mean(want * want))))
    V = 8 * (2.0**-22 * ((terms**2).sum(0) + want**2) + 8 * 2.0**-50) / unit**2
    one = moments._of(run, s, "dweight", run.outputs["dweight"], expected)
    partial = (omega**2 * V).sum()
    assert (one.partial, one.averaging) == pytest.approx((partial, partial), rel=1e-3)
    assert one.explained == pytest.approx((omega * np.sqrt(V)).sum(), rel=0.01)
