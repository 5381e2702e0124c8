"""A report as text: its tables, its findings, its verdict."""

import io
from dataclasses import replace

import pytest
import runs
from documents import REPORT, SHORT
from rich.console import Console

from verify_norm.core.diagnosis import Diagnosis
from verify_norm.core.tally import Skip
from verify_norm.core.ulp import UlpStats
from verify_norm.report import terminal


def text(report):
    console = Console(file=io.StringIO(), width=120, highlight=False)
    terminal.show_report(report, console)
    return console.file.getvalue()


def test_the_text_has_what_counts():
    shown = text(SHORT)
    for part in (
        "dx",
        "bfloat16",
        "2×3 offset -10",
        "✗ 7 of 9 cases",
        "right [sic]",
        "– no data  statistics — saved",
        "not checked: output rstd (9 cases): k does not return it",
        "FAIL k: 1 finding; 9 cases in 2.0 s (75 % in the kernel)",
    ):
        assert part in shown, shown
    assert "\nPASS k: 9 cases" in text(replace(SHORT, findings=()))
    limited = text(
        replace(SHORT, findings=(), skipped=(Skip("cases", "it takes x of 2 dimensions only", 3, limit=True),))
    )
    assert "\nPASS k, within its limits: 9 of 12 cases" in limited
    assert "not checked: cases (3 cases): it takes x of 2 dimensions only" in limited
    cut = text(replace(SHORT, findings=(), interrupted=True))
    assert "\nINCOMPLETE k: no finding so far; 9 cases" in cut
    assert "the run was interrupted after 9 cases" in cut
    assert "nothing checked: k" in text(replace(SHORT, findings=(), checks=(), cases=0))


def test_where_no_case_ran_one_line_stands_for_all_checks():
    idle = tuple(replace(check, cases=0, failed=0, no_data="no case ran") for check in SHORT.checks)
    shown = text(replace(SHORT, findings=(), tallies=(), checks=idle, cases=0))
    assert "– no data  of any check: no case ran" in shown
    assert shown.count("no case ran") == 1
    assert text(replace(SHORT, checks=idle)).count("no case ran") == len(idle)


def test_a_finding_has_a_row_for_each_fact():
    lines = text(SHORT).splitlines()
    start = lines.index("FAIL accuracy: dx[0, 1] is [inf] ULP")
    line = '{"kernel": "k", "op": "layernorm_bwd", "shape": [2, 3], "dtype": "bfloat16", "offset": -10.0, '
    assert lines[start + 1 : start + 7] == [
        "  case      2×3 bfloat16, offset -10.0, x transposed",
        "  element   dx[0, 1]",
        "  got       nan",
        "  expected  -inf   inf ULP away, 0.5 allowed",
        "  seen in   7 cases",
        f'  replay    verify-norm replay \'{line}"x_layout": "transposed"}}\'',
    ]
    assert "  expected  1.25   1.14e+04 ULP away, 813 allowed" in text(REPORT)
    assert "  seen in   13 cases, first in case 28" in text(REPORT)
    during = replace(SHORT, findings=(replace(SHORT.findings[0], during="second", got=None, index=None),))
    assert "  during    second" in text(during)
    assert "element" not in text(during).partition("FAIL")[2]


def test_what_explains_a_finding_stands_below_it_and_one_option_below_all():
    shown = text(replace(SHORT, diagnoses=(Diagnosis("dx", "stats=x", "saved narrow", "a library"),)))
    assert "  contract  explained by stats=x, saved narrow (a library): --contract stats=x declares it." in shown
    assert (
        "A weaker contract explains all findings: if the kernel is meant to do so, --contract stats=x declares it:"
        in shown
    )
    unexplained = text(replace(SHORT, diagnoses=(Diagnosis("dx"),)))
    assert "  contract  no contract that verify-norm knows explains it" in unexplained
    assert "weaker contract explains all" not in unexplained


def test_a_check_and_the_run_say_what_they_would_have_detected():
    shown = " ".join(text(REPORT).split())
    said = "Alone it would have detected a factor of 1 ± e on any output: e = 5.0e-07 (float32 y), 5.0e-06 (float16 y)."
    assert f"accuracy — right [sic] {said}" in shown
    assert "determinism — the same bits ✓" not in shown.replace(said, "")
    assert "all of any output: e = 5.0e-07 (float32 y), 5.0e-06 (float16 y)" in shown
    assert "one element of it in every case: e = 1.0e-06 (float32 y), none (float16 y)" in shown
    assert "would have detected" not in text(SHORT)


def test_the_worst_cases_show_what_their_data_do():
    lines = [line.split() for line in text(REPORT).splitlines()]
    assert ["y", "float16", "error/bound", "inf", "1.14e+03", "100", "0.99", "4×256", "offset", "100"] in lines
    assert ["y", "float16", "ULP", "inf", "inf", "100", "0.99", "4×256", "offset", "100"] in lines
    assert "  data      Σ|t|/|Σt| 1.14e+03, |μ|/σ 100, var/(var + eps) 0.99" in text(REPORT)
    long = replace(REPORT, tallies=(replace(REPORT.tallies[0], ratio=0.5, ulp=UlpStats(), probable=0.25),))
    assert "0.25" in text(long)
    assert "worst" not in text(long)  # the last rounding explains them


@pytest.mark.parametrize(("ratio", "color"), [(1.0, "green"), (1.01, "red")])
def test_the_columns_of_the_table_of_errors(ratio, color):
    tally = replace(runs.tally([0.1] * 950 + [3.0] * 48 + [60.0] * 2, ratio=ratio), probable=0.5)
    cells = {str(column.header): next(iter(column.cells)) for column in terminal._errors((tally,)).columns}
    ulp = tally.ulp
    assert ulp.quantile(0.9) < ulp.quantile(0.99) < ulp.quantile(0.999) <= ulp.maximum
    shown = {"max ULP": ulp.maximum, "p99": ulp.quantile(0.99), "mean": ulp.mean, "error/probable": 0.5}
    assert {name: cells[name] for name in shown} == {name: f"{value:.2f}" for name, value in shown.items()}
    assert cells["error/bound"] == f"[{color}]{ratio:.2f}[/]"
    assert cells["elements"] == "1,000"


def test_what_is_not_promised_says_how_often_it_held():
    assert "Not promised; it held in 38 of 39." in text(REPORT)
