"""A process that answers requests: what it returns and raises, how its end is seen, and that nothing of it is left."""

import subprocess
import sys
import time
from contextlib import closing
from os import environ

import pytest
from answering import LONG, close_all, leave, refuse, start_another

from verify_norm.core.errors import UsageError
from verify_norm.running import fork_server
from verify_norm.running.fork_server import Child, EndedError


@pytest.fixture
def child():
    with closing(Child(fork_server.context("verify_norm.search.preload"))) as started:
        yield started


def test_it_returns_and_raises_what_the_function_does(child):
    assert child.ask(LONG, max, 3, 5) == 5
    with pytest.raises(UsageError, match="not this") as caught:
        child.ask(LONG, refuse, "not this")
    assert "in refuse" in str(caught.value.__cause__), "it has the lines of the process"
    with pytest.raises(AttributeError, match="local object"):  # what cannot be sent is an error, not the end
        child.ask(LONG, eval, "(lambda: (lambda: 1))()")
    assert child.ask(LONG, max, 3, 5) == 5


@pytest.mark.parametrize("status", [0, 3])
def test_its_end_is_seen_at_once_whatever_its_status(child, status):
    with pytest.raises(EndedError, match=f"it ended its process with exit status {status}"):
        child.ask(LONG, leave, status)
    with pytest.raises(EndedError, match=f"exit status {status}"):
        child.ask(LONG, max, 3, 5)


def test_a_process_that_it_has_started_does_not_hide_its_end(child):
    with pytest.raises(EndedError, match="exit status 0"):
        child.ask(LONG, start_another, True)


def test_what_it_has_started_ends_with_it(child):
    pid = child.ask(LONG, start_another, False)
    child.close()
    assert _ends(pid)


def _ends(pid):
    """Return whether a process ends within some seconds."""
    for _ in range(500):
        if not _runs(pid):
            return True
        time.sleep(0.01)
    return False


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_closed_channel_and_silence(child, monkeypatch):
    monkeypatch.setattr(fork_server, "GRACE", 0.01)
    with pytest.raises(TimeoutError):
        child.ask(0.01, time.sleep, LONG)
    child.close()
    with (
        closing(Child(fork_server.context("verify_norm.search.preload"))) as other,
        pytest.raises(EndedError, match="it closed its channel and ran on"),
    ):
        other.ask(LONG, close_all)


@pytest.mark.parametrize(
    ("status", "how"),
    [
        (-6, "by SIGABRT"),
        (-9, "by SIGKILL, for example when memory is exhausted"),
        (-11, "by SIGSEGV"),
        (3, "with exit status 3"),
    ],
)
def test_the_end_of_a_process_has_its_words(status, how):
    assert fork_server.ending(status) == f"it ended its process {how}"


AHEAD = """
import os, sys
from multiprocessing import forkserver
from verify_norm.running import fork_server

fork_server.start_ahead("json", ANSWER="42")
first = forkserver._forkserver._forkserver_pid
assert "ANSWER" not in os.environ
if len(sys.argv) > 1:
    os.environ["ANSWER"] = sys.argv[1]
    os.environ["OTHER"] = "set meanwhile"
    os.environ.pop("GONE")
    command = "echo answer $ANSWER, $OTHER, ${GONE-gone}"
    process = fork_server.context("json").Process(target=os.system, args=(command,))
    process.start()
    process.join()
    assert "torch" not in sys.modules
print(first, forkserver._forkserver._forkserver_pid == first)
"""


def _ahead(*arguments):
    """Return what a process prints that starts the server ahead, and the number of that server."""
    command = [sys.executable, "-c", AHEAD, *arguments]
    environment = {**environ, "GONE": "still there"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LONG, env=environment)
    *answer, last = done.stdout.split("\n")[:-1]
    server, same = last.split()
    return answer, int(server), same == "True"


def test_a_server_that_has_ended_is_not_ended_again():
    code = AHEAD + "forkserver._forkserver._stop()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LONG)
    assert done.stderr == ""


@pytest.mark.parametrize("answer", ["42", "43"])
def test_processes_of_a_server_that_was_started_ahead_have_the_environment_of_their_caller(answer):
    printed, server, same = _ahead(answer)
    assert printed == [f"answer {answer}, set meanwhile, gone"]
    assert same == (answer == "42"), "what it imports may depend on the variables that it was told: then another starts"
    assert _ends(server)


def test_a_server_that_nobody_needs_ends_with_the_process():
    printed, server, _ = _ahead()
    assert not printed
    assert _ends(server)
