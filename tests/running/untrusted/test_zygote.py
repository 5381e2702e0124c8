"""The process that forks workers: what a worker gets, how its end is told, and that nothing of it is left."""

import os
import select
import signal
import socket
import time
from pathlib import Path

import pytest
from forked import LONG, ended, fork, forked

from verify_norm.running.untrusted import worker, zygote
from verify_norm.running.untrusted.zygote import FORK, KILL, REAP, RUNNING


class Judge:
    """The parent of a zygote, whose workers call `main` with the number of the zygote's socket, and their files."""

    def __init__(self, main, setup=int):
        self.control, theirs = socket.socketpair()
        self.control.settimeout(LONG / 2)
        self.pid = fork(self._serve, theirs, main, setup)
        theirs.close()

    def _serve(self, theirs, main, setup):
        self.control.close()
        os.setsid()
        own = os.fstat(theirs.fileno()).st_ino
        worker.main = lambda *files: main(own, *files)
        setup()
        zygote.main(theirs.detach())

    def ask(self, what, number=0, files=()):
        socket.send_fds(self.control, [zygote.REQUEST.pack(what, number)], files)
        return zygote.REPLY.unpack(self.control.recv(zygote.REPLY.size))[0]

    def end(self, last=b""):
        self.control.sendall(last)
        self.control.close()
        return ended(self.pid)


def rest(file):
    """Return what comes until no process has the other end, None if one keeps it."""
    data = b""
    while select.select([file], [], [], LONG / 2)[0]:
        more = os.read(file, 1000)
        if not more:
            return data
        data += more
    return None


def says_what_it_has(own, one, _):
    """Write whether this process has the zygote's socket."""
    mine = [os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.exists()]
    os.write(one, b"%d" % (f"socket:[{own}]" in mine))
    os._exit(7)


def test_a_worker_gets_the_files_alone_and_its_status_comes_back():
    def inside():
        judge, (reading, writing) = Judge(says_what_it_has), os.pipe()
        pids = [judge.ask(FORK, 0, (writing, reading)) for _ in range(2)]
        os.close(writing)
        statuses = [judge.ask(REAP, pid) for pid in pids]
        return len({judge.pid, *pids}), statuses, rest(reading), judge.end()

    assert forked(inside) == ((3, [7, 7], b"00", 0), 0), "the zygote keeps no file, the worker not the zygote's socket"


def starts_another(_, file, __):
    """Stay, in a group of its own, with another process that has the file too."""
    os.setsid()
    os.write(file, b"begun")
    os.fork()
    time.sleep(2 * LONG)


@pytest.mark.parametrize(("what", "grace"), [(KILL, 10 * LONG), (REAP, 0.01)])
def test_what_does_not_end_is_killed_with_all_that_it_has_started(what, grace):
    def inside():
        judge, (reading, writing) = Judge(starts_another, lambda: setattr(zygote, "GRACE", grace)), os.pipe()
        pid = judge.ask(FORK, 0, (writing, writing))
        os.close(writing)
        os.read(reading, 5)
        return judge.ask(what, pid), rest(reading), judge.end()

    assert forked(inside) == ((RUNNING, b"", 0), 0)


def test_a_worker_that_is_to_be_killed_has_no_time_to_end_by_itself():
    def inside():
        judge = Judge(lambda *_: (time.sleep(0.5), os._exit(3)))
        with open(os.devnull) as file:
            pid = judge.ask(FORK, 0, (file.fileno(), file.fileno()))
        return judge.ask(KILL, pid), judge.end()

    assert forked(inside) == ((RUNNING, 0), 0)


@pytest.mark.parametrize("last", [b"", zygote.REQUEST.pack(FORK, 0)[:-1]])
def test_its_workers_end_with_the_judge(last):
    def inside():
        judge, (reading, writing) = Judge(starts_another), os.pipe()
        judge.ask(FORK, 0, (writing, writing))
        os.close(writing)
        os.read(reading, 5)
        return judge.end(last), rest(reading)

    assert forked(inside) == ((0, b""), 0)


def test_a_worker_that_has_ended_is_not_killed_again():
    """Its number may be that of another process by then."""

    def inside():
        reading, writing = os.pipe()
        judge = Judge(
            lambda *_: os._exit(0), lambda: setattr(zygote, "_kill", lambda pid: os.write(writing, b"%6d" % pid))
        )
        pids = [judge.ask(FORK, 0, (writing, writing)) for _ in range(2)]
        os.close(writing)
        judge.ask(REAP, pids[0])
        status, killed = judge.end(), rest(reading)
        return status, [int(killed[at : at + 6]) for at in range(0, len(killed), 6)] == pids

    assert forked(inside) == ((0, True), 0)


@pytest.mark.parametrize(
    ("end", "status"), [(lambda: os._exit(3), 3), (lambda: os.kill(os.getpid(), signal.SIGTERM), -signal.SIGTERM)]
)
def test_an_end_is_seen_soon_after_it(end, status, monkeypatch):
    waited, (reading, writing) = [], os.pipe()
    pid = fork(lambda: (os.close(writing), os.read(reading, 1), end()))

    def sleep(seconds):
        waited.append(seconds)
        if len(waited) == 3:
            os.close(writing)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    monkeypatch.setattr(zygote.time, "sleep", sleep)
    assert zygote._reaped(pid, LONG) == status
    assert len(waited) == 3
    assert max(waited) < 0.1
    os.close(reading)


def test_a_killed_process_is_waited_for():
    pid = fork(signal.pause)
    assert zygote._reaped(pid, 0.0) == RUNNING
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)


@pytest.mark.parametrize("error", [ProcessLookupError, PermissionError])
def test_a_process_without_a_group_of_its_own_is_killed_too(error, monkeypatch):
    monkeypatch.setattr(os, "killpg", lambda *_: (_ for _ in ()).throw(error()))
    pid = fork(signal.pause)
    zygote._kill(pid)
    assert ended(pid) == -signal.SIGKILL
