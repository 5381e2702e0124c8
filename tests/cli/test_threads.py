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
