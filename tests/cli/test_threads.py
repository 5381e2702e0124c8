"""A thread that a kernel's file has started does not keep the command from ending."""

import subprocess
import sys

import pytest

FILE = """import threading, time
threading.Thread(target=time.sleep, args=({seconds},)).start()
def rms(x, weight, eps):
    raise ValueError("nothing")
"""


@pytest.mark.parametrize(("seconds", "said"), [(600, True), (0, False)])
def test_the_command_ends_with_its_status(seconds, said, tmp_path):
    (tmp_path / "k.py").write_text(FILE.format(seconds=seconds))
    command = "from verify_norm.cli import main; main()"
    line = [sys.executable, "-c", command, "--kernel", "k.py:rms", "--op", "rmsnorm_fw"]
    ended = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 2
    assert ("ended without a thread that the kernel's code has started" in ended.stderr) == said
    assert "did you mean rmsnorm_fwd" in ended.stderr


def test_a_program_that_goes_on_after_the_command_keeps_its_threads(tmp_path):
    """It catches SystemExit; a thread of its own, which began before, is nobody's business."""
    (tmp_path / "k.py").write_text(FILE.format(seconds=0))
    program = """import sys, threading, time
from verify_norm.cli import main
told = threading.Event()
threading.Thread(target=lambda: (told.wait(), time.sleep(0.5), print("the thread ends"))).start()
try:
    main()
except SystemExit as ended:
    print("status", ended.code)
told.set()
"""
    line = [sys.executable, "-c", program, "--kernel", "k.py:rms", "--op", "rmsnorm_fw"]
    ended = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "status 2\nthe thread ends\n")
