"""What a run detects, of what its cases say."""

from math import inf

from verify_norm.core.finding import SmallestError
from verify_norm.core.spec import CaseSpec
from verify_norm.search.detectable import RANK, DetectedErrors, ErrorOfCase


def told(*said):
    """A DetectedErrors of (sign, shape, whether it is a corner case, the errors)."""
    errors = [ErrorOfCase(SmallestError("y", sign, *e), CaseSpec(shape), corner) for sign, shape, corner, *e in said]
    return DetectedErrors(errors).detectable("accuracy", "y", "float32")


def test_the_least_error_of_the_corner_cases_counts_for_each_sign():
    found = told(
        *((1, (n,), True, e) for n, e in ((1, 3e-5), (2, 1e-5), (3, 9.0))),
        *((-1, (n,), True, e) for n, e in ((1, 4e-5), (2, 2e-5), (3, inf))),
        (1, (4,), False, 1e-9),
        (-1, (4,), False, 1e-9),
    )
    assert (found.check, found.output, found.dtype, found.cases) == ("accuracy", "y", "float32", 4)
    assert (found.everything, found.row, found.element, found.dropped) == (2e-5, None, None, None)


def test_random_cases_count_by_their_shapes_where_no_corner_case_tells():
    lucky = [(sign, (7,), False, 1e-9) for sign in (1, -1) for _ in range(9)]
    others = [(sign, (n,), False, n * 1e-5) for sign in (1, -1) for n in (1, 2, 3, 4)]
    assert told(*lucky, *others).everything == (RANK - 1) * 1e-5
    assert told(*lucky).everything == 1e-9


def test_a_row_and_an_element_lie_elsewhere_in_another_kernel():
    said = [(sign, (n,), True, 1e-6, n * 1e-5, n * 1e-4, n > 1) for sign in (1, -1) for n in (1, 2, 3, 4)]
    found = told(*said)
    assert (found.everything, found.row, found.element) == (1e-6, RANK * 1e-5, RANK * 1e-4)
    assert found.dropped == 0.75
