"""Where a call is that does not return: a compiler gets more time, and a hang is told with its line."""

import faulthandler
import os
import re
import subprocess
import threading

import pytest

from verify_norm.core.spec import CaseSpec
from verify_norm.loading import registry
from verify_norm.running import patience, runners, stacks
from verify_norm.running.stacks import NOWHERE, Stack
from verify_norm.search.examine import examine_in

SMALL, LARGE = CaseSpec((2, 4), further=()), CaseSpec((2, 64), further=())
COMPILER = """
import time

def compile(seconds):
    time.sleep(seconds)
"""
KERNEL = """
import importlib.util, time
from pathlib import Path

spec = importlib.util.spec_from_file_location("slow", Path(__file__).parent / "triton" / "compiler" / "compiler.py")
slow = importlib.util.module_from_spec(spec)
spec.loader.exec_module(slow)

def right(x, weight, eps):
    y = x.double() * (x.double().square().mean(-1, keepdim=True) + eps).rsqrt()
    return (y if weight is None else y * weight.double()).to(x.dtype)

def compiles(x, weight, eps):
    if x.numel() > 64:
        slow.compile(2.5)
    return right(x, weight, eps)

def compiles_for_ever(x, weight, eps):
    if x.numel() > 64:
        slow.compile(100.0)
    return right(x, weight, eps)

def waits(x, weight, eps):
    if x.numel() > 64:
        time.sleep(100.0)
    return right(x, weight, eps)
"""


@pytest.fixture
def examined(tmp_path, monkeypatch):
    """Return what is found in a large case after a small one, where a call may take 0.5 s, and a compiler `more`."""
    (tmp_path / "triton" / "compiler").mkdir(parents=True)
    (tmp_path / "triton" / "compiler" / "compiler.py").write_text(COMPILER)
    (tmp_path / "slow.py").write_text(KERNEL)

    def examined(name, more=4.0):
        monkeypatch.setitem(patience.BUILD, "cpu", more)
        runner = runners.runner(registry.load(f"{tmp_path}/slow.py:{name}", "rmsnorm_fwd"), "cpu", isolate=True)
        try:
            assert not examine_in(runner, SMALL, ("accuracy", "crash"), 0.5).findings
            return examine_in(runner, LARGE, ("accuracy", "crash"), 0.5)
        finally:
            runner.close()

    return examined


@pytest.mark.slow
def test_a_call_that_compiles_has_more_time(examined):
    found = examined("compiles", more=60.0)  # a loaded machine
    assert found.tallies
    assert not found.findings


@pytest.mark.slow
def test_a_compiler_that_does_not_end_is_no_fault_of_the_kernel(examined):
    found = examined("compiles_for_ever")
    assert re.fullmatch(r"it was still compiling after [\d.]+ s", found.unsupported)
    assert not found.findings


def test_a_hang_is_told_with_its_line(examined):
    (finding,) = examined("waits").findings
    assert re.match(r"it did not return after [\d.]+ s \(in waits, slow.py:25\); ", finding.message)


@pytest.mark.parametrize(
    ("file", "compiles"),
    [
        ("/site-packages/triton/compiler/compiler.py", True),
        ("/site-packages/triton/backends/nvidia/compiler.py", True),
        ("/site-packages/triton/backends/nvidia/driver.py", False),  # a launch
        ("/site-packages/triton/runtime/jit.py", False),
        ("/site-packages/torch/_dynamo/convert_frame.py", True),
        ("/site-packages/torch/_dynamo/eval_frame.py", False),  # a call of what is compiled
        ("/site-packages/torch/_inductor/compile_fx.py", True),
        ("/site-packages/torch/_inductor/output_code.py", False),
        ("/site-packages/torch/utils/cpp_extension.py", True),
        ("/site-packages/cutlass/base_dsl/compiler.py", True),
        ("/site-packages/cutlass/base_dsl/jit_executor.py", False),
        ("/home/me/compiler.py", False),
    ],
)
def test_a_compiler_is_known_by_its_file(file, compiles):
    assert Stack((("/kernel.py", 3, "run"), (file, 1, "f"))).compiles is compiles


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """A file to which this process writes its stacks."""
    path, opened = tmp_path / "stacks", []
    path.touch()

    def kept_open(*given):
        opened.append(open(*given))  # noqa: SIM115 — until the test ends
        return opened[0]

    monkeypatch.setattr(stacks, "open", kept_open, raising=False)
    stacks.answer(str(path))
    yield str(path)
    faulthandler.unregister(stacks.SIGNAL)
    opened[0].close()


def test_a_process_tells_where_the_thread_is_that_runs_a_function(answers):
    begun, end = threading.Event(), threading.Event()

    def runs_the_kernel():
        begun.set()
        end.wait(10.0)

    thread = threading.Thread(target=runs_the_kernel)
    thread.start()
    begun.wait(10.0)
    for _ in range(2):  # an answer is none to the next question
        stack = stacks.ask(os.getpid(), answers, "runs_the_kernel")
        assert sum(function == "runs_the_kernel" for _, _, function in stack.frames) == 1
        assert __file__ in {file for file, _, _ in stack.frames}
        assert "test_a_process_tells_where" not in str(stack), "of other threads nothing"
    end.set()
    thread.join()


def test_a_process_that_does_not_answer_is_nowhere(answers, monkeypatch):
    monkeypatch.setattr(stacks, "WAIT", 0.03)
    assert stacks.ask(os.getpid(), answers, "what nobody runs") == NOWHERE
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert stacks.ask(ended.pid, answers, "test_a_process_that_does_not_answer_is_nowhere") == NOWHERE
