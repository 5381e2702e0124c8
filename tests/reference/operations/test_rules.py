"""Each rule bounds what float32 makes of operands within their errors, and not much more than that."""

import math
from dataclasses import replace

import numpy as np
import pytest

from verify_norm.reference.arithmetic import Arithmetic
from verify_norm.reference.operations import rules as module
from verify_norm.reference.operations.carried import Carried, carried
from verify_norm.reference.operations.operand import call
from verify_norm.reference.operations.rules import Known

U = 2.0**-24
SINGLE = Arithmetic(u=U, tiny=2.0**-126, huge=3.4e38)
DIVISION, ROOT = 4, 2  # roundings of CUDA's, as `arithmetic` has them
EXP = 4  # and 2.35|t| more, of __expf
OPERATIONS = {  # roundings of a kernel's own, and how many times larger the bound may be than what is reached
    "add": (1, 3), "subtract": (1, 12), "multiply": (1, 2), "divide": (DIVISION, 2), "negative": (0, 2),
    "absolute": (0, 2), "sqrt": (ROOT, 2), "exp": (EXP, 3), "log": (4, 60), "tanh": (2, 12), "maximum": (0, 4),
    "minimum": (0, 4), "sum": (3, 8), "max": (0, 4), "raised": (4, 8),
}  # fmt: skip
MORE = {"sum": (-1, False), "max": (-1, False), "raised": (1.7,)}
BOTH = ("add", "subtract", "multiply", "divide", "maximum", "minimum")


def reached(name, seed=0):
    """Return the largest error of a kernel over the bound, and of the bound over what is reached, typically."""
    rng = np.random.default_rng(seed)
    values = [np.float64(np.float32(rng.uniform(0.25, 2.0, (200, 4)))) for _ in range(1 + (name in BOTH))]
    if name not in ("sqrt", "log", "raised"):
        values = [v * rng.choice((-1, 1), v.shape) for v in values]
    deltas = [np.abs(v) * 2.0**-20 for v in values]
    operands = [Carried(v, d, SINGLE) for v, d in zip(values, deltas, strict=True)]
    exact = call(name, *operands, *MORE.get(name, ()))
    worst = np.zeros(exact.value.shape)
    for _ in range(40):
        moved = [v + d * rng.choice((-1.0, 1.0), v.shape) for v, d in zip(values, deltas, strict=True)]
        result = call(name, *moved, *MORE.get(name, ()))
        own = result * (1 + OPERATIONS[name][0] * U * rng.choice((-1.0, 1.0), result.shape))
        worst = np.maximum(worst, np.abs(own - exact.value))
    return (worst / exact.delta).max(), np.median(exact.delta / worst)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_bound_holds_and_is_tight(name):
    most, loose = reached(name)
    assert 0 < most <= 1
    assert loose <= OPERATIONS[name][1]


def test_a_rule_that_forgets_the_error_of_an_operand_is_seen(monkeypatch):
    monkeypatch.setitem(module.RULES, "tanh", lambda a, x: Known(np.tanh(x.value), np.full(x.value.shape, 4 * U)))
    assert reached("tanh")[0] > 1


@np.errstate(all="ignore")
def test_what_is_exact_has_no_error():
    x, zero = carried(np.array([0.75, 3.0]), SINGLE), carried(np.zeros(2), SINGLE)
    for exact in (x * 0.0, zero / x, np.sqrt(zero), x + zero, x * 4.0, -x, abs(x), np.maximum(x, 1.0)):
        assert not exact.delta[exact.value == 0].any()
    assert (x * 4.0).delta.max() <= SINGLE.tiny
    assert ((x + 1e-6).delta > x.value * U).all(), "1e-6 is no float32"


@pytest.mark.parametrize(
    "value",
    [
        lambda x: x * 1e30 * 1e30,  # overflows
        lambda x: np.exp(x * 100.0),
        lambda x: 1.0 / (x - x),
        lambda x: np.sqrt(x - 2.0),
        lambda x: np.log(x - x),
        lambda x: (x - x) ** -1.5,
        lambda x: np.tanh(x * np.inf),
    ],
)
def test_what_may_be_no_number_has_no_bound(value):
    with np.errstate(all="ignore"):
        assert np.isinf(value(carried(np.array([1.0, 3e30]), SINGLE)).delta).any()


def test_a_comparison_within_the_error_is_unsure():
    x = Carried(np.array([1.0, 1.0, 1.0]), np.array([0.0, 0.1, 0.1]), SINGLE)
    y = np.array([2.0, 1.05, 2.0])
    chosen = np.where(x < y, x * 0.0, x + 5.0)
    assert chosen.delta[1] >= 6.0 > chosen.delta[[0, 2]].max()
    tied = Carried(np.array([[1.0, 2.0, 2.0], [1.0, 2.0, 3.0]]), np.zeros((2, 3)), SINGLE)
    won = np.where(call("winner", tied, -1), 7.0, 0.0)
    assert won.delta.tolist() == [[0.0, 7.0, 7.0], [0.0, 0.0, 0.0]]


def test_a_value_that_may_be_flushed():
    x = carried(np.array([2.0**-130]), SINGLE)
    assert (x * 1024.0).delta[0] >= 2.0**-120


COARSE = Arithmetic(u=2.0**-10, tiny=2.0**-20, huge=1e30)  # its roundings are seen beside an operand's error


def bound(name, value, delta, *more):
    """Return the bound of a rule's result for one element."""
    with np.errstate(all="ignore"):
        return float(module.RULES[name](COARSE, Known(np.array([value]), np.array([delta])), *more).delta[0])


ZERO = Known(np.zeros(1), np.zeros(1))


def exactly(expected):
    return pytest.approx(expected, rel=1e-12)


def test_the_bound_of_a_sum_and_of_a_quotient():
    a, y = COARSE, Known(np.array([-2.0]), np.array([0.5]))
    assert bound("add", 3.0, 0.25, y) == exactly(0.75 + a.gamma(1) * (3.25 + 2.5) + a.tiny)
    assert bound("add", 3.0, 0.25, ZERO) == bound("subtract", 3.0, 0.25, ZERO) == 0.25
    assert bound("add", 0.0, 0.0, y) == 0.5
    change = (0.25 + 1.5 * 0.5) / (2.0 - 0.5)  # of the least divisor
    own = a.gamma(module.QUOTIENT) * (1.5 + change) + a.tiny * (1 + 3.25)
    assert bound("divide", 3.0, 0.25, y) == exactly(change + own)


@pytest.mark.parametrize(
    ("x", "y", "delta", "finite"),
    [
        (0.25, 2.0**-6, 0.0, True),
        (0.25, 2.0**-7, 0.0, False),  # its reciprocal, which a kernel may take, overflows
        (0.0, 2.0**-7, 0.0, True),  # 0 stays 0
        (0.0, 1.0, 1.0, False),  # but 0/0 is none
        (0.25, 1.0, 2.0, False),
    ],
)
def test_a_quotient_has_a_bound_where_no_divisor_is_0_and_no_reciprocal_overflows(x, y, delta, finite):
    operands = Known(np.array([x]), np.zeros(1)), Known(np.array([y]), np.array([delta]))
    with np.errstate(all="ignore"):
        found = module.RULES["divide"](Arithmetic(u=U, tiny=2.0**-126, huge=2.0**7), *operands)
    assert np.isfinite(found.delta).tolist() == [finite]


NARROW = replace(COARSE, partials_u=2.0**-6, narrow_tiny=2.0**-12, narrow_huge=64.0, atomic=True)


@pytest.mark.parametrize("rows", [2, 3, 40])
@pytest.mark.parametrize("by_row", [True, False])
@pytest.mark.parametrize("a", [COARSE, NARROW])
def test_the_bound_of_a_sum_of_rows_and_of_another(a, by_row, rows):
    """Of the first column nothing is lost, of the last one partial sums may overflow."""
    x = Known(np.tile([0.0, 0.25, 64.0 / rows, 1e29], (rows, 1)), np.tile([0.0, 0.125, 0.0, 0.0], (rows, 1)), by_row)
    size = np.array([0.0, 0.375, 64.0 / rows, 1e29]) * rows
    narrow = by_row and a is NARROW
    relative = a.over_rows.summed(rows) + rows * a.partials_u if by_row else a.summed(rows, module.QUOTIENT)
    least = (rows - 1) * a.tiny + rows * a.narrow_tiny * narrow
    expected = rows * np.array([0.0, 0.125, 0.0, 0.0]) + relative * size + least
    expected[0] = 0.0
    expected[size >= (a.narrow_huge if narrow else a.huge)] = math.inf
    found = module.RULES["sum"](a, x, 0, False).delta
    assert found.tolist() == [exactly(one) for one in expected]


def test_a_product_with_a_power_of_two_is_not_rounded():
    three, half = Known(np.array([3.0]), np.zeros(1)), Known(np.array([0.5]), np.zeros(1))
    assert bound("multiply", 3.0, 0.0, half) == bound("multiply", 0.5, 0.0, three) == COARSE.tiny
    assert bound("multiply", 3.0, 0.0, three) == exactly(9 * COARSE.gamma(1) + COARSE.tiny)
    change = 3.0 * 0.125
    assert bound("multiply", 0.5, 0.125, three) == exactly(change + COARSE.gamma(1) * (1.5 + change) + COARSE.tiny)
    assert bound("multiply", COARSE.tiny, 0.0, three) == COARSE.tiny  # the smallest number that is not flushed


@pytest.mark.parametrize(("delta", "expected"), [(0.75, 0.5), (2.0, math.inf), (1.0, 1.0)])
def test_a_root_has_a_bound_where_its_argument_is_not_negative(delta, expected):
    """The change from 1 down to 0.25 is a half."""
    own = COARSE.gamma(ROOT) * (1 + expected) + COARSE.tiny
    assert bound("sqrt", 1.0, delta) == exactly(expected + own)


@pytest.mark.parametrize(
    ("value", "delta", "expected"),
    [
        (2.0, 0.0, 0.25),
        (1.0, 0.5, 0.25),
        (-2.0, 1.0, 0.25),
        (0.0, 0.0, 0.125),
        (0.0, 0.5, 2.25),  # 0 or not, so either of both
        (1.0, 1.0, 2.25),
        (0.5, 1.0, 2.25),
    ],
)
def test_a_number_chooses_by_whether_it_is_0(value, delta, expected):
    sides = Known(np.array([3.0]), np.array([0.25])), Known(np.array([1.0]), np.array([0.125]))
    assert bound("where", value, delta, *sides) == expected
    assert bound("where", value, delta, sides[0], sides[0]) == 0.25


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ([math.inf], [1.0], math.inf),  # which a kernel may multiply with 0
        ([1.0], [math.nan], math.inf),
        (-math.inf, [1.0], 0.0),  # a number of the function itself is chosen
        ([1.0], -math.inf, 0.0),
    ],
)
def test_what_is_beside_no_number_of_an_array_has_no_bound(x, y, expected):
    x, y = (Known(np.array(values), np.zeros(np.shape(values))) for values in (x, y))
    chosen = np.isfinite(x.value).reshape(-1)[:1]  # the number
    found = module.RULES["where"](COARSE, module.Sides(chosen, np.zeros(1, dtype=bool)), x, y)
    assert found.delta.tolist() == [expected]


@pytest.mark.parametrize("delta", [0.0, 0.25, 0.5])
@pytest.mark.parametrize("x", [0.25, 2.0, 0.5])
def test_the_bound_of_a_function_is_its_change_and_so_many_roundings(x, delta):
    """4 and 2.35|t| for exp, as __expf has them; 8 and 6|log t| for log; for tanh 12, and those of its exponential."""
    u, tiny, largest = COARSE.u, COARSE.tiny, x + delta
    change = math.exp(x) * math.expm1(delta)
    assert bound("exp", x, delta) == pytest.approx(change + (4 + 2.35 * largest) * u * (math.exp(x) + change) + tiny)
    change = math.log(x) - math.log(x - delta) if delta < x else math.inf
    assert bound("log", x, delta) == pytest.approx(change + (8 + 6 * (abs(math.log(x)) + change)) * u)
    change = delta * (1 - math.tanh(max(x - delta, 0)) ** 2)  # by the steepest slope that is reached
    own = (1 - math.tanh(x) ** 2) * (2 + 2.35 * largest) + 12
    assert bound("tanh", x, delta) == pytest.approx(change + own * u)


@pytest.mark.parametrize(("x", "delta"), [(4.0, 1.0), (4.0, 0.0), (0.5, 0.25)])
@pytest.mark.parametrize("exponent", [1.5, -0.5, 3.0, 1.0])
def test_the_bound_of_a_power_is_its_change_to_either_end_and_so_many_roundings(x, delta, exponent):
    value = x**exponent
    change = max(abs(end**exponent - value) for end in (x - delta, x + delta))
    roundings = 8 + 4 * abs(exponent) + 2.35 * abs(exponent * math.log(x))
    expected = change + roundings * COARSE.u * (value + change) + COARSE.tiny
    assert bound("raised", x, delta, exponent) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("x", "delta", "exponent", "finite"),
    [
        (0.5, 1.0, 3.0, True),  # a whole power of any sign of x
        (0.5, 1.0, 1.0, True),
        (0.5, 1.0, 1.7, False),
        (0.5, 1.0, 0.0, False),
        (0.5, 1.0, -1.0, False),
        (0.5, 0.5, 1.7, False),  # it may be 0 or less
        (0.5, 0.25, 1.7, True),
        (0.0, 0.0, 1.7, True),
        (0.0, 0.0, 0.0, False),
        (-0.5, 0.25, 3.0, True),
    ],
)
def test_a_power_has_a_bound_where_its_base_has_its_sign_or_the_exponent_is_whole(x, delta, exponent, finite):
    assert math.isfinite(bound("raised", x, delta, exponent)) is finite


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.7])
def test_a_power_of_zero_is_exact(exponent):
    assert bound("raised", 0.0, 0.0, exponent) == 0.0


def test_a_whole_power_of_what_may_be_zero_changes_as_far_as_to_zero():
    value, change = 0.125, 1.5**3 - 0.125
    roundings = 8 + 12 + 2.35 * 3 * math.log(2)
    expected = change + roundings * COARSE.u * (value + change) + COARSE.tiny
    assert bound("raised", 0.5, 1.0, 3.0) == pytest.approx(expected)


def test_each_row_has_its_own_maximum_and_error():
    rows = Known(np.array([[1.0, 2.0], [5.0, 4.0]]), np.array([[0.5, 0.25], [0.125, 0.25]]))
    largest = module.RULES["max"](COARSE, rows, -1, False)
    assert (largest.value.tolist(), largest.delta.tolist()) == ([2.0, 5.0], [0.5, 0.25])
    assert module.RULES["max"](COARSE, rows, None, False).delta.tolist() == 0.5


@pytest.mark.parametrize(
    ("values", "deltas", "unsure"),
    [
        ([1.0, 1.25], [0.125, 0.125], [True, True]),  # both may be 1.125
        ([1.0, 1.25], [0.125, 0.0625], [False, False]),
        ([1.0, 1.25], [0.25, 0.0], [True, True]),
        ([1.0, 1.25, 0.5], [0.25, 0.0, 0.5], [True, True, False]),
    ],
)
def test_the_largest_is_unsure_where_another_may_be_as_large(values, deltas, unsure):
    rows = [np.array([v, [9.0, *np.zeros(len(v) - 1)]]) for v in (values, deltas)]
    rows[1][1] = 0.0  # in the other row it is sure
    value, found = module.RULES["winner"](COARSE, Known(*rows), -1)
    assert found.tolist() == [unsure, [False] * len(values)]
    assert value.tolist() == [[v == max(values) for v in values], [True] + [False] * (len(values) - 1)]


def test_parts_that_are_joined_keep_their_errors():
    parts = [Known(np.ones((1, 2)), np.full((1, 2), error)) for error in (0.5, 0.25)]
    joined = module.RULES["concatenate"](COARSE, parts, 0)
    assert joined.delta.tolist() == [[0.5, 0.5], [0.25, 0.25]]
