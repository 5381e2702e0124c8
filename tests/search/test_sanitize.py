"""What compute-sanitizer says, read; and one line where it cannot run."""

import shutil
import subprocess

import pytest
from typer.testing import CliRunner

from verify_norm.cases.corners import corners
from verify_norm.cli.app import app
from verify_norm.core.errors import Exit
from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.core.spec import Kernel
from verify_norm.search import sanitize

SAID = """========= COMPUTE-SANITIZER
verify-norm case {"shape": [2, 3], "dtype": "float16"}
verify-norm case {"shape": [5, 65]}
========= Invalid __global__ write of size 4 bytes
=========     at _forward+0x1a0 in /somewhere/deep/kernel.py:12
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f00 is out of bounds
verify-norm case {"shape": [7, 33]}
========= Error: Race reported between Write access at 0x20 in k
=========     and Read access at 0x30
========= ERROR SUMMARY: 2 errors
"""


def test_what_it_says_is_a_finding_of_the_case_before_it():
    invalid, race = sanitize.read("k", "memcheck", SAID)
    assert invalid.spec.shape == (5, 65)
    assert invalid.message == "Invalid __global__ write of size 4 bytes, at _forward+0x1a0 in kernel.py:12"
    assert (invalid.check, invalid.status) == ("memcheck", "error")
    assert race.spec.shape == (7, 33)
    assert "Race reported" in race.message


def test_a_clean_run_says_nothing():
    assert not list(
        sanitize.read("k", "memcheck", 'verify-norm case {"shape": [2]}\n========= ERROR SUMMARY: 0 errors\n')
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sanitize", "memcheck", "--device", "cpu"], "checks CUDA kernels, but this run is on the CPU"),
        (["--sanitize", "memchek", "--device", "cpu"], "did you mean memcheck?"),
    ],
)
def test_where_it_cannot_run_one_line_says_why(arguments, words):
    result = CliRunner().invoke(app, ["--kernel", "rmsnorm_fwd", *arguments])
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output


LINE = 'verify-norm case {"shape": [2, 3]}\n'
CALM = "========= ERROR SUMMARY: 0 errors\n"
TABLE = len(corners(OPS["rmsnorm_fwd"], Settings().dtypes))


@pytest.mark.parametrize(
    ("said", "late", "verdict", "done"),
    [
        (LINE * TABLE + CALM, False, Exit.PASS, TABLE),
        (LINE * 40 + CALM, False, Exit.INCOMPLETE, 40),
        (LINE * 40, True, Exit.INCOMPLETE, 39),
        ("", True, Exit.INCOMPLETE, 0),
        ((LINE + "the kernel raised ValueError: no\n") * TABLE + CALM, False, Exit.NOTHING, TABLE),
        (SAID, True, Exit.FINDINGS, 2),
    ],
)
def test_it_passes_only_after_all_corner_cases(said, late, verdict, done, monkeypatch):
    def run(*args, **options):
        if late:
            raise subprocess.TimeoutExpired("compute-sanitizer", 9.0, output=said.encode())
        return subprocess.CompletedProcess(args, 0, stdout=said.encode())

    monkeypatch.setattr(sanitize.subprocess, "run", run)
    kernel = Kernel("k", "rmsnorm_fwd", run=lambda x, weight, eps: x)
    report = sanitize.sanitize(kernel, Settings(seconds=9.0), "memcheck", "compute-sanitizer")
    assert report.verdict is verdict
    assert report.coverage.corners_done == done


def test_it_is_looked_for(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *args, **options: None)
    with pytest.raises(sanitize.UsageError, match="not installed"):
        sanitize.find("cuda:0")
