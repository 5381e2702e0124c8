"""What the bound of each stage counts where magnitudes are small, as tests/reference/test_counted_roundings.py does.

A row leaves one term of a bound, and has its coefficient as the docstrings derive it. One that is twice as large fails.
"""

from dataclasses import replace

import numpy as np
import pytest

from verify_norm.core.ops import OPS
from verify_norm.reference import layernorm, residual_sum
from verify_norm.reference.activation import ACTIVATIONS
from verify_norm.reference.arithmetic import Arithmetic
from verify_norm.reference.stages.activate import Activate
from verify_norm.reference.stages.gate import Gate
from verify_norm.reference.stages.modulate import Modulate
from verify_norm.reference.stages.rotate import Rotate
from verify_norm.reference.stages.stage import Approximate, apart, passed, product_error, sum_error
from verify_norm.reference.stages.stage import rounded as rounded_between
from verify_norm.reference.stages.steps import steps
from verify_norm.reference.statistics_rounding import Given
from verify_norm.reference.view import rows

U, T, V = 2.0**-24, 2.0**-60, 2.0**-8  # a unit roundoff, an underflow, the unit roundoff of a narrow type
EXACT = Arithmetic(u=0.0, tiny=0.0, huge=1e30, variance="two_pass")
FINE = replace(EXACT, u=2.0**-53, tiny=2.0**-1000)
ROUNDS, FLUSHES = replace(EXACT, u=U), replace(EXACT, tiny=T)
SMALL = replace(FINE, tiny=2.0**-40)  # beside which no rounding counts
BETWEEN = replace(EXACT, z_u=V)  # results between operations are rounded to a narrow type
PIECES = replace(EXACT, products="bf16")  # an operand misses 2⁻⁷
NEAR = 1 + 2.0**-12  # a number that 8 bits do not hold
L = 4  # rows that one row of scale serves
SIGNS = np.array([[-1.0, 1.0, -1.0, 1.0]])  # mean 0, variance 1, x̂ = x

SIGMOID, OPEN = Gate("sigmoid"), {"gate": np.zeros((1, 1))}  # σ = 1/2, σ' = 1/4
SIGMA = ACTIVATIONS["sigmoid"]
alpha, slope_off = (float(f(np.zeros(1), ROUNDS)[0]) for f in (SIGMA.value_error, SIGMA.slope_error))
flushed, slope_flushed = (float(f(np.zeros(1), FLUSHES)[0]) for f in (SIGMA.value_error, SIGMA.slope_error))


def one(*values):
    """z, δz and the size of its terms: each a number."""
    return Approximate(*(np.full((1, 1), value) for value in values))


def gated(a, dy, lost, *z):
    return SIGMOID.pull_error(np.full((1, 1), dy), lost, one(*z), OPEN, a)


def rounded(a, *z):
    return SIGMOID.own_error(one(*z), OPEN, a)


def modulation(scale, shift=0.0):
    return {"scale": np.full((1, 1), scale), "shift": np.full((1, 1), shift)}


def modulated(a, scale, shift, *z):
    return Modulate().own_error(one(*z), modulation(scale, shift), a)


def pulled(a, scale, dy=0.0, lost=0.0, size=0.0, delta=0.0, count=1):
    """Of `count` rows alike."""
    z = Approximate(*(np.full((count, 1), value) for value in (0.0, delta, size)))
    return Modulate().pull_error(np.full((count, 1), dy), lost, z, modulation(scale), a)


def summed(a, terms=1.0, off=0.0, *, products):
    return sum_error(np.full((1, L, 1), terms), np.full((1, L, 1), off), 1, a, products=products)


def chained(name, a, x=SIGNS, **given):
    """The error of an operator of RMSNorm and σ, or of a modulation; whatever else it takes is 0."""
    op = OPS[name]
    others = {t.name: 0 * x for t in op.inputs if t.extent in ("data", "sample") and t.name != "x"}
    return op.error(**others | {"x": x, "weight": None, "eps": 0.0, "arithmetic": a} | given)


TERMS = np.array([[2 * 3 + 4 * 1, 2 * 1 + 4 * 3]])
TURN, TURNED = {"cos": np.full((1, 1), 2.0), "sin": np.full((1, 1), 4.0)}, np.array([[3.0, 1.0]])
LAST = {"silu": Activate("silu"), "one": one(2.0, 0.0, 9.0)}
COUNTED = {
    "product: of what its factors are off by": (product_error(*map(np.array, (3.0, 0.5, -2.0, 0.25)), EXACT), 1.875),
    "product: a rounding": (product_error(*map(np.array, (3.0, 0.0, -2.0, 0.0)), ROUNDS), 6 * U),
    "product: underflow": (product_error(*map(np.array, (0.0, 0.0, 0.0, 0.0)), FLUSHES), T),
    "sum of products: as many roundings as products": (summed(ROUNDS, 3.0, products=True), L * 3 * L * U),
    "sum: one less": (summed(ROUNDS, 3.0, products=False), L * 3 * (L - 1) * U),
    "sum: of what its terms are off by": (summed(EXACT, 3.0, 0.5, products=False), L * 0.5),
    "sum: roundings of those": (summed(ROUNDS, 3.0, 0.5, products=True) - L * 0.5, L * 3.5 * L * U),
    "sum: operands": (summed(PIECES, NEAR, products=False), L * NEAR * 2.0**-7),
    "sum of products: operands": (summed(PIECES, NEAR, products=True), L * NEAR * 2.0**-6),
    "sum: narrow partial sums": (summed(replace(EXACT, partials_u=V), 3.0, products=True), L * 3 * L * V),
    "sum: underflow": (summed(FLUSHES, products=True), L * T),
    "sum: underflow of a narrow type": (summed(replace(EXACT, narrow_tiny=T), products=False), L * T),
    "gate: its own error, and a product": (rounded(ROUNDS, 0.0, 1.0, 3.0), 4 * (alpha + U * 0.5)),
    "gate: underflow": (rounded(FLUSHES, 0.0, 0.0, 0.0), 1.5 * T),
    "gate: dz of a dy that is off": (gated(EXACT, 2.0, 1.0, 0.0, 0.0, 0.0).lost, 0.5),
    "gate: dz": (gated(ROUNDS, 2.0, 0.0, 0.0, 0.0, 0.0).lost, 2 * (alpha + U * 0.5)),
    "gate: dgate of what is off": (gated(EXACT, 2.0, 1.0, 0.0, 1.0, 3.0).gradients["gate"], 6 / 4),
    "gate: dgate": (gated(ROUNDS, 2.0, 0.0, 0.0, 0.0, 3.0).gradients["gate"], 6 * (slope_off + 2 * U / 4)),
    "gate: dgate, underflow": (
        gated(FLUSHES, 0.0, 0.0, 0.0, 0.0, 0.0).gradients["gate"],
        T * (1 + 0.25 + slope_flushed),
    ),
    "gate: terms": (SIGMOID.size(one(0.0, 0.0, 3.0), OPEN), 1.5),
    "modulate: four roundings of each term": (modulated(ROUNDS, -2.0, 0.0, 0.0, 1.0, 4.0), 4 * 3 * 5 * U),
    "modulate: two of shift": (modulated(ROUNDS, 0.0, -3.0, 0.0, 0.0, 0.0), 2 * 3 * U),
    "modulate: underflow": (modulated(FLUSHES, 2.0, 0.0, 0.0, 0.0, 0.0), 6 * T),
    "modulate: terms": (Modulate().size(one(0.0, 0.0, 5.0), modulation(-2.0, -3.0)), 3 * 5 + 3.0),
    "modulate: dz of a dy that is off": (pulled(EXACT, -3.0, lost=0.5).lost, 1.0),
    "modulate: dz": (pulled(ROUNDS, -3.0, dy=5.0).lost, 2 * 4 * 5 * U),
    "modulate: dz, underflow": (pulled(FLUSHES, 2.0).lost, 4 * T),
    "modulate: dscale": (
        pulled(ROUNDS, 0.0, dy=3.0, size=5.0, count=L).gradients["scale"],
        L * 15 * (L + 1) * U,  # the product in its own type, and the sum's
    ),
    "modulate: dscale of a z that is off": (pulled(EXACT, 0.0, dy=3.0, delta=0.5, count=L).gradients["scale"], L * 1.5),
    "modulate: dshift": (pulled(ROUNDS, 0.0, dy=3.0, count=L).gradients["shift"], L * 3 * (L - 1) * U),
    "modulate: dshift of a dy that is off": (pulled(EXACT, 0.0, lost=0.5, count=L).gradients["shift"], L * 0.5),
    "between: a rounding of z, and of what it is off by": (
        rounded_between(one(3.0, 1.0, 9.0), BETWEEN).delta,
        1 + 4 * V,
    ),
    "between: underflow": (rounded_between(one(3.0, 0.0, 3.0), replace(EXACT, z_u=T, z_tiny=T)).delta, 4 * T),
    "gate: a rounding of a(gate)": (rounded(BETWEEN, 0.0, 1.0, 3.0), 4 * V / 2),
    "gate: dz, of a(gate)": (gated(BETWEEN, 2.0, 0.0, 0.0, 0.0, 0.0).lost, 2 * V / 2),
    "gate: dgate, of dy·z": (gated(BETWEEN, 2.0, 0.0, 0.0, 0.0, 3.0).gradients["gate"], 6 * V / 4),
    "modulate: roundings of 1 + scale and the product": (
        modulated(BETWEEN, -2.0, -9.0, 0.0, 1.0, 4.0),
        15 * V + 15 * (1 + V) * V,
    ),
    "modulate: dz, of 1 + scale": (pulled(BETWEEN, -3.0, dy=5.0).lost, 4 * 5 * V),
    "modulate: dscale, of each dy·z": (pulled(BETWEEN, 0.0, dy=3.0, size=5.0, count=L).gradients["scale"], L * 15 * V),
    "rotate: roundings of both products": (
        Rotate().own_error(Approximate(TURNED, 0 * TURNED, TURNED), TURN, BETWEEN),
        TERMS * V,
    ),
    "rotate: dz": (Rotate().pull_error(TURNED, 0.0, one(0.0, 0.0, 0.0), TURN, BETWEEN).lost, TERMS * V),
    "activation: its own error": (
        LAST["silu"].own_error(LAST["one"], {}, ROUNDS),
        ACTIVATIONS["silu"].value_error(np.array(2.0), ROUNDS),
    ),
    "activation: its own error within δz": (
        LAST["silu"].own_error(one(0.0, 2.0, 0.0), {}, ROUNDS),
        ACTIVATIONS["silu"].value_error(np.array(2.0), ROUNDS),
    ),
    "activation: no terms before it": (LAST["silu"].size(LAST["one"], {}), 2 / (1 + np.exp(-2.0))),
    "activation: dz of a dy that is off": (
        LAST["silu"].pull_error(np.zeros((1, 1)), 3.0, one(0.0, 0.0, 0.0), {}, EXACT).lost,
        3 * 0.5,
    ),
    "activation: dz of its own slope": (
        LAST["silu"].pull_error(np.ones((1, 1)), 1.0, one(0.0, 0.0, 0.0), {}, ROUNDS).lost - 0.5,
        2 * 7 * U,
    ),
    "activation: z is off": (passed(LAST["silu"], one(0.0, 0.1, 0.0), {}, EXACT).delta, (0.5 + 0.5 * 0.1) * 0.1),
    "activation: its value": (passed(LAST["silu"], LAST["one"], {}, EXACT).value, 2 / (1 + np.exp(-2.0))),
    "activation: runs that share bits": (
        apart(LAST["silu"], one(0.0, 0.0, 0.0), np.array(3.0), {}, EXACT),
        3 * ACTIVATIONS["silu"].steepest,
    ),
    "gate: runs that share bits": (
        apart(SIGMOID, one(0.0, 0.0, 4.0), np.array(0.0), OPEN, ROUNDS),
        4 * (alpha + U * 0.5),
    ),
    "modulate: dz of what is off": (pulled(ROUNDS, -3.0, dy=5.0, lost=1.0).lost - 2.0, 2 * 4 * 6 * U),
    "sum: operands of what is off": (summed(PIECES, 3.0, 0.5, products=False), L * (0.5 + 3.5 * 2.0**-7)),
    "sum: operands in narrow partial sums": (
        summed(replace(PIECES, partials_u=2.0**-4), NEAR, products=False),
        L * NEAR * (0.25 + 1.25 * 2.0**-7),
    ),
    "runs that share bits": (apart(SIGMOID, one(0.0, 9.0, 0.0), np.array(3.0), OPEN, EXACT), 1.5),
    "chain: the terms of z": (
        steps((), layernorm.norm(rows(SIGNS, None), SIGNS, None, np.full(4, 3.0), 0.0), 0 * SIGNS, {}, EXACT)
        .zs[0]
        .size,
        np.array([2.0, 4.0] * 2) + 6,
    ),
    "chain: the statistics that it is given": (
        chained("gated_rmsnorm_sigmoid_bwd", FINE, dy=SIGNS**2, given=Given(np.zeros(1), np.array([1.25]))).dgate,
        0.25 / 4,
    ),
    "chain: what is flushed before the norm": (
        chained("add | rmsnorm | modulate_fwd", SMALL).y,
        chained("modulate_rmsnorm_fwd", residual_sum.flushing(SMALL)).y,
    ),
}


@pytest.mark.parametrize(("value", "counted"), [pytest.param(*row, id=name) for name, row in COUNTED.items()])
def test_a_bound_is_what_its_derivation_counts(value, counted):
    value = np.ravel(value)
    np.testing.assert_allclose(value, np.broadcast_to(np.ravel(counted), value.shape), rtol=1e-2, atol=1e-40)


def columns(a):
    """The errors of dscale and dshift, where dy is 2 ± 1 and z is 3 ± 1."""
    return pulled(a, 0.0, dy=2.0, lost=1.0, size=3.0, delta=1.0, count=L).gradients


SIZES = {  # the largest number that a kernel may meet on the way
    "activation": (lambda a: LAST["silu"].own_error(one(2.0, 1.0, 0.0), {}, a), 2 + 1),
    "gate": (lambda a: rounded(a, 0.0, 1.0, 3.0), 3 + 1),
    "gate: dz": (lambda a: gated(a, 2.0, 1.0, 0.0, 1.0, 3.0).lost, 2 + 1),
    "gate: dgate": (lambda a: gated(a, 2.0, 1.0, 0.0, 1.0, 3.0).gradients["gate"], 3 * 4 * (1 + 3)),
    "modulate": (lambda a: modulated(a, 2.0, -5.0, 0.0, 1.0, 3.0), 3 * 4 + 5),
    "modulate: dz": (lambda a: pulled(a, -3.0, dy=2.0, lost=1.0).lost, 4 * 3),
    "modulate: dscale": (lambda a: columns(a)["scale"], L * (2 + 1) * (3 + 1)),
    "modulate: dshift": (lambda a: columns(a)["shift"], L * (2 + 1)),
}


@pytest.mark.parametrize(("error", "largest"), SIZES.values(), ids=[*SIZES])
@pytest.mark.parametrize(("share", "judged"), [(0.99, False), (1.01, True)])
def test_what_may_overflow_is_not_judged(error, largest, share, judged):
    found = error(replace(ROUNDS, huge=share * largest))
    assert np.isfinite(found).all() == judged
    assert judged or np.isposinf(found).all()


NARROW_SIZES = {  # the largest result that is rounded to the type between operations
    "z": (lambda a: rounded_between(one(2.0, 1.0, 9.0), a).delta, 2 + 1),
    "gate: dgate": (lambda a: gated(a, 2.0, 0.0, 0.0, 1.0, 3.0).gradients["gate"], 2 * 4 * (1 + V)),
    "modulate": SIZES["modulate"],
    "modulate: dscale": (lambda a: pulled(a, -3.0, dy=2.0, size=3.0, count=L).gradients["scale"], 2 * 3),
    "rotate": (lambda a: Rotate().own_error(Approximate(TURNED, 0 * TURNED, TURNED), TURN, a), 2 * 3 + 4 * 1),
    "rotate: dz": (lambda a: Rotate().pull_error(TURNED, 0.0, one(0.0, 0.0, 0.0), TURN, a).lost, 2 * 3 + 4 * 1),
}


@pytest.mark.parametrize(("error", "largest"), NARROW_SIZES.values(), ids=[*NARROW_SIZES])
@pytest.mark.parametrize(("share", "judged"), [(0.99, False), (1.01, True)])
def test_what_may_overflow_between_operations_is_not_judged(error, largest, share, judged):
    with np.errstate(invalid="ignore"):
        found = np.asarray(error(replace(EXACT, z_u=V, z_huge=share * largest)))
    assert np.isfinite(found).any() == judged


def test_narrow_partial_sums_overflow_earlier():
    narrow = replace(ROUNDS, partials_u=V, narrow_huge=40.0)
    assert np.isposinf(columns(narrow)["scale"]).all()  # 48
    assert np.isfinite(columns(narrow)["shift"]).all()  # 12
    assert np.isfinite(columns(replace(narrow, partials_u=0.0))["scale"]).all()
