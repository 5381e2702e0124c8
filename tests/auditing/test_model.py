"""The results of an audit as data."""

import doctest
from dataclasses import replace

from documents import PASSING

from verify_norm.auditing import model
from verify_norm.auditing.model import Hunt, Ladder, Worst
from verify_norm.core.errors import Exit
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import Skip


def test_the_largest_ratio_of_a_hunt_is_that_of_an_output_or_of_all():
    spec = CaseSpec((2, 3))
    worst = tuple(
        Worst(output, measure, value, spec, "drawn", value)
        for output, measure, value in (("y", "ratio", 0.5), ("rstd", "ratio", 2.0), ("y", "ulp", 7.0))
    )
    hunt = Hunt("k", "layernorm_fwd", 1.0, 3, 3, 0, 0, worst)
    assert (hunt.ratio(), hunt.ratio("y"), hunt.ratio("mean")) == (2.0, 0.5, 0.0)


def test_a_hunt_that_compared_almost_nothing_is_no_pass():
    hunt = Hunt("k", "layernorm_fwd", 1.0, 3, 3, 0, 0, (), tried=100, compared=10)
    assert hunt.verdict is Exit.PASS
    assert replace(hunt, compared=9).verdict is Exit.NOTHING
    assert replace(hunt, tried=0, compared=0).verdict is Exit.NOTHING
    over = Worst("y", "ratio", 1.5, CaseSpec((2, 3)), "drawn", 1.5)
    assert replace(hunt, compared=9, worst=(over,)).verdict is Exit.FINDINGS


def test_a_lost_part_makes_an_audit_incomplete():
    lost = replace(PASSING, skipped=(Skip("ladders", "the kernel was lost: it hung"),))
    assert (PASSING.verdict, lost.verdict) == (Exit.PASS, Exit.INCOMPLETE)
    report = replace(lost.report, settings=replace(lost.report.settings, allow_incomplete=True))
    assert replace(lost, report=report).verdict is Exit.PASS
    assert replace(lost, disagreements=("variance",)).verdict is Exit.FINDINGS


def test_a_ladder_resembles_an_algorithm_only_if_no_other_is_near():
    assert Ladder("offset", "offset/scale", "y", "float32", (), like=("one_pass",)).resembles == "one_pass"
    assert Ladder("offset", "offset/scale", "y", "float32", (), like=("two_pass", "welford")).resembles is None


def test_doctests():
    assert doctest.testmod(model).failed == 0
