"""The results of an audit as data."""

import doctest

from verify_norm.auditing import model
from verify_norm.auditing.model import Hunt, Ladder, Worst
from verify_norm.core.spec import CaseSpec


def test_the_largest_ratio_of_a_hunt_is_that_of_an_output_or_of_all():
    spec = CaseSpec((2, 3))
    worst = tuple(
        Worst(output, measure, value, spec, "drawn", value)
        for output, measure, value in (("y", "ratio", 0.5), ("rstd", "ratio", 2.0), ("y", "ulp", 7.0))
    )
    hunt = Hunt("k", "layernorm_fwd", 1.0, 3, 3, 0, 0, worst)
    assert (hunt.ratio(), hunt.ratio("y"), hunt.ratio("mean")) == (2.0, 0.5, 0.0)


def test_a_ladder_resembles_an_algorithm_only_if_no_other_is_near():
    assert Ladder("offset", "offset/scale", "y", "float32", (), like=("one_pass",)).resembles == "one_pass"
    assert Ladder("offset", "offset/scale", "y", "float32", (), like=("two_pass", "welford")).resembles is None


def test_doctests():
    assert doctest.testmod(model).failed == 0
