"""The algorithm of the variance, alone: each by its error at an offset, and undecided where the output is coarse."""

import emulations as em
import pytest

from verify_norm.auditing.fingerprint.rig import Rig
from verify_norm.auditing.fingerprint.statement import UNDECIDED
from verify_norm.auditing.fingerprint.variance import variance


def of(*, divisor="N", from_y=False, **how):
    rig = Rig(em.kernel("layernorm_fwd", em.layernorm_fwd(**how)), "cpu")
    (statement,) = variance(rig, None, divisor, from_y=from_y)
    return statement


@pytest.mark.parametrize("name", ["one_pass", "two_pass", "welford", "shifted"])
def test_each_algorithm_has_its_own_error(name):
    found = of(variance=name)
    assert found.said == name
    assert "σ of offset" in found.evidence


def test_the_divisor_changes_nothing_where_it_is_known():
    assert of(variance="two_pass", ddof=1, divisor="N-1").said == "two_pass"
    assert of(variance="two_pass", ddof=1).said == UNDECIDED


def test_statistics_that_are_too_coarse_say_nothing_and_y_does():
    coarse = of(variance="one_pass", kept="bfloat16")
    assert (coarse.said, coarse.confidence) == (UNDECIDED, 0.0)
    assert coarse.evidence.endswith("the output is too coarse")
    assert of(variance="two_pass", kept="bfloat16", from_y=True).said == "two_pass"
