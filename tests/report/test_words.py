"""A report in words and numbers: its verdict, its evidence, its numbers."""

import doctest
from dataclasses import replace
from math import inf, nan

import pytest
from documents import AUDIT, NOTHING, PASSING, REPORT

from verify_norm.core.results import Skip
from verify_norm.report import words
from verify_norm.report.html.page import pages

LIMIT = Skip("cases", "it takes x of 2 dimensions only", 12, limit=True)


@pytest.mark.parametrize(
    ("document", "word", "line"),
    [
        (AUDIT, "FAIL", "2 findings in 99 cases in 9.5 s, and the fingerprint disagrees with the contract in 1 point."),
        (REPORT, "FAIL", "2 findings in 99 cases in 9.5 s."),
        (replace(PASSING, disagreements=("a", "b")), "FAIL", "disagrees with the contract in 2 points."),
        (PASSING, "PASS", "No finding by 3 checks in 99 cases"),
        (replace(REPORT, findings=(), skipped=(LIMIT,)), "PASS", "99 of 111 cases in 9.5 s, within its limits."),
        (NOTHING, "Nothing checked", "This is not a pass: nothing was checked. output rstd: onepass does"),
        (replace(REPORT, findings=(), interrupted=True), "Incomplete", "This is not a pass."),
        (replace(REPORT, interrupted=True), "FAIL", "the run was interrupted"),
    ],
)
def test_the_verdict_comes_first_in_words(read, document, word, line):
    found = words.headline(document)
    assert found.word == word
    assert line in found.line
    assert (found.kind == "pass") == document.ok
    text = read(pages(document)).text
    assert text.index(word) < text.index(line) < text.index("Errors")


def test_a_run_without_a_gpu_is_labelled(read):
    assert "interpreter: this is no evidence about a GPU" in words.evidence(REPORT)
    assert words.evidence(replace(REPORT, backend="torch")) == "It ran on the CPU: this is no evidence about a GPU."
    on_gpu = replace(REPORT, settings=replace(REPORT.settings, device="cuda"), environment={"device": "H200"})
    assert words.evidence(on_gpu) == ""
    assert "no evidence" not in read(pages(on_gpu)).text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, "0"),
        (0.5, "0.50"),
        (999.99, "999.99"),
        (999.999, "1,000"),
        (1e6, "1.0 × 10⁶"),
        (-3.2e-5, "−3.2 × 10⁻⁵"),
        (nan, "NaN"),
        (-inf, "−∞"),
        (-6.1, "−6.10"),
    ],
)
def test_numbers_are_short_and_right(value, expected):
    assert words.number(value) == expected


def test_the_examples_in_its_documentation():
    assert doctest.testmod(words).attempted >= 4
    assert not doctest.testmod(words).failed
