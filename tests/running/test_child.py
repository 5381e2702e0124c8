"""What a kernel's process does, asked here in this one: its answers, its limits, and what its parent sees meanwhile."""

import fcntl
import gc
import mmap
import multiprocessing
import os
import pickle
import resource
import signal
import sys
from faulthandler import unregister
from types import SimpleNamespace

import pytest
import torch

from verify_norm.core.work import Compiled
from verify_norm.loading import functions, nested, registry
from verify_norm.running import child, stacks
from verify_norm.running.compilation import Meter
from verify_norm.running.interpreter import patch


class Channel:
    """The channel of a child: it has these requests, and keeps the answers."""

    def __init__(self, *requests):
        self.requests, self.answers = list(requests), []

    def recv_bytes(self):
        if not self.requests:
            raise EOFError
        return self.requests.pop(0)

    def send_bytes(self, answer):
        self.answers.append(pickle.loads(answer))


@pytest.fixture
def served(monkeypatch):
    """Called with requests, returns the answers to them, and what the process did of itself before."""

    def serve(*requests):
        channel, did = Channel(*requests), []
        with monkeypatch.context() as m:
            m.setattr(os, "setpgid", lambda *group: did.append(("group", *group)))
            m.setattr(gc, "freeze", lambda: did.append("freeze"))
            m.setattr(signal, "signal", lambda *how: did.append(how))
            m.setattr(child, "_end_with_caller", lambda: did.append("end with caller"))
            child.serve(channel)
        return channel.answers, did

    return serve


def test_each_request_has_an_answer_until_the_channel_closes(served):
    requests = [(max, (3, 5)), (os.strerror, ("not a number",)), (sys.exit, (7,)), (eval, ("lambda: 1",)), (int, ())]
    answers, _ = served(*map(pickle.dumps, requests), b"no request", pickle.dumps((min, (3, 5))))
    returned = [answer if answer[0] else type(answer[1]) for answer in answers]
    assert returned[:3] == [(True, 5), TypeError, SystemExit]
    assert issubclass(returned[3], (pickle.PicklingError, AttributeError)), "what cannot be sent is an error"
    assert returned[4:] == [(True, 0), pickle.UnpicklingError, (True, 3)]
    assert "function(*args)" in str(answers[1][1].__cause__), "an error has the lines of the process"


def test_a_process_leads_its_group_and_leaves_ctrl_c_to_its_parent(served):
    assert served()[1] == [("group", 0, 0), "freeze", "end with caller", (signal.SIGINT, signal.SIG_IGN)]


@pytest.fixture
def caller(monkeypatch):
    """The process that started this one, whose end closes a pipe."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    started = SimpleNamespace(sentinel=reading, is_alive=lambda: True)
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: started)
    monkeypatch.setattr(os, "_exit", sys.exit)
    yield started
    fcntl.fcntl(reading, fcntl.F_SETFL, 0)  # else its end would be that of the tests
    os.close(reading)
    os.close(writing)


@pytest.mark.skipif(not hasattr(fcntl, "F_SETSIG"), reason="Linux alone sends a chosen signal")
def test_the_end_of_the_caller_kills_the_process(caller):
    flags = fcntl.fcntl(caller.sentinel, fcntl.F_GETFL)
    child._end_with_caller()
    assert fcntl.fcntl(caller.sentinel, fcntl.F_GETOWN) == os.getpid()
    assert fcntl.fcntl(caller.sentinel, fcntl.F_GETSIG) == signal.SIGKILL
    assert fcntl.fcntl(caller.sentinel, fcntl.F_GETFL) == flags | os.O_ASYNC


@pytest.mark.skipif(not hasattr(fcntl, "F_SETSIG"), reason="Linux alone sends a chosen signal")
def test_a_caller_that_has_ended_before_is_noticed(caller):
    caller.is_alive = lambda: False
    with pytest.raises(SystemExit) as ended:
        child._end_with_caller()
    assert ended.value.code == 1


@pytest.mark.parametrize("lacks", ["a caller", "the signal"])
def test_a_process_without_a_caller_or_such_a_signal_runs(lacks, caller, monkeypatch):
    if lacks == "a caller":
        monkeypatch.setattr(multiprocessing, "parent_process", lambda: None)
    else:
        monkeypatch.delattr(fcntl, "F_SETSIG", raising=False)
    child._end_with_caller()
    assert not fcntl.fcntl(caller.sentinel, fcntl.F_GETFL) & os.O_ASYNC


FILE = """
import os
os.write(1, os.environ["VERIFY_NORM_INSIDE"].encode())

def right(x, weight, eps):
    import beside
    return x
"""


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    """Called with a device, returns what a process has that has loaded a kernel, and the limits of its memory."""
    folder = tmp_path / "a:b"
    folder.mkdir()
    (folder / "kernel.py").write_text(FILE)
    (folder / "beside.py").touch()
    page, stack, limits, opened = tmp_path / "page", tmp_path / "stack", [], []
    sealed, seal = [], nested.seal
    page.write_bytes(bytes(child.PAGE))
    stack.touch()
    monkeypatch.setenv(nested.VARIABLE, "")
    for module, name in ((child, "_kernel"), (functions, "_remembered"), (nested, "_sealed")):
        monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setattr(resource, "setrlimit", lambda *limit: limits.append(limit))
    monkeypatch.setattr(child, "memory", lambda: 2001)
    monkeypatch.setattr(stacks, "open", lambda *given: opened.append(open(*given)) or opened[0], raising=False)  # noqa: SIM115
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)

    def load(device):
        sent = registry.sent(registry.load(f"{folder}/kernel.py:right", "rmsnorm_fwd"))
        sys.path[:] = [entry for entry in sys.path if entry != str(folder)]  # as in another process
        monkeypatch.setattr(nested, "seal", lambda what: sealed.append(what) or seal(what))
        child.load(device, *sent, str(page), str(stack))
        return SimpleNamespace(
            kernel=child._kernel[0], target=sent[0], page=page, stack=stack, limits=limits, sealed=sealed
        )

    yield load
    signal.signal(signal.SIGALRM, before)
    unregister(stacks.SIGNAL)
    opened[0].close()


def test_a_kernel_is_loaded_within_limits(loaded, capfd):
    has = loaded("cpu")
    assert has.limits == [(resource.RLIMIT_DATA, (1000, resource.RLIM_INFINITY))]
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL, "an alarm ends the process"
    assert functions.remembered() is functions.remembered(), "the judge's functions are those before the kernel's"
    x = torch.ones(2, 3)
    assert has.kernel.run(x, None, 1e-5) is x, "it finds what lies beside its file"
    words = nested.importing(has.target.removesuffix(":right"))
    assert has.sealed == [words, f"the kernel {has.target} runs"], "no run may start in it"
    os.write(1, b", and talks")
    assert capfd.readouterr() == (words, f"{words}, and talks"), "first here, then in its process"


def test_the_parent_sees_the_page_and_the_stack_of_a_process_that_has_loaded(loaded):
    has = loaded("cpu")
    child.announce("accuracy")
    assert has.page.read_bytes() == b"accuracy".ljust(child.PAGE, b"\0")
    os.kill(os.getpid(), stacks.SIGNAL)
    assert "test_the_parent_sees_the_page" in has.stack.read_text()


def test_a_gpu_is_opened_and_its_memory_is_not_limited(loaded, monkeypatch):
    opened = []
    monkeypatch.setattr(torch, "empty", lambda *size, device: opened.append(device))
    monkeypatch.setattr(patch, "enable", lambda: opened.append("Triton's interpreter"))
    assert loaded("cuda:1").limits == []
    assert opened == ["cuda:1"]


@pytest.fixture
def page(monkeypatch):
    """What the parent sees of a process that has a kernel, whose alarms are noted beside it."""
    page, alarms = mmap.mmap(-1, child.PAGE), []
    monkeypatch.setattr(child, "_kernel", ("kernel", page))
    monkeypatch.setattr(signal, "setitimer", lambda *alarm: alarms.append(alarm))
    return page, alarms


def test_an_alarm_ends_a_child_that_its_parent_cannot(page):
    """Also where nobody waits any more; after the call there is none."""
    assert child.call(lambda kernel, more: kernel + more, 2.0, "!")[0] == "kernel!"
    with pytest.raises(ZeroDivisionError):
        child.call(lambda kernel: 1 / 0, 3.0)
    assert page[1] == [(signal.ITIMER_REAL, seconds) for seconds in (2.0 + child.GRACE, 0, 3.0 + child.GRACE, 0)]


def test_the_seconds_of_a_call_and_those_in_which_it_compiled(page, monkeypatch, pause):
    meter = Meter()
    monkeypatch.setattr(child, "METER", meter)
    meter._add(Compiled(seconds=4.0))  # in an earlier call
    pause(100.0)

    def compiles(kernel):
        for _ in range(2):
            meter._add(Compiled(seconds=2.5))
        pause(30.0)

    assert 30.0 <= child.call(compiles, 60.0)[1] < 31.0
    assert child.compiled(page[0]) == 5.0
    assert child.stage(page[0]) == "", "the name of a check is beside them"


def test_a_call_sees_that_its_parent_asks_it_to_end(page, monkeypatch):
    child.announce("memory")
    assert not child.asked_to_end()
    page[0][child.END] = 1
    assert child.asked_to_end()
    assert (child.stage(page[0]), child.compiled(page[0])) == ("memory", 0.0)
    monkeypatch.setattr(child, "_kernel", None)
    assert not child.asked_to_end(), "outside of a child"


def test_the_check_that_was_announced_last_is_seen(page, monkeypatch):
    assert child.stage(page[0]) == ""
    for name in ("batch_invariance", "X", "accuracy"):
        child.announce(name)
        assert child.stage(page[0]) == name
    assert child.compiled(page[0]) == 0.0
    monkeypatch.setattr(child, "_kernel", None)
    child.announce("memory")  # outside a child
    assert child.stage(page[0]) == "accuracy"


PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("text", "size"), [("max\n", PHYSICAL), ("4096\n", 4096), (f"{2 * PHYSICAL}\n", PHYSICAL), (None, PHYSICAL)]
)
def test_memory_is_that_of_the_container_if_it_has_less(text, size, tmp_path, monkeypatch):
    limit = tmp_path / "limit"
    if text is not None:
        limit.write_text(text)
    monkeypatch.setattr(child, "Path", {"/sys/fs/cgroup/memory.max": limit}.__getitem__)
    assert child.memory() == size
