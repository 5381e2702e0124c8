"""What a run says of the cases that it leaves out."""

from collections import Counter

from verify_norm.core.coverage import UNTIMED
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import Skip
from verify_norm.search.left_out import NAMED, shapes, skips


def test_a_reason_names_the_shapes_of_cases_that_are_too_slow():
    skipped = Counter({("cases", "slow"): 2, ("cases", "late"): 3, ("check power", "slow"): 1})
    specs = [CaseSpec((4, 12288), "bfloat16"), CaseSpec((2, 8), batch=300)]
    assert list(skips(skipped, {"slow": specs})) == [
        Skip("cases", "slow: 4×12288 bfloat16, 300×8 float32", 2),
        Skip("cases", "late", 3),
        Skip("check power", "slow", 1),
    ]


def test_no_case_is_too_slow_where_none_was_timed():
    skipped = Counter({("cases", "slow"): 2, ("cases", "it takes no NaN"): 3, ("cases", "late"): 1})
    specs = {"slow": [CaseSpec((4, 12288))], "late": [CaseSpec((4, 12288))]}
    assert list(skips(skipped, specs, timed=False)) == [Skip("cases", "it takes no NaN", 3), Skip("cases", UNTIMED, 3)]
    assert list(skips(skipped, {}, timed=False)) == list(skips(skipped, {}))


def test_of_many_shapes_some_are_named_and_each_once():
    specs = [CaseSpec((2, n)) for n in range(1, NAMED + 3)]
    assert shapes([*specs[:1] * 3]) == "2×1 float32"
    assert shapes(specs[:NAMED]).endswith(f"2×{NAMED} float32")
    assert shapes([*specs[:3], *specs]).endswith(f"2×{NAMED} float32 and 2 more")
    assert shapes(specs[: NAMED + 1]).endswith(f"2×{NAMED} float32 and 1 more")
