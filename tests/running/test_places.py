"""What the two places of isolate.py do with a call, around a child that answers what a test says."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from verify_norm.core.errors import UsageError
from verify_norm.loading import functions, nested, registry
from verify_norm.running import child, isolate, stacks
from verify_norm.running.fork_server import EndedError
from verify_norm.running.isolate import InProcess, Isolated, StoppedError
from verify_norm.running.patience import Known, LostError, Time
from verify_norm.running.stacks import NOWHERE, Stack

KERNEL = registry.load("rmsnorm_fwd")
TIME = Time(20.0, "float32")
COMPILES = Stack((("/site-packages/triton/compiler/compiler.py", 3, "compile"),))


class Answering:
    """A child that keeps what it is asked and told, and gives these answers; an error is raised, a function called."""

    pid = 77

    def __init__(self, *answers):
        self.answers, self.asked, self.told = list(answers), [], []

    def ask(self, seconds, function, *args, **more):
        self.asked.append((seconds, function, args))
        answer = self.answers.pop(0)
        answer = answer() if callable(answer) and not isinstance(answer, type) else answer
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def answer(self, seconds):
        return self.ask(seconds, None)

    def kill(self):
        self.told.append("kill")

    def close(self):
        self.told.append("close")


@pytest.fixture
def place():
    place = Isolated(KERNEL, "cpu", "torch")
    yield place
    place.close()


def with_child(place, *answers):
    place._child = Answering(*answers)
    return place._child


def test_a_kernel_in_this_process_has_no_stages_and_no_other_process(monkeypatch):
    here = InProcess(KERNEL, "cpu")
    here.announce("accuracy")
    assert here.stage() == ""
    assert here.fresh() is False
    monkeypatch.delenv(nested.VARIABLE, raising=False)
    said = here.call(lambda kernel, more: (kernel, more, os.environ[nested.VARIABLE]), TIME, 3)
    assert said == (KERNEL, 3, "the kernel rmsnorm_fwd runs")
    monkeypatch.setattr(functions, "_remembered", functions.Functions())
    here.close()
    assert functions._remembered is None


def test_one_more_child_shares_what_is_known_of_the_kernel():
    first = Isolated(KERNEL, "cuda:1", "torch", Known(slowest=3.0))
    second = first.another()
    assert second is not first
    assert (second.kernel, second.device, second._preload) == (first.kernel, "cuda:1", "torch")
    assert second._patience.known is first._patience.known
    assert second._patience is not first._patience
    assert (second.started, second.starting) == (0, 0.0)
    for one in (first, second):
        files = [Path(one._file.name), Path(one._stacks.name)]
        assert all(file.is_file() and file.name.startswith("verify-norm-") for file in files)
        one.close()
        assert not any(file.exists() for file in files)


def test_a_call_has_the_time_that_is_known_and_is_noted(place):
    place._page[:] = b"x" * child.PAGE
    asked = with_child(place, lambda: (place.stage() or "nothing yet", 1.5))
    assert place.call(print, TIME, "argument") == "nothing yet", "what the call before announced is gone"
    assert place._patience.known.built == {"float32": 1.5}
    ((limit, function, args),) = asked.asked
    assert (limit, function, args) == (140.0, child.call, (print, 260.0, "argument"))
    place._page[:8] = b"accuracy"
    assert place.stage() == "accuracy"
    assert place.announce is child.announce


@pytest.mark.parametrize("late", [None, TimeoutError(), EndedError("by itself"), KeyboardInterrupt()])
def test_after_ctrl_c_a_call_that_ends_returns_what_it_has(place, late):
    def asked_to_end():
        assert place._page[child.END] == 1
        return late or ("some", 1.5)

    interrupted = with_child(place, KeyboardInterrupt(), asked_to_end)
    ending = Time(20.0, "float32", ends=True)
    if late is None:
        assert place.call(print, ending) == "some"
        assert interrupted.told == []
    else:
        with pytest.raises(KeyboardInterrupt):
            place.call(print, ending)
        assert interrupted.told == ["close"]
    assert interrupted.asked[1][0] == isolate.ENDING
    with_child(place, lambda: (place._page[child.END], 1.5))
    assert place.call(print, ending) == 0, "the next call is not asked"


@pytest.mark.parametrize(
    ("left", "stack", "hung", "words"),
    [
        (1000.0, NOWHERE, True, "did not return after 140 s"),
        (1000.0, Stack((("/mine.py", 3, "loops"),)), True, "in loops, mine.py:3"),
        (5.0, NOWHERE, False, "did not return after 5 s"),
        (1000.0, COMPILES, False, "still compiling after 260 s"),
    ],
)
def test_a_call_that_does_not_return_costs_the_child(place, left, stack, hung, words):
    def hangs():
        if stack != NOWHERE:  # as nobody has asked
            place._stack = stack
        return TimeoutError()

    lost = with_child(place, hangs)
    with pytest.raises(LostError, match=words) as caught:
        place.call(print, Time(20.0, "float32", left=left))
    assert caught.value.__suppress_context__
    assert lost.told == ["close"]
    assert place._child is None
    assert place._patience.known.hung is hung


def test_a_child_that_ends_is_told_and_replaced(place):
    ended = with_child(place, (7, 1.0), EndedError("it ended its process by SIGSEGV"))
    place.call(print, TIME)
    with pytest.raises(LostError, match=r"^it ended its process by SIGSEGV$") as caught:
        place.call(print, TIME)
    assert caught.value.__suppress_context__
    assert ended.told == ["close"]
    assert place._child is None
    assert not place._patience.known.hung
    assert place._patience.met == set(), "the next process builds again"


def test_ctrl_c_in_a_call_ends_the_child(place):
    interrupted = with_child(place, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        place.call(print, TIME)
    assert interrupted.told == ["close"]
    assert place._child is None


@pytest.mark.parametrize(
    ("took", "compiled", "stack", "more"),
    [
        (0.5, 0.0, NOWHERE, 0.0),
        (0.5, 0.25, NOWHERE, 0.25),
        (0.75, 0.0, NOWHERE, -0.25),
        (5.0, 0.0, COMPILES, isolate.SLICE),
        (5.0, 6.0, COMPILES, 1.5),
        (9.5, 0.0, COMPILES, 0.5),
        (9.5, 40.0, NOWHERE, 0.5),
    ],
)
def test_a_call_that_compiles_or_has_compiled_has_more_time(place, monkeypatch, took, compiled, stack, more):
    """Of a limit of half a second, and 10 at the longest."""
    asked = []
    monkeypatch.setattr(stacks, "ask", lambda *given: asked.append(given) or stack)
    monkeypatch.setattr(isolate, "now", lambda: 100.0 + took)
    with_child(place)
    child.SECONDS.pack_into(place._page, child.STAGE, compiled)
    assert place._further(0.5, 10.0, 100.0) == more
    assert asked == [(Answering.pid, place._stacks.name, "serve")]
    assert place._stack is stack


def test_a_call_has_its_time_limit_after_a_compiler_that_was_seen(place, monkeypatch):
    """A compiler may say nothing itself, as nvcc does: a call was lost whose compiler had just ended."""
    times, seen = iter([100.5, 101.5, 102.5, 103.0, 103.0]), iter([COMPILES, COMPILES, *[NOWHERE] * 3])
    monkeypatch.setattr(isolate, "now", lambda: next(times))
    monkeypatch.setattr(stacks, "ask", lambda *_: next(seen))
    with_child(place)
    more = [place._further(0.5, 10.0, 100.0) for _ in range(4)]
    assert more == [isolate.SLICE, isolate.SLICE, 0.5, 0.0]
    place._compiling = 0.0
    assert place._further(0.5, 10.0, 100.0) == 0.5 - 3.0


def test_a_call_has_seen_no_compiler_when_it_begins(place):
    place._compiling = 7.0
    with_child(place, lambda: (place._compiling, 1.0))
    assert place.call(print, TIME) == 0.0


def test_the_time_that_a_call_may_have_more_is_asked_of_its_beginning(place, monkeypatch):
    clock, given = iter([100.0, 103.0]), []
    monkeypatch.setattr(isolate, "now", lambda: next(clock))
    monkeypatch.setattr(stacks, "ask", lambda *_: COMPILES)
    with_child(place).ask = lambda *_, more: (given.append(more()), 1.0)
    place.call(print, TIME)
    assert given == [140.0 - 3.0]


def test_a_child_that_another_thread_stops_is_killed_and_answers_nobody(place):
    stopped = with_child(place, (7, 1.0))
    assert place.call(print, TIME) == 7
    place.stop()
    assert stopped.told == ["kill"]
    with pytest.raises(StoppedError):
        place.call(print, TIME)
    place.resume()
    assert stopped.told == ["kill", "close"]
    assert place._child is None, "the next call has a new process"
    fresh = with_child(place, (8, 1.0))
    assert place.call(print, TIME) == 8
    place.resume()
    assert fresh.told == [], "nothing has stopped it since"


def test_a_call_during_which_the_child_is_stopped_is_no_loss(place):
    def killed():
        place.stop()
        return EndedError("by SIGKILL")

    with_child(place, killed)
    with pytest.raises(StoppedError):
        place.call(print, TIME)


def test_a_place_without_a_child_is_stopped_too(place):
    place.stop()
    with_child(place, (7, 1.0))  # it starts while it is stopped
    with pytest.raises(StoppedError):
        place.call(print, TIME)


def test_the_server_of_the_processes_is_waited_for(place):
    did = []
    process = SimpleNamespace(start=lambda: did.append("start"), join=lambda: did.append("join"))
    place._context = SimpleNamespace(Process=lambda target: did.append(target) or process)
    place.prepare()
    assert did == [int, "start", "join"]


@pytest.fixture
def starting(place, monkeypatch):
    """Called with what its children answer, lets a place start them; the clock counts the sleeps alone."""
    monkeypatch.setattr(place, "prepare", lambda: None)
    slept, children = [2.0], []
    monkeypatch.setattr(isolate, "now", lambda: sum(slept))
    monkeypatch.setattr(isolate, "sleep", slept.append)

    def start(*answers):
        answers = iter(answers)

        def begun(context):
            assert context is place._context
            children.append(Answering(next(answers)))
            return children[-1]

        monkeypatch.setattr(isolate, "Child", begun)
        return place, children, slept

    return start


def test_a_process_is_started_and_loads_the_kernel(starting):
    busy = RuntimeError("CUDA error: out of memory")
    place, children, slept = starting(busy, busy, (None, 1.0))
    place._begin()
    assert slept == [2.0, 0.5, 0.5]
    assert [one.told for one in children] == [["close"], ["close"], []]
    assert place._child is children[2]
    sent = registry.sent(KERNEL)
    assert children[2].asked == [(isolate.LOADING, child.load, ("cpu", *sent, place._file.name, place._stacks.name))]
    assert (place.started, place.starting) == (1, 1.0)
    assert place.fresh() is True
    starting((None, 1.0))
    place._begin()
    assert (place.started, place.starting) == (2, 1.0)


def test_a_device_is_waited_for_so_long(starting):
    place, children, slept = starting(*[RuntimeError("busy or unavailable")] * 200)
    with pytest.raises(UsageError, match="cpu takes no new process: RuntimeError: busy or unavailable"):
        place._begin()
    assert sum(slept) == 2.0 + isolate.CLEARING + 0.5
    assert [one.told for one in children] == [["close"]] * len(children)


def test_another_error_of_the_device_is_no_reason_to_wait(starting):
    place, children, _ = starting(RuntimeError("no such device"))
    with pytest.raises(RuntimeError, match="no such device"):
        place._begin()
    assert len(children) == 1


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (TimeoutError(), "it did not return within 300 s"),
        (EndedError("it ended its process by SIGKILL"), "it ended its process by SIGKILL"),
        (UsageError("x.py cannot be imported"), "x.py cannot be imported"),
    ],
)
def test_a_kernel_that_a_process_cannot_load_is_told(starting, answer, why):
    place, children, _ = starting(answer)
    with pytest.raises(UsageError) as caught:
        place._begin()
    assert str(caught.value) == f"rmsnorm_fwd cannot be loaded in a process of its own: {why}"
    assert children[0].told == ["close"]
    assert (place._child, place.started) == (None, 0)
