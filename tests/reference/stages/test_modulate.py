"""A modulation: which rows its parameters serve, and what its bound allows."""

import numpy as np
import pytest
from references import FLOAT32

from verify_norm.reference.stages.modulate import Modulate, grouped, spread
from verify_norm.reference.stages.stage import Approximate, apart, passed

Z = np.arange(24.0).reshape(6, 4) - 7
GIVEN = {"scale": np.array([[0.5], [-1.0]]) * np.ones(4), "shift": np.array([[1.0], [2.0]]) * np.ones(4)}


def test_a_row_serves_the_rows_of_its_sample_one_after_another():
    assert spread(GIVEN["scale"], Z)[:, 0].tolist() == [0.5] * 3 + [-1.0] * 3
    assert grouped(Z, GIVEN["scale"]).sum(1).tolist() == [Z[:3].sum(0).tolist(), Z[3:].sum(0).tolist()]
    assert spread(np.ones((0, 4)), np.ones((0, 4))).shape == (0, 4)


@pytest.mark.parametrize("shape", [(4, 4), (2, 3), (0, 4), (7,)])
def test_rows_that_do_not_fit_are_refused(shape):
    with pytest.raises(ValueError, match="expected rows of 4 elements that divide 6 rows, got"):
        spread(np.ones(shape), Z)


def test_an_error_of_z_is_multiplied_and_one_of_both_terms_is_not_lost_where_they_cancel():
    z = Approximate(Z, np.full(Z.shape, 0.25), np.abs(Z))
    y = passed(Modulate(), z, GIVEN, FLOAT32)
    assert (y.delta[:3] >= 1.5 * 0.25).all()
    assert (y.delta[:3] < 1.5 * 0.25 + 1e-4).all()
    cancelled = y.delta[3:] > 0  # z − z + shift: each term is rounded
    assert cancelled.all()
    assert (y.delta[3:] < 1e-4).all()
    shared = apart(Modulate(), z, np.zeros(()), GIVEN, FLOAT32)
    assert (shared < 1e-4).all()  # the runs share what z is off by


def test_what_may_overflow_is_not_judged():
    large = Approximate(Z * 1e38, 0 * Z, np.abs(Z) * 1e38)
    assert np.isinf(Modulate().own_error(large, GIVEN, FLOAT32)[5]).any()
