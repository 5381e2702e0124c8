"""The worst cases of a report."""

from dataclasses import replace

from documents import CONDITION, REPORT, SHORT

from verify_norm.report.worst import worst_cases


def test_each_output_has_its_two_worst_cases_where_they_are_known():
    by_bound, by_ulp = worst_cases(REPORT)
    assert (by_bound.measure, by_bound.numbers) == ("error/bound", ["1.14e+03", "100", "0.99"])
    assert (by_ulp.measure, by_ulp.numbers) == ("ULP", ["inf", "100", "0.99"])
    (old,) = worst_cases(SHORT)  # a report of a version that knew no conditions
    assert old.numbers == ["–", "–", "–"]
    assert replace(old, condition=replace(CONDITION, offset=None)).numbers[1] == "–"


def test_what_the_last_rounding_explains():
    (one,) = worst_cases(SHORT)
    for dtype, measure, error, explained in (
        ("bfloat16", "error/bound", 1.0, True),
        ("bfloat16", "error/bound", 1.1, False),
        ("float32", "error/bound", 0.2, False),
        ("float32", "ULP", 0.5, True),
        ("bfloat16", "ULP", 6.0, False),
        ("float5", "error/bound", 1.0, False),
    ):
        assert replace(one, dtype=dtype, measure=measure, error=error).rounding == explained
