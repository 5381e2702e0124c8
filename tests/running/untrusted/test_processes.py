"""The judge's side of a worker: what it may read, how long an answer may take, and that nothing of it stays behind."""

import json
import os
import socket
import stat
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from verify_norm.core.errors import UsageError
from verify_norm.running.patience import LostError
from verify_norm.running.untrusted import processes, wire, zygote
from verify_norm.running.untrusted.processes import Worker

LONG = 5.0  # seconds that nothing here takes


class Scripted:
    """A zygote whose worker is a thread of the test: it notes what it is asked, and answers with these bytes."""

    def __init__(self, *answers, status=0):
        self.answers, self.status, self.asked, self.reaped, self.started = answers, status, [], [], None

    def __call__(self, owner, interpret):
        self.started = owner, interpret
        return self

    def fork(self, channel, arena):
        self.arena = os.fstat(arena).st_ino
        self.theirs = socket.socket(fileno=os.dup(channel))
        self.theirs.settimeout(LONG)
        threading.Thread(target=self._serve, daemon=True).start()
        return 70

    def _serve(self):
        with suppress(OSError), closing(self.theirs), closing(self.theirs.makefile("rb")) as lines:
            for answer in self.answers:
                self.asked.append(json.loads(lines.readline()))
                pieces = [answer] if isinstance(answer, bytes) else answer
                for piece in pieces:
                    self.theirs.sendall(piece)
            self.theirs.shutdown(socket.SHUT_RDWR)

    def reap(self, pid, *, waiting):
        self.reaped.append((pid, waiting))
        if self.status is None:
            raise UsageError("it has ended")
        return self.status


ENTERED = b"".join(wire.packed(1, {}, {"sandbox": ("no Landlock",)}))


@pytest.fixture
def workers(monkeypatch):
    """Start a worker that answers with these bytes, after it has entered the sandbox; and what it was asked."""
    made = []

    def start(*answers, status=0, target="module:fn", bind="", device="cpu"):
        scripted = Scripted(ENTERED, *answers, status=status)
        monkeypatch.setattr(processes, "started", scripted)
        made.append(Worker(target, bind, device))
        return made[-1], scripted

    yield start
    for worker in made:
        worker.end()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_worker_enters_a_sandbox_where_it_reads_what_the_kernel_needs(device, workers, tmp_path, monkeypatch):
    for name in ("pack:age/__init__.py", "pack:age/norms.py", "beside/submission.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "relative", "/others"])
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(processes, "memory", lambda: 1000)
    bind = "submission='beside/submission.py', name='other', eps=1e-5"
    worker, scripted = workers(target="pack:age/norms.py:Norm.apply", bind=bind, device=device)
    (asked,) = scripted.asked
    own = Path(asked.pop("own"))
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert own.name.startswith("verify-norm-")
    assert scripted.started == (os.getpid(), "1")
    assert scripted.arena == os.fstat(worker.arena.file).st_ino
    here = str(tmp_path)
    readable = [f"{here}/relative", "/others", f"{here}/pack:age", here, *[f"{here}/beside"] * 2, here]
    memory = int(processes.MEMORY * 1000) if device == "cpu" else None
    entered = {"what": "enter", "number": 1, "device": device, "memory": memory, "folder": here, "folders": readable}
    assert asked == entered
    assert (worker.pid, worker.lacking) == (70, ("no Landlock",))
    file = worker.arena.file
    own.rmdir()  # a kernel may do that too
    assert worker.end() == "it ended its process with exit status 0"
    assert not own.exists()
    assert worker.end() == "", "once"
    assert (scripted.reaped, worker.pid, worker._socket.fileno()) == ([(70, False)], 0, -1)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(file)


@pytest.mark.parametrize(("status", "said"), [(zygote.RUNNING, "it closed its channel and ran on"), (-9, "SIGKILL")])
def test_how_a_worker_has_ended(status, said, workers):
    worker, _ = workers(status=status)
    assert said in worker.end(waiting=True)


def test_nothing_is_left_where_the_zygote_has_ended(workers):
    worker, scripted = workers(status=None)
    with pytest.raises(UsageError, match="it has ended"):
        worker.end()
    assert not os.path.exists(scripted.asked[0]["own"])


def answer(number, outputs=None, **notes):
    return b"".join(wire.packed(number, outputs or {}, notes))


def parts(data):
    yield data[:60]
    time.sleep(0.02)
    yield data[60:]


def test_an_answer_is_that_to_the_last_request(workers, monkeypatch):
    """However it comes, and however it is read: in large pieces or in small ones."""
    raw = wire.Raw("uint8", (50,), bytearray(range(50)))
    large = answer(2, {1: raw})
    monkeypatch.setattr(processes, "CHUNK", 7)
    worker, scripted = workers(parts(large), answer(3, problem="no"))
    assert worker.ask("call", LONG, most=50, names=("y", "rstd"), kernel=1).outputs == {1: raw}
    assert worker.number == 2
    assert worker.ask("load", LONG).notes.problem == "no"
    assert scripted.asked[1:] == [{"what": "call", "number": 2, "kernel": 1}, {"what": "load", "number": 3}]


def drip():
    for _ in range(100):
        time.sleep(0.01)
        yield b"v"


@pytest.mark.parametrize(
    ("said", "hung", "answers"),
    [
        ("it ended its process by SIGSEGV", False, ()),
        ("it ended its process by SIGSEGV", False, (b"",)),
        ("it ended its process by SIGSEGV", False, (b"x" * 5,)),
        ("malformed answer: expected the magic number", False, (b"x" * 500,)),
        ("malformed answer: expected an answer to request 2, got 3", False, (answer(3),)),
        ("at most 8 bytes of outputs, got 9", False, (answer(2, {0: wire.Raw("int8", (9,), bytearray(9))}),)),
        ("it did not return after 0.2 s", True, (drip(),)),
    ],
)
def test_what_comes_instead_of_an_answer_ends_the_worker(said, hung, answers, workers):
    """One that is silent too, or that sends a byte now and then."""
    worker, scripted = workers(*answers, status=-11)
    with pytest.raises(LostError, match=said) as lost:
        worker.ask("call", 0.2 if hung else LONG, most=8, names=("y",))
    assert lost.value.hung == hung
    assert scripted.reaped == ([(70, True)] if "SIGSEGV" in said else [])


def test_a_worker_that_reads_no_request_has_hung(workers):
    worker, _ = workers()
    worker._socket.close()
    worker._socket, theirs = socket.socketpair()
    timer = threading.Timer(LONG / 4, theirs.close)
    timer.start()
    with pytest.raises(LostError, match=r"it did not return after 0\.1 s"):
        worker.ask("call", 0.1, values="x" * 2**22)
    timer.cancel()
    theirs.close()


def test_an_answer_before_the_request_is_malformed(workers):
    worker, scripted = workers(answer(2), b"")
    worker._socket.settimeout(LONG)
    scripted.theirs.sendall(b"x")
    with pytest.raises(LostError, match="malformed answer: expected no answer before the request, got 1 bytes"):
        worker.ask("call", LONG)


def loaded(said):
    """Return what a judge takes from a worker that answers so, and the worker."""
    asked, ended = [], []

    def ask(what, seconds, **more):
        asked.append((what, seconds, more))
        if isinstance(said, Exception):
            raise said
        return wire.Answer(notes=said)

    worker = SimpleNamespace(ask=ask, end=lambda: ended.append(1))
    try:
        return processes.load(worker, {"target": "a.py:f\x1b", "op": None}), asked, ended
    except UsageError as error:
        return str(error), asked, ended


def test_a_kernel_is_loaded_or_the_worker_ends():
    kernels = (wire.Described("rmsnorm_fwd", ("x",)),)
    request = [("load", processes.LOADING, {"target": "a.py:f\x1b", "op": None})]
    assert loaded(wire.Notes(kernels=kernels)) == (kernels, request, [])
    assert loaded(wire.Notes(problem="no \x1b")) == ("no \\u001b", request, [1])
    words = "a.py:f\\u001b cannot be loaded in a process of its own: it ended"
    assert loaded(LostError("it ended")) == (words, request, [1])


def test_what_a_strict_editable_install_links_is_readable(tmp_path):
    source, entry = tmp_path / "source" / "part", tmp_path / "__editable__.own"
    for folder in (source, entry / "own" / "part"):
        folder.mkdir(parents=True)
    (source / "one.py").write_text("", encoding="utf-8")
    (entry / "own" / "part" / "one.py").symlink_to(source / "one.py")
    (entry / "own" / "made.py").write_text("", encoding="utf-8")
    assert processes.linked(str(entry)) == (str(source.resolve()),)
    assert processes.linked(str(tmp_path)) == ()
