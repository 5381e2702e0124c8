"""A ladder in words."""

from math import nan

import pytest

from verify_norm.auditing.model import Rung
from verify_norm.report import ladders


@pytest.mark.parametrize(
    ("error", "ratio", "unjudged"), [(0.0, 0.0, False), (12.0, 0.0, True), (12.0, 0.5, False), (nan, 0.0, True)]
)
def test_a_step_without_a_bound_has_an_error_and_no_ratio(error, ratio, unjudged):
    assert ladders.unjudged(Rung(1.0, error, ratio, {})) == unjudged
