"""Runs a kernel in its own process: a crash, an exit or a hang costs one case.

A fork server that has imported torch starts a process in some hundredths of a second. The child finds the kernel by its
target. A kernel without one, as a function made in a test, runs in the calling process, and the report says so.
"""

import fcntl
import mmap
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from multiprocessing import resource_tracker
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pebble

from verify_norm.core.errors import UsageError
from verify_norm.core.spec import Kernel
from verify_norm.loading import functions, nested, registry
from verify_norm.loading.targets import reach
from verify_norm.running.interpreter import patch
from verify_norm.running.patience import Known, Patience

if TYPE_CHECKING:
    pass

MEMORY = 0.5  # share of the machine's memory that a kernel may allocate on the CPU
_STAGE = 64  # bytes: the longest name of a check
LOADING = 300.0  # seconds that the import of the kernel may take
NO_TARGET = "the kernel is not an attribute of a module that can be imported"
GRACE = 3.0  # seconds after its time limit, when a child without a parent ends itself where Linux does not end it
T = TypeVar("T")


class StoppedError(BaseException):
    """Another thread has stopped the process that this one waits for. Not an Exception: it is no result of a call."""


class LostError(Exception):
    """The child ended, or did not return in time (`hung`); the message says how.

    `measured` has in words how long calls took that did return. `late`: the call had less time than it may take, since
    no more was left, so that it says nothing about the kernel.
    """

    def __init__(self, message: str, *, hung: bool = False, measured: str = "", late: bool = False) -> None:
        super().__init__(message)
        self.hung, self.measured, self.late = hung, measured, late


@dataclass(slots=True)
class InProcess:
    """Runs the kernel in this process, without protection from it."""

    kernel: Kernel
    device: str
    note: str = "none: a crash of the kernel ends the run"
    isolated: bool = False

    def announce(self, name: str) -> None:
        """Do nothing: nobody asks which check runs."""

    def stage(self) -> str:
        """Return "": this process needs no announcements."""
        return ""

    def call(
        self,
        function: Callable[..., T],
        timeout: float,
        *args: Any,
        types: str = "",
        ran: Callable[[T], bool] = bool,
        left: float = inf,
    ) -> T:
        """Return `function(kernel, *args)`, without a time limit; raises what it raises."""
        with nested.inside(f"the kernel {self.kernel.name} runs"):
            return function(self.kernel, *args)

    def fresh(self) -> bool:
        """Return False: the next call runs in the same process."""
        return False

    def close(self) -> None:
        """Forget how the judge's functions were before the kernel ran."""
        functions.remember(None)


class Isolated:
    """Runs the kernel in a child process, and replaces a child that the kernel has ended or broken.

    So many processes have been `started`, which took `starting` seconds. Several of these that are of one kernel share
    what is `known` of the times of its calls.
    """

    note = "a process of its own"
    isolated = True

    def __init__(self, kernel: Kernel, device: str, preload: str, known: Known | None = None) -> None:
        self.kernel, self.device = kernel, device
        self.started, self.starting = 0, 0.0
        self._preload, self._context = preload, context(preload)
        self._file = tempfile.NamedTemporaryFile(prefix="verify-norm-")  # noqa: SIM115
        self._file.truncate(_STAGE)
        self._stage = mmap.mmap(self._file.fileno(), _STAGE)  # the check that the child announced last
        self._sent = registry.sent(kernel)
        self._pool: pebble.ProcessPool | None = None
        self._patience = Patience(device, known or Known())
        self._future: pebble.ProcessFuture[Any] | None = None
        self._stopped = False

    def another(self) -> "Isolated":
        """Return the same for one more child."""
        return Isolated(self.kernel, self.device, self._preload, self._patience.known)

    def call(
        self,
        function: Callable[..., T],
        timeout: float,
        *args: Any,
        types: str = "",
        ran: Callable[[T], bool] = bool,
        left: float = inf,
    ) -> T:
        """Return `function(kernel, *args)` of the child; raises what it raises, and LostError if the child is lost.

        `function` is a module's attribute. The call may take `timeout` seconds, and more where it may build, as the
        first call of `types` in a process does, up to one whose result says that the kernel `ran`; but never more than
        are `left`. Raises StoppedError once `stop` has been called.
        """
        pool = self._pool or self._begin()
        self._stage[:] = bytes(_STAGE)
        limit = min(allowed := self._patience.limit(timeout, types), left)
        try:
            result: T
            result, seconds = self._wait(pool, _call, limit, function, limit, *args)
        except TimeoutError:
            measured, late = self._patience.words(limit, types), left < allowed
            self.fresh(hung=not late)
            raise LostError(f"it did not return after {limit:.3g} s", hung=True, measured=measured, late=late) from None
        except pebble.ProcessExpired as error:
            self.fresh()
            raise LostError(_ending(error.exitcode)) from None
        if ran(result):
            self._patience.returned(types, seconds)
        return result

    def prepare(self) -> None:
        """Wait until the server of the processes has imported torch; in the main thread Ctrl-C may end that."""
        first = self._context.Process(target=int)
        first.start()
        first.join()

    def _wait(self, pool: pebble.ProcessPool, function: Callable[..., T], timeout: float, *args: Any) -> T:
        """Return `function(*args)` of the child; raises what ends it, and StoppedError."""
        future = self._future = pool.schedule(function, args=args, timeout=timeout)
        if self._stopped:  # before there was this future to cancel
            future.cancel()  # type: ignore[no-untyped-call]
        try:
            result: T = future.result()
            return result
        except CancelledError:
            raise StoppedError from None

    def _begin(self) -> pebble.ProcessPool:
        """Return a pool whose child has loaded the kernel; raises UsageError if it cannot, though this process can."""
        began = time.perf_counter()
        self.prepare()
        pool = self._pool = pebble.ProcessPool(1, initializer=_limit, initargs=(self.device,), context=self._context)
        try:
            self._wait(pool, _load, LOADING, *self._sent, self._file.name)
            self.started += 1
            self.starting += time.perf_counter() - began
            return pool
        except TimeoutError:
            why = f"it did not return within {LOADING:.3g} s"
        except pebble.ProcessExpired as error:
            why = _ending(error.exitcode)
        except UsageError as error:
            why = str(error)
        raise UsageError(f"{self.kernel.name} cannot be loaded in a process of its own: {why}")

    @property
    def announce(self) -> Callable[[str], None]:
        """What the child calls with the name of each check."""
        return announce

    def stage(self) -> str:
        """Return what the child announced last in this call, even if it crashed since; "" if nothing."""
        return self._stage[:].rstrip(b"\0").decode()

    def fresh(self, *, hung: bool = False) -> bool:
        """Let the next call run in a new process, perhaps because this one has `hung`, and return True."""
        if self._pool is not None:
            self._pool.stop()  # type: ignore[no-untyped-call]
            self._pool.join()
            self._pool = None
        self._patience.restart(hung=hung)
        return True

    def stop(self) -> None:
        """End the call that another thread waits for, and each later one, with StoppedError; `resume` ends that."""
        self._stopped = True
        if self._future is not None:
            self._future.cancel()  # type: ignore[no-untyped-call]

    def resume(self) -> None:
        """Let calls run again after `stop`, in a new process; no thread may wait for one."""
        if self._stopped:
            self._stopped = False
            self.fresh()

    def close(self) -> None:
        """End the child."""
        self.fresh()
        self._file.close()


def _ending(status: int | None) -> str:
    if status is not None and status < 0:
        name = signal.Signals(-status).name
        hint = ", as when memory is exhausted" if name == "SIGKILL" else ""
        return f"it ended its process by {name}{hint}"
    return f"it ended its process with exit status {status}"


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back until the end of the block; processes that are started in it never get it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_starting = threading.Lock()  # for what a start changes here: `__main__`, and the server's state


class _Process(ForkServerProcess):
    """A child that does not import the caller's script again: the script needs no `if __name__` guard."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 — multiprocessing's name
        with _starting, _no_main():
            resource_tracker.ensure_running()  # it unblocks the signal
            with without_interrupts():
                ensure_running()  # Ctrl-C is for this process alone, which ends the server and its children
            return ForkServerProcess._Popen(process_obj)


class _Context(ForkServerContext):
    Process = _Process


def context(preload: str) -> ForkServerContext:
    """Return a context whose processes start fast, from a server that has imported the module `preload`."""
    made = _Context()
    made.set_forkserver_preload([preload])
    return made


@contextmanager
def _no_main() -> Iterator[None]:
    main = sys.modules["__main__"]
    kept: dict[str, Any] = {name: main.__dict__.pop(name) for name in ("__file__", "__spec__") if name in main.__dict__}
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(kept)


_child: tuple[Kernel, mmap.mmap] | None = None


def _limit(device: str) -> None:
    """In the child: limit its memory, its signals and its life."""
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which ends this process
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.dup2(2, 1)  # the kernel's output is not part of the report
    if device == "cpu":
        patch.enable()
        resource.setrlimit(resource.RLIMIT_DATA, (int(MEMORY * _memory()), resource.RLIM_INFINITY))


def _end_with_parent() -> None:
    """In the child: let the kernel of Linux kill it once the caller's process has ended, whatever it does then.

    The fork server, whose child it is, does not end before it. The sentinel is a pipe that the caller's process alone
    can write to; its end is an event of that pipe.
    """
    caller = multiprocessing.parent_process()
    if caller is None or not hasattr(fcntl, "F_SETSIG"):
        return
    fcntl.fcntl(caller.sentinel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(caller.sentinel, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(caller.sentinel, fcntl.F_SETFL, fcntl.fcntl(caller.sentinel, fcntl.F_GETFL) | os.O_ASYNC)
    if not caller.is_alive():  # before there was this signal
        os._exit(1)


def _load(target: str, record: bytes, stage: str) -> None:
    """In the child: load the kernel; raises UsageError if that fails."""
    global _child
    with open(stage, "r+b") as file:
        memory = mmap.mmap(file.fileno(), _STAGE)
    where = target.rpartition(":")[0]
    nested.seal(nested.importing(where))
    functions.remember(functions.Functions())
    reach(where)  # for what the kernel imports when it is called
    _child = registry.received(target, record), memory
    nested.seal(f"the kernel {target} runs")


def _call(function: Callable[..., T], timeout: float, *args: Any) -> tuple[T, float]:
    """In the child: return `function` of the kernel and its seconds. An alarm ends even a loop outside of Python."""
    assert _child is not None
    signal.setitimer(signal.ITIMER_REAL, timeout + GRACE)
    started = time.perf_counter()
    try:
        return function(_child[0], *args), time.perf_counter() - started
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def announce(name: str) -> None:
    """Tell the parent process which check begins; do nothing outside a child."""
    if _child is not None:
        _child[1][:] = name.encode().ljust(_STAGE, b"\0")


def _memory() -> int:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    return min(physical, int(text)) if text.isdigit() else physical
