"""The laws: each judges what it looks at, exactly where results are exact, and says nothing where it knows nothing."""

from dataclasses import replace

import counted
import numpy as np
import pytest
import torch
from checking import ROWS, run_of
from counted import ATOMIC, PLAIN, PRODUCTS, QUIET, SPEC, TWO_PASS, N, U, X, case_of, half
from norms import layernorm, layernorm_bwd, rmsnorm

from verify_norm.cases import make
from verify_norm.checks.relations import stages, symmetries
from verify_norm.checks.relations.symmetries import LAWS, linearity, permutation, scale, scale_dy, shift
from verify_norm.core.contract import Contract
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.kernels.zoo import ZOO
from verify_norm.loading import registry
from verify_norm.search.examine import examine

DTYPES = ("float32", "float16", "bfloat16")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("law", LAWS.values())
def test_every_identity_judges_what_it_looks_at(law, dtype):
    equations = law(run_of(layernorm_bwd(), replace(ROWS, dtype=dtype, variant=1), "layernorm_bwd"))
    assert {e.output for e in equations} == {"dx", "dweight", "dbias"}
    for e in equations:
        assert (e.ratio <= 1).all()
        assert (e.tolerance < abs(e.left).max()).mean() > 0.9


def test_exact_identities_allow_nothing():
    for e in scale_dy(run_of(layernorm_bwd(), ROWS, "layernorm_bwd")):
        assert (e.tolerance == 0).all()
    (mean,) = (e for e in scale(run_of(layernorm())) if e.output == "mean")
    assert (mean.tolerance == 0).all()


def test_a_law_says_nothing_where_its_effect_is_unknown():
    assert scale(run_of(layernorm(), replace(ROWS, log2_scale=60))) is None  # squares would overflow
    half = replace(ROWS, dtype="float16", log2_scale=-15)
    assert scale(run_of(layernorm_bwd(), half, "layernorm_bwd", stats="x")) is None  # a saved mean may underflow
    assert linearity(run_of(layernorm_bwd(), replace(ROWS, dy_layout="scalar"), "layernorm_bwd")) is None
    assert shift(run_of(rmsnorm("llama"), op="rmsnorm_fwd", xhat="x")) is None


def test_no_bits_are_expected_of_a_program_that_torch_compile_makes_for_another_eps():
    norm = layernorm_bwd()
    assert scale(run_of(norm, ROWS, "layernorm_bwd")) is not None
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(3))
    assert scale(run_of(norm, ROWS, "layernorm_bwd")) is None
    assert scale_dy(run_of(norm, ROWS, "layernorm_bwd")) is not None  # of the same program


@pytest.mark.parametrize(
    ("law", "op", "how", "wrong"),
    [
        (scale, "layernorm_fwd", "hard-coded eps", {"y", "rstd"}),  # the mean has no eps
        (scale_dy, "layernorm_bwd", "clamped", {"dx", "dweight", "dbias"}),
        (linearity, "layernorm_bwd", "skips zeros", {"dx"}),
    ],
)
def test_a_broken_law_is_beyond_its_tolerance_in_what_it_breaks(law, op, how, wrong):
    make = layernorm if op == "layernorm_fwd" else layernorm_bwd
    spec = replace(ROWS, dy_log2_scale=3)
    assert {e.output for e in law(run_of(make(how), spec, op)) if e.ratio.max() > 1} == wrong
    assert {e.output for e in law(run_of(make(), spec, op)) if e.ratio.max() > 1} == set()


@pytest.mark.parametrize(("name", "shape"), [("V02_gated_bwd", (9,)), ("V05_modulated_bwd", (1, 2, 9))])
def test_a_product_of_four_may_round_a_subnormal_factor(name, shape):
    """Where w·x̂ is subnormal, its rounding times dy is more than half an ulp of the result."""
    for seed in (101, 102, 103):
        spec = CaseSpec(shape, weight_data="subnormal", seed=seed)
        examined = examine(registry.limited(ZOO[name].kernel), spec, ("identities",), "cpu")
        assert not examined.findings
        assert examined.looked == ("identities",)


@pytest.fixture
def near(monkeypatch):
    """The cases of a law's further runs, in each of which every output is the truth."""
    cases = []

    def nearby(run, exact, spec=None, *, truth=False):
        values, contract = {**run.case.exact, **exact}, run.kernel.contract
        cases.append(make.build(spec or run.case.spec, run.case.op, contract, "cpu", values, truth=True))
        return counted.run_of(cases[-1], contract)

    monkeypatch.setattr(symmetries, "nearby", nearby)
    return cases


def run_at(op, spec=PLAIN, contract=TWO_PASS, **values):
    return counted.run_of(case_of(spec, op, contract, **values), contract)


def true_run(op, spec, contract=TWO_PASS):
    return counted.run_of(make.case(spec, OPS[op], contract), contract)


IMAGES = CaseSpec((3, 4, 10), eps=0.5)
QUANTIZED = {"y", "y_scale", "residual_out", "rstd"}
EVERY = {  # operator and case: what scale, scale_dy, linearity, shift and permutation compare
    "layernorm_fwd": (SPEC, *[{"y", "mean", "rstd"}] * 5),
    "layernorm_bwd": (SPEC, *[{"dx", "dweight", "dbias"}] * 5),
    "add_layernorm_fwd": (SPEC, *[{"y", "residual_out", "mean", "rstd"}] * 5),
    "add_layernorm_bwd": (SPEC, *[{"dx", "dweight", "dbias"}] * 5),
    "dropout_add_layernorm_bwd": (SPEC, *[{"dx", "dresidual", "dweight", "dbias"}] * 5),
    "modulate_layernorm_bwd": (SPEC, *[{"dx", "dweight", "dbias", "dscale", "dshift"}] * 5),
    "groupnorm_fwd": (replace(IMAGES, num_groups=2), *[{"y", "mean", "rstd"}] * 5),
    "batchnorm_fwd": (
        IMAGES,
        *[{"y", "mean", "rstd", "running_mean", "running_var"}] * 3,
        {"y", "mean", "rstd"},  # the running ones move by a share of c
        {"y", "mean", "rstd", "running_mean", "running_var"},
    ),
    "batchnorm_bwd": (IMAGES, *[{"dx", "dweight", "dbias"}] * 5),
    "add_rmsnorm_quant_group_fwd": (CaseSpec((3, 256), eps=0.5), *[QUANTIZED] * 3, None, QUANTIZED),
}


@pytest.mark.parametrize(
    ("law", "op"),
    [(law, op) for op in EVERY for law in LAWS if op.endswith("_bwd") or law not in ("scale_dy", "linearity")],
)
def test_the_truth_obeys_every_law(near, law, op):
    spec, *outputs = EVERY[op]
    run = true_run(op, spec)
    equations = LAWS[law](run)
    expected = outputs[[*LAWS].index(law)]
    assert equations is None if expected is None else {e.output for e in equations} == expected
    for e in equations or ():
        assert e.output in e.name
        assert np.isfinite(e.tolerance).any(), e.name
        assert e.ratio.max() <= 1, e.name


@pytest.mark.parametrize("contract", [ATOMIC, replace(TWO_PASS, batch_invariant=True)])
@pytest.mark.parametrize("law", LAWS)
def test_a_weight_of_two_dimensions_has_a_tolerance_of_its_shape(near, law, contract):
    spec = CaseSpec((4, 2, 3), normalized_ndim=2, eps=0.5)
    for e in LAWS[law](true_run("layernorm_bwd", spec, contract)):
        assert e.left.shape == e.right.shape == e.tolerance.shape == ((4, 2, 3) if e.output == "dx" else (2, 3))


def test_a_reciprocal_root_costs_its_roundings_of_what_it_is():
    run = run_at("layernorm_fwd")
    s = stages.stages(run)
    s = replace(s, arithmetic=replace(s.arithmetic, u=2.0**-5))  # 7 roundings change it by 7/25
    found = symmetries._root_apart(run, s, "rstd", np.array([0.5, -3.0]))
    np.testing.assert_allclose(found, 0.28 * 1.28 * np.array([0.5, 3.0]))
    run = true_run("add_rmsnorm_quant_group_fwd", CaseSpec((3, 256)))
    delta = run.case.expected["y_scale"].delta
    assert (symmetries._root_apart(run, stages.stages(run), "y_scale", delta) == delta.ravel()).all()


@pytest.mark.parametrize(
    ("op", "name", "contract", "settled"),
    [
        ("modulate_layernorm_bwd", "dbias", TWO_PASS, True),
        ("modulate_layernorm_bwd", "dshift", TWO_PASS, True),
        ("modulate_layernorm_bwd", "dshift", ATOMIC, False),
        ("modulate_layernorm_bwd", "dscale", TWO_PASS, False),
        ("layernorm_bwd", "dbias", ATOMIC, False),
        ("rmsnorm_silu_bwd", "dweight", TWO_PASS, False),
        ("groupnorm_silu_bwd", "dbias", TWO_PASS, False),  # which an activation ties to x
        ("layernorm_fwd", "mean", TWO_PASS, True),
    ],
)
def test_a_sum_of_dy_alone_does_not_feel_the_root(op, name, contract, settled):
    run = true_run(op, replace(SPEC, num_groups=1 if "group" in op else None), contract)
    apart = symmetries._root_apart(run, stages.stages(run), name, run.outputs[name].got)
    assert (apart > 0).all() == (not settled)
    assert settled == (apart == 0).all()


@pytest.mark.parametrize(
    ("law", "powers"), [(scale, (-8, 8, -5, 5, -2, 2, -1, 1)), (scale_dy, (10, -3, 1, -10, 3, -1))]
)
def test_the_variant_says_where_the_powers_of_two_begin(near, law, powers):
    for variant, k in enumerate(powers):
        run = run_at("add_layernorm_bwd", replace(SPEC, variant=variant), dresidual_out=3 * QUIET)
        (first, *_) = law(run)
        other, exact = near.pop(), run.case.exact
        assert f"2^{k} " in f"{first.name} "
        if law is scale:
            assert other.spec.eps == SPEC.eps * 4.0**k
            changes = {"residual_out": k, "rstd": -k, "mean": k}
            assert all((other.exact[name] == 2.0**p * exact[name]).all() for name, p in changes.items())
            assert (other.exact["dy"] == exact["dy"]).all()
            assert f"dx must scale by 2^{-k} " in first.name
        else:
            assert all((other.exact[name] == -(2.0**k) * exact[name]).all() for name in ("dy", "dresidual_out"))


def test_a_power_of_two_is_taken_that_every_input_can_be_multiplied_by(near):
    """In float16 all 11 bits at 2⁻¹⁰ are lost by 2⁻¹⁰, and not by 2³; 2⁻²⁴ and 2¹⁵ together are lost by all."""
    spec, low = replace(SPEC, dtype="float16", variant=3), QUIET * (1 + 2.0**-10) * 2.0**-10
    for op, name in (("layernorm_bwd", "dy"), ("add_layernorm_bwd", "dresidual_out")):
        assert scale_dy(run_at(op, spec, **{name: low}))
        assert (near.pop().exact[name] == -8 * low).all()
        assert scale_dy(run_at(op, spec, **{name: np.where(QUIET > 0, 2.0**-24, 2.0**15)})) is None
    assert scale_dy(run_at("layernorm_bwd", dy=2.0**20 * QUIET))
    assert (near.pop().exact["dy"] == -(2.0**17) * QUIET).all()  # 2³⁰ is not moderate
    ends = np.where(QUIET > 0, 2.0**-24, 2.0**15)
    assert scale(run_at("layernorm_fwd", replace(PLAIN, dtype="float16"), x=ends)) is None


@pytest.mark.parametrize(
    ("fields", "of_x", "of_dy"),
    [
        ({}, True, True),
        ({"stats": "float64", "accumulate": "float64"}, True, False),
        ({"xhat": "float32"}, True, True),
        ({"xhat": "bfloat16"}, True, False),
        ({"stats": "bfloat16"}, True, False),
        ({"stats": "float16"}, False, False),
        ({"partials": "bfloat16"}, True, False),
        ({"partials": "float16"}, False, False),
        ({"accumulate": "bfloat16"}, False, False),
    ],
)
def test_a_narrow_type_inside_leaves_no_room_for_a_scale(near, fields, of_x, of_dy):
    run = run_at("layernorm_bwd", SPEC, Contract(**fields))
    assert [law(run) is not None for law in (scale, scale_dy)] == [of_x, of_dy]


def test_what_may_leave_the_range_of_squares_is_not_scaled(near):
    for most, moderate in ((2.0**-24, True), (2.0**-25, False), (2.0**24, True), (2.0**25, False), (0.0, True)):
        assert symmetries._moderate(most * X) == moderate
    assert symmetries._moderate(None)
    assert not symmetries._moderate(np.array([2.0**25, 1.0]))
    for name in ("weight", "bias", "dy"):
        for law in (scale, scale_dy, linearity):
            assert law(run_at("layernorm_bwd", SPEC, **{name: 2.0**25 * (QUIET if name == "dy" else X[0])})) is None
    assert scale(run_at("layernorm_fwd", x=0 * X)) is None
    assert scale(run_at("modulate_layernorm_fwd", shift=np.full((4, N), 2.0**25))) is None
    assert scale(run_at("modulate_layernorm_fwd", shift=np.full((4, N), 2.0**24)))
    images = true_run("batchnorm_bwd", IMAGES, ATOMIC)  # whose statistics are sums over rows
    assert [law(images) for law in (scale, scale_dy, linearity)] == [None] * 3


@pytest.mark.parametrize("op", ["layernorm_bwd", "dropout_add_layernorm_bwd"])
def test_only_sums_over_rows_may_come_in_another_order(near, op):
    values = {"mask": np.ones(X.shape), "dresidual_out": QUIET} if "dropout" in op else {}
    for e in scale_dy(run_at(op, SPEC, ATOMIC, **values)):
        assert (e.tolerance > 0).all() == (e.output in ("dweight", "dbias")), e.output
        assert (e.tolerance == 0).all() == (e.output in ("dx", "dresidual")), e.output


def test_what_overflows_once_it_is_scaled_is_not_judged(near):
    """With x = ±¼ and dy = ±16, dx is ±64, and 2¹⁰ times as much is beyond float16."""
    for dy, judged in ((4, True), (16, False)):
        (dx,) = scale_dy(run_at("layernorm_bwd", replace(PLAIN, dtype="float16"), x=X / 4, dy=dy * QUIET))
        assert np.isfinite(dx.tolerance).all() == np.isfinite(dx.tolerance).any() == judged


def test_what_overflows_once_x_is_smaller_is_not_judged(near):
    """With x = ±2⁻⁶ and dy = ±4, dx is ±2⁸; with 2⁻⁸ times that x it is beyond float16."""
    for dy, judged in ((0.25, True), (4, False)):
        (dx,) = scale(run_at("rmsnorm_bwd", replace(PLAIN, dtype="float16"), x=X / 64, dy=dy * QUIET))
        assert np.isfinite(dx.tolerance).all() == np.isfinite(dx.tolerance).any() == judged


NORMAL, FLUSHED = 2.0**-14, 2.0**-78  # the smallest normal float16; below the other a float32 may have lost a factor


@pytest.mark.parametrize(
    ("dtype", "left", "right", "power", "apart", "rounded"),
    [
        ("float16", 1.0, -1.0, 3, 0.0, 0.0),
        ("float16", 1.0, 1.0, 0, 2.0**-20, 2.0**-10),
        ("float16", -1.0, -1.9, 3, 0.2, (0.5 + 1) * 2.0**-10),  # 1.9 + 0.2 is in the next binade
        ("float16", -1.9, 1.0, 3, 0.2, (1 + 0.5) * 2.0**-10),
        ("float16", 2 * NORMAL, 1.0, 0, 0.0, 0.0),
        ("float16", 1.9 * NORMAL, 1.0, 0, 0.0, 2.0**-11 + 2.0**-25),
        ("float16", 1.0, 1.9 * NORMAL, 0, 0.0, 2.0**-11 + 2.0**-25),
        ("float16", 1.0, 8 * NORMAL, -3, 0.0, 2.0**-11 + 2.0**-22),  # subnormal before it is scaled back
        ("float16", 1.0, 16 * NORMAL, -3, 0.0, 0.0),
        ("float32", FLUSHED, FLUSHED, 0, 0.0, 0.0),
        ("float32", FLUSHED / 2, FLUSHED / 2, 0, 0.0, 1 + 1),
        ("float32", FLUSHED / 2, FLUSHED, 0, 0.0, 0.0),
        ("float32", FLUSHED / 2, FLUSHED / 16, 3, 0.0, 1 + 1),
        ("float32", FLUSHED / 2, FLUSHED / 8, 3, 0.0, 0.0),
        ("float32", FLUSHED / 2, FLUSHED / 2, -3, 0.0, 1 + 8),
    ],
)
def test_what_is_rounded_anew_or_was_subnormal_at_either_scale_has_half_an_ulp_of_each(
    dtype, left, right, power, apart, rounded
):
    """And where a factor of it may have been subnormal, its bound, which is 1 here."""
    run = run_at("layernorm_fwd", replace(PLAIN, dtype=dtype))
    y = replace(run.case.expected["y"], delta=np.ones(1))
    run = replace(run, case=replace(run.case, expected={"y": y}))
    sides = (np.array([value]) for value in (left, right))
    assert symmetries._rounded(run, "y", *sides, power, np.array([apart])) == pytest.approx(rounded, rel=1e-9)


def test_halves_of_dy_share_its_elements(near):
    def halves(seed=0):
        assert linearity(run_at("add_layernorm_bwd", replace(SPEC, seed=seed), dresidual_out=5 * QUIET))
        return [(case.exact["dy"], case.exact["dresidual_out"]) for case in (near.pop(-2), near.pop(-1))]

    (d1, p1), (d2, p2) = halves()
    assert (d1 + d2 == QUIET).all()
    assert ((d1 == 0) | (d2 == 0)).all()
    assert (p1 == 5 * d1).all()
    assert (p2 == 5 * d2).all()
    assert all(0 < np.count_nonzero(half) < half.size / 1.3 for half in (d1, d2))
    assert (halves()[0][0] == d1).all()
    assert (halves(seed=1)[0][0] != d1).any()


@pytest.mark.parametrize(
    ("size", "contract", "judged"),
    [
        (16300, TWO_PASS, True),
        (16300, replace(TWO_PASS, partials="float16"), False),  # which is off by some 200 more
        (16400, TWO_PASS, False),
    ],
)
def test_a_half_may_overflow_where_the_whole_does_not(near, size, contract, judged):
    """dbias is 0, and of a column of ±size a half may have ±2·size: half the largest float16 is 32752."""
    dy = size * np.array([[1.0], [1.0], [-1.0], [-1.0]]) * np.ones(N)
    dbias = next(
        e
        for e in linearity(run_at("layernorm_bwd", replace(SPEC, dtype="float16"), contract, dy=dy))
        if e.output == "dbias"
    )
    together = np.abs(near[0].exact["dy"].sum(0)) == 2 * size
    assert 0 < together.sum() < N
    assert (np.isfinite(dbias.tolerance) == (judged | ~together)).all()


@pytest.mark.parametrize(("variant", "power"), [(0, 1), (1, 4), (2, 9)])
def test_x_moves_by_a_power_of_two_beyond_it(near, variant, power):
    for most, binade in ((0.25, -2), (0.3, -1), (1.0, 0)):
        equations = shift(run_at("layernorm_fwd", replace(PLAIN, variant=variant), x=most * X))
        near_by, far = near.pop().exact["x"], near.pop().exact["x"]
        c = 2.0 ** (binade + power)
        assert (far - near_by == c).all()
        np.testing.assert_allclose(near_by, most * X, atol=c * U)
        moves = {e.output: f"move by {c:g} " in e.name for e in equations}
        assert moves == {"mean": True, "y": False, "rstd": False}
        assert all(f"x moves by {c:g}" in e.name for e in equations)


def test_a_fused_sum_moves_with_x(near):
    moves = {e.output: "move by" in e.name for e in shift(run_at("add_layernorm_fwd", residual=0 * X))}
    assert moves == {"residual_out": True, "mean": True, "y": False, "rstd": False}


@pytest.mark.parametrize(
    ("op", "fields", "size", "known"),
    [
        ("layernorm_fwd", {}, 1.0, True),
        ("rmsnorm_fwd", {}, 1.0, False),
        ("dropout_add_layernorm_fwd", {}, 1.0, False),  # which scales and drops what is moved
        ("layernorm_fwd", {"eps": 0.0}, 1.0, False),
        ("layernorm_fwd", {}, 0.0, False),
        ("layernorm_fwd", {}, 2047 * 2.0**-7, False),  # 1/4096 of the largest float16
        ("layernorm_fwd", {}, 2046 * 2.0**-7, True),
        ("layernorm_fwd", {}, 20.0, False),
        ("layernorm_fwd", {}, 2.0**-14, True),  # the smallest normal one
        ("layernorm_fwd", {}, 2.0**-15, False),
    ],
)
def test_x_moves_where_that_changes_nothing_else(near, op, fields, size, known):
    assert (shift(run_at(op, replace(PLAIN, dtype="float16", **fields), x=size * X)) is not None) == known


MOST = 32752.0  # half the largest float16


@pytest.mark.parametrize(
    ("values", "deltas", "known"),
    [
        ((0.0, 0.0), (MOST / 2, MOST / 2), False),
        ((0.0, 0.0), (MOST / 2, MOST / 2 - 16), True),
        ((-16000.0, 0.0), (0.0, MOST - 16016), True),
        ((-16000.0, 0.0), (MOST - 16000, 0.0), False),
        ((0.0, 16000.0), (0.0, MOST - 16000), False),
        ((0.0, 0.0), (np.inf, 0.0), False),
        ((0.0, np.nan), (0.0, 0.0), False),
    ],
)
def test_two_runs_near_overflow_are_not_compared(monkeypatch, values, deltas, known):
    ends = iter(zip(values, deltas, strict=True))

    def nearby(run, exact, *, truth):
        value, delta = next(ends)
        y = replace(run.case.expected["y"], value=np.full(X.shape, value), delta=np.full(X.shape, delta))
        return replace(run, case=replace(run.case, expected=run.case.expected | {"y": y}))

    monkeypatch.setattr(symmetries, "nearby", nearby)
    (y,) = (e for e in shift(run_at("layernorm_fwd", replace(PLAIN, dtype="float16"))) if e.output == "y")
    assert np.isfinite(y.tolerance).all() == np.isfinite(y.tolerance).any() == known


@pytest.mark.parametrize("change", ["missing", "of another type"])
def test_an_output_that_only_one_of_two_runs_has_is_not_compared(monkeypatch, change):
    """The others are."""
    calls = []

    def nearby(run, exact, *, truth):
        calls.append(exact)
        others = {name: one for name, one in run.outputs.items() if name != "y"}
        wrong = {} if change == "missing" else {"y": replace(run.outputs["y"], dtype="float64")}
        return replace(run, outputs=wrong | others) if len(calls) == 2 else run

    monkeypatch.setattr(symmetries, "nearby", nearby)
    assert {e.output for e in shift(run_at("layernorm_fwd"))} == {"mean", "rstd"}


def test_an_order_of_rows_is_drawn_by_the_seed(near):
    x = X * np.arange(1.0, 5.0)[:, None]
    for _ in range(2):
        permutation(run_at("layernorm_fwd", x=x))
    first, second = (case.exact["x"][:, 1] for case in near)
    assert sorted(first) == [1.0, 2.0, 3.0, 4.0]
    assert (first == second).all()
    assert any((run_at("layernorm_fwd", x=x).case.exact["x"] != case.exact["x"]).any() for case in near)


def test_rows_are_the_same_bits_where_the_contract_says_so(near):
    """A channel of BatchNorm is no row."""
    invariant = replace(TWO_PASS, batch_invariant=True)
    for op, spec in (("layernorm_fwd", PLAIN), ("batchnorm_fwd", IMAGES)):
        for contract in (TWO_PASS, invariant):
            for e in permutation(true_run(op, spec, contract)):
                exact = op == "layernorm_fwd" and contract is invariant
                assert (e.tolerance == 0).all() == (e.tolerance == 0).any() == exact, (op, e.output)
    fp8 = run_at("layernorm_fp8_fwd", replace(SPEC, scale=1.0))
    assert next(e for e in permutation(fp8) if e.output == "amax").tolerance > 0


def test_a_sum_beside_a_power_of_two_is_rounded_as_the_larger_number(near):
    """dweight is a little below 4, and may be a little above it."""
    contract = replace(TWO_PASS, batch_invariant=True)
    run = run_at("layernorm_bwd", replace(SPEC, dtype="bfloat16"), contract)
    (dweight,) = (e for e in permutation(run) if e.output == "dweight")
    assert (np.abs(dweight.left) < 4).all()
    np.testing.assert_allclose(dweight.tolerance, 2 * PRODUCTS * U + 2 * half("bfloat16", 4), rtol=1e-3)
