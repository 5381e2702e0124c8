"""Each rule bounds what float32 makes of operands within their errors, and not much more than that."""

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
