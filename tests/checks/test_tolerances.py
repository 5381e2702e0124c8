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
<<<<<<< HEAD
from verify_norm.checks import CHECKS, degenerate, gradient, identities, modes, sums
from verify_norm.checks.relations import cotangents, forward, given, moments, rerun, second_order, symmetries
from verify_norm.checks.relations.equations import confidence
from verify_norm.checks.relations.forward import Moved
from verify_norm.core import judge
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.finding import Finding
from verify_norm.core.ops import OPS
from verify_norm.core.run import Expected, Output, Run
from verify_norm.core.spec import CaseSpec, Contract, Kernel

DTYPES = ("float32", "float16", "bfloat16")
U = 2.0**-24
ROWS, N = 4, 8
X = np.tile([-1.0, 1.0], (ROWS, N // 2))
QUIET = np.tile([-1.0, -1.0, 1.0, 1.0], (ROWS, N // 4))  # dy without a mean, and without x̂ in it: dx is dy
STRICT, TWO_PASS = Contract(), Contract(variance="two_pass")
ATOMIC = Contract(deterministic=False, variance="two_pass")
SPEC = CaseSpec((ROWS, N), eps=1e-12)
PLAIN = replace(SPEC, weight=False, bias=False)


def half(dtype, size=1.0):
    """Half an ulp just above a number."""
    return 0.5 * float(FORMATS[dtype].ulp(np.array(size)))


def case_of(spec, op, contract=TWO_PASS, **values):
    """The case with x = ±1, dy = QUIET, a weight of 1 and a bias of 0."""
    exact = make.exact_inputs(spec, OPS[op])
    usual = {"x": X, "residual_out": X, "dy": QUIET, "weight": np.ones(N), "bias": np.zeros(N)} | values
    exact |= {name: usual[name] for name in exact if name in usual and exact[name] is not None}
    exact |= make.saved(spec, OPS[op], exact)
    return make.build(spec, OPS[op], contract, "cpu", exact, truth=True)


def run_of(case, contract=TWO_PASS, **off):
    """A run whose outputs are the truth, before any rounding, and off by so much."""
    outputs = {}
    for name, expected in case.expected.items():
        if expected is not None:
            got = expected.value + np.broadcast_to(off.get(name, 0.0), expected.value.shape)
            outputs[name] = Output(expected.dtype, got.shape, got, judge.ratio(got, expected))
    return Run(Kernel("k", case.op.name, run=lambda: None, contract=contract), case, outputs)


def one_off(shape, error):
    """An error of the first element alone."""
    off = np.zeros(shape)
    off.flat[0] = error
    return off


@pytest.fixture
def law_finds(monkeypatch):
    """Whether a law finds an output that is off by so much in its first further run alone."""

    def found(law, op, output, spec, contract, error, **values):
        run, calls = run_of(case_of(spec, op, contract, **values), contract), []

        def nearby(run, exact, spec=None, *, truth=False):
            built = make.build(
                spec or run.case.spec, run.case.op, contract, "cpu", {**run.case.exact, **exact}, truth=True
            )
            values = [np.ravel(case.expected[output].value)[0] for case in (built, run.case)]
            calls.append(abs(values[0] / values[1]) if law.startswith("scale") else 1.0)
            outwards = np.copysign(error, values[0]) * calls[0] if len(calls) == 1 else 0.0
            off = one_off(built.expected[output].value.shape, outwards)
            return run_of(built, contract, **{output: off})

        monkeypatch.setattr(symmetries, "nearby", nearby)
        (equation,) = (e for e in symmetries.LAWS[law](run) if e.output == output)
        return bool(equation.ratio.max() > 1)

    return found


C2, C1 = N - 1 + 5, N + 5  # roundings of the sums over a row, their division and product: of terms, and of products
ROOT = 7  # a root, a division and the roundings under the root
RHO = (C1 + 2) / 2 + ROOT  # of rstd: half of the variance's, whose differences are squared, and the root's
DX = 2 + C2 + (2 + C1)  # g, c2, and c1 with those of x̂
SUM, PRODUCTS = 4 * 3, 4 * (4 + 2)  # of 4 rows: of dbias, and of dweight, whose x̂ has two roundings
PASSED = {"dresidual_out": 1000.0 * QUIET}  # what a fused addition adds to dx
GROUPS = replace(PLAIN, num_groups=1)
LAWS = {  # law, operator, output: roundings of float32, sizes of what is rounded last, spec, contract
    ("scale", "layernorm_fwd", "y"): (2 * (ROOT + 2), (1, 1), PLAIN, TWO_PASS),
    ("scale", "layernorm_fwd", "rstd"): (2 * ROOT, (1, 1), PLAIN, TWO_PASS),
    ("scale", "rmsnorm_fwd", "y"): (2 * (ROOT + 1), (1, 1), PLAIN, TWO_PASS),
    ("scale", "layernorm_fp8_fwd", "amax"): (2 * (ROOT + 2), (1, 1), PLAIN, TWO_PASS),
    ("scale", "groupnorm_silu_fwd", "y"): (2 * (1.0998 * (ROOT + 2) + 2.86), (0.27, 0.27), GROUPS, TWO_PASS),
    ("scale", "layernorm_bwd", "dx"): (2 * (DX + ROOT + 6), (1, 1), PLAIN, TWO_PASS),
    ("scale", "layernorm_bwd", "dweight"): (2 * (PRODUCTS + 4 * ROOT), (4, 4), SPEC, TWO_PASS),
    ("scale", "layernorm_bwd", "dbias"): (0, (), SPEC, TWO_PASS),
    ("scale_dy", "layernorm_bwd", "dx"): (0, (), SPEC, TWO_PASS),
    ("scale_dy", "layernorm_bwd", "dweight"): (2 * PRODUCTS, (4, 4), SPEC, ATOMIC),
    ("scale_dy", "layernorm_bwd", "dbias"): (2 * SUM, (4, 4), SPEC, ATOMIC),
    ("scale", "layernorm_fwd", "rstd "): (2 * ROOT, (1, 1), PLAIN, replace(TWO_PASS, stats="bfloat16")),
    ("linearity", "layernorm_bwd", "dx"): (2 * (DX + 6), (1, 1), PLAIN, TWO_PASS),
    ("linearity", "add_layernorm_bwd", "dx"): (2 * 3 * 1000, (1000, 500), PLAIN, TWO_PASS, PASSED),
    ("linearity", "add_rmsnorm_bwd", "dx"): (2 * 2 * 1000, (1000, 500), PLAIN, TWO_PASS, PASSED),
    ("linearity", "layernorm_bwd", "dweight"): (2 * PRODUCTS, (4, 2, 2), SPEC, TWO_PASS),
    ("linearity", "layernorm_bwd", "dbias"): (2 * SUM, (4, 2, 2), SPEC, TWO_PASS),
    ("shift", "layernorm_fwd", "y"): (C2 + 2 * C2 + 2 * (RHO + 2), (1, 1), PLAIN, TWO_PASS),
    ("shift", "layernorm_fwd", "rstd"): (2 * RHO, (1, 1), PLAIN, TWO_PASS),
    ("shift", "layernorm_fwd", "mean"): (C2 + 2 * C2, (2,), PLAIN, TWO_PASS),
    ("permutation", "layernorm_fwd", "y"): (0, (), PLAIN, replace(TWO_PASS, batch_invariant=True)),
    ("permutation", "layernorm_fwd", "rstd"): (2 * RHO, (1, 1), PLAIN, TWO_PASS),
    ("permutation", "layernorm_fwd", "y "): (2 * (C2 + RHO + 2), (1, 1), PLAIN, TWO_PASS),
    ("permutation", "layernorm_bwd", "dweight"): (2 * PRODUCTS, (4, 4), SPEC, replace(TWO_PASS, batch_invariant=True)),
    ("permutation", "layernorm_bwd", "dbias"): (2 * SUM, (4, 4), SPEC, TWO_PASS),
    ("permutation", "layernorm_fp8_fwd", "amax"): (0, (), SPEC, replace(TWO_PASS, batch_invariant=True)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("law", "op", "output"), LAWS)
def test_a_law(law_finds, law, op, output, dtype):
    roundings, last, spec, contract, *values = LAWS[law, op, output]
    output = output.strip()
    form = contract.stats if output in ("rstd", "mean") else "float32" if output == "amax" else dtype
    tolerance = roundings * U + sum(half(form, size) for size in last)
    near = 0.7 if law == "linearity" else 0.93  # which elements are in which half is drawn
    for share, found in ((near, tolerance == 0), (1 / near, True)):
        error = share * (tolerance or 2.0**-40)
        assert law_finds(law, op, output, replace(spec, dtype=dtype), contract, error, **dict(*values)) == found, (
            share,
            tolerance,
        )


def test_a_law_of_subnormal_numbers(monkeypatch):
    """dx of 2⁻²² is subnormal in float16, and 2¹⁰ times as much is not."""
    run = run_of(case_of(replace(PLAIN, dtype="float16"), "layernorm_bwd", dy=QUIET * 2.0**-22))
    for error, found in ((2.0**-25, False), (1.5 * 2.0**-25, True)):

        def nearby(run, exact, error=error):
            off = one_off(X.shape, error * 2.0**10)
            return run_of(
                make.build(run.case.spec, run.case.op, TWO_PASS, "cpu", {**run.case.exact, **exact}, truth=True), dx=off
            )

        monkeypatch.setattr(symmetries, "nearby", nearby)
        (equation,) = symmetries.scale_dy(run)
        assert bool(equation.ratio.max() > 1) == found

=======
from verify_norm.checks import CHECKS, degenerate, identities, modes
from verify_norm.checks.relations import cotangents, given, rerun, second_order
from verify_norm.core.spec import Expected, Finding
>>>>>>> pins

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
        assert bool(list(rerun.differences(*runs, ("once", "again")))) == found


@pytest.mark.parametrize(("partials", "lost"), [("float32", 2 * 2.0**-126), ("float16", 2.0**-25)])
def test_another_order_of_what_underflows(partials, lost):
    contract = replace(ATOMIC, partials=partials)
    case = case_of(SPEC, "layernorm_bwd", contract, dy=0 * X)
    for share, found in ((0.95, False), (1.05, True)):
        runs = run_of(case, contract), run_of(case, contract, dbias=one_off((N,), share * 2 * ROWS * lost))
        assert bool(list(rerun.differences(*runs, ("once", "again")))) == found


def test_the_bound_under_autocast():
    """Four factors that bfloat16 rounds, and the last rounding."""
    case, tolerance = case_of(PLAIN, "layernorm_fwd"), (4 + 1) * 2.0**-8
    for share, found in ((0.95, False), (1.05, True)):
        assert bool(list(modes._cast(run_of(case), run_of(case, y=one_off(X.shape, -share * tolerance))))) == found


def test_torch_compile_may_move_an_output_within_its_bound():
    case, tolerance = case_of(PLAIN, "layernorm_fwd"), (C2 + RHO + 3) * U
    for share, found in ((0.9, False), (1.1, True)):
        off = run_of(case, y=one_off(X.shape, -share * tolerance))
        assert bool(list(rerun.beyond(run_of(case), off, ("usually", "compiled")))) == found


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
