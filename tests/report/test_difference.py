"""A comparison for people: both runs' numbers side by side, what changed in words, and one verdict."""

import io
from math import inf

import pytest
from rich.console import Console

from verify_norm.report.compare.model import Change, Errors, Pair, Row, RunComparison
from verify_norm.report.difference import cases, columns, sentence, show_comparison, title, verdict


def errors(ratio=0.5, bias=0.01, correct=0.9):
    return Errors("y", "float16", False, 9, 100, ratio, 0.25, bias, 0.5, correct, 0.25, 0.3)


WORSE = Change("errors", "worse", "y float16 mean", "0.2 ULP", "0.4 ULP", "by more than a factor of 1.5")
SAME = Change("finding", "same", "accuracy y", "found", "found [again]", replay="verify-norm replay '{}'")


def pair(*changes, **other):
    given = {"kernel": "k", "old_kernel": "k", "op": "rmsnorm_fwd", "old_cases": 9, "new_cases": 9, "same_cases": True}
    return Pair(**(given | other), changes=changes, rows=(Row(errors(), errors(ratio=2.0)),), notes=("another torch",))


def test_what_is_equal_is_shown_once():
    ratio, mean, bias, p99, correct = columns(errors(), errors(ratio=2.0, bias=-0.03, correct=0.85))
    assert (ratio, mean, p99) == ("0.50 → 2.00", "0.25", "0.50")
    assert bias == "+0.01 → -0.03"
    assert correct.count("%") == 1  # the unit stands once, behind the new number
    assert columns(errors(bias=123.4), errors(bias=-inf))[2] == "+123.40 → -inf"


def test_words():
    assert title(pair(kernel="new", old_kernel="old")) == "old → new"
    assert cases(pair()) == "the same 9 cases in both runs"
    assert cases(pair(new_cases=12, same_cases=False)) == "9 → 12 cases"
    assert cases(pair(same_cases=False)) == "9 → 9 cases"  # as many, of another seed
    assert sentence(WORSE) == "y float16 mean: 0.2 ULP → 0.4 ULP (by more than a factor of 1.5)"
    assert sentence(SAME) == "accuracy y: found [again]"


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ((pair(WORSE), pair(WORSE, SAME)), "2 got worse; 2 kernels compared"),
        ((pair(SAME),), "nothing got worse; 1 kernel compared"),
        ((pair(WORSE, Change("errors", "better", "y", "1", "0.5")),), "1 got worse, 1 got better; 1 kernel compared"),
    ],
)
def test_the_verdict_counts_what_changed_in_all_pairs(pairs, said):
    assert verdict(RunComparison(pairs)) == said
    assert RunComparison(pairs).worse == ("nothing" not in said)


def test_a_finding_that_persists_is_not_replayed_and_text_is_no_markup():
    console = Console(width=120, record=True, file=io.StringIO())
    show_comparison(RunComparison((pair(WORSE, SAME),), old_alone=("gone",)), console)
    text = console.export_text()
    assert "as before accuracy y: found [again]" in text
    assert "replay:" not in text
    assert "note: another torch" in text
    assert "only in the old file: gone" in text
