"""The judge's side of the process that starts workers: what it gets of the judge, what it is asked for, and its end."""

import os
import socket
import sys
from contextlib import closing
from types import SimpleNamespace

import pytest

from verify_norm.core.errors import UsageError
from verify_norm.running.untrusted import processes, zygote
from verify_norm.running.untrusted.processes import Zygote

LONG = 5.0  # seconds that nothing here takes
SAYS = """
env > {out}/env
printf '%s\\n' "$@" > {out}/arguments
streams="$(readlink /proc/$$/fd/0) $(readlink /proc/$$/fd/1)"; echo $streams > {out}/streams
cut -d' ' -f6 /proc/$$/stat > {out}/session; echo $$ >> {out}/session
"""
UNTIL_THE_END = "exec cat <&$5"


@pytest.fixture
def zygotes(tmp_path, monkeypatch):
    """Start a zygote that is this shell script; returned with it is what is called at the end of the judge."""
    registered = []
    monkeypatch.setattr(processes.atexit, "register", registered.append)

    def start(script, interpret=None):
        program = tmp_path / "program"
        program.write_text(f"#!/bin/bash\n{script.format(out=tmp_path)}\n")
        program.chmod(0o700)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(sys, "executable", str(program))
            started = Zygote(interpret)
        assert registered == [started.close]
        return started

    yield start
    for close in registered:
        close()


@pytest.mark.parametrize("interpret", [None, "1"])
def test_a_zygote_starts_with_little_of_the_judge(interpret, zygotes, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"], "CUDA_HOME": "/cuda", "HOME": "/root", "KEY": "1"})
    monkeypatch.setattr(sys, "path", ["", "some", "/others"])
    stdin = os.dup(0)
    with open(tmp_path / "input", "w") as file:
        os.dup2(file.fileno(), 0)
        started = zygotes(SAYS, interpret)
        os.dup2(stdin, 0)
    os.close(stdin)
    assert started._process.wait(LONG) == 0
    environment = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    expected = {"PATH": os.environ["PATH"], "CUDA_HOME": "/cuda", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    expected |= {"PYTHONPATH": f"{os.getcwd()}/some:/others", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    expected |= {"TRITON_INTERPRET": "1"} if interpret else {}
    assert {name: text for name, text in environment.items() if name not in ("PWD", "SHLVL", "_", "OLDPWD")} == expected
    *arguments, file = (tmp_path / "arguments").read_text().split()
    assert arguments == ["-P", "-s", "-m", zygote.__name__], (
        "nothing of the working folder or of the user's own is imported"
    )
    assert int(file) > 2
    assert (tmp_path / "streams").read_text().split() == [os.devnull] * 2
    session, own = (tmp_path / "session").read_text().split()
    assert session == own, "Ctrl-C is for the judge alone"


@pytest.mark.parametrize(("script", "grace", "status"), [(UNTIL_THE_END, LONG, 0), ("exec sleep 2", 0.01, -9)])
def test_a_zygote_ends_with_the_judge_by_itself_or_not(script, grace, status, zygotes, monkeypatch):
    monkeypatch.setattr(zygote, "GRACE", grace)
    started = zygotes(script)
    started.close()
    assert started._process.returncode == status


@pytest.mark.parametrize(("script", "seconds"), [("exit 0", LONG), ("exec sleep 2", 0.05)])
def test_a_zygote_that_does_not_answer_is_forgotten(script, seconds, zygotes, monkeypatch):
    forgotten = []
    monkeypatch.setattr(zygote, "GRACE", 0.01)
    monkeypatch.setattr(processes, "STARTING", seconds)
    monkeypatch.setattr(processes, "started", SimpleNamespace(cache_clear=lambda: forgotten.append(1)))
    started = zygotes(script)
    with pytest.raises(UsageError, match="the process that starts workers has ended"):
        started.fork()
    assert forgotten == [1]
    assert script == "exit 0" or started._process.poll() is None, "it was given up"


def test_each_process_has_one_zygote_for_each_way_to_run_triton(monkeypatch):
    made = []
    monkeypatch.setattr(processes, "Zygote", lambda interpret: made.append(interpret) or object())
    keys = [(-1, None), (-1, "1"), (-2, "1")]
    assert len({processes.started(*key) for key in 2 * keys}) == 3
    assert made == [None, "1", "1"]


@pytest.fixture
def asked():
    """A zygote whose process is the test, and the test's socket."""
    one = object.__new__(Zygote)
    one._control, theirs = socket.socketpair()
    one._control.settimeout(LONG)
    with closing(theirs), closing(one._control):
        yield one, theirs


@pytest.mark.parametrize(
    ("ask", "wanted"),
    [
        (lambda one: one.fork(0, 1), (zygote.FORK, 0)),
        (lambda one: one.reap(70, waiting=True), (zygote.REAP, 70)),
        (lambda one: one.reap(70, waiting=False), (zygote.KILL, 70)),
    ],
    ids=["fork", "reap", "kill"],
)
def test_what_a_zygote_is_asked_for(ask, wanted, asked):
    one, theirs = asked
    theirs.sendall(zygote.REPLY.pack(2**20 + 77))
    assert ask(one) == 2**20 + 77
    data, files, _, _ = socket.recv_fds(theirs, 100, 3)
    assert zygote.REQUEST.unpack(data) == wanted
    assert len(files) == 2 * (wanted[0] == zygote.FORK)
    for file in files:
        os.close(file)
