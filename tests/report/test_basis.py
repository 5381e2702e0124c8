"""What a verdict is based on: what the cases had in them, what is proved, what the run spent, and where it ran."""

import io
import json
from dataclasses import replace

import pytest
from documents import REPORT
from rich.console import Console

from verify_norm.core.contract import Contract
from verify_norm.core.coverage import Seen
from verify_norm.core.proved import Proved
from verify_norm.core.work import Compiled, Work
from verify_norm.pytest_plugin.verdicts import summary
from verify_norm.report import basis, documents, markdown, terminal
from verify_norm.report.html.page import pages

WORK = Work(3, 5, 2.25, Compiled(74, 30, 2, 12.125))
SEEN = [
    "at most M = 4,097, N = 512, 65,536 elements; float32, float16; weights also float32; other inputs also float32; "
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
    assert basis.spent(report) == said
    assert basis.seen(report) == SEEN + [said] * bool(said)
    assert said in read(pages(report)).text
    assert markdown.escaped(said) in markdown.of(report)
    assert documents.load(documents.dump(report)).work == work
    console = Console(file=io.StringIO(), width=200, highlight=False)
    terminal.show_report(report, console)
    assert said in console.file.getvalue()
    assert f"9.5 s ({14 if work == WORK else 42} % in the kernel)" in console.file.getvalue()


def test_a_run_says_what_it_saw_in_every_form(read):
    assert REPORT.contract == Contract()
    assert basis.seen(REPORT) == SEEN
    paired = replace(REPORT, coverage=replace(REPORT.coverage, pairs=1200, possible=1234))
    assert basis.seen(paired) == [SEEN[0] + "; 1,200 of 1,234 pairs of choices", *SEEN[1:]]
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
    assert basis.seen(report) == [*SEEN, f"{said}, on an NVIDIA H100; sampled elsewhere", stale]
    assert basis.seen(replace(report, seen=None))[1:] == [stale], "where no output was compared"
    assert documents.load(documents.dump(report)) == report
    assert said in read(pages(report)).text
    assert markdown.escaped(stale) in markdown.of(report)
    assert any(said in note for note in summary([report])["notes"])


def test_a_run_says_what_its_json_kept_and_no_more():
    assert documents.load(documents.dump(REPORT)).seen == REPORT.seen
    old = {name: value for name, value in json.loads(documents.dump(REPORT)).items() if name != "seen"}
    assert documents.load(json.dumps(old)) == replace(REPORT, seen=None)
    assert basis.seen(replace(REPORT, seen=None)) == basis.seen(replace(REPORT, coverage=None)) == []
    assert basis.seen(replace(REPORT, seen=Seen(), coverage=replace(REPORT.coverage, compared=0))) == []


def test_a_contract_that_is_not_the_strict_one_stands_beside_the_verdict():
    seen = replace(REPORT.seen, group=4, operators={}, ways={})
    assert basis.seen(replace(REPORT, contract=Contract(xhat="x"), seen=seen)) == [
        SEEN[0].replace("N = 512,", "N = 512, C/G = 4,"),
        "contract: xhat=x",
    ]


def test_a_run_without_a_gpu_is_labelled(read):
    assert "interpreter: this is no evidence about a GPU" in basis.evidence(REPORT)
    unknown = basis.evidence(replace(REPORT, backend="python"))  # as of any callable: it may use no Triton
    assert unknown.startswith("It ran on the CPU, Triton code, if any, in its interpreter:")
    assert basis.evidence(replace(REPORT, backend="torch")) == "It ran on the CPU: this is no evidence about a GPU."
    on_gpu = replace(REPORT, settings=replace(REPORT.settings, device="cuda"), environment={"device": "H200"})
    assert basis.evidence(on_gpu) == ""
    assert "no evidence" not in read(pages(on_gpu)).text
