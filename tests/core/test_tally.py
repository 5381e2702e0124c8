"""Tallies count what they judge, and merge."""

from dataclasses import replace
from math import inf

import numpy as np

from verify_norm.core.run import Expected, Output
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import Place, Tally

SPEC = CaseSpec((2, 3))


def tally(ratio, spec=SPEC):
    """A tally of y = (1, one ulp above 2, no bound), whose errors are 0, 1 ulp and unknown."""
    want, delta = np.array([1.0, 2.0, 3.0]), np.array([0.0, 0.0, inf])
    output = Output("float16", (3,), np.array([1.0, 2.0 + 2.0**-9, 7.0]), np.array([0.0, ratio, 0.0]))
    return Tally.of("y", output, Expected(want, delta, "float16"), spec)


def test_a_tally_counts_what_has_no_bound_apart():
    one = tally(2.0)
    assert (one.cases, one.elements, one.unjudged) == (1, 3, 1)
    assert (one.ulp.count, one.ulp.maximum, one.ulp.correct) == (2, 1.0, 1)
    assert (one.ratio, one.index, one.worst) == (2.0, (1,), SPEC)
    assert one.farthest == Place(SPEC, (1,))
    assert (tally(0.0).index, tally(0.0).worst) == (None, None)  # nothing is off, so no case is the worst


def test_merged_tallies_add_up_and_keep_the_worst_case():
    other = CaseSpec((5, 7))
    for first, second in ((tally(2.0), tally(3.0, other)), (tally(3.0, other), tally(2.0))):
        both = first.merge(second)
        assert (both.cases, both.elements, both.unjudged, both.ulp.count) == (2, 6, 2, 4)
        assert (both.ratio, both.worst) == (3.0, other)


def test_merged_tallies_keep_the_largest_error_in_ulp_and_over_the_probable_error():
    far = replace(tally(1.0, CaseSpec((5, 7))), ulp=replace(tally(1.0).ulp, maximum=9.0), probable=0.5)
    for first, second in ((far, tally(2.0)), (tally(2.0), far)):
        both = first.merge(second)
        assert (both.worst, both.farthest.spec, both.probable) == (SPEC, far.worst, 0.5)
    assert far.merge(replace(tally(1.0), probable=0.75)).probable == 0.75
    assert tally(1.0).merge(tally(2.0)).probable is None


def test_a_tally_has_the_type_the_rounding_and_the_place_of_its_output():
    nowhere = tally(0.5)
    assert (nowhere.output, nowhere.dtype, nowhere.ratio, nowhere.worst, nowhere.index) == (
        "y",
        "float16",
        0.5,
        SPEC,
        (1,),
    )
    want = np.array([1e6, 1.0])
    for saturate, correct in (("saturate", 2), ("overflow", 1)):
        output = Output("float8_e5m2", (2,), np.array([57344.0, 1.0]), np.zeros(2))
        one = Tally.of("y", output, Expected(want, np.zeros(2), "float8_e5m2", saturate), SPEC)
        assert (one.ulp.correct, one.ulp.maximum > 0) == (correct, correct == 1)
        assert one.farthest == (None if correct == 2 else Place(SPEC, (0,)))


def test_of_equal_errors_the_first_case_stays():
    other = CaseSpec((5, 7))
    both = tally(2.0).merge(tally(2.0, other))
    assert (both.worst, both.farthest.spec) == (SPEC, SPEC)


def test_a_tally_of_nothing_and_a_small_error_beside_what_is_not_known():
    none = Output("float16", (0,), np.zeros(0), np.zeros(0))
    empty = Tally.of("y", none, Expected(np.zeros(0), np.zeros(0), "float16"), SPEC)
    assert (empty.elements, empty.ratio, empty.farthest) == (0, 0.0, None)
    want, delta = np.array([3.0, 1.0, 1.0 + 2.0**-12]), np.array([inf, 0.0, 0.0])
    small = Tally.of("y", Output("float16", (3,), np.ones(3), np.zeros(3)), Expected(want, delta, "float16"), SPEC)
    assert (small.ulp.maximum, small.farthest) == (0.25, Place(SPEC, (2,)))
