"""The check `gradient`: wrong backwards that it convicts against their own forward, and right ones that it passes."""

from dataclasses import replace

import hypothesis
import numpy as np
import pytest
from counted import PLAIN, QUIET, TWO_PASS, case_of
from counted import SPEC as EVEN
from counted import run_of as made_run
from norms import layernorm, layernorm_bwd

from verify_norm.cases import make, strategies
from verify_norm.checks import CHECKS, gradient
from verify_norm.checks.relations.equations import Comparison, confidence
from verify_norm.checks.relations.forward import Moved, expected_at, reference_at
from verify_norm.checks.relations.rerun import NearbyError
from verify_norm.core import judge
from verify_norm.core.contract import Contract
from verify_norm.core.dtypes import FORMATS
from verify_norm.core.finding import Finding, NoData, SmallestError
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.running.execute import execute

DTYPES = ("float32", "float16", "bfloat16")
SPEC = CaseSpec(shape=(16, 64))
FORWARD, RIGHT = layernorm(), layernorm_bwd()
OF_DX = ("no c2", "no weight", "rstd of another row", "a row of zeros", "nan")
WRONG = [*((how, "dx") for how in OF_DX), ("one column", "dweight"), ("bias", "dbias")]


def accused(run):
    """The findings alone; the check yields its power too."""
    return [finding for finding in gradient.gradient(run) if isinstance(finding, Finding)]


def run_of(run=RIGHT, forward_run=FORWARD, spec=SPEC, **fields):
    kernel = Kernel("k", "layernorm_bwd", run=run, forward_run=forward_run, **fields)
    return execute(kernel, make.case(spec, OPS["layernorm_bwd"], kernel.contract))


def findings(run=RIGHT, forward_run=FORWARD, spec=SPEC, **fields):
    result = run_of(run, forward_run, spec, **fields)
    assert CHECKS["gradient"].looks(result)
    found = list(accused(result))
    assert all(f.message and f.spec == spec and f.check == "gradient" for f in found)
    return {f.output for f in found}


def some(how, dtype):
    """What is found on any of a few cases."""
    specs = [replace(SPEC, dtype=dtype, seed=number, variant=number) for number in range(4)]
    return set().union(*(findings(layernorm_bwd(how), spec=spec) for spec in specs))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("how", "output"), WRONG)
def test_a_wrong_gradient_is_convicted_in_every_type(how, output, dtype):
    assert output in some(how, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_right_gradient_passes(dtype):
    assert some("", dtype) == set()


@pytest.mark.parametrize(
    "spec",
    [
        CaseSpec(
            (1, 181), "bfloat16", eps=3e-8, data="constant", log2_scale=-70, bias_layout="scalar", variant=60, seed=147
        ),
        CaseSpec((97, 15), "float16", eps=1e-6, data="alternating", offset=100.0, weight_dtype="float32", variant=94),
    ],
    ids=["of a row", "of a column"],
)
def test_roundings_that_do_not_cancel_where_dy_has_one_sign(spec):
    """Elements of a row, or all rows, are alike, so their roundings are too; found by benchmarks/gradcheck.py."""
    for seed in (spec.seed, *range(20)):
        assert findings(spec=replace(spec, dy_data="one", weight=spec.offset != 0, seed=seed)) == set()


def test_a_forward_that_overflows_its_type_tells_nothing():
    """Its y is infinite at both ends of a step, which changes by no number."""
    op, spec = OPS["layernorm_bwd"], replace(SPEC, shape=(6, 40), dtype="float16")
    exact = make.exact_inputs(spec, op, "cpu")
    exact["weight"] = np.copysign(61440.0, exact["weight"])
    case = make.build(spec, op, Contract(), "cpu", exact, truth=True)
    result = execute(Kernel("k", "layernorm_bwd", run=RIGHT, forward_run=FORWARD), case)
    assert np.isinf(result.outputs["dx"].got).any()
    assert accused(result) == []


@pytest.mark.slow
def test_right_kernels_pass_on_random_cases():
    op, seen = OPS["layernorm_bwd"], []

    @hypothesis.seed(1)
    @hypothesis.settings(
        max_examples=200,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate,),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategies.specs(op, DTYPES, gradient.ELEMENTS))
    def one(spec):
        spec = replace(spec, further=("gradient",), weight_dtype=None)
        result = run_of(spec=spec)
        if CHECKS["gradient"].looks(result):
            assert not list(accused(result))
            seen.append(spec)

    one()
    assert len(seen) > 100


def test_a_forward_that_is_not_the_backwards_own_shows():
    def scaled(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = FORWARD(x, weight, bias, eps, normalized_shape)
        return 1.01 * y, mean, rstd

    assert "dx" in findings(forward_run=scaled)


def test_a_constant_error_of_the_forward_is_no_error_of_the_gradient():
    def shifted(x, weight, bias, eps, normalized_shape):
        return FORWARD(x, weight, bias, eps, normalized_shape)[0] + 0.5

    assert findings(forward_run=shifted) == set()


def test_the_finding_says_which_unit_and_what_would_have_shown():
    (found,) = accused(run_of(layernorm_bwd("a row of zeros"), spec=SPEC))
    assert found.index == (len(range(SPEC.shape[0])) // 2,)
    assert "row 8" in found.message
    assert "shows here" in found.message
    assert found.got == 0


@pytest.mark.parametrize(
    "options",
    [
        {"weight": False},
        {"bias": False},
        {"weight": False, "bias": False},
        {"offset": 1e4},
        {"data": "constant"},
        {"dy_layout": "scalar"},
        {"dy_layout": "expanded"},
        {"x_layout": "expanded"},
        {"x_layout": "transposed"},
        {"eps": 1e-12, "log2_scale": -60},
        {"data": "heavy", "log2_scale": 60},
        {"dy_log2_scale": -20},
        {"shape": (1, 1)},
        {"shape": (3, 2)},
        {"shape": (9,)},
        {"shape": (2, 3, 4, 5), "normalized_ndim": 2},
    ],
)
def test_unusual_cases_are_no_error(options):
    assert findings(spec=replace(SPEC, **options)) == set()


def test_it_says_what_it_cannot_look_at():
    check = CHECKS["gradient"]
    assert not check.looks(run_of(forward_run=None))
    assert not check.looks(run_of(spec=replace(SPEC, special="nan")))
    assert not check.looks(run_of(spec=replace(SPEC, shape=(0, 4))))
    assert not check.looks(run_of(spec=replace(SPEC, further=())))
    assert not check.looks(run_of(spec=replace(SPEC, shape=(100, 100))))
    assert not check.applies(OPS["layernorm_fwd"])


def test_a_forward_that_fails_is_told():
    def failing(x, weight, bias, eps, normalized_shape):
        raise RuntimeError("no such kernel")

    result = run_of(forward_run=failing)
    (found,) = accused(result)
    assert found.status == "error"
    assert "no such kernel" in found.message


@pytest.mark.parametrize(("dtype", "power"), [("float32", 1e-3), ("float16", 0.1), ("bfloat16", 0.5)])
def test_the_resolving_power_is_worth_having(dtype, power):
    for c in gradient.comparisons(run_of(spec=replace(SPEC, dtype=dtype))):
        assert c.power < power
        assert c.judged == c.left.size


def test_a_looser_contract_allows_more():
    strict, loose = (
        next(c.power for c in gradient.comparisons(run_of(contract=contract)) if c.output == "dx")
        for contract in (Contract(), Contract(xhat="bfloat16", stats="bfloat16"))
    )
    assert strict < loose / 10


@pytest.mark.parametrize(
    ("op", "applies"),
    [
        ("layernorm_bwd", True),
        ("rmsnorm_bwd", True),
        ("groupnorm_silu_bwd", True),
        ("gated_rmsnorm_bwd", True),  # whose gate is an input of a stage
        ("layernorm_fwd", False),
        ("add_layernorm_bwd", False),
        ("batchnorm_bwd", False),
    ],
)
def test_which_backwards_it_is_about(op, applies):
    assert CHECKS["gradient"].applies(OPS[op]) == applies
    assert not CHECKS["gradient"].applies(replace(OPS[op], user_defined=True))


@pytest.mark.parametrize(
    ("fields", "looks"),
    [
        ({"shape": (32, 64)}, True),
        ({"shape": (1, gradient.ELEMENTS + 1)}, False),
        ({"eps": 1e-30}, True),
        ({"eps": 0.0}, False),
    ],
)
def test_which_cases_it_looks_at(fields, looks):
    run = made_run(make.case(replace(SPEC, **fields), OPS["layernorm_bwd"], TWO_PASS))
    assert CHECKS["gradient"].looks(replace(run, kernel=replace(run.kernel, forward_run=FORWARD))) == looks


def test_a_backward_needs_its_forward():
    kernel = Kernel("k", "layernorm_bwd", run=RIGHT)
    assert "forward" in CHECKS["gradient"].lacks(kernel, ())
    assert CHECKS["gradient"].lacks(replace(kernel, forward_run=FORWARD), ()) == ""


# What it says of comparisons, and the comparisons alone, of runs that are made by hand.

ROW_OF_4 = np.array([4.0, 1.0, 2.0, 8.0])


def compared_by_hand(output, *errors, tolerance=0.5, unit="row"):
    """A comparison of four units, off by so much."""
    left = ROW_OF_4 + np.array([*errors, *[0.0] * (4 - len(errors))])
    return Comparison("a way", output, left, ROW_OF_4, np.full(4, tolerance), np.abs(ROW_OF_4), unit)


def said_of(monkeypatch, *found):
    monkeypatch.setattr(gradient, "comparisons", lambda run: list(found))
    return gradient.gradient(made_run(case_of(EVEN, "layernorm_bwd")))


def test_what_it_says_of_comparisons(monkeypatch):
    unjudged = compared_by_hand("dx", tolerance=np.inf)
    assert said_of(monkeypatch) == said_of(monkeypatch, unjudged) == (NoData(),)
    u = 2.0**-24
    at_the_bound = said_of(monkeypatch, unjudged, compared_by_hand("dweight", 0.0, 0.0, 0.5, tolerance=0.5))
    assert at_the_bound == (
        SmallestError("dweight", 1, 0.5 / 8 + u),  # of the largest unit
        SmallestError("dweight", -1, 0.0 + u),  # of one that is off by all its tolerance
    )
    (found,) = said_of(monkeypatch, compared_by_hand("dbias", 0.0, -0.75, 0.6, tolerance=0.5, unit="column"))
    assert (found.check, found.output, found.status, found.index) == ("gradient", "dbias", "fail", (1,))
    assert (found.got, found.want, found.allowed) == (1.0, 0.25, 0.5)
    for words in ("dbias of column 1", "a way", "0.75 apart", "error of 2 shows", "2 of 4 columns"):
        assert words in found.message


def test_an_element_at_its_bound_is_not_among_those_that_are_off(monkeypatch):
    (found,) = said_of(monkeypatch, compared_by_hand("dx", 0.5, -0.75))
    assert "1 of 4 rows" in found.message
    unseen = replace(compared_by_hand("dx", -4.0), tolerance=np.array([0.5, np.inf, 0.5, 0.5]))
    (found,) = said_of(monkeypatch, unseen)
    assert "1 of 3 rows" in found.message
    assert found.want == 0.0  # no relative error can be told of it, and none fails


def test_each_output_that_is_off_has_a_finding(monkeypatch):
    wrong = [compared_by_hand(output, 9.0) for output in ("dx", "dweight", "dbias")]
    assert [one.output for one in said_of(monkeypatch, *wrong)] == ["dx", "dweight", "dbias"]


def test_a_forward_that_does_not_offer_a_case_near_by_is_no_finding(monkeypatch):
    def fails(*why):
        def comparisons(run):
            raise NearbyError(*why)

        monkeypatch.setattr(gradient, "comparisons", comparisons)
        return gradient.gradient(made_run(case_of(EVEN, "layernorm_bwd")))

    assert fails() == (NoData(),)
    (found,) = fails("no room")
    assert (found.check, found.output, found.status) == ("gradient", None, "error")
    assert "no room" in found.message


def moving(monkeypatch, kernel=0.0, reference=0.0, allowed=0.0, most=0.0):
    """The forward changes by so much, whatever moves; what has moved is kept."""
    moves = []

    def move(run, plus, minus):
        moves.append((plus, minus))
        return Moved(*(np.broadcast_to(one, run.case.spec.shape) for one in (kernel, reference, allowed, most)))

    monkeypatch.setattr(gradient, "move", move)
    return moves


def columns(run):
    with np.errstate(all="ignore"):
        return list(gradient._columns(run))


WIDE = replace(EVEN, shape=(4, 64))


@pytest.mark.parametrize(("op", "step"), [("layernorm_bwd", 1 / 2), ("groupnorm_silu_bwd", 1 / 16)])
@pytest.mark.parametrize("variant", [0, 1])
def test_weight_and_bias_move_in_turn_along_random_signs(monkeypatch, op, step, variant):
    spec = replace(WIDE, shape=(2, 64, 2), num_groups=1, variant=variant)
    spec = replace(spec, shape=(4, 64)) if op == "layernorm_bwd" else spec
    case = make.case(spec, OPS[op], TWO_PASS)
    values = {"weight": np.full(64, -3.0), "bias": np.full(64, 7.0)}
    run = made_run(replace(case, exact=case.exact | values))
    moves = moving(monkeypatch)
    columns(run)
    columns(run)
    (plus, minus), (again, _) = moves
    assert {*plus} == {*minus} == {"weight", "bias"}
    for number, (name, size) in enumerate((("weight", 4.0), ("bias", 8.0))):
        mine = (np.arange(64) + variant) % 2 == number
        moved = plus[name] - values[name]
        assert np.array_equal(np.abs(moved), np.where(mine, size * step, 0.0))
        assert np.array_equal(minus[name] - values[name], -moved)
        assert {*np.sign(moved[mine])} == {-1.0, 1.0}
        assert np.array_equal(again[name], plus[name])


@pytest.mark.parametrize(
    ("op", "fields", "outputs"),
    [
        ("layernorm_bwd", {}, ["dweight", "dbias"]),
        ("layernorm_bwd", {"bias": False}, ["dweight"]),
        ("layernorm_bwd", {"weight": False}, ["dbias"]),
        ("layernorm_bwd", {"weight": False, "bias": False}, []),
        ("rmsnorm_silu_bwd", {}, ["dweight"]),
        ("qk_norm_rope_bwd", {}, []),  # a weight meets two columns
    ],
)
def test_which_columns_are_compared(monkeypatch, op, fields, outputs):
    moving(monkeypatch)
    run = made_run(make.case(replace(WIDE, **fields), OPS[op], TWO_PASS))
    assert [one.output for one in columns(run)] == outputs
    for name in outputs:
        left = {other: output for other, output in run.outputs.items() if other != name}
        assert [one.output for one in columns(replace(run, outputs=left))] == [n for n in outputs if n != name]
    only = {name: output for name, output in run.outputs.items() if name != "dx"}
    assert [one.output for one in gradient.comparisons(replace(run, outputs=only))] == outputs


def column(run, d, moved, name="bias"):
    mine = np.arange(d.size) % 2 == 0
    with np.errstate(all="ignore"):
        return gradient._column(run, name, d, moved, mine)


@pytest.mark.parametrize(("op", "shape"), [("groupnorm_bwd", (2, 4, 3)), ("layernorm_bwd", (2, 3, 4))])
def test_a_column_adds_up_what_one_weight_meets(op, shape):
    """In all samples and at all places; and its own gradient says the same."""
    run = made_run(make.case(replace(EVEN, shape=shape, num_groups=2), OPS[op], TWO_PASS))
    dy, change = run.case.exact["dy"], np.arange(24.0).reshape(shape)
    d, still = np.array([2.0, -3.0, 0.5, 7.0]), np.zeros(change.shape)
    one = column(run, d, Moved(change, still, still, still))
    axis = 1 if op == "groupnorm_bwd" else 2
    totals = [float((dy * change).take(number, axis).sum()) for number in (0, 2)]
    assert one.left.shape == one.tolerance.shape == (2,)
    assert one.left == pytest.approx(totals)
    assert one.right == pytest.approx(run.case.expected["dbias"].value[[0, 2]] * d[[0, 2]])
    assert np.array_equal(one.element, np.abs(one.right))
    assert (one.output, one.unit, bool(one.name)) == ("dbias", "column", True)


def test_a_column_of_an_activation_is_compared_beside_its_third_difference():
    """T is what the reference changes by beyond its derivative; the kernel's own change is taken less that."""
    run = made_run(case_of(replace(EVEN, num_groups=1), "groupnorm_silu_bwd", dy=np.full((4, 8), 2.0)))
    d, even = np.full(8, 0.25), np.arange(8) % 2 == 0
    one = column(run, d, Moved(*(np.full((4, 8), value) for value in (3.0, 5.0, 0.0, 0.0))))
    tangent = run.case.expected["dbias"].value[even] / 4
    T = 4 * 2 * 5.0 - tangent
    assert one.left == pytest.approx(4 * 2 * 3.0 - T)
    assert one.tolerance == pytest.approx(np.abs(T) / 8, rel=1e-4)


def test_the_bound_of_a_column_to_the_last_term():
    run = made_run(case_of(EVEN, "layernorm_bwd", dy=np.full((4, 8), 2.0)))
    still, tiny = np.zeros((4, 8)), np.full(8, 2.0**-40)
    by_chance = column(run, tiny, Moved(still, still, still + 1, still + 100))
    assert by_chance.tolerance == pytest.approx(confidence(8 + 1) * 2 * 4**0.5, rel=1e-6)
    allowed = judge.allowed(run.case.expected["dbias"])[::2]
    float64_error = 4 * 32 * 2.0**-53  # of float64, in a sum of 32 terms
    lost = column(run, np.zeros(8), Moved(still, still + 1e9, still, still))
    assert lost.tolerance == pytest.approx(float64_error * 4 * 2 * 1e9, rel=1e-12)
    run.case.expected["dbias"].value[:] = 2.0**40
    allowed = judge.allowed(run.case.expected["dbias"])[::2]
    lost = column(run, np.full(8, -1.0), Moved(still, still, still, still))
    assert lost.tolerance - allowed == pytest.approx(float64_error * 2.0**40, rel=1e-3)


def test_a_column_that_may_overflow_or_has_no_bound_is_not_judged():
    case = case_of(EVEN, "layernorm_bwd")
    largest, expected = FORMATS["float32"].largest, case.expected["dbias"]
    value, delta = np.zeros(8), np.zeros(8)
    value[2], delta[2] = largest, largest / 8
    run = made_run(replace(case, expected=case.expected | {"dbias": replace(expected, value=value, delta=delta)}))
    most = np.zeros((4, 8))
    most[1, 4] = np.nan
    still = np.zeros((4, 8))
    one = column(run, np.full(8, 2.0**-30), Moved(still, still, most, most))
    assert np.isfinite(one.tolerance).tolist() == [True, False, False, True]


NAMES_FROM = {0: [1, 3, 5, 7, 9], 1: [0, 2, 4, 6, 8]}  # the rows that have a structure, by variant


@pytest.mark.parametrize("variant", [0, 1])
def test_the_structures_take_turns_and_each_row_has_its_own_scale(variant):
    spec = replace(PLAIN, shape=(10, 8), variant=variant)
    run, rstd = made_run(make.case(spec, OPS["layernorm_bwd"], TWO_PASS)), 2.0 ** np.arange(10.0)[:, None]
    v, names = gradient._directions(run, 10, 8, rstd)
    turned = gradient.STRUCTURED[variant:] + gradient.STRUCTURED[:variant]
    assert [(row, names[row]) for row in NAMES_FROM[variant]] == [*zip(NAMES_FROM[variant], turned, strict=True)]
    for row, name in enumerate(names):
        x = run.case.exact["x"][row]
        largest = {"one coordinate": 8**0.5, "x̂": np.abs(x - x.mean()).max() * rstd[row, 0]}.get(name, 1.0)
        assert np.abs(v[row]).max() == pytest.approx(largest / rstd[row, 0])


@pytest.mark.parametrize(
    ("op", "weight", "offset", "sign"),
    [
        ("layernorm_bwd", -0.5, 0.0, -1.0),
        ("layernorm_bwd", -0.5, 1.0, 1.0),
        ("rmsnorm_bwd", -0.5, 1.0, 1.0),
        ("rmsnorm_bwd", -0.5, 0.0, -1.0),
        ("layernorm_bwd", 0.0, 0.0, 0.0),  # all is 0: one sign for all
        ("groupnorm_bwd", -0.5, 0.0, 1.0),  # each weight meets many elements: the signs of dy alone
    ],
)
def test_signs_along_dy_are_those_of_what_meets_x(op, weight, offset, sign):
    spec = replace(EVEN, shape=(10, 8), num_groups=1, weight_offset=offset)
    run = made_run(
        case_of(spec, op, x=np.tile([-1.0, 1.0], (10, 4)), dy=np.tile(QUIET[0], (10, 1)), weight=np.full(8, weight))
    )
    v, names = gradient._directions(run, 10, 8, np.ones((10, 1)))
    (row,) = np.flatnonzero(names == gradient.ALIGNED)
    assert np.array_equal(v[row], sign * QUIET[0] if sign else np.ones(8))


def rows_of(monkeypatch, **off):
    moves = moving(monkeypatch)
    run = made_run(make.case(replace(PLAIN, shape=(10, 8)), OPS["layernorm_bwd"], TWO_PASS), **off)
    with np.errstate(all="ignore"):
        one = gradient._rows(run)
    ((plus, minus),) = moves
    v, names = gradient._directions(run, 10, 8, gradient.norm(run).rstd.reshape(10, 1))
    return run, one, plus["x"] - minus["x"], v, names


def test_a_row_moves_along_its_direction_and_has_a_typical_term(monkeypatch):
    run, one, d, v, names = rows_of(monkeypatch)
    assert (d * v >= 0).all()
    assert (d * v > 0).any(1).all()
    for row, name in enumerate(names):
        terms = (run.outputs["dx"].got[row] * d[row])[d[row] != 0]
        assert (len(terms) == 1) == (name == "one coordinate")
        assert one.element[row] == pytest.approx(np.sqrt(np.mean(terms**2)))
        assert one.right[row] == pytest.approx(terms.sum())
    assert (one.output, one.unit) == ("dx", "row")


@pytest.mark.parametrize("row", [0, 1, 3])
def test_a_comparison_of_rows_is_named_by_its_worst_row(monkeypatch, row):
    off = np.zeros((10, 8))
    off[row] = 1e6
    _, one, _, _, names = rows_of(monkeypatch, dx=off)
    assert (one.worst, one.name) == (row, names[row])


def identity(spec, d, kernel=0.0, reference=0.0, allowed=0.0, most=0.0, dy=1.0, names=gradient.SIGNS):
    case = case_of(spec, "layernorm_bwd", dy=np.broadcast_to(dy, (4, 8)) * np.ones((4, 8)))
    moved = Moved(*(np.broadcast_to(one, (4, 8)) for one in (kernel, reference, allowed, most)))
    run = made_run(case)
    return run, gradient._identity(run, np.broadcast_to(d, (4, 8)), moved, np.full(4, names), 1.5)


@pytest.mark.parametrize(
    ("fields", "alike"),
    [
        ({}, False),
        ({"dy_layout": "expanded"}, False),  # all rows are one, but not the elements of a row
        ({"dy_layout": "scalar"}, True),
        ({"dy_data": "one"}, True),
    ],
)
def test_where_roundings_of_the_forward_may_add_up(fields, alike):
    """Each row has its own sum: of what it may be off by."""
    size = np.array([[1.0], [2.0], [4.0], [8.0]])
    _, (_, tolerance) = identity(replace(PLAIN, **fields), 2.0**-40, allowed=size, most=size)
    assert tolerance == pytest.approx(size[:, 0] * (8 if alike else 1.5 * 8**0.5), rel=1e-6)


@pytest.mark.parametrize(("names", "factor"), [(gradient.SIGNS, 1.5 * 8**0.5), ("x̂", 8.0)])
def test_what_dx_may_be_off_by_counts_with_the_step(names, factor):
    size = np.array([[1.0], [2.0], [4.0], [8.0]]) * 2.0**20
    run, (_, tolerance) = identity(PLAIN, size, dy=QUIET, names=names)
    own = judge.allowed(run.case.expected["dx"])
    assert own.min() == own.max()
    T = np.abs((run.case.expected["dx"].value * size).sum(1)) / 8
    assert tolerance - T == pytest.approx(size[:, 0] * own[0, 0] * factor, rel=1e-6)


def test_what_float64_loses_in_a_row():
    size = np.array([[1.0], [2.0], [4.0], [8.0]]) * 1e9
    _, (_, tolerance) = identity(PLAIN, 0.0, reference=size * QUIET, dy=1.0)  # whose sum is 0
    assert tolerance == pytest.approx(4 * 8 * 2.0**-53 * 8 * size[:, 0], rel=1e-12)
    case = case_of(PLAIN, "layernorm_bwd")
    case.expected["dx"].value[:] = QUIET * size
    case.expected["dx"].delta[:] = 0.0
    still, run = np.zeros((4, 8)), made_run(case)
    _, tolerance = gradient._identity(run, still + 1, Moved(still, still, still, still), np.full(4, "x̂"), 1.5)
    own = judge.allowed(case.expected["dx"]).sum(1)
    assert tolerance - own == pytest.approx(4 * 8 * 2.0**-53 * 8 * size[:, 0], rel=1e-4)


def step(lam, dy=1.0):
    """The steps of four rows, 64 elements each, along random signs."""
    case = make.case(replace(PLAIN, shape=(4, 64), eps=1e-5), OPS["layernorm_bwd"], TWO_PASS)
    run = made_run(replace(case, exact=case.exact | {"dy": dy * case.exact["dy"]}))
    v = np.random.default_rng(0).choice((-1.0, 1.0), (4, 64))
    with np.errstate(all="ignore"):
        return run, v, gradient._step(run, v, lam)


def test_a_step_has_limits():
    for lam, h in ((0.0, 2.0**-12), (1e12, 0.5), (np.inf, 1 / 8)):
        assert (step(lam)[2] == np.full((4, 1), h)).all()


def test_a_step_does_not_depend_on_the_size_of_dy():
    assert step(6.0, np.array([[1.0], [1e3], [1e-3], [7.0]]))[2] == pytest.approx(step(6.0)[2])


def test_a_step_has_the_least_cost():
    """Of rounding, and of a share of the third difference, for a step."""
    run, v, h = step(6.0)
    forward, dy = OPS["layernorm_fwd"], run.case.exact["dy"]

    def change(size):
        ends = [reference_at(forward, run.case, {"x": run.case.exact["x"] + end * v}).y for end in (size, -size)]
        return ends[0] - ends[1]

    rounding = 6.0 * np.sqrt(2 * ((dy * judge.allowed(expected_at(run, {}))) ** 2).sum(1))
    tangent = change(1e-4) / 1e-4
    for row in range(4):
        sizes = h[row] * np.geomspace(0.8, 1.25, 91)
        cost = [(rounding[row] + np.sqrt(((dy * (change(s) - s * tangent)) ** 2).sum(1))[row] / 8) / s for s in sizes]
        assert h[row] == pytest.approx(sizes[np.argmin(cost)], rel=0.02)


def test_the_rows_of_a_group_and_the_columns_of_two_dimensions_are_seen_flat(monkeypatch):
    spec = replace(EVEN, shape=(5, 4, 3), num_groups=2)
    case = make.case(spec, OPS["groupnorm_bwd"], TWO_PASS)
    change = np.arange(60.0).reshape(5, 4, 3)
    moves = moving(monkeypatch, kernel=change)
    with np.errstate(all="ignore"):
        one = gradient._rows(made_run(case))
    assert moves[0][0]["x"].shape == (5, 4, 3)
    T = -(case.expected["dx"].value * (moves[0][0]["x"] - moves[0][1]["x"])).reshape(10, 6).sum(1)
    assert one.left == pytest.approx((case.exact["dy"] * change).reshape(10, 6).sum(1) - T)
    moves = moving(monkeypatch)
    two = replace(EVEN, shape=(3, 4, 2), normalized_ndim=2)
    found = columns(made_run(make.case(two, OPS["layernorm_bwd"], TWO_PASS)))
    assert moves[0][0]["weight"].shape == (4, 2)
    assert [len(one.left) for one in found] == [4, 4]
