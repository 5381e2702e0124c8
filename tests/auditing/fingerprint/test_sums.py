"""The dtype of a sum."""

import doctest

import numpy as np
import pytest

from verify_norm.auditing.fingerprint import sums


@pytest.mark.parametrize(
    ("survived", "why"),
    [
        ([[False, False, False]], "a 1 is lost even next to small numbers"),
        ([[True, True, False, True]], "a 1 is lost next to a number and kept next to a larger one"),
        ([[True, True, True, True]], "a 1 is kept next to up to 2^9 in every place"),
    ],
)
def test_why_the_bits_are_unknown(survived, why):
    rows = np.array(survived)
    assert sums.bits(rows, np.arange(6, 6 + rows.shape[1])).why.startswith(why)


def test_doctests():
    assert doctest.testmod(sums).failed == 0
