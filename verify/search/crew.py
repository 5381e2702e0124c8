"""Several processes that examine the cases of one search at the same time; what they find is entered in one order.

A search is a sequence of parts, each of one case or of cases that follow each other's errors. A thread of ours waits
for each process, and runs one part after the other there. What a part enters runs in the thread of the search, in the
order of the parts, as if there were one process: so a run finds the same whatever their number is.
"""

import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import LifoQueue

from verify_norm.core.spec import CaseSpec
from verify_norm.core.work import Compiled, Work
from verify_norm.running import gpu_memory
from verify_norm.running.isolate import Isolated
from verify_norm.running.patience import kind
from verify_norm.running.runners import Runner
from verify_norm.running.surroundings import switching
from verify_norm.search.examined import NO_ROOM, Examined

# On a GPU a case is mostly Python, NumPy and Triton's compiler on one core, and the GPU waits. It runs one process at a
# time, in slices, so many more processes would wait for each other. On a CPU the kernel has all cores already: another
# process doubles the memory, and makes the times of cases, which limit their size, vary.
USUAL = {"cpu": 1, "cuda": 12}
AHEAD = 256  # parts that are given out before the first of them is entered: a corner table, while what follows is drawn
# Seconds after which a thread of ours that draws cases lets another one go on, whose process waits for its next case.
SWITCH = 1e-4
CROWDED = ("out of memory", "allocate memory", "memory is exhausted")  # in a problem that another process may cause

Event = Callable[[], None]


class Over(BaseException):
    """Ends the search, for a reason. Not an Exception, so that Hypothesis does not take it for a failure."""


@dataclass(slots=True)
class Lane:
    """Where a part runs: the process that examines its cases, what takes its results, and how often it drew each.

    `exploration` is the number of its exploration: each draws other values for the shapes that all of them draw.
    """

    runner: Runner
    enter: Callable[[Event], None]
    drawn: Counter[CaseSpec] = field(default_factory=Counter)
    exploration: int = 0


Part = Callable[[Lane], object]


def at_once(event: Event) -> None:
    """Enter what a part has found: no other part runs."""
    event()


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usual(device: str) -> int:
    """Return how many processes a run has where the user does not say; the workers of xdist share the cores."""
    beside = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return min(USUAL[kind(device)], max(cores() // beside, 1))


def crowded(examined: Examined) -> bool:
    """Return whether a case lacked memory, which other processes may have taken."""
    return examined.unsupported == NO_ROOM or bool(examined.left_out or examined.near) or blamed(examined)


def blamed(examined: Examined) -> bool:
    """Return whether a kernel is blamed for a lack of memory."""
    messages = (examined.problem or "", *(finding.message for finding in examined.findings))
    return any(words in message.lower() for message in messages for words in CROWDED)


class Gate:
    """Lets calls run beside each other, or one alone."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._running, self._alone = 0, False

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Wait until nobody is alone or waits to be."""
        with self._change:
            self._change.wait_for(lambda: not self._alone)
            self._running += 1
        try:
            yield
        finally:
            with self._change:
                self._running -= 1
                self._change.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until nothing else runs, and let nothing else begin."""
        with self._change:
            self._change.wait_for(lambda: not self._alone)
            self._alone = True
            self._change.wait_for(lambda: not self._running)
        try:
            yield
        finally:
            with self._change:
                self._alone = False
                self._change.notify_all()


class _Given:
    """A part that was given to a thread, and what it enters."""

    def __init__(self, threads: ThreadPoolExecutor, run: Callable[[Part, Callable[[Event], None]], None], part: Part):
        self._events: deque[Event] = deque()
        self._run = threads.submit(run, part, self._events.append)

    def done(self) -> bool:
        """Return whether the part has ended."""
        return self._run.done()

    def enter(self) -> Over | None:
        """Enter what the part has found, once it is done; return why it ended the search, and raise what else did."""
        error = self._run.exception()
        self.enter_so_far()
        if error is not None and not isinstance(error, Over):
            raise error
        return error

    def enter_so_far(self) -> None:
        """Enter what the part has found."""
        while self._events:
            self._events.popleft()()


class Crew:
    """The processes of one search: the `first`, which stays when the parts are done, and others beside it."""

    def __init__(self, first: Runner, number: int = 1) -> None:
        self._first = first
        self._isolated = [first, *(first.another() for _ in range(1, number))] if isinstance(first, Isolated) else []
        self._gate = Gate()
        self._free: LifoQueue[Runner] = LifoQueue()  # the last one used goes on: few cases start few processes
        for runner in reversed(self._isolated):
            self._free.put(runner)

    @property
    def number(self) -> int:
        """How many processes there are at most; 1 where the kernel has none of its own."""
        return max(len(self._isolated), 1)

    @property
    def slower(self) -> float:
        """How many times as long a case may take because others run beside it: they share the cores, or the GPU."""
        return max(1.0, self.number / cores()) if self._first.device == "cpu" else float(self.number)

    def work(self, compiled: Compiled) -> Work:
        """Return what was spent beside the cases, given what was compiled in them."""
        started = sum(process.started for process in self._isolated)
        starting = sum((process.starting for process in self._isolated), 0.0)
        return Work(self.number, started, starting, compiled)

    def examine(
        self, call: Callable[[], Examined], spec: CaseSpec, fresh: Callable[[], object] = lambda: None
    ) -> Examined:
        """Return call(), of a case; if that lacked memory beside others, what it returns alone.

        On a GPU the others may be of other runs. A kernel is blamed only for what `fresh` memory does not hold: its
        process may keep some of earlier cases.
        """
        device = self._first.device
        with self._gate.beside(), gpu_memory.turn(device, int(gpu_memory.large(spec))):
            examined = call()
        if crowded(examined) and (self.number > 1 or device != "cpu"):
            with self._gate.alone(), gpu_memory.turn(device, gpu_memory.PLACES):
                if blamed(examined):
                    fresh()
                return call()
        return examined

    def run(self, parts: Iterable[Part]) -> None:
        """Run the parts, and enter what they find in their order; raises what ends the search.

        Over, of a part, and Ctrl-C are raised after all is entered that was found before. Where an entry raises Over,
        nothing after it counts.
        """
        if self.number == 1:
            for part in parts:
                part(Lane(self._first, at_once))
            return
        given: deque[_Given] = deque()
        with switching(SWITCH), ThreadPoolExecutor(self.number) as threads:
            try:
                self._run_beside(parts, threads, given)
            except BaseException as error:
                threads.shutdown(wait=False, cancel_futures=True)
                for process in self._isolated:
                    process.stop()
                threads.shutdown()
                if isinstance(error, KeyboardInterrupt):
                    with suppress(Over):
                        for one in given:
                            one.enter_so_far()
                raise
            finally:
                for process in self._isolated[1:]:
                    process.stop()  # all at once: CUDA takes a tenth of a second to end each
                for process in self._isolated[1:]:
                    process.close()
                self._isolated[0].resume()

    def _run_beside(self, parts: Iterable[Part], threads: ThreadPoolExecutor, given: deque[_Given]) -> None:
        """Give each part to a thread, and enter what they find in their order; `given` has those not entered yet."""
        over = None
        for number, part in enumerate(parts):
            if number == 0:  # a search without parts needs no process
                self._isolated[0].prepare()
            given.append(_Given(threads, self._in_turn, part))
            while over is None and given and (given[0].done() or len(given) > AHEAD):
                over = given[0].enter()
                given.popleft()
            if over is not None:
                break
        while given:
            over = given[0].enter() or over
            given.popleft()
        if over is not None:
            raise over

    def _in_turn(self, part: Part, enter: Callable[[Event], None]) -> None:
        """Run a part in a free process, in a thread."""
        runner = self._free.get()
        try:
            part(Lane(runner, enter))
        finally:
            self._free.put(runner)
