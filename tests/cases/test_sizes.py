"""Shapes of given sizes, and the sizes of a shape."""

import pytest

from verify_norm.cases.sizes import SIZES, Classes, classes, instances, shaped, sizes
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec

ROWS, GROUPS, CHANNELS, INSTANCES = "rmsnorm_fwd", "groupnorm_fwd", "batchnorm_fwd", "instancenorm_fwd"


@pytest.mark.parametrize(
    ("op", "numbers", "leading", "inner", "made"),
    [
        (ROWS, (6, 64), 2, 1, {"shape": (2, 3, 64), "normalized_ndim": 1}),
        (ROWS, (1, 12), 0, 2, {"shape": (3, 4), "normalized_ndim": 2}),
        (ROWS, (0, 12), 3, 1, {"shape": (2, 2, 0, 12), "normalized_ndim": 1}),
        (ROWS, (8, 5), 3, 1, {"shape": (2, 2, 2, 5), "normalized_ndim": 1}),
        (ROWS, (2, 12), 0, 1, None),  # two rows want a dimension
        (ROWS, (1, 12), 0, 0, None),
        (GROUPS, (2, 3, 4, 12), 2, 2, {"shape": (2, 12, 3, 4), "num_groups": 3}),
        (GROUPS, (0, 3, 4, 1), 2, 0, {"shape": (0, 12), "num_groups": 3}),
        (GROUPS, (2, 3, 4, 5), 2, 0, None),  # five positions want a dimension
        (INSTANCES, (2, 3, 12), 2, 1, {"shape": (2, 3, 12)}),
        (CHANNELS, (5, 3, 30), 2, 3, {"shape": (5, 3, 5, 2, 3)}),
        (CHANNELS, (5, 3, 64), 2, 3, {"shape": (5, 3, 8, 2, 4)}),
        (CHANNELS, (5, 3, 2), 2, 0, None),
    ],
)
def test_a_shape_has_the_sizes_that_it_is_made_of(op, numbers, leading, inner, made):
    assert shaped(numbers, leading, inner, OPS[op]) == made
    if made:
        assert sizes(CaseSpec(**made), OPS[op]) == numbers


@pytest.mark.parametrize(
    ("op", "fields", "found"),
    [
        (ROWS, {"shape": (2, 3, 4)}, (6, 4)),
        (ROWS, {"shape": (2, 3, 4), "normalized_ndim": 2}, (2, 12)),
        (ROWS, {"shape": (5,)}, (1, 5)),
        (GROUPS, {"shape": (2, 6, 5, 4), "num_groups": 2}, (2, 2, 3, 20)),
        (CHANNELS, {"shape": (2, 6, 5, 4)}, (2, 6, 20)),
        (INSTANCES, {"shape": (2, 6, 5)}, (2, 6, 5)),
        (CHANNELS, {"shape": (2, 6)}, (2, 6, 1)),
    ],
)
def test_sizes_are_those_that_the_operator_sums_over_and_beside(op, fields, found):
    assert sizes(CaseSpec(**fields), OPS[op]) == found


@pytest.mark.parametrize(
    ("op", "names"),
    [
        (ROWS, ["rows", "N"]),
        (GROUPS, ["samples", "groups", "C/G", "positions"]),
        (CHANNELS, ["samples", "channels", "positions"]),
        (INSTANCES, ["samples", "channels", "positions"]),
    ],
)
def test_classes_are_those_of_the_operators_sizes(op, names):
    assert [one.of_what for one in classes(OPS[op])] == names
    assert instances(OPS[op]) is (op == INSTANCES)


def test_an_instance_has_more_than_one_position():
    """Of one, x̂ is 0."""
    assert [classes(OPS[op])[-1].examples[0] for op in (CHANNELS, INSTANCES)] == [(1,), (6, 12, 35, 49)]


@pytest.mark.parametrize("one", {one.of_what: one for some in SIZES.values() for one in some}.values(), ids=str)
def test_examples_are_in_their_class(one):
    assert all(one.of(number) == name for name, numbers in one.items() for number in numbers)


def test_a_class_ends_with_its_bound():
    some = Classes("eps", (0.0, 1e-7), ((0.0,), (1e-12,), (1.0,)))
    assert [some.of(number) for number in (0.0, 1e-30, 1e-7, 1.1e-7)] == [
        "eps ≤ 0",
        *["eps ≤ 1e-07"] * 2,
        "eps > 1e-07",
    ]
