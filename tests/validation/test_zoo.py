"""The zoo's command: what it runs, prints and writes. tests/kernels tests the example kernels themselves."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from verify_norm.cli.app import app
from verify_norm.core.errors import Exit
from verify_norm.core.finding import Finding
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.kernels.zoo import ZOO
from verify_norm.loading import registry
from verify_norm.running.fork_server import without_interrupts
from verify_norm.search import search, sweep
from verify_norm.search.examine import examine
from verify_norm.validation import zoo
from verify_norm.validation.zoo import Outcome, detectable, explains

RIGHT = "U24_two_dimensions"  # it refuses most cases


def run(*arguments):
    return CliRunner().invoke(app, ["zoo", *map(str, arguments)])


@pytest.mark.nightly
@pytest.mark.slow
def test_the_command_detects_passes_scores_and_asks_other_policies(tmp_path):
    path = tmp_path / "zoo.json"
    few = ("--seconds", 100, "--examples", 0, "--jobs", 1, "--against", "Liger,assert_close")
    result = run("A34", RIGHT, *few, "--json", path)
    assert result.exit_code == 0, result.output
    assert "\n1 of 1 wrong kernels detected, 0 of 1 correct kernels falsely flagged" in result.output
    assert "under Liger's policy" in result.stdout
    assert "under assert_close's policy: 1 of 1 wrong kernels detected" in result.stdout
    assert "signature dweight" in result.stdout
    data = json.loads(path.read_text())
    assert data["environment"]["torch"]
    assert data["cores"] >= 1
    assert data["seconds"] + 1 > max(outcome["seconds"] for outcome in data["outcomes"])
    lines = {outcome["name"]: outcome for outcome in data["outcomes"]}
    finding = lines["A34_dw_missing"]["findings"][0]
    assert finding["check"] == "signature"
    assert {"shape"} <= finding["spec"].keys() < {field.name for field in fields(CaseSpec)}, (
        "what differs from defaults"
    )
    assert lines["A34_dw_missing"]["class"] == "options"
    assert lines[RIGHT]["findings"] == []


@pytest.mark.nightly
@pytest.mark.slow
def test_an_interrupted_run_keeps_what_is_done(tmp_path):
    path = tmp_path / "zoo.json"
    options = ["--seconds", "100", "--examples", "100000", "--jobs", "2", "--json", path]
    command = [sys.executable, "-m", "verify_norm", "zoo", "A34", "U08", *map(str, options)]
    lines = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        for line in process.stderr:
            lines.append(line)
            if len(lines) == 1:  # interrupted amid a line, it is printed again
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.returncode == 3, lines
    assert "1 of 2 examples were not run" in "".join(lines)
    assert not {"Traceback", "Warning"} & set(re.findall(r"\w+", "".join(lines))), "ended, not killed: nothing is left"
    data = json.loads(path.read_text())
    assert data["interrupted"]
    assert [outcome["name"] for outcome in data["outcomes"]] == ["A34_dw_missing"]


def test_a_worker_hears_control_c_and_takes_no_further_example(monkeypatch):
    """It is started by a server that blocks the signal; some examples wait in its queue, not to be cancelled."""
    monkeypatch.setattr(zoo, "_interrupted", False)
    before = signal.getsignal(signal.SIGINT)
    with without_interrupts():
        try:
            signal.raise_signal(signal.SIGINT)  # which came as the worker was started
            zoo._start_server("cuda:0")
            assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
            with pytest.raises(KeyboardInterrupt):
                zoo._run("A34_dw_missing", Settings(), ())
        finally:
            signal.signal(signal.SIGINT, before)


def test_a_worker_that_was_interrupted_in_a_search_takes_no_further_example(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(zoo, "_interrupted", False)
    monkeypatch.setattr(zoo, "run", interrupted)
    settings = Settings(device="cuda:0")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            zoo._run("A34_dw_missing", settings, ())
        monkeypatch.setattr(zoo, "run", lambda *_: pytest.fail("it takes a further example"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it looks at /proc")
def test_workers_end_with_a_command_that_is_killed():
    """Each waits at a pipe for work, whose other end the workers themselves hold open too."""
    code = (
        "import os, signal\n"
        "from concurrent.futures import ProcessPoolExecutor\n"
        "from verify_norm.running.fork_server import context\n"
        "from verify_norm.search import PRELOAD\n"
        "from verify_norm.validation import zoo\n"
        "pool = ProcessPoolExecutor(2, context(PRELOAD), zoo._start_server, ('cuda',))\n"
        "print(*{future.result() for future in [pool.submit(os.getpid) for _ in range(2)]}, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    # those that stay would hold its output open
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    workers = [Path("/proc") / pid for pid in run.stdout.split()]
    assert workers, run.stderr
    deadline = time.monotonic() + 10.0
    while any(worker.exists() for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [worker for worker in workers if worker.exists()]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["Z99"], "no example's name begins with Z99"), (["A34", "--against", "tutrial"], "did you mean tutorial?")],
)
def test_an_unknown_name_is_a_usage_error(arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_an_example_for_a_gpu_is_not_run_without_one():
    assert "A27_lock_no_barrier" not in {example.name for example in detectable("cpu")}
    assert "A27_lock_no_barrier" in {example.name for example in detectable("cuda:0")}
    assert "A09_gated_recompute_pregate" not in {example.name for example in detectable("cuda:0")}


def finding(output):
    return Finding("k", "accuracy", output, "fail", "", CaseSpec(shape=(2, 3)))


def test_a_finding_on_a_right_output_does_not_count():
    wrong = ZOO["A31_dx_over_dy"]
    assert Outcome(wrong, (finding("dx"),), 1, 0.1).as_expected
    assert not Outcome(wrong, (finding("dweight"),), 1, 0.1).as_expected
    assert not Outcome(wrong, (), 1, 0.1).as_expected
    unusual = ZOO["U08_one_column"]
    assert Outcome(unusual, (), 1, 0.1).as_expected
    assert not Outcome(unusual, (finding("dx"),), 1, 0.1).as_expected
    assert explains(ZOO["A35_empty_rows_launch"], finding(None))


def test_the_verdict_on_an_example_says_what_is_not_as_expected():
    wrong, right = ZOO["A31_dx_over_dy"], ZOO["U08_one_column"]
    assert Outcome(wrong, (finding("dx"),), 1, 0.1).verdict is Exit.PASS
    assert Outcome(wrong, (), 1, 0.1).verdict is Exit.FINDINGS
    assert Outcome(right, (finding("dx"),), 1, 0.1, gap="incomplete").verdict is Exit.FINDINGS
    assert Outcome(right, (), 1, 0.1, gap="incomplete").verdict is Exit.INCOMPLETE


def test_an_internal_error_ends_its_own_example_alone(monkeypatch, tmp_path):
    def broken(kernel, settings, *, until):
        raise RuntimeError("CUDA error: unknown error")

    monkeypatch.setattr(zoo, "search", broken)
    found = zoo._run(RIGHT, Settings(), ())
    assert (found.gap, found.verdict) == ("internal error: RuntimeError: CUDA error: unknown error", Exit.INTERNAL)
    assert "in broken" in found.error
    wrong = replace(found, example=ZOO["A34_dw_missing"])
    assert (wrong.verdict, wrong.jsonable()["error"]) == (Exit.INTERNAL, found.error)
    monkeypatch.setattr(zoo, "run_all", lambda *_, **__: iter((found, Outcome(wrong.example, (), 1, 0.0))))
    result = run("A34", RIGHT, "--json", tmp_path / "zoo.json")
    assert result.exit_code == Exit.INTERNAL, "although a wrong kernel was missed too"
    assert "Traceback" in result.stderr
    assert f"no verdict: {RIGHT}: internal error" in result.stdout
    assert len(json.loads((tmp_path / "zoo.json").read_text())["outcomes"]) == 2


@pytest.mark.slow
def test_a_right_kernel_passes_only_after_all_corner_cases(monkeypatch):
    clock = SimpleNamespace(perf_counter=count().__next__)
    for module in (search, sweep):
        monkeypatch.setattr(module, "time", clock)
    settings = Settings(("float32",), examples=0, seconds=9.0, isolate=False)
    outcome = zoo.run(ZOO["U08_one_column"], settings)
    assert not outcome.as_expected
    assert re.fullmatch(r"incomplete: \d+ of \d+ corner cases ran: the time limit of 9 s was reached", outcome.gap)
    assert zoo.run(ZOO["U08_one_column"], replace(settings, allow_incomplete=True)).as_expected


def test_a_run_ends_when_the_bug_is_detected():
    outcome = zoo.run(ZOO["A34_dw_missing"], Settings(examples=50, seconds=30.0))
    assert outcome.as_expected
    assert outcome.cases < 5
    (found,) = outcome.findings
    assert (found.check, found.output, found.after) == ("signature", "dweight", 1)


def test_a_wrong_kernel_has_more_time_than_a_right_one_and_each_run_one_process(monkeypatch):
    asked = []

    def search(kernel, settings, *, until):
        asked.append(settings)
        return SimpleNamespace(interrupted=False, findings=(), cases=0)

    monkeypatch.setattr(zoo, "search", search)
    monkeypatch.setattr(zoo, "gap", lambda report: "")
    for name in ("A34_dw_missing", RIGHT):
        zoo.run(ZOO[name], Settings(seconds=5.0))
    assert [(settings.seconds, settings.workers) for settings in asked] == [(15.0, 1), (5.0, 1)]


def test_a_policy_that_is_not_done_in_time_gives_no_verdict(monkeypatch):
    monkeypatch.setattr(zoo, "POLICY_SECONDS", 0.5)
    verdict = zoo._under("tutorial", ZOO["H11_ladder_tail"], "cpu")  # 147,000 programs in the interpreter
    assert (verdict.caught, verdict.detail) == (None, "not done after 0.5 s")


def test_the_file_has_the_seconds_of_the_whole_run():
    outcomes = [Outcome(ZOO["U08_one_column"], (), 9, 3.0, ended=ended) for ended in (3.4, 7.6)]
    whole = zoo.dump(outcomes, Settings())
    assert whole["seconds"] == 8
    assert whole["cores"] >= 1


def test_a_sequential_mean_exceeds_the_bound_of_a_blocked_sum():
    """Found at seed 0 with 400 cases: H07 took its mean so, and torch's CPU then adds the values one by one."""
    kernel = registry.ready(ZOO["H07_batchnorm_fwd"].kernel)
    spec = CaseSpec((158, 2, 4), eps=1e-5, data="constant", offset=-10.0, momentum=0.1)
    assert examine(kernel, spec, ("accuracy", "statistics"), "cpu").findings == ()

    def by_one(x, weight, bias, running_mean, running_var, training, momentum, eps):
        y, _, rstd = kernel.run(x, weight, bias, running_mean, running_var, training, momentum, eps)
        return y, x.mean((0, 2)), rstd

    found = examine(replace(kernel, run=by_one), spec, ("statistics",), "cpu").findings
    assert [finding.output for finding in found] == ["mean"]
