"""Several processes change nothing but the time: what they find, in which order, and what ends the search."""

import os
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from functools import partial

import pytest

import verify_norm
from verify_norm.core.finding import Finding
from verify_norm.core.spec import CaseSpec
from verify_norm.core.work import Compiled, Work
from verify_norm.running.isolate import InProcess, Isolated, StoppedError
from verify_norm.search import crew
from verify_norm.search.crew import Crew, Over, crowded, usual
from verify_norm.search.examined import NO_ROOM, Examined
from verify_norm.search.options import Flag, Options

SPEC = CaseSpec((2, 8))
WAIT = 10.0  # seconds, on a machine that does other things too


class Place(Isolated):
    """A process as a crew sees it, without one."""

    def __init__(self, device="cpu", all_of_them=None):
        self.device, self.started, self.starting = device, 0, 0.0
        self.stopped, self.closed, self.all = threading.Event(), False, all_of_them or []
        self.all.append(self)

    def another(self):
        return Place(self.device, self.all)

    def prepare(self):
        pass

    def work(self):
        self.started = 1
        if self.stopped.wait(0.01):
            raise StoppedError

    def stop(self):
        self.stopped.set()

    def resume(self):
        self.stopped.clear()

    def close(self):
        self.closed = True


def numbers(count, entered, *, slow=()):
    """Parts that enter their numbers twice; the slow ones work longer than all others."""

    def part(number, lane):
        for _ in range(20 if number in slow else 1):
            lane.runner.work()
        lane.enter(partial(entered.append, number))
        lane.runner.work()
        lane.enter(partial(entered.append, number))

    return (partial(part, number) for number in range(count))


@pytest.mark.parametrize("workers", [1, 2, 3, 64])
def test_what_parts_find_is_entered_in_their_order(workers, monkeypatch):
    monkeypatch.setattr(crew, "AHEAD", 4)
    entered, first = [], Place()
    Crew(first, workers).run(numbers(9, entered, slow=(0, 4)))
    assert entered == [number for number in range(9) for _ in range(2)]
    assert [place.closed for place in first.all] == [False, *[True] * (workers - 1)]
    assert min(workers, 2) <= sum(place.started for place in first.all) <= min(workers, 9)


def test_a_kernel_without_a_process_of_its_own_has_one_worker():
    entered, threads = [], set()

    def part(lane):
        threads.add(threading.current_thread())
        lane.enter(partial(entered.append, lane.runner))

    here = InProcess(None, "cpu")
    alone = Crew(here, 8)
    alone.run([part, part])
    assert (alone.number, entered, threads) == (1, [here, here], {threading.main_thread()})


def test_time_that_is_over_for_one_part_ends_all_and_loses_nothing():
    entered, begun = [], []

    def late(lane):
        raise Over("late")

    def endless():
        yield from numbers(3, entered, slow=(1,))
        while True:
            begun.append(late)
            yield late

    with pytest.raises(Over, match="late"):
        Crew(Place(), 2).run(endless())
    assert entered == [0, 0, 1, 1, 2, 2]
    assert len(begun) <= crew.AHEAD + 1


def test_time_that_is_over_for_the_last_part_is_told():
    def late(lane):
        lane.runner.work()
        raise Over("late")

    entered = []
    with pytest.raises(Over, match="late"):
        Crew(Place(), 2).run([*numbers(2, entered), late, *numbers(1, entered)])
    assert entered == [0, 0, 1, 1, 0, 0], "what had begun counts"


@pytest.mark.parametrize("error", [Over("found"), ValueError("a mistake"), KeyboardInterrupt()])
def test_what_an_entry_raises_ends_calls_under_way(error):
    """After a finding that the search is for nothing counts; after Ctrl-C what was found before does."""
    entered, first, working = [], Place(), threading.Event()
    threads = threading.active_count()

    def raises(lane):
        working.wait(WAIT)
        lane.enter(partial(throw, error))

    def throw(error):
        raise error

    def works(lane):
        lane.enter(partial(entered.append, "so far"))
        working.set()
        while True:
            lane.runner.work()

    started = time.perf_counter()
    with pytest.raises(type(error)):
        Crew(first, 2).run([raises, works])
    assert time.perf_counter() - started < WAIT
    assert entered == ["so far"] * isinstance(error, KeyboardInterrupt)
    assert not first.stopped.is_set(), "it makes failures small next"
    assert threading.active_count() == threads


def test_what_a_part_raises_is_raised_after_what_comes_before_it():
    entered = []

    def broken(lane):
        raise ValueError("a mistake")

    with pytest.raises(ValueError, match="a mistake"):
        Crew(Place(), 3).run([*numbers(2, entered, slow=(0,)), broken, *numbers(9, [])])
    assert entered == [0, 0, 1, 1]


LACKING = [
    Examined(SPEC, unsupported=NO_ROOM),
    Examined(SPEC, left_out=("calls",)),
    Examined(SPEC, near=("x",)),
    Examined(SPEC, problem="OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
    Examined(
        SPEC, findings=(Finding("k", "crash", None, "error", "by SIGKILL, for example when memory is exhausted", SPEC),)
    ),
]


@pytest.mark.parametrize("first", LACKING)
def test_a_case_that_lacks_memory_beside_others_is_examined_alone(first):
    """Not a wrong kernel: another process has its memory. What it returns alone counts, whatever that is."""
    running, beside, results, right = [], [], [], Examined(SPEC)
    lacking = [first, right]

    def call(answers):
        running.append(1)
        time.sleep(0.01)
        beside.append((answers is lacking, len(running)))
        running.pop()
        return answers.pop(0)

    together = Crew(Place(), 3)

    def part(answers, lane):
        examined = together.examine(partial(call, answers), SPEC)
        lane.enter(partial(results.append, examined))

    together.run([partial(part, lacking), *[partial(part, [right]) for _ in range(6)]])
    assert results == [right] * 7
    again = [number for which, number in beside if which][1]
    assert again == 1 < max(number for _, number in beside)
    assert not crowded(right)
    assert Crew(Place()).examine(lambda: first, SPEC) is first, "one process has nobody to wait for"


def test_on_a_gpu_other_runs_may_have_the_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    answers = [LACKING[0], Examined(SPEC)]
    assert Crew(Place("cuda:0")).examine(lambda: answers.pop(0), SPEC) == Examined(SPEC)
    assert not answers


def test_a_case_alone_waits_for_others_and_they_for_it():
    gate, inside, order = crew.Gate(), threading.Event(), []

    def beside():
        with gate.beside():
            order.append("beside")

    with gate.beside():
        alone = threading.Thread(target=lambda: enter_alone())

        def enter_alone():
            with gate.alone():
                order.append("alone")
                inside.wait(WAIT)
                order.append("not alone")

        alone.start()
        time.sleep(0.05)
        assert order == []
    while not order:
        time.sleep(0.001)
    other = threading.Thread(target=beside)
    other.start()
    time.sleep(0.05)
    inside.set()
    other.join(WAIT)
    alone.join(WAIT)
    assert order == ["alone", "not alone", "beside"]


def test_how_many_processes_and_how_much_time_for_each(monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT", raising=False)
    monkeypatch.setattr(crew, "cores", lambda: 2)
    assert (usual("cpu"), usual("cuda:1")) == (1, 2)
    monkeypatch.setattr(crew, "cores", lambda: 64)
    assert (usual("cpu"), usual("cuda:1")) == (1, 12)
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "10")
    assert (usual("cpu"), usual("cuda:1")) == (1, 6)
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "100")
    assert (usual("cpu"), usual("cuda:1")) == (1, 1)
    assert [Crew(Place("cpu"), n).slower for n in (1, 3)] == [1.0, 1.0]
    assert [Crew(Place("cuda:0"), n).slower for n in (1, 3)] == [1.0, 3.0]
    monkeypatch.setattr(crew, "cores", lambda: 2)
    assert Crew(Place("cpu"), 3).slower == 1.5


def test_how_many_processes_there_are_is_said_where_a_user_sets_their_number():
    (flag,) = (one for one in Options.model_fields["workers"].metadata if isinstance(one, Flag))
    for said in (flag.help, verify_norm.verify.__doc__):
        assert f"at most {crew.USUAL['cuda']} on a GPU" in " ".join(said.split())


def test_the_cores_are_those_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0: {1, 3, 7}}[process], raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert crew.cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    assert crew.cores() == 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert crew.cores() == 1


def test_the_work_of_all_processes_adds_up():
    first, compiled = Place(), Compiled(kernels=3)
    together = Crew(first, 3)
    for number, place in enumerate(first.all, 1):
        place.started, place.starting = number, 0.5 * number
    assert together.work(compiled) == Work(3, 6, 3.0, compiled)
    assert Crew(Place()).work(compiled) == Work(1, 0, 0.0, compiled)
    assert isinstance(Crew(Place()).work(compiled).starting, float)


@pytest.mark.parametrize(("first", "renewed"), list(zip(LACKING, (False, False, False, True, True), strict=True)))
def test_a_kernel_is_blamed_for_a_lack_of_memory_only_in_a_fresh_process(first, renewed):
    """Its process may keep gigabytes of earlier cases, which a capture of a CUDA graph cannot free."""
    done, answers = [], [first, Examined(SPEC)]
    together = Crew(Place(), 2)
    together.examine(lambda: done.append("called") or answers.pop(0), SPEC, lambda: done.append("fresh"))
    assert done == ["called", *["fresh"] * renewed, "called"]
    done.clear()
    together.examine(lambda: Examined(SPEC), SPEC, lambda: done.append("fresh"))
    assert not done


@pytest.mark.parametrize(("device", "number", "calls"), [("cpu", 1, 1), ("cpu", 2, 2), ("cuda:0", 1, 2)])
def test_a_case_is_examined_again_where_something_else_may_have_the_memory(device, number, calls, monkeypatch):
    """On a GPU a large one takes its turn among all runs, and alone it takes all of them."""
    turns, called = [], []

    @contextmanager
    def turn(*given):
        turns.append(given)
        yield

    monkeypatch.setattr(crew.gpu_memory, "turn", turn)
    together = Crew(Place(device), number)
    for spec, places in ((SPEC, 0), (CaseSpec((2, 2**31)), 1)):
        turns.clear()
        called.clear()
        together.examine(lambda: called.append(1) or LACKING[0], spec)
        assert len(called) == calls
        assert turns == [(device, places), (device, crew.gpu_memory.PLACES)][:calls]


def test_as_many_parts_run_at_once_as_there_are_processes(monkeypatch):
    monkeypatch.setattr(crew, "AHEAD", 100)
    met = threading.Barrier(40)
    Crew(Place(), 40).run([lambda lane: met.wait(WAIT)] * 40)
    assert not met.broken


def test_threads_that_draw_cases_soon_let_others_go_on():
    """Each answer of a process waits for Python's lock a few times, and by default 5 ms for each thread that draws."""
    usually, seen = sys.getswitchinterval(), []
    Crew(Place(), 2).run([lambda lane: seen.append(sys.getswitchinterval())] * 3)
    assert seen == [pytest.approx(crew.SWITCH)] * 3
    with pytest.raises(ZeroDivisionError):
        Crew(Place(), 2).run([lambda lane: 1 / 0])
    assert sys.getswitchinterval() == usually


def test_parts_that_wait_do_not_begin_after_the_end():
    begun, given = [], threading.Event()

    def throws(lane):
        given.wait(WAIT)
        raise ValueError("a mistake")

    def waits(lane):
        begun.append(lane)
        lane.runner.work()

    def parts():
        yield from [throws, *[waits] * 200]
        given.set()

    with pytest.raises(ValueError, match="a mistake"):
        Crew(Place(), 2).run(parts())
    assert len(begun) < 100


def test_the_first_process_begins_early_and_once():
    prepared, first, entered = [], Place(), []

    def parts():
        prepared.append("first part")
        yield from numbers(3, entered)

    first.prepare = lambda: prepared.append(first)
    Crew(first, 2).run(parts())
    assert prepared == ["first part", first]


def test_parts_are_given_as_far_ahead_as_is_said(monkeypatch):
    monkeypatch.setattr(crew, "AHEAD", 3)
    given, enough = [], threading.Event()

    def slow(lane):
        assert enough.wait(WAIT / 5)

    def parts():
        for part in (slow, *[lambda lane: None] * 9):
            given.append(part)
            if len(given) == 3 + 1:
                enough.set()
            yield part

    Crew(Place(), 2).run(parts())
    assert len(given) == 10
