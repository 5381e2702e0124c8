"""The formulas over the field: how a weight meets the rows of groups, and how sure an identity is."""

from types import SimpleNamespace

import numpy as np
import pytest

from verify_norm.proof import certificate
from verify_norm.proof import field as f
from verify_norm.proof.field import P
from verify_norm.proof.prover import SEEDS
from verify_norm.proof.truth import Size


def test_a_weight_of_groups_meets_the_channels_of_its_group():
    size = Size(rows=4, columns=6, groups=2, positions=3)  # two samples, two groups of two channels
    assert size.parameters == 4
    first, second = [10, 10, 10, 11, 11, 11], [12, 12, 12, 13, 13, 13]
    assert size.along(np.arange(10, 14, dtype=np.uint64)).tolist() == [first, second, first, second]
    assert Size(2, 3).along(np.array([7, 8, 9], np.uint64)).tolist() == [[7, 8, 9]] * 2


@pytest.mark.parametrize("size", [Size(4, 6, 2, 3), Size(6, 4, 3, 1), Size(5, 7)])
def test_a_sum_over_what_a_weight_serves_is_the_adjoint(size):
    rng = np.random.default_rng(0)
    weight = rng.integers(1, P, size.parameters, dtype=np.uint64)
    terms = rng.integers(1, P, (size.rows, size.columns), dtype=np.uint64)
    one = f.total(f.total(f.mul(size.along(weight), terms), 1), 0)
    assert one == f.total(f.mul(weight, size.across(terms)), 0)


def test_each_point_is_a_square_and_any_row_may_fit():
    outcome = SimpleNamespace(proved=SimpleNamespace(degree=3, rows=5))
    assert certificate._probability(outcome) == f"at most ({2 * 3 * 5}/{P})^{len(SEEDS)} that an identity is false"
