"""Which z0 of a chain no kernel can miss: sums and products of zeros."""

from dataclasses import replace

import numpy as np
import pytest

from verify_norm.core.dtypes import FORMATS
from verify_norm.reference import l2norm, layernorm, rmsnorm
from verify_norm.reference.arithmetic import Arithmetic
from verify_norm.reference.stages.gate import Gate
from verify_norm.reference.stages.steps import steps
from verify_norm.reference.view import rows

FLOAT32 = Arithmetic(u=2.0**-24, tiny=2.0**-126, huge=FORMATS["float32"].largest)
X = np.array([[0.0, 0.0, 0.0], [0.0, 2.0, 1.0], [1.0, 1.0, 3.0]])
ROW, EACH = np.array([[0.0], [9.0], [9.0]]) == X, X == 0
WEIGHT = np.array([2.0, 0.0, 3.0])
OFF = 0.25


def normed(norm, weight=None, bias=None):
    view = rows(X, None)
    if norm is layernorm:
        return layernorm.norm(view, X, weight, bias, 1.0)
    return rmsnorm.norm(view, X, weight, 1.0, 0.0) if norm is rmsnorm else l2norm.norm(view, X, 1.0)


def z0(n, dz=OFF):
    """The error of z0."""
    dz = np.broadcast_to(dz, X.shape)
    return steps((Gate(),), n, dz, {"gate": np.ones(X.shape)}, FLOAT32).zs[0].delta


@pytest.mark.parametrize(("norm", "zeros"), [(rmsnorm, EACH), (l2norm, EACH), (layernorm, ROW)])
def test_zeros_are_exact_each_alone_or_where_a_mean_is_subtracted_in_rows(norm, zeros):
    assert z0(normed(norm)).tolist() == np.where(zeros, 0.0, OFF).tolist()


def test_a_weight_of_zero_makes_an_exact_zero_and_a_bias_beside_it_is_a_term():
    assert z0(normed(layernorm, WEIGHT)).tolist() == np.where(ROW | (WEIGHT == 0), 0.0, OFF).tolist()
    bias = np.array([0.0, 0.0, 5.0])
    assert z0(normed(layernorm, WEIGHT, bias))[:, 2].tolist() == [OFF] * 3


def test_no_zero_is_exact_of_an_x_that_is_off_itself_or_beside_an_infinite_bound():
    n = normed(rmsnorm)
    assert z0(replace(n, off=np.zeros(X.shape))).tolist() == np.full(X.shape, OFF).tolist()
    infinite = np.where(X == 0, np.inf, OFF)
    assert z0(n, infinite).tolist() == np.where(ROW, 0.0, infinite).tolist()
    assert z0(normed(rmsnorm, WEIGHT), np.inf).tolist() == np.where(ROW, 0.0, np.inf).tolist()


def test_gradients_between_stages_are_rounded_where_results_are():
    narrow = replace(FLOAT32, z_u=2.0**-8, z_tiny=2.0**-133, z_huge=FORMATS["bfloat16"].largest)
    dy, given = np.full(X.shape, 2.0), {"gate": np.ones(X.shape)}
    lost = {
        a.z_u: steps((Gate(),), normed(rmsnorm), np.zeros(X.shape), given, a).pulled_error(dy, given, a)[1]
        for a in (FLOAT32, narrow)
    }
    assert (lost[2.0**-8] > lost[0.0] + 2.0**-8).all()
