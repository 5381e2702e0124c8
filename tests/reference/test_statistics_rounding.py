"""The errors of statistics where x itself is off, by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from verify_norm.reference import layernorm, rmsnorm
from verify_norm.reference.arithmetic import Arithmetic
from verify_norm.reference.statistics_rounding import first, statistics_error
from verify_norm.reference.view import rows

COARSE = Arithmetic(u=2.0**-12, tiny=2.0**-40, huge=1e30)
X = np.array([[1.0, 3.0], [-2.0, 6.0]])  # means 2 and 2, variances 1 and 16
NORMS = {
    "layernorm": lambda x: layernorm.norm(rows(x, x.shape[-1:]), x, None, None, 0.0),
    "rmsnorm": lambda x: rmsnorm.norm(rows(x, x.shape[-1:]), x, None, 0.0, 0.0),
}


def errors(kind, x, off, a=COARSE):
    """Return the errors of the statistics of x as it is given, and where it is off."""
    n = NORMS[kind](np.asarray(x))
    with np.errstate(all="ignore"):
        return statistics_error(n, a), statistics_error(replace(n, off=np.broadcast_to(off, n.x.shape)), a)


def test_statistics_of_a_computed_x_move_with_it():
    """In the rows 1, 3 and −2, 6, of standard deviations 1 and 4, an error of (0.3, 0.4) has the length 0.25·√2."""
    given, computed = errors("layernorm", X, [0.3, 0.4])
    for row, deviation in enumerate((1.0, 4.0)):
        moved = math.sqrt(0.125) / deviation
        moved /= 1 - moved
        more = 1 + 4 * moved
        assert computed.mean[row, 0] == pytest.approx(given.mean[row, 0] * more + 0.35)
        assert computed.rho[row, 0] == pytest.approx((1 + given.rho[row, 0] * more) * (1 + moved) - 1)
    assert np.array_equal(computed.low, given.low)


def test_without_a_mean_the_rstd_alone_moves():
    given, computed = errors("rmsnorm", [[3.0, -3.0]], 0.6)
    more = 1 + 4 * 0.25
    assert not computed.mean.any()
    assert computed.rho[0, 0] == pytest.approx((1 + given.rho[0, 0] * more) * 1.25 - 1)


@pytest.mark.parametrize(("off", "finite"), [(0.96875, True), (1.0, False), (1.5, False), (3.0, False)])
def test_an_error_as_large_as_the_deviation_leaves_no_bound(off, finite):
    _, computed = errors("layernorm", [[1.0, 3.0]], off)
    assert np.isfinite(computed.rho).all() == finite
    assert (computed.rho > 0).all()


@pytest.mark.parametrize(("kind", "moves"), [("layernorm", False), ("rmsnorm", True)])
def test_a_row_of_one_element_has_no_deviation_that_moves(kind, moves):
    x = np.array([[4.0]])
    n = replace(NORMS[kind](x), rstd=np.array([[0.25]]))
    given, computed = (statistics_error(one, COARSE) for one in (n, replace(n, off=np.array([[1.0]]))))
    assert (computed.rho > given.rho).all() == moves
    if not moves:
        assert computed.rho[0, 0] == pytest.approx(given.rho[0, 0])
        assert computed.mean[0, 0] == given.mean[0, 0] + 1.0


def test_the_first_element_is_that_of_each_row():
    assert first(NORMS["layernorm"](np.array([[1.0, 5.0, 0.0], [7.0, 1.0, 1.0]]))).tolist() == [[-1.0], [4.0]]
