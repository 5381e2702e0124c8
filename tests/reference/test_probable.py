"""Errors by chance, by hand for one row, and each row for itself."""

import math
from dataclasses import replace

import numpy as np
import pytest

from verify_norm.reference import layernorm, rmsnorm
from verify_norm.reference.arithmetic import Arithmetic
from verify_norm.reference.probable import ALIKE, bias_error, row_sum_error, weight_error
from verify_norm.reference.rounding import XhatError
from verify_norm.reference.view import rows

SINGLE = Arithmetic(u=2.0**-12, tiny=2.0**-40, huge=1e30)
TF32 = replace(SINGLE, products="tf32")
LAMBDA = 3.0
XHAT, DY = np.array([[0.5, -4.0, 3.5]]), np.array([[2.0, -0.25, 1.0]])
OFF = XhatError(
    shift=np.array([[2.0**-6]]),
    factor=np.array([[2.0**-7]]),
    magnitude=np.array([[1.0, 5.0, 4.0]]),
    unit=2.0**-8,
    floor=np.array([[2.0**-9]]),
)


def norm(kind, x, weight=None):
    """Return a norm of rows with x̂ = x."""
    x, view = np.asarray(x), rows(np.asarray(x), (np.shape(x)[-1],))
    made = (
        layernorm.norm(view, x, weight, None, 0.0) if kind == "layernorm" else rmsnorm.norm(view, x, weight, 0.0, 0.0)
    )
    return replace(made, xhat=x)


@pytest.mark.parametrize("a", [SINGLE, TF32], ids=["float32", "tf32"])
def test_the_gradient_of_a_weight_in_one_row_is_off_by_its_own_term(a):
    """Σt²·(1 + 0 + 1) + (Σt)²·(2·3/6 + 2) is 5t²; products of TF32 miss more, and x̂'s error is one of the whole row."""
    terms, u = np.abs(DY * XHAT), a.u
    lost = (a.product_u + 4 * u) * math.sqrt(2) if a.operand_u else math.sqrt(5) * u
    each = (OFF.magnitude * (OFF.unit + u)) ** 2 + (OFF.factor * XHAT) ** 2 + (OFF.shift + OFF.floor) ** 2
    alike = ALIKE * u * terms
    if a.operand_u:
        alike = alike + OFF.factor * terms + OFF.shift * np.abs(DY)
    expected = LAMBDA * np.hypot(lost * terms, np.abs(DY) * np.sqrt(each)) + alike + a.tiny
    got = weight_error(norm("layernorm", XHAT), DY, OFF, a, LAMBDA)
    np.testing.assert_allclose(got.reshape(expected.shape), expected, rtol=1e-12)


@pytest.mark.parametrize("dy", [1.0, 1.0 + 2.0**-11])
def test_the_gradient_of_a_bias_misses_what_its_operand_does(dy):
    """TF32 holds 1, and not 1 + 2⁻¹¹; in float32 nothing is missed of a term."""
    terms = np.full((1, 3), dy)
    float32 = bias_error(norm("layernorm", XHAT), terms, SINGLE, LAMBDA)
    tf32 = bias_error(norm("layernorm", XHAT), terms, TF32, LAMBDA)
    missed = float(TF32.missed(terms).max())
    assert (missed > 0) == (dy > 1)
    assert np.allclose(float32, LAMBDA * math.sqrt(5) * SINGLE.u * dy + SINGLE.tiny, rtol=1e-12)
    assert np.allclose(tf32, LAMBDA * math.sqrt(2) * (missed + 4 * TF32.u * dy) + TF32.tiny, rtol=1e-12)


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_the_sum_of_a_row_has_an_error_of_its_own(kind):
    rng = np.random.default_rng(0)
    x, dy, phi = rng.normal(size=(3, 2, 8))
    together = row_sum_error(norm(kind, x), dy, wide(OFF, 8), SINGLE, LAMBDA, phi)
    assert together.shape == (2, 1)
    for row in range(2):
        one = (values[row : row + 1] for values in (x, dy, phi))
        x_, dy_, phi_ = one
        alone = row_sum_error(norm(kind, x_), dy_, wide(OFF, 8), SINGLE, LAMBDA, phi_)
        assert float(alone[0, 0]) == pytest.approx(float(together[row, 0]), rel=1e-12)


def wide(z, n):
    """Return the errors of x̂ for rows of n elements, all of which may be as large."""
    return replace(z, magnitude=np.full((1, n), 5.0))


@pytest.mark.parametrize("a", [SINGLE, TF32], ids=["float32", "tf32"])
@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_the_sum_of_one_element_is_off_by_its_roundings_by_hand(kind, a):
    """A row of one element, of x̂ = 0.5 and rstd = 1: its means are the element's own."""
    n = replace(norm(kind, [[0.5]]), rstd=np.ones((1, 1)))
    z = replace(OFF, magnitude=np.ones((1, 1)))
    u, g, phi = a.u, 2.0, 3.0
    shift, factor, floor, unit = (float(np.max(v)) for v in (z.shift, z.factor, z.floor, z.unit))
    product = (a.product_u + 4 * u) * math.sqrt(2) if a.operand_u else math.sqrt(5) * u
    alone = 4 * u * math.sqrt(2) if a.operand_u else math.sqrt(5) * u  # TF32 holds 2
    centred = kind == "layernorm"
    c1, c2 = g * 0.5, g if centred else 0.0
    dc1 = LAMBDA * (product * g * 0.5 + g * (unit + u)) + (5 * u + factor) * c1 + shift * c2
    dc2 = LAMBDA * alone * g + 5 * u * c2 if centred else 0.0
    most, dx = c1 + dc1, abs(g - c2 - 0.5 * c1)
    each = g * 2 * u + 2 * u * (c2 + dc2) + (unit + 4 * u) * most + floor * most + 6 * u * dx
    row = (factor + 6 * u) * phi * dx + phi * (dc2 + shift * most) + phi * 0.5 * (dc1 + factor * most)
    expected = row + LAMBDA * phi * each + 2 * a.tiny
    got = row_sum_error(n, np.array([[g]]), z, a, LAMBDA, np.array([[phi]]))
    assert float(got[0, 0]) == pytest.approx(expected, rel=1e-12)
