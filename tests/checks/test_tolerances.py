"""Tolerances of the checks from both sides: what is off by a little less passes, by a little more is found.

In `counted` every magnitude is 1: x̂ and x are ±1, rows have 8 elements, and there are 4 of them. So each tolerance is a
number of roundings, which is counted here as the docstrings derive it, and not taken from the code that is tested. A
tolerance that is twice as large, or half, fails its row.
"""

from dataclasses import replace

import numpy as np
import pytest
from counted import (
    ATOMIC,
    C1,
    C2,
    DTYPES,
    DX,
    PASSED,
    PLAIN,
    PRODUCTS,
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
from verify_norm.checks import CHECKS, degenerate, identities, modes
from verify_norm.checks.relations import cotangents, given, second_order, two_runs
from verify_norm.core.contract import Contract
from verify_norm.core.finding import Finding
from verify_norm.core.run import Expected

# What a check compares at one run: its output is off by so much in the first element.


def said(check, run):
    return {one.output for one in CHECKS[check].function(run) if isinstance(one, Finding)}


def sum_of(words, run):
    (one,) = (e for e in identities._sums(run) if e.name.startswith(words))
    return bool(one.ratio.max() > 1)


CASES = {  # what is compared: the check or the sum, operator, output, roundings of float32, sizes rounded last
    "y": ("accuracy", "layernorm_fwd", "y", C2 + RHO + 2, (1,), {}),
    "dx": ("accuracy", "rmsnorm_bwd", "dx", 2 + (C1 + 1) + (C1 / 2 + ROOT) + 6, (1,), {}),
    "dweight": ("accuracy", "layernorm_bwd", "dweight", 4 * (C2 + RHO) + PRODUCTS, (4,), {}),
    "dbias": ("accuracy", "layernorm_bwd", "dbias", SUM, (4,), {}),
    "mean": ("statistics", "layernorm_fwd", "mean", C2, (0,), {}),
    "rstd": ("statistics", "layernorm_fwd", "rstd", RHO, (1,), {}),
    "rstd of RMSNorm": ("statistics", "rmsnorm_fwd", "rstd", C1 / 2 + ROOT, (1,), {}),
    "Σdx": ("Σdx = ", "layernorm_bwd", "dx", N * (C2 + 2 + 2), (1,) * N, {}),
    "Σdx·x̂": ("Σdx·x̂ = ", "layernorm_bwd", "dx", N * (C1 + 2 + 2 + 2), (1,) * N, {}),
    "Σdx·x̂ of RMSNorm": ("Σdx·x̂ = ", "rmsnorm_bwd", "dx", N * (C1 + 1 + 2 + 2), (1,) * N, {}),
    "Σdx of a sum": ("Σdx = ", "add_layernorm_bwd", "dx", N * 3 * 1000, (1000,) * N, PASSED),
    "Σdx·x̂ of a sum, RMSNorm": ("Σdx·x̂ = ", "add_rmsnorm_bwd", "dx", N * 2 * 1000, (1000,) * N, PASSED),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name, row in CASES.items() for dtype in DTYPES if dtype == "float32" or row[0][0] == "Σ"],
)
def test_one_run(name, dtype):
    way, op, output, roundings, last, values = CASES[name]
    spec = replace(SPEC if output in ("dweight", "dbias") else PLAIN, dtype=dtype)
    case = case_of(spec, op, **values)
    want = case.expected[output].value
    tolerance = roundings * U + sum(half(dtype, size) for size in last if size)
    for share, found in ((0.9, False), (1.1, True)):
        outwards = one_off(want.shape, share * tolerance * np.copysign(1.0, want.flat[0]))
        run = run_of(case, **{output: outwards})
        assert (sum_of(way, run) if way.startswith("Σ") else output in said(way, run)) == found, (share, tolerance)


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize(("op", "output"), [("layernorm_fwd", "y"), ("layernorm_bwd", "dx")])
def test_a_last_rounding(op, output, dtype):
    """Of a truth that is a tie both neighbours are right, and no other number is."""
    spec = replace(SPEC, dtype=dtype, weight_dtype="float32", eps=0.0)
    case = case_of(spec, op, weight=np.full(N, 1 + half(dtype)))
    for halves, found in ((-2, True), (-1, False), (1, False), (3, True)):
        assert bool(said("accuracy", run_of(case, **{output: one_off((ROWS, N), halves * half(dtype))}))) == found


# Two runs of one case, and runs in another mode.


@pytest.mark.parametrize(
    ("output", "contract", "roundings", "narrow"),
    [
        ("dbias", ATOMIC, 2 * SUM, 0.0),
        ("dweight", ATOMIC, 2 * 4 * 4, 0.0),
        ("dbias", replace(ATOMIC, partials="bfloat16"), 2 * SUM, 2 * 4 * 4 * 2.0**-8),
        ("dx", ATOMIC, 0, 0.0),
        ("dbias", TWO_PASS, 0, 0.0),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_another_order_of_a_sum(output, contract, roundings, narrow, dtype):
    case = case_of(replace(SPEC, dtype=dtype), "layernorm_bwd", contract)
    tolerance = roundings * U + narrow + (2 * half(dtype, 4.0) if roundings else 0.0)
    for share, found in ((0.95, not tolerance), (1.05, True)):
        error = one_off(case.expected[output].value.shape, share * (tolerance or 2.0**-40))
        runs = run_of(case, contract), run_of(case, contract, **{output: error})
        assert bool(list(two_runs.differences(*runs, ("once", "again")))) == found


@pytest.mark.parametrize(("partials", "lost"), [("float32", 2 * 2.0**-126), ("float16", 2.0**-25)])
def test_another_order_of_what_underflows(partials, lost):
    contract = replace(ATOMIC, partials=partials)
    case = case_of(SPEC, "layernorm_bwd", contract, dy=0 * X)
    for share, found in ((0.95, False), (1.05, True)):
        runs = run_of(case, contract), run_of(case, contract, dbias=one_off((N,), share * 2 * ROWS * lost))
        assert bool(list(two_runs.differences(*runs, ("once", "again")))) == found


def test_the_bound_under_autocast():
    """Four factors that bfloat16 rounds, and the last rounding."""
    case, tolerance = case_of(PLAIN, "layernorm_fwd"), (4 + 1) * 2.0**-8
    for share, found in ((0.95, False), (1.05, True)):
        assert bool(list(modes._cast(run_of(case), run_of(case, y=one_off(X.shape, -share * tolerance))))) == found


def test_torch_compile_may_move_an_output_within_its_bound():
    case, tolerance = case_of(PLAIN, "layernorm_fwd"), (C2 + RHO + 3) * U
    for share, found in ((0.9, False), (1.1, True)):
        off = run_of(case, y=one_off(X.shape, -share * tolerance))
        assert bool(list(two_runs.beyond(run_of(case), off, ("usually", "compiled")))) == found


@pytest.mark.parametrize(("name", "roundings"), [("mean", 6), ("rstd", 6 + 2 * RHO + 2 * (C2 + RHO + 2))])
def test_the_gradient_of_a_statistic(name, roundings):
    """u/n and −u·x̂/n of weights u = 1."""
    expected = cotangents._of_statistic(run_of(case_of(PLAIN, "layernorm_bwd")), name, np.ones(ROWS))
    np.testing.assert_allclose(expected.value, 1 / N if name == "mean" else -X / N, rtol=1e-9)
    np.testing.assert_allclose(expected.delta, roundings * U / N, rtol=0.05)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_rounded_and_added(dtype):
    """Two terms and their sum round once each, the last by the judge; three have one sum more; a zero is no term."""
    one, two, four, zero = (Expected(np.full(1, v), np.zeros(1), dtype) for v in (1.0, 2.0, 4.0, 0.0))
    added = (((one,), 0.0), ((one, two), 3.0), ((zero, two), 0.0), ((one, two, four), 7.0 + 4.0))
    for terms, halves in added:
        total = cotangents._added(*terms)
        assert total.value == sum(term.value for term in terms)
        assert total.delta == halves * half(dtype)
    assert cotangents._added(replace(one, delta=np.ones(1)), replace(zero, delta=np.ones(1))).delta == 2.0


def test_the_derivative_of_a_gradient():
    """With r = 1, |x| = ½ and ‖v‖ = ‖d‖ = 1: 16 terms of 2(n + R)·2 + 40 roundings, half as much again by κ."""
    case = case_of(PLAIN, "layernorm_bwd")
    reference = second_order._Reference(run_of(case), case, 1.0, 0.5)
    v = np.linalg.norm(reference.direction("x")) * np.linalg.norm(reference.direction("dy"))
    assert reference._allowed("dx", "dy") == pytest.approx(16 * v * (4 * (N + ROWS) + 40) * 1.5 * U)


# eps = 2^(2k), beside which x vanishes.


def with_huge_eps(monkeypatch, case, contract, output, error):
    """What is wrong where an output of the run with a huge eps is off by so much from what it is without x."""

    def nearby(run, exact, spec=None):
        built = make.build(spec, run.case.op, contract, "cpu", run.case.exact, truth=True)
        alone = make.build(spec, run.case.op, contract, "cpu", {**run.case.exact, "x": 0 * X}, truth=True)
        shape = built.expected[output].value.shape
        return run_of(
            built,
            contract,
            **{output: alone.expected[output].value - built.expected[output].value + one_off(shape, error)},
        )

    monkeypatch.setattr(degenerate, "nearby", nearby)
    return {one.output for one in degenerate._eps_decides(run_of(case, contract)) if one.wrong.any()}


VANISHED = 2.0 ** (1 - degenerate.HUGE)  # the largest x̂ beside such an eps
HUGE_EPS = {  # operator, output, what it may be off by, what is rounded last, whether there is a bias of 3, expanded
    "rstd": ("layernorm_fwd", "rstd", (ROOT + 1) * U * 2.0**-degenerate.HUGE, 0.0, False, False),
    "y": ("layernorm_fwd", "y", VANISHED, 0.0, False, False),
    "y, x·a + b": ("layernorm_fwd", "y", VANISHED, 0.0, False, True),
    "y, bias": ("layernorm_fwd", "y", 3 * U, 3.0, True, False),
    "y, bias, x·a + b": ("layernorm_fwd", "y", 2 * 3 * U, 3.0, True, True),
    "y, SiLU": ("groupnorm_silu_fwd", "y", VANISHED / 2, 0.0, False, False),
    "y, 8 bits": ("layernorm_fp8_fwd", "y", VANISHED * 2.0**36 + 2.0**-7, 0.0, False, False),
    "amax": ("layernorm_fp8_fwd", "amax", 3 * U + half("float32", 3.0), 0.0, True, False),
    "amax without a bias": ("layernorm_fp8_fwd", "amax", VANISHED, 0.0, False, False),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name, row in HUGE_EPS.items() for dtype in DTYPES if dtype == "float32" or row[3]],
)
def test_a_huge_eps(monkeypatch, name, dtype):
    op, output, off, last, bias, expanded = HUGE_EPS[name]
    contract = replace(TWO_PASS, expanded=expanded)
    groups, scale = 1 if "group" in op else None, 2.0**36  # the scale makes of x̂ what 8 bits hold
    spec = replace(PLAIN, bias=bias, dtype=dtype, num_groups=groups, scale=scale)
    case = case_of(spec, op, contract, bias=np.full(N, 3.0))
    tolerance = off + (half(dtype, last) if last else 0.0)
    for share, found in ((0.95, set()), (1.05, {output})):
        assert with_huge_eps(monkeypatch, case, contract, output, share * tolerance) == found


def test_beside_a_huge_eps_the_mean_stays_what_it_was(monkeypatch):
    for error in (0.0, 2.0**-40):
        found = with_huge_eps(monkeypatch, case_of(PLAIN, "layernorm_fwd"), TWO_PASS, "mean", error)
        assert found == ({"mean"} if error else set())


def test_without_dy_a_gradient_of_its_own_is_zero(monkeypatch):
    case = case_of(PLAIN, "rmsnorm_bwd", dy=0 * X)
    for off, found in ((0.0, set()), (2.0**-149, {"dx"})):
        monkeypatch.setattr(degenerate, "nearby", lambda run, exact, off=off: run_of(case, dx=off))
        assert {one.output for one in degenerate._gradient_of_nothing(run_of(case)) if one.wrong.any()} == found


def test_without_dy_a_passed_gradient_may_be_flushed(monkeypatch):
    least = 2.0**-126
    case = case_of(PLAIN, "add_rmsnorm_bwd", dy=0 * X, dresidual_out=np.full(X.shape, least))
    for share, found in ((0.95, set()), (1.05, {"dx"})):
        off = (1 + share) * least - case.expected["dx"].value
        monkeypatch.setattr(degenerate, "nearby", lambda run, exact, off=off: run_of(case, dx=off))
        assert {one.output for one in degenerate._gradient_of_nothing(run_of(case)) if one.wrong.any()} == found


def test_statistics_that_a_backward_is_given(monkeypatch):
    """Used as they are, μ and r are off by one rounding: here by none, so that x̂'s roundings and the sums are left."""
    case = case_of(replace(PLAIN, eps=0.0), "layernorm_bwd")
    monkeypatch.setattr(given, "_using", lambda run: {"dx"})
    for share, found in ((0.93, set()), (1.07, {"dx"})):
        run = run_of(case, dx=one_off(X.shape, -share * (DX + 6 + 1) * U))
        assert given.stricter(run).keys() == found
        run = replace(run, kernel=replace(run.kernel, contract=Contract()))  # of which the wide bound is wider
        assert said("accuracy", run) == found
