"""What compute-sanitizer says, read; and one line where it cannot run."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from verify_norm.cases import make
from verify_norm.cases.corners import corners
from verify_norm.cli.app import app
from verify_norm.core.errors import Exit, UsageError
from verify_norm.core.kernel import Kernel
from verify_norm.core.layouts import memory_span
from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.loading import registry
from verify_norm.search import sanitize
from verify_norm.search.sanitize import TOOLS

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
        (LINE, True, Exit.INCOMPLETE, 0),
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


def test_it_is_looked_for(monkeypatch, tmp_path):
    """On PATH first, then where the CUDA toolkit is installed."""
    monkeypatch.setattr(sanitize, "_PLACES", (str(tmp_path / "none"), str(tmp_path / "cuda")))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(UsageError, match="not installed"):
        sanitize.find("cuda:0")
    for folder in ("cuda", "bin"):
        tool = tmp_path / folder / "compute-sanitizer"
        tool.parent.mkdir()
        tool.write_text("#!/bin/sh\n")
        tool.chmod(0o755)
        assert sanitize.find("cuda:0") == str(tool)


SMALL = {"dtypes": ("float16",), "seconds": 9.0}


def judged(tool, said, tmp_path, unsupported=None, **settings):
    """The report of a program that stands for compute-sanitizer."""
    program = tmp_path / "compute-sanitizer"
    program.write_text(f"#!/bin/sh\n{said}\n")
    program.chmod(0o755)
    kernel = Kernel("k", "rmsnorm_fwd", run=lambda x, weight, eps: x, unsupported=unsupported)
    return sanitize.sanitize(kernel, Settings(**SMALL | settings), tool, str(program))


def says(tmp_path, text):
    """A shell command that prints a text."""
    path = tmp_path / "said.txt"
    path.write_text(text)
    return f"cat {path}"


def test_the_tool_runs_this_module_on_the_kernel_without_a_cache_of_memory(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    said = 'echo "$PYTORCH_NO_CUDA_MEMORY_CACHING $PYTHONUNBUFFERED $HOME $@" >&2; echo; exit 3'
    with pytest.raises(UsageError) as caught:
        judged("racecheck", said, tmp_path, device="cuda:1")
    asked = json.dumps(["k", "rmsnorm_fwd", "cuda:1", ["float16"]])
    line = f"--tool racecheck --print-limit 20 {sys.executable} -m verify_norm.search.sanitize {asked}"
    assert str(caught.value).endswith(f": 1 1 {os.environ['HOME']} {line}")


def test_a_tool_that_says_nothing_cannot_run(tmp_path):
    with pytest.raises(UsageError, match="its last line is: nothing"):
        judged("memcheck", "", tmp_path)


@pytest.mark.parametrize(("said", "last"), [(CALM, "0 errors"), (LINE, "[2, 3]"), ("Internal error\n", "error")])
def test_a_tool_that_ran_no_case_or_summed_nothing_up_cannot_run(said, last, tmp_path):
    with pytest.raises(UsageError, match=re.escape(last)):
        judged("memcheck", says(tmp_path, said), tmp_path)


def test_what_is_no_text_ends_nothing(tmp_path):
    for ending, late in (("", False), ("; exec sleep 2", True)):
        said = rf"""printf '\377%s\n' ''; {says(tmp_path, LINE * 3 + CALM)}{ending}"""
        report = judged("memcheck", said, tmp_path, seconds=0.3 if late else 9.0)
        assert report.cases == 3
        assert report.coverage.ended == ("the time limit of 0.3 s was reached" if late else "the process ended early")
        assert 0 < report.seconds < 9


def test_a_tool_that_says_nothing_in_time_ran_no_case(tmp_path):
    report = judged("memcheck", "exec sleep 2", tmp_path, seconds=0.1)
    assert (report.cases, report.coverage.corners_done, report.verdict) == (0, 0, Exit.INCOMPLETE)


def test_the_report_counts_the_cases_and_keeps_the_first_finding(tmp_path):
    two = SAID.replace('"shape": [7, 33]', '"shape": [5, 65]')  # both errors in one case
    for text, failed in ((SAID, 2), (two, 1)):
        report = judged("racecheck", says(tmp_path, text), tmp_path)
        (check,) = report.checks
        assert (check.name, check.summary, check.cases, check.failed) == ("racecheck", TOOLS["racecheck"], 3, failed)
        (finding,) = report.findings
        assert (finding.kernel, finding.check, finding.spec.shape, finding.cases) == ("k", "racecheck", (5, 65), failed)
        assert report.environment["sanitizer"] == "racecheck"
        assert [(skip.what, bool(skip.reason)) for skip in report.skipped] == [("values", True)]
        assert (report.seconds_in_kernel, report.tallies, report.layouts, report.coverage.outputs) == (0.0, (), {}, {})
        assert report.coverage.planned == report.coverage.corners == len(corners(OPS["rmsnorm_fwd"], ("float16",)))


def test_what_the_kernel_refuses_is_done_and_where_it_refuses_all_the_tool_need_not_run(tmp_path):
    table = corners(OPS["rmsnorm_fwd"], ("float16",))
    refused = sum(len(spec.shape) > 2 for spec in table)
    report = judged("memcheck", says(tmp_path, LINE * 4 + CALM), tmp_path, unsupported=of_three_dimensions)
    assert (report.coverage.refused, report.coverage.corners_done) == (refused, refused + 4)
    for none in ({"unsupported": lambda spec: "nothing"}, {"dtypes": ("float64",)}):
        report = judged("memcheck", "", tmp_path, **none)
        assert (report.cases, report.verdict) == (0, Exit.NOTHING)
        assert report.coverage.planned == report.coverage.refused == (len(table) if "unsupported" in none else 0)


def of_three_dimensions(spec):
    return "rows only" if len(spec.shape) > 2 else None


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ("========= Error: no place", ""),
        ("========= Error: no place\n=========     by thread (31,0,0)", ""),
        ("========= Error: no place\n=========     at k+0x1 in /a/b/c.py:7   ", ", at k+0x1 in c.py:7"),
        ("========= Error: no place\n=========     at XX", ", at XX"),
    ],
)
def test_the_place_is_told_where_the_next_line_has_one(said, place):
    (finding,) = sanitize.read("k", "memcheck", LINE + said)
    assert (finding.kernel, finding.message) == ("k", "Error: no place" + place)


def test_an_error_before_the_first_case_is_of_none():
    assert not list(sanitize.read("k", "memcheck", "========= Error: in the start\n" + LINE))


@pytest.fixture
def ran(monkeypatch, few_corners):
    """What the process under the tool did on the first corner cases, with a CPU that stands for the GPU."""
    few_corners(slice(0, 6))
    done = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: done.append(("device", device)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: done.append(("wait", device)))
    monkeypatch.setattr("builtins.print", lambda text, flush=False: done.append(("said" if flush else "kept", text)))

    def main(run, **fields):
        kernel = Kernel("k", "rmsnorm_fwd", run=run, **fields)
        loaded = {("k", "rmsnorm_fwd"): kernel}
        monkeypatch.setattr(registry, "load", lambda name, op: loaded[name, op])
        sanitize.main(json.dumps(["k", "rmsnorm_fwd", "cpu", ["float16"]]))
        return done

    main.done = done
    return main


def test_each_case_is_told_before_the_kernel_runs_in_it_and_the_gpu_is_waited_for(ran):
    def run(x, weight, eps):
        ran.done.append(("run", tuple(x.shape), x.dtype))

    specs = corners(OPS["rmsnorm_fwd"], ("float16",))[:6]
    refused = specs[1]
    first, *events = ran(run, unsupported=lambda spec: "no" if spec == refused else None)
    assert first == ("device", "cpu")
    taken = [spec for spec in specs if spec != refused]
    assert len(events) == 4 * len(taken) == 20
    for number, spec in enumerate(taken):
        before, told, call, after = events[4 * number : 4 * number + 4]
        assert before == after == ("wait", "cpu")
        assert told[0] == "said"
        (read,) = sanitize.read("k", "memcheck", f"{told[1]}\n========= Error: here")
        assert read.spec == spec
        assert call == ("run", spec.shape, torch.float16)


def test_a_kernel_that_raises_is_told_and_the_next_case_runs(ran):
    def run(x):
        raise ValueError("no such x")

    events = ran(run)
    assert [text for kind, text in events if "raised" in text] == ["the kernel raised ValueError: no such x"] * 6
    assert {kind for kind, _ in events} == {"device", "wait", "said"}


def test_a_kernel_gets_the_values_of_the_case_in_memory_of_its_own(ran):
    given = []
    ran(lambda x, weight, eps: given.append((x, weight, eps)))
    for spec, (x, weight, eps) in zip(corners(OPS["rmsnorm_fwd"], ("float16",))[:6], given, strict=True):
        exact = make.exact_inputs(spec, OPS["rmsnorm_fwd"])
        assert np.array_equal(x.double().numpy(), exact["x"], equal_nan=True)
        assert (weight is None) == (exact["weight"] is None)
        assert x.untyped_storage().nbytes() == 2 * memory_span(x.shape, x.stride())
        assert eps == spec.eps


@pytest.mark.parametrize(
    ("shape", "strides", "dtype"),
    [
        ((3, 4), (4, 1), torch.float32),
        ((3, 4), (9, 2), torch.float16),
        ((3, 4), (0, 1), torch.float32),  # one row, three times
        ((3, 4), (1, 0), torch.float32),
        ((2, 1), (1, 1), torch.float32),
        ((), (), torch.float64),
    ],
)
def test_a_copy_has_the_strides_and_ends_where_the_tensor_ends(shape, strides, dtype):
    value = torch.arange(1, 101, dtype=dtype).as_strided(shape, strides, 5)
    bare = sanitize._bare(value)
    assert torch.equal(bare, value)
    assert (bare.dtype, bare.stride()) == (dtype, strides)
    assert bare.untyped_storage().nbytes() == memory_span(shape, strides) * dtype.itemsize
    assert bare.data_ptr() != value.data_ptr()


def test_a_copy_is_on_the_device_of_the_tensor():
    assert sanitize._bare(torch.empty(3, device="meta")).device.type == "meta"


def test_what_has_no_elements_or_is_no_tensor_stays_as_it_is():
    for value in (None, 1e-5, (3,), torch.empty(0, 4)):
        assert sanitize._bare(value) is value


@pytest.mark.parametrize(("most", "copied"), [(10, False), (11, True)])
def test_a_tensor_that_lies_far_apart_stays_where_it_is(most, copied, monkeypatch):
    monkeypatch.setattr(sanitize, "_FAR", most)
    far = torch.zeros(11).as_strided((2,), (10,))
    assert (sanitize._bare(far) is not far) == copied
