"""No kernel ends the run: it becomes a finding, and the cases around it are judged as ever."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from math import prod
from pathlib import Path

import hostile
import pytest
from small_runs import FEW_CORNERS
from typer.testing import CliRunner

from verify_norm.cases import corners
from verify_norm.cli.app import app
from verify_norm.core.errors import UsageError
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.loading import registry
from verify_norm.report.documents import load as load_report
from verify_norm.running import child, isolate, runners
from verify_norm.running.isolate import Isolated
from verify_norm.search import search as search_module
from verify_norm.search.examine import examine_in
from verify_norm.search.search import search

SUPPORT = Path(__file__).parents[1] / "support"
HOSTILE = SUPPORT / "hostile.py"
OPTIONS = {"dtypes": ("float32", "float16", "bfloat16"), "seconds": 30.0}
CHECKS = ("crash", "signature", "accuracy", "nonfinite")
LARGE = slice(11, 35)  # of the corner table: few have more elements than hostile.LARGE, the first in rows of 4097


def kernel(name):
    return registry.load(f"{HOSTILE}:{name}", "rmsnorm_fwd")


def around():
    """Return the number of corner cases that have elements, and so few that all kernels of `hostile` return."""
    table = corners.corners(OPS["rmsnorm_fwd"], OPTIONS["dtypes"])
    small = [spec for spec in table if prod(spec.shape) <= hostile.LARGE]
    assert 10 < len(small) < len(table)
    return sum(prod(spec.shape) > 0 for spec in small)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "how", "seconds"),
    [
        ("segfaults", "by SIGSEGV", 100.0),
        pytest.param("waits", " s (in _wait, hostile.py:", 20.0, marks=pytest.mark.nightly),
    ],
)
def test_what_no_process_survives_is_a_finding(name, how, seconds, few_corners):
    few_corners(LARGE)
    report = search(kernel(name), Settings(examples=0, timeout=2.0, checks=CHECKS, **OPTIONS | {"seconds": seconds}))
    (finding,) = report.findings
    assert (finding.check, finding.output, finding.status) == ("crash", None, "error")
    assert how in finding.message
    assert prod(finding.spec.shape) > 3000
    assert name == "waits" or prod(finding.spec.shape) == 3072  # it shrinks
    accuracy = next(check for check in report.checks if check.name == "accuracy")
    assert accuracy.cases == around()
    assert accuracy.failed == 0


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "found", "workers"),
    [("doubles", "accuracy", 3), ("segfaults", "crash", 2), ("spins", "crash", 2), ("right", "", 3)],
)
def test_workers_find_the_same(name, found, workers, few_corners, unexplained, monkeypatch):
    """Of a wrong kernel, of one that ends its process, of one that hangs, and of a right one."""
    few_corners(slice(5, 14))  # one of them is large
    monkeypatch.setattr(search_module, "reduce", lambda spec, *_: spec)  # it is in one process, and takes time
    examples = 5 * (name in ("doubles", "right"))  # none of them has its weights in another type
    settings = Settings(("float32",), ("crash", "signature", "accuracy"), examples, seconds=60.0, timeout=1.0)
    reports = [search(kernel(name), replace(settings, workers=number)) for number in (1, workers)]
    one, same = ((r.cases, r.tallies, r.checks, r.layouts, r.skipped, r.coverage, r.seen) for r in reports)
    assert one == same
    assert one[0] == 9 + examples
    said = [[replace(f, message=f.message.partition(" after ")[0]) for f in report.findings] for report in reports]
    assert said[0] == said[1]
    assert {finding.check for finding in said[0]} == {found} - {""}
    assert [report.work.workers for report in reports] == [1, workers]
    assert reports[1].work.started >= 2


@pytest.mark.slow
def test_workers_that_are_interrupted_report_what_they_have():
    def pressed(done, planned, found):
        if done == 5:
            raise KeyboardInterrupt

    settings = Settings(("float32",), CHECKS, examples=0, seconds=60.0, workers=2)
    report = search(kernel("right"), settings, pressed)
    assert report.interrupted
    assert 5 <= report.cases < report.coverage.planned
    assert report.unfinished.endswith("corner cases ran: the run was interrupted")


@pytest.mark.slow
@pytest.mark.parametrize("isolated", [True, False])
def test_a_kernel_that_leaves_as_if_all_were_well_is_a_finding(isolated, few_corners):
    few_corners(LARGE)
    report = search(kernel("leaves"), Settings(examples=0, checks=CHECKS, isolate=isolated, **OPTIONS))
    (finding,) = report.findings
    assert finding.check == "signature"
    assert finding.message.startswith("SystemExit: 0")
    assert next(check.cases for check in report.checks if check.name == "accuracy") == around()


@pytest.mark.slow
def test_memory_without_end_is_a_finding(few_corners):
    few_corners(LARGE)
    report = search(kernel("grows"), Settings(examples=0, checks=CHECKS, **OPTIONS))
    (finding,) = report.findings
    assert finding.check == "signature"
    assert "can't allocate memory" in finding.message
    assert next(check.cases for check in report.checks if check.name == "accuracy") == around()


def test_a_process_that_ends_as_if_all_were_well_is_seen_at_once():
    runner = runners.runner(kernel("exits_well"), "cpu", isolate=True)
    try:
        found = [examine_in(runner, CaseSpec(shape), ("accuracy", "crash"), 600.0) for shape in ((4, 800), (2, 8))]
    finally:
        runner.close()
    assert [[finding.message for finding in one.findings] for one in found] == [
        ["it ended its process with exit status 0"],
        [],
    ]


def test_a_further_run_that_crashes_costs_one_check():
    spec = CaseSpec(shape=(2, 800), seed=31)  # `batch_invariance` doubles the rows
    runner = runners.runner(kernel("exits"), "cpu", isolate=True)
    try:
        examined = examine_in(runner, spec, ("signature", "accuracy", "batch_invariance", "crash"), 20.0)
    finally:
        runner.close()
    (finding,) = examined.findings
    assert finding.during == "batch_invariance"
    assert "in a further run near this case that the check batch_invariance makes" in finding.message
    assert {"signature", "accuracy"} <= set(examined.looked)


@pytest.mark.slow
def test_a_build_in_every_process_is_no_hang_and_a_hang_after_it_is_one():
    """The first call takes longer than the time limit of a case; a large case never returns."""
    runner = runners.runner(kernel("builds"), "cpu", isolate=True)
    small, large = CaseSpec((2, 8)), CaseSpec((4, 800))
    try:
        assert not examine_in(runner, small, ("accuracy", "crash"), 0.5).findings
        (finding,) = examine_in(runner, large, ("accuracy", "crash"), 0.5).findings
        assert not examine_in(runner, small, ("accuracy", "crash"), 0.5).findings  # patience begins anew
    finally:
        runner.close()
    where = r"\(in \w+, hostile.py:\d+\)"
    words = (
        rf"it did not return after ([\d.]+) s {where}; the slowest case so far took [\d.]+ s; --timeout \d+ allows more"
    )
    assert float(re.fullmatch(words, finding.message)[1]) >= 3  # three builds of a second


@pytest.mark.parametrize(
    ("words", "refusals", "error"),
    [
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", 2, None),
        ("CUDA error: out of memory", 2, None),
        ("CUDA error: out of memory", 9, (UsageError, "cannot be loaded.*: cpu takes no new process: .*out of memory")),
        ("no such device", 1, (RuntimeError, "no such device")),
    ],
)
def test_a_device_that_is_busy_is_waited_for(monkeypatch, words, refusals, error):
    """A GPU is so after a process has been killed while its kernel hung; another error is told at once."""
    asked = []

    def ask(self, seconds, function, *args, **more):
        asked.append(function)
        if len(asked) <= refusals:
            raise RuntimeError(words)
        return usual(self, seconds, function, *args, **more)

    usual = Isolated._ask
    monkeypatch.setattr(Isolated, "_ask", ask)
    monkeypatch.setattr(isolate, "CLEARING", 60.0 if error is None else 0.0)
    runner = runners.runner(kernel("right"), "cpu", isolate=True)
    try:
        with nullcontext() if error is None else pytest.raises(error[0], match=error[1]):
            assert "accuracy" in examine_in(runner, CaseSpec((2, 3)), ("accuracy",), 20.0).looked
            assert asked == [*[child.load] * 3, child.call]
            assert runner.started == 1
        assert runner._child is None or error is None, "none that has loaded nothing waits for the next call"
    finally:
        runner.close()


def test_a_case_that_the_run_has_no_time_for_has_not_hung():
    runner = runners.runner(kernel("spins"), "cpu", isolate=True)
    try:
        examined = examine_in(runner, CaseSpec((4, 800)), ("accuracy", "crash"), 0.5, left=0.3)
    finally:
        runner.close()
    assert examined.hung
    assert not examined.findings
    assert not examined.looked
    assert not runner._patience.known.hung, "later cases have all their time"


def test_what_cannot_be_imported_runs_here_and_that_is_said(few_corners):
    few_corners(slice(2))
    function = kernel("right").run
    report = search(Kernel("k", "rmsnorm_fwd", run=function), Settings(examples=0, checks=CHECKS, **OPTIONS))
    assert report.ok
    assert report.environment["isolation"].startswith("none: the kernel is not an attribute of a module")
    assert next(check.cases for check in report.checks if check.name == "crash") == 0


def test_state_from_earlier_calls_is_told(few_corners):
    """Wrong from the fifth call on: no case alone shows it."""
    few_corners(slice(12))
    report = search(kernel_of_state(), Settings(examples=0, checks=("accuracy",), **OPTIONS))
    (finding,) = report.findings
    assert "look for a race, or for state that the kernel keeps between calls" in finding.message


def kernel_of_state():
    return registry.load(f"{SUPPORT / 'stateful.py'}:rmsnorm_fwd")


def command(*arguments, name="slow", **options):
    line = [sys.executable, "-m", "verify_norm", "--kernel", f"{HOSTILE}:{name}", "--op", "rmsnorm_fwd", *arguments]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


@pytest.mark.slow
def test_control_c_prints_the_report_so_far(tmp_path):
    path = tmp_path / "report.json"
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path)}
    process = command("--json", str(path), "--examples", "2000", env=environment, start_new_session=True)
    wait_for_cases(tmp_path, 30)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    out, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert "INCOMPLETE" in out
    assert "corner cases ran: the run was interrupted" in " ".join(out.split())
    assert "Traceback" not in err
    report = load_report(path.read_text())
    assert report.interrupted
    assert report.cases >= 30
    assert not report.ok


@pytest.mark.nightly
@pytest.mark.slow
def test_a_killed_run_resumes_and_has_lost_nothing_but_the_case_in_flight(tmp_path, few_corners):
    (tmp_path / "sitecustomize.py").write_text(FEW_CORNERS)
    few_corners(slice(20))
    arguments = ("--examples", "5", "--seconds", "50", "--checks", "accuracy,signature", "--dtype", "fp16")
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    process = command(*arguments, name="rests", env=environment)
    journal, done = wait_for_cases(tmp_path, 5)
    process.kill()
    process.communicate()
    left = len(journal.read_text().splitlines())
    assert left >= done
    journal.write_text(journal.read_text() + '{"spec": {"sha')  # a line that the kill has cut
    path = tmp_path / "report.json"
    resumed = command(*arguments, "--resume", "--json", str(path), name="rests", env=environment)
    out, err = resumed.communicate(timeout=100)
    assert resumed.returncode == 0, out + err
    assert f"{left} cases are already done" in err
    report = load_report(path.read_text())
    settings = Settings(("float16",), checks=("accuracy", "signature"), examples=5, isolate=False)
    whole = search(kernel("rests"), settings)
    assert left < report.cases == whole.cases
    assert report.tallies == whole.tallies
    assert not list(tmp_path.glob("verify-norm/*.jsonl"))  # it is needed no more


def wait_for_cases(folder, count):
    def journal():
        found = ((path, len(path.read_text().splitlines())) for path in folder.glob("verify-norm/*.jsonl"))
        return next((one for one in found if one[1] >= count), None)

    return wait_until(journal)


def wait_until(true):
    for _ in range(3000):
        if found := true():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not true after 300 s: {true}")


def test_nothing_to_resume_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    line = [
        "--kernel",
        f"{HOSTILE}:right",
        "--op",
        "rmsnorm_fwd",
        "--resume",
        "--examples",
        "0",
        "--checks",
        "signature",
    ]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 0
    assert "nothing to resume" in result.stderr


@pytest.mark.nightly
@pytest.mark.slow
def test_what_a_kernel_prints_is_no_part_of_the_report(tmp_path):
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path)}
    arguments = ("--json", "-", "--examples", "0", "--checks", "signature")
    out, err = command(*arguments, name="prints", env=environment).communicate(timeout=60)
    assert json.loads(out)["kernel"].endswith(":prints")
    assert "a kernel that talks" in err


@pytest.mark.nightly
@pytest.mark.slow
def test_no_child_outlives_its_run(tmp_path):
    """Not even in a call that has minutes left."""
    begun = tmp_path / "begun"
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path), "BEGUN": str(begun)}
    process = command("--checks", "accuracy", "--timeout", "1000", name="says_and_waits", env=environment)
    wait_until(begun.exists)
    process.send_signal(signal.SIGSTOP)  # it starts and ends none while they are looked up
    children = descendants(process.pid)
    assert len(children) >= 3, "a tracker of resources, the server and the child"
    process.kill()
    process.communicate(timeout=300)
    wait_until(lambda: not any(map(alive, children)))


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants(pid):
    children = [int(c) for t in Path(f"/proc/{pid}/task").iterdir() for c in (t / "children").read_text().split()]
    return children + [c for child in children for c in descendants(child)]


LOADED = """
import os, sys
import torch
import verify_norm
CHILD = "typer" not in sys.modules and "pytest" not in sys.modules

@verify_norm.kernel(op="rmsnorm_fwd", unsupported=lambda spec: "2-D x only" if len(spec.shape) != 2 else None)
def rms(x, weight, eps):
    if x.shape == (2, 3):
        os.kill(os.getpid(), 11)
    y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight.float()).to(x.dtype)
"""


def test_a_lambda_of_unsupported_does_not_end_isolation(tmp_path):
    (tmp_path / "loaded.py").write_text(LOADED)
    runner = runners.runner(registry.load(f"{tmp_path}/loaded.py:rms"), "cpu", isolate=True)
    try:
        found = [examine_in(runner, CaseSpec(shape), CHECKS, 20.0) for shape in ((2, 3), (2, 2, 4), (2, 4))]
    finally:
        runner.close()
    crashed, refused, right = found
    assert "by SIGSEGV" in crashed.findings[0].message
    assert refused.unsupported == "2-D x only"
    assert not right.findings
    assert right.tallies


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("raise ValueError('not here')", "cannot be imported: ValueError: not here"),
        ("os._exit(7)", "cannot be imported: SystemExit: 7"),
        ("__import__('ctypes').CDLL(None)._exit(7)", "it ended its process with exit status 7"),
        ("verify_norm.audit(rms)", "loaded.py, line 13 starts a run while"),
    ],
)
def test_what_a_child_cannot_load_is_one_line(line, said, tmp_path):
    (tmp_path / "loaded.py").write_text(f"{LOADED}if CHILD: {line}\n")
    runner = runners.runner(registry.load(f"{tmp_path}/loaded.py:rms"), "cpu", isolate=True)
    with pytest.raises(UsageError, match="rms cannot be loaded in a process of its own: ") as caught:
        examine_in(runner, CaseSpec((2, 4)), CHECKS, 20.0)
    runner.close()
    assert said in str(caught.value)
