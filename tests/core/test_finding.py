"""The condition of an element in words."""

import pytest

from verify_norm.core.finding import Condition


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (Condition(1140.0, 0.5, 0.25), "Σ|t|/|Σt| 1.14e+03, |μ|/σ 0.5, var/(var + eps) 0.25"),
        (Condition(None, 0.0, None), "|μ|/σ 0"),
        (Condition(None, None, None), ""),
    ],
)
def test_a_condition_says_the_numbers_that_it_has(condition, words):
    assert str(condition) == words
