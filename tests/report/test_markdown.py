"""Markdown that GitHub shows as it is meant, whatever a kernel is called or says."""

import doctest
import re
from dataclasses import replace

import numpy as np
import pytest
from documents import PASSING
from markdown_it import MarkdownIt

from verify_norm.auditing.fingerprint.statement import Fingerprint, Statement
from verify_norm.auditing.model import Audit, Ladder, Rung, UlpReport
from verify_norm.core.contract import Contract
from verify_norm.core.diagnosis import Diagnosis
from verify_norm.core.finding import Finding
from verify_norm.core.results import Report
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.core.tally import CheckResult, Skip, Tally
from verify_norm.core.ulp import UlpStats
from verify_norm.report import markdown
from verify_norm.report.compare.compare import compare

NASTY = (
    "a|b",
    "`code`",
    "``x` y",
    "<b>bold</b>",
    "<script>alert(1)</script>",
    "line\nbreak",
    "# heading",
    "*x* _y_ ~z~",
    "[text](http://example.org)",
    "![i](x)",
    "https://example.org",
    "www.example.org",
    "&lt;amp;",
    "$x$",
    "\\|",
    "- item",
    "> quote",
    "1. one",
    "tab\there",
    "\x1b[31mred",
    "a@b.example",
    "\ud800",
    "</details>",
    "| a | b |\n|---|---|",
    "\u202eab",
)
RENDERER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def report(words="fine", **other):
    finding = Finding("k", "accuracy", "y", "fail", words, CaseSpec((2,)))
    ulp = UlpStats(4, 1, 3, np.inf, 2.0, 0.5, (0,) * 32 + (3,) + (0,) * 128 + (1,))
    made = Report(
        kernel=words,
        op="layernorm_fwd",
        target=words,
        backend="python",
        contract=Contract(),
        settings=Settings(),
        environment={"device": words},
        cases=9,
        seconds=2.0,
        seconds_in_kernel=1.0,
        findings=(finding,),
        tallies=(Tally("y", "float16", 9, 4, ulp=ulp, ratio=2.5),),
        checks=(CheckResult("accuracy", "x", 9, 1), CheckResult("statistics", "x", 0, 0)),
        skipped=(Skip(words, words, 3),),
        layouts={},
        bind=words,
    )
    return replace(made, **other)


def audit(words="fine"):
    ladder = Ladder("offset", words, "y", "float32", (Rung(1.0, 1.0, 2.0, {}),), 1.0, (words,))
    printed = Fingerprint("k", "layernorm_fwd", "cpu", (Statement("fma", words, words, 0.9),))
    errors = UlpReport("y", "float32", 1, 2, 0, 1.0, 0.5, 0.5, 1.0, 1.0, 0, 0.5, 0.1, 0.3, ((1.0, 2),))
    return Audit(report(words), (errors,), (), (ladder,), printed, (words,), (Skip("heat", words),))


def kinds(text):
    """Every element of the page but text, in order."""
    return [
        token.type
        for block in RENDERER.parse(text)
        for token in (block, *(block.children or ()))
        if token.type not in ("text", "inline", "softbreak", "text_special")
    ]


def shown(text):
    """What a reader sees, spaces aside."""
    seen = [
        token.content
        for block in RENDERER.parse(text)
        for token in (block.children or ())
        if token.type in ("text", "code_inline", "text_special")
    ]
    return "".join("".join(seen).split())


@pytest.mark.parametrize("words", NASTY)
def test_what_a_kernel_says_changes_no_structure(words):
    for make in (lambda w: markdown.of(report(w)), lambda w: markdown.of(audit(w)), compared):
        text = make(words)
        assert kinds(text) == kinds(make("fine")), text
        plain = re.sub(r"(`+).*?\1", "", text)
        assert not re.search(r"https?://|www\.|(?<!\\)@", plain), "GitHub would make a link of it"


def compared(words):
    old = replace(report("other"), kernel=words, findings=())
    return markdown.of_comparison(compare([old], [report(words)]))


@pytest.mark.parametrize("words", [w for w in NASTY if w.isprintable() and "\n" not in w])
def test_what_a_kernel_says_is_shown_to_the_letter(words):
    wanted = "".join(words.split())
    assert shown(markdown.escaped(words)) == wanted
    assert shown(f"- {markdown.escaped(words)}") == wanted
    assert shown(f"| a |\n|---|\n| {markdown.escaped(words)} |") == "a" + wanted
    assert shown(f"x {markdown.code(words)} x") == f"x{wanted}x"


def test_a_table_has_a_cell_for_each_head():
    for text in (markdown.of(audit("a|b")), compared("a|b")):
        rows = [line for line in text.splitlines() if line.startswith("|")]
        tables = "\n".join(rows).split("|---")
        assert len(tables) > 1
        tokens = [token.type for token in RENDERER.parse(text)]
        heads, bodies = tokens.count("th_open"), tokens.count("td_open")
        assert heads > 0
        assert bodies > 0
    (table,) = [block for block in markdown.of(report()).split("\n\n") if block.startswith("|")]
    widths = {len(re.split(r"(?<!\\)\|", line)) for line in table.splitlines()}
    assert widths == {11}


def test_it_says_what_counts():
    text = markdown.of(audit("k"))
    for part in (
        "### ❌ FAIL `k`",
        "1 finding and 1 disagreement with its contract",
        "**2.50**",
        "**FAIL accuracy**: k",
        "replay: `verify-norm replay",
        "errors in typical data",
        "**from 1**",
        "fma (float32): **k**",
        "not checked: k (3 cases): k",
        "statistics: no data",
    ):
        assert part in text.replace("\\", ""), part
    assert markdown.of(report(findings=())).startswith("### ✅ PASS `fine`")
    assert markdown.of(report(findings=(), interrupted=True)).startswith(
        "### ⚠️ incomplete `fine` layernorm\\_fwd: no finding so far; 9 cases"
    )
    assert markdown.of(report(findings=(), checks=())).startswith("### ⚠️ nothing checked")
    both = markdown.of(report("one"), report("two"))
    assert [token.type for token in RENDERER.parse(both)].count("heading_open") == 2


def test_what_explains_a_finding_is_said():
    made = report()
    explained = replace(
        made, diagnoses=tuple({f.output: Diagnosis(f.output, "lanes=8") for f in made.findings}.values())
    )
    assert "explainedbylanes=8" in shown(markdown.of(explained))
    assert "explainedby" not in shown(markdown.of(made))


def test_it_stays_small_enough_for_github():
    many = tuple(Finding("k", "accuracy", "y", "fail", "x" * 10**5, CaseSpec((2,))) for _ in range(200))
    assert len(markdown.of(report(findings=many)).encode()) < 2**17
    assert len(markdown.of(report("y" * 10**6)).encode()) < 2**17


def test_the_examples_in_its_documentation():
    assert doctest.testmod(markdown).attempted >= 2
    assert not doctest.testmod(markdown).failed


def test_an_audit_that_disagrees_with_its_contract_fails_at_first_sight():
    assert markdown.of(PASSING).startswith("### ✅ PASS")
    assert markdown.of(replace(PASSING, disagreements=("variance=centered, and it is one_pass",))).startswith(
        "### ❌ FAIL"
    )
