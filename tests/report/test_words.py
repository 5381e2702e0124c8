"""A report in words: its verdict."""

from dataclasses import replace

import pytest
from documents import AUDIT, NOTHING, PASSING, REPORT

from verify_norm.core.tally import Skip
from verify_norm.report import words
from verify_norm.report.html.page import pages

LOST = Skip("ladders", "the kernel was lost: it hung")
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
        (replace(PASSING, skipped=(LOST,)), "Incomplete", "; not done: ladders. This is not a pass."),
        (replace(REPORT, interrupted=True, coverage=None), "FAIL", "the run was interrupted"),
    ],
)
def test_the_verdict_comes_first_in_words(read, document, word, line):
    found = words.headline(document)
    assert found.word == word
    assert line in found.line
    assert (found.kind == "pass") == document.ok
    text = read(pages(document)).text
    assert text.index(word) < text.index(line) < text.index("Errors")
