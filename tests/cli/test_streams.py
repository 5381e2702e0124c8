"""Standard output without a reader, on a full disk, in ASCII, or closed: the verdict stands, and no traceback."""

import doctest
import io
import json
import os
import signal
import subprocess
import sys

import pytest

from verify_norm import cli
from verify_norm.cli import app, streams


@pytest.fixture
def command(monkeypatch, capfd):
    """Run a command line with this standard output; return its status and what it said on standard error."""

    def run(out, *arguments):
        monkeypatch.setattr(sys, "argv", ["verify-norm", *arguments])
        monkeypatch.setattr(sys, "stdout", out)
        with pytest.raises(SystemExit) as ended:
            app.main()
        monkeypatch.undo()
        return ended.value.code, capfd.readouterr().err

    return run


def test_doctests():
    assert doctest.testmod(streams).failed == 0


@pytest.mark.parametrize("arguments", [("list",), ("--help",), ("--version",), ("schema",), ("show", "layernorm_bwd")])
def test_a_reader_that_leaves_changes_no_verdict(arguments, command):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as out:
        assert command(out, *arguments) == (0, "")


@pytest.mark.parametrize("arguments", [("list",), ("--help",), ("--version",), ("schema",), ("show", "layernorm_bwd")])
def test_a_full_disk_is_no_pass(arguments, command):
    with open("/dev/full", "w", encoding="utf-8") as out:
        said = "verify-norm: cannot write to standard output: No space left on device\n"
        assert command(out, *arguments) == (2, said)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_an_encoding_lacks_is_spelled_out(encoding, command):
    for arguments in (
        ("list",),
        ("--help",),
        ("gradcheck", "--help"),
        ("show", "layernorm_bwd"),
        ("show", "contracts"),
    ):
        out = io.TextIOWrapper(io.BytesIO(), encoding)
        assert command(out, *arguments)[0] == 0
        assert out.buffer.getvalue().decode(encoding)
    assert "max - min" in "max − min".encode("ascii", "verify-norm").decode()


def test_json_is_utf_8_whatever_the_terminal_shows(command):
    out = io.TextIOWrapper(io.BytesIO(), "ascii")
    assert command(out, "schema", "report")[0] == 0
    assert json.loads(out.buffer.getvalue().decode("utf-8"))


def test_a_closed_output_is_not_the_next_file(tmp_path):
    code = "import os, sys; os.close(1); sys.argv[1:] = ['--version']\nfrom verify_norm.cli import main; main()"
    ended = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("broken", ["/dev/full", "reader"])
def test_a_broken_standard_error_changes_no_status(broken, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(sys, "argv", ["verify-norm", "--kernel", "nothing"])
    with open(writer if broken == "reader" else broken, "w", encoding="utf-8") as err:
        monkeypatch.setattr(sys, "stderr", err)
        with pytest.raises(SystemExit) as ended:
            app.main()
        monkeypatch.undo()
    assert ended.value.code == 2


def test_control_c_before_anything_is_loaded_is_one_line(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(app, "main", interrupted)
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.code == 3
    assert capsys.readouterr().err == "verify-norm: interrupted before there was a report\n"


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True])
def test_control_c_while_a_run_starts_is_one_line(whole):
    """To this process alone, as by `kill`, and to the whole group, as by a terminal."""
    line = [sys.executable, "-m", "verify_norm", "--kernel", "rmsnorm_fwd_torch", "--device", "cpu"]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        first = run.stderr.readline()  # before torch is imported
        (os.killpg if whole else os.kill)(run.pid, signal.SIGINT)
        _, said = run.communicate(timeout=60)
    assert run.returncode == 3
    assert said.removeprefix(first) == "verify-norm: interrupted before there was a report\n"
