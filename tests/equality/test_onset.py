"""Where a difference begins, and the cases of a scan."""

import pytest

from verify_norm.core.geometry import refusal, row_length
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.equality.onset import onset, resized, scan, size_of


@pytest.mark.parametrize("first", [1, 2, 3, 17, 768, 1025, 4999, 5000])
def test_the_first_size_is_found(first):
    assert onset(lambda n: n >= first, 5000) == (first, first - 1 or None)


def test_what_is_not_tried_is_not_claimed():
    assert onset(lambda n: None, 100) == (100, None)
    assert onset(lambda n: n >= 100 if n in (8, 64, 100) else None, 100) == (100, 64)


def test_a_difference_that_comes_and_goes_has_its_first_tried_size():
    assert onset(lambda n: n % 2 == 1, 9)[0] == 1
    since, equal = onset(lambda n: n in (16, 33), 33)
    assert (since, equal) == (16, 15)


@pytest.mark.parametrize("name", OPS)
def test_a_scan_has_every_power_and_its_successor_in_every_type(name):
    op = OPS[name]
    specs = scan(op, ("float32", "bfloat16"), "cpu")
    assert not [spec for spec in specs if refusal(spec, op)]
    for dtype in ("float32", "bfloat16"):
        assert {1024, 1025, 2048, 8193} <= {row_length(spec, op) for spec in specs if spec.dtype == dtype} | (
            {1025, 8193} if op.view == "groups" and "num_groups" in op.attrs else set()
        ), "two channels a group have even lengths alone"


def test_a_case_is_resized_along_one_axis():
    rows, groups = OPS["layernorm_fwd"], OPS["groupnorm_fwd"]
    spec = CaseSpec((2, 3, 4, 5), normalized_ndim=2)
    assert size_of(spec, rows, "M") == 6
    assert resized(spec, rows, "N", 7, "cpu").shape == (16, 7)
    assert resized(spec, rows, "M", 9, "cpu").shape == (9, 20)
    spec = CaseSpec((2, 6, 5), num_groups=2)
    assert resized(spec, groups, "N", 12, "cpu").shape == (2, 6, 4)
    assert resized(spec, groups, "N", 13, "cpu") is None
    assert resized(spec, groups, "M", 1, "cpu").shape == (1, 6, 5)
    assert resized(CaseSpec((4, 3)), OPS["batchnorm_fwd"], "M", 1, "cpu") is None
