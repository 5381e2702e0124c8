"""A report in words and numbers: its verdict, its evidence, its numbers."""

import doctest
import io
import json
from dataclasses import replace
from math import inf, nan

import pytest
from documents import AUDIT, NOTHING, PASSING, REPORT
from rich.console import Console

from verify_norm.auditing.model import Rung
from verify_norm.core.contract import Contract
from verify_norm.core.coverage import Seen
from verify_norm.core.proved import Proved
from verify_norm.core.tally import Skip
from verify_norm.core.work import Compiled, Work
from verify_norm.pytest_plugin.verdicts import summary
from verify_norm.report import documents, markdown, terminal, words
from verify_norm.report.html.page import pages

WORK = Work(3, 5, 2.25, Compiled(74, 30, 2, 12.125))
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


SEEN = [
    "at most M = 4,097, N = 512, 65,536 elements; float32, float16; weights also float32; "
    "contiguous, every other, transposed",
    "calls: many calls, two threads; modes: no_grad",
    "it calls torch's aten::native_layer_norm in 21 of 98 cases",
]


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (None, ""),
        (Work(), ""),
        (Work(1, 0, 0.0, Compiled(1, 0, 0, 0.5)), "compiled 1 kernel in 0.5 s of 9.5 s"),
        (Work(1, 1, 0.25), "compiled nothing; started 1 process in 0.2 s"),
        (Work(1, 0, 0.0, Compiled(0, 7)), "compiled nothing; 7 kernels came from Triton's cache"),
        (
            WORK,
            "3 workers; compiled 74 kernels and 2 graphs of torch.compile in 12.1 s of 3 × 9.5 s; "
            "30 kernels came from Triton's cache; started 5 processes in 2.2 s",
        ),
    ],
)
def test_a_run_says_how_much_of_it_was_compilation(work, said, read):
    report = replace(REPORT, work=work)
    assert words.spent(report) == said
    assert words.seen(report) == SEEN + [said] * bool(said)
    assert said in read(pages(report)).text
    assert markdown.escaped(said) in markdown.of(report)
    assert documents.load(documents.dump(report)).work == work
    console = Console(file=io.StringIO(), width=200, highlight=False)
    terminal.show_report(report, console)
    assert said in console.file.getvalue()
    assert f"9.5 s ({14 if work == WORK else 42} % in the kernel)" in console.file.getvalue()


def test_a_run_says_what_it_saw_in_every_form(read):
    assert REPORT.contract == Contract()
    assert words.seen(REPORT) == SEEN
    paired = replace(REPORT, coverage=replace(REPORT.coverage, pairs=1200, possible=1234))
    assert words.seen(paired) == [SEEN[0] + "; 1,200 of 1,234 pairs of choices", *SEEN[1:]]
    console = Console(file=io.StringIO(), width=200, highlight=False)
    terminal.show_report(REPORT, console)
    after = console.file.getvalue().partition("\nFAIL onepass: 2 findings; 99 cases")[2]
    assert [line.strip() for line in after.splitlines()[1:]] == SEEN
    page = read(pages(REPORT)).text
    assert all(line in page for line in SEEN)
    assert [f"- {markdown.escaped(line)}" for line in SEEN] == markdown.of(REPORT).splitlines()[2:5]
    notes = summary([REPORT, replace(REPORT, op="layernorm_bwd")])["notes"]
    assert [f"{op}: {line}" for op in ("layernorm_fwd", "layernorm_bwd") for line in SEEN] == [
        note for note in notes if not note.startswith("not checked")
    ]


def test_a_run_says_what_is_proved_in_every_form(read):
    one = Proved(4096, "bfloat16", 1e-5, "contiguous", "every M", "NVIDIA H100", "strict,lanes=32", ("y", "rstd"))
    report = replace(REPORT, proofs=(one, replace(one, columns=64), replace(one, columns=8, stale="it is old")))
    said = (
        "proved for N = 64 and 4096, bfloat16, contiguous, eps = 1e-05, every M: y, rstd with contract strict,lanes=32"
    )
    stale = "nothing is proved for N = 8, bfloat16: the certificate is stale: it is old"
    assert words.seen(report) == [*SEEN, f"{said}, on an NVIDIA H100; sampled elsewhere", stale]
    assert words.seen(replace(report, seen=None))[1:] == [stale], "where no output was compared"
    assert documents.load(documents.dump(report)) == report
    assert said in read(pages(report)).text
    assert markdown.escaped(stale) in markdown.of(report)
    assert any(said in note for note in summary([report])["notes"])


def test_a_run_says_what_its_json_kept_and_no_more():
    assert documents.load(documents.dump(REPORT)).seen == REPORT.seen
    old = {name: value for name, value in json.loads(documents.dump(REPORT)).items() if name != "seen"}
    assert documents.load(json.dumps(old)) == replace(REPORT, seen=None)
    assert words.seen(replace(REPORT, seen=None)) == words.seen(replace(REPORT, coverage=None)) == []
    assert words.seen(replace(REPORT, seen=Seen(), coverage=replace(REPORT.coverage, compared=0))) == []


def test_a_contract_that_is_not_the_strict_one_stands_beside_the_verdict():
    seen = replace(REPORT.seen, group=4, operators={}, ways={})
    assert words.seen(replace(REPORT, contract=Contract(xhat="x"), seen=seen)) == [
        SEEN[0].replace("N = 512,", "N = 512, C/G = 4,"),
        "contract: xhat=x",
    ]


def test_a_run_without_a_gpu_is_labelled(read):
    assert "interpreter: this is no evidence about a GPU" in words.evidence(REPORT)
    unknown = words.evidence(replace(REPORT, backend="python"))  # as of any callable: it may use no Triton
    assert unknown.startswith("It ran on the CPU, Triton code, if any, in its interpreter:")
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
    assert doctest.testmod(words).attempted >= 3
    assert not doctest.testmod(words).failed


@pytest.mark.parametrize(
    ("error", "ratio", "unjudged"), [(0.0, 0.0, False), (12.0, 0.0, True), (12.0, 0.5, False), (nan, 0.0, True)]
)
def test_a_step_without_a_bound_has_an_error_and_no_ratio(error, ratio, unjudged):
    assert words.unjudged(Rung(1.0, error, ratio, {})) == unjudged
